"""What a request's tools mean for the prompt, for the sampling and for reading the output. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from enginebay.config.server import Limits
from enginebay.contract import Guided
from enginebay.errors import InvalidRequest
from enginebay.server.sampling import guided_json
from enginebay.server.schema_limits import check_schema, check_schemas
from enginebay.server.served import ServedModel
from enginebay.text.tools import ToolParser, calls_schema, check_tools, guided_parser


@dataclass(frozen=True, slots=True)
class ToolUse:
    shown: Sequence[Mapping[str, Any]] | None = None  # to the chat template
    guided: Guided | None = None  # a tool must be called: the output is held to it
    parser: Callable[[], ToolParser | None] = lambda: None
    notes: Mapping[str, str] = field(default_factory=dict)  # what of the request is not carried out to the letter


def plan_tools(
    tools: Sequence[Mapping[str, Any]] | None,
    choice: Any,
    parallel: bool | None,
    limits: Limits,
    served: ServedModel,
) -> ToolUse:
    """Checks tools and choice, and says how they are carried out."""
    if tools is not None and len(tools) > limits.tools:
        raise InvalidRequest(f"tools has {len(tools)} entries, allowed here is at most {limits.tools}", param="tools")
    plan = check_tools(tools, choice)
    if not tools:
        return ToolUse()
    check_schemas([tool["function"].get("parameters") for tool in tools], limits, "tools")
    for number, tool in enumerate(tools):
        parameters = tool["function"].get("parameters")
        if parameters is not None:
            check_schema(parameters, limits, f"tools[{number}].function.parameters")
    if plan.mode == "none":
        return ToolUse()
    if plan.mode == "auto":
        notes = _free_notes(tools, parallel)
        return ToolUse(shown=tools, parser=lambda: served.tool_format.parser(tools), notes=notes)
    schema = calls_schema(tools, plan.name, parallel is not False)
    return ToolUse(
        shown=tools,
        guided=guided_json(schema, "tools", limits),
        parser=lambda: guided_parser(tools, plan.name),
    )


def _free_notes(tools: Sequence[Mapping[str, Any]], parallel: bool | None) -> dict[str, str]:
    """A model that may choose writes its calls freely: wishes about their form are not enforced."""
    notes: dict[str, str] = {}
    if parallel is False:
        notes["parallel_tool_calls"] = "enforced with tool_choice required only"
    if any(tool["function"].get("strict") for tool in tools):
        notes["tools.strict"] = "enforced with tool_choice required or a named tool only"
    return notes
