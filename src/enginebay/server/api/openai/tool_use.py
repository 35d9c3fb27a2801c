"""What a request's tools mean for the prompt, for the sampling and for reading the output. Pure."""

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
from enginebay.text.tool_calls import (
    CallOrAnswerParser,
    ToolCallParser,
    build_call_or_answer_schema,
    build_calls_schema,
    create_guided_parser,
    parse_tool_choice,
)
from enginebay.util.limit_errors import make_limit_error


@dataclass(frozen=True, slots=True)
class ToolUse:
    template_tools: Sequence[Mapping[str, Any]] | None = None  # to the chat template
    guided: Guided | None = None  # what the output is held to
    guided_param: str = ""  # the request's field that says so
    make_parser: Callable[[], ToolCallParser | None] = lambda: None
    notes: Mapping[str, str] = field(default_factory=dict)  # what of the request is not carried out to the letter
    preface: str = ""  # tells the model of its tools, where its template does not
    extras: Mapping[str, Any] = field(default_factory=dict)  # for engines that see to tools themselves

    def rename_param(self, error: RequestError) -> RequestError:
        """An engine's refusal of what the output is held to, with the name that the request has for it."""
        if error.param not in GUIDED_PARAMETERS or not self.guided_param:
            return error
        return type(error)(error.message, error.hint, param=self.guided_param)

    def with_preface(self, messages: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """The messages, with the preface in a system message."""
        if not self.preface:
            return tuple(messages)
        first = normalize_messages(messages, keep_parts=False)[0]  # all are, before their numbers change
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
    """Checks tools and choice, and says how they are carried out beside what else the output is held to."""
    if tools is not None and len(tools) > limits.tools:
        raise make_limit_error(f"tools has {len(tools)} entries", limits, "tools", "tools")
    plan = parse_tool_choice(tools, choice)
    free = ToolUse(guided=constraint.guided, guided_param=constraint.param)  # as if there were no tools
    if not tools:
        return free
    check_schema_set([tool["function"].get("parameters") for tool in tools], limits, "tools")
    for number, tool in enumerate(tools):
        parameters = tool["function"].get("parameters")
        if parameters is not None:
            check_schema(parameters, limits, f"tools[{number}].function.parameters")
    if session.client.spec.renders:
        given = {"tools": list(tools), "tool_choice": choice, "parallel_tool_calls": parallel}
        extras = {name: value for name, value in given.items() if value is not None}
        return replace(
            free, template_tools=tools, make_parser=lambda: session.tool_format.create_parser(tools), extras=extras
        )
    if plan.mode == "none":
        return free
    # The model is told of these alone; only where a call is required is the output held to them.
    usable = [tool for tool in tools if plan.allowed is None or tool["function"]["name"] in plan.allowed]
    preface = "" if session.client.prompt_encoder.supports_tools else _build_preface(usable)
    notes = {"tools": "shown in a system message, for the chat template has no place for them"} if preface else {}
    shown = None if preface else usable
    if plan.mode == "auto" and constraint.guided is None:
        notes |= _list_unenforced(usable, parallel, plan.allowed is not None)
        return ToolUse(
            shown, make_parser=lambda: session.tool_format.create_parser(usable), notes=notes, preface=preface
        )
    if plan.mode == "auto":
        schema = constraint.schema
        if schema is None:
            unseen = {"tools": f"none can be called: {constraint.param} holds the output to a text"}
            return replace(free, notes=unseen)
        either = build_guided_json(build_call_or_answer_schema(usable, schema), constraint.param, limits)
        return ToolUse(shown, either, constraint.param, lambda: CallOrAnswerParser(usable), notes, preface)
    if constraint.guided is not None:
        if not constraint.text_only:
            raise InvalidRequest(
                "a tool that must be called and a constraint on the output exclude each other",
                "use tool_choice auto, or leave out the constraint",
                param="tool_choice",
            )
        notes[constraint.param] = "is for text, and a tool must be called"
    schema = build_calls_schema(usable, plan.name, parallel is not False)
    guided = build_guided_json(schema, "tools", limits)
    return ToolUse(shown, guided, "tools", lambda: create_guided_parser(usable, plan.name), notes, preface)


def _build_preface(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    call = '{"name": "the function\'s name", "arguments": {"an argument": "its value"}}'
    return f"You can call these functions:\n{listed}\nTo call one, answer with nothing but JSON such as {call}."


def _list_unenforced(tools: Sequence[Mapping[str, Any]], parallel: bool | None, only_some: bool) -> dict[str, str]:
    """A model that may choose writes its calls freely: wishes about their form are not enforced."""
    notes: dict[str, str] = {}
    if only_some:
        notes["tool_choice"] = "the model is shown the allowed tools alone; enforced with the mode required only"
    if parallel is False:
        notes["parallel_tool_calls"] = "enforced with tool_choice required only"
    if any(tool["function"].get("strict") for tool in tools):
        notes["tools.strict"] = "enforced with tool_choice required or a named tool only"
    return notes
