from __future__ import annotations

import pytest

from enginebay.contract import GenerateRequest, Sampling
from enginebay.engines.llamacpp.call_queue import ActiveRequest, CallQueue, LibraryCall, split_choices
from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.request_body import LlamaBodyBuilder

_REQUEST = GenerateRequest(token_ids=(1,))


def _call(tokens: int, choices: int = 1) -> LibraryCall:
    outputs = [ChoiceOutput(choice, Sampling(), 9, lambda *_: []) for choice in range(choices)]
    return LibraryCall(ActiveRequest(1, LlamaBodyBuilder(_REQUEST, 64, {})), outputs, tokens)


@pytest.mark.parametrize(
    ("n", "together", "most", "sizes"),
    [(1, True, 8, [1]), (3, True, 8, [3]), (3, False, 8, [1, 1, 1]), (5, True, 2, [2, 2, 1]), (2, True, 0, [1, 1])],
)
def test_choices_go_together_as_far_as_they_fit(n: int, together: bool, most: int, sizes: list[int]) -> None:
    assert split_choices(n, together, most) == sizes


def test_calls_start_while_slots_and_cache_last() -> None:
    queue = CallQueue(free_slots=2, free_tokens=100)
    first, second, third = _call(60), _call(40), _call(1)
    for call in (first, second, third):
        queue.put(call)
    assert queue.admit() == [first, second]
    assert queue.admit() == []
    queue.release(second)
    assert queue.admit() == [third]


def test_no_call_overtakes_the_first_in_the_queue() -> None:
    queue = CallQueue(free_slots=8, free_tokens=100)
    running, large, small = _call(50), _call(60), _call(10)
    queue.put(running)
    assert queue.admit() == [running]
    queue.put(large)
    queue.put(small)
    assert queue.admit() == []
    queue.release(running)
    assert queue.admit() == [large, small]


def test_adapters_take_turns_in_the_order_of_their_requests() -> None:
    queue = CallQueue(free_slots=8, free_tokens=100)
    plain, more, tuned, later = _call(10), _call(10), _call(10), _call(10)
    tuned.request.adapter = "tiny"
    for call in (plain, more, tuned, later):
        queue.put(call)
    assert queue.admit() == [plain, more]
    queue.release(plain)
    assert queue.admit() == [], "the next one needs another adapter, and nobody overtakes it"
    queue.release(more)
    assert queue.admit() == [tuned]
    queue.release(tuned)
    assert queue.admit() == [later]


def test_choices_take_a_slot_each() -> None:
    queue = CallQueue(free_slots=3, free_tokens=100)
    queue.put(_call(10, choices=4))
    assert queue.admit() == []


def test_a_cancelled_request_leaves_the_queue() -> None:
    queue = CallQueue(free_slots=1, free_tokens=100)
    gone, stays = _call(10), _call(10)
    queue.put(gone)
    queue.put(stays)
    queue.drop_waiting(gone.request)
    assert queue.admit() == [stays]
