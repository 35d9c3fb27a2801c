"""Processes of the load client are started together, watched, and their outcomes gathered."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import IO

import msgspec

from enginebay.errors import EnginebayError
from enginebay.lab.client.order import Order, Outcome, Progress, as_record
from enginebay.lab.requests import Record, Request

_HEADSTART_S = 0.3  # from the moment the last process is ready to the moment the window begins
_READY_S = 60.0


class ClientFailed(EnginebayError):
    """The load client could not do its work; the server was not measured."""


@dataclass(slots=True)
class Live:
    """How far a load is, all processes together."""

    sent: int = 0
    ended: int = 0
    failed: int = 0
    events: int = 0
    elapsed_s: float = 0.0
    ends: list[tuple[int, float, float]] = field(default_factory=list)  # (index, sent_s, end_s) without what failed


@dataclass(frozen=True, slots=True)
class Fired:
    """What a load gave."""

    records: list[Record]  # in the order of the workload
    tokens: dict[int, list[float]]  # when the output events of each request arrived
    zero: float  # the monotonic clock at the start of the window
    window_s: float  # to the end of the last answer
    core_share: float | None = None  # of a core that the busiest process used in its window; 1 is a whole one


Watch = Callable[[Live], bool]  # true: send nothing more


def fire(
    orders: Sequence[Order],
    requests: Sequence[Request],
    watch: Watch | None = None,
    soon: Callable[[], None] = lambda: None,
) -> Fired:
    """Carry out the orders together; `soon` is called a moment before the window. Raises `ClientFailed`."""
    with tempfile.TemporaryDirectory(prefix="bay-lab-") as folder:
        crew = _Crew(Path(folder), orders)
        try:
            zero = crew.start()
            soon()
            told = crew.watch(zero, watch)
            outcomes = crew.outcomes()
        finally:
            crew.end()
    records = [
        as_record(outcome, requests[outcome.index], orders[process].process)
        for process, own in enumerate(outcomes)
        for outcome in own
    ]
    records.sort(key=lambda record: record.index)
    tokens = {outcome.index: outcome.arrivals for own in outcomes for outcome in own if outcome.error is None}
    window_s = max((record.end_s or 0.0 for record in records), default=0.0)
    core_share = max((one.core_share for one in told.values() if one.over), default=None)
    return Fired(records, tokens, zero, window_s, core_share)


class _Crew:
    """The processes of one load."""

    def __init__(self, folder: Path, orders: Sequence[Order]) -> None:
        self._results = [folder / f"outcomes-{number}" for number in range(len(orders))]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pending: dict[int, bytes] = {}
        # The package may not be installed: the processes find it where this one did.
        paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        for number, order in enumerate(orders):
            place = folder / f"order-{number}"
            place.write_bytes(msgspec.msgpack.encode(order))
            command = [sys.executable, "-m", "enginebay.lab.client.process", str(place), str(self._results[number])]
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            )

    def start(self) -> float:
        """Wait until all are ready; tell them when the window begins."""
        deadline = monotonic() + _READY_S
        with selectors.DefaultSelector() as ready:
            for process in self._processes:
                ready.register(_out(process), selectors.EVENT_READ)
            while ready.get_map():
                events = ready.select(max(0.0, deadline - monotonic()))
                if not events:
                    raise ClientFailed("the load client did not start", "is the machine out of memory or very busy?")
                for key, _ in events:
                    self._take_ready(key.fileobj)  # type: ignore[arg-type]
                    ready.unregister(key.fileobj)
        zero = monotonic() + _HEADSTART_S
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{zero!r}\n".encode())
            process.stdin.flush()
        return zero

    def _take_ready(self, out: IO[bytes]) -> None:
        line = out.readline().decode().strip()
        if line != "ready":
            why = line.removeprefix("failed ") or "it ended at once"
            raise ClientFailed(f"the load client has no connection to the server: {why}", "does the server run?")

    def watch(self, zero: float, watch: Watch | None) -> dict[int, Progress]:
        """Follow the load until every process is through; gives the last word of each."""
        told: dict[int, Progress] = {}
        live = Live()
        stopped = False
        with selectors.DefaultSelector() as lines:
            for number, process in enumerate(self._processes):
                os.set_blocking(_out(process).fileno(), False)
                lines.register(_out(process), selectors.EVENT_READ, number)
                self._pending[number] = b""
            while lines.get_map():
                for key, _ in lines.select(1.0):
                    if not self._take_lines(key.data, told, live):
                        lines.unregister(key.fileobj)
                _sum(live, told, zero)
                if watch is not None and watch(live) and not stopped:
                    stopped = True
                    for process in self._processes:
                        process.terminate()
        return told

    def _take_lines(self, number: int, told: dict[int, Progress], live: Live) -> bool:
        """What a process has said since. False: it will say no more."""
        data = os.read(_out(self._processes[number]).fileno(), 1 << 20)
        *whole, self._pending[number] = (self._pending[number] + data).split(b"\n")
        for line in whole:
            progress = msgspec.json.decode(line, type=Progress)
            live.ends += progress.ends
            told[number] = progress
        return bool(data)

    def outcomes(self) -> list[list[Outcome]]:
        """What each process brought back."""
        for process in self._processes:
            if process.wait():
                raise ClientFailed(
                    f"a process of the load client ended with {process.returncode}", "see what it printed above"
                )
        return [msgspec.msgpack.decode(place.read_bytes(), type=list[Outcome]) for place in self._results]

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _out(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _sum(live: Live, told: dict[int, Progress], zero: float) -> None:
    live.elapsed_s = monotonic() - zero
    live.sent = sum(one.sent for one in told.values())
    live.ended = sum(one.ended for one in told.values())
    live.failed = sum(one.failed for one in told.values())
    live.events = sum(one.events for one in told.values())
