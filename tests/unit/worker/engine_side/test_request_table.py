from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginebay.contract import FinishReason, GenerateRequest, Sampling, TokenLogprobs
from enginebay.errors import InvalidRequest
from enginebay.worker.engine_side.output_queue import OutputQueue, to_columns
from enginebay.worker.engine_side.request_table import RequestTable


class Recorder:
    """An engine that only records calls."""

    def __init__(self) -> None:
        self.submitted: dict[int, GenerateRequest] = {}
        self.cancelled: list[int] = []
        self.failure_to_raise: Exception | None = None

    def submit(self, number: int, request: GenerateRequest) -> None:
        if self.failure_to_raise is not None:
            raise self.failure_to_raise
        self.submitted[number] = request

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)


@pytest.fixture
def engine() -> Recorder:
    return Recorder()


@pytest.fixture
def table(engine: Recorder) -> Any:
    return RequestTable(engine)  # type: ignore[arg-type]


def _request(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(token_ids=(1, 2, 3), sampling=Sampling(**sampling))


def _take(queue: OutputQueue) -> Any:
    queue.flush()
    return queue.take()


def test_two_streams_with_the_same_number_do_not_mix(table: RequestTable) -> None:
    left, right = table.open_queue(), table.open_queue()
    first, second = table.submit(1, left, _request()), table.submit(1, right, _request())
    table.token(first, "a", (10,))
    table.token(second, "b", (11,))
    table.flush()
    assert list(_take(left).text) == ["a"]
    assert list(_take(right).text) == ["b"]


def test_done_comes_after_the_last_choice_with_the_counts(table: RequestTable) -> None:
    queue = table.open_queue()
    number = table.submit(7, queue, _request(n=2))
    table.accepted(number, 3, 2)
    table.token(number, "a", (10,), 0)
    table.finish(number, FinishReason.STOP, 0, "x")
    assert not _take(queue).done
    table.token(number, "bc", (11, 12), 1)
    table.finish(number, FinishReason.LENGTH, 1)
    flush = _take(queue)
    assert [(done.request, done.prompt_tokens, done.completion_tokens, done.cached_tokens) for done in flush.done] == [
        (7, 3, 3, 2)
    ]
    assert list(flush.count) == [2] and list(flush.choice) == [1]


def test_output_after_the_end_is_ignored(table: RequestTable) -> None:
    queue = table.open_queue()
    number = table.submit(1, queue, _request())
    table.finish(number, FinishReason.STOP)
    _take(queue)
    table.token(number, "late", (1,))
    table.finish(number, FinishReason.STOP)
    queue.put_finish(9, 0, FinishReason.STOP, None)  # so that there is a message at all
    flush = _take(queue)
    assert not flush.text and [finish.request for finish in flush.finish] == [9]


def test_cancel_reaches_the_engine_once(table: RequestTable, engine: Recorder) -> None:
    queue = table.open_queue()
    number = table.submit(1, queue, _request())
    table.cancel(queue, 1)
    table.cancel(queue, 1)
    assert engine.cancelled == [number]


def test_closing_a_queue_cancels_its_requests(table: RequestTable, engine: Recorder) -> None:
    first, second = table.open_queue(), table.open_queue()
    number = table.submit(1, first, _request())
    table.submit(1, second, _request())
    table.close_queue(first)
    assert engine.cancelled == [number]
    assert first.take() is None


def test_an_engine_error_becomes_a_failure(table: RequestTable, engine: Recorder) -> None:
    queue = table.open_queue()
    engine.failure_to_raise = InvalidRequest("no", "do", param="seed")
    table.submit(4, queue, _request())
    failure = queue.take().failure[0]  # type: ignore[union-attr]
    assert (failure.request, failure.kind, failure.message, failure.param) == (4, "invalid_request", "no", "seed")
    engine.failure_to_raise = ZeroDivisionError("boom")
    table.submit(5, queue, _request())
    assert queue.take().failure[0].kind == "engine_failed"  # type: ignore[union-attr]


def test_best_of_keeps_the_most_probable(table: RequestTable, engine: Recorder) -> None:
    queue = table.open_queue()
    number = table.submit(1, queue, _request(n=1, best_of=3))
    sampling = engine.submitted[number].sampling
    assert (sampling.n, sampling.best_of, sampling.logprobs) == (3, None, 0)
    for choice, value in enumerate((-3.0, -0.5, -1.0)):
        table.token(number, f"text{choice}", (choice,), choice, (TokenLogprobs(choice, value),))
        table.finish(number, FinishReason.STOP, choice)
    flush = _take(queue)
    assert [text for text in flush.text if text] == ["text1"] and not flush.choice and not flush.logprobs
    assert flush.done[0].completion_tokens == 3


def test_tokens_held_back_by_best_of_are_counted_as_they_come(table: RequestTable) -> None:
    """The server must count them even if the client leaves early."""
    queue = table.open_queue()
    number = table.submit(1, queue, _request(n=1, best_of=2))
    for choice, ids in ((0, (10,)), (1, (11,)), (1, (12, 13))):
        table.token(number, "a", ids, choice, [TokenLogprobs(token, -0.1) for token in ids])
    flush = _take(queue)
    assert list(flush.request) == [1] * 4 and list(flush.text) == [""] * 4 and list(flush.count) == [0] * 4
    assert not flush.token_id and not flush.choice and not flush.logprobs


def test_best_of_equal_to_n_is_plain_n(table: RequestTable, engine: Recorder) -> None:
    number = table.submit(1, table.open_queue(), _request(n=2, best_of=2))
    sampling = engine.submitted[number].sampling
    assert (sampling.n, sampling.best_of, sampling.logprobs) == (2, None, None)


def test_columns_leave_out_default_values() -> None:
    flush = to_columns([(1, "a", (10,), 0, ()), (2, "b", (11,), 0, ())])
    assert not flush.count and not flush.choice and not flush.logprobs
    assert (list(flush.request), list(flush.text), list(flush.token_id)) == ([1, 2], ["a", "b"], [10, 11])


def test_a_slow_reader_gets_everything_in_order() -> None:
    queue = OutputQueue()
    for number in range(10_000):
        queue.put_row((1, str(number), (number,), 0, ()))
    queue.put_finish(1, 0, FinishReason.STOP, None)
    queue.flush()
    seen: list[int] = []
    while True:
        flush = queue.take()
        assert flush is not None
        seen += flush.token_id
        if flush.finish:
            break
    assert seen == list(range(10_000))


def test_a_continued_request_counts_both_parts(table: RequestTable) -> None:
    """The engine may report the output so far as prompt."""
    queue = table.open_queue()
    number = table.submit(1, queue, replace(_request(), generated=(7, 8)))
    table.accepted(number, 5, cached_tokens=4)
    table.token(number, "a", (9,))
    table.finish(number, FinishReason.STOP)
    [done] = _take(queue).done
    assert (done.prompt_tokens, done.completion_tokens, done.cached_tokens) == (3, 3, 3)
    assert table.tokens == 1
