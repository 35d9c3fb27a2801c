"""Decode steps recorded once and replayed: a replay is one call where a step is a thousand kernel launches.

A recorded step reads its tokens and positions from tensors that stay where they are, and leaves its logits in another.
Its rows are the first of a shelf. Those that fill it up to a recorded size are free places there: what they write at
position 0 is nobody's, and whoever gets the place writes all that is read of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from enginebay.engines.transformers.continuous.bucketed_attention import DecodeBatch
from enginebay.engines.transformers.continuous.graph_cache import (
    GraphCache,
    GraphKey,
    pad_attended_length,
    pad_row_count,
)
from enginebay.engines.transformers.continuous.logit_distance import compute_logit_distance
from enginebay.engines.transformers.continuous.step_layout import DecodeGroup
from enginebay.engines.transformers.loading.model_loader import is_out_of_memory
from enginebay.util.text_format import summarize_error

_MAX_BUCKETS = 4  # each is a replay that reads all weights: with more, one step for all of them is no slower
_MAX_REPLAY_DISTANCE = (
    0.3  # a replay may be from its rehearsal: rounding is less, and another row's logits are 1 or more
)
_MAX_OOM_COUNT = 3  # of memory, while recording: each costs all recordings, so there is an end to it

DecodeForward = Callable[[DecodeBatch, Any, Any], Any]  # (rows, tokens [n], positions [n]) -> logits [n, vocabulary]
_log = logging.getLogger(__name__)


class GraphRecorder(Protocol):
    """How a device records work."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Do the work as it will be recorded, so that whatever is prepared on first use is prepared."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the work without doing it; the result does it."""

    def reset(self) -> None:
        """No recording is left."""


class CudaGraphRecorder:
    """CUDA graphs that share one pool of memory: they never run at the same time, and nothing in it outlives a replay."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self._failed: list[Any] = []  # the allocator may still look at them

    def warm_up(self, work: Callable[[], None]) -> None:
        with torch.cuda.device(self._device):
            ours = torch.cuda.current_stream()
            self._stream.wait_stream(ours)
            with torch.cuda.stream(self._stream):
                work()
            ours.wait_stream(self._stream)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Not by `torch.cuda.graph`, which empties the allocator's cache each time."""
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    self._failed.append(graph)
                    with contextlib.suppress(RuntimeError):  # it only says that the recording is no good
                        graph.capture_end()
                    raise
                graph.capture_end()
        return graph.replay  # type: ignore[no-any-return]

    def reset(self) -> None:
        self._pool = None  # a pool that no graph uses is gone


