"""Each server of these tests gets an isolated environment and must leave nothing behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fleet.server_site import ServerSite
from tests.integration.fleet.shared_fleets import mixed_fleet as mixed_fleet
from tests.integration.fleet.shared_fleets import vllm_fleet as vllm_fleet


@pytest.fixture
def site() -> Iterator[ServerSite]:
    """Assert after the test that no process, socket or temporary file of the server is left."""
    folder = Path(tempfile.mkdtemp(prefix="bay", dir="/tmp"))  # short: sockets have short paths
    found = ServerSite(folder)
    for name in ("run", "tmp", "home"):
        (folder / name).mkdir(mode=0o700)
    try:
        yield found
        deadline = time.monotonic() + 30
        while found.list_leftovers() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found.list_leftovers() == []
    finally:
        for process in found.list_processes():
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
