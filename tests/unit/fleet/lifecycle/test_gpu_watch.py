"""GPUs that disappear, return, or cannot be asked about."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from enginebay.fleet.lifecycle import gpu_watch
from enginebay.fleet.lifecycle.gpu_watch import GpuWatch
from enginebay.util.gpus.gpu_discovery import Gpu, GpuHost
from enginebay.util.hardware import find_gpus


class Watched:
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.present: list[int] = []
        self.watch = GpuWatch(find_gpus().gpus, self._set_gpus, self._event)

    def _set_gpus(self, gpus: Sequence[Gpu]) -> None:
        self.present = [gpu.index for gpu in gpus]

    def _event(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields.get("gpu")))


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "gpus"
    file.write_text("3x80GiB")
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", str(file))
    return file


async def test_a_gpu_is_lost_and_returns(declared: Path) -> None:
    watched = Watched()
    await watched.watch.check(now=True)
    assert watched.events == []
    declared.write_text("3x80GiB; lost 1")
    await watched.watch.check()
    assert watched.events == []  # not yet due
    await watched.watch.check(now=True)
    assert watched.present == [0, 2] and watched.events == [("GPU lost", 1)]
    declared.write_text("3x80GiB")
    await watched.watch.check(now=True)
    assert watched.present == [0, 1, 2] and watched.events[1:] == [("GPU back", 1)]
    watched.watch.close()


async def test_what_cannot_be_read_changes_nothing(declared: Path) -> None:
    watched = Watched()
    declared.unlink()
    await watched.watch.check(now=True)
    assert watched.events == [("cannot read the GPUs", None)] and watched.present == []
    watched.watch.close()


async def test_a_driver_that_hangs_delays_nothing(declared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()

    def hang() -> GpuHost:
        time.sleep(1)
        return GpuHost()

    monkeypatch.setattr(gpu_watch, "find_gpus", hang)
    monkeypatch.setattr(gpu_watch, "_TIMEOUT_S", 0.05)
    await watched.watch.check(now=True)
    await watched.watch.check(now=True)  # it is not asked again
    assert [event for event, _ in watched.events] == ["the NVIDIA driver does not respond; GPUs are no longer watched"]
    watched.watch.close()
