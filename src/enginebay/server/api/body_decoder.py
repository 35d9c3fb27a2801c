"""Decodes request bodies into structs, and turns msgspec's errors into `InvalidRequest`."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from enginebay.errors import InvalidRequest
from enginebay.util.text_format import find_nearest

_AT_PATH = re.compile(r"^(?P<problem>.*) - at (?:`key` in )?`(?:key in )?\$(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")

T = TypeVar("T")
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode_body(struct: type[T], body: bytes) -> T:
    """Decode the body. Raise `InvalidRequest` that names the field."""
    decoder = _decoders.get(struct)
    if decoder is None:
        decoder = _decoders[struct] = msgspec.json.Decoder(struct)
    try:
        return decoder.decode(body)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise _explain_error(struct, str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {_to_json_terms(str(error))}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None


def _explain_error(struct: type[Any], message: str) -> InvalidRequest:
    match = _AT_PATH.match(message)
    problem, path = (match["problem"], match["path"].lstrip(".")) if match else (message, "")
    if unknown := _UNKNOWN.match(problem):
        name = unknown["name"]
        param = f"{path}.{name}" if path else name
        known = getattr(struct, "__struct_encode_fields__", ()) if not path else ()
        similar = find_nearest(name, known)
        hint = f"did you mean {similar[0]}?" if similar else "remove it; /docs lists all parameters"
        return InvalidRequest(f"unknown parameter {param[:200]!r}", hint, param=param[:200])
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
