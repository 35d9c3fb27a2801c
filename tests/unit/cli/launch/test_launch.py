"""`bay launch`: finds the model on the server, and runs the agent in the foreground with settings that leave no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.main import main

NOWHERE = "http://127.0.0.1:1"
RECORD = """#!/bin/sh
printf '%s\\n' "$@" > "$RECORD/args"
env > "$RECORD/env"
for file in "$@"; do [ ! -f "$file" ] || { stat -c '%a' "$(dirname "$file")" > "$RECORD/mode"; cp "$file" "$RECORD/file"; }; done
"""


class ModelServer:
    """Serves /v1/models and the details of each model."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, Any]] = {"toy": {"task": "generate", "context_length": 65_536}}
        self.keys: list[str | None] = []
        self.required_key = ""
        self.url = ""

    def describe(self, path: str) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": name} for name in self.models]}
        return {"id": "toy", "enginebay": self.models[path.removeprefix("/v1/models/")]}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    found = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.keys.append(self.headers["Authorization"])
            allowed = not found.required_key or self.headers["Authorization"] == f"Bearer {found.required_key}"
            body = json.dumps(found.describe(self.path) if allowed else {"error": {"message": "no key"}}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{running.server_port}"
        yield found
        running.shutdown()


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the agents, all the same script, record how they were started."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("ENGINEBAY_API_KEY", raising=False)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    for command in ("codex", "claude", "opencode", "cn"):
        install(tmp_path, command, RECORD)
    return tmp_path


def install(record: Path, command: str, script: str) -> None:
    program = record / "bin" / command
    program.write_text(script)
    program.chmod(0o755)


def read_env(record: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (record / "env").read_text().splitlines() if "=" in line)


def test_arguments_come_after_the_settings(server: ModelServer, record: Path) -> None:
    assert main(["launch", "codex", "--url", server.url, "--", "exec", "--json", "do it"]) == 0
    assert (record / "args").read_text().splitlines()[-3:] == ["exec", "--json", "do it"]
    assert f'model_providers.enginebay.base_url="{server.url}/v1"' in (record / "args").read_text()
    assert read_env(record)["ENGINEBAY_API_KEY"] == "none"


def test_files_are_private_and_removed(server: ModelServer, record: Path) -> None:
    assert main(["launch", "continue", "-m", "toy", "--url", f"{server.url}/v1"]) == 0
    assert (record / "mode").read_text().strip() == "700"
    assert json.loads((record / "file").read_text())["models"][0]["apiBase"] == f"{server.url}/v1"
    assert list((record / "tmp").iterdir()) == []


def test_variables_of_another_account_are_removed(
    server: ModelServer, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-other")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://elsewhere")
    assert main(["launch", "claude", "--url", server.url]) == 0
    env = read_env(record)
    assert "ANTHROPIC_API_KEY" not in env and env["ANTHROPIC_BASE_URL"] == server.url


def test_a_local_server_is_reached_without_a_proxy(
    server: ModelServer, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", NOWHERE)
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert main(["launch", "opencode", "--url", server.url]) == 0
    env = read_env(record)
    assert env["no_proxy"] == env["NO_PROXY"] == "example.org,127.0.0.1" and env["HTTPS_PROXY"] == NOWHERE


def test_the_exit_status_is_that_of_the_agent(server: ModelServer, record: Path) -> None:
    install(record, "codex", "#!/bin/sh\nexit 7\n")
    assert main(["launch", "codex", "--url", server.url]) == 7
    install(record, "codex", "#!/bin/sh\nkill -KILL $$\n")
    assert main(["launch", "codex", "--url", server.url]) == 137


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_agent(server: ModelServer, record: Path, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    waiting = (
        f"trap 'echo {name} > $RECORD/signal; exit 5' {name}; touch $RECORD/started; while :; do sleep 0.05; done\n"
    )
    install(record, "cn", f"#!/bin/sh\n{waiting}")
    process = subprocess.Popen(
        [sys.executable, "-m", "enginebay.cli.main", "launch", "continue", "--url", server.url], start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (record / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(60) == 5
    assert (record / "signal").read_text().strip() == name
    assert list((record / "tmp").iterdir()) == []


def test_a_missing_agent(
    server: ModelServer, record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(record))
    assert main(["launch", "claude", "--url", server.url]) == 1
    assert "npm install -g @anthropic-ai/claude-code" in capsys.readouterr().err


def test_no_server(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "codex", "-m", "qwen", "--url", NOWHERE]) == 1
    assert "bay serve qwen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["codx"], "did you mean 'codex'?"),
        (["codex"], "pass -m with one of toy, other, vectors"),
        (["codex", "-m", "toi"], "did you mean 'toy'?"),
        (["codex", "-m", "vectors"], "its task is embed"),
    ],
)
def test_what_cannot_be_launched(
    server: ModelServer, record: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    server.models |= {"other": {"task": "generate"}, "vectors": {"task": "embed"}}
    assert main(["launch", *arguments, "--url", server.url]) == 2
    assert hint in capsys.readouterr().err and not (record / "args").exists()


def test_a_server_without_models(server: ModelServer, record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.models.clear()
    for arguments in ([], ["-m", "toy"]):
        assert main(["launch", "codex", *arguments, "--url", server.url]) == 2
        said = capsys.readouterr().err
        assert "has no models" in said and "bay reload" in said and "one of" not in said


def test_a_small_context_is_named(server: ModelServer, record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.models["toy"]["context_length"] = 4096
    assert main(["launch", "codex", "--url", server.url]) == 0
    assert "4096 tokens" in capsys.readouterr().err
    server.models["toy"]["context_length"] = 65_536
    assert main(["launch", "codex", "--url", server.url]) == 0
    assert capsys.readouterr().err == ""


def test_a_key_is_checked_and_passed_on(
    server: ModelServer, record: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.required_key = "secret"
    monkeypatch.setenv("ENGINEBAY_ADMIN_KEY", "admin")  # not for agents
    assert main(["launch", "codex", "--url", server.url]) == 2
    assert "bay keys create" in capsys.readouterr().err
    (record / "key").write_text("secret\n")
    assert main(["launch", "codex", "--url", server.url, "--key-file", str(record / "key")]) == 0
    assert read_env(record)["ENGINEBAY_API_KEY"] == "secret"
    assert "ENGINEBAY_ADMIN_KEY" not in read_env(record)


@pytest.mark.parametrize("name", ["codex", "claude", "opencode", "continue"])
def test_settings_are_printed_without_the_key(
    server: ModelServer, record: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    server.required_key = "secret"
    (record / "key").write_text("secret\n")
    assert main(["launch", name, "--url", server.url, "--key-file", str(record / "key"), "--print"]) == 0
    shown = capsys.readouterr().out
    assert server.url in shown and "YOUR_API_KEY" in shown and "secret" not in shown
    assert not (record / "args").exists()
