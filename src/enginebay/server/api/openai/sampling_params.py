"""Translates request fields to the contract's `Sampling`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from enginebay.config.sections.server_section import ServerLimits
from enginebay.constraints.grammar_limits import check_grammar
from enginebay.constraints.regex_limits import check_regex
from enginebay.constraints.schema_limits import check_schema
from enginebay.contract import Guided, Sampling
from enginebay.contract.sampling_parameters import RANGES
from enginebay.errors import InvalidRequest, Unsupported
from enginebay.server.api.fields.unknown_fields import note_unknown_keys
from enginebay.server.api.openai.schema_fields import GenerationFields
from enginebay.server.requests.run_generation import WHOLE_CONTEXT
from enginebay.util.limit_errors import make_limit_error

_FORMAT_KEYS = ("type", "json_schema", "schema")
_JSON_SCHEMA_KEYS = ("name", "description", "schema", "strict")
# Fields with the same name and meaning in the contract.
_SHARED_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "no_repeat_ngram_size", "do_sample", "min_tokens", "ignore_eos", "seed", "n", "best_of", "num_beams",
    "length_penalty", "early_stopping",
)  # fmt: skip
_get_shared = attrgetter(*_SHARED_FIELDS)


def read_sampling(
    body: GenerationFields,
    defaults: Mapping[str, Any],
    limits: ServerLimits,
    *,
    max_tokens: int | None,
    max_tokens_param: str = "max_tokens",
    logprobs: int | None = None,
    guided: Guided | None = None,
    vocabulary_size: int | None = None,
) -> Sampling:
    """Merge the request over the configured defaults. Raise `InvalidRequest` that names the field.

    `guided`: the constraint from `read_constraint` and the tools.
    """
    values: dict[str, Any] = dict(defaults)
    for name, value in zip(_SHARED_FIELDS, _get_shared(body), strict=True):
        if value is not None:
            values[name] = value
    if max_tokens == WHOLE_CONTEXT:
        values["max_tokens"] = limits.max_tokens
    elif max_tokens is not None:
        if max_tokens < 1:
            raise InvalidRequest(
                f"{max_tokens_param} is {max_tokens}",
                "use at least 1, or -1 for the whole context",
                param=max_tokens_param,
            )
        if limits.max_tokens is not None and max_tokens > limits.max_tokens:
            raise make_limit_error(f"{max_tokens_param} is {max_tokens}", limits, "max_tokens", max_tokens_param)
        values["max_tokens"] = min(max_tokens, int(RANGES["max_tokens"][1]))
    elif limits.max_tokens is not None:
        values["max_tokens"] = min(values.get("max_tokens") or limits.max_tokens, limits.max_tokens)
    if logprobs is not None:
        values["logprobs"] = logprobs
    if body.stop is not None:
        values["stop"] = _check_stop(body.stop, limits)
    if body.stop_token_ids is not None:
        if len(body.stop_token_ids) > limits.stop:
            size = f"stop_token_ids has {len(body.stop_token_ids)} token ids"
            raise make_limit_error(size, limits, "stop", "stop_token_ids")
        values["stop_token_ids"] = tuple(body.stop_token_ids)
    if body.logit_bias is not None:
        values["logit_bias"] = _parse_logit_bias(body.logit_bias, limits, vocabulary_size)
    if guided is not None:
        values["guided"] = guided
    for name in ("n", "best_of"):
        if values.get(name, 1) > limits.n:
            raise make_limit_error(f"{name} is {values[name]}", limits, "n", name)
    return Sampling(**values)


def _check_stop(stop: str | list[str], limits: ServerLimits) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(texts) > limits.stop:
        raise make_limit_error(f"stop has {len(texts)} strings", limits, "stop", "stop")
    longest = max(map(len, texts), default=0)
    if longest > limits.stop_chars:
        raise make_limit_error(f"a stop string has {longest} characters", limits, "stop_chars", "stop")
    return texts


def _parse_logit_bias(bias: Mapping[str, float], limits: ServerLimits, vocabulary_size: int | None) -> dict[int, float]:
    if len(bias) > limits.logit_bias:
        raise make_limit_error(f"logit_bias has {len(bias)} entries", limits, "logit_bias", "logit_bias")
    biases: dict[int, float] = {}
    for key, value in bias.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise InvalidRequest(f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
        token_id = int(key)
        if token_id >= (vocabulary_size or 2**31):
            detail = f"; the model has {vocabulary_size} tokens" if vocabulary_size else ""
            raise InvalidRequest(f"logit_bias: unknown token {token_id}{detail}", param="logit_bias")
        biases[token_id] = value
    return biases


# Constraints on the output


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """The constraint that the request's fields put on the output."""

    guided: Guided | None = None
    param: str = ""  # the field that sets it
    text_only: bool = False  # applies to text, not to tool calls

    @property
    def schema(self) -> Any:
        """The JSON schema, or None for another kind of constraint."""
        return None if self.guided is None or self.guided.json is None else json.loads(self.guided.json)


