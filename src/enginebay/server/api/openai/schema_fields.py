"""Fields that the generating endpoints share. Ranges come from the contract, so that schema and checks agree."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from enginebay.contract.sampling_parameters import RANGES


def _float_range(name: str, help_: str) -> Meta:
    low, high = RANGES[name]
    return Meta(ge=low, le=high, description=help_)


def _int_range(name: str, help_: str, high: int | None = None) -> Meta:
    low, highest = RANGES[name]
    return Meta(ge=int(low), le=int(highest if high is None else high), description=help_)


Temperature = Annotated[float, _float_range("temperature", "0 is greedy")]
TopP = Annotated[float, _float_range("top_p", "Nucleus sampling; 1 is off")]
TopK = Annotated[int, _int_range("top_k", "Sample from the k most likely tokens; 0 and -1 are off")]
MinP = Annotated[float, _float_range("min_p", "Minimum probability relative to the most likely token; 0 is off")]
RepetitionPenalty = Annotated[float, _float_range("repetition_penalty", "Applies to prompt and output; 1 is off")]
PresencePenalty = Annotated[float, _float_range("presence_penalty", "Applies to the output; 0 is off")]
FrequencyPenalty = Annotated[float, _float_range("frequency_penalty", "Applies to the output; 0 is off")]
NgramSize = Annotated[int, _int_range("no_repeat_ngram_size", "Never repeat an n-gram of this size; 0 is off")]
MinTokens = Annotated[int, _int_range("min_tokens", "Generate at least this many tokens")]
MaxReasoningTokens = Annotated[
    int, Meta(ge=0, le=2**31 - 1, description="End the thought after this many tokens; 0 is no thought")
]
# -1: up to the end of the context. Longer than the context is cut to it.
MaxTokens = Annotated[int, Meta(ge=-1, le=2**63 - 1, description="Generate at most this many tokens")]
Seed = Annotated[int, _int_range("seed", "The same seed gives the same output, as far as the engine allows")]
Count = Annotated[int, _int_range("n", "Choices to return")]
BestOf = Annotated[int, _int_range("best_of", "Choices to generate; the best n are returned")]
NumBeams = Annotated[int, _int_range("num_beams", "Beam search if above 1")]
LengthPenalty = Annotated[float, _float_range("length_penalty", "For beam search")]
TopLogprobs = Annotated[int, _int_range("logprobs", "Alternatives per token")]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LogitBias = Annotated[float, Meta(ge=-100, le=100)]
NonEmptyText = Annotated[str, Meta(min_length=1)]
AllowSpecialTokens = Annotated[
    bool,
    Meta(
        description="Text that spells a control token, such as <|im_end|>, becomes that token. "
        "Default: false in messages, true in a prompt"
    ),
]


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_timing: bool | None = None  # an extension
    include_energy: bool | None = None  # an extension
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """A constraint on the output: one of the fields."""

    json: dict[str, Any] | str | None = None
    regex: NonEmptyText | None = None
    grammar: NonEmptyText | None = None
    choice: list[NonEmptyText] | None = None


class SamplingFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of every endpoint that generates, under one name and with one meaning."""

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
    best_of: BestOf | None = None
    num_beams: NumBeams | None = None
    length_penalty: LengthPenalty | None = None
    early_stopping: bool | None = None
    logit_bias: dict[str, LogitBias] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=1, description="Keep only the last k prompt tokens")] | None = None
    allow_special_tokens: AllowSpecialTokens | None = None
    stream: bool | None = None
    include_energy: bool | None = None  # an extension
    # Requests that share it go to the same replica of the model.
    prompt_cache_key: str | None = None
    # Other names of fields, from other servers.
    repeat_penalty: RepetitionPenalty | None = None
    # Ignored or refused: see `fields.field_table`.
    user: str | None = None
    safety_identifier: str | None = None
    store: Any = None
    service_tier: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    cache_prompt: Any = None
    keep_alive: Any = None
    priority: Any = None
    skip_special_tokens: bool | None = None


class GenerationFields(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """The fields of chat and text completions."""

    n: Count | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: NonEmptyText | None = None
    guided_grammar: NonEmptyText | None = None
    guided_choice: list[NonEmptyText] | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None  # an extension of vLLM's
    # Other names of fields, from other servers.
    n_predict: MaxTokens | None = None
    grammar: NonEmptyText | None = None
    regex: NonEmptyText | None = None
    json_schema: dict[str, Any] | str | None = None
    metadata: Any = None

    @property
    def wants_energy(self) -> bool:
        return bool(self.include_energy or (self.stream_options and self.stream_options.include_energy))

    @property
    def wants_timing(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_timing)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with usage, which also carries timing and energy."""
        include_usage = bool(self.stream_options and self.stream_options.include_usage)
        return include_usage or self.wants_timing or self.wants_energy
