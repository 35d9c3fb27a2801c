"""Sampling options: one flag per sampling parameter, added to a command's signature from one table."""

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

# name, type, help. The contract checks ranges, so that the CLI and the API agree.
_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("temperature", float, "Sampling temperature; 0 is greedy"),
    ("top_p", float, "Nucleus sampling: keep the most probable tokens up to this total probability"),
    ("top_k", int, "Keep the K most probable tokens; 0 disables it"),
    ("min_p", float, "Drop tokens below this fraction of the best token's probability"),
    ("repetition_penalty", float, "Above 1 penalizes tokens already in the prompt or output"),
    ("presence_penalty", float, "Penalize tokens already in the output"),
    ("frequency_penalty", float, "Penalize tokens by how often they appear in the output"),
    ("no_repeat_ngram_size", int, "Never repeat a sequence of this many tokens"),
    ("do_sample", bool, "Sample; --no-do-sample decodes greedily"),
    ("min_tokens", int, "Minimum number of output tokens"),
    ("max_tokens", int, "Maximum number of output tokens"),
    ("stop", list[str], "Stop at this text; repeatable"),
    ("stop_token_ids", list[int], "Stop at this token id; repeatable"),
    ("ignore_eos", bool, "Continue past the end-of-sequence token"),
    ("seed", int, "Random seed; the same seed gives the same answer"),
    ("n", int, "Number of answers"),
    ("best_of", int, "Generate this many answers and keep the best n"),
    ("num_beams", int, "Beam search with this many beams"),
    ("length_penalty", float, "Length penalty for beam search"),
    ("early_stopping", bool, "Stop beam search early"),
    ("logprobs", int, "Number of top alternatives per token"),
    ("logit_bias", str, 'JSON: {"token id": bias}'),
    ("json_schema", str, "Constrain the answer to this JSON schema: JSON text or @FILE"),
    ("regex", str, "Constrain the answer to this regular expression"),
    ("grammar", str, "Constrain the answer to this GBNF grammar: text or @FILE"),
    ("choice", list[str], "Constrain the answer to one of these; repeatable"),
)
_GUIDED = {"json_schema": "json", "regex": "regex", "grammar": "grammar", "choice": "choice"}


def with_sampling(logprobs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the sampling flags to a command, which receives those that were set as `sampling`.

    `logprobs` says where the command shows them.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def wrapped(**values: Any) -> Any:
            flags = {name: values.pop(name) for name, _, _ in _OPTIONS}
            return command(**values, sampling=collect_sampling(flags))

        parameters = inspect.signature(command, eval_str=True).parameters.values()
        own = [parameter for parameter in parameters if parameter.name != "sampling"]
        added = [
            _build_parameter(name, kind, f"{text}; {logprobs}" if name == "logprobs" else text)
            for name, kind, text in _OPTIONS
        ]
        wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        return wrapped

    return decorate


def _build_parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    dashed = name.replace("_", "-")
    flag = f"--{dashed}/--no-{dashed}" if kind is bool else f"--{dashed}"
    option = typer.Option(None, flag, help=text, rich_help_panel="Sampling")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)


def collect_sampling(flags: dict[str, Any]) -> dict[str, Any]:
    """Convert flags to sampling parameters. Drops unset flags; the four constraints become one."""
    chosen = {name: value for name, value in flags.items() if value not in (None, [])}
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
                "--logit-bias expects a JSON object of token ids and numbers", "for example: '{\"42\": -100}'"
            ) from None
    return chosen


def _read_text_or_file(value: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text()
    except OSError as error:
        raise UsageError(f"cannot read {value[1:]}: {error.strerror}") from None


def _parse_json(text: str, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{flag} is not valid JSON: {error}") from None
