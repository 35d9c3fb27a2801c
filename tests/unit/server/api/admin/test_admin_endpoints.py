"""/admin/*: the command of each request, access control, and error responses."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.config.sections.server_section import ServerConfig
from enginebay.errors import (
    ConfigError,
    EnginebayError,
    EngineMissing,
    InvalidRequest,
    LoadFailed,
    Overloaded,
    UnknownEngine,
    UnknownModel,
)
from enginebay.meters.sample import Absent, Sample
from enginebay.server.api.admin.endpoints import _check_adapter_path
from enginebay.server.api.app import App
from enginebay.server.api.routes import ROUTES
from enginebay.server.auth.api_keys import ApiKey, Keyring, hash_key
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_catalog import ModelCatalog
from enginebay.server.telemetry.server_log import ServerLog
from enginebay.server.telemetry.server_metrics import ServerMetrics
from enginebay.server.telemetry.tracing import Tracer
from tests.unit.cli.output.test_fleet_tables import COLD, fleet, model

PLAIN = ApiKey("plain", hash_key("plain-key"), requests_per_minute=1)
ADMIN = ApiKey("admin", hash_key("admin-key"), frozenset({"admin"}), requests_per_minute=1)
KEYS = Keyring([PLAIN, ADMIN])
AS_ADMIN = {"authorization": "Bearer admin-key"}
TOKEN = "the-local-token"

MODEL = model(already=True, left="asleep")
METERS = {"monotonic_s": 2.5, "boot_id": None, "cores": 4, "names": {"gpu:0": "H200"}}
RESULTS: dict[str, dict[str, Any]] = {
    "ps": fleet(model(), model("large", **COLD), standby={"vllm": 77}),
    "switches": {"switches": [MODEL["last_switch"]], "mean_s": {"cold": 61.75}, "missed": 1},
    "meters": METERS
    | {
        "samples": [{**asdict(Sample(1.0, "host", cpu_s=3.5)), "throttle": []}],
        "absent": [asdict(Absent("rapl", "not readable"))],
    },
    "logs": {"lines": ["one", "two"]},
    "reload": {"added": ["a"], "removed": [], "changed": ["b"], "keys": 2},
    "upgrade": {"engine": "vllm", "version": "1.2", "models": ["m"]},
}


class ScriptedFleet:
    """A fleet that records commands and returns or raises `result`."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, dict[str, Any]]] = []
        self.result: Any = None  # None: what the command usually returns
        self.go = asyncio.Event()
        self.go.set()
        self.done = 0

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        self.commands.append((command, arguments))
        await self.go.wait()
        self.done += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result or RESULTS.get(command, MODEL)


class RecordingTransport:
    """Records the response of an exchange."""

    congested = False

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.written = b""
        self.finished = asyncio.Event()

    def common_headers(self) -> bytes:
        return b""

    def unsent_bytes(self) -> int:
        return 0

    def abort(self) -> None:
        self.finished.set()

    def write(self, data: bytes) -> None:
        self.written += data

    def finish_exchange(self, _: Exchange) -> None:
        self.finished.set()

    @property
    def status(self) -> int:
        return int(self.written.split()[1])

    @property
    def head(self) -> str:
        return self.written.partition(b"\r\n\r\n")[0].decode()

    @property
    def body(self) -> Any:
        return json.loads(self.written.partition(b"\r\n\r\n")[2])


class Server:
    def __init__(self, keyring: Keyring, **config: Any) -> None:
        self.fleet = ScriptedFleet()
        rates: Any = SimpleNamespace(take=None)  # counting a request fails
        context = ServerContext(
            ServerConfig(**config), ModelCatalog([]), ServerMetrics(), ServerLog(level="error"), rates, cast("Any", None),
            cast("Any", self.fleet), 1.0, ROUTES,
        )  # fmt: skip
        keyless = not keyring and not context.config.allow_without_key
        self.app = App(context, keyring, Tracer(), keyless=keyless, admin_token=TOKEN)

    def send(
        self, method: str, target: str, body: Any = None, peer: str = "127.0.0.1:5000", **headers: str
    ) -> tuple[RecordingTransport, Exchange]:
        transport = RecordingTransport(peer)
        fields = {name.replace("_", "-"): value for name, value in {"x_enginebay_token": TOKEN, **headers}.items()}
        exchange = Exchange(transport, method, target, {"host": "localhost:8000", **fields})
        exchange.body = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.app.handle(exchange)
        return transport, exchange

    async def request(self, method: str, target: str, body: Any = None, **more: str) -> RecordingTransport:
        transport, _ = self.send(method, target, body, **more)
        await asyncio.wait_for(transport.finished.wait(), 30)
        return transport


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server(Keyring())
    yield server
    await server.app.close()


