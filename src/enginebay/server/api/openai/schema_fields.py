"""Fields that the generating endpoints share. Ranges are the contract's own, so that schema and checks cannot differ."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from enginebay.contract.sampling_parameters import RANGES


def _float_range(name: str, help_: str) -> Meta:
    low, high = RANGES[name]
    return Meta(ge=low, le=high, description=help_)


def _int_range(name: str, help_: str, high: int | None = None) -> Meta:
    low, most = RANGES[name]
    return Meta(ge=int(low), le=int(most if high is None else high), description=help_)


Temperature = Annotated[float, _float_range("temperature", "0 is greedy")]
TopP = Annotated[float, _float_range("top_p", "Nucleus sampling; 1 is off")]
TopK = Annotated[int, _int_range("top_k", "The k likeliest tokens; 0 and -1 are off")]
MinP = Annotated[float, _float_range("min_p", "Relative to the likeliest token; 0 is off")]
RepetitionPenalty = Annotated[float, _float_range("repetition_penalty", "Over prompt and output; 1 is off")]
PresencePenalty = Annotated[float, _float_range("presence_penalty", "Over the output; 0 is off")]
FrequencyPenalty = Annotated[float, _float_range("frequency_penalty", "Over the output; 0 is off")]
NgramSize = Annotated[int, _int_range("no_repeat_ngram_size", "No n-gram of this size twice; 0 is off")]
MinTokens = Annotated[int, _int_range("min_tokens", "No end before this many tokens")]
MaxTokens = Annotated[int, _int_range("max_tokens", "No more than this many tokens")]
Seed = Annotated[int, _int_range("seed", "Same seed, same answer, as far as the engine can")]
Count = Annotated[int, _int_range("n", "Answers to give")]
BestOf = Annotated[int, _int_range("best_of", "Answers to choose the best n from")]
NumBeams = Annotated[int, _int_range("num_beams", "Above 1: beam search")]
LengthPenalty = Annotated[float, _float_range("length_penalty", "Of beam search")]
TopLogprobs = Annotated[int, _int_range("logprobs", "Alternatives per token")]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LogitBias = Annotated[float, Meta(ge=-100, le=100)]
NonEmptyText = Annotated[str, Meta(min_length=1)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_timing: bool | None = None  # ours
    include_energy: bool | None = None  # ours
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """A constraint on the output: one of these."""

    json: dict[str, Any] | str | None = None
    regex: NonEmptyText | None = None
    grammar: NonEmptyText | None = None
    choice: list[NonEmptyText] | None = None


class GenerationFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """What shapes the answer, on every endpoint that generates."""

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    no_repeat_ngram_size: NgramSize | None = None
    do_sample: bool | None = None
    min_tokens: MinTokens | None = None
    stop: NonEmptyText | list[NonEmptyText] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    seed: Seed | None = None
    n: Count | None = None
    best_of: BestOf | None = None
    num_beams: NumBeams | None = None
    length_penalty: LengthPenalty | None = None
    early_stopping: bool | None = None
    logit_bias: dict[str, LogitBias] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: NonEmptyText | None = None
    guided_grammar: NonEmptyText | None = None
    guided_choice: list[NonEmptyText] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=1, description="Keep only the last k prompt tokens")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_energy: bool | None = None  # ours
    # For whoever keeps the books; they shape nothing.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None

    @property
    def wants_energy(self) -> bool:
        return bool(self.include_energy or (self.stream_options and self.stream_options.include_energy))

    @property
    def wants_timing(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_timing)

    @property
    def wants_usage(self) -> bool:
        """Of a stream. Times and joules are told with the counts."""
        asked = bool(self.stream_options and self.stream_options.include_usage)
        return asked or self.wants_timing or self.wants_energy
