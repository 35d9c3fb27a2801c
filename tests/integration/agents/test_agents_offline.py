"""The agents once more where no way leads out: in a network namespace that has only the loopback interface."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_INSIDE = 'ip link set lo up && ! ip route get 192.0.2.1 2>/dev/null && exec "$@"'


@pytest.mark.root
@pytest.mark.slow
def test_agents_work_without_a_route_to_anywhere() -> None:
    """A request past the proxy of the other test would fail here: server, proxy and agents are all inside."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("needs the right to make a network namespace")
    file = Path(__file__).with_name("test_agents.py")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", _INSIDE, "sh", *tests],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, f"{done.stdout[-4000:]}\n{done.stderr[-1000:]}"
