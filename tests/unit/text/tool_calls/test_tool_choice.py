"""Validation of `tools` and `tool_choice`."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.errors import InvalidRequest
from enginebay.text.tool_calls import ToolChoice, parse_tool_choice
from tests.unit.text.tool_calls.parser_reading import make_tool

TOOLS = [make_tool("get_weather", city={"type": "string"}), {"type": "function", "function": {"name": "get_time"}}]
NAMED = {"type": "function", "function": {"name": "get_time"}}


def allowed(mode: Any, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize(
    ("tools", "choice", "plan"),
    [
        (None, None, ToolChoice("none")),
        ([], None, ToolChoice("none")),
        (None, "none", ToolChoice("none")),
        (None, "auto", ToolChoice("none")),
        (TOOLS, None, ToolChoice("auto")),
        (TOOLS, "auto", ToolChoice("auto")),
        (TOOLS, "none", ToolChoice("none")),
        (TOOLS, "required", ToolChoice("required")),
        (TOOLS, NAMED, ToolChoice("named", "get_time")),
        (TOOLS, allowed("auto", NAMED), ToolChoice("auto", allowed=frozenset({"get_time"}))),
        (TOOLS, allowed("required", NAMED, NAMED), ToolChoice("required", allowed=frozenset({"get_time"}))),
    ],
)
def test_plans(tools: Any, choice: Any, plan: ToolChoice) -> None:
    assert parse_tool_choice(tools, choice) == plan


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    "tools",
    [
        "tools",
        {"type": "function"},
        7,
        [None],
        ["f"],
        [[]],
        [{}],
        [{"type": "retrieval"}],
        [{"type": ["function"], "function": {"name": "f"}}],
        [{"function": {"name": "f"}}],
        [{"type": "function"}],
        [{"type": "function", "function": "f"}],
        [{"type": "function", "function": {}}],
        function(name=""),
        function(name="f" * 129),
        function(name="a.b"),
        function(name="é"),
        function(name="f\n"),
        function(name=5),
        function(name=["f"]),
        function(description=5),
        function(parameters=[]),
        function(parameters="{}"),
        function(parameters={"type": "array"}),
        function(parameters={"type": ["object"]}),
        function(parameters={"type": "object", "properties": []}),
        [*function(), *function()],
    ],
)
def test_wrong_tools_are_named(tools: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_tool_choice(tools, None)
    assert error.value.param == "tools"
    assert error.value.message.startswith("tools")
    assert error.value.hint and "\n" not in error.value.message + error.value.hint


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (TOOLS, "sometimes"),
        (TOOLS, ""),
        (TOOLS, 1),
        (TOOLS, True),
        (TOOLS, ["auto"]),
        (TOOLS, {}),
        (TOOLS, {"type": "function"}),
        (TOOLS, {"type": "function", "function": {}}),
        (TOOLS, {"type": "function", "function": {"name": ["get_time"]}}),
        (TOOLS, {"type": "allowed_tools", "function": {"name": "get_time"}}),
        (TOOLS, {"type": "function", "function": {"name": "unknown"}}),
        (TOOLS, {"type": "allowed_tools"}),
        (TOOLS, {"type": "allowed_tools", "allowed_tools": ["get_time"]}),
        (TOOLS, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": NAMED}}),
        (TOOLS, allowed("auto")),
        (TOOLS, allowed("none", NAMED)),
        (TOOLS, allowed(["auto"], NAMED)),
        (TOOLS, allowed("required", NAMED, "get_weather")),
        (TOOLS, allowed("required", NAMED, {"type": "function", "function": {"name": "unknown"}})),
        (None, allowed("auto", NAMED)),
        (None, "required"),
        ([], NAMED),
    ],
)
def test_wrong_choices_are_named(tools: Any, choice: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_tool_choice(tools, choice)
    assert error.value.param == "tool_choice"
    assert error.value.hint


def test_messages_stay_short() -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_tool_choice(function(name="x" * 100_000), None)
    assert len(str(error.value)) < 300
    with pytest.raises(InvalidRequest) as error:
        parse_tool_choice(TOOLS, {"type": "function", "function": {"name": "x" * 100_000}})
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"properties": {"a": {}}}])
def test_parameters_may_be_left_out_or_open(parameters: Any) -> None:
    assert parse_tool_choice(function(parameters=parameters, description=None), None) == ToolChoice("auto")