ADAPTER = {"model": "m", "name": "n", "path": tempfile.gettempdir()}
VALID: list[tuple[str, str, Any, str, dict[str, Any]]] = [
    ("GET", "/admin/ps", None, "ps", {}),
    ("GET", "/admin/switches", None, "switches", {}),
    ("GET", "/admin/meters", None, "meters", {}),
    ("GET", "/admin/logs?model=a%2Fb", None, "logs", {"model": "a/b", "lines": 100}),
    ("GET", "/admin/logs?lines=10000&model=m", None, "logs", {"model": "m", "lines": 10_000}),
    ("POST", "/admin/load", {"model": "m"}, "load", {"model": "m"}),
    ("POST", "/admin/sleep", {"model": "m"}, "sleep", {"model": "m"}),
    ("POST", "/admin/unload", {"model": "m"}, "unload", {"model": "m"}),
    ("POST", "/admin/switch", {"from": "m", "to": "o"}, "switch", {"from_": "m", "to": "o"}),
    ("POST", "/admin/reload", None, "reload", {}),
    ("POST", "/admin/reload", {}, "reload", {}),
    ("POST", "/admin/adapters", ADAPTER, "add_lora", ADAPTER),
    ("POST", "/admin/adapters/remove", {"model": "m", "name": "n"}, "remove_lora", {"model": "m", "name": "n"}),
    ("POST", "/admin/engines/upgrade", {"engine": "vllm==1.2"}, "upgrade", {"engine": "vllm==1.2"}),
]


@pytest.mark.parametrize(("method", "target", "body", "command", "arguments"), VALID)
async def test_requests_run_commands(
    server: Server, method: str, target: str, body: Any, command: str, arguments: dict[str, Any]
) -> None:
    answer = await server.request(method, target, body)
    assert (answer.status, answer.body) == (200, RESULTS.get(command, MODEL))
    assert server.fleet.commands == [(command, arguments)]


def test_every_admin_route_is_covered() -> None:
    covered = {(method, target.partition("?")[0]) for method, target, *_ in VALID}
    assert covered == {(route.method, route.path) for route in ROUTES if route.path.startswith("/admin/")}
    assert all(route.scope == "admin" and not route.rate_limited for route in ROUTES if route.path.startswith("/admin"))


@pytest.mark.parametrize(
    ("method", "target", "body", "param"),
    [
        ("POST", "/admin/load", {}, "model"),
        ("POST", "/admin/load", {"model": ""}, "model"),
        ("POST", "/admin/load", {"model": 1}, "model"),
        ("POST", "/admin/load", {"model": "m", "force": True}, "force"),
        ("POST", "/admin/load", b"model", None),
        ("POST", "/admin/load", None, None),
        ("POST", "/admin/switch", {"from": "m"}, "to"),
        ("POST", "/admin/switch", {"from_": "m", "to": "n"}, "from_"),
        ("POST", "/admin/reload", {"now": True}, "now"),
        ("POST", "/admin/reload", [], None),
        ("POST", "/admin/adapters", {**ADAPTER, "path": "beside"}, "path"),
        ("POST", "/admin/adapters", {**ADAPTER, "path": "/a\0b"}, "path"),
        ("POST", "/admin/adapters", {**ADAPTER, "path": "/there/is/nothing"}, "path"),
        ("POST", "/admin/adapters", {**ADAPTER, "path": "/" + "x" * 4000}, "path"),
        ("POST", "/admin/adapters/remove", ADAPTER, "path"),
        ("POST", "/admin/engines/upgrade", {"engine": ""}, "engine"),
        ("GET", "/admin/logs", None, "model"),
        ("GET", "/admin/logs?model=", None, "model"),
        ("GET", "/admin/logs?model=m&follow=1", None, "follow"),
        *(("GET", f"/admin/logs?model=m&lines={n}", None, "lines") for n in ("0", "10001", "-1", "x", "", "1e2", "9" * 9999)),
    ],
)  # fmt: skip
async def test_errors_name_the_parameter_and_run_no_command(
    server: Server, method: str, target: str, body: Any, param: str | None
) -> None:
    answer = await server.request(method, target, body)
    assert answer.status == 400 and answer.body["error"]["param"] == param
    assert server.fleet.commands == []


async def test_a_misspelt_field_is_corrected_to_the_name_on_the_wire(server: Server) -> None:
    answer = await server.request("POST", "/admin/switch", {"frm": "a", "to": "b"})
    assert "did you mean from?" in answer.body["error"]["message"].lower()


