"""What a server says of itself, and what it answers to the parity prompts. Nothing here is timed."""

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
    """How long all requests that have ended were with the server, added up. None: it does not tell."""
    if not target.is_enginebay:
        return None
    try:
        status, found = request_json(target, _METRICS_PATH, timeout_s=_METRICS_TIMEOUT_S)
    except ServerUnusable:
        return None
    return parse_duration_sum(found) if status == 200 and isinstance(found, str) else None


def parse_duration_sum(text: str) -> float | None:
    """The sum of the histogram over all models; 0 where it is known and nobody has asked yet. Pure."""
    lines = text.splitlines()
    if f"# TYPE {_DURATION_METRIC} histogram" not in lines:
        return None
    own = [line for line in lines if line.startswith((f"{_DURATION_METRIC}_sum{{", f"{_DURATION_METRIC}_sum "))]
    try:
        return sum(float(line.rpartition(" ")[2]) for line in own)
    except ValueError:
        return None


def subtract_readings(before_s: float | None, after_s: float | None) -> float | None:
    """Between two readings; None where one is missing or the server began anew in between. Pure."""
    return None if before_s is None or after_s is None or after_s < before_s else after_s - before_s


_MAX_PLAUSIBLE = 1 << 62  # nothing that a server tells is so large
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Of the model behind a server, as far as it tells."""

    is_enginebay: bool = False
    kind: str = ""
    version: str = ""
    context_length: int | None = None
    memory_bytes: int | None = None
    load_s: float | None = None
    requested: Mapping[str, Any] = field(default_factory=dict)
    effective: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    model_card: Mapping[str, Any] = field(default_factory=dict)  # all that it says


def fetch_server_facts(target: TargetServer) -> ServerFacts:
    """What the server says of its model. A server that is not ours says little, or nothing that can be understood."""
    try:
        card = get_json(target, f"/v1/models/{quote(target.model, safe='')}")
    except NotHttpServer:
        return ServerFacts()
    if not isinstance(card, dict):
        return ServerFacts()
    length = _parse_number(card.get("max_model_len"), int)
    ours = card.get("enginebay")
    if not isinstance(ours, dict):
        return ServerFacts(context_length=length, model_card=card)
    told = ours.get("settings")
    settings = {name: one for name, one in told.items() if isinstance(one, dict)} if isinstance(told, dict) else {}
    warnings = ours.get("warnings")
    return ServerFacts(
        is_enginebay=True,
        kind=str(ours.get("engine", "")),
        version=str(ours.get("version", "")),
        context_length=_parse_number(ours.get("context_length"), int) or length,
        memory_bytes=_parse_number(ours.get("memory_bytes"), int),
        load_s=_parse_number(ours.get("load_s"), float),
        requested={name: one["asked"] for name, one in settings.items() if one.get("asked") is not None},
        effective={name: one["effective"] for name, one in settings.items() if one.get("effective") is not None},
        warnings=list(map(str, warnings)) if isinstance(warnings, list) else (),
        model_card=card,
    )


def fetch_checked_facts(target: TargetServer) -> ServerFacts:
    """What the server says of its model. Raises `UsageError` where it lists its models and this is none of them."""
    facts = fetch_server_facts(target)
    if facts.model_card:
        return facts
    names = list_model_names(target)
    if names and target.model not in names:
        raise UsageError(f"{target.url} has no model {target.model!r}", f"name one of: {', '.join(names)}")
    return facts


def _parse_number(value: Any, kind: type[_Number]) -> _Number | None:
    """A number from 0 on that a server tells; None where it is something else."""
    return kind(value) if _is_plausible_number(value) and 0 <= value < _MAX_PLAUSIBLE else None


def _is_plausible_number(value: Any) -> bool:
    """One that fits: JSON has integers without end, and Python takes true for one."""
    return isinstance(value, float) or (type(value) is int and abs(value) < _MAX_PLAUSIBLE)


def ask_parity_prompts(target: TargetServer, requests: Sequence[Request], plan: ParityPlan) -> list[ParityAnswer]:
    """Greedy answers to the first prompts of a workload. Raises `ServerUnusable` when it cannot even do that."""
    return [_ask_greedy(target, request.prompt, plan) for request in requests[: plan.prompts]]


def _ask_greedy(target: TargetServer, prompt: Prompt, plan: ParityPlan) -> ParityAnswer:
    greedy: dict[str, Any] = {"model": target.model, "temperature": 0, "max_tokens": plan.tokens}
    ids = isinstance(prompt, tuple) and all(isinstance(one, int) for one in prompt)
    if ids or isinstance(prompt, str):
        path, body, logprobs = API_PATHS["completions"], {**greedy, "prompt": prompt}, {"logprobs": 1}
    else:
        path, body, logprobs = API_PATHS["chat"], {**greedy, "messages": prompt}, {"logprobs": True}
    status, found = request_json(target, path, {**body, **logprobs})
    if status == 400:  # not every server or engine has them
        status, found = request_json(target, path, body)
    choices = found.get("choices") if status == 200 and isinstance(found, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ServerUnusable(f"{target.url} does not answer a simple request ({status})", str(found)[:300])
    choice = choices[0]
    tokens, chosen = _parse_logprobs(choice.get("logprobs"))
    message = choice.get("message")
    text = choice.get("text") or (message.get("content") if isinstance(message, dict) else "") or ""
    return ParityAnswer(_resolve_prompt_ids(target, prompt, found), tokens, chosen, str(text))


def _parse_logprobs(logprobs: Any) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    """The tokens of an answer and how likely each was, in either form of the API."""
    if not isinstance(logprobs, dict):
        return None, None
    rows = logprobs.get("content")
    tokens, chosen = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if isinstance(rows, list):
        known = [row if isinstance(row, dict) else {} for row in rows]
        tokens, chosen = [row.get("token") for row in known], [row.get("logprob") for row in known]
    if not isinstance(tokens, list) or not all(isinstance(one, str) for one in tokens):
        return None, None
    if not isinstance(chosen, list) or not all(one is None or _is_plausible_number(one) for one in chosen):
        return None, None
    return tuple(tokens), tuple(float("nan") if one is None else float(one) for one in chosen)


def _resolve_prompt_ids(target: TargetServer, prompt: Prompt, response: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids that the server says it works on; those that were sent, when its count agrees. None: it does not tell."""
    usage = response.get("usage")
    counted = _parse_number(usage.get("prompt_tokens"), int) if isinstance(usage, dict) else None
    ids = () if isinstance(prompt, str) else tuple(one for one in prompt if isinstance(one, int))
    if ids:
        if counted is None:
            return None
        return ids if counted == len(ids) else (OTHER_IDS_MARK, counted)
    body = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
    status, told = request_json(target, "/tokenize", {"model": target.model, **body})
    tokens = told.get("tokens") if status == 200 and isinstance(told, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(one, int) for one in tokens):
        return None
    return tuple(tokens) if len(tokens) == counted else None
