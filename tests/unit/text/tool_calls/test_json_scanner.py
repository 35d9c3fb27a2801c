"""Incremental JSON scanning."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.text.tool_calls.json_scanner import JsonStringDecoder, JsonValueScanner, is_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def end_of_value(pieces: list[str]) -> int | None:
    scanner, position = JsonValueScanner(), 0
    for piece in pieces:
        taken = scanner.advance(piece, 0)
        position += taken
        if scanner.done:
            return position
    return None


@given(VALUES, st.sampled_from([",", "}", "]", " ", "\n"]), st.booleans())
def test_the_end_of_any_value_is_found(value: object, after: str, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert end_of_value([text + after + '"rest']) == len(text)
    assert end_of_value(list(text + after)) == len(text)


@pytest.mark.parametrize("text", ["}", ",", "'a'", "<tool>", '{"a": 1 </tool_call>', "[1, <"])
def test_invalid_json_breaks_the_value(text: str) -> None:
    scanner = JsonValueScanner()
    end = scanner.advance(text, 0)
    assert scanner.broken and not scanner.done
    assert end == max(text.find("<"), 0)


@given(st.text(), st.booleans(), st.data())
def test_strings_are_decoded_however_cut(value: str, ascii_only: bool, data: st.DataObject) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    at = data.draw(st.integers(0, len(raw)))
    for pieces in ([raw], list(raw), [raw[:at], raw[at:]]):
        decoder = JsonStringDecoder()
        assert "".join([*map(decoder.feed, pieces), decoder.feed("", last=True)]) == value


@pytest.mark.parametrize(
    ("raw", "decoded"),
    [
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d!", r"\ud83d!"),
        (r"\ud83d\n", "\\ud83d\n"),
        (r"\ud83d\u0041", r"\ud83dA"),
        (r"\ud83d", r"\ud83d"),
        (r"\ude00", r"\ude00"),
        (r"\u00", r"\u00"),
        (r"\u_123", r"\u_123"),
        (r"\q", r"\q"),
        ("\\", "\\"),
        (r"\\u0041", r"\u0041"),
    ],
)
def test_odd_escapes_stay_escapes(raw: str, decoded: str) -> None:
    for pieces in ([raw], list(raw)):
        decoder = JsonStringDecoder()
        assert "".join([*map(decoder.feed, pieces), decoder.feed("", last=True)]) == decoded


@pytest.mark.parametrize("text", ["{}", "[1e5, null]", '"x"', "1" * 5000])
def test_json_is_json(text: str) -> None:
    assert is_json(text)


@pytest.mark.parametrize("text", ["", "{'a': 1}", "NaN", "[Infinity]", "01", "{} {}", "[" * 100_000, '"\n"', "None"])
def test_other_things_are_not(text: str) -> None:
    assert not is_json(text)
