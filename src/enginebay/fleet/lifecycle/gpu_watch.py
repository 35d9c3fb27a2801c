"""Notices GPUs that disappear and return while the server runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.background_tasks import EmitEvent
from enginebay.util.daemon_executor import DaemonExecutor
from enginebay.util.gpus.gpu_discovery import Gpu
from enginebay.util.hardware import find_gpus

_INTERVAL_S = 5.0
_TIMEOUT_S = 5.0


class GpuWatch:
    """Asks the driver in a thread of its own: one that hangs delays nothing."""

    def __init__(self, gpus: Sequence[Gpu], on_change: Callable[[Sequence[Gpu]], None], emit_event: EmitEvent) -> None:
        self._all = self._present = tuple(gpus)
        self._on_change = on_change
        self._emit_event = emit_event
        self._thread = DaemonExecutor("gpus")
        self._checked_at = time.monotonic()
        self._checking = False

    async def check(self, *, now: bool = False) -> None:
        """Ask the driver, every few seconds or `now`."""
        due = now or time.monotonic() - self._checked_at >= _INTERVAL_S
        if not self._all or self._checking or not due:
            return
        self._checking = True
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                found = await self._thread.run(find_gpus)
        except TimeoutError:
            self._all = ()
            self._emit_event("the NVIDIA driver does not respond; GPUs are no longer watched", level="warning")
            return
        except EnginebayError as error:
            self._emit_event("cannot read the GPUs", level="warning", error=error.message)
            return
        finally:
            self._checking, self._checked_at = False, time.monotonic()
        devices = {gpu.device for gpu in found.gpus}
        self._update([gpu for gpu in self._all if gpu.device in devices], found.problems)

    def _update(self, present: Sequence[Gpu], problems: Sequence[str]) -> None:
        before, self._present = self._present, tuple(present)
        for gpu in before:
            if gpu not in present:
                reason = "; ".join(problems) or "the driver no longer lists it"
                self._emit_event("GPU lost", level="error", gpu=gpu.index, device=gpu.device, reason=reason)
        for gpu in present:
            if gpu not in before:
                self._emit_event("GPU back", level="warning", gpu=gpu.index, device=gpu.device)
        if self._present != before:
            self._on_change(self._present)

    def close(self) -> None:
        self._thread.shutdown()
