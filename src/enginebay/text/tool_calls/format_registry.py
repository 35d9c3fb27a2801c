"""The registry of tool call formats, and the detection of a model's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from enginebay.text.output_events import OutputEventParser
from enginebay.text.tool_calls.formats import hermes, llama3, mistral, plain_json, qwen


@dataclass(frozen=True)
class ToolCallFormat:
    """One call format. `markers` are tokens that must stay in the text even if they are special tokens."""

    name: str
    markers: tuple[str, ...]
    make_parser: Callable[[Sequence[Mapping[str, Any]]], OutputEventParser]

    def create_parser(self, tools: Sequence[Mapping[str, Any]]) -> OutputEventParser:
        """Return a parser for one answer to a request with these validated tools."""
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

# (format, texts that must be in the template, text that must not be). The first match wins.
_DETECTION_RULES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("qwen", ("<tool_call>", "<function=", "<parameter="), ""),
    ("hermes", ("<tool_call>",), "<arg_key>"),  # GLM uses the same marker for another format
    ("mistral", ("[TOOL_CALLS]",), ""),
    ("llama3", ("<|python_tag|>",), ""),
    ("llama3", ("function name", "dictionary of argument name and its value"), ""),
)


def detect_format(template: str | None) -> str:
    """Return the call format of a model by its chat template; "json" if unknown."""
    for name, signs, excluded in _DETECTION_RULES:
        if template and all(sign in template for sign in signs) and not (excluded and excluded in template):
            return name
    return "json"
