"""Custom and namespace tools as functions, and back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import InvalidRequest
from enginebay.server.api.openai.responses_api.tool_names import (
    CalledTool,
    expand_tools,
    join_tool_name,
    read_custom_input,
    to_custom_arguments,
)

FUNCTION: dict[str, Any] = {"type": "function", "name": "find", "parameters": {"type": "object"}}
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}


def test_functions_and_other_kinds_stay_as_they_are() -> None:
    tools = [FUNCTION, {"type": "web_search"}]
    expansion = expand_tools(tools)
    assert expansion.tools == tools and expansion.notes == {}
    assert expansion.find("find") == CalledTool("find")
    assert expand_tools(None).tools == []


def test_a_custom_tool_is_a_function_with_one_text() -> None:
    expansion = expand_tools([{"type": "custom", "name": "patch", "description": "Edits.", "format": LARK}])
    [tool] = expansion.tools
    assert (tool["type"], tool["name"]) == ("function", "patch") and 'start: "a"+' in tool["description"]
    assert tool["parameters"]["properties"] == {"input": {"type": "string"}}
    assert expansion.find("patch") == CalledTool("patch", None, is_custom=True)
    assert "not enforced" in expansion.notes["tools[0].format"]


def test_a_regex_is_the_pattern_of_the_text() -> None:
    regex = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
    [tool] = expand_tools([{"type": "custom", "name": "x", "format": regex}]).tools
    assert tool["parameters"]["properties"]["input"]["pattern"] == "^(?:a|b)$"


def test_tools_of_a_namespace_have_its_name() -> None:
    inner = [{**FUNCTION, "defer_loading": True}, {"type": "custom", "name": "patch"}]
    expansion = expand_tools([{"type": "namespace", "name": "crm", "description": "d", "tools": inner}, FUNCTION])
    assert [tool["name"] for tool in expansion.tools] == ["crm__find", "crm__patch", "find"]
    assert expansion.find("crm__find") == CalledTool("find", "crm")
    assert expansion.find("crm__patch") == CalledTool("patch", "crm", is_custom=True)
    assert expansion.find("find") == CalledTool("find")


def test_names() -> None:
    assert join_tool_name(None, "find") == join_tool_name("functions", "find") == "find"
    assert join_tool_name("mcp__files__", "find") == "mcp__files__find"
    one, two = join_tool_name("n" * 60, "find"), join_tool_name("n" * 60, "found")
    assert one != two and all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in (one, two))


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "custom", "name": "x", "format": {"type": "xml"}},
        {"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}},
        {"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "custom", "name": "x", "format": "text"},
        {"type": "namespace", "tools": []},
        {"type": "namespace", "name": "n", "tools": "all"},
        {"type": "namespace", "name": "n", "tools": ["find"]},
        {"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]},
        {"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "n", "tools": []}]},
    ],
)
def test_wrong_tools_are_refused(tool: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"tools\[0\]") as error:
        expand_tools([tool])
    assert error.value.param == "tools"


@given(st.text())
def test_a_text_comes_back_from_its_arguments(text: str) -> None:
    assert read_custom_input(to_custom_arguments(text)) == text


@pytest.mark.parametrize("arguments", ["", "{", "plain text", '{"other": 1}', '{"input": 7}', "[]", "7"])
def test_arguments_of_another_form_are_the_text(arguments: str) -> None:
    assert read_custom_input(arguments) == arguments
    assert read_custom_input(json.dumps("text")) == "text"
