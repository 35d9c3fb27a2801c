"""Parses sampling parameters from JSON values or keyword arguments; errors name the parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from enginebay.contract.sampling_parameters import Guided, Sampling
from enginebay.errors import InvalidRequest
from enginebay.util.text_format import find_nearest


def parse_sampling(values: Mapping[str, Any], unknown_hint: str = "") -> Sampling:
    """Parse sampling parameters; None counts as unset. Raises `InvalidRequest` that names the parameter.

    `unknown_hint` is for a name that is not even near to a parameter.
    """
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _PARSERS:
            near = find_nearest(name, _PARSERS)
            hint = f"did you mean {near[0]}?" if near else unknown_hint
            raise InvalidRequest(f"unknown sampling parameter {name!r}", hint, param=name)
        if value is None:
            continue
        try:
            parsed[name] = _PARSERS[name](value)
        except (TypeError, ValueError):
            raise InvalidRequest(f"{name} must be {_EXPECTED_TYPES[name]}, got {value!r}", param=name) from None
    return Sampling(**parsed)


def _parse_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise TypeError
    return float(value)


def _parse_integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
        raise TypeError
    return int(value)


def _parse_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _parse_strings(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(string, str) for string in strings):
        raise TypeError
    return strings


def _parse_integers(value: Any) -> tuple[int, ...]:
    return tuple(map(_parse_integer, value))


def _parse_logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {int(token): _parse_number(bias) for token, bias in value.items()}  # JSON keys are strings


def _parse_guided(value: Any) -> Guided:
    if isinstance(value, Guided):
        return value
    if not isinstance(value, Mapping) or not set(value) <= {"json", "regex", "grammar", "choice"}:
        raise TypeError
    fields = dict(value)
    if isinstance(fields.get("json"), Mapping):
        import json

        fields["json"] = json.dumps(fields["json"])
    if fields.get("choice") is not None:
        fields["choice"] = _parse_strings(fields["choice"])
    if not all(field is None or isinstance(field, (str, tuple)) for field in fields.values()):
        raise TypeError
    return Guided(**fields)


_PARSERS_BY_TYPE: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "a number": (
        _parse_number,
        (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "length_penalty",
        ),
    ),
    "an integer": (
        _parse_integer,
        ("top_k", "no_repeat_ngram_size", "min_tokens", "max_tokens", "seed", "n", "best_of", "num_beams", "logprobs"),
    ),
    "true or false": (_parse_boolean, ("do_sample", "ignore_eos", "early_stopping")),
    "a string or a list of strings": (_parse_strings, ("stop",)),
    "a list of token ids": (_parse_integers, ("stop_token_ids",)),
    "an object that maps token ids to numbers": (_parse_logit_bias, ("logit_bias",)),
    "an object with one of json, regex, grammar, choice": (_parse_guided, ("guided",)),
}
_PARSERS = {name: parse for parse, names in _PARSERS_BY_TYPE.values() for name in names}
_EXPECTED_TYPES = {name: expected for expected, (_, names) in _PARSERS_BY_TYPE.items() for name in names}
