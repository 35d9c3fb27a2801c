"""GET /admin/meters: opened on first use, read off the event loop, closed at the end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from dataclasses import fields
from typing import Any

import jsonschema
import msgspec
import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import Overloaded
from enginebay.meters.devices.proc_files import read_boot_id
from enginebay.meters.sample import Absent, Sample
from enginebay.server.api.openapi.document import build_document
from enginebay.server.api.routes import ROUTES
from enginebay.server.telemetry import host_meters
from enginebay.server.telemetry.host_meters import DiscoveredMeters, HostMeters, discover_server_meters


class CountingMeter:
    """A meter that counts its reads and records their threads."""

    name = "counted"

    def __init__(self) -> None:
        self.go = threading.Event()  # a read blocks until it is set
        self.go.set()
        self.threads: list[int] = []
        self.active = self.max_active = self.closed = 0

    def read(self) -> list[Sample]:
        self.active += 1
        self.max_active = max(self.max_active, self.active)
        self.threads.append(threading.get_ident())
        assert self.go.wait(30)
        self.active -= 1
        return [Sample(1.5, "gpu:0", energy_j=7.0, throttle=("power_cap",))]

    def close(self) -> None:
        self.closed += 1


def make_host_meters(meter: CountingMeter, opened: list[int]) -> HostMeters:
    def discover() -> DiscoveredMeters:
        opened.append(threading.get_ident())
        return [meter], [Absent("rapl", "none here")]

    return HostMeters(discover)


async def start_blocked_read() -> tuple[CountingMeter, HostMeters, asyncio.Task[dict[str, Any]]]:
    """A read that blocks until its meter's `go` is set."""
    meter = CountingMeter()
    meter.go.clear()
    meters = make_host_meters(meter, [])
    reading = asyncio.create_task(meters.read())
    while not meter.active:
        await asyncio.sleep(0)
    return meter, meters, reading


async def test_opened_once_and_only_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_meters, "_REDISCOVER_AFTER_S", 60.0)
    meter, opened = CountingMeter(), list[int]()
    meters = make_host_meters(meter, opened)
    assert not opened
    before_s = time.monotonic()
    found = await meters.read()
    assert before_s <= found["monotonic_s"] <= time.monotonic()
    assert found["samples"][0]["energy_j"] == 7.0 and found["samples"][0]["power_w"] is None
    assert found["absent"] == [{"meter": "rapl", "reason": "none here"}] and found["cores"] is None
    await meters.read()
    assert len(opened) == 1 and len(meter.threads) == 2
    await meters.close()
    assert meter.closed == 1


async def test_meters_are_reopened_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may use other GPUs by then."""
    monkeypatch.setattr(host_meters, "_REDISCOVER_AFTER_S", 0.05)
    meter, opened = CountingMeter(), list[int]()
    meters = make_host_meters(meter, opened)
    await meters.read()
    await asyncio.sleep(0.1)
    await meters.read()
    assert len(opened) == 2 and meter.closed == 1
    await meters.close()
    assert meter.closed == 2


async def test_only_the_gpus_of_this_server_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_find_gpus_of(pids: set[int], environment: str | None, *, order: str | None) -> Absent:
        assert os.getpid() in pids and (environment, order) == ("1", "PCI_BUS_ID")
        return Absent("nvml", "nobody knows which")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr(host_meters, "find_gpus_of", fake_find_gpus_of)
    meters = HostMeters(discover_server_meters)
    found = await meters.read()
    await meters.close()
    assert {"meter": "nvml", "reason": "nobody knows which"} in found["absent"] and found["names"] == {}


def test_the_fleets_placement_tells_which_gpus_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may not report processes, as in a container."""
    asked: list[str | None] = []

    def find(pids: Any, visible: str | None, order: str | None) -> Absent:
        asked.append(visible)
        return Absent("nvml", "asked")

    monkeypatch.setattr(host_meters, "find_gpus_of", find)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    for placed in ("GPU-b", ""):
        for meter in discover_server_meters(placed)[0]:
            meter.close()
    assert asked == ["GPU-b", "2,3"]


async def test_meters_that_were_never_opened_can_be_closed() -> None:
    opened: list[int] = []
    await make_host_meters(CountingMeter(), opened).close()
    assert not opened


async def test_a_slow_driver_does_not_block_the_loop_and_reads_are_serialized() -> None:
    meter = CountingMeter()
    meter.go.clear()
    meters = make_host_meters(meter, [])
    reading = [asyncio.ensure_future(meters.read()) for _ in range(3)]
    while not meter.active:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert len(meter.threads) == 1 and not any(task.done() for task in reading)
    meter.go.set()
    await asyncio.gather(*reading)
    assert meter.max_active == 1 and len(meter.threads) == 3
    assert set(meter.threads) != {threading.get_ident()} and len(set(meter.threads)) == 1
    await meters.close()


async def test_close_waits_for_a_cancelled_read() -> None:
    meter, meters, reading = await start_blocked_read()
    reading.cancel()
    closing = asyncio.ensure_future(meters.close())
    await asyncio.sleep(0.05)
    assert not closing.done() and not meter.closed
    meter.go.set()
    await closing
    assert not meter.active and meter.closed == 1


async def test_a_meter_that_hangs_does_not_block_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_meters, "_CLOSE_TIMEOUT_S", 0.05)
    meter, meters, reading = await start_blocked_read()
    monkeypatch.setattr(host_meters, "_READ_TIMEOUT_S", 0.05)
    try:
        with pytest.raises(Overloaded, match="did not respond"):
            await asyncio.wait_for(meters.read(), 20)
        await asyncio.wait_for(meters.close(), 20)
        assert meter.active and not meter.closed
    finally:
        meter.go.set()
    await reading


def test_a_meter_that_hangs_does_not_block_process_exit() -> None:
    """The meter's thread is a daemon."""
    program = """
import asyncio, time
from enginebay.server.telemetry import host_meters

host_meters._READ_TIMEOUT_S = host_meters._CLOSE_TIMEOUT_S = 0.05

async def main():
    meters = host_meters.HostMeters(lambda: time.sleep(600))
    try:
        await meters.read()
    except Exception as error:
        print(error)
    await meters.close()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert "did not respond" in done.stdout


async def test_this_process_is_metered() -> None:
    meters = HostMeters(discover_server_meters)
    await meters.read()
    found = await meters.read()
    await meters.close()
    samples = {sample["device"]: sample for sample in found["samples"]}
    assert found["cores"] == os.cpu_count() and found["boot_id"] == read_boot_id()
    assert samples["tree:server"]["memory_bytes"] > 1 << 20 and samples["tree:server"]["cpu_s"] > 0


async def test_the_response_matches_the_openapi_document() -> None:
    meters = make_host_meters(CountingMeter(), [])
    responses = [await meters.read(), await (real := HostMeters()).read()]
    await meters.close()
    await real.close()
    components = build_document(ROUTES, ServerLimits())["components"]
    schema = {**components["schemas"]["Meters"], "components": components}
    for response in responses:
        jsonschema.Draft202012Validator(schema).validate(msgspec.json.decode(msgspec.json.encode(response)))
    known = set(components["schemas"]["MeterSample"]["properties"])
    assert known == {field.name for field in fields(Sample)}
