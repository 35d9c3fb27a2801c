"""`bay serve` as a process of its own, for tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml
from openai import AsyncOpenAI, OpenAI

from enginebay.util.http_policy import TOKEN_HEADER

_URL = re.compile(r"serving at (http://\S+)|\"event\":\"serving\",\"url\":\"(http://[^\"]+)\"")


@dataclass
class BayProcess:
    url: str
    process: subprocess.Popen[bytes]
    log: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def admin_headers(self) -> dict[str, str]:
        """Return the header with the local admin token, for servers without keys."""
        base = self.environ.get("XDG_RUNTIME_DIR")
        temporary = Path(self.environ.get("TMPDIR") or "/tmp") / f"enginebay-{os.getuid()}"
        for folder in (*([Path(base) / "enginebay"] if base else []), temporary):
            for path in folder.glob(f"admin-{self.port}-{self.process.pid}.token"):
                return {TOKEN_HEADER: path.read_text()}
        return {}

    def openai(self, key: str = "none", **options: object) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120, **options)  # type: ignore[arg-type]

    def async_openai(self, key: str = "none") -> AsyncOpenAI:
        """To be closed: one that outlives its event loop takes the sockets of later ones from their loop when collected."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120)

    def read_resident_bytes(self) -> int:
        """Of the server's own process or processes, workers and launchers not counted."""
        found = psutil.Process(self.process.pid)
        children = [
            one for one in found.children() if "enginebay.server.supervisor.child_server" in " ".join(read_command(one))
        ]
        return sum(int(one.memory_info().rss) for one in (found, *children))

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")


def read_command(process: psutil.Process) -> list[str]:
    """Empty for one that has ended."""
    with suppress(psutil.NoSuchProcess):  # or is dead, and not yet buried
        return process.cmdline()
    return []


@contextmanager
def run_server(
    *models: str,
    engine: str | None = None,
    config: dict[str, object] | None = None,
    options: Sequence[str] = (),
    environ: dict[str, str] | None = None,
    patience_s: float = 240,
    exit_code: int = 0,
) -> Iterator[BayProcess]:
    """Runs until the block ends, and must then end by itself with this exit code."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        python = [sys.executable, "-X", "faulthandler"]
        command = [*python, "-m", "enginebay.cli.main", "serve", *models, "--port", "0", *options]
        if engine:
            command += ["--engine", engine]
        if config is not None:
            (Path(folder) / "config.yaml").write_text(yaml.safe_dump(config))
            command += ["--config", str(Path(folder) / "config.yaml")]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **(environ or {})}, start_new_session=True
            )
        try:
            url = _wait_for_url(process, log, patience_s)
            yield BayProcess(url, process, log, {**os.environ, **(environ or {})})
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == exit_code, log.read_text(errors="replace")[-2000:]
        except BaseException:
            _abort_and_print_log(process, log)
            raise
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _abort_and_print_log(process: subprocess.Popen[bytes], log: Path) -> None:
    """What the server was doing when its test failed: each thread's stack, at the end of its log."""
    if process.poll() is None:
        process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
    print(log.read_text(errors="replace")[-8000:], file=sys.stderr)


def _wait_for_url(process: subprocess.Popen[bytes], log: Path, patience_s: float) -> str:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = _URL.search(log.read_text(errors="replace"))
        if found:
            return found[1] or found[2]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
