"""Kill writers at every line and at random moments. A script, since it forks before Arrow starts threads.

Prints what went wrong, one line each, then how many were killed and how many finished.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from enginebay.lab.store import run_folders
from enginebay.lab.store.run_reader import list_runs
from tests.unit.lab.store.run_files import write_run

LINES_TRIED = 70
RANDOM_MOMENTS = 20


def main(root: Path) -> None:
    killed = finished = 0
    total = count_lines(root / "counted")
    for number, line in enumerate(sorted(random.Random(1).sample(range(1, total + 1), min(total, LINES_TRIED)))):
        folder = root / f"line{number}"
        killed += is_killed_by(lambda folder=folder, line=line: kill_at_line(folder, line))
        finished += check(folder, f"killed at line {line} of {total}", reported=[])
    for number in range(RANDOM_MOMENTS):
        folder = root / f"moment{number}"
        reported = kill_at_random(folder)
        killed += 1
        finished += check(folder, f"killed at random moment {number}", reported)
    print("killed", killed, "finished", finished)


def check(folder: Path, moment: str, reported: list[str]) -> int:
    """Check after a kill: reported runs exist, nothing is corrupt, and cleaning leaves only complete runs."""
    runs, problems = list_runs(folder)
    ids = {run.id for run in runs}
    for problem in problems:
        print("WRONG", moment, problem.message)
    if lost := set(reported) - ids:
        print("WRONG", moment, "lost", sorted(lost))
    if len(run_folders.list_partial_folders(folder)) > 1:
        print("WRONG", moment, "left several partial folders")
    run_folders.remove_stale_partials(folder)
    if folder.exists() and {path.name for path in folder.iterdir()} != ids:
        print("WRONG", moment, "left", sorted(path.name for path in folder.iterdir()))
    return len(runs)


def is_killed_by(work: Any) -> bool:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def count_lines(folder: Path) -> int:
    reader, writer = os.pipe()
    is_killed_by(lambda: os.write(writer, str(kill_at_line(folder, None)).encode()))
    return int(os.read(reader, 100))


def kill_at_line(folder: Path, last: int | None) -> int:
    """Write one run and die before the given line of the store's code. Return the number of lines executed."""
    store_folder = str(Path(run_folders.__file__).parent)
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(store_folder):
            return None
        if event == "line":
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    write_run(folder)
    sys.settrace(None)
    return count


def kill_at_random(folder: Path) -> list[str]:
    """Write runs until the kill. Return those that the writer reported as finished."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for number in range(10_000):
            run = write_run(folder, f"20261115-143015-fake-tiny-c1-{number}")
            os.write(writer, f"{run.id}\n".encode())
    os.close(writer)
    reported = os.read(reader, 1000)  # it has started
    time.sleep(random.random() * 0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reader, 65536):
        reported += more
    os.close(reader)
    return reported.decode().split()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
