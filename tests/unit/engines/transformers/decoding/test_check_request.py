"""Requests that cannot be served as asked."""

from __future__ import annotations

import pytest

from enginebay.contract import GenerateRequest, Sampling
from enginebay.engines.transformers.decoding.sequence_state import check_request
from enginebay.errors import ContextOverflow, InvalidRequest


def request(prompt: int, lora: str | None = None, **sampling: int) -> GenerateRequest:
    return GenerateRequest(token_ids=tuple(range(1, prompt + 1)), sampling=Sampling(**sampling), lora=lora)  # type: ignore[arg-type]


def test_the_context_may_be_filled_to_the_end() -> None:
    check_request(request(90, max_tokens=10), 100, set())
    check_request(request(99), 100, set())


@pytest.mark.parametrize(
    ("invalid", "numbers"), [(request(130, max_tokens=10), "130.*100"), (request(100), "100.*100")]
)
def test_overflow_names_the_numbers(invalid: GenerateRequest, numbers: str) -> None:
    with pytest.raises(ContextOverflow, match=numbers):
        check_request(invalid, 100, set())


def test_unknown_adapter() -> None:
    check_request(request(1, lora="a"), 100, {"a"})
    with pytest.raises(InvalidRequest, match="unknown LoRA adapter 'b'"):
        check_request(request(1, lora="b"), 100, {"a"})


def test_more_answers_than_beams() -> None:
    check_request(request(1, num_beams=3, n=3), 100, set())
    with pytest.raises(InvalidRequest, match="n = 4 exceeds num_beams = 3"):
        check_request(request(1, num_beams=3, n=4), 100, set())
