"""GET /admin/meters: opened when first asked for, read beside the event loop, closed at the end."""

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
from enginebay.server.telemetry import host_meters
from enginebay.server.telemetry.host_meters import DiscoveredMeters, HostMeters, discover_server_meters


class Counted:
    """A meter that remembers who used it, and when."""

    name = "counted"

    def __init__(self) -> None:
        self.go = threading.Event()  # a reading takes until then
        self.go.set()
        self.threads: list[int] = []
        self.under_way = self.most = self.closed = 0

    def read(self) -> list[Sample]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.threads.append(threading.get_ident())
        assert self.go.wait(30)
        self.under_way -= 1
        return [Sample(1.5, "gpu:0", energy_j=7.0, throttle=("power_cap",))]

    def close(self) -> None:
        self.closed += 1


def finding(meter: Counted, opened: list[int]) -> HostMeters:
    def find() -> DiscoveredMeters:
        opened.append(threading.get_ident())
        return [meter], [Absent("rapl", "none here")]

    return HostMeters(find)


async def under_way() -> tuple[Counted, HostMeters, asyncio.Task[dict[str, Any]]]:
    """A reading that takes until its meter is let go."""
    meter = Counted()
    meter.go.clear()
    meters = finding(meter, [])
    reading = asyncio.create_task(meters.read())
    while not meter.under_way:
        await asyncio.sleep(0)
    return meter, meters, reading


async def test_opened_once_and_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_meters, "_REDISCOVER_AFTER_S", 60.0)
    meter, opened = Counted(), list[int]()
    meters = finding(meter, opened)
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


async def test_after_a_pause_they_are_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may compute on other GPUs by then."""
    monkeypatch.setattr(host_meters, "_REDISCOVER_AFTER_S", 0.05)
    meter, opened = Counted(), list[int]()
    meters = finding(meter, opened)
    await meters.read()
    await asyncio.sleep(0.1)
    await meters.read()
    assert len(opened) == 2 and meter.closed == 1
    await meters.close()
    assert meter.closed == 2


async def test_only_the_gpus_of_this_server_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus_of(pids: set[int], environment: str | None, *, order: str | None) -> Absent:
        assert os.getpid() in pids and (environment, order) == ("1", "PCI_BUS_ID")
        return Absent("nvml", "nobody knows which")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr(host_meters, "find_gpus_of", gpus_of)
    meters = HostMeters(discover_server_meters)
    found = await meters.read()
    await meters.close()
    assert {"meter": "nvml", "reason": "nobody knows which"} in found["absent"] and found["names"] == {}


async def test_never_opened_is_closed_all_the_same() -> None:
    opened: list[int] = []
    await finding(Counted(), opened).close()
    assert not opened


async def test_a_slow_driver_holds_up_nobody_and_is_asked_one_at_a_time() -> None:
    meter = Counted()
    meter.go.clear()
    meters = finding(meter, [])
    reading = [asyncio.ensure_future(meters.read()) for _ in range(3)]
    while not meter.under_way:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert len(meter.threads) == 1 and not any(one.done() for one in reading)
    meter.go.set()
    await asyncio.gather(*reading)
    assert meter.most == 1 and len(meter.threads) == 3
    assert set(meter.threads) != {threading.get_ident()} and len(set(meter.threads)) == 1
    await meters.close()


async def test_an_order_that_was_given_up_is_waited_for_before_the_meters_close() -> None:
    meter, meters, reading = await under_way()
    reading.cancel()
    closing = asyncio.ensure_future(meters.close())
    await asyncio.sleep(0.05)
    assert not closing.done() and not meter.closed
    meter.go.set()
    await closing
    assert not meter.under_way and meter.closed == 1


async def test_a_meter_that_does_not_come_back_keeps_nothing_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_meters, "_CLOSE_TIMEOUT_S", 0.05)
    meter, meters, reading = await under_way()
    monkeypatch.setattr(host_meters, "_READ_TIMEOUT_S", 0.05)
    try:
        with pytest.raises(Overloaded, match="did not answer"):
            await asyncio.wait_for(meters.read(), 20)
        await asyncio.wait_for(meters.close(), 20)
        assert meter.under_way and not meter.closed
    finally:
        meter.go.set()
    await reading


def test_nor_the_process_itself() -> None:
    """Though the meter's thread goes on."""
    program = """
import asyncio, time
from enginebay.server import host_meters

host_meters._READ_S = host_meters._CLOSE_S = 0.05

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
    assert "did not answer" in done.stdout


async def test_this_process_is_among_what_is_read() -> None:
    meters = HostMeters(discover_server_meters)
    await meters.read()
    found = await meters.read()
    await meters.close()
    samples = {one["device"]: one for one in found["samples"]}
    assert found["cores"] == os.cpu_count() and found["boot_id"] == read_boot_id()
    assert samples["tree:server"]["memory_bytes"] > 1 << 20 and samples["tree:server"]["cpu_s"] > 0


async def test_what_is_told_is_what_the_document_says() -> None:
    meters = finding(Counted(), [])
    told = [await meters.read(), await (real := HostMeters()).read()]
    await meters.close()
    await real.close()
    components = build_document(ServerLimits())["components"]
    schema = {**components["schemas"]["Meters"], "components": components}
    for one in told:
        jsonschema.Draft202012Validator(schema).validate(msgspec.json.decode(msgspec.json.encode(one)))
    known = set(components["schemas"]["MeterSample"]["properties"])
    assert known == {field.name for field in fields(Sample)}
