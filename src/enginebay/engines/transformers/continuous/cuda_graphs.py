"""CUDA graphs of decode steps: a replay is one call instead of a thousand kernel launches.

A captured step reads its tokens and positions from fixed tensors and writes its logits to another. Its rows are the
first rows of a bucket, padded to a captured size with free rows: these write to position 0, which a new sequence
overwrites before it is read.
"""

from __future__ import annotations

import contextlib
import logging
import math
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
from enginebay.engines.transformers.continuous.step_layout import DecodeGroup
from enginebay.engines.transformers.loading.model_loader import is_out_of_memory
from enginebay.util.text_format import summarize_error

_MAX_BUCKETS = 4  # each replay reads all weights: with more, one eager step for all is no slower
_MAX_REPLAY_DISTANCE = 0.3  # between a replay and its warm-up: rounding is less, another row's logits are 1 or more
_MAX_OOM_COUNT = 3  # failed captures before graphs are disabled: each one discards all graphs

DecodeForward = Callable[[DecodeBatch, Any, Any], Any]  # (batch, tokens [n], positions [n]) -> logits [n, vocabulary]
_log = logging.getLogger(__name__)


class GraphRecorder(Protocol):
    """Captures work on a device for replay."""

    def warm_up(self, work: Callable[[], None]) -> None:
        """Run the work as it will be captured, so that lazy initialization happens now."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture the work without running it, and return a function that replays it."""

    def reset(self) -> None:
        """Release the memory pool. No graph is left."""


class CudaGraphRecorder:
    """CUDA graphs that share one memory pool: they never run concurrently, and no data in it outlives a replay."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self._failed: list[Any] = []  # the allocator may still refer to them

    def warm_up(self, work: Callable[[], None]) -> None:
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                work()
            current.wait_stream(self._stream)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture without `torch.cuda.graph`, which empties the allocator's cache each time."""
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
                    with contextlib.suppress(RuntimeError):  # it only reports that the capture is invalid
                        graph.capture_end()
                    raise
                graph.capture_end()
        return graph.replay  # type: ignore[no-any-return]

    def reset(self) -> None:
        self._pool = None  # a pool without graphs is freed


class DecodeGraphs:
    """Captures decode steps that recur and replays them. `disabled_reason` is set once graphs are disabled."""

    def __init__(
        self, recorder: GraphRecorder, forward: DecodeForward, max_rows: int, device: Any, reads_by_length: bool = False
    ) -> None:
        """`reads_by_length`: attention reads each row by its length, so one graph fits all lengths."""
        self._recorder = recorder
        self._forward = forward
        self._max_rows = max_rows
        self._device = device
        self._reads_by_length = reads_by_length
        self._graph_cache: GraphCache[Callable[[], None]] = GraphCache()
        with torch.inference_mode():  # like all steps: other tensors would recompile a compiled model
            self._inputs = torch.zeros(2 * max_rows, dtype=torch.long, device=device)  # tokens, then positions
            self._row_indices = torch.arange(max_rows, device=device)
        self._logits: Any = None
        self._oom_count = 0
        self.replays = 0
        self.disabled_reason: str | None = None

    def run(self, groups: Sequence[DecodeGroup]) -> Any:
        """Return logits [rows, vocabulary] in float32, valid until the next step, or None if the step cannot be replayed."""
        if self.disabled_reason is not None or not 0 < len(groups) <= _MAX_BUCKETS:
            return None
        keys = [self._make_key(group) for group in groups]
        capturable = [key is not None and self._graph_cache.should_capture(key) for key in keys]
        if not all(capturable):
            return None
        results = []
        for key, group in zip(keys, groups, strict=True):
            logits = self._replay(key, group) if key is not None and self.disabled_reason is None else None
            if logits is None:
                return None
            results.append(logits if len(groups) == 1 else logits.clone())
        return results[0] if len(results) == 1 else torch.cat(results)

    def invalidate(self) -> None:
        """Discard all graphs: weights or buckets are about to move."""
        self._graph_cache.clear()
        self._recorder.reset()
        self._logits = None

    def disable(self, reason: str) -> None:
        self.disabled_reason = reason
        self.invalidate()
        _log.warning("CUDA graphs are disabled: %s", reason)

    def _make_key(self, group: DecodeGroup) -> GraphKey | None:
        """Return the key of a step, or None unless it contains all rows of its bucket: padding needs free rows."""
        bucket, count = group.bucket, len(group.indices)
        if count != len(bucket.sequence_ids) or not bucket.layers:
            return None
        rows = pad_row_count(count, bucket.allocated_rows)
        if rows > self._max_rows:
            return None
        length = bucket.capacity if self._reads_by_length else pad_attended_length(group.max_length, bucket.capacity)
        return GraphKey(bucket.capacity, bucket.tensor_version, rows, length)

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
            values = values.pin_memory()  # the allocator keeps it alive until it is copied
        self._inputs[: 2 * rows].copy_(values, non_blocking=True)

    def _capture(self, key: GraphKey, group: DecodeGroup) -> Any:
        """Run the step, capture it, and verify that a replay gives the same result."""
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
        except Exception as error:  # any error: steps run without graphs too
            self._handle_capture_error(error)
            return None
        count = len(group.indices)
        if compute_logit_distance(self._logits[:count], expected[:count]) > _MAX_REPLAY_DISTANCE:
            self.disable("a replayed step gives different results")
            return expected[:count]
        self._graph_cache.put(key, replay)
        return expected[:count]

    def _handle_capture_error(self, error: Exception) -> None:
        """Disable graphs, but retry after the first out-of-memory errors: memory may be free later."""
        out_of_memory = is_out_of_memory(error)
        self._oom_count += out_of_memory
        reason = f"a step could not be captured ({summarize_error(error)})"
        if out_of_memory and self._oom_count < _MAX_OOM_COUNT:
            self.invalidate()
            _log.warning("CUDA graphs are discarded and captured again: %s", reason)
        else:
            self.disable(reason)

    def _run_step(self, key: GraphKey, group: DecodeGroup) -> Any:
        """Run the step on the fixed tensors, so that the capture includes masks and indices."""
        indices = self._row_indices[: key.rows]
        tokens, positions = self._inputs[: key.rows], self._inputs[key.rows : 2 * key.rows]
        batch = DecodeBatch(group.bucket, indices, positions, 0, key.attended_length, key.rows, is_contiguous=True)
        return self._forward(batch, tokens, positions)


def compute_logit_distance(actual: Any, reference: Any) -> float:
    """Return the largest root mean square difference of a row of logits [rows, vocabulary], in standard deviations of that row.

    A mean, because one of a hundred thousand logits is always an outlier. Infinite if any value is NaN.
    """
    spread = reference.std(-1)
    worst = ((actual - reference).square().mean(-1).sqrt() / torch.where(spread > 0, spread, 1.0)).max()
    return float(worst) if math.isfinite(worst) else math.inf