class DecodeGraphs:
    """Replays decode steps that came before; records those that come again. `off` says why it no longer does."""

    def __init__(
        self, recorder: GraphRecorder, forward: DecodeForward, max_rows: int, device: Any, reads_by_length: bool = False
    ) -> None:
        """`by_length`: attention reads each row as far as it goes, so how far is not baked in."""
        self._recorder = recorder
        self._forward = forward
        self._max_rows = max_rows
        self._device = device
        self._reads_by_length = reads_by_length
        self._graph_cache: GraphCache[Callable[[], None]] = GraphCache()
        with torch.inference_mode():  # as all steps are: a compiled model would be compiled again for others
            self._inputs = torch.zeros(2 * max_rows, dtype=torch.long, device=device)  # tokens, then positions
            self._row_indices = torch.arange(max_rows, device=device)
        self._logits: Any = None
        self._oom_count = 0
        self.replays = 0
        self.disabled_reason: str | None = None

    def run(self, groups: Sequence[DecodeGroup]) -> Any:
        """Logits of these rows [rows, vocabulary] in float32, good until the next step; `None`: compute them otherwise."""
        if self.disabled_reason is not None or not 0 < len(groups) <= _MAX_BUCKETS:
            return None
        keys = [self._make_key(group) for group in groups]
        known = [key is not None and self._graph_cache.should_capture(key) for key in keys]
        if not all(known):
            return None
        found = []
        for key, group in zip(keys, groups, strict=True):
            logits = self._replay(key, group) if key is not None and self.disabled_reason is None else None
            if logits is None:
                return None
            found.append(logits if len(groups) == 1 else logits.clone())
        return found[0] if len(found) == 1 else torch.cat(found)

    def invalidate(self) -> None:
        """Weights or shelves are about to move: no recording holds any longer."""
        self._graph_cache.clear()
        self._recorder.reset()
        self._logits = None

    def disable(self, reason: str) -> None:
        self.disabled_reason = reason
        self.invalidate()
        _log.warning("CUDA graphs are off: %s", reason)

    def _make_key(self, group: DecodeGroup) -> GraphKey | None:
        """`None` where the rows are not all of their shelf: what pads them must be nobody's."""
        shelf, count = group.bucket, len(group.indices)
        if count != len(shelf.sequence_ids) or not shelf.layers:
            return None
        rows = pad_row_count(count, shelf.allocated_rows)
        if rows > self._max_rows:
            return None
        reach = shelf.capacity if self._reads_by_length else pad_attended_length(group.max_length, shelf.capacity)
        return GraphKey(shelf.capacity, shelf.tensor_version, rows, reach)

    def _replay(self, key: GraphKey, group: DecodeGroup) -> Any:
        self._fill_inputs(key.rows, group)
        replay = self._graph_cache.get(key)
        if replay is None:
            return self._capture(key, group)
        replay()
        self.replays += 1
        return self._logits[: len(group.indices)]

    def _fill_inputs(self, rows: int, group: DecodeGroup) -> None:
        padding = [0] * (rows - len(group.indices))
        tokens = [segment.tokens[0] for segment in group.segments]
        positions = [segment.start for segment in group.segments]
        values = torch.tensor([*tokens, *padding, *positions, *padding])
        if self._inputs.device.type == "cuda":
            values = values.pin_memory()  # the allocator keeps it until it is copied
        self._inputs[: 2 * rows].copy_(values, non_blocking=True)

    def _capture(self, key: GraphKey, group: DecodeGroup) -> Any:
        """Compute the step, record it, and see that a replay gives the same."""
        computed: list[Any] = []
        try:
            self._graph_cache.drop_stale(key)
            self._graph_cache.evict_oldest()
            if not len(self._graph_cache):
                self._recorder.reset()
            self._recorder.warm_up(lambda: computed.append(self._run_step(key, group)))
            expected = computed.pop().float()
            if self._logits is None:
                self._logits = expected.new_zeros(self._max_rows, expected.shape[-1])
            replay = self._recorder.capture(lambda: self._logits[: key.rows].copy_(self._run_step(key, group)))
            replay()
        except Exception as error:  # whatever it is: steps can be computed without
            self._handle_capture_error(error)
            return None
        count = len(group.indices)
        if compute_logit_distance(self._logits[:count], expected[:count]) > _MAX_REPLAY_DISTANCE:
            self.disable("a recorded step gives other results")
            return expected[:count]
        self._graph_cache.put(key, replay)
        return expected[:count]

    def _handle_capture_error(self, error: Exception) -> None:
        """Memory that is short now may be there later: only the third time ends it. All else does at once."""
        short = is_out_of_memory(error)
        self._oom_count += short
        reason = f"a step could not be recorded ({summarize_error(error)})"
        if short and self._oom_count < _MAX_OOM_COUNT:
            self.invalidate()
            _log.warning("CUDA graphs start over: %s", reason)
        else:
            self.disable(reason)

    def _run_step(self, key: GraphKey, group: DecodeGroup) -> Any:
        """The step on the tensors that stay: masks and places are computed from them, so they are recorded too."""
        places = self._row_indices[: key.rows]
        tokens, positions = self._inputs[: key.rows], self._inputs[key.rows : 2 * key.rows]
        rows = DecodeBatch(group.bucket, places, positions, 0, key.attended_length, key.rows, is_contiguous=True)
        return self._forward(rows, tokens, positions)
