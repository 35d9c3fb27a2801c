"""One check per request parameter of its observable effect on the output, not of the absence of an error."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from enginebay.contract import FinishReason, Guided
from enginebay.errors import InvalidRequest
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from tests.contract.engine_profiles import EngineProfile
from tests.contract.worker_requests import ask, ask_all, ask_greedy, make_request

Effect = Callable[[ModelWorker, EngineProfile], Awaitable[None]]
EFFECTS: dict[str, Effect] = {}

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def effect(check: Effect) -> Effect:
    EFFECTS[check.__name__] = check
    return check


async def _sample_answers(worker: ModelWorker, prompt: str, count: int = 4, **sampling: Any) -> list[list[int]]:
    """Run the same request with several seeds."""
    seeds = range(100, 100 + count)
    requests = [
        make_request(prompt, **{"max_tokens": 12, "temperature": 2.0, **sampling, "seed": seed}) for seed in seeds
    ]
    return [answer.ids for answer in await ask_all(worker, requests)]


def _count_distinct(outputs: list[list[int]]) -> int:
    return len({tuple(ids) for ids in outputs})


async def _check_forces_greedy(worker: ModelWorker, profile: EngineProfile, **sampling: Any) -> None:
    """Check that outputs differ at a high temperature, and that the parameter makes them all greedy."""
    free = await _sample_answers(worker, profile.certain)
    assert _count_distinct(free) > 1, "sampling without the parameter is not random: the check would prove nothing"
    greedy = (await ask_greedy(worker, profile.certain, max_tokens=12)).ids
    for ids in await _sample_answers(worker, profile.certain, **sampling):
        assert ids == greedy


@effect
async def temperature(worker: ModelWorker, profile: EngineProfile) -> None:
    first, second = (
        await ask_greedy(worker, profile.certain, max_tokens=12),
        await ask_greedy(worker, profile.certain, max_tokens=12),
    )
    assert first.ids == second.ids
    assert _count_distinct(await _sample_answers(worker, profile.certain)) > 1


@effect
async def top_p(worker: ModelWorker, profile: EngineProfile) -> None:
    await _check_forces_greedy(worker, profile, top_p=0.001)


@effect
async def top_k(worker: ModelWorker, profile: EngineProfile) -> None:
    await _check_forces_greedy(worker, profile, top_k=1)
    assert _count_distinct(await _sample_answers(worker, profile.certain, top_k=-1)) > 1


@effect
async def min_p(worker: ModelWorker, profile: EngineProfile) -> None:
    await _check_forces_greedy(worker, profile, min_p=1.0)


@effect
async def do_sample(worker: ModelWorker, profile: EngineProfile) -> None:
    await _check_forces_greedy(worker, profile, do_sample=False)


async def _check_repeats_less(worker: ModelWorker, profile: EngineProfile, **sampling: Any) -> None:
    plain = await ask_greedy(worker, profile.repeats)
    changed = await ask_greedy(worker, profile.repeats, **sampling)
    assert plain.most_repeated() > 3, "the model does not repeat itself here: the check would prove nothing"
    assert changed.most_repeated() < plain.most_repeated()


@effect
async def repetition_penalty(worker: ModelWorker, profile: EngineProfile) -> None:
    await _check_repeats_less(worker, profile, repetition_penalty=5.0)


@effect
async def presence_penalty(worker: ModelWorker, profile: EngineProfile) -> None:
    more, less = (
        await ask_greedy(worker, profile.long, presence_penalty=2.0),
        await ask_greedy(worker, profile.long, presence_penalty=-2.0),
    )
    assert len(set(more.ids)) > len(set(less.ids)), "tokens seen before should be avoided by +2 and sought by -2"


@effect
async def frequency_penalty(worker: ModelWorker, profile: EngineProfile) -> None:
    await _check_repeats_less(worker, profile, frequency_penalty=2.0)


@effect
async def no_repeat_ngram_size(worker: ModelWorker, profile: EngineProfile) -> None:
    plain = await ask_greedy(worker, profile.repeats)
    changed = await ask_greedy(worker, profile.repeats, no_repeat_ngram_size=2)
    assert _count_repeated_pairs(plain.ids) > 0
    assert _count_repeated_pairs(changed.ids) == 0


def _count_repeated_pairs(ids: list[int]) -> int:
    pairs = list(itertools.pairwise(ids))
    return len(pairs) - len(set(pairs))


@effect
async def min_tokens(worker: ModelWorker, profile: EngineProfile) -> None:
    plain = await ask_greedy(worker, profile.short, **profile.short_sampling)
    assert plain.finish_reason is FinishReason.STOP and len(plain.ids) < 30
    longer = await ask_greedy(worker, profile.short, **profile.short_sampling, min_tokens=40)
    assert longer.usage.completion_tokens >= 40


@effect
async def max_tokens(worker: ModelWorker, profile: EngineProfile) -> None:
    answer = await ask_greedy(worker, profile.long, max_tokens=7)
    assert (len(answer.ids), answer.usage.completion_tokens) == (7, 7)
    assert answer.finish_reason is FinishReason.LENGTH


@effect
async def stop(worker: ModelWorker, profile: EngineProfile) -> None:
    """Use a stop string that starts in one token and ends in another."""
    plain = (await ask_greedy(worker, profile.certain, max_tokens=24)).choices[0]
    pieces = [piece for piece, _ in plain.pieces if piece]
    border = next(i for i in range(4, len(pieces) - 1) if len(set(pieces[i] + pieces[i + 1])) > 1)
    text = pieces[border][-1] + pieces[border + 1][0]
    choice = (await ask_greedy(worker, profile.certain, max_tokens=24, stop=(text, "never in any answer"))).choices[0]
    assert choice.text == plain.text[: plain.text.index(text)]
    assert (choice.finish_reason, choice.stop_reason) == (FinishReason.STOP, text)


@effect
async def stop_token_ids(worker: ModelWorker, profile: EngineProfile) -> None:
    plain = await ask_greedy(worker, profile.certain, max_tokens=12)
    token = plain.ids[6]
    answer = await ask_greedy(worker, profile.certain, max_tokens=12, stop_token_ids=(token,))
    before = plain.ids[: plain.ids.index(token)]
    assert answer.ids[: len(before)] == before and len(answer.ids) <= len(before) + 1
    assert (answer.finish_reason, answer.choices[0].stop_reason) == (FinishReason.STOP, token)


@effect
async def ignore_eos(worker: ModelWorker, profile: EngineProfile) -> None:
    plain = await ask_greedy(worker, profile.short, **profile.short_sampling)
    assert plain.finish_reason is FinishReason.STOP
    answer = await ask_greedy(worker, profile.short, **profile.short_sampling, ignore_eos=True, max_tokens=40)
    assert (answer.usage.completion_tokens, answer.finish_reason) == (40, FinishReason.LENGTH)


@effect
async def seed(worker: ModelWorker, profile: EngineProfile) -> None:
    """Run one request at a time: the arithmetic of some engines depends on the batch."""
    rounds: list[list[list[int]]] = []
    for _ in range(3):  # the first round fills the prompt cache, so that the other two compute the same
        rounds.append(
            [(await ask(worker, profile.certain, seed=seed, temperature=1.5, max_tokens=10)).ids for seed in (1, 2, 3)]
        )
    assert rounds[1] == rounds[2]
    assert _count_distinct(rounds[1]) > 1


@effect
async def n(worker: ModelWorker, profile: EngineProfile) -> None:
    answer = await ask(worker, profile.long, n=3, temperature=1.5, seed=7, max_tokens=12)
    assert sorted(answer.choices) == [0, 1, 2]
    assert _count_distinct([choice.ids for choice in answer.choices.values()]) > 1
    assert answer.usage.completion_tokens == sum(len(choice.ids) for choice in answer.choices.values())


@effect
async def best_of(worker: ModelWorker, profile: EngineProfile) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 7, "max_tokens": 12, "ignore_eos": True}
    answer = await ask(worker, profile.long, best_of=4, **options)
    assert list(answer.choices) == [0]
    assert answer.usage.completion_tokens == 4 * len(answer.ids), "four should be generated and one returned"
    assert answer.choices[0].logprobs == [], "logprobs were not requested"
    best = await ask(worker, profile.long, best_of=4, logprobs=0, **options)
    all_four = await ask(worker, profile.long, n=4, logprobs=0, **options)
    means = [
        sum(entry.logprob for entry in choice.logprobs) / len(choice.logprobs) for choice in all_four.choices.values()
    ]
    returned = [entry.logprob for entry in best.choices[0].logprobs]
    assert sum(returned) / len(returned) > min(means), "the returned output is not better than the worst of four"


@effect
async def num_beams(worker: ModelWorker, profile: EngineProfile) -> None:
    assert await _do_beams_differ(worker, profile, {"num_beams": 1}, {"num_beams": 4})


@effect
async def length_penalty(worker: ModelWorker, profile: EngineProfile) -> None:
    short, long = {"num_beams": 4, "length_penalty": -8.0}, {"num_beams": 4, "length_penalty": 8.0}
    assert await _do_beams_differ(worker, profile, short, long)


@effect
async def early_stopping(worker: ModelWorker, profile: EngineProfile) -> None:
    """The search ends once enough beams have ended, so some output differs."""
    late, early = (
        {"num_beams": 4, "length_penalty": 4.0},
        {"num_beams": 4, "length_penalty": 4.0, "early_stopping": True},
    )
    assert await _do_beams_differ(worker, profile, late, early)


async def _do_beams_differ(
    worker: ModelWorker, profile: EngineProfile, first_options: dict[str, Any], second_options: dict[str, Any]
) -> bool:
    for prompt in (profile.short, profile.long, profile.repeats, *profile.more):
        first = await ask_greedy(worker, prompt, **first_options)
        second = await ask_greedy(worker, prompt, **second_options)
        if first.ids != second.ids:
            return True
    return False


@effect
async def logprobs(worker: ModelWorker, profile: EngineProfile) -> None:
    choice = (await ask_greedy(worker, profile.long, logprobs=5, max_tokens=12)).choices[0]
    assert [entry.token_id for entry in choice.logprobs] == choice.ids
    for entry in choice.logprobs:
        assert len(entry.top) == 5
        values = [value for _, value in entry.top]
        assert values == sorted(values, reverse=True) and all(value <= 1e-4 for value in values)
        assert entry.top[0][0] == entry.token_id and abs(entry.top[0][1] - entry.logprob) < 1e-4
    alone = (await ask_greedy(worker, profile.long, logprobs=0, max_tokens=4)).choices[0]
    assert len(alone.logprobs) == 4 and all(entry.logprob <= 1e-4 for entry in alone.logprobs)


@effect
async def logit_bias(worker: ModelWorker, profile: EngineProfile) -> None:
    plain = await ask_greedy(worker, profile.long, max_tokens=8)
    banned = await ask_greedy(worker, profile.long, max_tokens=8, logit_bias={plain.ids[0]: -100.0})
    assert plain.ids[0] not in banned.ids
    forced = await ask_greedy(worker, profile.long, max_tokens=4, logit_bias={plain.ids[3]: 100.0})
    assert forced.ids == [plain.ids[3]] * 4


@effect
async def guided_json(worker: ModelWorker, profile: EngineProfile) -> None:
    answer = await ask(
        worker, profile.long, guided=Guided(json=json.dumps(SCHEMA)), max_tokens=120, temperature=0.7, seed=3
    )
    instance = json.loads(answer.text)
    assert set(instance) == {"name", "age"} and isinstance(instance["name"], str) and 0 <= instance["age"] <= 99


@effect
async def guided_regex(worker: ModelWorker, profile: EngineProfile) -> None:
    pattern = r"[0-9]{3}-[a-f]{4}( end)?"
    answer = await ask(worker, profile.long, guided=Guided(regex=pattern), temperature=0.7, seed=3)
    assert re.fullmatch(pattern, answer.text), answer.text


@effect
async def guided_grammar(worker: ModelWorker, profile: EngineProfile) -> None:
    answer = await ask_greedy(worker, profile.long, guided=Guided(grammar='root ::= "zebra " [0-9] [0-9] | "quagga"'))
    assert re.fullmatch(r"zebra \d\d|quagga", answer.text), answer.text


@effect
async def guided_choice(worker: ModelWorker, profile: EngineProfile) -> None:
    choices = ("violet", "ultramarine", "jade")
    answer = await ask_greedy(worker, profile.long, guided=Guided(choice=choices))
    assert answer.text in choices
    assert answer.finish_reason is FinishReason.STOP


@effect
async def lora(worker: ModelWorker, profile: EngineProfile) -> None:
    plain = await ask_greedy(worker, profile.certain, max_tokens=12)
    together = [
        make_request(profile.certain, lora, temperature=0.0, max_tokens=12)
        for lora in (profile.lora, None, profile.lora, None)
    ]
    answers = [answer.ids for answer in await ask_all(worker, together)]
    assert answers[1] == answers[3] == plain.ids, "the adapter leaks into other requests"
    assert (await ask_greedy(worker, profile.long, lora=profile.lora)).ids != (
        await ask_greedy(worker, profile.long)
    ).ids
    with pytest.raises(InvalidRequest, match="unknown LoRA adapter"):
        await ask_greedy(worker, profile.certain, lora="nobody")


@effect
async def embeddings(worker: ModelWorker, profile: EngineProfile) -> None:
    """For engines that embed with a generation model; test_features checks the others."""
    embedding = await worker.embed(["one text", "another", "one text"])
    assert embedding.vectors[0] == embedding.vectors[2] != embedding.vectors[1]
