"""When six minutes under load have passed: growth of memory, wrong answers, a load that was none."""

from __future__ import annotations

import pytest

from bench.gpu.soak import failures, requests, verdicts
from enginebay.lab.client.launch import Fired
from enginebay.lab.requests import Record, Request

ASKED = [Request((1,), 1, 2) for _ in range(3)]


def fired(*records: Record, window_s: float = 11.0) -> Fired:
    return Fired(list(records), {}, 0.0, window_s)


def answer(index: int, **more: object) -> Record:
    return Record(index, 0.0, 0.0, **{"output_tokens": 2, **more})  # type: ignore[arg-type]


def test_requests_are_the_same_for_a_seed_and_of_many_lengths() -> None:
    found = requests(1, 5000)
    assert found == requests(1, 5000)
    assert found != requests(2, 5000)
    assert len(found) == 5000
    lengths, outputs = {len(one.prompt) for one in found}, {one.output_tokens or 0 for one in found}
    assert (min(lengths), max(lengths)) == (64, 256)
    assert (min(outputs), max(outputs)) == (32, 192)


def test_what_grew_before_it_settled_does_not_count() -> None:
    samples = [
        {"at_s": float(at), "server": 50.0 if at < 60 else 100.0, "engine": 100.0 + at} for at in range(0, 361, 5)
    ]
    found = verdicts(samples, 60.0)
    assert found["server"] == 0.0
    assert found["engine"] == pytest.approx(300 / 310)
    assert "gpu" not in found
    assert verdicts([{"at_s": 0.0, "gpu": 1.0}], 60.0) == {"gpu": None}


def test_wrong_answers_and_a_load_that_ended_early_are_failures() -> None:
    assert failures(fired(answer(0), answer(1)), ASKED, 10.0) == []
    assert failures(fired(answer(1, error="closed", detail="gone")), ASKED, 10.0) == ["request 1: closed gone"]
    assert failures(fired(answer(0, output_tokens=1)), ASKED, 10.0) == ["request 0: 1 tokens instead of 2"]
    assert "3 requests were sent before" in failures(fired(*map(answer, range(3))), ASKED, 10.0)[0]
    assert failures(fired(answer(0), window_s=9.0), ASKED, 10.0) == ["the load ended after 9 s of 10"]
