"""A bay server's meters over HTTP, and its clock offset."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import Any

import pytest

from enginebay.lab.loadgen.sender_task import TargetServer
from enginebay.lab.study import remote_meter
from enginebay.lab.study.remote_meter import (
    ClockOffset,
    estimate_offset,
    is_same_clock,
    open_remote_meter,
    pick_best_offset,
)
from enginebay.meters.devices.proc_files import read_boot_id

FAR_S = -5000.0  # another machine's clock, relative to this one


class Host:
    """A server whose host draws 100 W, with a clock of its own."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        self.boot_id = read_boot_id() if ahead_s == 0 else "another"
        self.slow_s = 0.0  # on the way there, but not on the way back
        self.status, self.raw = 200, b""
        self.asked: list[tuple[str, str | None, int]] = []
        self.read_s = 0.0  # when it was, by our clock

    def answer(self) -> bytes:
        self.read_s = monotonic()
        now_s = self.read_s + self.ahead_s
        gpu = {"time_s": now_s, "device": "gpu:0", "energy_j": now_s * 100, "power_w": 100.0, "throttle": ["power_cap"]}
        host = {"time_s": now_s, "device": "host", "cpu_s": 5.0, "utilisation": None, "a_field_to_come": 1}
        absent = [{"meter": "rapl", "reason": "not here"}]
        body = {"monotonic_s": now_s, "boot_id": self.boot_id, "cores": 4, "samples": [gpu, host], "absent": absent}
        return json.dumps({**body, "names": {"gpu:0": "NVIDIA H200 GPU-a"}}).encode()


@contextmanager
def serving(host: Host) -> Iterator[TargetServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            host.asked.append((self.path, self.headers.get("Authorization"), self.client_address[1]))
            sleep(host.slow_s)
            body = host.raw or host.answer()
            self.send_response(host.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/proxy/v1"
        yield TargetServer(url, "m", {"Authorization": "Bearer k"}, is_enginebay=True)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture()
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_meter, "_MIN_INTERVAL_S", 0.0)


# The clock


def test_the_offset_is_estimated_from_the_middle_of_the_exchange() -> None:
    assert estimate_offset(10.0, 10.2, 3.0) == ClockOffset(pytest.approx(7.1), pytest.approx(0.1))
    assert pick_best_offset([ClockOffset(7.1, 0.1), ClockOffset(7.02, 0.01), ClockOffset(7.3, 0.4)]) == ClockOffset(
        7.02, 0.01
    )


@pytest.mark.parametrize(
    ("found", "their_boot", "our_boot", "same"),
    [
        (ClockOffset(0.0005, 0.001), "a", "a", True),
        (ClockOffset(-0.2, 0.3), "a", "a", True),  # the machine was very busy
        (ClockOffset(0.002, 0.001), "a", "a", False),  # a container with a clock of its own
        (ClockOffset(0.0005, 0.001), "a", "b", False),  # two machines that started at the same time
        (ClockOffset(0.0005, 0.001), None, None, False),
        (ClockOffset(0.0005, 0.001), None, "a", False),
    ],
)
def test_one_machine_has_one_clock(
    found: ClockOffset, their_boot: str | None, our_boot: str | None, same: bool
) -> None:
    assert is_same_clock(found, their_boot, our_boot) is same


def test_samples_of_this_machine_keep_their_time(often: None) -> None:
    with serving(Host()) as target:
        meter, absent = open_remote_meter(target)
        assert meter is not None and meter.same_clock and meter.clock_error_s == 0.0
        before_s = monotonic()
        gpu, host = meter.read()
        assert before_s <= gpu.time_s == host.time_s <= monotonic()
        meter.close()
    assert gpu.energy_j == pytest.approx(gpu.time_s * 100)  # to the last digit: nothing was shifted
    assert (gpu.power_w, gpu.throttle, host.cpu_s, host.energy_j) == (100.0, ("power_cap",), 5.0, None)
    assert [(one.meter, one.reason) for one in absent] == [("rapl", "not here")]
    assert meter.cores == 4 and meter.reads_energy


def test_samples_of_another_machine_are_moved_to_our_clock(often: None) -> None:
    with serving(Host(FAR_S)) as target:
        meter, _ = open_remote_meter(target)
        assert meter is not None and not meter.same_clock
        before_s = monotonic()
        gpu, _ = meter.read()
        after_s = monotonic()
        error_s = meter.clock_error_s
        meter.close()
    assert 0 < error_s < 1
    assert before_s - error_s <= gpu.time_s <= after_s + error_s
    assert gpu.energy_j == pytest.approx((gpu.time_s + FAR_S) * 100, abs=100 * error_s)


def test_a_slow_exchange_does_not_move_the_clock(often: None) -> None:
    host = Host(FAR_S)
    with serving(host) as target:
        meter, _ = open_remote_meter(target)
        assert meter is not None
        known_s = meter.clock_error_s
        host.slow_s = 0.6
        gpu, _ = meter.read()
        meter.close()
    assert meter.clock_error_s <= known_s
    assert gpu.time_s == pytest.approx(host.read_s, abs=known_s + 1e-6)  # by the middle of the exchange, 0.3 off


# The server


def test_it_is_read_on_one_connection_with_the_key_and_not_too_often() -> None:
    host = Host()
    with serving(host) as target:
        meter, _ = open_remote_meter(target)
        assert meter is not None
        looks = len(host.asked)
        until_s = monotonic() + 0.2
        found = 0
        while monotonic() < until_s:  # as a burst does
            found += bool(meter.read())
            sleep(0.002)
        meter.close()
    assert {(path, key) for path, key, _ in host.asked} == {("/proxy/admin/meters", "Bearer k")}
    assert len({port for _, _, port in host.asked}) == 1
    assert len(host.asked) - looks == found <= 11


def open_refused(host: Host) -> str:
    with serving(host) as target:
        meter, absent = open_remote_meter(target)
    assert meter is None
    return absent[0].reason


def _make_host(status: int = 200, raw: bytes = b"{}") -> Host:
    host = Host()
    host.status, host.raw = status, raw
    return host


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (lambda: _make_host(401), "admin scope"),
        (lambda: _make_host(403), "admin scope"),
        (lambda: _make_host(404), "has no /admin/meters"),
        (lambda: _make_host(500), "returned 500"),
        (lambda: _make_host(raw=b"hello"), "is invalid"),
        (lambda: _make_host(raw=b'{"monotonic_s": 1}'), "is invalid"),
        (lambda: _make_host(raw=b'{"monotonic_s": 1, "samples": [{"device": "gpu:0"}]}'), "is invalid"),
        (lambda: _make_host(raw=b'{"monotonic_s": "1", "samples": []}'), "is invalid"),
        (lambda: _make_host(raw=b'\xff{"monotonic_s": 1}'), "is invalid"),
    ],
)
def test_why_meters_are_unavailable(host: Callable[[], Host], said: str) -> None:
    assert said in open_refused(host())


def test_an_unreachable_server() -> None:
    meter, absent = open_remote_meter(TargetServer("http://127.0.0.1:9", "m", is_enginebay=True))
    assert meter is None and "does not respond" in absent[0].reason


def test_a_failed_reading_is_skipped_and_the_next_one_works(often: None) -> None:
    host = Host()
    with serving(host) as target:
        meter, _ = open_remote_meter(target)
        assert meter is not None
        host.status = 503
        assert meter.read() == []
        host.status, host.raw = 200, b"nonsense"
        assert meter.read() == []
        host.raw = b""
        assert len(meter.read()) == 2
    meter.close()
    assert meter.read() == [] and len(meter.failures) == 3  # the server is gone
