"""A server that the lab starts stops with the lab. A script stands in for `bay serve`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from enginebay.lab.study import bay_server

SERVER = """
import time
print('{"event": "serving", "url": "http://here"}', flush=True)
time.sleep(60)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
LAB = """
import sys, time
from pathlib import Path
from enginebay.lab.study import bay_server
bay_server._KILLED_LAB_GRACE_S = 0.5
bay_server._BAY_COMMAND = (sys.executable, "-c", Path(sys.argv[1]).read_text())
with bay_server.run_bay_server([], Path(sys.argv[2])) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("before", ["", DEAF], ids=["plain", "deaf to SIGTERM"])
def test_a_killed_lab_leaves_no_server(tmp_path: Path, before: str) -> None:
    script = tmp_path / "server.py"
    script.write_text(before + SERVER)
    command = [sys.executable, "-c", LAB, str(script), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as lab:
        try:
            assert lab.stdout is not None
            server = psutil.Process(int(lab.stdout.readline()))
            assert server.is_running()
        finally:
            lab.kill()
    _, alive = psutil.wait_procs([server], timeout=20)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_a_server_is_stopped_after_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bay_server, "_BAY_COMMAND", (sys.executable, "-c", SERVER))
    with bay_server.run_bay_server([], tmp_path / "log") as server:
        assert server.url == "http://here"
        assert psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(server.pid)
