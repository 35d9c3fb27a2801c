"""Workload specifications, as configured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from enginebay.errors import ConfigError
from enginebay.lab.workload.field_checks import check_whole_number
from enginebay.lab.workload.length_distributions import LengthDistribution, LengthSpec

Message = Mapping[str, Any]
ChatRender = Callable[[Sequence[Message]], Sequence[int]]  # from a chat to the model's token ids


class TextTokenizer(Protocol):
    """The tokenizer interface of a workload; `enginebay.text.tokenization.tokenizer.Tokenizer` implements it."""

    vocabulary_size: int
    special_ids: frozenset[int]
    added_ids: frozenset[int]

    def encode(self, text: str, add_special: bool = True) -> list[int]: ...

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """Random words with exact token counts. `input_tokens` is the whole prompt, shared prefix included."""

    input_tokens: LengthSpec
    output_tokens: LengthSpec | None = None  # None: the model decides
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1  # number of different prefixes
    requests: int | None = None
    send: str = "ids"  # or text, or chat
    seed: int = 0

    kind: ClassVar[str] = "synthetic"

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            length = getattr(self, name)
            if length is not None and not isinstance(length, LengthDistribution):
                check_whole_number(f"workload.{name}", length)
        shortest = self.input_tokens.minimum if isinstance(self.input_tokens, LengthDistribution) else self.input_tokens
        if self.shared_prefix_tokens >= shortest:
            raise ConfigError(
                f"a shared prefix of {self.shared_prefix_tokens} tokens fills prompts of {shortest}",
                "input_tokens includes the prefix: raise it, or its min",
                param="workload.shared_prefix_tokens",
            )
        if self.prefix_groups > 1 and not self.shared_prefix_tokens:
            raise ConfigError(
                "prefix_groups needs a shared prefix", "add shared_prefix_tokens", param="workload.prefix_groups"
            )


@dataclass(frozen=True, slots=True)
class JsonlSpec:
    """A file with one JSON object per line: `prompt` (text or token ids) or `messages`."""

    path: Path
    max_input_tokens: int | None = None  # longer prompts are truncated
    output_tokens: LengthSpec | None = None  # for lines without their own
    requests: int | None = None
    shuffle: bool = False
    repeat: bool = False  # start over if the file is too short
    seed: int = 0

    kind: ClassVar[str] = "jsonl"


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """Arrival times and lengths of real requests, without their text. Prompts are generated to fit."""

    path: Path
    format: str  # azure or mooncake
    requests: int | None = None
    start_s: float = 0.0  # offset into the trace
    too_long: str = "refuse"  # refuse, drop or cut requests that exceed the model's context
    block_tokens: int = 512  # mooncake: tokens per hash id
    send: str = "ids"
    seed: int = 0

    kind: ClassVar[str] = "trace"


WorkloadSpec = SyntheticSpec | JsonlSpec | TraceSpec
SEND_FORMS = ("ids", "text", "chat")
TRACE_FORMATS = ("azure", "mooncake")
TOO_LONG_POLICIES = ("refuse", "drop", "cut")


def missing_tokenizer_error() -> ConfigError:
    """Return the error for a synthetic workload or a trace without a tokenizer."""
    return ConfigError(
        "prompts of exact lengths need the model's tokenizer",
        "set --tokenizer MODEL_OR_PATH (a stored model, or the model's files), or use a workload of kind jsonl",
    )
