"""What a request is checked for before its translation, and what its headers say of one that unloads."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest
from enginebay.server.api.ollama import generation, ollama_input
from enginebay.server.api.ollama.model_details import show
from enginebay.server.api.ollama.model_pull import pull
from enginebay.server.requests.request_context import RequestContext


class Fleet:
    def __init__(self) -> None:
        self.commands: list[str] = []

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> None:
        self.commands.append(command)


class RecordedExchange:
    """An exchange that records its headers and its status."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = json.dumps(body).encode()
        self.headers: dict[str, str] = {}
        self.added: dict[str, str] = {}
        self.received_at = 0.0
        self.status = 0

    def add_header(self, name: str, value: str) -> None:
        self.added[name] = value

    def respond(self, status: int, *_: object, **__: object) -> None:
        self.status = status


def make_request(**body: Any) -> tuple[Any, RequestContext, RecordedExchange]:
    exchange: Any = RecordedExchange({"model": "m", **body})
    primary = SimpleNamespace(kind="fake", session=None, facts=None)
    entry = SimpleNamespace(name="m", primary=primary, created=0.0, route=SimpleNamespace(source=None, task="generate"))
    catalog = SimpleNamespace(names=["m"], find=lambda name: (entry, None))
    config = SimpleNamespace(unknown_fields="ignore", allow_without_key=False, limits=ServerLimits(messages=3))
    context = SimpleNamespace(config=config, catalog=catalog, fleet=Fleet())
    return context, RequestContext(exchange, "chat", "id"), exchange


async def test_messages_are_counted_before_they_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama_input, "translate_messages", lambda _: pytest.fail("translated"))
    context, request_context, _ = make_request(messages=[{"role": "user", "content": "hi"}] * 4)
    with pytest.raises(InvalidRequest, match="messages has 4 entries; the maximum is 3") as caught:
        await generation.chat(context, request_context)
    assert caught.value.param == "messages"


async def test_an_unload_names_what_it_ignored() -> None:
    context, request_context, exchange = make_request(keep_alive=0, some_new_field=1)
    await generation.chat(context, request_context)
    assert exchange.status == 200 and context.fleet.commands == ["unload"]
    assert exchange.added["x-enginebay-ignored"] == "some_new_field: unknown"


@pytest.mark.parametrize("handle", [show, pull])
async def test_other_endpoints_name_what_they_ignored(handle: Any) -> None:
    context, request_context, exchange = make_request(some_new_field=1)
    await handle(context, request_context)
    assert exchange.status == 200 and exchange.added["x-enginebay-ignored"] == "some_new_field: unknown"
