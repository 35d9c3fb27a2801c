from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract import Done, Energy, Facts, GenerateRequest, Guided, Load, Sampling, Timing, Usage
from enginebay.worker import codec
from enginebay.worker.proto import worker_pb2 as pb

FULL = Sampling(
    temperature=0.5, top_p=0.25, top_k=-1, min_p=0.125, repetition_penalty=1.5, presence_penalty=-1.0, frequency_penalty=1.0,
    no_repeat_ngram_size=3, do_sample=False, min_tokens=2, max_tokens=9, stop=("a", "é"), stop_token_ids=(1, 2), ignore_eos=True,
    seed=-7, n=2, best_of=3, num_beams=4, length_penalty=-2.0, early_stopping=True, logprobs=0, logit_bias={5: -1.5},
    guided=Guided(choice=("x", "y")),
)  # fmt: skip


def _round_trip(request: GenerateRequest) -> GenerateRequest:
    return codec.decode_submit(pb.Submit.FromString(codec.encode_submit(1, request).SerializeToString()))


def test_every_parameter_crosses_the_wire() -> None:
    assert all(getattr(FULL, field.name) != getattr(Sampling(), field.name) for field in fields(Sampling))
    request = GenerateRequest(token_ids=(1, 2, 3), sampling=FULL, lora="adapter", energy=True)
    assert _round_trip(request) == request


def test_the_output_to_continue_crosses_the_wire() -> None:
    request = GenerateRequest(token_ids=(1,), generated=(2, 70_000))
    assert _round_trip(request) == request


def test_unset_stays_unset() -> None:
    request = GenerateRequest(token_ids=(1,))
    assert _round_trip(request) == request


@given(
    st.builds(
        Guided,
        json=st.just("{}"),
    )
    | st.builds(Guided, regex=st.text(min_size=1))
    | st.builds(Guided, grammar=st.text(min_size=1))
    | st.builds(Guided, choice=st.lists(st.text(min_size=1), min_size=1).map(tuple))
)
def test_constraints_cross_the_wire(guided: Guided) -> None:
    request = GenerateRequest(token_ids=(1,), sampling=Sampling(guided=guided))
    assert _round_trip(request) == request


@pytest.mark.parametrize(
    "energy", [None, Energy(12.5, 90.25), Energy(0.0, 90.0), Energy(absent="no meter"), Energy(None, 90.0, "shared")]
)
def test_done_crosses_the_wire(energy: Energy | None) -> None:
    done = Done(Usage(7, 5, 3), Timing(0.25, 1.5), energy)
    message = pb.Done.FromString(codec.encode_done(9, done).SerializeToString())
    assert message.request == 9 and codec.decode_done(message) == done


def test_facts_and_loads_cross_as_json() -> None:
    facts = Facts("fake", "1", "m", 10, 2, 3, {"a": "b"}, {"x": 1}, {"x": 2}, ["w"], {"n": "why"}, 1.5)
    assert codec.decode_facts(codec.encode_facts(facts)) == facts
    load = Load("fake", "a:B", "m", "p", {"x": [1]}, {"l": "p"}, "embed", True)
    assert codec.decode_load(codec.encode_load(load)) == load
