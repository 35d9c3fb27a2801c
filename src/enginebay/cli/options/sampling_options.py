"""One flag for each sampling parameter, added to a command's signature from one table."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from enginebay.contract import Guided
from enginebay.errors import UsageError

# name, type, help. Ranges are checked by the contract itself, so that they are the same for every way in.
_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("temperature", float, "0 is greedy"),
    ("top_p", float, "Nucleus: keep the most probable tokens up to this share"),
    ("top_k", int, "Keep this many tokens; 0 is off"),
    ("min_p", float, "Drop tokens below this share of the best one"),
    ("repetition_penalty", float, "Above 1: against what prompt and output already have"),
    ("presence_penalty", float, "Against tokens the output already has"),
    ("frequency_penalty", float, "The same, by how often"),
    ("no_repeat_ngram_size", int, "No sequence of this many tokens twice"),
    ("do_sample", bool, "--no-do-sample is greedy"),
    ("min_tokens", int, "No end before this many tokens"),
    ("max_tokens", int, "At most this many tokens"),
    ("stop", list[str], "End at this text; may be given more than once"),
    ("stop_token_ids", list[int], "End at this token; may be given more than once"),
    ("ignore_eos", bool, "Go on past the end of sequence"),
    ("seed", int, "Same seed, same answer"),
    ("n", int, "How many answers"),
    ("best_of", int, "Generate this many, keep the best n"),
    ("num_beams", int, "Beam search with this many beams"),
    ("length_penalty", float, "For beam search"),
    ("early_stopping", bool, "For beam search"),
    ("logprobs", int, "Top alternatives per token"),
    ("logit_bias", str, 'JSON: {"token id": bias}'),
    ("json_schema", str, "The answer follows this JSON schema: JSON text, or @FILE"),
    ("regex", str, "The answer matches this expression"),
    ("grammar", str, "The answer follows this GBNF grammar: text, or @FILE"),
    ("choice", list[str], "The answer is one of these; give it more than once"),
)
_GUIDED = {"json_schema": "json", "regex": "regex", "grammar": "grammar", "choice": "choice"}


def with_sampling(logprobs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The command gets its `sampling` as a dict of what was given. `logprobs`: where the command shows them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def wrapped(**values: Any) -> Any:
            given = {name: values.pop(name) for name, _, _ in _OPTIONS}
            return command(**values, sampling=collect_sampling(given))

        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "sampling"]
        added = [
            _build_parameter(name, kind, f"{text}; {logprobs}" if name == "logprobs" else text)
            for name, kind, text in _OPTIONS
        ]
        wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
        return wrapped

    return decorate


def _build_parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}" + _build_off_flag(name, kind)
    option = typer.Option(None, flag, help=text, rich_help_panel="Sampling")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)


def collect_sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Flags as sampling parameters: what was not given is left out, the four constraints become one."""
    chosen = {name: value for name, value in given.items() if value not in (None, [])}
    guided = {_GUIDED[name]: chosen.pop(name) for name in _GUIDED if name in chosen}
    if guided:
        for name in ("json", "grammar"):
            if name in guided:
                guided[name] = _read_text_or_file(guided[name])
        if "json" in guided:
            _parse_json(guided["json"], "--json-schema")
        if "choice" in guided:
            guided["choice"] = tuple(guided["choice"])
        chosen["guided"] = Guided(**guided)
    if "logit_bias" in chosen:
        try:
            chosen["logit_bias"] = {
                int(token): float(bias) for token, bias in _parse_json(chosen["logit_bias"], "--logit-bias").items()
            }
        except (AttributeError, TypeError, ValueError):
            raise UsageError(
                "--logit-bias takes a JSON object of token ids and numbers", "like: '{\"42\": -100}'"
            ) from None
    return chosen


def _build_off_flag(name: str, kind: Any) -> str:
    return f"/--no-{name.replace('_', '-')}" if kind is bool else ""


def _read_text_or_file(value: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text()
    except OSError as error:
        raise UsageError(f"{value[1:]} cannot be read: {error.strerror}") from None


def _parse_json(text: str, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{flag} is not valid JSON: {error}") from None
