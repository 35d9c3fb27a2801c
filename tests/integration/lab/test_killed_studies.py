"""A killed study resumes where it stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginebay.lab.store.run_reader import list_runs
from tests.integration.lab.conftest import BAY, QUICK, Lab

KILLS = 20


@pytest.mark.slow
def test_sigkill_at_random_moments_loses_no_finished_run(lab: Lab, write: Callable[..., str], tmp_path: Path) -> None:
    """Killed and resumed twenty times, the study completes, and finished runs stay byte for byte."""
    fake = {**QUICK["fake"], "step_s": 0.001}  # type: ignore[dict-item]
    config = write(num_cycles=8, sweep={"fake.max_batch": [2, 4]}, fake=fake, num_input_prompts=12)
    runs = tmp_path / "home" / "runs"
    environment = {**os.environ, "ENGINEBAY_HOME": str(tmp_path / "home")}
    arguments = ["experiment", config]
    dice = random.Random(5)
    known: dict[str, str] = {}
    for _ in range(KILLS):
        child = subprocess.Popen([str(BAY), *arguments], env=environment, cwd=tmp_path, start_new_session=True,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            child.wait(dice.uniform(2.0, 5.5))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        found, problems = list_runs(runs) if runs.exists() else ([], [])
        assert not problems
        now = {run.id: run.manifest["files"]["requests.parquet"]["sha256"] for run in found}
        assert known.items() <= now.items()
        known = now
        if list((runs / "studies").glob("[!.]*.json")):  # not while it was being written
            arguments = ["experiment", "--resume"]
        time.sleep(0.1)
    last = lab("experiment", "--resume", "--json")
    if last.returncode != 0:  # the twentieth was not needed any more
        assert "no study to resume" in last.stderr
    found, problems = list_runs(runs)
    assert not problems and len(found) == 16
    assert len({(run.manifest["study"]["point"], run.cycle) for run in found}) == 16
    assert not list(runs.glob("*.partial"))


def _is_loaded_worker(command: list[str]) -> bool:
    """Return whether this is a worker with a loaded engine, not one that only probes engines."""
    return "serve" in command and any("bootstrap.py" in word for word in command)


def test_sigkill_of_the_lab_alone_leaves_no_process(write: Callable[..., str], tmp_path: Path) -> None:
    """Only one pid is killed, as the kernel's OOM killer does; server, engine and client exit on their own."""
    config = write(fake={"step_s": 0.5}, num_input_prompts=400)
    environment = {**os.environ, "ENGINEBAY_HOME": str(tmp_path / "home")}
    lab = subprocess.Popen([str(BAY), "experiment", config], env=environment, cwd=tmp_path,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        started = _wait_for_children(lab)
    finally:
        lab.kill()
        lab.wait()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("experiment", "study.yaml"), "resume with `bay experiment --resume`"),
        (("choose", "toy", "--slo", "ttft_p50=9", "--config", "study.yaml", "--engines", "fake"), "nothing was chosen"),
    ],
)
def test_sigterm_acts_like_an_interrupt(
    arguments: tuple[str, ...], says: str, write: Callable[..., str], tmp_path: Path
) -> None:
    """As sent by `timeout`: the lab stops its child processes, and prints what was done."""
    write(fake={"step_s": 0.5}, num_input_prompts=400)
    environment = {**os.environ, "ENGINEBAY_HOME": str(tmp_path / "home")}
    with subprocess.Popen([str(BAY), *arguments], env=environment, cwd=tmp_path,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as lab:  # fmt: skip
        try:
            started = _wait_for_children(lab)
            lab.terminate()
            _, said = lab.communicate(timeout=60)
        finally:
            lab.kill()
    assert lab.returncode == 143 and says in said and "Traceback" not in said
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def _wait_for_children(lab: subprocess.Popen[Any]) -> list[psutil.Process]:
    """Return the lab's child processes, once an engine is loaded."""
    started: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while not any(_is_loaded_worker(_read_command(process)) for process in started):
        assert lab.poll() is None and time.monotonic() < deadline, started
        time.sleep(0.1)
        started = psutil.Process(lab.pid).children(recursive=True)
    return started


def _read_command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it just exited
        return []


@pytest.mark.slow
def test_a_corrupt_run_is_reported_skipped_and_repeated(lab: Lab, write: Callable[..., str], tmp_path: Path) -> None:
    done = lab("experiment", write(num_cycles=2), "--json")
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)["study"]
    runs = tmp_path / "home" / "runs"
    victim = list_runs(runs)[0][0]
    (victim.path / "requests.parquet").chmod(0o644)
    (victim.path / "requests.parquet").write_bytes(b"gone")
    listed = lab("results", "list")
    assert victim.id in listed.stderr and victim.id not in listed.stdout
    again = lab("experiment", "--resume", "--study", study, "--json")
    assert again.returncode == 0, again.stderr
    found, problems = list_runs(runs)
    assert len(found) == 2 and [problem.folder.name for problem in problems] == [victim.id]
