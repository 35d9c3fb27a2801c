"""Sampling in, outputs back, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.contract import FinishReason, Guided, Sampling, TokenLogprobs
from enginebay.engines.vllm.request_stream import RequestStream, build_token_logprobs
from enginebay.engines.vllm.sampling import build_sampling_arguments, build_structured_outputs
from enginebay.errors import EngineFailed

NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}


def test_unset_values_are_passed_as_neutral() -> None:
    result = build_sampling_arguments(Sampling(), prompt_tokens=10, context=100)
    assert {name: result[name] for name in NEUTRAL} == NEUTRAL
    assert result["max_tokens"] == 90
    assert result["seed"] is None


def test_output_is_cut_to_the_context() -> None:
    result = build_sampling_arguments(Sampling(max_tokens=50, min_tokens=40), prompt_tokens=80, context=100)
    assert (result["max_tokens"], result["min_tokens"]) == (20, 20)


@pytest.mark.parametrize("sampling", [Sampling(do_sample=False, top_p=0.5), Sampling(temperature=0.0, top_k=3)])
def test_greedy_is_temperature_zero(sampling: Sampling) -> None:
    result = build_sampling_arguments(sampling, 1, 100)
    assert (result["temperature"], result["top_p"], result["top_k"]) == (0.0, 1.0, 0)


def test_greedy_with_several_choices_takes_the_likeliest_token_of_one() -> None:
    result = build_sampling_arguments(Sampling(temperature=0.0, n=3), 1, 100)
    assert (result["temperature"], result["top_k"], result["n"]) == (1.0, 1, 3)


def test_values_with_another_meaning_in_vllm_are_converted() -> None:
    result = build_sampling_arguments(Sampling(top_k=-1, top_p=0.0, seed=-1), 1, 100)
    assert result["top_k"] == 0
    assert 0 < result["top_p"] < 0.001
    assert result["seed"] not in (-1, None)


def test_every_seed_leaves_room_for_the_choices() -> None:
    for seed in (0, 7, 2**63 - 1, -(2**63)):
        result = build_sampling_arguments(Sampling(seed=seed), 1, 100)["seed"]
        assert 0 <= result < 2**63 - 128
    assert build_sampling_arguments(Sampling(seed=7), 1, 100)["seed"] == 7


def test_guided() -> None:
    assert build_structured_outputs(Guided(json="{}")) == {"json": '{"type": "object"}'}
    assert build_structured_outputs(Guided(json='{"type": "array"}')) == {"json": '{"type": "array"}'}
    assert build_structured_outputs(Guided(regex="a+")) == {"regex": "a+"}
    assert build_structured_outputs(Guided(grammar='root ::= "a"')) == {"grammar": 'root ::= "a"\n'}
    assert build_structured_outputs(Guided(choice=("a", "b"))) == {"choice": ["a", "b"]}


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def accepted(self, *args: Any) -> None:
        self.calls.append(("accepted", *args))

    def token(self, *args: Any) -> None:
        self.calls.append(("token", *args))

    def finish(self, *args: Any) -> None:
        self.calls.append(("finish", *args))

    def error(self, *args: Any) -> None:
        self.calls.append(("error", *args))

    def flush(self) -> None:
        self.calls.append(("flush",))


def output(
    text: str, ids: list[int], reason: str | None = None, index: int = 0, finished: bool = True, **more: Any
) -> SimpleNamespace:
    choice = SimpleNamespace(
        index=index, text=text, token_ids=ids, logprobs=None, finish_reason=reason, stop_reason=more.pop("stop", None)
    )
    vars(choice).update(more)
    return SimpleNamespace(
        prompt_token_ids=[1, 2, 3], num_cached_tokens=2, outputs=[choice], finished=finished and reason is not None
    )


def stream(logprobs: int | None = None) -> tuple[RequestStream, Recorder, dict[int, RequestStream]]:
    sink = Recorder()
    live: dict[int, RequestStream] = {}

    def failed(number: int, error: BaseException) -> None:
        live.pop(number)
        sink.error(number, error)

    live[7] = RequestStream(7, sink, live, failed, logprobs)
    return live[7], sink, live


def test_accepted_once_then_tokens_then_finish() -> None:
    one, sink, live = stream()
    one.put(output("Hel", [4]))
    one.put(output("lo", [5], "stop", stop="."))
    assert sink.calls == [
        ("accepted", 7, 3, 2),
        ("token", 7, "Hel", [4], 0, ()),
        ("token", 7, "lo", [5], 0, ()),
        ("finish", 7, FinishReason.STOP, 0, "."),
    ]
    assert live == {}


def test_choices_finish_one_by_one() -> None:
    one, sink, live = stream()
    one.put(output("a", [4], "length", index=1, finished=False))
    assert 7 in live
    one.put(output("b", [5], "stop", index=0))
    assert [call for call in sink.calls if call[0] == "finish"] == [
        ("finish", 7, FinishReason.LENGTH, 1, None),
        ("finish", 7, FinishReason.STOP, 0, None),
    ]
    assert live == {}


def test_nothing_comes_after_a_cancel() -> None:
    one, sink, live = stream()
    one.put(output("a", [4]))
    del live[7]
    before = list(sink.calls)
    one.put(output("", [], "abort"))
    one.put(RuntimeError("late"))
    assert sink.calls == before


def test_an_error_reaches_the_error_callback() -> None:
    one, sink, _ = stream()
    one.put(ValueError("no"))
    assert sink.calls[0][:2] == ("error", 7)


def test_an_unknown_finish_reason_is_an_error() -> None:
    one, sink, live = stream()
    one.put(output("", [], "error"))
    assert isinstance(sink.calls[-1][2], EngineFailed)
    assert live == {}


def probability(logprob: float, rank: int) -> SimpleNamespace:
    return SimpleNamespace(logprob=logprob, rank=rank)


def test_logprobs_of_the_new_tokens_alone_best_first() -> None:
    earlier = {9: probability(-9.0, 1)}
    sampled_third = {5: probability(-3.0, 3), 4: probability(-2.0, 2), 6: probability(-1.0, 1)}
    result = build_token_logprobs([5], [earlier, sampled_third], 2)
    assert result == [TokenLogprobs(5, -3.0, ((6, -1.0), (4, -2.0)))]
    assert build_token_logprobs([5], [sampled_third], 0) == [TokenLogprobs(5, -3.0, ())]
    assert build_token_logprobs([], [earlier], 2) == []
