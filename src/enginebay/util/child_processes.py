"""Child processes that die with the parent, and interruption of long work from another thread.

    ProcessGuard()                                   ends a process group when this process ends, however it dies
    @interruptible()                                 marks long work, which is interrupted as a whole
    with child_process(command, env) as process: …   ends with the block, on `interrupt_all()` and with the parent
    run_logged(command, env, log, on_poll)           the same, with its output in a file
    raise_if_interrupted()                           a checkpoint for work that runs no child process
    interrupt_all()                                  from any thread: ends children; their callers raise `FetchFailed`

`interrupt_all()` does not affect work that begins after it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from enginebay.errors import FetchFailed
from enginebay.util.paths import open_log_file

_POLL_S = 0.2
_GRACE_S = 3.0
# Waits for the end of its stdin, which its owner holds, and of its stdout, a connection to the owner's parent.
_GUARD = """
trap '' TERM INT HUP
grace=$1 directory=$2 parent=$3
read -r pid group && [ -n "$pid" ] || exit 0
end() {
  kill -TERM "$pid"
  while [ "$grace" -gt 0 ] && kill -0 "$pid"; do grace=$((grace - 1)); sleep 0.25; done
  kill -KILL "-$group"
}
[ -z "$parent" ] || { (read -r _ <&1; end) </dev/null & watcher=$!; }
exec 1>&-
if ! read -r _; then
  [ -z "$parent" ] || grace=0
  end
  [ -z "$directory" ] || rm -rf -- "$directory"
fi
[ -z "$parent" ] || kill -KILL "$watcher"
"""
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
# Set if Enginebay itself runs under a launcher: a worker must not mistake itself for one of its ranks.
_LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
WITHHELD_VARIABLES = frozenset((*_PYTHON_VARIABLES, *_LAUNCHER_VARIABLES))
_COMMON_VARIABLES = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "COLUMNS", "NO_COLOR", "HOSTNAME",
    "TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "ENGINEBAY_HOME", "ENGINEBAY_OFFLINE", "CONDA_PREFIX", "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH", "MAX_JOBS",
))  # fmt: skip
_COMMON_PREFIXES = (
    "LC_", "LD_", "DYLD_", "PYTHON", "MALLOC_", "GLIBC_", "GRPC_",  # the system and Python
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "ONEDNN_", "DNNL_",  # CPU libraries
    "CUDA", "CUBLAS_", "CUDNN_", "NVIDIA_", "NVTE_", "NCCL_", "UCX_", "GLOO_",  # GPUs and their links
    "HIP_", "HSA_", "ROCM_", "ROCR_", "RCCL_", "AMD_",
    "TORCH", "PYTORCH_", "TRITON_", "ATEN_", "NUMBA_", "TVM_", "XGRAMMAR_", "ACCELERATE_", "TOKENIZERS_", "SAFETENSORS_", "HF_", "TQDM_",
)  # fmt: skip
_SECRET_WORDS = frozenset(
    ("TOKEN", "KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "AUTH", "CREDENTIAL", "CREDENTIALS")
)

_lock = threading.Lock()
_running: set[subprocess.Popen[str]] = set()
_interruptions = 0
_thread_state = threading.local()  # `.since`: value of `_interruptions` when this thread's operation began


class ProcessGuard:
    """A shell of about a megabyte, in its own session, that ends a process group when this process ends.

    It sends SIGTERM to the process, waits for the grace period and kills the group. With `parent`, a connection of which
    it becomes the owner, it does so when the other side closes it, and kills the group at once when this process ends.
    It removes the directory after that.
    """

    def __init__(self, *, grace_s: float = 0.0, parent: socket.socket | None = None, directory: str = "") -> None:
        reading, self._lifeline = os.pipe()
        _guards.add(self)
        self._process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _GUARD,
                "enginebay-guard",
                str(round(grace_s * 4)),
                directory,
                "parent" if parent else "",
            ],
            stdin=reading,
            stdout=parent.fileno() if parent else subprocess.DEVNULL,  # a socket, so the guard can read from it
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reading)
        if parent is not None:
            parent.close()

    def watch(self, pid: int, group: int | None = None) -> None:
        os.write(self._lifeline, f"{pid} {group or pid}\n".encode())

    def __enter__(self) -> ProcessGuard:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the process."""
        _guards.discard(self)
        with suppress(BrokenPipeError):
            os.write(self._lifeline, b"\n")
        os.close(self._lifeline)
        self._process.wait()


