"""Sampling parameters from plain values, as they come from JSON or keyword arguments: checked one by one, named when wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from enginebay.contract.sampling import Guided, Sampling
from enginebay.errors import InvalidRequest


def read_sampling(values: Mapping[str, Any]) -> Sampling:
    """Sampling from values of any origin; None counts as unset. Raises InvalidRequest naming the parameter."""
    read: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _READERS:
            near = get_close_matches(name, _READERS, n=1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise InvalidRequest(f"there is no sampling parameter {name!r}", hint, param=name)
        if value is None:
            continue
        try:
            read[name] = _READERS[name](value)
        except (TypeError, ValueError):
            raise InvalidRequest(f"{name} is {value!r}, which is not {_WANTED[name]}", param=name) from None
    return Sampling(**read)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise TypeError
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
        raise TypeError
    return int(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(one, str) for one in found):
        raise TypeError
    return found


def _wholes(value: Any) -> tuple[int, ...]:
    return tuple(map(_whole, value))


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {int(token): _number(bias) for token, bias in value.items()}  # JSON has only text for keys


def _guided(value: Any) -> Guided:
    if isinstance(value, Guided):
        return value
    if not isinstance(value, Mapping) or not set(value) <= {"json", "regex", "grammar", "choice"}:
        raise TypeError
    given = dict(value)
    if isinstance(given.get("json"), Mapping):
        import json

        given["json"] = json.dumps(given["json"])
    if given.get("choice") is not None:
        given["choice"] = _texts(given["choice"])
    if not all(one is None or isinstance(one, (str, tuple)) for one in given.values()):
        raise TypeError
    return Guided(**given)


_KINDS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "a number": (
        _number,
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
        _whole,
        ("top_k", "no_repeat_ngram_size", "min_tokens", "max_tokens", "seed", "n", "best_of", "num_beams", "logprobs"),
    ),
    "true or false": (_truth, ("do_sample", "ignore_eos", "early_stopping")),
    "a text or a list of texts": (_texts, ("stop",)),
    "a list of token ids": (_wholes, ("stop_token_ids",)),
    "an object of token ids and numbers": (_bias, ("logit_bias",)),
    "an object with one of json, regex, grammar, choice": (_guided, ("guided",)),
}
_READERS = {name: reader for reader, names in _KINDS.values() for name in names}
_WANTED = {name: wanted for wanted, (_, names) in _KINDS.items() for name in names}
