from __future__ import annotations

import pytest

from enginebay.contract import GenerateRequest, Sampling
from enginebay.engines.llamacpp.body import BodyMaker
from enginebay.engines.llamacpp.calls import Call, Held, Queue, group_sizes
from enginebay.engines.llamacpp.output import Output

_REQUEST = GenerateRequest(token_ids=(1,))


def _call(tokens: int, choices: int = 1) -> Call:
    outputs = [Output(choice, Sampling(), 9, lambda *_: []) for choice in range(choices)]
    return Call(Held(1, BodyMaker(_REQUEST, 64, {})), outputs, tokens)


@pytest.mark.parametrize(
    ("n", "together", "most", "sizes"),
    [(1, True, 8, [1]), (3, True, 8, [3]), (3, False, 8, [1, 1, 1]), (5, True, 2, [2, 2, 1]), (2, True, 0, [1, 1])],
)
def test_choices_go_together_as_far_as_they_fit(n: int, together: bool, most: int, sizes: list[int]) -> None:
    assert group_sizes(n, together, most) == sizes


def test_calls_start_while_slots_and_cache_last() -> None:
    queue = Queue(slots=2, tokens=100)
    first, second, third = _call(60), _call(40), _call(1)
    for call in (first, second, third):
        queue.put(call)
    assert queue.startable() == [first, second]
    assert queue.startable() == []
    queue.give_back(second)
    assert queue.startable() == [third]


def test_nobody_overtakes_the_first_in_line() -> None:
    queue = Queue(slots=8, tokens=100)
    running, large, small = _call(50), _call(60), _call(10)
    queue.put(running)
    assert queue.startable() == [running]
    queue.put(large)
    queue.put(small)
    assert queue.startable() == []
    queue.give_back(running)
    assert queue.startable() == [large, small]


def test_adapters_take_turns_in_the_order_of_their_requests() -> None:
    queue = Queue(slots=8, tokens=100)
    plain, more, tuned, later = _call(10), _call(10), _call(10), _call(10)
    tuned.held.adapter = "tiny"
    for call in (plain, more, tuned, later):
        queue.put(call)
    assert queue.startable() == [plain, more]
    queue.give_back(plain)
    assert queue.startable() == [], "the next one needs another adapter, and nobody overtakes it"
    queue.give_back(more)
    assert queue.startable() == [tuned]
    queue.give_back(tuned)
    assert queue.startable() == [later]


def test_choices_take_a_slot_each() -> None:
    queue = Queue(slots=3, tokens=100)
    queue.put(_call(10, choices=4))
    assert queue.startable() == []


def test_a_cancelled_request_leaves_the_line() -> None:
    queue = Queue(slots=1, tokens=100)
    gone, stays = _call(10), _call(10)
    queue.put(gone)
    queue.put(stays)
    queue.drop(gone.held)
    assert queue.startable() == [stays]
