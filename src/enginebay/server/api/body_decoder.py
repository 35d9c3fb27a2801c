"""Decodes request bodies into structs, and turns msgspec's errors into `InvalidRequest`."""

from __future__ import annotations

import codecs
import re
from typing import Any, TypeVar

import msgspec

from enginebay.errors import InvalidRequest
from enginebay.server.api.fields.field_table import find_rules
from enginebay.server.api.fields.unknown_fields import drop_unknown_fields, find_similar, make_unknown_error
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext

_AT_PATH = re.compile(r"^(?P<problem>.*) - at (?:`key` in )?`(?:key in )?\$(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")

T = TypeVar("T")
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def read_body(struct: type[T], context: ServerContext, request_context: RequestContext) -> T:
    """Decode the request's body and apply the rules of its fields. Raise `RequestError` that names the field.

    Unknown fields are noted as ignored, unless `server.unknown_fields` refuses them.
    """
    body = decode_body(struct, request_context.exchange.body, get_unknown_fields(context, request_context))
    find_rules(struct.__name__).apply(body, request_context.ignored, request_context.translated)
    return body


def get_unknown_fields(context: ServerContext, request_context: RequestContext) -> dict[str, str] | None:
    """Return the dict that unknown fields are noted in, or None if they are refused."""
    return request_context.ignored if context.config.unknown_fields == "ignore" else None


def decode_body(struct: type[T], body: bytes, ignored: dict[str, str] | None = None) -> T:
    """Decode the body. Raise `InvalidRequest` that names the field.

    `ignored` gets the unknown fields; without it they are refused.
    """
    try:
        return _decode(struct, body.removeprefix(codecs.BOM_UTF8), ignored)
    except msgspec.ValidationError as error:
        raise _explain_error(struct, str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {_to_json_terms(str(error))}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None


def _decode(struct: type[T], body: bytes, ignored: dict[str, str] | None) -> T:
    """Decode strictly. What is unusual costs a second attempt, so that an ordinary body costs nothing."""
    decoder = _decoders.get(struct)
    if decoder is None:
        decoder = _decoders[struct] = msgspec.json.Decoder(struct)
    try:
        return decoder.decode(body)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        if ignored is None or not str(error).startswith("Object contains unknown field"):
            raise
        cleaned, dropped = drop_unknown_fields(struct, body)
        decoded: T = decoder.decode(cleaned)
        ignored |= dropped
        return decoded


def _explain_error(struct: type[Any], message: str) -> InvalidRequest:
    match = _AT_PATH.match(message)
    problem, path = (match["problem"], match["path"].lstrip(".")) if match else (message, "")
    if unknown := _UNKNOWN.match(problem):
        name = unknown["name"]
        known = () if path else tuple(getattr(struct, "__struct_encode_fields__", ()))
        return make_unknown_error(f"{path}.{name}" if path else name, find_similar(name, known))
    if missing := _MISSING.match(problem):
        param = f"{path}.{missing['name']}" if path else missing["name"]
        return InvalidRequest(f"{param} is missing", param=param)
    return InvalidRequest(f"{path[:200] or 'the body'}: {_to_json_terms(problem)}", param=path[:200] or None)


_JSON_TYPE_NAMES = {"float": "number", "int": "integer", "str": "string", "bool": "boolean"}


def _to_json_terms(message: str) -> str:
    """Replace Python's type names, which msgspec uses, by JSON's."""
    if not message.startswith("JSON"):
        message = message[:1].lower() + message[1:]
    return re.sub(
        r"`([^`]*)`",
        lambda quoted: re.sub(r"\w+", lambda word: _JSON_TYPE_NAMES.get(word[0], word[0]), quoted[1]),
        message,
    )
