"""A process that exits at EOF on stdin."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAIT = "import time; print('ready', flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.mark.parametrize(("before", "patience_s", "ended_by"), [("", 30, signal.SIGTERM), (DEAF, 0.2, signal.SIGKILL)])
def test_it_lives_until_stdin_closes(before: str, patience_s: float, ended_by: signal.Signals) -> None:
    code = (
        f"from enginebay.util.stdin_watchdog import exit_on_stdin_eof; {before}exit_on_stdin_eof({patience_s}); {WAIT}"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.stdin.write(b"ignored")
            process.stdin.flush()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.stdin.close()
            assert process.wait(20) == -ended_by
        finally:
            process.kill()
