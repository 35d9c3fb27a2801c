"""A bay server's meters, read over HTTP: what its host draws and holds, on this machine's clock."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

import msgspec

from enginebay.lab.client.order import Target
from enginebay.meters.processes import read_boot_id
from enginebay.meters.sample import Absent, Sample

PATH = "/admin/meters"
NAME = "server meters"
_LEAST_S = 0.02  # between two questions, even in a burst: it is the server under measurement that has to answer them
_LOOKS = 9  # before the first sample counts, for the clock
_KEPT = 100  # exchanges; clocks drift apart, so old ones say less and less
_TIMEOUT_S = 2.0
_LONGEST_ANSWER = 4 << 20


class Untold(Exception):
    """The server does not tell what its meters read, and why."""


class _Reading(msgspec.Struct):
    """What GET /admin/meters answers."""

    monotonic_s: float
    samples: list[Sample]
    absent: list[Absent] = []
    boot_id: str | None = None
    cores: int | None = None
    names: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Offset:
    """How far our clock is ahead of another one."""

    seconds: float
    error_s: float  # at most so far off


def offset(before_s: float, after_s: float, theirs_s: float) -> Offset:
    """By one exchange: the other clock was read somewhere between asking and having the answer. Pure."""
    return Offset((before_s + after_s) / 2 - theirs_s, (after_s - before_s) / 2)


def best(offsets: Sequence[Offset]) -> Offset:
    """The quickest exchange knows best. Pure."""
    return min(offsets, key=lambda one: one.error_s)


def same_clock(found: Offset, their_boot: str | None, our_boot: str | None) -> bool:
    """A machine has one clock; a container may have another, which the offset shows. Pure."""
    return our_boot is not None and their_boot == our_boot and abs(found.seconds) <= found.error_s


class RemoteMeter:
    """All the meters of a server's host as one. Made by `open_remote`."""

    name = NAME

    def __init__(self, target: Target) -> None:
        host, port = target.place
        kind = http.client.HTTPSConnection if target.tls else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=_TIMEOUT_S)
        self._path = target.base_path + PATH
        self._headers = dict(target.headers)
        self._offsets: deque[Offset] = deque(maxlen=_KEPT)
        self._asked_s = float("-inf")
        self.absent: list[Absent] = []
        self.cores = 0
        self.names: dict[str, str] = {}  # of GPUs, by device
        self.reads_energy = self.same_clock = False
        self.failures: list[str] = []  # why readings failed

    def look(self) -> None:
        """Find out what the server reads, and how its clock is set against ours. Raises `Untold`."""
        found = [self._ask() for _ in range(_LOOKS)][-1]
        self.same_clock = same_clock(best(self._offsets), found.boot_id, read_boot_id())
        self.absent, self.cores, self.names = found.absent, found.cores or 0, found.names
        self.reads_energy = any(one.energy_j is not None or one.power_w is not None for one in found.samples)

    @property
    def clock_error_s(self) -> float:
        """The times of samples may be so far off."""
        return 0.0 if self.same_clock else best(self._offsets).error_s

    def read(self) -> list[Sample]:
        now_s = monotonic()
        if now_s - self._asked_s < _LEAST_S:
            return []
        self._asked_s = now_s
        try:
            samples = self._ask().samples
        except Untold as problem:
            self.failures.append(str(problem))
            return []  # not this time
        ahead_s = 0.0 if self.same_clock else best(self._offsets).seconds
        return [replace(sample, time_s=sample.time_s + ahead_s) for sample in samples]

    def close(self) -> None:
        self._connection.close()

    def _ask(self) -> _Reading:
        """One exchange; what it says of the clock is kept. Raises `Untold`."""
        before_s = monotonic()
        try:
            self._connection.request("GET", self._path, headers=self._headers)
            answer = self._connection.getresponse()
            body = answer.read(_LONGEST_ANSWER)
        except (OSError, http.client.HTTPException) as problem:
            self._connection.close()  # the next question opens it again
            raise Untold(f"the server does not answer at {PATH}: {problem!r}") from None
        after_s = monotonic()
        if answer.status != 200:
            raise Untold(_refusal(answer.status))
        try:
            reading = msgspec.json.decode(body, type=_Reading)
        except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
            raise Untold(f"what the server answers at {PATH} cannot be read: {problem}") from None
        self._offsets.append(offset(before_s, after_s, reading.monotonic_s))
        return reading


def open_remote(target: Target) -> tuple[RemoteMeter | None, list[Absent]]:
    """A meter of the server's host, or why there is none."""
    meter = RemoteMeter(target)
    try:
        meter.look()
    except Untold as problem:
        meter.close()
        return None, [Absent(NAME, str(problem))]
    return meter, meter.absent


def _refusal(status: int) -> str:
    if status in (401, 403):
        return (
            f"{PATH} needs a key with the scope admin: name the variable that holds it with --admin-key-env "
            "(on this host ENGINEBAY_ADMIN_KEY is taken)"
        )
    return f"the server has no {PATH}" if status == 404 else f"the server answers {status} at {PATH}"
