"""Transformers and vLLM in float32 give the same greedy output, or diverge where two tokens are nearly tied."""

from __future__ import annotations

import pytest

from enginebay.contract import GenerateRequest, Sampling
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from tests.contract.conftest import open_worker
from tests.contract.engine_profiles import PROFILES
from tests.contract.worker_requests import GeneratedAnswer, ask_all

QUESTIONS = (
    "What is the capital of France?", "Name three colours.", "Why is the sky blue?", "Write a haiku about rain.",
    "What is 12 times 12?", "Who wrote Hamlet?", "Explain gravity to a child.", "List the planets.",
    "Translate 'good morning' into Spanish.", "What is a prime number?", "Tell me a joke.", "How do bees make honey?",
    "What is photosynthesis?", "Describe the ocean.", "What is Python?", "How many legs has a spider?",
    "Give me a recipe for pancakes.", "What is the speed of light?", "Who was Ada Lovelace?", "What does 'ubiquitous' mean?",
)  # fmt: skip
AGREE = 30
GAP = 0.05


def _is_near_tie(one: GeneratedAnswer, other: GeneratedAnswer, index: int) -> bool:
    """Return whether the two tokens at the first divergence are within the gap in either engine."""
    first, second = one.ids[index], other.ids[index]
    for answer in (one, other):
        top = dict(answer.choices[0].logprobs[index].top)
        if first in top and second in top and abs(top[first] - top[second]) < GAP:
            return True
    return False


async def _generate_answers(worker: ModelWorker) -> list[GeneratedAnswer]:
    sampling = Sampling(temperature=0.0, max_tokens=48, logprobs=5)
    requests = []
    for question in QUESTIONS:
        request = GenerateRequest(messages=({"role": "user", "content": question},), sampling=sampling)
        requests.append((await worker.prepare(request))[0])
    return await ask_all(worker, requests)


@pytest.mark.slow
async def test_greedy_answers_agree() -> None:
    answers = []
    for name in ("transformers", "vllm"):
        async with await open_worker(PROFILES[name], dtype="float32") as worker:
            answers.append(await _generate_answers(worker))
    unexplained = []
    for question, one, other in zip(QUESTIONS, *answers, strict=True):
        if one.ids == other.ids:
            continue
        shorter = min(len(one.ids), len(other.ids))
        same = next((at for at in range(shorter) if one.ids[at] != other.ids[at]), shorter)
        if same >= AGREE or (same < shorter and _is_near_tie(one, other, same)):
            continue
        unexplained.append((question, same, one.text, other.text))
    assert not unexplained
