"""Run `bay serve` as a child process for the length of a measurement."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from enginebay.errors import EnginebayError, LoadFailed
from enginebay.util.child_processes import ProcessGuard

_BAY_COMMAND = (sys.executable, "-c", "from enginebay.cli.main import run; run()")
_SERVE_OPTIONS = ("--port", "0", "--log-format", "json", "--log-level", "warning")
_KEPT_VARIABLES = ("ENGINEBAY_HOME",)
_STOP_TIMEOUT_S = 60.0
_KILLED_LAB_GRACE_S = 10.0  # for open requests; nobody reads their answers
_LOG_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class BayServer:
    """A `bay serve` that the lab started."""

    url: str
    headers: Mapping[str, str]
    pid: int
    start_s: float  # from launch to ready


@contextmanager
def run_bay_server(arguments: Sequence[str], log: Path, timeout_s: float = 900.0) -> Iterator[BayServer]:
    """Run `bay serve` with these arguments while the block lasts. Raise `LoadFailed` with the end of its log."""
    key = secrets.token_hex(16)  # keeps other clients on this host out of the measurement
    # The configuration passed in is complete: it already includes the user's ENGINEBAY_ variables.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ENGINEBAY_") or name in _KEPT_VARIABLES
    }
    environment["ENGINEBAY_API_KEY"] = key
    command = [*_BAY_COMMAND, "serve", *arguments, *_SERVE_OPTIONS]
    started_s = monotonic()
    with ProcessGuard(grace_s=_KILLED_LAB_GRACE_S) as guard:
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file, env=environment,
                start_new_session=True,
            )  # fmt: skip
        guard.watch(process.pid)
        try:
            url = _wait_until_serving(process, log, started_s + timeout_s)
            yield BayServer(url, {"Authorization": f"Bearer {key}"}, process.pid, monotonic() - started_s)
        finally:
            _stop_process(process)


@contextmanager
def run_engine_server(engine: str, model: str, config: Mapping[str, Any]) -> Iterator[BayServer]:
    """Run `bay serve` with one engine, one model and this configuration while the block lasts. Raise `LoadFailed`."""
    with tempfile.TemporaryDirectory(prefix="bay-lab-") as folder:
        path = Path(folder) / "serve.yaml"
        path.write_bytes(encode_config(config))
        with run_bay_server([model, "--engine", engine, "--config", str(path)], Path(folder) / "log") as server:
            yield server


def encode_config(config: Mapping[str, Any]) -> bytes:
    """Encode a configuration for `bay serve --config` (JSON is valid YAML)."""
    return json.dumps(config, indent=2, ensure_ascii=False).encode() + b"\n"


def _wait_until_serving(process: subprocess.Popen[bytes], log: Path, deadline: float) -> str:
    while monotonic() < deadline:
        for line in _read_json_lines(log):
            if line.get("event") == "serving":
                return str(line["url"])
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise LoadFailed("the server did not start", read_log_tail(log))
    raise LoadFailed("the server did not start in time", read_log_tail(log))


def _read_json_lines(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_bytes().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def read_log_tail(log: Path) -> str:
    """Return the last lines of a server's log, for an error hint."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n     ".join(lines[-_LOG_TAIL_LINES:])


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise EnginebayError("the server did not stop", "its engine processes may still be running: check `ps`")
    except BaseException:  # a second Ctrl-C: nobody else would end it
        process.kill()
        raise
