"""Start the sender processes together, follow their progress, and collect the outcomes."""

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

_START_DELAY_S = 0.3  # from the last process ready to the start of the window
_READY_TIMEOUT_S = 60.0


class LoadgenFailed(EnginebayError):
    """The load generator failed; the server was not measured."""


@dataclass(slots=True)
class LoadgenProgress:
    """The progress of all processes together."""

    sent: int = 0
    ended: int = 0
    failed: int = 0
    events: int = 0
    elapsed_s: float = 0.0
    ends: list[tuple[int, float, float]] = field(default_factory=list)  # (index, sent_s, end_s) of successful requests


@dataclass(frozen=True, slots=True)
class LoadgenResult:
    """The outcome of all requests."""

    records: list[Record]  # in the order of the workload
    tokens: dict[int, list[float]]  # arrival times of each request's output events
    zero: float  # the monotonic clock at the start of the window
    window_s: float  # to the end of the last response
    core_share: float | None = None  # of one core, used by the busiest process in its window


StopCondition = Callable[[LoadgenProgress], bool]  # True: send no more requests


def run_loadgen(
    tasks: Sequence[SenderTask],
    requests: Sequence[Request],
    should_stop: StopCondition | None = None,
    on_window_soon: Callable[[], None] = lambda: None,
) -> LoadgenResult:
    """Run the tasks together. `on_window_soon` is called just before the window starts. Raise `LoadgenFailed`."""
    with tempfile.TemporaryDirectory(prefix="bay-lab-") as folder:
        pool = _SenderPool(Path(folder), tasks)
        try:
            zero = pool.start()
            on_window_soon()
            last_progress = pool.follow(zero, should_stop)
            outcomes = pool.read_outcomes()
        finally:
            pool.stop()
    records = [
        to_record(outcome, requests[outcome.index], tasks[process].process)
        for process, of_process in enumerate(outcomes)
        for outcome in of_process
    ]
    records.sort(key=lambda record: record.index)
    answered = [outcome for of_process in outcomes for outcome in of_process if outcome.error is None]
    tokens = {outcome.index: outcome.arrivals for outcome in answered}
    window_s = max((record.end_s or 0.0 for record in records), default=0.0)
    core_share = max((progress.core_share for progress in last_progress.values() if progress.finished), default=None)
    return LoadgenResult(records, tokens, zero, window_s, core_share)


class _SenderPool:
    """The sender processes of one run."""

    def __init__(self, folder: Path, tasks: Sequence[SenderTask]) -> None:
        self._outcome_files = [folder / f"outcomes-{number}" for number in range(len(tasks))]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._partial_lines: dict[int, bytes] = {}
        # The package may not be installed: the processes import it from where this one did.
        paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        for number, task in enumerate(tasks):
            task_file = folder / f"task-{number}"
            task_file.write_bytes(msgspec.msgpack.encode(task))
            files = (str(task_file), str(self._outcome_files[number]))
            command = [sys.executable, "-m", "enginebay.lab.loadgen.sender_process", *files]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self._processes.append(process)

    def start(self) -> float:
        """Wait until all are ready, send them the start of the window, and return it."""
        deadline = monotonic() + _READY_TIMEOUT_S
        with selectors.DefaultSelector() as ready:
            for process in self._processes:
                ready.register(_get_stdout(process), selectors.EVENT_READ)
            while ready.get_map():
                events = ready.select(max(0.0, deadline - monotonic()))
                if not events:
                    raise LoadgenFailed(
                        "the load generator did not start", "is the machine out of memory or very busy?"
                    )
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
            why = line.removeprefix("failed ") or "a sender process exited early"
            raise LoadgenFailed(
                f"the load generator cannot connect to the server: {why}", "check that the server is running"
            )

    def follow(self, zero: float, should_stop: StopCondition | None) -> dict[int, SenderProgress]:
        """Follow the processes until all are done, and return the last progress of each."""
        last_progress: dict[int, SenderProgress] = {}
        total = LoadgenProgress()
        stopped = False
        with selectors.DefaultSelector() as selector:
            for number, process in enumerate(self._processes):
                os.set_blocking(_get_stdout(process).fileno(), False)
                selector.register(_get_stdout(process), selectors.EVENT_READ, number)
                self._partial_lines[number] = b""
            while selector.get_map():
                for key, _ in selector.select(1.0):
                    if not self._read_progress(key.data, last_progress, total):
                        selector.unregister(key.fileobj)
                _sum_progress(total, last_progress, zero)
                if should_stop is not None and should_stop(total) and not stopped:
                    stopped = True
                    for process in self._processes:
                        process.terminate()
        return last_progress

    def _read_progress(self, number: int, last_progress: dict[int, SenderProgress], total: LoadgenProgress) -> bool:
        """Read new progress of a process. Return False at the end of its output."""
        data = os.read(_get_stdout(self._processes[number]).fileno(), 1 << 20)
        *lines, self._partial_lines[number] = (self._partial_lines[number] + data).split(b"\n")
        for line in lines:
            progress = msgspec.json.decode(line, type=SenderProgress)
            total.ends += progress.ends
            last_progress[number] = progress
        return bool(data)

    def read_outcomes(self) -> list[list[RequestOutcome]]:
        """Return the outcomes of each process. Raise `LoadgenFailed`."""
        for process in self._processes:
            if process.wait():
                raise LoadgenFailed(
                    f"a load generator process exited with {process.returncode}", "see its output above"
                )
        return [msgspec.msgpack.decode(file.read_bytes(), type=list[RequestOutcome]) for file in self._outcome_files]

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


def _sum_progress(total: LoadgenProgress, progress_by_sender: dict[int, SenderProgress], zero: float) -> None:
    total.elapsed_s = monotonic() - zero
    total.sent = sum(progress.sent for progress in progress_by_sender.values())
    total.ended = sum(progress.ended for progress in progress_by_sender.values())
    total.failed = sum(progress.failed for progress in progress_by_sender.values())
    total.events = sum(progress.events for progress in progress_by_sender.values())
