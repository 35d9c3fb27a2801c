"""Read an Enginebay server's meters over HTTP, with sample times on this machine's clock."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

import msgspec

from enginebay.lab.loadgen.sender_task import TargetServer
from enginebay.lab.study.server_api import open_client
from enginebay.meters.devices.proc_files import read_boot_id
from enginebay.meters.sample import Absent, Sample

METERS_PATH = "/admin/meters"
METER_NAME = "server meters"
_MIN_INTERVAL_S = 0.02  # between two requests, even in a burst: they load the server under measurement
_CLOCK_PROBES = 9  # exchanges that estimate the clock offset, before the first sample counts
_MAX_OFFSETS = 100  # exchanges; clocks drift, so old offsets lose their value
_TIMEOUT_S = 2.0
_MAX_RESPONSE_BYTES = 4 << 20


class MeterUnavailable(Exception):
    """The server's meters cannot be read; the message says why."""


class _MetersResponse(msgspec.Struct):
    """The body of GET /admin/meters."""

    monotonic_s: float
    samples: list[Sample]
    absent: list[Absent] = []
    boot_id: str | None = None
    cores: int | None = None
    names: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far this machine's clock is ahead of another one."""

    seconds: float
    error_s: float  # upper bound


def estimate_offset(before_s: float, after_s: float, theirs_s: float) -> ClockOffset:
    """Estimate the offset from one exchange: the other clock was read between request and response. Pure."""
    return ClockOffset((before_s + after_s) / 2 - theirs_s, (after_s - before_s) / 2)


def pick_best_offset(offsets: Sequence[ClockOffset]) -> ClockOffset:
    """Return the offset of the fastest exchange, which has the smallest error. Pure."""
    return min(offsets, key=lambda offset: offset.error_s)


def is_same_clock(offset: ClockOffset, their_boot: str | None, our_boot: str | None) -> bool:
    """Return whether both ends share a clock: the same boot, and no offset (a container may have its own clock). Pure."""
    return our_boot is not None and their_boot == our_boot and abs(offset.seconds) <= offset.error_s


class RemoteMeter:
    """All meters of a server's host as one. Created by `open_remote_meter`."""

    name = METER_NAME

    def __init__(self, target: TargetServer) -> None:
        self._client = open_client(target, _TIMEOUT_S, _MAX_RESPONSE_BYTES)
        self._path = target.base_path + METERS_PATH
        self._headers = target.headers
        self._offsets: deque[ClockOffset] = deque(maxlen=_MAX_OFFSETS)
        self._requested_s = float("-inf")
        self.absent: list[Absent] = []
        self.cores = 0
        self.names: dict[str, str] = {}  # GPU labels, by device
        self.reads_energy = self.same_clock = False
        self.failures: list[str] = []  # why readings failed

    def probe(self) -> None:
        """Find out what the server can read, and the offset of its clock. Raise `MeterUnavailable`."""
        reading = [self._request_reading() for _ in range(_CLOCK_PROBES)][-1]
        self.same_clock = is_same_clock(pick_best_offset(self._offsets), reading.boot_id, read_boot_id())
        self.absent, self.cores, self.names = reading.absent, reading.cores or 0, reading.names
        self.reads_energy = any(sample.energy_j is not None or sample.power_w is not None for sample in reading.samples)

    @property
    def clock_error_s(self) -> float:
        """The largest error of sample times."""
        return 0.0 if self.same_clock else pick_best_offset(self._offsets).error_s

    def read(self) -> list[Sample]:
        now_s = monotonic()
        if now_s - self._requested_s < _MIN_INTERVAL_S:
            return []
        self._requested_s = now_s
        try:
            samples = self._request_reading().samples
        except MeterUnavailable as error:
            self.failures.append(str(error))
            return []
        ahead_s = 0.0 if self.same_clock else pick_best_offset(self._offsets).seconds
        return [replace(sample, time_s=sample.time_s + ahead_s) for sample in samples]

    def close(self) -> None:
        self._client.close()

    def _request_reading(self) -> _MetersResponse:
        """Make one exchange and record its clock offset. Raise `MeterUnavailable`."""
        before_s = monotonic()
        try:
            status, body = self._client.request(self._path, self._headers)
        except (OSError, http.client.HTTPException) as error:
            raise MeterUnavailable(f"the server does not respond to {METERS_PATH}: {error!r}") from None
        after_s = monotonic()
        if status != 200:
            raise MeterUnavailable(_explain_refusal(status))
        try:
            reading = msgspec.json.decode(body, type=_MetersResponse)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MeterUnavailable(f"the response of {METERS_PATH} is invalid: {error}") from None
        self._offsets.append(estimate_offset(before_s, after_s, reading.monotonic_s))
        return reading


def open_remote_meter(target: TargetServer) -> tuple[RemoteMeter | None, list[Absent]]:
    """Return a meter of the server's host and what it lacks, or None and why."""
    meter = RemoteMeter(target)
    try:
        meter.probe()
    except MeterUnavailable as error:
        meter.close()
        return None, [Absent(METER_NAME, str(error))]
    return meter, meter.absent


def _explain_refusal(status: int) -> str:
    if status in (401, 403):
        return (
            f"{METERS_PATH} needs a key with admin scope: name the variable that holds it with --admin-key-env "
            "(for a server on this host it defaults to ENGINEBAY_ADMIN_KEY)"
        )
    return f"the server has no {METERS_PATH}" if status == 404 else f"{METERS_PATH} returned {status}"
