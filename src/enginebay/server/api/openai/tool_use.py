"""Plans how a request's tools affect the prompt, the sampling and the parsing of the output. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from enginebay.config.sections.server_section import ServerLimits
from enginebay.constraints.schema_limits import check_schema, check_schema_set
from enginebay.contract import Guided
from enginebay.contract.sampling_parameters import GUIDED_PARAMETERS
from enginebay.errors import InvalidRequest, RequestError
from enginebay.server.api.openai.sampling_params import NO_CONSTRAINT, OutputConstraint, build_guided_json
from enginebay.server.sessions.model_session import ModelSession
from enginebay.text.chat.chat_messages import normalize_messages
from enginebay.text.output_events import OutputEventParser
from enginebay.text.tool_calls import (
    CallOrAnswerParser,
    build_call_or_answer_schema,
    build_calls_schema,
    create_guided_parser,
    parse_tool_choice,
)
from enginebay.util.limit_errors import make_limit_error


@dataclass(frozen=True, slots=True)
class ToolUse:
    template_tools: Sequence[Mapping[str, Any]] | None = None  # for the chat template
    guided: Guided | None = None  # constraint on the output
    guided_param: str = ""  # the field that sets it
    make_parser: Callable[[], OutputEventParser | None] = lambda: None
    notes: Mapping[str, str] = field(default_factory=dict)  # for x-enginebay-translated
    preface: str = ""  # describes the tools if the template cannot
    extras: Mapping[str, Any] = field(default_factory=dict)  # for engines that handle tools themselves

    def rename_param(self, error: RequestError) -> RequestError:
        """Name the request's field in an engine's error about the constraint."""
        if error.param not in GUIDED_PARAMETERS or not self.guided_param:
            return error
        return type(error)(error.message, error.hint, param=self.guided_param)

    def with_preface(self, messages: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Return the messages with the preface in a system message."""
        if not self.preface:
            return tuple(messages)
        first = normalize_messages(messages, keep_parts=False)[
            0
        ]  # validates all, while their indexes match the request
        if first["role"] in ("system", "developer"):
            return ({**first, "content": f"{first['content']}\n\n{self.preface}"}, *messages[1:])
        return ({"role": "system", "content": self.preface}, *messages)


def plan_tools(
    tools: Sequence[Mapping[str, Any]] | None,
    choice: Any,
    parallel: bool | None,
    limits: ServerLimits,
    session: ModelSession,
    constraint: OutputConstraint = NO_CONSTRAINT,
) -> ToolUse:
    """Check tools and tool_choice, and plan them together with the constraint on the output."""
    if tools is not None and len(tools) > limits.tools:
        raise make_limit_error(f"tools has {len(tools)} entries", limits, "tools", "tools")
    without_tools = ToolUse(guided=constraint.guided, guided_param=constraint.param)
    if tools is None and choice is None:
        return without_tools
    plan = parse_tool_choice(tools, choice)
    if not tools:
        return without_tools
    check_schema_set([tool["function"].get("parameters") for tool in tools], limits, "tools")
    compiled = plan.mode not in ("auto", "none") or constraint.guided is not None
    for number, tool in enumerate(tools):
        parameters = tool["function"].get("parameters")
        if parameters is not None:
            check_schema(parameters, limits, f"tools[{number}].function.parameters", compiled)
    if session.client.spec.renders:
        fields = {"tools": list(tools), "tool_choice": choice, "parallel_tool_calls": parallel}
        extras = {name: value for name, value in fields.items() if value is not None}
        return replace(
            without_tools,
            template_tools=tools,
            make_parser=lambda: session.tool_format.create_parser(tools),
            extras=extras,
        )
    if plan.mode == "none":
        return without_tools
    # The model sees only these. The output is constrained to them only if a call is required.
    usable = [tool for tool in tools if plan.allowed is None or tool["function"]["name"] in plan.allowed]
    preface = "" if session.client.prompt_encoder.supports_tools else _build_preface(usable)
    notes = {"tools": "sent in a system message: the chat template does not support tools"} if preface else {}
    template_tools = None if preface else usable
    if plan.mode == "auto" and constraint.guided is None:
        notes |= _list_unenforced(usable, parallel, plan.allowed is not None)
        return ToolUse(
            template_tools, make_parser=lambda: session.tool_format.create_parser(usable), notes=notes, preface=preface
        )
    if plan.mode == "auto":
        schema = constraint.schema
        if schema is None:
            ignored = {"tools": f"none can be called: {constraint.param} constrains the output to text"}
            return replace(without_tools, notes=ignored)
        either = build_guided_json(build_call_or_answer_schema(usable, schema), constraint.param, limits)
        return ToolUse(template_tools, either, constraint.param, lambda: CallOrAnswerParser(usable), notes, preface)
    if constraint.guided is not None:
        if not constraint.text_only:
            raise InvalidRequest(
                "a required tool call and a constraint on the output are mutually exclusive",
                "use tool_choice auto, or remove the constraint",
                param="tool_choice",
            )
        notes[constraint.param] = "applies to text only, and a tool call is required"
    schema = build_calls_schema(usable, plan.name, parallel is not False)
    guided = build_guided_json(schema, "tools", limits)
    return ToolUse(template_tools, guided, "tools", lambda: create_guided_parser(usable, plan.name), notes, preface)


def _build_preface(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    call = '{"name": "the function\'s name", "arguments": {"an argument": "its value"}}'
    return f"You can call these functions:\n{listed}\nTo call one, answer with nothing but JSON such as {call}."


def _list_unenforced(tools: Sequence[Mapping[str, Any]], parallel: bool | None, only_some: bool) -> dict[str, str]:
    """Return notes on the fields that are not enforced when the model decides whether to call."""
    notes: dict[str, str] = {}
    if only_some:
        notes["tool_choice"] = "the model sees only the allowed tools; enforced only with mode required"
    if parallel is False:
        notes["parallel_tool_calls"] = "enforced only with tool_choice required"
    if any(tool["function"].get("strict") for tool in tools):
        notes["tools.strict"] = "enforced only with tool_choice required or a named tool"
    return notes
