"""Children die with the parent, and long work can be interrupted from another thread."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from enginebay.contract import EngineSpec
from enginebay.engines.registry import load_specs
from enginebay.errors import FetchFailed
from enginebay.util import child_processes
from enginebay.util.child_processes import select_worker_variables
from enginebay.util.file_lock import exclusive_lock

SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
STUBBORN = "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); " + SLEEPER
# A program with a child of its own, which holds the output open.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}])"


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """A zombie is not: in a container nobody may collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def first_pid(log: Path) -> int:
    return int(log.read_text().split()[0])


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[str]]:
    """Runs `work` as an operation in a thread of its own; the list gets the message it fails with."""
    failures: list[str] = []

    def run() -> None:
        try:
            with child_processes.interruptible():
                work()
        except FetchFailed as error:
            failures.append(error.message)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, failures


def test_a_program_ends_with_the_work_that_needs_it(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def interrupted() -> None:
        if log.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child_processes.run_logged([sys.executable, "-c", SLEEPER], {}, log, interrupted)
    wait_for(lambda: not is_alive(first_pid(log)))


FORK = "import os, time; os.fork() or (time.sleep(60), os._exit(0))"  # it must not hide our exit


@pytest.mark.parametrize("meanwhile", ["pass", FORK], ids=["plain", "forked"])
@pytest.mark.parametrize("script", [STUBBORN, PARENT], ids=["stubborn", "parent"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_and_its_children_end_when_we_are_killed(
    tmp_path: Path, number: signal.Signals, script: str, meanwhile: str
) -> None:
    log = tmp_path / "log"
    ours = (
        "import pathlib, sys; from enginebay.util.child_processes import run_logged; done = []; "
        f"run_logged([sys.executable, '-c', {script!r}], {{}}, pathlib.Path(sys.argv[1]), "
        f"lambda: done or done.append(exec({meanwhile!r})))"
    )
    source = str(Path(child_processes.__file__).parents[2])
    us = subprocess.Popen(
        [sys.executable, "-c", ours, str(log)], env={**os.environ, "PYTHONPATH": source}, start_new_session=True
    )
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    wait_for(lambda: meanwhile == "pass" or len(_list_group(us.pid)) == 2)
    us.send_signal(number)
    us.wait(30)
    wait_for(lambda: not is_alive(first_pid(log)))
    with suppress(ProcessLookupError):
        os.killpg(us.pid, signal.SIGKILL)  # the fork


def _list_group(group: int) -> list[int]:
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            members += [process.pid] if os.getpgid(process.pid) == group else []
    return members


def test_no_guard_outlives_its_program(tmp_path: Path) -> None:
    before = psutil.Process().children()
    assert child_processes.run_logged([sys.executable, "-c", "pass"], {}, tmp_path / "log", lambda: None) == 0
    with pytest.raises(RuntimeError), child_processes.ProcessGuard():
        raise RuntimeError("before there was a program")
    assert psutil.Process().children() == before and not child_processes._guards


def test_a_program_that_cannot_be_run_says_so(tmp_path: Path) -> None:
    assert child_processes.run_logged(["/no/program"], {}, tmp_path / "log", lambda: None) == 127
    assert (tmp_path / "log").read_text() == "/no/program cannot be run: No such file or directory\n"


@pytest.mark.parametrize("script", [SLEEPER, STUBBORN, PARENT], ids=["plain", "stubborn", "parent"])
def test_programs_are_ended_from_another_thread(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "_GRACE_S", 0.5)
    said: list[str] = []

    def work() -> None:
        with child_processes.child_process([sys.executable, "-c", script], {}) as process:
            said.extend(process.stdout or ())

    log = tmp_path / "log"
    thread, failures = in_thread(
        lambda: child_processes.run_logged([sys.executable, "-c", script], {}, log, lambda: None)
    )
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    other, also = in_thread(work)
    wait_for(lambda: len(child_processes._running) == 2)
    child_processes.interrupt_all()
    for one in (thread, other):
        one.join(30)
        assert not one.is_alive()
    assert failures == also == ["interrupted"]
    wait_for(lambda: not is_alive(first_pid(log)))


def test_an_interrupted_operation_starts_nothing_more_and_the_next_one_does(tmp_path: Path) -> None:
    quick = [sys.executable, "-c", "pass"]
    with child_processes.interruptible():
        child_processes.interrupt_all()
        with pytest.raises(FetchFailed, match="interrupted"):
            child_processes.raise_if_interrupted()
        with pytest.raises(FetchFailed, match="interrupted"), child_processes.interruptible():
            child_processes.run_logged(quick, {}, tmp_path / "log", lambda: None)
    with child_processes.interruptible():
        child_processes.raise_if_interrupted()
        assert child_processes.run_logged(quick, {}, tmp_path / "log", lambda: None) == 0


def test_an_exit_code_is_handed_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('the reason')"]
    assert child_processes.run_logged(command, {}, tmp_path / "log", lambda: None) == 1
    assert (tmp_path / "log").read_text().strip() == "the reason"


def test_waiting_for_a_lock_is_interrupted(tmp_path: Path) -> None:
    waiting = threading.Event()
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def work() -> None:
            with exclusive_lock(tmp_path / "lock", waiting.set):
                pytest.fail("it got the lock")

        thread, failures = in_thread(work)
        assert waiting.wait(30)
        child_processes.interrupt_all()
        thread.join(30)
    assert failures == ["interrupted"]


# The environment of programs that run engine code

SECRETS = {
    "ENGINEBAY_ADMIN_KEY": "s", "ENGINEBAY_API_KEY": "s", "HF_TOKEN": "s", "HUGGING_FACE_HUB_TOKEN": "s", "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_ACCESS_KEY_ID": "s", "AZURE_CLIENT_SECRET": "s", "GOOGLE_APPLICATION_CREDENTIALS": "s", "OPENAI_API_KEY": "s", "VLLM_API_KEY": "s",
    "GITHUB_TOKEN": "s", "DATABASE_URL": "s", "HTTPS_PROXY": "http://user:pass@proxy", "SSH_AUTH_SOCK": "s", "NPM_CONFIG__AUTH": "s",
    "PYTHONPATH": "s", "RANK": "0", "TORCH_SECRET": "s",
}  # fmt: skip
NEEDED = {
    "PATH": "p", "HOME": "h", "LANG": "C", "LC_ALL": "C", "TMPDIR": "/t", "CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "0",
    "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "HF_HOME": "/hf", "HF_HUB_OFFLINE": "1", "LD_LIBRARY_PATH": "/l",
    "LD_PRELOAD": "/libtcmalloc.so", "TORCH_LOGS": "x", "TORCHINDUCTOR_CACHE_DIR": "/c", "ENGINEBAY_HOME": "/e", "XDG_RUNTIME_DIR": "/r",
    "PYTORCH_CUDA_ALLOC_CONF": "x", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0",
}  # fmt: skip


def test_secrets_are_withheld_and_what_engines_need_passes() -> None:
    assert select_worker_variables((), {**SECRETS, **NEEDED, "VLLM_LOGGING_LEVEL": "DEBUG"}) == NEEDED


def test_an_engine_names_more() -> None:
    own = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_MAX_TOKENS_PADDING": "1"}
    assert select_worker_variables(("VLLM_",), {**SECRETS, **own}) == own
    proxies = {"HTTPS_PROXY": "a", "https_proxy": "b", "no_proxy": "c"}
    assert select_worker_variables(("HTTPS_PROXY", "NO_PROXY"), {**proxies, "http_proxy": "d"}) == proxies


@pytest.mark.parametrize("spec", load_specs().values(), ids=lambda spec: spec.kind)
def test_no_engine_passes_a_secret(spec: EngineSpec) -> None:
    passed = select_worker_variables(spec.env_prefixes, SECRETS)
    assert set(passed) <= ({"HTTPS_PROXY"} if spec.remote else set())