_guards: set[ProcessGuard] = set()


def _close_lifelines() -> None:
    """Close inherited lifelines in a forked child: an open copy would hide this process's exit."""
    while _guards:
        lifeline = _guards.pop()._lifeline
        os.closerange(lifeline, lifeline + 1)


os.register_at_fork(after_in_child=_close_lifelines)


def isolated_environment() -> dict[str, str]:
    """Return the environment variables without those that expose this Python's packages to another Python."""
    return {name: value for name, value in os.environ.items() if name not in _PYTHON_VARIABLES}


def select_worker_variables(prefixes: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for a program that runs engine code: those of an allow-list and with these prefixes.

    A model's own code may run there, so nothing that looks like a secret passes. `env:` of a model adds more.
    """
    allowed = (*_COMMON_PREFIXES, *prefixes)
    return {
        name: value
        for name, value in environ.items()
        if name in _COMMON_VARIABLES or (name.upper().startswith(allowed) and not _is_withheld(name))
    }


def _is_withheld(name: str) -> bool:
    return name in WITHHELD_VARIABLES or not _SECRET_WORDS.isdisjoint(name.upper().split("_"))


@contextmanager
def interruptible() -> Iterator[None]:
    """Make this thread's work interruptible. Also a decorator. Nested uses belong to the outermost one."""
    if getattr(_thread_state, "since", None) is not None:
        yield
        return
    _thread_state.since = _interruptions
    try:
        yield
    finally:
        _thread_state.since = None


def raise_if_interrupted() -> None:
    """Raise `FetchFailed` if this thread's operation was interrupted."""
    if getattr(_thread_state, "since", None) not in (None, _interruptions):
        raise _build_interrupted_error()


def interrupt_all() -> None:
    """Interrupt every running operation. Returns at once; children that ignore SIGINT are soon killed."""
    global _interruptions
    with _lock:
        _interruptions += 1
        interrupted = list(_running)
        _running.clear()
    if interrupted:
        threading.Thread(target=_terminate, args=(interrupted,), name="end-children", daemon=True).start()


@contextmanager
def child_process(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.STDOUT,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Run a program in its own process group. Raises `FetchFailed` at the end of the block if it was interrupted."""
    with ProcessGuard() as guard:
        with _lock:  # an interruption either precedes the start or sees the process
            raise_if_interrupted()
            process = _start(command, env=env, stdout=stdout, stderr=stderr, pass_fds=pass_fds)
            guard.watch(process.pid)
            _running.add(process)
        try:
            yield process
            process.wait()
        except BaseException:
            _terminate([process])
            raise
        finally:
            with _lock:
                undisturbed = process in _running
                _running.discard(process)
            if process.stdout is not None:
                process.stdout.close()
            if process.stderr is not None:
                process.stderr.close()
    if not undisturbed:
        raise _build_interrupted_error()


def _start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a program. One that cannot be run says so and exits with 127, as in a shell."""
    options |= {"stdin": subprocess.DEVNULL, "text": True, "errors": "replace", "start_new_session": True}
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        message = f"{command[0]} cannot be run: {error.strerror}"
        return subprocess.Popen(["/bin/sh", "-c", 'echo "$1" >&2; exit 127', "sh", message], **options)


def run_logged(command: Sequence[str], env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
    """Run a program with its output in `log` and return its exit code. Calls `on_poll` while it runs."""
    with (
        os.fdopen(open_log_file(log, append=False), "wb") as output,
        child_process(command, env, stdout=output) as process,
    ):
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                break
            on_poll()
    return process.returncode


def _build_interrupted_error() -> FetchFailed:
    return FetchFailed("interrupted", "run the command again to continue")


def _terminate(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Send SIGINT, wait for the grace period, then kill what is left."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        _send_signal(process, signal.SIGINT)
    deadline = time.monotonic() + _GRACE_S
    while any(process.poll() is None for process in alive) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in alive:
        _send_signal(process, signal.SIGKILL)  # to the whole group: a program may leave children behind
        process.wait()


def _send_signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