SECRET = "cannot open /models/x.gguf"


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (LoadFailed(SECRET, "look into it"), 503, "engine_unavailable", None),
        (ConfigError(SECRET, "write another"), 400, "misconfigured", None),
        (UnknownEngine(SECRET), 400, "misconfigured", "engine"),
        (EngineMissing(SECRET, "install it"), 400, "engine_unavailable", "engine"),
        (UnknownModel(SECRET, "there are: a", param="model"), 404, "model_not_found", "model"),
        (InvalidRequest(SECRET, param="to"), 400, "invalid_value", "to"),
        (Overloaded(SECRET, retry_after_s=6.5), 503, "overloaded", None),
        (EnginebayError(SECRET), 500, None, None),
    ],
)
async def test_administrators_get_the_full_reason(
    server: Server, error: EnginebayError, status: int, code: str | None, param: str | None
) -> None:
    server.fleet.result = error
    answer = await server.request("POST", "/admin/load", {"model": "m"})
    fields = answer.body["error"]
    assert (answer.status, fields["code"], fields["param"]) == (status, code, param)
    assert fields["message"].startswith(SECRET) and error.hint[1:] in fields["message"]
    assert (fields["type"] == "server_error") == (status >= 500)
    assert ("retry-after: 7" in answer.head) == isinstance(error, Overloaded)


async def test_unexpected_errors_stay_in_the_log(server: Server) -> None:
    server.fleet.result = ValueError(SECRET)
    answer = await server.request("GET", "/admin/ps")
    assert answer.status == 500 and SECRET not in answer.written.decode()


async def test_a_command_continues_when_the_client_disconnects(server: Server) -> None:
    server.fleet.go.clear()
    transport, exchange = server.send("POST", "/admin/load", {"model": "m"})
    while not server.fleet.commands:
        await asyncio.sleep(0)
    exchange.closed = True
    assert exchange.on_close is None  # which would be called now
    server.fleet.go.set()
    while not server.fleet.done:
        await asyncio.sleep(0)
    assert transport.written == b""


# Access control


@pytest.mark.parametrize(("method", "target", "body"), [case[:3] for case in VALID])
async def test_only_keys_with_the_admin_scope(method: str, target: str, body: Any) -> None:
    server = Server(KEYS)
    assert (await server.request(method, target, body)).status == 401
    refused = await server.request(method, target, body, authorization="Bearer plain-key")
    assert refused.status == 403 and "scope admin" in refused.body["error"]["message"]
    assert server.fleet.commands == []
    for _ in range(3):  # more than the key's requests per minute
        remote = await server.request(method, target, body, peer="10.0.0.9:1", host="models.example", **AS_ADMIN)
        assert remote.status == 200


@pytest.mark.parametrize("config", [{}, {"allow_without_key": True}, {"cors_origins": ("https://app.example",)}])
async def test_without_keys_only_local_clients_may_manage(config: dict[str, Any]) -> None:
    server = Server(Keyring(), **config)
    for peer in ("127.0.0.1:1", "::1:1", "::ffff:127.0.0.1:1", "local"):
        assert (await server.request("GET", "/admin/ps", peer=peer)).status == 200
    for remote in (
        {"peer": "10.0.0.9:1"},
        {"peer": "::ffff:10.0.0.9:1"},
        {"x_forwarded_for": "10.0.0.9"},
        {"forwarded": "for=10.0.0.9"},
        {"host": "evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "https://app.example"},
    ):
        assert (await server.request("GET", "/admin/ps", **remote)).status == 403, remote
    assert len(server.fleet.commands) == 4


@pytest.mark.parametrize("token", ["", "the-local-toke", "the-local-token2", "THE-LOCAL-TOKEN", "\u00ff"])
async def test_without_keys_a_proxy_that_leaves_no_trace_needs_the_token(token: str) -> None:
    """Nothing but the token tells it from a local client."""
    server = Server(Keyring())
    for more in ({}, {"authorization": "Bearer the-local-token"}):
        refused = await server.request("POST", "/admin/unload", {"model": "m"}, x_enginebay_token=token, **more)
        assert refused.status == 403 and "bay keys token" in refused.body["error"]["message"]
    assert server.fleet.commands == []
    assert (await server.request("POST", "/admin/unload", {"model": "m"}, x_enginebay_token=TOKEN)).status == 200


async def test_the_token_is_worth_nothing_on_a_server_with_keys() -> None:
    server = Server(KEYS)
    assert (await server.request("GET", "/admin/ps", x_enginebay_token=TOKEN)).status == 401
    assert server.fleet.commands == []


def test_an_adapter_is_a_file_or_a_directory(tmp_path: Path) -> None:
    """An engine would wait for a pipe, and read a device to its end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path / "nothing", Path("\0")):
        with pytest.raises(InvalidRequest) as refused:
            _check_adapter_path(str(path))
        assert refused.value.param == "path"
    _check_adapter_path(str(tmp_path))
