"""A sender process, as its parent and the terminal see it."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import msgspec

from enginebay.lab.loadgen.calibration import run_calibration_server
from enginebay.lab.loadgen.sender_task import RequestOutcome, TargetServer, split_into_tasks
from enginebay.lab.workload.request_records import Request

_RAISED = """
import resource
from enginebay.util.file_limits import raise_open_file_limit
raise_open_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_open_file_limit_is_raised_to_the_maximum() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, {most}))"
    done = subprocess.run([sys.executable, "-c", lowered + _RAISED], capture_output=True, text=True, check=True)
    soft, hard = map(int, done.stdout.split())
    assert hard == most
    assert soft == (1 << 20 if most == resource.RLIM_INFINITY else min(most, 1 << 20)) > 64


def test_ctrl_c_does_not_stop_it(tmp_path: Path) -> None:
    """The terminal sends it to the whole group; the parent stops its children."""
    task_file, outcomes = tmp_path / "task", tmp_path / "outcomes"
    with run_calibration_server() as url:
        (task,) = split_into_tasks(TargetServer(url, "known"), [Request((1, 2, 3), 3, 1)], None, 1, 1)
        task_file.write_bytes(msgspec.msgpack.encode(task))
        command = [sys.executable, "-m", "enginebay.lab.loadgen.sender_process", str(task_file), str(outcomes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            process.communicate(f"{monotonic()!r}\n".encode(), timeout=20)
    assert process.returncode == 0
    (outcome,) = msgspec.msgpack.decode(outcomes.read_bytes(), type=list[RequestOutcome])
    assert outcome.error is None


def test_it_exits_silently_when_its_parent_stops_listening(tmp_path: Path) -> None:
    task_file, outcomes = tmp_path / "task", tmp_path / "outcomes"
    with run_calibration_server(itl_s=0.05) as url:
        (task,) = split_into_tasks(TargetServer(url, "known"), [Request((1, 2, 3), 3, 200)], None, 1, 1)
        task_file.write_bytes(msgspec.msgpack.encode(task))
        command = [sys.executable, "-m", "enginebay.lab.loadgen.sender_process", str(task_file), str(outcomes)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == b"ready\n"
            process.stdout.close()
            process.stdin.write(f"{monotonic()!r}\n".encode())
            process.stdin.close()
            assert (process.stderr.read(), process.wait(20)) == (b"", 1)
    assert not outcomes.exists()
