"""Fetch what a server reports about its model, and its answers to the parity prompts. Nothing here is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from enginebay.errors import UsageError
from enginebay.lab.loadgen.sender_task import API_PATHS, TargetServer
from enginebay.lab.measures.parity import OTHER_IDS_MARK, ParityAnswer
from enginebay.lab.study.server_api import NotHttpServer, ServerUnusable, get_json, list_model_names, request_json
from enginebay.lab.study.study_point import ParityPlan
from enginebay.lab.workload.request_records import Prompt, Request

_METRICS_PATH = "/metrics"
_DURATION_METRIC = "enginebay_request_duration_seconds"
_METRICS_TIMEOUT_S = 10.0


def fetch_request_seconds(target: TargetServer) -> float | None:
    """Return the summed duration of all finished requests, by the server's metrics. None: not available."""
    if not target.is_enginebay:
        return None
    try:
        status, body = request_json(target, _METRICS_PATH, timeout_s=_METRICS_TIMEOUT_S)
    except ServerUnusable:
        return None
    return parse_duration_sum(body) if status == 200 and isinstance(body, str) else None


def parse_duration_sum(text: str) -> float | None:
    """Return the histogram's sum over all models, 0 before the first request. None: not in this text. Pure."""
    lines = text.splitlines()
    if f"# TYPE {_DURATION_METRIC} histogram" not in lines:
        return None
    sums = [line for line in lines if line.startswith((f"{_DURATION_METRIC}_sum{{", f"{_DURATION_METRIC}_sum "))]
    try:
        return sum(float(line.rpartition(" ")[2]) for line in sums)
    except ValueError:
        return None


def subtract_readings(before_s: float | None, after_s: float | None) -> float | None:
    """Return the increase between two readings. None: one is missing, or the server restarted in between. Pure."""
    return None if before_s is None or after_s is None or after_s < before_s else after_s - before_s


_MAX_PLAUSIBLE = 1 << 62  # above any number a server reports
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server reports about its model."""

    is_enginebay: bool = False
    kind: str = ""
    version: str = ""
    context_length: int | None = None
    memory_bytes: int | None = None
    load_s: float | None = None
    requested: Mapping[str, Any] = field(default_factory=dict)
    effective: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    model_card: Mapping[str, Any] = field(default_factory=dict)  # the whole response


def fetch_server_facts(target: TargetServer) -> ServerFacts:
    """Fetch the facts of the target's model. A server that is not Enginebay reports few of them, or none."""
    try:
        card = get_json(target, f"/v1/models/{quote(target.model, safe='')}")
    except NotHttpServer:
        return ServerFacts()
    if not isinstance(card, dict):
        return ServerFacts()
    max_length = _parse_number(card.get("max_model_len"), int)
    extension = card.get("enginebay")
    if not isinstance(extension, dict):
        return ServerFacts(context_length=max_length, model_card=card)
    rows = extension.get("settings")
    settings = {name: row for name, row in rows.items() if isinstance(row, dict)} if isinstance(rows, dict) else {}
    warnings = extension.get("warnings")
    return ServerFacts(
        is_enginebay=True,
        kind=str(extension.get("engine", "")),
        version=str(extension.get("version", "")),
        context_length=_parse_number(extension.get("context_length"), int) or max_length,
        memory_bytes=_parse_number(extension.get("memory_bytes"), int),
        load_s=_parse_number(extension.get("load_s"), float),
        requested={name: row["asked"] for name, row in settings.items() if row.get("asked") is not None},
        effective={name: row["effective"] for name, row in settings.items() if row.get("effective") is not None},
        warnings=list(map(str, warnings)) if isinstance(warnings, list) else (),
        model_card=card,
    )


def fetch_checked_facts(target: TargetServer) -> ServerFacts:
    """Fetch the facts of the target's model. Raise `UsageError` if the server lists its models and this is not one."""
    facts = fetch_server_facts(target)
    if facts.model_card:
        return facts
    names = list_model_names(target)
    if names and target.model not in names:
        raise UsageError(f"{target.url} has no model {target.model!r}", f"choose one of: {', '.join(names)}")
    return facts


def _parse_number(value: Any, kind: type[_Number]) -> _Number | None:
    """Return a non-negative number. None: the value is something else."""
    return kind(value) if _is_plausible_number(value) and 0 <= value < _MAX_PLAUSIBLE else None


def _is_plausible_number(value: Any) -> bool:
    """Return whether the value is a number that fits. JSON integers are unbounded, and in Python `True` is an int."""
    return isinstance(value, float) or (type(value) is int and abs(value) < _MAX_PLAUSIBLE)


def ask_parity_prompts(target: TargetServer, requests: Sequence[Request], plan: ParityPlan) -> list[ParityAnswer]:
    """Return greedy answers to the first prompts. Raise `ServerUnusable` if the server cannot give one."""
    return [_ask_greedy(target, request.prompt, plan) for request in requests[: plan.prompts]]


def _ask_greedy(target: TargetServer, prompt: Prompt, plan: ParityPlan) -> ParityAnswer:
    greedy: dict[str, Any] = {"model": target.model, "temperature": 0, "max_tokens": plan.tokens}
    is_ids = isinstance(prompt, tuple) and all(isinstance(token, int) for token in prompt)
    if is_ids or isinstance(prompt, str):
        path, body, logprobs = API_PATHS["completions"], {**greedy, "prompt": prompt}, {"logprobs": 1}
    else:
        path, body, logprobs = API_PATHS["chat"], {**greedy, "messages": prompt}, {"logprobs": True}
    status, response = request_json(target, path, {**body, **logprobs})
    if status == 400:  # not every server or engine has logprobs
        status, response = request_json(target, path, body)
    choices = response.get("choices") if status == 200 and isinstance(response, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ServerUnusable(f"{target.url} failed a simple request ({status})", str(response)[:300])
    choice = choices[0]
    tokens, logprob_values = _parse_logprobs(choice.get("logprobs"))
    message = choice.get("message")
    text = choice.get("text") or (message.get("content") if isinstance(message, dict) else "") or ""
    return ParityAnswer(_resolve_prompt_ids(target, prompt, response), tokens, logprob_values, str(text))


def _parse_logprobs(logprobs: Any) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    """Return the tokens of an answer and their logprobs, in either form of the API."""
    if not isinstance(logprobs, dict):
        return None, None
    rows = logprobs.get("content")
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if isinstance(rows, list):
        dicts = [row if isinstance(row, dict) else {} for row in rows]
        tokens, values = [row.get("token") for row in dicts], [row.get("logprob") for row in dicts]
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return None, None
    if not isinstance(values, list) or not all(value is None or _is_plausible_number(value) for value in values):
        return None, None
    return tuple(tokens), tuple(float("nan") if value is None else float(value) for value in values)


def _resolve_prompt_ids(target: TargetServer, prompt: Prompt, response: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the prompt ids that the server used: those sent, or its own tokenization, if its count agrees. None: unknown."""
    usage = response.get("usage")
    count = _parse_number(usage.get("prompt_tokens"), int) if isinstance(usage, dict) else None
    ids = () if isinstance(prompt, str) else tuple(token for token in prompt if isinstance(token, int))
    if ids:
        if count is None:
            return None
        return ids if count == len(ids) else (OTHER_IDS_MARK, count)
    body = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
    status, tokenized = request_json(target, "/tokenize", {"model": target.model, **body})
    tokens = tokenized.get("tokens") if status == 200 and isinstance(tokenized, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        return None
    return tuple(tokens) if len(tokens) == count else None
