"""Sampling parameters from plain values, as they come from JSON or keyword arguments: checked one by one, named when wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from enginebay.contract.sampling_parameters import Guided, Sampling
from enginebay.errors import InvalidRequest


def parse_sampling(values: Mapping[str, Any]) -> Sampling:
    """Sampling from values of any origin; None counts as unset. Raises InvalidRequest naming the parameter."""
    read: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _PARSERS:
            near = get_close_matches(name, _PARSERS, n=1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise InvalidRequest(f"there is no sampling parameter {name!r}", hint, param=name)
        if value is None:
            continue
        try:
            read[name] = _PARSERS[name](value)
        except (TypeError, ValueError):
            raise InvalidRequest(f"{name} is {value!r}, which is not {_EXPECTED_TYPES[name]}", param=name) from None
    return Sampling(**read)


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
    found = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(one, str) for one in found):
        raise TypeError
    return found


def _parse_integers(value: Any) -> tuple[int, ...]:
    return tuple(map(_parse_integer, value))


def _parse_logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {int(token): _parse_number(bias) for token, bias in value.items()}  # JSON has only text for keys


def _parse_guided(value: Any) -> Guided:
    if isinstance(value, Guided):
        return value
    if not isinstance(value, Mapping) or not set(value) <= {"json", "regex", "grammar", "choice"}:
        raise TypeError
    given = dict(value)
    if isinstance(given.get("json"), Mapping):
        import json

        given["json"] = json.dumps(given["json"])
    if given.get("choice") is not None:
        given["choice"] = _parse_strings(given["choice"])
    if not all(one is None or isinstance(one, (str, tuple)) for one in given.values()):
        raise TypeError
    return Guided(**given)


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
    "a whole number": (
        _parse_integer,
        ("top_k", "no_repeat_ngram_size", "min_tokens", "max_tokens", "seed", "n", "best_of", "num_beams", "logprobs"),
    ),
    "true or false": (_parse_boolean, ("do_sample", "ignore_eos", "early_stopping")),
    "a text or a list of texts": (_parse_strings, ("stop",)),
    "a list of token ids": (_parse_integers, ("stop_token_ids",)),
    "an object of token ids and numbers": (_parse_logit_bias, ("logit_bias",)),
    "an object with one of json, regex, grammar, choice": (_parse_guided, ("guided",)),
}
_PARSERS = {name: reader for reader, names in _PARSERS_BY_TYPE.values() for name in names}
_EXPECTED_TYPES = {name: wanted for wanted, (_, names) in _PARSERS_BY_TYPE.items() for name in names}
