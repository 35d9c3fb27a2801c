"""Admin commands: what they send, and what they print if the server denies access or is unreachable."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.cli.admin.admin_client import fetch, show_elapsed, to_response_error
from enginebay.cli.admin.server_address import ServerAddress
from enginebay.cli.commands import engines
from enginebay.cli.main import main
from enginebay.errors import UsageError
from enginebay.util import paths
from tests.unit.cli.output.test_fleet_tables import COLD, fleet, model

NOWHERE = "http://127.0.0.1:1"


class Stub:
    """A server with one fixed response that records requests."""

    def __init__(self) -> None:
        self.status, self.answer, self.wait_s = 200, b"{}", 0.0
        self.asked: list[tuple[str, str, Any, str | None]] = []
        self.tokens: list[str | None] = []
        self.url = ""

    def says(self, answer: Any, status: int = 200, wait_s: float = 0.0) -> None:
        self.status, self.wait_s = status, wait_s
        self.answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    found = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body: Any) -> None:
            found.tokens.append(self.headers["x-enginebay-token"])
            found.asked.append((self.command, self.path, body, self.headers["Authorization"]))
            time.sleep(found.wait_s)
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(found.answer)))
            self.end_headers()
            self.wfile.write(found.answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("ENGINEBAY_ADMIN_KEY", "ENGINEBAY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENGINEBAY_URL", found.url)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("command", "method", "path", "body"),
    [
        ("load m", "POST", "/admin/load", {"model": "m"}),
        ("sleep m", "POST", "/admin/sleep", {"model": "m"}),
        ("unload m", "POST", "/admin/unload", {"model": "m"}),
        ("switch a b", "POST", "/admin/switch", {"from": "a", "to": "b"}),
        ("adapters add m n /x/../y", "POST", "/admin/adapters", {"model": "m", "name": "n", "path": "/y"}),
        ("adapters remove m n", "POST", "/admin/adapters/remove", {"model": "m", "name": "n"}),
    ],
)
def test_commands_that_load_models_send_and_print(
    stub: Stub, capsys: pytest.CaptureFixture[str], command: str, method: str, path: str, body: Any
) -> None:
    stub.says(model())
    assert main(command.split()) == 0
    assert capsys.readouterr().out.startswith("small on vllm 1.2 is awake, from cold in 61.8 s")
    assert main([*command.split(), "--json", "--key", "secret"]) == 0
    assert json.loads(capsys.readouterr().out) == model()
    assert stub.asked == [(method, path, body, None), (method, path, body, "Bearer secret")]


def test_no_key_goes_to_an_address_of_an_untrusted_file(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever left the file in the directory may listen there."""
    stub.says(fleet(model()))
    monkeypatch.delenv("ENGINEBAY_URL")
    monkeypatch.delenv("ENGINEBAY_CONFIG", raising=False)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("enginebay.yaml").write_text(f"server: {{port: {stub.url.rpartition(':')[2]}}}")
    assert main(["ps"]) == 0  # without a key there is nothing to lose
    monkeypatch.setenv("ENGINEBAY_ADMIN_KEY", "secret")
    for command in ("ps", "top --once"):
        assert main(command.split()) == 2
        error = capsys.readouterr().err
        assert f"the key is not sent to {stub.url}" in error and "bay config trust" in error
    assert [key for _, _, _, key in stub.asked] == [None]
    assert main(["ps", "-c", "enginebay.yaml"]) == 0
    assert main(["ps", "--url", stub.url]) == 0
    assert main(["config", "trust"]) == 0
    assert main(["ps"]) == 0
    assert [key for _, _, _, key in stub.asked[1:]] == ["Bearer secret"] * 3


def test_no_token_goes_to_another_address_of_an_untrusted_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.util.http_policy._find_admin_token", lambda _: "token")
    with pytest.raises(UsageError, match=r"not sent to http://127\.0\.0\.2:1"):
        fetch(ServerAddress("http://127.0.0.2:1", True, untrusted_file="enginebay.yaml"), "admin/models", None)


