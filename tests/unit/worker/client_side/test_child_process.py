"""A child process starts whatever its parent's threads do, and its exit is noticed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from enginebay.worker.client_side.child_process import ChildProcess

_STARTER = """
import os, sys, time, uvloop
from enginebay.worker.client_side.child_process import ChildProcess

os.register_at_fork(after_in_child=lambda: time.sleep(600))  # like a lock that nobody releases

async def main():
    with open(sys.argv[1], "ab", buffering=0) as log:
        child = ChildProcess(["/bin/echo", "ran"], log, {})
        sys.exit(await child.wait())

uvloop.run(main())
"""


async def _run_child(log: Path, *arguments: str, number: signal.Signals | None = None) -> tuple[int | None, int]:
    """Return its exit status right after the start and after waiting for it."""
    with log.open("ab", buffering=0) as output:
        child = ChildProcess(arguments, output, {"WORD": "given"})
        early = child.returncode
        if number is not None:
            os.kill(child.pid, number)
        first, second = await asyncio.wait_for(asyncio.gather(child.wait(), child.wait()), 30)
        assert first == second == child.returncode
        return early, first


def test_fork_hooks_do_not_run_in_the_child(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run() -> int:
        with (tmp_path / "starter").open("ab", buffering=0) as output:
            starter = ChildProcess([sys.executable, "-c", _STARTER, str(log)], output, dict(os.environ))
            try:
                return await asyncio.wait_for(starter.wait(), 60)
            finally:
                if starter.returncode is None:
                    os.killpg(starter.pid, signal.SIGKILL)

    assert asyncio.run(run()) == 0, (tmp_path / "starter").read_text()
    assert log.read_text() == "ran\n"


@pytest.fixture
def typed() -> Iterator[None]:
    """Put a line on our stdin."""
    before, (reading, writing) = os.dup(0), os.pipe()
    os.write(writing, b"ours\n")
    os.dup2(reading, 0)
    yield
    os.dup2(before, 0)
    for descriptor in (before, reading, writing):
        os.close(descriptor)


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_its_exit_is_noticed(tmp_path: Path, runner: object) -> None:
    assert callable(runner)
    log = tmp_path / "log"
    script = 'read -r line; echo "$WORD [$line]"; echo wrong >&2; exit 7'
    assert runner(_run_child(log, "/bin/sh", "-c", script))[1] == 7
    assert log.read_text() == "given []\nwrong\n"
    assert runner(_run_child(log, "/bin/sleep", "600", number=signal.SIGKILL)) == (None, -signal.SIGKILL)


def test_it_runs_in_its_own_session(tmp_path: Path) -> None:
    async def run() -> None:
        with (tmp_path / "log").open("ab", buffering=0) as output:
            child = ChildProcess(["/bin/sleep", "600"], output, {})
            try:
                assert os.getsid(child.pid) == child.pid != os.getsid(0)
            finally:
                os.kill(child.pid, signal.SIGKILL)
            await child.wait()

    asyncio.run(run())


def test_a_missing_program_raises(tmp_path: Path) -> None:
    async def run() -> None:
        with (tmp_path / "log").open("ab", buffering=0) as output:
            ChildProcess([str(tmp_path / "none")], output, {})

    with pytest.raises(FileNotFoundError):
        asyncio.run(run())


def test_it_is_killed_if_its_watcher_thread_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def start(thread: threading.Thread) -> None:
        seen.append(int(thread.name.removeprefix("child-")))
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        with (tmp_path / "log").open("ab", buffering=0) as output:
            ChildProcess(["/bin/sleep", "600"], output, {})

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_it_may_outlive_its_event_loop(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its exit must not print or raise anything."""

    async def start() -> ChildProcess:
        with (tmp_path / "log").open("ab", buffering=0) as output:
            return ChildProcess(["/bin/sleep", "600"], output, {})

    child = asyncio.run(start())
    os.kill(child.pid, signal.SIGKILL)
    child._watcher.join(30)
    assert child.returncode == -signal.SIGKILL and capfd.readouterr().err == ""
