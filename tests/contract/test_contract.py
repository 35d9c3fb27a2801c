"""The contract on every engine: each declared capability has its effect."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from typing import Any

import pytest

from enginebay.contract import Delta, FinishReason, GenerateRequest, Guided, Sampling, Support, parameters
from enginebay.contract.engine_messages import Done
from enginebay.errors import ContextOverflow, RequestError, Unsupported
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from tests.contract.engine_profiles import EngineProfile
from tests.contract.parameter_effects import EFFECTS
from tests.contract.worker_requests import ask, ask_all, ask_greedy, make_request
from tests.hostile.corpus_guided import ENDLESS_TREE

_REFUSED: dict[str, dict[str, Any]] = {
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "num_beams": {"num_beams": 4},
    "length_penalty": {"length_penalty": 2.0},
    "early_stopping": {"early_stopping": True},
    "guided_json": {"guided": Guided(json="{}")},
    "guided_regex": {"guided": Guided(regex="a")},
    "guided_grammar": {"guided": Guided(grammar='root ::= "a"')},
    "guided_choice": {"guided": Guided(choice=("a",))},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.5},
    "repetition_penalty": {"repetition_penalty": 2.0},
    "presence_penalty": {"presence_penalty": 1.0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "do_sample": {"do_sample": False},
    "min_tokens": {"min_tokens": 3},
    "stop": {"stop": ("a",)},
    "stop_token_ids": {"stop_token_ids": (1,)},
    "ignore_eos": {"ignore_eos": True},
    "seed": {"seed": 1},
    "n": {"n": 2},
    "best_of": {"best_of": 2},
    "logprobs": {"logprobs": 1},
    "logit_bias": {"logit_bias": {1: 1.0}},
}


def test_every_parameter_has_an_effect_to_check() -> None:
    assert set(EFFECTS) == set(parameters())


@pytest.mark.parametrize("parameter", parameters())
async def test_parameter_does_what_the_spec_declares(
    worker: ModelWorker, profile: EngineProfile, parameter: str
) -> None:
    declared = worker.plan.spec.request[parameter]
    if declared.support is not Support.REFUSES and parameter not in worker.facts.refused:
        await EFFECTS[parameter](worker, profile)
        return
    if parameter == "embeddings":
        with pytest.raises(Unsupported):
            await worker.embed(["hello"])
        return
    request = make_request(profile.long, "tiny" if parameter == "lora" else None, **_REFUSED.get(parameter, {}))
    with pytest.raises(Unsupported) as refusal:
        await worker.prepare(request)
    assert refusal.value.param == parameter
    assert refusal.value.hint, "a refusal must say what to use instead"


async def test_translations_are_announced(worker: ModelWorker, profile: EngineProfile) -> None:
    declared = {
        name for name, capability in worker.plan.spec.request.items() if capability.support is Support.TRANSLATES
    }
    for name in declared & set(_REFUSED):
        request = make_request(profile.long, **_REFUSED[name])
        _, translated = await worker.prepare(request)
        assert translated[name]


async def test_text_is_the_text_of_the_tokens(worker: ModelWorker, profile: EngineProfile) -> None:
    for prompt in (profile.long, profile.unicode, profile.repeats):
        answer = await ask_greedy(worker, prompt, max_tokens=64, ignore_eos=True)
        assert "\ufffd" not in answer.text, "a character was split"
        if worker.prompt_encoder.tokenizer is not None:
            prefix = worker.prompt_encoder.tokenizer.decode(
                worker.prompt_encoder.tokenizer.encode("a", add_special=False)
            )
            whole = worker.prompt_encoder.tokenizer.decode(
                [*worker.prompt_encoder.tokenizer.encode("a", add_special=False), *answer.ids]
            )
            assert whole[len(prefix) :].rstrip("\ufffd") == answer.text.rstrip("\ufffd")


async def test_stream_arrives_as_it_is_generated(worker: ModelWorker, profile: EngineProfile) -> None:
    """The first token arrives well before the last: the stream is not a sliced finished output."""
    tries = [await _measure_spread(worker, profile)]
    while max(tries) <= 1.5 and len(tries) < 3:  # on a stalling machine one wait may dominate
        tries.append(await _measure_spread(worker, profile))
    assert max(tries) > 1.5


async def _measure_spread(worker: ModelWorker, profile: EngineProfile) -> float:
    """Return the total time between tokens, divided by the longest gap."""
    times: list[float] = []
    async for event in worker.generate(make_request(profile.long, temperature=0.0, max_tokens=64, ignore_eos=True)):
        if isinstance(event, Delta) and event.token_ids:
            times.append(time.perf_counter())
    assert len(times) > 16
    return (times[-1] - times[0]) / max(later - earlier for earlier, later in itertools.pairwise(times))


async def test_usage_counts_tokens(worker: ModelWorker, profile: EngineProfile) -> None:
    ids = await worker.prompt_encoder.encode(profile.long)
    answer = await ask_greedy(worker, ids, max_tokens=9, ignore_eos=True)
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == len(answer.ids) == 9
    assert 0 < answer.timing.ttft_s <= answer.timing.total_s


async def test_same_output_alone_or_in_a_batch(worker: ModelWorker, profile: EngineProfile) -> None:
    """Batching must not mix requests: each output is the same alone and in a batch."""
    prompts = [profile.certain, profile.also_certain]
    alone = [(await ask_greedy(worker, prompt, max_tokens=8)).ids for prompt in prompts]
    batch = [*prompts, profile.long, *profile.more] * 4
    answers = await ask_all(worker, [make_request(prompt, temperature=0.0, max_tokens=8) for prompt in batch])
    for prompt, answer in zip(batch, answers, strict=True):
        if prompt in prompts:
            assert answer.ids == alone[prompts.index(prompt)]


async def test_32_requests_run_together(worker: ModelWorker, profile: EngineProfile) -> None:
    """At some moment most of the promised batch is between its first and last token."""
    expected = min(32, worker.facts.max_batch) * 3 // 4
    for _ in range(3):  # a stalling machine may deliver all tokens at once
        if await _count_concurrent(worker, profile) >= expected:
            return
    raise AssertionError(f"{expected} requests never ran together")


async def _count_concurrent(worker: ModelWorker, profile: EngineProfile) -> int:
    spans: list[tuple[float, float]] = []

    async def run(number: int) -> None:
        first = last = 0.0
        prompt = f"{profile.long} {number}"
        async for event in worker.generate(make_request(prompt, temperature=0.0, max_tokens=12, ignore_eos=True)):
            if isinstance(event, Delta) and event.token_ids:
                first, last = first or time.perf_counter(), time.perf_counter()
        spans.append((first, last))

    await asyncio.gather(*(run(number) for number in range(32)))
    return max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)


async def test_cancel_frees_the_slot(worker: ModelWorker, profile: EngineProfile) -> None:
    async for event in worker.generate(make_request(profile.long, temperature=0.0, max_tokens=1500, ignore_eos=True)):
        if isinstance(event, Delta) and event.token_ids:
            break  # leaving the loop cancels
    await _wait_idle(worker)
    assert (await ask_greedy(worker, profile.long, max_tokens=3)).finish_reason is FinishReason.LENGTH


async def test_cancel_before_the_first_token(worker: ModelWorker, profile: EngineProfile) -> None:
    tasks = [
        asyncio.create_task(ask(worker, f"{profile.long} {number}", max_tokens=1000, ignore_eos=True))
        for number in range(40)
    ]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _wait_idle(worker)


async def _wait_idle(worker: ModelWorker, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while (await worker.client.state()).running:
        assert time.monotonic() < deadline, "a cancelled request is still running"
        await asyncio.sleep(0.05)


async def test_context_overflow_is_an_error_with_both_numbers(worker: ModelWorker, profile: EngineProfile) -> None:
    length = worker.facts.context_length
    token = (await worker.prompt_encoder.encode(profile.long))[-1]
    with pytest.raises(ContextOverflow) as refusal:
        await ask_greedy(worker, (token,) * (length + 10))
    assert str(length) in refusal.value.message and str(length + 10) in refusal.value.message


async def test_output_ends_with_the_context(worker: ModelWorker, profile: EngineProfile) -> None:
    length = worker.facts.context_length
    ids = await worker.prompt_encoder.encode(profile.long)
    prompt = (ids * (length // len(ids) + 1))[: length - 8]
    answer = await ask_greedy(worker, prompt, max_tokens=200, ignore_eos=True)
    assert answer.finish_reason is FinishReason.LENGTH
    assert 6 <= len(answer.ids) <= 9


async def test_requests_after_an_error_are_answered(worker: ModelWorker, profile: EngineProfile) -> None:
    token = (await worker.prompt_encoder.encode(profile.long))[-1]
    good = make_request(profile.long, temperature=0.0, max_tokens=4)
    bad = GenerateRequest(token_ids=(token,) * (worker.facts.context_length + 1), sampling=Sampling())
    outcomes = await asyncio.gather(
        *(_run_to_outcome(worker, request) for request in (good, bad, good, bad, good)),
    )
    assert [isinstance(outcome, Done) for outcome in outcomes] == [True, False, True, False, True]


async def _run_to_outcome(worker: ModelWorker, request: GenerateRequest) -> Done | Exception:
    try:
        async for event in worker.generate(request):
            last = event
    except ContextOverflow as error:
        return error
    assert isinstance(last, Done)
    return last


async def test_facts_are_complete(worker: ModelWorker, profile: EngineProfile) -> None:
    facts = await worker.client.facts()
    assert facts.kind == profile.kind and facts.version and facts.context_length > 0 and facts.max_batch > 0
    assert set(profile.settings) <= set(facts.asked)
    assert facts.effective, "effective settings are missing"
    if {"gguf", "safetensors"} & set(worker.plan.spec.formats):  # it has weights
        assert facts.memory_bytes > 50_000_000 and facts.versions


KEPT_OR_REFUSED = {
    "an endless tree": (Guided(json=json.dumps(ENDLESS_TREE)), r'\{[\s{}":,leftrigh]*'),
    "a control token": (Guided(choice=("a<|im_end|>b",)), r"a(<(\|(i(m(_(e(n(d(\|(>b?)?)?)?)?)?)?)?)?)?)?"),
    "optional repeats": (Guided(regex="(?:[a-z]?){12}"), "[a-z]{0,12}"),
    "an empty alternative": (Guided(grammar='root ::= a_b "!"\na_b ::= | "x" a_b'), "x*!?"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT_OR_REFUSED)
async def test_an_output_is_within_its_constraint_or_an_error(
    worker: ModelWorker, profile: EngineProfile, name: str
) -> None:
    guided, pattern = KEPT_OR_REFUSED[name]
    try:
        answer = await ask(worker, profile.long, guided=guided, max_tokens=12, temperature=0.7, seed=3)
    except RequestError as error:
        assert error.param and error.param.startswith("guided_")
        return
    assert re.fullmatch(pattern, answer.text), answer.text