def test_a_path_is_meant_from_here(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.says(model())
    monkeypatch.chdir(tmp_path)
    assert main(["adapters", "add", "m", "n", "beside"]) == 0
    assert stub.asked[0][2]["path"] == os.path.join(tmp_path, "beside")


def test_ps(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.says(fleet(model(), model("large", **COLD)))
    assert main(["ps"]) == 0
    out, memory = capsys.readouterr()
    header, small, large = out.splitlines()
    assert header.split()[:3] == ["NAME", "ENGINE", "STATE"] and memory.startswith("memory: ram")
    assert small.startswith("small\tvllm 1.2\t") and large.split()[0] == "large"
    assert main(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["standby"] == {}
    assert stub.asked[0][:3] == ("GET", "/admin/ps", None)


def test_switches(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.says({"switches": [], "mean_s": {}, "missed": 0})
    assert main(["switches"]) == 0
    assert "no model has been loaded yet" in capsys.readouterr().err
    stub.says({"switches": [model()["last_switch"]], "mean_s": {"cold": 61.75}, "missed": 1})
    assert main(["switches"]) == 0
    out, summary = capsys.readouterr()
    header, line = out.splitlines()
    assert "DRAIN" in header and "missed (60 s)" in line and summary.startswith("1 switch, 1 missed")


def test_reload(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.says({"added": ["a", "b"], "removed": [], "changed": ["c"], "keys": 2})
    assert main(["reload"]) == 0
    assert capsys.readouterr().out.splitlines() == ["added: a, b", "changed: c", "2 API keys loaded"]
    stub.says({"added": [], "removed": [], "changed": [], "keys": 0})
    assert main(["reload"]) == 0
    said = capsys.readouterr().out
    assert "no model changed" in said and "no API keys: anyone who can reach the server can use it" in said


# Logs


def test_logs_of_a_server(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.says({"lines": ["one", "two"]})
    assert main(["logs", "a/b", "-n", "7"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert stub.asked[0][1] == "/admin/logs?model=a%2Fb&lines=7"


def test_logs_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    logs = tmp_path / "logs"
    logs.mkdir()
    for age, name in enumerate(("fake-m.log", "vllm-m.log", "fake-other-m.log")):
        (logs / name).write_text(f"first\nof {name}\n")
        os.utime(logs / name, (1e9 - age, 1e9 - age))
    command = ["logs", "m", "-n", "1", "--url", NOWHERE]
    assert main(command) == 0
    told = capsys.readouterr()
    assert told.out == "of fake-m.log\n" and "no server responds at http://127.0.0.1:1: Conn" in told.err
    assert main(["logs", "m@vllm", *command[2:]]) == 0
    assert capsys.readouterr().out == "of vllm-m.log\n"
    assert main(["logs", "nothing", *command[2:]]) == 2
    assert "no log of nothing on this host" in capsys.readouterr().err


# Upgrades


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def install(engine: str) -> Any:
        asked.append(engine)
        return SimpleNamespace(kind="vllm", version="1.2.0")

    monkeypatch.setattr(engines, "_install", install)
    return asked


def test_an_upgrade_is_installed_then_sent_to_the_server(
    stub: Stub, installed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    stub.says({"engine": "vllm", "version": "1.2.0", "models": ["a", "b"]})
    assert main(["engines", "upgrade", "vllm==1.2"]) == 0
    assert installed == ["vllm==1.2"] and "moved: a, b" in capsys.readouterr().err
    assert stub.asked[0][1:3] == ("/admin/engines/upgrade", {"engine": "vllm==1.2.0"})
    stub.says({"engine": "vllm", "version": "1.2.0", "models": []})
    assert main(["engines", "upgrade", "vllm==1.2"]) == 0
    assert "no model on the server runs on another version of vllm" in capsys.readouterr().err


def test_an_upgrade_that_the_server_cannot_do_fails(stub: Stub, installed: list[str]) -> None:
    stub.says({"error": {"message": "it does not answer"}}, 503)
    assert main(["engines", "upgrade", "vllm==1.2"]) == 1


@pytest.mark.usefixtures("installed")
def test_an_upgrade_without_a_server_is_an_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "upgrade", "vllm==1.2", "--url", NOWHERE, "--json"]) == 0
    told = capsys.readouterr()
    assert "no server responds" in told.err and "no models to move" in told.err
    assert json.loads(told.out) == {"engine": "vllm", "version": "1.2.0", "models": []}


# When it does not work


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--url", NOWHERE]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "bay: no server responds at http://127.0.0.1:1: Connection refused",
        "     start one with `bay serve`, or pass --url",
    ]


@pytest.mark.parametrize("status", [401, 403])
def test_which_key_is_needed(stub: Stub, capsys: pytest.CaptureFixture[str], status: int) -> None:
    stub.says({"error": {"message": "the API key lacks the scope admin"}}, status)
    assert main(["load", "m"]) == 1
    told = capsys.readouterr().err
    assert "lacks the scope admin" in told and "ENGINEBAY_ADMIN_KEY" in told and "--admin" in told


def test_no_key_hint_where_no_key_helps(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    said = "no API key is left. Make one with `bay keys create NAME`, and have the server read it with SIGHUP."
    stub.says({"error": {"message": said}}, 401)
    assert main(["ps"]) == 1
    assert capsys.readouterr().err == f"bay: access denied (401): {said}\n"


@pytest.mark.parametrize(("status", "code"), [(400, 2), (404, 2), (503, 1), (500, 1)])
def test_the_servers_message_is_shown(stub: Stub, capsys: pytest.CaptureFixture[str], status: int, code: int) -> None:
    stub.says({"error": {"message": "there is no model 'm'\x1b[2J"}}, status)
    assert main(["load", "m"]) == code
    assert capsys.readouterr().err == "bay: there is no model 'm'\\x1b[2J\n"


@pytest.mark.parametrize(
    ("answer", "status"), [(b"<html>", 200), (b"", 200), (b"<html>", 404), (b"[]", 403), (b'{"error": 3}', 500)]
)
def test_a_server_of_another_kind_is_no_traceback(
    stub: Stub, capsys: pytest.CaptureFixture[str], answer: bytes, status: int
) -> None:
    stub.says(answer, status)
    assert main(["ps"]) == 1
    assert "is this an Enginebay server?" in capsys.readouterr().err


def test_error_responses_without_a_message() -> None:
    assert to_response_error("http://s", 418, b"").message == "http://s returned 418"


# While it takes long


def test_something_short_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with show_elapsed("loading m", delay_s=60):
        pass
    assert capsys.readouterr().err == ""


def test_something_long_is_announced_once_where_no_person_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with show_elapsed("loading m", delay_s=0.01):
        said = _until(lambda: capsys.readouterr().err)
        time.sleep(0.05)
    assert said + capsys.readouterr().err == "loading m ...\n"


def test_something_long_has_a_clock_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    screen: Callable[[str], Any] = seen.append
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True, write=screen, flush=lambda: None))
    with show_elapsed("loading m", delay_s=0.01):
        _until(lambda: seen)
    assert re.fullmatch(r"\r\x1b\[Kloading m \.\.\. \d+ s", seen[0]) and seen[-1] == "\r\x1b[K"


def _until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


# The local token, and ways to pass a key


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setattr(paths, "_SHARED_BASES", ())
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder) / "enginebay"


def write_token(runtime: Path, url: str, text: str, pid: int | None = None) -> Path:
    runtime.mkdir(mode=0o700, exist_ok=True)
    path = runtime / f"admin-{url.rpartition(':')[2]}-{os.getpid() if pid is None else pid}.token"
    path.write_text(text)
    return path


def test_the_token_of_a_server_on_this_host_is_sent(
    stub: Stub, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.says(fleet(model()))
    assert main(["ps"]) == 0
    write_token(runtime, stub.url, "dead", pid=2**22 + 1)
    assert main(["ps"]) == 0
    write_token(runtime, stub.url, "mine")
    write_token(runtime, "http://127.0.0.1:1", "another server's")
    assert main(["ps"]) == 0
    assert main(["ps", "--key", "a-key"]) == 0
    assert stub.tokens == [None, None, "mine", "mine"]
    capsys.readouterr()
    assert main(["keys", "token"]) == 0
    assert capsys.readouterr().out == "mine\n"
    assert main(["keys", "token", "--url", "http://127.0.0.1:2"]) == 1
    assert "no server of yours runs at http://127.0.0.1:2" in capsys.readouterr().err


def test_a_token_in_a_folder_that_others_can_write_is_not_believed(stub: Stub, runtime: Path) -> None:
    stub.says(fleet(model()))
    write_token(runtime, stub.url, "planted")
    runtime.chmod(0o777)
    assert main(["ps"]) == 0 and stub.tokens == [None]


def test_another_host_needs_a_key(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unload", "m", "--url", "http://models.example:8000"]) == 2
    told = capsys.readouterr().err
    assert "the server at http://models.example:8000 is on another host" in told and "--key-file" in told


def test_a_key_comes_from_a_file_or_standard_input(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.says(fleet(model()))
    (tmp_path / "key").write_text("from-a-file\n")
    assert main(["ps", "--key-file", str(tmp_path / "key")]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("from-stdin\n"))
    assert main(["ps", "--key-file", "-"]) == 0
    monkeypatch.setenv("ENGINEBAY_ADMIN_KEY", "from-a-variable")
    assert main(["ps"]) == 0
    assert main(["ps", "--key-file", str(tmp_path / "key")]) == 0
    keys = [key for *_, key in stub.asked]
    assert keys == ["Bearer from-a-file", "Bearer from-stdin", "Bearer from-a-variable", "Bearer from-a-file"]
    for words, told in (
        (["--key-file", str(tmp_path / "none")], "cannot read the key file"),
        (["--key-file", os.devnull], "does not hold an API key"),
        (["--key", "x", "--key-file", str(tmp_path / "key")], "mutually exclusive"),
    ):
        capsys.readouterr()
        assert main(["ps", *words]) == 2
        assert told in capsys.readouterr().err
    assert len(stub.asked) == 4


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs /proc")
def test_a_key_on_the_command_line_is_hidden_from_ps(stub: Stub) -> None:
    stub.says(fleet(model()), wait_s=1.0)
    command = [sys.executable, "-m", "enginebay.cli.main", "ps", "--url", stub.url, "--key", "hush-hush-hush"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not stub.asked and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        _, told = process.communicate(timeout=60)
    assert stub.asked[0][3] == "Bearer hush-hush-hush" and process.returncode == 0
    assert b"hush" not in shown and b"--key\0****" in shown and "warning" not in told