NO_CONSTRAINT = OutputConstraint()


def read_constraint(body: GenerationFields, limits: ServerLimits) -> OutputConstraint:
    """Return the constraint of `response_format`, the guided_* fields or `structured_outputs`: at most one."""
    constraints: dict[str, tuple[str, Any]] = {}
    if body.response_format is not None:
        schema = parse_response_format(body.response_format)
        if schema is not None:
            constraints["response_format"] = ("json", schema)
    for name in ("json", "regex", "grammar", "choice"):
        value = getattr(body, f"guided_{name}")
        if value is not None:
            constraints[f"guided_{name}"] = (name, value)
        inner = getattr(body.structured_outputs, name) if body.structured_outputs is not None else None
        if inner is not None:
            constraints[f"structured_outputs.{name}"] = (name, inner)
    if not constraints:
        return NO_CONSTRAINT
    if len(constraints) > 1:
        names = list(constraints)
        raise InvalidRequest(f"{names[0]} and {names[1]} are mutually exclusive", "remove one of them", param=names[1])
    [(param, (name, value))] = constraints.items()
    return OutputConstraint(_build_guided(name, value, param, limits), param, param == "response_format")


def _build_guided(name: str, value: Any, param: str, limits: ServerLimits) -> Guided:
    if name == "json":
        return build_guided_json(value, param, limits)
    _check_kind(name, limits, param)
    if name == "regex":
        check_regex(value, limits, param)
        return Guided(regex=value)
    if name == "grammar":
        check_grammar(value, limits, param)
        return Guided(grammar=value)
    _check_choices(value, limits, param)
    return Guided(choice=tuple(value))


def _check_kind(kind: str, limits: ServerLimits, param: str) -> None:
    """Raise `Unsupported` if this server takes no constraints of this kind."""
    if kind not in limits.guided:
        allowed = f"allowed: {', '.join(limits.guided) or 'none'} (server.limits.guided)"
        raise Unsupported(f"{param} is disabled on this server", allowed, param=param)


def _check_choices(choices: list[str], limits: ServerLimits, param: str) -> None:
    if len(choices) > limits.choices:
        raise make_limit_error(f"{param} has {len(choices)} choices", limits, "choices", param)
    size = sum(len(choice.encode()) for choice in choices)
    if size > limits.choice_bytes:
        raise make_limit_error(f"{param} has {size} bytes", limits, "choice_bytes", param)
    if any("\0" in choice for choice in choices):
        raise InvalidRequest(f"{param} has a NUL character", "remove it", param=param)


def build_guided_json(schema: Any, param: str, limits: ServerLimits) -> Guided:
    """Check a JSON schema against the limits and return it as a constraint."""
    _check_kind("json", limits, param)
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)  # as strict as the body itself: no NaN, no lone surrogates
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise InvalidRequest(f"{param} is not JSON", param=param) from None
    check_schema(schema, limits, param)
    return Guided(json=json.dumps(schema))


def parse_response_format(response_format: Mapping[str, Any]) -> Any:
    """Return the schema of a `response_format`, or None for plain text."""
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")  # as in llama.cpp
        return schema if isinstance(schema, Mapping) else {"type": "object"}
    if kind != "json_schema":
        raise InvalidRequest(
            f"response_format.type is {str(kind)[:40]!r}",
            "use text, json_object or json_schema",
            param="response_format",
        )
    json_schema = response_format.get("json_schema")
    if not isinstance(json_schema, Mapping) or not isinstance(json_schema.get("schema"), Mapping):
        raise InvalidRequest(
            "response_format.json_schema has no schema",
            'use {"name": "...", "schema": {...}, "strict": true}',
            param="response_format",
        )
    for key, kind, name in (("name", str, "a string"), ("description", str, "a string"), ("strict", bool, "a boolean")):
        if not isinstance(json_schema.get(key), (kind, type(None))):
            raise InvalidRequest(f"response_format.json_schema.{key} is not {name}", param="response_format")
    return json_schema["schema"]


def note_unknown_format_keys(response_format: Mapping[str, Any] | None, ignored: dict[str, str] | None) -> None:
    """Note keys of a `response_format` that are not read. Raise `InvalidRequest` for a misspelling; for any without `ignored`."""
    if response_format is None:
        return
    note_unknown_keys(response_format, _FORMAT_KEYS, "response_format", ignored)
    json_schema = response_format.get("json_schema")
    if isinstance(json_schema, Mapping):
        note_unknown_keys(json_schema, _JSON_SCHEMA_KEYS, "response_format.json_schema", ignored)


def check_stream_options(body: GenerationFields) -> None:
    if body.stream_options is None:
        return
    if not body.stream:
        raise InvalidRequest("stream_options requires stream", "set stream to true", param="stream_options")
