"""/admin/*: what an administrator may see and order. The fleet carries it out, in the supervisor.

An order takes as long as it takes, and goes on when whoever gave it has hung up: nothing here listens for that.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from enginebay.errors import ConfigError, EnginebayError, EngineMissing, InvalidRequest, ModelInvalid, UnknownEngine
from enginebay.server.call import Call
from enginebay.server.context import Context
from enginebay.server.failures import error_headers, shortened, shown
from enginebay.server.wire.admin_bodies import AdapterBody, AdapterNameBody, ModelBody, NoBody, SwitchBody, UpgradeBody
from enginebay.server.wire.decode import decode

MOST_LINES = 10_000
USUAL_LINES = 100

_encode = msgspec.json.Encoder().encode


async def ps(context: Context, call: Call) -> None:
    await _ordered(context, call, "ps")


async def switches(context: Context, call: Call) -> None:
    await _ordered(context, call, "switches")


async def meters(context: Context, call: Call) -> None:
    await _ordered(context, call, "meters")


async def logs(context: Context, call: Call) -> None:
    asked = call.exchange.query
    unknown = next((name for name in asked if name not in ("model", "lines")), None)
    if unknown is not None:
        raise InvalidRequest(
            f"there is no parameter {unknown[:200]!r}", "logs takes model and lines", param=unknown[:200]
        )
    call.model = asked.get("model", "")
    if not call.model:
        raise InvalidRequest("model is missing", "name one of those that GET /admin/ps lists", param="model")
    await _ordered(context, call, "logs", model=call.model, lines=_lines(asked.get("lines")))


def _lines(text: str | None) -> int:
    if text is None:
        return USUAL_LINES
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST_LINES):
        raise InvalidRequest(f"lines is not a whole number from 1 to {MOST_LINES}", param="lines")
    return int(text)


async def load(context: Context, call: Call) -> None:
    call.model = decode(ModelBody, call.exchange.body).model
    await _ordered(context, call, "load", model=call.model)


async def sleep(context: Context, call: Call) -> None:
    call.model = decode(ModelBody, call.exchange.body).model
    await _ordered(context, call, "sleep", model=call.model)


async def unload(context: Context, call: Call) -> None:
    call.model = decode(ModelBody, call.exchange.body).model
    await _ordered(context, call, "unload", model=call.model)


async def switch(context: Context, call: Call) -> None:
    body = decode(SwitchBody, call.exchange.body)
    call.model = body.to
    await _ordered(context, call, "switch", from_=body.from_, to=body.to)


async def reload(context: Context, call: Call) -> None:
    if call.exchange.body:
        decode(NoBody, call.exchange.body)
    await _ordered(context, call, "reload")


async def add_adapter(context: Context, call: Call) -> None:
    body = decode(AdapterBody, call.exchange.body)
    call.model = body.model
    if not await asyncio.to_thread(os.path.exists, body.path):  # before engines see it, which take it in different ways
        raise InvalidRequest(f"there is nothing at {body.path[:200]!r} on the server's host", param="path")
    await _ordered(context, call, "add_lora", model=body.model, name=body.name, path=body.path)


async def remove_adapter(context: Context, call: Call) -> None:
    body = decode(AdapterNameBody, call.exchange.body)
    call.model = body.model
    await _ordered(context, call, "remove_lora", model=body.model, name=body.name)


async def upgrade(context: Context, call: Call) -> None:
    body = decode(UpgradeBody, call.exchange.body)
    await _ordered(context, call, "upgrade", engine=body.engine)


async def _ordered(context: Context, call: Call, command: str, **arguments: Any) -> None:
    try:
        found = await context.fleet.order(command, arguments)
    except EnginebayError as error:
        call.error = error.with_traceback(None)
        status = _status(error)
        headers = error_headers(error) if status == shown(error).status else ()
        call.exchange.respond(status, _encode({"error": in_full(error)}), headers=headers)
        return
    call.exchange.respond(200, _encode(found))


def in_full(error: EnginebayError) -> dict[str, object]:
    """An administrator is told what other clients are not: which file, which line, which process. Pure."""
    row = shown(error)
    hint = f". {error.hint[:1].upper()}{error.hint[1:]}" if error.hint else ""
    return {
        "message": f"{shortened(error.message)}{shortened(hint)}",
        "type": row.type if _status(error) >= 500 else shown(InvalidRequest("")).type,
        "param": error.param or ("engine" if isinstance(error, (UnknownEngine, EngineMissing)) else None),
        "code": row.code,
    }


def _status(error: EnginebayError) -> int:
    """A wrong configuration or file, or a missing engine, is for whoever manages the server to put right."""
    mistaken = isinstance(error, (ConfigError, EngineMissing, ModelInvalid, UnknownEngine))
    return 400 if mistaken else shown(error).status
