"""The table of formats in which models write tool calls, and which of them a model uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from enginebay.text.tools import hermes, llama3, mistral, plain, qwen
from enginebay.text.tools.events import ToolParser


@dataclass(frozen=True)
class ToolFormat:
    """One way to write calls. `markers` are token texts that must stay in the text even if they are special tokens."""

    name: str
    markers: tuple[str, ...]
    make_parser: Callable[[Sequence[Mapping[str, Any]]], ToolParser]

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> ToolParser:
        """A parser for one answer to a request with these (checked) tools."""
        return self.make_parser(tools)


FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": ToolFormat("hermes", hermes.MARKERS, hermes.parser),
        "llama3": ToolFormat("llama3", llama3.MARKERS, llama3.parser),
        "mistral": ToolFormat("mistral", mistral.MARKERS, mistral.parser),
        "qwen": ToolFormat("qwen", qwen.MARKERS, qwen.parser),
        "json": ToolFormat("json", plain.MARKERS, plain.parser),
    }
)

# The first row whose texts are all in the template, and whose last text is not, decides.
_SIGNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("qwen", ("<tool_call>", "<function=", "<parameter="), ""),
    ("hermes", ("<tool_call>",), "<arg_key>"),  # GLM has the same marker around another format
    ("mistral", ("[TOOL_CALLS]",), ""),
    ("llama3", ("<|python_tag|>",), ""),
    ("llama3", ("function name", "dictionary of argument name and its value"), ""),
)


def detect_format(template: str | None) -> str:
    """The format a model writes, by what its chat template contains; "json" if it is none of the known ones."""
    for name, signs, excluded in _SIGNS:
        if template and all(sign in template for sign in signs) and not (excluded and excluded in template):
            return name
    return "json"
