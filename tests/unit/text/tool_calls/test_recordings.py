"""Every recording gives the same text and calls, whole or split anywhere."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.text.tool_calls import TOOL_CALL_FORMATS
from tests.unit.text.tool_calls.parser_reading import ParsedAnswer, parse_pieces

FOLDER = Path(__file__).parents[3] / "recordings" / "tools"
RECORDINGS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
each = pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS.keys())


def expected(recording: dict[str, Any]) -> ParsedAnswer:
    expect = recording["expect"]
    return ParsedAnswer(expect["text"], [(call["name"], call["arguments"]) for call in expect["calls"]])


def parsed(recording: dict[str, Any], pieces: list[str]) -> ParsedAnswer:
    return parse_pieces(TOOL_CALL_FORMATS[recording["format"]].create_parser(recording["tools"]), pieces)


def test_every_format_has_recordings() -> None:
    counts = Counter(recording["format"] for recording in RECORDINGS.values())
    assert set(counts) == set(TOOL_CALL_FORMATS)
    assert min(counts.values()) >= 5


@each
def test_whole(recording: dict[str, Any]) -> None:
    assert parsed(recording, [recording["output"]]) == expected(recording)


@each
def test_cut_once_at_every_position(recording: dict[str, Any]) -> None:
    output = recording["output"]
    for at in range(1, len(output)):
        assert parsed(recording, [output[:at], output[at:]]) == expected(recording), (
            f"cut at {at}: {output[at:][:20]!r}"
        )


@each
def test_one_character_at_a_time(recording: dict[str, Any]) -> None:
    assert parsed(recording, list(recording["output"])) == expected(recording)


@settings(max_examples=300)
@given(data=st.data())
def test_random_cuts(data: st.DataObject) -> None:
    recording = data.draw(st.sampled_from(list(RECORDINGS.values())))
    output = recording["output"]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(output)), max_size=12)))
    pieces = [output[start:end] for start, end in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    assert parsed(recording, pieces) == expected(recording)


@settings(max_examples=400)
@given(data=st.data())
def test_damaged_outputs_do_not_depend_on_cuts_either(data: st.DataObject) -> None:
    """Whatever a model makes of a format: parts of recordings in any order, read by any parser."""
    recordings = st.sampled_from(list(RECORDINGS.values()))
    recording = data.draw(recordings)
    output = ""
    for other in data.draw(st.lists(recordings, min_size=1, max_size=3)):
        start = data.draw(st.integers(0, len(other["output"])))
        output += other["output"][start : data.draw(st.integers(start, len(other["output"])))]
    whole = parsed(recording, [output])
    assert parsed(recording, list(output)) == whole
    at = data.draw(st.integers(0, len(output)))
    assert parsed(recording, [output[:at], output[at:]]) == whole
    if not whole.calls:
        assert whole.text == output


@pytest.mark.parametrize("name", [name for name in RECORDINGS if not name.endswith("cut-off")])
def test_arguments_of_complete_calls_are_json_objects(name: str) -> None:
    for _, arguments in parsed(RECORDINGS[name], [RECORDINGS[name]["output"]]).calls:
        assert isinstance(json.loads(arguments), dict)
