"""When events are emitted, what is held back, and odd outputs."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.text.output_events import AnswerText, ToolCallArguments, ToolCallStart
from enginebay.text.tool_calls import TOOL_CALL_FORMATS
from tests.unit.text.tool_calls.parser_reading import ParsedAnswer, make_tool, parse_pieces

TOOLS = [make_tool("f", a={"type": "string"}, n={"type": "integer"}), make_tool("g")]


def parse(name: str, output: str) -> ParsedAnswer:
    return parse_pieces(TOOL_CALL_FORMATS[name].create_parser(TOOLS), [output])


@pytest.mark.parametrize("name", TOOL_CALL_FORMATS)
def test_plain_text_goes_out_at_once(name: str) -> None:
    parser = TOOL_CALL_FORMATS[name].create_parser(TOOLS)
    pieces = ["Hello", ",", " world", ". 1", " >", " 0", "\nNext", " line"]
    assert [parser.feed(piece) for piece in pieces] == [[AnswerText(piece)] for piece in pieces]
    assert parser.end() == []


@pytest.mark.parametrize(
    ("name", "piece", "shown"),
    [
        ("hermes", "see <tool", "see"),
        ("hermes", "a < b", "a < b"),
        ("hermes", "see <toolbox", "see <toolbox"),
        ("llama3", "x <|py", "x"),
        ("llama3", 'x {"name"', 'x {"name"'),
        ("mistral", "see [TOOL", "see"),
        ("mistral", "see [1", "see [1"),
        ("qwen", "a <func", "a"),
        ("json", "done\n``", "done"),
        ("json", "done ``", "done ``"),
        ("json", 'done\n{"na', "done"),
        ("json", 'done\n{"no"', 'done\n{"no"'),
    ],
)
def test_only_a_possible_opening_is_held_back(name: str, piece: str, shown: str) -> None:
    parser = TOOL_CALL_FORMATS[name].create_parser(TOOLS)
    assert parser.feed(piece) == [AnswerText(shown)]
    assert "".join(event.text for event in parser.end() if isinstance(event, AnswerText)) == piece[len(shown) :]


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("hermes", '<tool_call>\n{"name": "f"'),
        ("llama3", '<|python_tag|>{"name": "f"'),
        ("llama3", '{"name": "f", "parameters": {'),
        ("mistral", '[TOOL_CALLS][{"name": "f"'),
        ("mistral", "[TOOL_CALLS]f[ARGS]"),
        ("qwen", "<tool_call>\n<function=f>"),
        ("json", '[{"name": "f", "arguments": {'),
    ],
)
def test_the_name_goes_out_as_soon_as_it_is_known(name: str, before: str) -> None:
    parser = TOOL_CALL_FORMATS[name].create_parser(TOOLS)
    assert not [event for event in parser.feed(before[:-1]) if not isinstance(event, ToolCallArguments)]
    assert parser.feed(before[-1])[0] == ToolCallStart(0, "f")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', '"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"', '\\"}"}</tool_call>'),
        ("llama3", '{"name": "f", "parameters": {"a": "', '"}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "', '"}}]'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "', '"}'),
        ("qwen", "<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
        ("json", '```json\n{"name": "f", "arguments": {"a": "', '"}}\n```'),
    ],
)
def test_a_long_argument_streams(name: str, before: str, after: str) -> None:
    parser = TOOL_CALL_FORMATS[name].create_parser(TOOLS)
    answer = ParsedAnswer()
    for event in parser.feed(before):
        answer.add(event)
    words = [f"word{number} " for number in range(50)]
    for word in words:
        events = parser.feed(word)
        assert [type(event) for event in events] == [ToolCallArguments]
        for event in events:
            answer.add(event)
    for event in [*parser.feed(after), *parser.end()]:
        answer.add(event)
    assert [(name, json.loads(arguments)) for name, arguments in answer.calls] == [("f", {"a": "".join(words)})]


@pytest.mark.parametrize(
    ("name", "output", "text", "calls"),
    [
        # extra keys, trailing commas, arguments that are no object
        (
            "hermes",
            '<tool_call>{"id": 7, "name": "f", "x": {"name": "g"}, "arguments": {},}</tool_call>',
            "",
            [("f", "{}")],
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "", [("f", "[1]")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": 12 }</tool_call>', "", [("f", "12")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>', "", [("f", '"no object"')]),
        ("hermes", '<tool_call>{"name": "f", "arguments": " "}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        # a name in front of broken rest, and rest behind a call
        ("hermes", '<tool_call>{"name": "f" "arguments": {}}', '"arguments": {}}', [("f", "")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}} </tool_call>', "} </tool_call>", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1</tool_call> ok', "ok", [("f", '{"a": [1')]),
        # no name, an empty one, one that is too long, half a character
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
        ("hermes", '<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
        ("hermes", f'<tool_call>{{"name": "{"f" * 300}"}}', f'<tool_call>{{"name": "{"f" * 300}"}}', []),
        ("hermes", '<tool_call>{"name": "\\ud83d"}', '<tool_call>{"name": "\\ud83d"}', []),
        # broken arguments in front of the name
        (
            "hermes",
            '<tool_call>{"arguments": {"a": }, "name": "f"}',
            '<tool_call>{"arguments": {"a": }, "name": "f"}',
            [],
        ),
        ("hermes", '<tool_call>{"arguments": [NaN], "name": "f"}', '<tool_call>{"arguments": [NaN], "name": "f"}', []),
        # calls behind something that was none, several in one pair of markers
        ("hermes", '<tool_call><tool_call>{"name": "f"}</tool_call>', "<tool_call>", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f"}\n{"name": "g"}</tool_call>', "", [("f", "{}"), ("g", "{}")]),
        ("hermes", '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>!', "!", [("f", "{}"), ("g", "{}")]),
        ("hermes", '<tool_call>{"name": "f"}\n<tool_call>{"name": "g"}', "", [("f", "{}"), ("g", "{}")]),
        # objects alone are calls only if everything fits
        ("json", '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": [1]}', []),
        ("json", '{"name": "f", "arguments": "later"}', '{"name": "f", "arguments": "later"}', []),
        ("json", 'Say {"name": "f"}', 'Say {"name": "f"}', []),
        ("json", '{"name": "f"}, {"name": "g"}', "", [("f", "{}"), ("g", "{}")]),
        ("json", '{"name": "f"}; then', "; then", [("f", "{}")]),
        ("json", '{"name": "f"}\n```', "```", [("f", "{}")]),
        ("json", '```json\n{"name": "f"}', "", [("f", "{}")]),
        ("json", '```json5\n{"name": "f"}\n```', "```json5\n```", [("f", "{}")]),
        ("llama3", '<|python_tag|>print(1)\n{"name": "f"}', "<|python_tag|>print(1)", [("f", "{}")]),
        ("mistral", '[TOOL_CALLS]f{"a": "b"}', "", [("f", '{"a": "b"}')]),
        ("mistral", "[TOOL_CALLS]f[ARGS]", "", [("f", "{}")]),
        ("mistral", "[TOOL_CALLS]f[ARGS]oops", "oops", [("f", "")]),
        ("mistral", "[TOOL_CALLS]f", "[TOOL_CALLS]f", []),
        ("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", []),
        ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
        ("qwen", "<function=unknown>\n</function>", "<function=unknown>\n</function>", []),
        ("qwen", "<tool_call><function=unknown></function></tool_call>", "", [("unknown", "{}")]),
        ("qwen", "<function=f>\n<parameter=n>\n 5\n</parameter>\nhm", "hm", [("f", '{"n": 5')]),
        ("qwen", "<function=f>\n<parameter=a>\r\nx\r\n</parameter>\n</function>", "", [("f", '{"a": "x"}')]),
        ("qwen", "<function=f>\n<parameter=a>\n\n\n</parameter>\n</function>", "", [("f", '{"a": "\\n"}')]),
        ("qwen", "<function=f><parameter=a></parameter></function>", "", [("f", '{"a": ""}')]),
    ],
)
def test_odd_outputs(name: str, output: str, text: str, calls: list[tuple[str, str]]) -> None:
    assert parse(name, output) == ParsedAnswer(text, calls)
    assert parse_pieces(TOOL_CALL_FORMATS[name].create_parser(TOOLS), output) == ParsedAnswer(text, calls)


PARTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "```",
        "```json\n",
        "\n",
        " ",
    ),
    *("{", "}", "[", "]", '"', ":", ",", ";", "\\", "\\u00e9", "\\ud83d", "null", "1", "<", "x", "é", "\r\n"),
    *(
        '{"name": "f"',
        '"name"',
        '"f"',
        '"g"',
        '"arguments"',
        '"parameters": ',
        '"arguments": {',
        '"{\\"a\\": 1}"',
        ', "id": 1',
    ),
    *("<function=f>", "<function=", "<parameter=a>", "<parameter=n>", "</parameter>", "</function>", "f", "get"),
]


@settings(max_examples=1500)
@given(st.sampled_from(list(TOOL_CALL_FORMATS)), st.lists(st.sampled_from(PARTS), max_size=14))
def test_any_text_parses_the_same_however_split(name: str, parts: list[str]) -> None:
    output = "".join(parts)
    whole = parse(name, output)
    assert parse_pieces(TOOL_CALL_FORMATS[name].create_parser(TOOLS), output) == whole
    assert parse_pieces(TOOL_CALL_FORMATS[name].create_parser(TOOLS), parts) == whole
    if not whole.calls:
        assert whole.text == output


@pytest.mark.parametrize("name", TOOL_CALL_FORMATS)
@pytest.mark.parametrize(
    "part", [" ", "\n", "[", "{", "`", "<", '{"arguments":[', '<tool_call>{"arguments":"', "[TOOL_CALLS]", "<function="]
)
def test_long_nonsense_is_read_in_time_and_kept(name: str, part: str) -> None:
    output = part * (20_000 // len(part))
    started = time.process_time()
    assert parse_pieces(TOOL_CALL_FORMATS[name].create_parser(TOOLS), output) == ParsedAnswer(output)
    assert time.process_time() - started < 5


def test_deep_arguments_before_the_name_do_not_crash() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    output = f'<tool_call>{{"arguments": {deep}, "name": "f"}}</tool_call>'
    assert parse("hermes", output) == ParsedAnswer(output)
    after = f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>'
    assert parse("hermes", after) == ParsedAnswer("", [("f", deep)])


@pytest.mark.parametrize("name", TOOL_CALL_FORMATS)
def test_a_piece_of_plain_text_costs_microseconds(name: str) -> None:
    parser = TOOL_CALL_FORMATS[name].create_parser(TOOLS)
    parser.feed("It")
    started = time.process_time()
    for _ in range(10_000):
        parser.feed(" rains")
    assert (time.process_time() - started) / 10_000 < 50e-6  # about 2 µs; the rest is for slow machines
