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
from enginebay.lab.loadgen.sender_task import RequestOutcome, SenderProgress, SenderTask, to_record
from enginebay.lab.workload.request_records import Record, Request

_START_DELAY_S = 0.3  # from the moment the last process is ready to the moment the window begins
_READY_TIMEOUT_S = 60.0


class LoadgenFailed(EnginebayError):
    """The load client could not do its work; the server was not measured."""


@dataclass(slots=True)
class LoadgenProgress:
    """How far a load is, all processes together."""

    sent: int = 0
    ended: int = 0
    failed: int = 0
    events: int = 0
    elapsed_s: float = 0.0
    ends: list[tuple[int, float, float]] = field(default_factory=list)  # (index, sent_s, end_s) without what failed


@dataclass(frozen=True, slots=True)
class LoadgenResult:
    """What a load gave."""

    records: list[Record]  # in the order of the workload
    tokens: dict[int, list[float]]  # when the output events of each request arrived
    zero: float  # the monotonic clock at the start of the window
    window_s: float  # to the end of the last answer
    core_share: float | None = None  # of a core that the busiest process used in its window; 1 is a whole one


StopCondition = Callable[[LoadgenProgress], bool]  # true: send nothing more


def run_loadgen(
    tasks: Sequence[SenderTask],
    requests: Sequence[Request],
    should_stop: StopCondition | None = None,
    on_window_soon: Callable[[], None] = lambda: None,
) -> LoadgenResult:
    """Carry out the orders together; `soon` is called a moment before the window. Raises `ClientFailed`."""
    with tempfile.TemporaryDirectory(prefix="bay-lab-") as folder:
        crew = _SenderPool(Path(folder), tasks)
        try:
            zero = crew.start()
            on_window_soon()
            told = crew.follow(zero, should_stop)
            outcomes = crew.read_outcomes()
        finally:
            crew.stop()
    records = [
        to_record(outcome, requests[outcome.index], tasks[process].process)
        for process, own in enumerate(outcomes)
        for outcome in own
    ]
    records.sort(key=lambda record: record.index)
    tokens = {outcome.index: outcome.arrivals for own in outcomes for outcome in own if outcome.error is None}
    window_s = max((record.end_s or 0.0 for record in records), default=0.0)
    core_share = max((one.core_share for one in told.values() if one.finished), default=None)
    return LoadgenResult(records, tokens, zero, window_s, core_share)


class _SenderPool:
    """The processes of one load."""

    def __init__(self, folder: Path, tasks: Sequence[SenderTask]) -> None:
        self._outcome_files = [folder / f"outcomes-{number}" for number in range(len(tasks))]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._partial_lines: dict[int, bytes] = {}
        # The package may not be installed: the processes find it where this one did.
        paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        for number, order in enumerate(tasks):
            place = folder / f"order-{number}"
            place.write_bytes(msgspec.msgpack.encode(order))
            command = [
                sys.executable,
                "-m",
                "enginebay.lab.loadgen.sender_process",
                str(place),
                str(self._outcome_files[number]),
            ]
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            )

    def start(self) -> float:
        """Wait until all are ready; tell them when the window begins."""
        deadline = monotonic() + _READY_TIMEOUT_S
        with selectors.DefaultSelector() as ready:
            for process in self._processes:
                ready.register(_get_stdout(process), selectors.EVENT_READ)
            while ready.get_map():
                events = ready.select(max(0.0, deadline - monotonic()))
                if not events:
                    raise LoadgenFailed("the load client did not start", "is the machine out of memory or very busy?")
                for key, _ in events:
                    self._read_ready(key.fileobj)  # type: ignore[arg-type]
                    ready.unregister(key.fileobj)
        zero = monotonic() + _START_DELAY_S
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{zero!r}\n".encode())
            process.stdin.flush()
        return zero

    def _read_ready(self, out: IO[bytes]) -> None:
        line = out.readline().decode().strip()
        if line != "ready":
            why = line.removeprefix("failed ") or "it ended at once"
            raise LoadgenFailed(f"the load client has no connection to the server: {why}", "does the server run?")

    def follow(self, zero: float, should_stop: StopCondition | None) -> dict[int, SenderProgress]:
        """Follow the load until every process is through; gives the last word of each."""
        told: dict[int, SenderProgress] = {}
        live = LoadgenProgress()
        stopped = False
        with selectors.DefaultSelector() as lines:
            for number, process in enumerate(self._processes):
                os.set_blocking(_get_stdout(process).fileno(), False)
                lines.register(_get_stdout(process), selectors.EVENT_READ, number)
                self._partial_lines[number] = b""
            while lines.get_map():
                for key, _ in lines.select(1.0):
                    if not self._read_progress(key.data, told, live):
                        lines.unregister(key.fileobj)
                _sum_progress(live, told, zero)
                if should_stop is not None and should_stop(live) and not stopped:
                    stopped = True
                    for process in self._processes:
                        process.terminate()
        return told

    def _read_progress(self, number: int, told: dict[int, SenderProgress], live: LoadgenProgress) -> bool:
        """What a process has said since. False: it will say no more."""
        data = os.read(_get_stdout(self._processes[number]).fileno(), 1 << 20)
        *whole, self._partial_lines[number] = (self._partial_lines[number] + data).split(b"\n")
        for line in whole:
            progress = msgspec.json.decode(line, type=SenderProgress)
            live.ends += progress.ends
            told[number] = progress
        return bool(data)

    def read_outcomes(self) -> list[list[RequestOutcome]]:
        """What each process brought back."""
        for process in self._processes:
            if process.wait():
                raise LoadgenFailed(
                    f"a process of the load client ended with {process.returncode}", "see what it printed above"
                )
        return [msgspec.msgpack.decode(place.read_bytes(), type=list[RequestOutcome]) for place in self._outcome_files]

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _get_stdout(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _sum_progress(live: LoadgenProgress, progress_by_sender: dict[int, SenderProgress], zero: float) -> None:
    live.elapsed_s = monotonic() - zero
    live.sent = sum(one.sent for one in progress_by_sender.values())
    live.ended = sum(one.ended for one in progress_by_sender.values())
    live.failed = sum(one.failed for one in progress_by_sender.values())
    live.events = sum(one.events for one in progress_by_sender.values())
