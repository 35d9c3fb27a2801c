"""SIGHUP while models are still loading."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest
import yaml

from tests.integration.server.bay_process import read_command
from tests.integration.server.raw_http import wait_until


@pytest.mark.parametrize("processes", [1, 2])
def test_a_hangup_while_models_load_reloads_afterwards(processes: int, tmp_path: Path) -> None:
    config, log = tmp_path / "config.yaml", tmp_path / "log"

    def models(*names: str) -> None:
        config.write_text(yaml.safe_dump({"models": {name: {"engine": "fake", "fake": {}} for name in names}}))

    models("first")
    with log.open("wb") as output:
        command = [sys.executable, "-m", "enginebay.cli.main", "serve", "-c", str(config), "--port", "0"]
        process = subprocess.Popen(
            [*command, "--workers", str(processes)], stdout=output, stderr=output, start_new_session=True
        )
    try:
        worker: list[psutil.Process] = []

        def loads() -> bool:
            found = psutil.Process(process.pid).children()
            worker[:] = [one for one in found if "bootstrap" in " ".join(read_command(one))]
            return bool(worker)

        wait_until(loads, 30, "a load")
        worker[0].suspend()
        models("first", "second")
        os.kill(process.pid, signal.SIGHUP)
        worker[0].resume()
        wait_until(lambda: "serving at " in log.read_text() or process.poll() is not None, 30, "serving")
        assert process.poll() is None, log.read_text()
        url = log.read_text().partition("serving at ")[2].split()[0]

        def listed() -> set[str]:
            return {one["id"] for one in httpx.get(f"{url}/v1/models", timeout=60).json()["data"]}

        wait_until(lambda: listed() == {"first", "second"}, 20, "the reload")
        wait_until(lambda: "configuration reloaded" in log.read_text(), 20, "word of it")
        assert log.read_text().count("configuration reloaded") == 1
    finally:
        process.terminate()
        process.wait(30)
