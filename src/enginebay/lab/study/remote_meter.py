"""A bay server's meters, read over HTTP: what its host draws and holds, on this machine's clock."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

import msgspec

from enginebay.lab.loadgen.sender_task import TargetServer
from enginebay.meters.devices.proc_files import read_boot_id
from enginebay.meters.sample import Absent, Sample

METERS_PATH = "/admin/meters"
METER_NAME = "server meters"
_MIN_INTERVAL_S = (
    0.02  # between two questions, even in a burst: it is the server under measurement that has to answer them
)
_CLOCK_PROBES = 9  # before the first sample counts, for the clock
_MAX_OFFSETS = 100  # exchanges; clocks drift apart, so old ones say less and less
_TIMEOUT_S = 2.0
_MAX_RESPONSE_BYTES = 4 << 20


class MeterUnavailable(Exception):
    """The server does not tell what its meters read, and why."""


class _MetersResponse(msgspec.Struct):
    """What GET /admin/meters answers."""

    monotonic_s: float
    samples: list[Sample]
    absent: list[Absent] = []
    boot_id: str | None = None
    cores: int | None = None
    names: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far our clock is ahead of another one."""

    seconds: float
    error_s: float  # at most so far off


def estimate_offset(before_s: float, after_s: float, theirs_s: float) -> ClockOffset:
    """By one exchange: the other clock was read somewhere between asking and having the answer. Pure."""
    return ClockOffset((before_s + after_s) / 2 - theirs_s, (after_s - before_s) / 2)


def pick_best_offset(offsets: Sequence[ClockOffset]) -> ClockOffset:
    """The quickest exchange knows best. Pure."""
    return min(offsets, key=lambda one: one.error_s)


def is_same_clock(found: ClockOffset, their_boot: str | None, our_boot: str | None) -> bool:
    """A machine has one clock; a container may have another, which the offset shows. Pure."""
    return our_boot is not None and their_boot == our_boot and abs(found.seconds) <= found.error_s


class RemoteMeter:
    """All the meters of a server's host as one. Made by `open_remote`."""

    name = METER_NAME

    def __init__(self, target: TargetServer) -> None:
        host, port = target.address
        kind = http.client.HTTPSConnection if target.uses_tls else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=_TIMEOUT_S)
        self._path = target.base_path + METERS_PATH
        self._headers = dict(target.headers)
        self._offsets: deque[ClockOffset] = deque(maxlen=_MAX_OFFSETS)
        self._requested_s = float("-inf")
        self.absent: list[Absent] = []
        self.cores = 0
        self.names: dict[str, str] = {}  # of GPUs, by device
        self.reads_energy = self.same_clock = False
        self.failures: list[str] = []  # why readings failed

    def probe(self) -> None:
        """Find out what the server reads, and how its clock is set against ours. Raises `Untold`."""
        found = [self._request_reading() for _ in range(_CLOCK_PROBES)][-1]
        self.same_clock = is_same_clock(pick_best_offset(self._offsets), found.boot_id, read_boot_id())
        self.absent, self.cores, self.names = found.absent, found.cores or 0, found.names
        self.reads_energy = any(one.energy_j is not None or one.power_w is not None for one in found.samples)

    @property
    def clock_error_s(self) -> float:
        """The times of samples may be so far off."""
        return 0.0 if self.same_clock else pick_best_offset(self._offsets).error_s

    def read(self) -> list[Sample]:
        now_s = monotonic()
        if now_s - self._requested_s < _MIN_INTERVAL_S:
            return []
        self._requested_s = now_s
        try:
            samples = self._request_reading().samples
        except MeterUnavailable as problem:
            self.failures.append(str(problem))
            return []  # not this time
        ahead_s = 0.0 if self.same_clock else pick_best_offset(self._offsets).seconds
        return [replace(sample, time_s=sample.time_s + ahead_s) for sample in samples]

    def close(self) -> None:
        self._connection.close()

    def _request_reading(self) -> _MetersResponse:
        """One exchange; what it says of the clock is kept. Raises `Untold`."""
        before_s = monotonic()
        try:
            self._connection.request("GET", self._path, headers=self._headers)
            answer = self._connection.getresponse()
            body = answer.read(_MAX_RESPONSE_BYTES)
        except (OSError, http.client.HTTPException) as problem:
            self._connection.close()  # the next question opens it again
            raise MeterUnavailable(f"the server does not answer at {METERS_PATH}: {problem!r}") from None
        after_s = monotonic()
        if answer.status != 200:
            raise MeterUnavailable(_explain_refusal(answer.status))
        try:
            reading = msgspec.json.decode(body, type=_MetersResponse)
        except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
            raise MeterUnavailable(f"what the server answers at {METERS_PATH} cannot be read: {problem}") from None
        self._offsets.append(estimate_offset(before_s, after_s, reading.monotonic_s))
        return reading


def open_remote_meter(target: TargetServer) -> tuple[RemoteMeter | None, list[Absent]]:
    """A meter of the server's host, or why there is none."""
    meter = RemoteMeter(target)
    try:
        meter.probe()
    except MeterUnavailable as problem:
        meter.close()
        return None, [Absent(METER_NAME, str(problem))]
    return meter, meter.absent


def _explain_refusal(status: int) -> str:
    if status in (401, 403):
        return (
            f"{METERS_PATH} needs a key with the scope admin: name the variable that holds it with --admin-key-env "
            "(on this host ENGINEBAY_ADMIN_KEY is taken)"
        )
    return f"the server has no {METERS_PATH}" if status == 404 else f"the server answers {status} at {METERS_PATH}"
