"""`bay run` and `bay batch` on the engine openai, with another `bay serve` as the remote server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from enginebay.server.auth.api_keys import create_key
from tests.integration.server.bay_process import run_server

SAID = "A fixed answer."


def run_bay(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enginebay.cli.main", *words]
    environ = {**os.environ, "ENGINEBAY_HOME": str(folder / "home"), **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, cwd=folder)


@pytest.mark.parametrize("options", [(), ("--raw",), ("--system", "Be brief.")], ids=["chat", "raw", "system"])
def test_a_prompt_is_answered_by_the_remote_server(tmp_path: Path, options: tuple[str, ...]) -> None:
    key, _ = create_key(tmp_path / "keys.yaml", "far")
    remote: dict[str, object] = {"models": {"toy": {"engine": "fake", "fake": {"script": SAID}}}}
    with run_server(config=remote, options=["--keys-file", str(tmp_path / "keys.yaml")]) as server:
        openai = {"url": f"{server.url}/v1", "model": "toy", "key_env": "FAR_KEY"}
        config = {"models": {"far": {"engine": "openai", "may_leave_host": True, "openai": openai}}}
        (tmp_path / "far.yaml").write_text(yaml.safe_dump(config))
        answered = run_bay(tmp_path, "run", "far", "hi", "-c", "far.yaml", "--max-tokens", "40", *options, FAR_KEY=key)
        assert (answered.returncode, answered.stdout) == (0, f"{SAID}\n"), answered.stderr
        told = json.loads(
            run_bay(tmp_path, "run", "far", "hi", "-c", "far.yaml", "--json", *options, FAR_KEY=key).stdout
        )
        assert told["engine"] == "openai" and told["choices"][0]["text"] == SAID


def test_a_found_configuration_sends_nothing_until_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-private-key")
    with run_server("toy", engine="fake") as server:
        openai = {"url": f"{server.url}/v1", "model": "toy", "key_file": str(tmp_path / "secret")}
        config = {"models": {"far": {"engine": "openai", "may_leave_host": True, "openai": openai}}}
        (tmp_path / "enginebay.yaml").write_text(yaml.safe_dump(config))
        refused = run_bay(tmp_path, "run", "far", "hi")
        assert refused.returncode == 2 and "run: bay config trust" in refused.stderr
        assert "completions" not in server.read_log() and "chat" not in server.read_log()
        assert run_bay(tmp_path, "config", "trust").returncode == 0
        answered = run_bay(tmp_path, "run", "far", "hi", "--max-tokens", "4")
        assert answered.returncode == 0, answered.stderr
