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

from enginebay.engines.transformers.attention import Decoding
from enginebay.engines.transformers.layout import Group
from enginebay.engines.transformers.loading import out_of_memory
from enginebay.engines.transformers.recordings import Recordings, StepKey, padded_reach, padded_rows
from enginebay.engines.transformers.rounding import apart
from enginebay.wording import in_one_line

_MOST_SHELVES = 4  # each is a replay that reads all weights: with more, one step for all of them is no slower
_REPLAYED = 0.3  # a replay may be from its rehearsal: rounding is less, and another row's logits are 1 or more
_MOST_SHORTAGES = 3  # of memory, while recording: each costs all recordings, so there is an end to it

Forward = Callable[[Decoding, Any, Any], Any]  # (rows, tokens [n], positions [n]) -> logits [n, vocabulary]
_log = logging.getLogger(__name__)


class Recorder(Protocol):
    """How a device records work."""

    def rehearse(self, work: Callable[[], None]) -> None:
        """Do the work as it will be recorded, so that whatever is prepared on first use is prepared."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the work without doing it; the result does it."""

    def renew(self) -> None:
        """No recording is left."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory: they never run at the same time, and nothing in it outlives a replay."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self._failed: list[Any] = []  # the allocator may still look at them

    def rehearse(self, work: Callable[[], None]) -> None:
        with torch.cuda.device(self._device):
            ours = torch.cuda.current_stream()
            self._stream.wait_stream(ours)
            with torch.cuda.stream(self._stream):
                work()
            ours.wait_stream(self._stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
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

    def renew(self) -> None:
        self._pool = None  # a pool that no graph uses is gone


class StepGraphs:
    """Replays decode steps that came before; records those that come again. `off` says why it no longer does."""

    def __init__(self, recorder: Recorder, forward: Forward, rows: int, device: Any, by_length: bool = False) -> None:
        """`by_length`: attention reads each row as far as it goes, so how far is not baked in."""
        self._recorder = recorder
        self._forward = forward
        self._rows = rows
        self._device = device
        self._by_length = by_length
        self._recordings: Recordings[Callable[[], None]] = Recordings()
        with torch.inference_mode():  # as all steps are: a compiled model would be compiled again for others
            self._inputs = torch.zeros(2 * rows, dtype=torch.long, device=device)  # tokens, then positions
            self._places = torch.arange(rows, device=device)
        self._logits: Any = None
        self._shortages = 0
        self.replays = 0
        self.off: str | None = None

    def run(self, groups: Sequence[Group]) -> Any:
        """Logits of these rows [rows, vocabulary] in float32, good until the next step; `None`: compute them otherwise."""
        if self.off is not None or not 0 < len(groups) <= _MOST_SHELVES:
            return None
        keys = [self._key(group) for group in groups]
        known = [key is not None and self._recordings.worth(key) for key in keys]
        if not all(known):
            return None
        found = []
        for key, group in zip(keys, groups, strict=True):
            logits = self._replayed(key, group) if key is not None and self.off is None else None
            if logits is None:
                return None
            found.append(logits if len(groups) == 1 else logits.clone())
        return found[0] if len(found) == 1 else torch.cat(found)

    def forget(self) -> None:
        """Weights or shelves are about to move: no recording holds any longer."""
        self._recordings.clear()
        self._recorder.renew()
        self._logits = None

    def turn_off(self, reason: str) -> None:
        self.off = reason
        self.forget()
        _log.warning("CUDA graphs are off: %s", reason)

    def _key(self, group: Group) -> StepKey | None:
        """`None` where the rows are not all of their shelf: what pads them must be nobody's."""
        shelf, count = group.shelf, len(group.indices)
        if count != len(shelf.keys) or not shelf.layers:
            return None
        rows = padded_rows(count, shelf.allocated)
        if rows > self._rows:
            return None
        reach = shelf.capacity if self._by_length else padded_reach(group.longest, shelf.capacity)
        return StepKey(shelf.capacity, shelf.generation, rows, reach)

    def _replayed(self, key: StepKey, group: Group) -> Any:
        self._fill(key.rows, group)
        replay = self._recordings.get(key)
        if replay is None:
            return self._recorded(key, group)
        replay()
        self.replays += 1
        return self._logits[: len(group.indices)]

    def _fill(self, rows: int, group: Group) -> None:
        padding = [0] * (rows - len(group.indices))
        tokens = [segment.tokens[0] for segment in group.segments]
        positions = [segment.start for segment in group.segments]
        values = torch.tensor([*tokens, *padding, *positions, *padding])
        if self._inputs.device.type == "cuda":
            values = values.pin_memory()  # the allocator keeps it until it is copied
        self._inputs[: 2 * rows].copy_(values, non_blocking=True)

    def _recorded(self, key: StepKey, group: Group) -> Any:
        """Compute the step, record it, and see that a replay gives the same."""
        computed: list[Any] = []
        try:
            self._recordings.drop_stale(key)
            self._recordings.make_room()
            if not len(self._recordings):
                self._recorder.renew()
            self._recorder.rehearse(lambda: computed.append(self._step(key, group)))
            expected = computed.pop().float()
            if self._logits is None:
                self._logits = expected.new_zeros(self._rows, expected.shape[-1])
            replay = self._recorder.record(lambda: self._logits[: key.rows].copy_(self._step(key, group)))
            replay()
        except Exception as error:  # whatever it is: steps can be computed without
            self._give_up(error)
            return None
        count = len(group.indices)
        if apart(self._logits[:count], expected[:count]) > _REPLAYED:
            self.turn_off("a recorded step gives other results")
            return expected[:count]
        self._recordings.keep(key, replay)
        return expected[:count]

    def _give_up(self, error: Exception) -> None:
        """Memory that is short now may be there later: only the third time ends it. All else does at once."""
        short = out_of_memory(error)
        self._shortages += short
        reason = f"a step could not be recorded ({in_one_line(error)})"
        if short and self._shortages < _MOST_SHORTAGES:
            self.forget()
            _log.warning("CUDA graphs start over: %s", reason)
        else:
            self.turn_off(reason)

    def _step(self, key: StepKey, group: Group) -> Any:
        """The step on the tensors that stay: masks and places are computed from them, so they are recorded too."""
        places = self._places[: key.rows]
        tokens, positions = self._inputs[: key.rows], self._inputs[key.rows : 2 * key.rows]
        rows = Decoding(group.shelf, places, positions, 0, key.reach, key.rows, whole=True)
        return self._forward(rows, tokens, positions)
