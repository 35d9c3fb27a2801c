"""Reads this host's meters for clients that benchmark the server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from enginebay.errors import Overloaded
from enginebay.meters.devices.engine_gpu_meter import find_gpus_of
from enginebay.meters.devices.host_meter import HostMeter
from enginebay.meters.devices.proc_files import list_process_tree, read_boot_id
from enginebay.meters.meter_discovery import find_meters, get_gpu_labels
from enginebay.meters.sample import Absent, Meter
from enginebay.util.daemon_executor import DaemonExecutor
from enginebay.util.gpus.gpu_discovery import VISIBLE_DEVICES

PROCESS_TREE = "server"  # this process and its descendants, including workers
_READ_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 3.0
_REDISCOVER_AFTER_S = 3.0  # after a pause this long, workers may use other GPUs

DiscoveredMeters = tuple[list[Meter], list[Absent]]


def discover_server_meters(placed: str = "") -> DiscoveredMeters:
    """Return this host's meters; of its GPUs, only those that our workers use. `placed`: where the fleet put them."""
    pids = list_process_tree(os.getpid())
    visible, order = placed or os.environ.get(VISIBLE_DEVICES), os.environ.get("CUDA_DEVICE_ORDER")
    return find_meters({PROCESS_TREE: os.getpid()}, find_gpus_of(pids, visible, order=order))


class HostMeters:
    """Opens the meters on first use and reads them in one thread, since drivers may block."""

    def __init__(self, discover: Callable[[], DiscoveredMeters] = discover_server_meters) -> None:
        self._discover = discover
        self._discovered: DiscoveredMeters | None = None  # used only in the thread
        self._last_read_s = 0.0  # used only in the thread
        self._thread = DaemonExecutor("meters")

    async def read(self) -> dict[str, Any]:
        """Return every meter's samples, and the absent meters with reasons."""
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                return await self._thread.run(self._read_samples)
        except TimeoutError:
            raise Overloaded(
                f"the host's meters did not respond within {_READ_TIMEOUT_S:g} s",
                "a driver may hang: check whether `nvidia-smi` responds",
            ) from None

    async def close(self) -> None:
        with suppress(TimeoutError):  # a driver that hangs must not block the shutdown
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
            # The midpoint of the reading: a client compares it with the midpoint of its request to align the clocks.
            "monotonic_s": (before_s + time.monotonic()) / 2,
            "boot_id": read_boot_id(),
            "cores": next((meter.cores for meter in meters if isinstance(meter, HostMeter)), None),
            "names": get_gpu_labels(meters),
            "samples": samples,
            "absent": [asdict(meter) for meter in absent],
        }

    def _close_meters(self) -> None:
        if self._discovered is not None:
            for meter in self._discovered[0]:
                meter.close()
            self._discovered = None
