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
from enginebay.meters.find import find_meters, gpu_labels
from enginebay.meters.host import HostMeter
from enginebay.meters.own_gpus import family_of, gpus_of
from enginebay.meters.processes import read_boot_id
from enginebay.meters.sample import Absent, Meter
from enginebay.server.own_thread import OwnThread

TREE = "server"  # this process and all that come from it, the workers among them
_READ_S = 30.0
_CLOSE_S = 3.0
_ANEW_S = 3.0  # unread for so long, nobody is measuring: workers may use other GPUs now

Found = tuple[list[Meter], list[Absent]]


def of_this_server() -> Found:
    """This host's meters, and of its GPUs those that our workers compute on."""
    own = family_of(os.getpid())
    visible, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
    return find_meters({TREE: os.getpid()}, gpus_of(own, visible, order=order))


class HostMeters:
    """Opened when they are first asked for. One thread reads them, since a driver may take its time."""

    def __init__(self, find: Callable[[], Found] = of_this_server) -> None:
        self._find = find
        self._found: Found | None = None  # only the thread looks at it, and at the next
        self._read_s = 0.0
        self._thread = OwnThread("meters")

    async def read(self) -> dict[str, Any]:
        """Every meter's samples, and what has none with the reason."""
        try:
            async with asyncio.timeout(_READ_S):
                return await self._thread.run(self._read)
        except TimeoutError:
            raise Overloaded(
                f"the meters of this host did not answer within {_READ_S:g} s",
                "a driver may hang: see whether `nvidia-smi` answers",
            ) from None

    async def close(self) -> None:
        with suppress(TimeoutError):  # a driver that does not come back keeps nothing else from being ended
            async with asyncio.timeout(_CLOSE_S):
                await self._thread.run(self._close)
        self._thread.end()

    def _read(self) -> dict[str, Any]:
        before_s = time.monotonic()
        if before_s - self._read_s > _ANEW_S:
            self._close()
        self._read_s = before_s
        if self._found is None:
            self._found = self._find()
        meters, absent = self._found
        samples = [asdict(sample) for meter in meters for sample in meter.read()]
        return {
            # The middle of it, so that whoever asks can tell how far its own clock is from ours by the middle of its asking.
            "monotonic_s": (before_s + time.monotonic()) / 2,
            "boot_id": read_boot_id(),
            "cores": next((meter.cores for meter in meters if isinstance(meter, HostMeter)), None),
            "names": gpu_labels(meters),
            "samples": samples,
            "absent": [asdict(one) for one in absent],
        }

    def _close(self) -> None:
        if self._found is not None:
            for meter in self._found[0]:
                meter.close()
            self._found = None
