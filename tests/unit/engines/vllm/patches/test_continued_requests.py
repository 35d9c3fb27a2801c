"""The ids of a continued output reach vLLM's scheduler, grammar and model runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.contract import FinishReason
from enginebay.engines.vllm.patches import continued_requests
from enginebay.engines.vllm.patches.continued_requests import ContinuedOutput


def make_params(*ids: int, **fields: Any) -> Any:
    extra = {"enginebay_generated": list(ids)} if ids else None
    return SimpleNamespace(extra_args=extra, eos_token_id=2, stop_token_ids=[9], max_tokens=4, **fields)


class Request:
    def __init__(self, sampling_params: Any) -> None:
        self.sampling_params, self.request_id = sampling_params, "r"
        self.output: list[int] = []

    @classmethod
    def from_engine_core_request(cls, request: Any, block_hasher: Any) -> Any:
        return cls(request.sampling_params)

    def append_output_token_ids(self, ids: list[int]) -> None:
        self.output += ids


class Grammar:
    def __init__(self) -> None:
        self.accepted: list[int] = []

    def accept_tokens(self, request_id: str, ids: list[int]) -> bool:
        self.accepted += ids
        return 13 not in ids


def test_a_request_begins_with_its_output() -> None:
    class Patched(Request):
        pass

    continued_requests._append_ids_to_new_requests(Patched)
    assert Patched.from_engine_core_request(SimpleNamespace(sampling_params=make_params(5, 6)), None).output == [5, 6]
    for params in (make_params(), None):
        assert Patched.from_engine_core_request(SimpleNamespace(sampling_params=params), None).output == []


def test_a_grammar_accepts_the_output_once() -> None:
    class Manager:
        def _create_grammar(self, request: Any) -> Any:
            return Grammar()

    continued_requests._advance_new_grammars(Manager)
    assert Manager()._create_grammar(Request(make_params(5, 6))).accepted == [5, 6]
    assert Manager()._create_grammar(Request(make_params())).accepted == []
    with pytest.raises(ValueError, match="constraint"):
        Manager()._create_grammar(Request(make_params(13)))


def test_the_model_runner_keeps_the_output() -> None:
    class State:
        def __init__(self, params: Any) -> None:
            self.sampling_params = params
            self.output_token_ids: list[int] = []
            self.__post_init__()

        def __post_init__(self) -> None:
            self.initialized = True

    continued_requests._append_ids_in_model_runner(State)
    state = State(make_params(5, 6))
    assert state.output_token_ids == [5, 6] and state.initialized
    assert State(make_params()).output_token_ids == []


@pytest.mark.parametrize(
    ("ids", "end"),
    [
        ((5, 2), (FinishReason.STOP, None)),
        ((5, 9), (FinishReason.STOP, 9)),
        ((5, 6, 7, 8), (FinishReason.LENGTH, None)),
        ((5, 6), None),
    ],
)
def test_an_output_that_another_worker_completed_only_ends(ids: tuple[int, ...], end: Any) -> None:
    params = make_params()
    assert ContinuedOutput(ids, [1], params).find_end(SimpleNamespace(sampling_params=params)) == end
