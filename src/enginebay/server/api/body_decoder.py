"""Bytes to a checked struct, and msgspec's complaints to ours."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from enginebay.errors import InvalidRequest

_AT_PATH = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")

T = TypeVar("T")
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode_body(struct: type[T], body: bytes) -> T:
    """The body as this struct. Raises `InvalidRequest` that names the field."""
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


def _explain_error(kind: type[Any], said: str) -> InvalidRequest:
    found = _AT_PATH.match(said)
    what, path = (found["what"], found["path"].lstrip(".")) if found else (said, "")
    if unknown := _UNKNOWN.match(what):
        name = unknown["name"]
        param = f"{path}.{name}" if path else name
        known = getattr(kind, "__struct_encode_fields__", ()) if not path else ()
        near = get_close_matches(name[:100], known, n=1)
        hint = f"did you mean {near[0]}?" if near else "leave it out; /docs lists what is taken"
        return InvalidRequest(f"there is no parameter {param[:200]!r}", hint, param=param[:200])
    if missing := _MISSING.match(what):
        param = f"{path}.{missing['name']}" if path else missing["name"]
        return InvalidRequest(f"{param} is missing", param=param)
    return InvalidRequest(f"{path[:200] or 'the body'}: {_to_json_terms(what)}", param=path[:200] or None)


_JSON_TYPE_NAMES = {"float": "number", "int": "whole number", "str": "text", "bool": "true or false", "array": "list"}


def _to_json_terms(said: str) -> str:
    """msgspec speaks of Python's types; clients know JSON's."""
    if not said.startswith("JSON"):
        said = said[:1].lower() + said[1:]
    return re.sub(
        r"`([^`]*)`", lambda found: re.sub(r"\w+", lambda word: _JSON_TYPE_NAMES.get(word[0], word[0]), found[1]), said
    )
