"""What goes into an engine and what comes out of it."""

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
    """One request. Exactly one of the three prompts.

    Engines only ever see `token_ids`, except those whose spec says `renders`: they get what came, and in `extras` what
    else belongs to a chat (tools, tool_choice, parallel_tool_calls).
    """

    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    lora: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    energy: bool = False  # tell with `Done` what it used; for the worker, engines need not look

    def __post_init__(self) -> None:
        given = [name for name in ("token_ids", "text", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequest(
                f"a request takes exactly one prompt, got {', '.join(given) or 'none'}",
                "give one of token_ids, text, messages",
                param="prompt",
            )
        if not getattr(self, given[0]):
            raise InvalidRequest("the prompt is empty", "give at least one token", param="prompt")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of one generated token, and of the best alternatives at that place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class Delta:
    """One event of a stream: usually one token. Text may be empty while a character or a stop string is incomplete."""

    text: str
    token_ids: Sequence[int] = ()
    choice: int = 0
    logprobs: Sequence[TokenLogprobs] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or token id that matched


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts by the engine, never by splitting text."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV cache was reused


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds on the worker's clock, from the moment the request reached the worker."""

    ttft_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Energy:
    """What a request used of a meter's joules. Without joules `absent` says why: there is never an estimate."""

    joules: float | None = None  # above idle
    idle_w: float | None = None  # with the engine loaded and nothing running; not in the joules
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The last word on a request, after the last delta of every choice."""

    usage: Usage
    timing: Timing
    energy: Energy | None = None  # of requests that ask for it


@dataclass(frozen=True, slots=True)
class Stats:
    """What an engine knows of its own work. None: it cannot tell, which is better than a guess."""

    steps: int | None = None  # forward passes since it was loaded; never falls
    kv_used_ratio: float | None = None  # share of the KV cache that running requests take, 0 to 1
    waiting: int | None = None  # requests held and not yet computed


@dataclass(frozen=True, slots=True)
class Embedding:
    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """Everything a worker needs to load one model on one engine; crosses the process border as JSON."""

    kind: str
    engine: str  # "package.module:Class"
    model: str  # the name users know it by
    path: str  # the GGUF file or the model directory
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted names, as in the engine's spec
    loras: Mapping[str, str] = field(default_factory=dict)  # adapter name -> path
    task: str = "generate"  # or "embed"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a loaded engine."""

    kind: str
    version: str
    model: str
    context_length: int
    max_batch: int  # requests the engine computes together, as it promises
    memory_bytes: int  # resident memory of the worker, device memory included where it can be read
    versions: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)  # settings as given
    effective: Mapping[str, Any] = field(default_factory=dict)  # settings as they run
    warnings: Sequence[str] = ()  # retired or inapplicable settings, one line each
    refused: Mapping[str, str] = field(
        default_factory=dict
    )  # request parameter -> why not, with this model and version
    load_s: float = 0.0
    sleep_levels: Sequence[int] = ()  # of `Sleeps`, as this platform and these settings allow
    phases: Mapping[str, float] = field(
        default_factory=dict
    )  # seconds of import, load, compile, capture; as far as known
