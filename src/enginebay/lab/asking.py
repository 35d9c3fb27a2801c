"""What a server says of itself, and what it answers to the parity prompts. Nothing here is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from enginebay.errors import UsageError
from enginebay.lab.api import ServerUnusable, Unintelligible, ask, get, model_names
from enginebay.lab.client.order import PATHS, Target
from enginebay.lab.parity import OTHER_IDS, Answer
from enginebay.lab.points import ParityPlan
from enginebay.lab.requests import Prompt, Request

_BEYOND = 1 << 62  # nothing that a server tells is so large
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Of the model behind a server, as far as it tells."""

    ours: bool = False
    kind: str = ""
    version: str = ""
    context_length: int | None = None
    memory_bytes: int | None = None
    load_s: float | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    effective: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    card: Mapping[str, Any] = field(default_factory=dict)  # all that it says


def read_facts(target: Target) -> ServerFacts:
    """What the server says of its model. A server that is not ours says little, or nothing that can be understood."""
    try:
        card = get(target, f"/v1/models/{quote(target.model, safe='')}")
    except Unintelligible:
        return ServerFacts()
    if not isinstance(card, dict):
        return ServerFacts()
    length = _number(card.get("max_model_len"), int)
    ours = card.get("enginebay")
    if not isinstance(ours, dict):
        return ServerFacts(context_length=length, card=card)
    told = ours.get("settings")
    settings = {name: one for name, one in told.items() if isinstance(one, dict)} if isinstance(told, dict) else {}
    warnings = ours.get("warnings")
    return ServerFacts(
        ours=True,
        kind=str(ours.get("engine", "")),
        version=str(ours.get("version", "")),
        context_length=_number(ours.get("context_length"), int) or length,
        memory_bytes=_number(ours.get("memory_bytes"), int),
        load_s=_number(ours.get("load_s"), float),
        asked={name: one["asked"] for name, one in settings.items() if one.get("asked") is not None},
        effective={name: one["effective"] for name, one in settings.items() if one.get("effective") is not None},
        warnings=list(map(str, warnings)) if isinstance(warnings, list) else (),
        card=card,
    )


def check_model(target: Target) -> ServerFacts:
    """What the server says of its model. Raises `UsageError` where it lists its models and this is none of them."""
    facts = read_facts(target)
    if facts.card:
        return facts
    names = model_names(target)
    if names and target.model not in names:
        raise UsageError(f"{target.url} has no model {target.model!r}", f"name one of: {', '.join(names)}")
    return facts


def _number(told: Any, kind: type[_Number]) -> _Number | None:
    """A number from 0 on that a server tells; None where it is something else."""
    return kind(told) if _is_number(told) and 0 <= told < _BEYOND else None


def _is_number(told: Any) -> bool:
    """One that fits: JSON has integers without end, and Python takes true for one."""
    return isinstance(told, float) or (type(told) is int and abs(told) < _BEYOND)


def parity_answers(target: Target, requests: Sequence[Request], plan: ParityPlan) -> list[Answer]:
    """Greedy answers to the first prompts of a workload. Raises `ServerUnusable` when it cannot even do that."""
    return [_answer(target, request.prompt, plan) for request in requests[: plan.prompts]]


def _answer(target: Target, prompt: Prompt, plan: ParityPlan) -> Answer:
    greedy: dict[str, Any] = {"model": target.model, "temperature": 0, "max_tokens": plan.tokens}
    ids = isinstance(prompt, tuple) and all(isinstance(one, int) for one in prompt)
    if ids or isinstance(prompt, str):
        path, body, logprobs = PATHS["completions"], {**greedy, "prompt": prompt}, {"logprobs": 1}
    else:
        path, body, logprobs = PATHS["chat"], {**greedy, "messages": prompt}, {"logprobs": True}
    status, found = ask(target, path, {**body, **logprobs})
    if status == 400:  # not every server or engine has them
        status, found = ask(target, path, body)
    choices = found.get("choices") if status == 200 and isinstance(found, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ServerUnusable(f"{target.url} does not answer a simple request ({status})", str(found)[:300])
    choice = choices[0]
    tokens, chosen = _tokens(choice.get("logprobs"))
    message = choice.get("message")
    text = choice.get("text") or (message.get("content") if isinstance(message, dict) else "") or ""
    return Answer(_prompt_ids(target, prompt, found), tokens, chosen, str(text))


def _tokens(logprobs: Any) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
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
    if not isinstance(chosen, list) or not all(one is None or _is_number(one) for one in chosen):
        return None, None
    return tuple(tokens), tuple(float("nan") if one is None else float(one) for one in chosen)


def _prompt_ids(target: Target, prompt: Prompt, found: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids that the server says it works on; those that were sent, when its count agrees. None: it does not tell."""
    usage = found.get("usage")
    counted = _number(usage.get("prompt_tokens"), int) if isinstance(usage, dict) else None
    ids = () if isinstance(prompt, str) else tuple(one for one in prompt if isinstance(one, int))
    if ids:
        if counted is None:
            return None
        return ids if counted == len(ids) else (OTHER_IDS, counted)
    body = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
    status, told = ask(target, "/tokenize", {"model": target.model, **body})
    tokens = told.get("tokens") if status == 200 and isinstance(told, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(one, int) for one in tokens):
        return None
    return tuple(tokens) if len(tokens) == counted else None
