"""Unknown fields are ignored and named, except for misspellings."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import InvalidRequest
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.api.fields.unknown_fields import MAX_UNKNOWN, drop_unknown_fields, find_similar
from enginebay.server.api.openai.schemas import ChatBody, ResponsesBody
from enginebay.server.requests.run_generation import format_translated

BASE: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def decode(**fields: Any) -> tuple[ChatBody, dict[str, str]]:
    ignored: dict[str, str] = {}
    return decode_body(ChatBody, json.dumps({**BASE, **fields}).encode(), ignored), ignored


def test_an_unknown_field_is_dropped_and_named() -> None:
    body, ignored = decode(mirostat=2, temperature=0.5, zzz={"a": [1, {"b": None}]})
    assert body.temperature == 0.5 and body.messages == BASE["messages"]
    assert ignored == {"mirostat": "unknown", "zzz": "unknown"}


def test_a_nested_one_too() -> None:
    body, ignored = decode(stream=True, stream_options={"include_usage": True, "zzz": 1})
    assert body.stream_options is not None and body.stream_options.include_usage
    assert ignored == {"stream_options.zzz": "unknown"}


@pytest.mark.parametrize(
    ("fields", "param", "suggestion"),
    [
        ({"temprature": 1}, "temprature", "temperature"),
        ({"max_new_tokens": 1}, "max_new_tokens", "max_tokens"),
        ({"mesages": []}, "mesages", "messages"),
        ({"stream_options": {"include_usag": True}}, "stream_options.include_usag", "include_usage"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "regex"),
    ],
)
def test_a_misspelling_is_refused_with_the_suggestion(fields: dict[str, Any], param: str, suggestion: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(**fields)
    assert caught.value.param == param and suggestion in caught.value.hint


def test_an_unknown_constraint_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(structured_outputs={"xml": "a"})
    assert caught.value.param == "structured_outputs.xml"
    _, ignored = decode(structured_outputs={"xml": None, "regex": "a"})
    assert ignored == {"structured_outputs.xml": "null"}


def test_a_null_field_asks_for_nothing_even_if_misspelled() -> None:
    _, ignored = decode(temprature=None, zzz=None)
    assert ignored == {"temprature": "null", "zzz": "null"}


def test_without_a_place_to_name_them_they_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_body(ChatBody, json.dumps({**BASE, "zzz": 1}).encode())
    assert caught.value.param == "zzz"


def test_other_errors_are_still_found() -> None:
    for fields, param in (({"temperature": 9}, "temperature"), ({"n": "1"}, "n"), ({"messages": []}, "messages")):
        with pytest.raises(InvalidRequest) as caught:
            decode(zzz=1, **fields)
        assert caught.value.param == param


def test_no_more_than_a_few() -> None:
    names = {f"zz{number}qq": 1 for number in range(MAX_UNKNOWN)}
    assert len(decode(**names)[1]) == MAX_UNKNOWN
    with pytest.raises(InvalidRequest, match=f"more than {MAX_UNKNOWN}"):
        decode(**names, zzz=1)


@pytest.mark.parametrize(
    "make_name", [lambda at: "x" * 64 + str(at), lambda at: chr(0x4E00 + at), lambda at: f"z{at}q"]
)
def test_many_unknown_fields_cost_little(make_name: Any) -> None:
    """Names that look the same once they are shortened are not compared one by one."""
    fields = {make_name(at): 1 for at in range(20_000)}
    before = find_similar.cache_info().misses
    with suppress(InvalidRequest):
        decode(**fields)
    assert find_similar.cache_info().misses - before <= MAX_UNKNOWN + 1


def test_names_are_safe_for_a_header() -> None:
    _, ignored = decode(**{"a\r\nset-cookie: x": 1, "\x00\x7fé": 2, "z" * 500: 3, "": 4})
    line = format_translated(ignored)
    assert line.isascii() and line.isprintable() and len(line) < 300
    assert ":" not in "".join(ignored) and max(map(len, ignored)) <= 64


def test_a_byte_order_mark_is_accepted_once() -> None:
    mark, text = b"\xef\xbb\xbf", json.dumps({**BASE, "zzz": 1}).encode()
    ignored: dict[str, str] = {}
    assert decode_body(ChatBody, mark + text, ignored).model == "m" and ignored
    with pytest.raises(InvalidRequest, match="not JSON"):
        decode_body(ChatBody, mark * 2 + text, ignored)


class Item(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int | None = None


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    items: list[Item] | None = None


def test_items_of_a_list() -> None:
    ignored: dict[str, str] = {}
    text = json.dumps({"items": [{"name": "a", "zzz": 1}, {"name": "b", "zzz": 2}]}).encode()
    assert decode_body(Listing, text, ignored) == Listing([Item("a"), Item("b")])
    assert ignored == {"items[].zzz": "unknown"}
    with pytest.raises(InvalidRequest, match="items\\[1\\]\\.nam"):
        decode_body(Listing, b'{"items": [{"name": "a", "zzz": 1}, {"name": "b", "nam": 1}]}', ignored)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6).map(lambda name: f"zz9{name}"), JSON, max_size=8), JSON)
def test_what_is_known_stays_as_it_is(unknown: dict[str, Any], value: Any) -> None:
    known = {"model": "m", "input": [{"role": "user", "content": value}], "metadata": {"a": "b"}}
    cleaned, dropped = drop_unknown_fields(ResponsesBody, json.dumps({**unknown, **known}).encode())
    assert json.loads(cleaned) == known and bool(dropped) == bool(unknown)
