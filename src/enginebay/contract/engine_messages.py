"""Inputs and outputs of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from enginebay.contract.sampling_parameters import Sampling
from enginebay.errors import InvalidRequest


class FinishReason(StrEnum):
    STOP = "stop"  # end of sequence, a stop string or a stop token
    LENGTH = "length"  # max_tokens or the context is used up
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request with exactly one of the three prompts.

    Engines get `token_ids`, except those whose spec sets `renders`: they get the original prompt, and the other fields
    of a chat in `extras` (tools, tool_choice, parallel_tool_calls).
    """

    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    lora: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    energy: bool = False  # report its energy in `Done`; engines may ignore it
    # Output ids that the client has: the engine continues after them. Only for engines whose spec sets `continues`.
    generated: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        prompts = [name for name in ("token_ids", "text", "messages") if getattr(self, name) is not None]
        if len(prompts) != 1:
            raise InvalidRequest(
                f"a request takes exactly one prompt, got {', '.join(prompts) or 'none'}",
                "set one of token_ids, text, messages",
                param="prompt",
            )
        if not getattr(self, prompts[0]):
            raise InvalidRequest("the prompt is empty", "send at least one token", param="prompt")
        if self.generated and (self.token_ids is None or self.sampling.n != 1):
            raise InvalidRequest("only a single output of token ids can be continued", param="generated")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of one generated token and of the best alternatives at its position."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class Delta:
    """One event of a stream, usually one token. The text is empty while a character or stop string is incomplete."""

    text: str
    token_ids: Sequence[int] = ()
    choice: int = 0
    logprobs: Sequence[TokenLogprobs] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or token id that matched


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts from the engine."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV cache was reused


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds on the worker's clock since the request arrived there."""

    ttft_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Energy:
    """The measured energy of a request; never an estimate. Without joules, `absent` says why."""

    joules: float | None = None  # above idle
    idle_w: float | None = None  # engine loaded, no requests; not included in the joules
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a request, after the last delta of every choice."""

    usage: Usage
    timing: Timing
    energy: Energy | None = None  # for requests that ask for it


@dataclass(frozen=True, slots=True)
class Stats:
    """An engine's statistics. None: unknown; never a guess."""

    steps: int | None = None  # forward passes since load; monotonic
    kv_used_ratio: float | None = None  # share of the KV cache in use by running requests, 0 to 1
    waiting: int | None = None  # requests held and not yet computed


@dataclass(frozen=True, slots=True)
class Embedding:
    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """Everything a worker needs to load one model on one engine; sent to it as JSON."""

    kind: str
    engine: str  # "package.module:Class"
    model: str  # its public name
    path: str  # the GGUF file or the model directory
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted names, as in the engine's spec
    loras: Mapping[str, str] = field(default_factory=dict)  # adapter name -> path
    task: str = "generate"  # or "embed"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a loaded engine."""

    kind: str
    version: str
    model: str
    context_length: int
    max_batch: int  # requests the engine runs concurrently
    memory_bytes: int  # resident memory of the worker, including device memory if readable
    versions: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)  # settings as configured
    effective: Mapping[str, Any] = field(default_factory=dict)  # settings in effect
    warnings: Sequence[str] = ()  # retired or inapplicable settings, one line each
    refused: Mapping[str, str] = field(default_factory=dict)  # request parameter -> why this model or version cannot
    load_s: float = 0.0
    sleep_levels: Sequence[int] = ()  # of `SupportsSleep`, with this platform and these settings
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of import, load, compile, capture, if known
    max_step_tokens: int | None = None  # in one step, prompt tokens included; the energy meter uses it
    reservable_tokens: int | None = (
        None  # KV cache in which each request reserves prompt and output; None: no such limit
    )
