"""Sends requests to a worker and collects the complete output."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from enginebay.contract import Delta, FinishReason, GenerateRequest, Sampling, TokenLogprobs, Usage
from enginebay.contract.engine_messages import Done, Timing
from enginebay.fleet.lifecycle.model_worker import ModelWorker


@dataclass
class ChoiceOutput:
    text: str = ""
    ids: list[int] = field(default_factory=list)
    pieces: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass
class GeneratedAnswer:
    choices: dict[int, ChoiceOutput]
    usage: Usage
    timing: Timing

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def ids(self) -> list[int]:
        return self.choices[0].ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    def most_repeated(self) -> int:
        return max(Counter(self.ids).values())


def make_request(prompt: str | Sequence[int], lora: str | None = None, **sampling: Any) -> GenerateRequest:
    parameters = Sampling(**{"max_tokens": 48, **sampling})
    if isinstance(prompt, str):
        return GenerateRequest(text=prompt, sampling=parameters, lora=lora)
    return GenerateRequest(token_ids=tuple(prompt), sampling=parameters, lora=lora)


async def collect(worker: ModelWorker, request: GenerateRequest) -> GeneratedAnswer:
    """Return the complete output; assert that events arrive in the order of the contract."""
    choices: dict[int, ChoiceOutput] = {}
    done: Done | None = None
    async for event in worker.generate(request):
        assert done is None, "an event arrived after Done"
        if isinstance(event, Done):
            done = event
            continue
        assert isinstance(event, Delta)
        choice = choices.setdefault(event.choice, ChoiceOutput())
        assert choice.finish_reason is None, "a delta arrived after the end of its choice"
        choice.text += event.text
        choice.ids += event.token_ids
        choice.pieces.append((event.text, tuple(event.token_ids)))
        choice.logprobs += event.logprobs
        choice.finish_reason, choice.stop_reason = event.finish_reason, event.stop_reason
    assert done is not None, "the stream ended without Done"
    assert all(choice.finish_reason is not None for choice in choices.values()), "a choice has no finish reason"
    return GeneratedAnswer(choices, done.usage, done.timing)


async def ask(
    worker: ModelWorker, prompt: str | Sequence[int], lora: str | None = None, **sampling: Any
) -> GeneratedAnswer:
    return await collect(worker, make_request(prompt, lora, **sampling))


async def ask_greedy(worker: ModelWorker, prompt: str | Sequence[int], **sampling: Any) -> GeneratedAnswer:
    return await ask(worker, prompt, temperature=0.0, **sampling)


async def ask_all(worker: ModelWorker, requests: Sequence[GenerateRequest]) -> list[GeneratedAnswer]:
    return list(await asyncio.gather(*(collect(worker, request) for request in requests)))
