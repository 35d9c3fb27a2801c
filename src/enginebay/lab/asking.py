"""What a server says of itself, and what it answers to the parity prompts. Nothing here is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from enginebay.lab.api import ServerUnusable, Unintelligible, ask, get
from enginebay.lab.client.order import PATHS, Target
from enginebay.lab.parity import Answer
from enginebay.lab.points import ParityPlan
from enginebay.lab.requests import Prompt, Request


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
    length = card.get("max_model_len")
    ours = card.get("enginebay")
    if not isinstance(ours, dict):
        return ServerFacts(context_length=length if isinstance(length, int) else None, card=card)
    settings = ours.get("settings") or {}
    return ServerFacts(
        ours=True,
        kind=str(ours.get("engine", "")),
        version=str(ours.get("version", "")),
        context_length=ours.get("context_length") or length,
        memory_bytes=ours.get("memory_bytes"),
        load_s=ours.get("load_s"),
        asked={name: one["asked"] for name, one in settings.items() if one.get("asked") is not None},
        effective={name: one["effective"] for name, one in settings.items() if one.get("effective") is not None},
        warnings=list(ours.get("warnings") or ()),
        card=card,
    )


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
    if status != 200 or not isinstance(found, dict) or not found.get("choices"):
        raise ServerUnusable(f"{target.url} does not answer a simple request ({status})", str(found)[:300])
    choice = found["choices"][0]
    tokens, chosen = _tokens(choice.get("logprobs"))
    text = choice.get("text") or (choice.get("message") or {}).get("content") or ""
    return Answer(_prompt_ids(target, prompt, found), tokens, chosen, text)


def _tokens(logprobs: Any) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    """The tokens of an answer and how likely each was, in either form of the API."""
    if not isinstance(logprobs, dict):
        return None, None
    rows = logprobs.get("content")
    if isinstance(rows, list):
        return tuple(row["token"] for row in rows), tuple(row["logprob"] for row in rows)
    tokens, chosen = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(chosen, list):
        return None, None
    return tuple(tokens), tuple(float("nan") if one is None else one for one in chosen)


def _prompt_ids(target: Target, prompt: Prompt, found: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids that the server says it works on; those that were sent, when its count agrees."""
    counted = (found.get("usage") or {}).get("prompt_tokens")
    ids = () if isinstance(prompt, str) else tuple(one for one in prompt if isinstance(one, int))
    if ids:
        return ids if counted == len(ids) else None
    body = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
    status, told = ask(target, "/tokenize", {"model": target.model, **body})
    tokens = told.get("tokens") if status == 200 and isinstance(told, dict) else None
    return tuple(tokens) if isinstance(tokens, list) and len(tokens) == counted else None
