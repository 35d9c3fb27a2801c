"""Drops the unknown fields of a body, unless one looks like a misspelling.

Runs only after the strict decoder has met an unknown field. It splits objects without decoding their values, so that a
large body costs a scan, and what is left goes through the strict decoder again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args, get_type_hints

import msgspec

from enginebay.errors import InvalidRequest
from enginebay.server.api.fields.field_table import STRICT_OBJECTS
from enginebay.util.text_format import find_nearest

MAX_UNKNOWN = 32  # each is compared to all known names, and named in a header
_MAX_SHOWN_CHARS = 64
_INDEX = re.compile(r"\[\d+\]")
_UNSAFE = re.compile(r"[^\w.\[\]-]", re.ASCII)
_split_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def drop_unknown_fields(struct: type[Any], body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body without unknown fields, and why each was dropped. Raise `InvalidRequest` for a misspelling."""
    dropped: dict[str, str] = {}
    return _clean_object(struct, body, "", dropped), dropped


def _clean_object(struct: type[Any], text: bytes, path: str, dropped: dict[str, str]) -> bytes:
    known = list_fields(struct)  # type: ignore[arg-type]  # a class is hashable
    members = []
    for name, raw in _split_object(text).items():
        value = bytes(raw)
        where = f"{path}.{name}" if path else name
        if name in known:
            members.append(_encode(name) + b":" + _clean_value(known[name], value, where, dropped))
        else:
            strict = struct.__name__ in STRICT_OBJECTS
            note_unknown_field(name, where, tuple(known), dropped, is_null=value == b"null", strict=strict)
    return b"{" + b",".join(members) + b"}"


def _clean_value(struct: type[Any] | None, value: bytes, where: str, dropped: dict[str, str]) -> bytes:
    """Clean an object of this struct, or a list of them."""
    if struct is not None and value.startswith(b"{"):
        return _clean_object(struct, value, where, dropped)
    if struct is not None and value.startswith(b"["):
        items = enumerate(_split_array(value))
        return b"[%b]" % b",".join(_clean_value(struct, bytes(raw), f"{where}[{at}]", dropped) for at, raw in items)
    return value


def note_unknown_field(
    name: str,
    where: str,
    known: tuple[str, ...],
    dropped: dict[str, str],
    *,
    is_null: bool = False,
    strict: bool = False,
    param: str = "",
) -> None:
    """Note an unknown field as ignored. Raise `InvalidRequest` if it is likely a misspelling of a known one.

    `strict`: raise for any field but a null one. `param`: the field to blame, if not this one.
    """
    shown = shorten_name(_INDEX.sub("[]", where))
    if dropped.get(shown) == "unknown" or (is_null and shown in dropped):  # of another item of a list
        return
    similar = "" if is_null else find_similar(name[:_MAX_SHOWN_CHARS], known)
    if similar or (strict and not is_null):
        raise make_unknown_error(where, similar, param)
    if shown not in dropped and len(dropped) >= MAX_UNKNOWN:
        hint = "remove them; /docs lists all parameters"
        raise InvalidRequest(f"more than {MAX_UNKNOWN} unknown parameters", hint, param=param or where[:200])
    dropped[shown] = "null" if is_null else "unknown"


def note_unknown_keys(
    item: Mapping[str, Any], known: Collection[str], where: str, dropped: dict[str, str] | None
) -> None:
    """Note the unknown keys of an object that is not a struct. Without `dropped`, raise `InvalidRequest` for any of them."""
    for key, value in item.items():
        if key not in known and value is not None:
            names, noted = tuple(sorted(known)), {} if dropped is None else dropped
            param = where.partition("[")[0]
            note_unknown_field(key, f"{where}.{key}", names, noted, strict=dropped is None, param=param)


def make_unknown_error(where: str, similar: str, param: str = "") -> InvalidRequest:
    hint = f"did you mean {similar}?" if similar else "remove it; /docs lists all parameters"
    return InvalidRequest(f"unknown parameter {where[:200]!r}", hint, param=param or where[:200])


def shorten_name(name: str) -> str:
    """Return a client's name for a field, safe for a header."""
    return _UNSAFE.sub("?", name[:_MAX_SHOWN_CHARS]) or "?"


@lru_cache(maxsize=4096)
def find_similar(name: str, known: tuple[str, ...]) -> str:
    """Return the known name that this one is likely a misspelling of, or an empty string."""
    similar = find_nearest(name, known)
    return similar[0] if similar else ""


@lru_cache(maxsize=256)
def list_fields(struct: type[Any]) -> dict[str, type[Any] | None]:
    """Return the fields of a struct by their names in JSON, each with the struct of its value, if it has one."""
    hints = get_type_hints(struct)
    pairs = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    return {encoded: _find_struct(hints[name]) for name, encoded in pairs}


def _find_struct(hint: Any) -> type[Any] | None:
    """Return the struct in a type. A type with several of them stays strict."""
    structs = set(_walk_structs(hint))
    return structs.pop() if len(structs) == 1 else None


def _walk_structs(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in get_args(hint):
        yield from _walk_structs(inner)
