"""Same token ids, same answer: Transformers and vLLM in float32 agree, or differ where two tokens are as good as equal."""

from __future__ import annotations

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


def _explained(one: GeneratedAnswer, other: GeneratedAnswer, at: int) -> bool:
    """Whether either engine found the two candidates within the gap at the first divergence."""
    first, second = one.ids[at], other.ids[at]
    for answer in (one, other):
        top = dict(answer.choices[0].logprobs[at].top)
        if first in top and second in top and abs(top[first] - top[second]) < GAP:
            return True
    return False


async def _answers(worker: ModelWorker) -> list[GeneratedAnswer]:
    sampling = Sampling(temperature=0.0, max_tokens=48, logprobs=5)
    requests = []
    for question in QUESTIONS:
        request = GenerateRequest(messages=({"role": "user", "content": question},), sampling=sampling)
        requests.append((await worker.prepare(request))[0])
    return await ask_all(worker, requests)


async def test_greedy_answers_agree() -> None:
    found = []
    for name in ("transformers", "vllm"):
        async with await open_worker(PROFILES[name], dtype="float32") as worker:
            found.append(await _answers(worker))
    unexplained = []
    for question, one, other in zip(QUESTIONS, *found, strict=True):
        if one.ids == other.ids:
            continue
        shorter = min(len(one.ids), len(other.ids))
        same = next((at for at in range(shorter) if one.ids[at] != other.ids[at]), shorter)
        if same >= AGREE or (same < shorter and _explained(one, other, same)):
            continue
        unexplained.append((question, same, one.text, other.text))
    assert not unexplained
