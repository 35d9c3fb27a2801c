"""What the meters of this host read now, for whoever measures the server from outside."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from enginebay.errors import Overloaded
from enginebay.meters.devices.engine_gpu_meter import collect_process_tree, find_gpus_of
from enginebay.meters.devices.host_meter import HostMeter
from enginebay.meters.devices.proc_files import read_boot_id
from enginebay.meters.meter_discovery import find_meters, get_gpu_labels
from enginebay.meters.sample import Absent, Meter
from enginebay.util.daemon_executor import DaemonExecutor

PROCESS_TREE = "server"  # this process and all that come from it, the workers among them
_READ_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 3.0
_REDISCOVER_AFTER_S = 3.0  # unread for so long, nobody is measuring: workers may use other GPUs now

DiscoveredMeters = tuple[list[Meter], list[Absent]]


def discover_server_meters() -> DiscoveredMeters:
    """This host's meters, and of its GPUs those that our workers compute on."""
    own = collect_process_tree(os.getpid())
    visible, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
    return find_meters({PROCESS_TREE: os.getpid()}, find_gpus_of(own, visible, order=order))


class HostMeters:
    """Opened when they are first asked for. One thread reads them, since a driver may take its time."""

    def __init__(self, discover: Callable[[], DiscoveredMeters] = discover_server_meters) -> None:
        self._discover = discover
        self._discovered: DiscoveredMeters | None = None  # only the thread looks at it, and at the next
        self._last_read_s = 0.0
        self._thread = DaemonExecutor("meters")

    async def read(self) -> dict[str, Any]:
        """Every meter's samples, and what has none with the reason."""
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                return await self._thread.run(self._read_samples)
        except TimeoutError:
            raise Overloaded(
                f"the meters of this host did not answer within {_READ_TIMEOUT_S:g} s",
                "a driver may hang: see whether `nvidia-smi` answers",
            ) from None

    async def close(self) -> None:
        with suppress(TimeoutError):  # a driver that does not come back keeps nothing else from being ended
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._thread.run(self._close_meters)
        self._thread.shutdown()

    def _read_samples(self) -> dict[str, Any]:
        before_s = time.monotonic()
        if before_s - self._last_read_s > _REDISCOVER_AFTER_S:
            self._close_meters()
        self._last_read_s = before_s
        if self._discovered is None:
            self._discovered = self._discover()
        meters, absent = self._discovered
        samples = [asdict(sample) for meter in meters for sample in meter.read()]
        return {
            # The middle of it, so that whoever asks can tell how far its own clock is from ours by the middle of its asking.
            "monotonic_s": (before_s + time.monotonic()) / 2,
            "boot_id": read_boot_id(),
            "cores": next((meter.cores for meter in meters if isinstance(meter, HostMeter)), None),
            "names": get_gpu_labels(meters),
            "samples": samples,
            "absent": [asdict(one) for one in absent],
        }

    def _close_meters(self) -> None:
        if self._discovered is not None:
            for meter in self._discovered[0]:
                meter.close()
            self._discovered = None
