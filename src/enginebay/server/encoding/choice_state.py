"""The output of one choice so far, and the encoders of usage, energy and timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from enginebay.contract import TokenLogprobs
from enginebay.contract.engine_messages import Energy, Usage
from enginebay.text.output_events import (
    OutputEvent,
    OutputEventParser,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from enginebay.text.reasoning import ReasoningParser

NonNegative = Annotated[int, Meta(ge=0)]


def about(description: str) -> Meta:
    """Describe a field of a response in the OpenAPI document."""
    return Meta(description=description)


@dataclass(slots=True)
class ToolCallState:
    """A tool call, possibly unfinished."""

    id: str
    name: str
    fragments: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


@dataclass(slots=True)
class ChoiceState:
    index: int
    parser: OutputEventParser | None = None
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reasoning_texts: list[str] = field(default_factory=list)
    calls: list[ToolCallState] = field(default_factory=list)
    finish_reason: str | None = None
    token_ids: list[int] | None = None  # of its output; in a stream, those that no event has had; None: not asked for

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning_tokens(self) -> int | None:
        """The tokens of its thought. None: the model has no reasoning format."""
        if not isinstance(self.parser, ReasoningParser):
            return None
        return self.parser.reasoning_tokens or self.parser.uncounted_pieces

    @property
    def is_plain_answer(self) -> bool:
        """Whether its thought is over, and the rest is text."""
        return isinstance(self.parser, ReasoningParser) and self.parser.is_plain

    def parse(self, text: str, token_ids: Sequence[int]) -> list[OutputEvent]:
        """Feed the parser."""
        assert self.parser is not None
        if isinstance(self.parser, ReasoningParser):
            return self.parser.feed(text, len(token_ids))
        return self.parser.feed(text)

    def append_event(self, event: OutputEvent, call_id: str) -> None:
        """Append one event of the parser. `call_id`: the id of the call that it may start."""
        if isinstance(event, ToolCallStart):
            self.calls.append(ToolCallState(call_id, event.name))
        elif isinstance(event, ToolCallArguments):
            self.calls[event.index].fragments.append(event.fragment)
        elif isinstance(event, ReasoningText):
            self.reasoning_texts.append(event.text)
        else:
            self.texts.append(event.text)


@dataclass(frozen=True, slots=True)
class ResponseTiming:
    """Seconds in the server's queue, then in the engine's worker."""

    queue_s: float  # from receipt to submission
    ttft_s: float
    total_s: float


class PromptTokensDetailsObject(Struct):
    cached_tokens: NonNegative


class CompletionTokensDetailsObject(Struct):
    reasoning_tokens: NonNegative


class UsageExtensionObject(Struct, kw_only=True):
    queue_s: Annotated[
        float | UnsetType, about("Seconds from the request's receipt until its submission to the engine.")
    ] = UNSET
    ttft_s: Annotated[float | UnsetType, about("Seconds from submission to the first token.")] = UNSET
    total_s: Annotated[float | UnsetType, about("Seconds from submission to the last token.")] = UNSET
    energy_j: Annotated[
        float | UnsetType, about("The request's share of the joules above idle, by its tokens in each step.")
    ] = UNSET
    energy_absent: Annotated[str | UnsetType, about("Why energy_j is missing.")] = UNSET
    energy_idle_w: Annotated[
        float | UnsetType, about("Power with the engine loaded and idle; not included in the joules.")
    ] = UNSET


class UsageObject(Struct):
    """Counted by the engine."""

    prompt_tokens: NonNegative
    completion_tokens: NonNegative
    total_tokens: NonNegative
    prompt_tokens_details: PromptTokensDetailsObject
    completion_tokens_details: Annotated[
        CompletionTokensDetailsObject | UnsetType, about("For a model with a reasoning format.")
    ] = UNSET
    enginebay: Annotated[
        UsageExtensionObject | UnsetType, about("With stream_options.include_timing (streams) or include_energy.")
    ] = UNSET


def encode_usage(usage: Usage, reasoning_tokens: int | None = None) -> UsageObject:
    return UsageObject(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptTokensDetailsObject(usage.cached_tokens),
        UNSET if reasoning_tokens is None else CompletionTokensDetailsObject(reasoning_tokens),
    )


def count_reasoning_tokens(choices: Sequence[ChoiceState], usage: Usage) -> int | None:
    """Return the tokens of all thoughts; None for a model without a reasoning format."""
    counts = [choice.reasoning_tokens for choice in choices]
    known = [count for count in counts if count is not None]
    return min(sum(known), usage.completion_tokens) if known else None


def encode_energy(energy: Energy | None) -> dict[str, Any]:
    """Return fields of a `UsageExtensionObject`."""
    energy = energy or Energy(absent="the worker does not report it")
    fields: dict[str, Any] = {"energy_absent": energy.absent}
    if energy.joules is not None:
        fields = {"energy_j": round(energy.joules, 6)}
    return fields if energy.idle_w is None else {**fields, "energy_idle_w": round(energy.idle_w, 3)}


def encode_timing(timing: ResponseTiming) -> dict[str, float]:
    return {"queue_s": round(timing.queue_s, 6), "ttft_s": round(timing.ttft_s, 6), "total_s": round(timing.total_s, 6)}
