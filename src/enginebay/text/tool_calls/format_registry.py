"""The table of formats in which models write tool calls, and which of them a model uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from enginebay.text.tool_calls.formats import hermes, llama3, mistral, plain_json, qwen
from enginebay.text.tool_calls.tool_call_events import ToolCallParser


@dataclass(frozen=True)
class ToolCallFormat:
    """One way to write calls. `markers` are token texts that must stay in the text even if they are special tokens."""

    name: str
    markers: tuple[str, ...]
    make_parser: Callable[[Sequence[Mapping[str, Any]]], ToolCallParser]

    def create_parser(self, tools: Sequence[Mapping[str, Any]]) -> ToolCallParser:
        """A parser for one answer to a request with these (checked) tools."""
        return self.make_parser(tools)


TOOL_CALL_FORMATS: Mapping[str, ToolCallFormat] = MappingProxyType(
    {
        "hermes": ToolCallFormat("hermes", hermes.MARKERS, hermes.create_parser),
        "llama3": ToolCallFormat("llama3", llama3.MARKERS, llama3.create_parser),
        "mistral": ToolCallFormat("mistral", mistral.MARKERS, mistral.create_parser),
        "qwen": ToolCallFormat("qwen", qwen.MARKERS, qwen.create_parser),
        "json": ToolCallFormat("json", plain_json.MARKERS, plain_json.create_parser),
    }
)

# The first row whose texts are all in the template, and whose last text is not, decides.
_DETECTION_RULES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("qwen", ("<tool_call>", "<function=", "<parameter="), ""),
    ("hermes", ("<tool_call>",), "<arg_key>"),  # GLM has the same marker around another format
    ("mistral", ("[TOOL_CALLS]",), ""),
    ("llama3", ("<|python_tag|>",), ""),
    ("llama3", ("function name", "dictionary of argument name and its value"), ""),
)


def detect_format(template: str | None) -> str:
    """The format a model writes, by what its chat template contains; "json" if it is none of the known ones."""
    for name, signs, excluded in _DETECTION_RULES:
        if template and all(sign in template for sign in signs) and not (excluded and excluded in template):
            return name
    return "json"
