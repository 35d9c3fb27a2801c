"""Translates the thinking switches of a request to those of the model's chat template.

`reasoning_effort`, `enable_thinking` and `thinking` mean the same to most clients, and each template has its own variable. A switch
that the template lacks is named in `x-enginebay-ignored`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from enginebay.errors import EnginebayError, InvalidRequest
from enginebay.server.api.openai.schemas import ChatBody
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.sessions.model_session import ModelSession
from enginebay.text.chat.chat_renderer import ChatRenderer
from enginebay.text.chat.template_sandbox import TemplateNames

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # in order
THINKING_KEYS = ("type", "budget_tokens")  # of the object `thinking`
_USUAL_EFFORTS = ("low", "medium", "high")
_OFF = ("none", "minimal")  # for a template that only knows on and off
_TOGGLES = ("enable_thinking", "thinking")  # of templates
_NO_SWITCH = "the model's chat template has no such switch"
_REMOTE = "a remote server applies the chat template"


@dataclass(frozen=True, slots=True)
class ThinkingFields:
    """The thinking switches of a request, in any dialect."""

    effort: str | None = None
    enable_thinking: bool | None = None
    thinking: bool | Mapping[str, Any] | None = None
    max_tokens: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    effort_param: str = "reasoning_effort"  # the dialect's name

    @classmethod
    def read_chat(cls, body: ChatBody) -> ThinkingFields:
        return cls(
            body.reasoning_effort, body.enable_thinking, body.thinking, body.max_reasoning_tokens,
            body.chat_template_kwargs or {},
        )  # fmt: skip


@dataclass(slots=True)
class ReasoningSwitches:
    template_options: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)  # for an engine that renders the chat itself
    max_tokens: int | None = None  # of the thought


NO_SWITCHES = ReasoningSwitches()


def translate_switches(
    request_context: RequestContext, session: ModelSession, fields: ThinkingFields
) -> ReasoningSwitches:
    """Return what the switches of a request set, and note what was translated or ignored."""
    toggles, budget = _read_toggles(fields, request_context.ignored)
    if not toggles and budget is None and fields.effort is None:
        return ReasoningSwitches()
    switches = ReasoningSwitches(max_tokens=budget)
    if budget is not None and (session.reasoning_format is None or session.client.spec.renders):
        param = "max_reasoning_tokens" if fields.max_tokens is not None else "thinking.budget_tokens"
        reason = _REMOTE if session.client.spec.renders else "the model has no reasoning format"
        request_context.ignored[param] = reason
        switches.max_tokens = None
    if session.client.spec.renders:
        if fields.effort is not None:
            switches.extras["reasoning_effort"] = fields.effort
        request_context.ignored |= dict.fromkeys(toggles, f"{_REMOTE}: use reasoning_effort or chat_template_kwargs")
        return switches
    encoder = session.client.prompt_encoder
    translator = _Translator(request_context, switches, encoder.renderer, encoder.chat_template, fields)
    translator.translate(toggles, fields.effort)
    return switches


def _read_toggles(fields: ThinkingFields, ignored: dict[str, str]) -> tuple[dict[str, bool], int | None]:
    """Return the fields that turn thinking on or off, and the budget of the thought. Note those that another one overrides."""
    toggles: dict[str, bool] = {}
    budget = fields.max_tokens
    if fields.enable_thinking is not None:
        toggles["enable_thinking"] = fields.enable_thinking
    thinking = fields.thinking
    if isinstance(thinking, Mapping):
        kind, tokens = thinking.get("type"), thinking.get("budget_tokens")
        if kind not in ("enabled", "disabled", "adaptive", "auto"):
            raise InvalidRequest(
                "thinking.type is unknown", "use enabled, adaptive, auto or disabled", param="thinking"
            )
        if not isinstance(tokens, (int, type(None))) or isinstance(tokens, bool) or (tokens or 0) < 0:
            raise InvalidRequest("thinking.budget_tokens is not a number of tokens", param="thinking")
        if budget is None:
            budget = tokens
        elif tokens is not None:
            ignored["thinking.budget_tokens"] = "max_reasoning_tokens decides"
        thinking = kind != "disabled"
    if thinking is not None and toggles:
        ignored["thinking"] = "enable_thinking decides"
    elif thinking is not None:
        toggles["thinking"] = thinking
    return toggles, budget


@dataclass(slots=True)
class _Translator:
    request_context: RequestContext
    switches: ReasoningSwitches
    renderer: ChatRenderer | None
    template: str | None
    fields: ThinkingFields

    def translate(self, toggles: Mapping[str, bool], effort: str | None) -> None:
        variables = TemplateNames.read(self.template).variables if self.template else frozenset()
        given, effort_param = self.fields.template_kwargs, self.fields.effort_param
        toggle = next((name for name in _TOGGLES if name in variables), "")
        has_effort = "reasoning_effort" in variables
        for name, is_on in toggles.items():
            if toggle:
                self._set(name, toggle, is_on, given)
            elif has_effort and not is_on and effort is None:
                self._set(name, "reasoning_effort", self._choose_effort("none"), given)
            else:
                self.request_context.ignored[name] = _NO_SWITCH
        if effort is not None:
            if has_effort:
                self._set(effort_param, "reasoning_effort", self._choose_effort(effort), given)
            elif not toggle:
                self.request_context.ignored[effort_param] = _NO_SWITCH
            if toggle and not toggles:
                is_on = effort != "none" if has_effort else effort not in _OFF
                self._set(effort_param, toggle, is_on, given)
            elif toggle and not has_effort:
                self.request_context.ignored[effort_param] = f"{next(iter(toggles))} decides"
        budget = self.switches.max_tokens
        if budget is not None and "thinking_budget" in variables:
            self._set("max_reasoning_tokens", "thinking_budget", budget, given)

    def _set(self, name: str, variable: str, value: Any, given: Mapping[str, Any]) -> None:
        """Set a variable of the template, unless `chat_template_kwargs` does."""
        if variable in given:
            self.request_context.ignored[name] = f"chat_template_kwargs sets {variable}"
            return
        self.switches.template_options[variable] = value
        shown = str(value).lower() if isinstance(value, bool) else value
        earlier = self.request_context.translated.get(name)
        note = f"{variable} = {shown} in the chat template"
        self.request_context.translated[name] = f"{earlier}, {note}" if earlier else note

    def _choose_effort(self, effort: str) -> str:
        """Return the effort that the template knows and that is nearest to the requested one."""
        assert self.template is not None
        known = TemplateNames.read(self.template).compared & {*EFFORTS, effort}
        if effort in known:
            return effort
        if effort not in EFFORTS:
            raise InvalidRequest(
                f"{self.fields.effort_param} is {effort[:40]!r}",
                f"use one of {', '.join(EFFORTS)}",
                param=self.fields.effort_param,
            )
        at = EFFORTS.index(effort)
        nearest = sorted(
            EFFORTS, key=lambda other: (abs(EFFORTS.index(other) - at), other not in known, EFFORTS.index(other) < at)
        )
        if not known:
            return next(other for other in nearest if other in _USUAL_EFFORTS)
        accepted = (other for other in nearest if _accepts_effort(self.renderer, self.template, other))
        return next(accepted, effort)


@lru_cache(maxsize=64)
def _accepts_effort(renderer: ChatRenderer | None, template: str, effort: str) -> bool:
    """Return whether the template renders with this effort. Some raise for values that they do not know."""
    try:
        if renderer is not None:
            renderer.render([{"role": "user", "content": "hi"}], reasoning_effort=effort)
    except EnginebayError:
        return False
    return True
