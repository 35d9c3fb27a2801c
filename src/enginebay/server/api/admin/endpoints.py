"""/admin/*: commands that the fleet runs in the supervisor.

A command has no timeout, and continues when the client disconnects.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from enginebay.errors import ConfigError, EnginebayError, EngineMissing, InvalidRequest, ModelInvalid, UnknownEngine
from enginebay.server.api.admin import schemas
from enginebay.server.api.admin.schemas import AdapterBody, AdapterNameBody, ModelBody, NoBody, SwitchBody, UpgradeBody
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.encoding.error_responses import (
    ErrorDetailObject,
    ErrorObject,
    build_error_headers,
    get_error_row,
    truncate_message,
)
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import RouteHandler, ServerContext

_RESPONSES: dict[str, Any] = {
    **dict.fromkeys(("load", "sleep", "unload", "switch", "add_lora", "remove_lora"), schemas.FleetModelObject),
    "ps": schemas.FleetObject, "switches": schemas.SwitchesObject, "meters": schemas.MetersObject,
    "logs": schemas.LogLinesObject, "reload": schemas.ReloadedObject, "upgrade": schemas.UpgradedObject,
}  # fmt: skip
MAX_LOG_LINES = 10_000
DEFAULT_LOG_LINES = 100

_encode = msgspec.json.Encoder().encode


def _make_query(command: str) -> RouteHandler:
    async def run(context: ServerContext, request_context: RequestContext) -> None:
        await _run_command(context, request_context, command)

    return run


def _make_model_command(command: str) -> RouteHandler:
    async def run(context: ServerContext, request_context: RequestContext) -> None:
        request_context.model = decode_body(ModelBody, request_context.exchange.body).model
        await _run_command(context, request_context, command, model=request_context.model)

    return run


ps, list_switches, meters = map(_make_query, ("ps", "switches", "meters"))
load, sleep, unload = map(_make_model_command, ("load", "sleep", "unload"))


async def logs(context: ServerContext, request_context: RequestContext) -> None:
    query = request_context.exchange.query
    unknown = next((name for name in query if name not in ("model", "lines")), None)
    if unknown is not None:
        raise InvalidRequest(f"unknown parameter {unknown[:200]!r}", "use model and lines", param=unknown[:200])
    request_context.model = query.get("model", "")
    if not request_context.model:
        raise InvalidRequest("model is missing", "use a model that GET /admin/ps lists", param="model")
    await _run_command(
        context, request_context, "logs", model=request_context.model, lines=_parse_line_count(query.get("lines"))
    )


def _parse_line_count(text: str | None) -> int:
    if text is None:
        return DEFAULT_LOG_LINES
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_LOG_LINES):
        raise InvalidRequest(f"lines is not an integer from 1 to {MAX_LOG_LINES}", param="lines")
    return int(text)


async def switch(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(SwitchBody, request_context.exchange.body)
    request_context.model = body.to
    await _run_command(context, request_context, "switch", from_=body.from_, to=body.to)


async def reload(context: ServerContext, request_context: RequestContext) -> None:
    if request_context.exchange.body:
        decode_body(NoBody, request_context.exchange.body)
    await _run_command(context, request_context, "reload")


async def add_adapter(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(AdapterBody, request_context.exchange.body)
    request_context.model = body.model
    await asyncio.to_thread(_check_adapter_path, body.path)
    await _run_command(context, request_context, "add_lora", model=body.model, name=body.name, path=body.path)


def _check_adapter_path(path: str) -> None:
    """Check it here, since engines report it differently, and would wait for a pipe or read a device to its end."""
    if not os.path.exists(path):  # noqa: PTH110  (`Path` raises for a name that is too long)
        raise InvalidRequest(f"path {path[:200]!r} does not exist on the server's host", param="path")
    if not os.path.isfile(path) and not os.path.isdir(path):  # noqa: PTH112, PTH113
        raise InvalidRequest(f"path {path[:200]!r} is neither a file nor a directory", param="path")


async def remove_adapter(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(AdapterNameBody, request_context.exchange.body)
    request_context.model = body.model
    await _run_command(context, request_context, "remove_lora", model=body.model, name=body.name)


async def upgrade(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(UpgradeBody, request_context.exchange.body)
    await _run_command(context, request_context, "upgrade", engine=body.engine)


async def _run_command(context: ServerContext, request_context: RequestContext, command: str, **arguments: Any) -> None:
    try:
        result = await context.fleet.run_admin_command(command, arguments)
    except EnginebayError as error:
        request_context.error = error.with_traceback(None)
        status = _get_status(error)
        headers = build_error_headers(error) if status == get_error_row(error).status else ()
        request_context.exchange.respond(status, _encode(ErrorObject(encode_full_error(error))), headers=headers)
        return
    body = msgspec.convert(result, _RESPONSES[command])
    request_context.exchange.respond(200, _encode(body))


def encode_full_error(error: EnginebayError) -> ErrorDetailObject:
    """Encode an error with the details that only administrators see: file, line, process. Pure."""
    row = get_error_row(error)
    hint = f". {error.hint[:1].upper()}{error.hint[1:]}" if error.hint else ""
    return ErrorDetailObject(
        f"{truncate_message(error.message)}{truncate_message(hint)}",
        row.type if _get_status(error) >= 500 else get_error_row(InvalidRequest("")).type,
        error.param or ("engine" if isinstance(error, (UnknownEngine, EngineMissing)) else None),
        row.code,
    )


def _get_status(error: EnginebayError) -> int:
    """Return 400 for a wrong configuration or file or a missing engine: the administrator can fix these."""
    fixable = isinstance(error, (ConfigError, EngineMissing, ModelInvalid, UnknownEngine))
    return 400 if fixable else get_error_row(error).status
