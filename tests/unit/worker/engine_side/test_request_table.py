from __future__ import annotations

from typing import Any

import pytest

from enginebay.contract import FinishReason, GenerateRequest, Sampling, TokenLogprobs
from enginebay.errors import InvalidRequest
from enginebay.worker.engine_side.output_queue import OutputQueue, to_columns
from enginebay.worker.engine_side.request_table import RequestTable


class Recorder:
    """An engine that only remembers what it was told."""

    def __init__(self) -> None:
        self.submitted: dict[int, GenerateRequest] = {}
        self.cancelled: list[int] = []
        self.refuse: Exception | None = None

    def submit(self, number: int, request: GenerateRequest) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.submitted[number] = request

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)


@pytest.fixture
def engine() -> Recorder:
    return Recorder()


@pytest.fixture
def ledger(engine: Recorder) -> Any:
    return RequestTable(engine)  # type: ignore[arg-type]


def _request(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(token_ids=(1, 2, 3), sampling=Sampling(**sampling))


def _take(outbox: OutputQueue) -> Any:
    outbox.flush()
    return outbox.take()


def test_two_sessions_with_the_same_number_do_not_mix(ledger: RequestTable) -> None:
    one, other = ledger.open_queue(), ledger.open_queue()
    first, second = ledger.submit(1, one, _request()), ledger.submit(1, other, _request())
    ledger.token(first, "a", (10,))
    ledger.token(second, "b", (11,))
    ledger.flush()
    assert list(_take(one).text) == ["a"]
    assert list(_take(other).text) == ["b"]


def test_done_comes_after_the_last_choice_with_the_counts(ledger: RequestTable) -> None:
    outbox = ledger.open_queue()
    number = ledger.submit(7, outbox, _request(n=2))
    ledger.accepted(number, 3, 2)
    ledger.token(number, "a", (10,), 0)
    ledger.finish(number, FinishReason.STOP, 0, "x")
    assert not _take(outbox).done
    ledger.token(number, "bc", (11, 12), 1)
    ledger.finish(number, FinishReason.LENGTH, 1)
    flush = _take(outbox)
    assert [(one.request, one.prompt_tokens, one.completion_tokens, one.cached_tokens) for one in flush.done] == [
        (7, 3, 3, 2)
    ]
    assert list(flush.count) == [2] and list(flush.choice) == [1]


def test_what_comes_after_the_end_is_ignored(ledger: RequestTable) -> None:
    outbox = ledger.open_queue()
    number = ledger.submit(1, outbox, _request())
    ledger.finish(number, FinishReason.STOP)
    _take(outbox)
    ledger.token(number, "late", (1,))
    ledger.finish(number, FinishReason.STOP)
    outbox.put_finish(9, 0, FinishReason.STOP, None)  # something else, so that there is a message at all
    flush = _take(outbox)
    assert not flush.text and [one.request for one in flush.finish] == [9]


def test_cancel_reaches_the_engine_once(ledger: RequestTable, engine: Recorder) -> None:
    outbox = ledger.open_queue()
    number = ledger.submit(1, outbox, _request())
    ledger.cancel(outbox, 1)
    ledger.cancel(outbox, 1)
    assert engine.cancelled == [number]


def test_a_session_that_ends_cancels_what_it_had(ledger: RequestTable, engine: Recorder) -> None:
    mine, theirs = ledger.open_queue(), ledger.open_queue()
    number = ledger.submit(1, mine, _request())
    ledger.submit(1, theirs, _request())
    ledger.close_queue(mine)
    assert engine.cancelled == [number]
    assert mine.take() is None


def test_an_engine_that_refuses_gives_a_failure(ledger: RequestTable, engine: Recorder) -> None:
    outbox = ledger.open_queue()
    engine.refuse = InvalidRequest("no", "do", param="seed")
    ledger.submit(4, outbox, _request())
    failure = outbox.take().failure[0]  # type: ignore[union-attr]
    assert (failure.request, failure.kind, failure.message, failure.param) == (4, "invalid_request", "no", "seed")
    engine.refuse = ZeroDivisionError("boom")
    ledger.submit(5, outbox, _request())
    assert outbox.take().failure[0].kind == "engine_failed"  # type: ignore[union-attr]


def test_best_of_keeps_the_most_probable(ledger: RequestTable, engine: Recorder) -> None:
    outbox = ledger.open_queue()
    number = ledger.submit(1, outbox, _request(n=1, best_of=3))
    asked = engine.submitted[number].sampling
    assert (asked.n, asked.best_of, asked.logprobs) == (3, None, 0)
    for choice, value in enumerate((-3.0, -0.5, -1.0)):
        ledger.token(number, f"text{choice}", (choice,), choice, (TokenLogprobs(choice, value),))
        ledger.finish(number, FinishReason.STOP, choice)
    flush = _take(outbox)
    assert [text for text in flush.text if text] == ["text1"] and not flush.choice and not flush.logprobs
    assert flush.done[0].completion_tokens == 3


def test_tokens_that_best_of_holds_back_are_told_as_they_come(ledger: RequestTable) -> None:
    """Whoever pays for them may leave before the end."""
    outbox = ledger.open_queue()
    number = ledger.submit(1, outbox, _request(n=1, best_of=2))
    for choice, ids in ((0, (10,)), (1, (11,)), (1, (12, 13))):
        ledger.token(number, "a", ids, choice, [TokenLogprobs(one, -0.1) for one in ids])
    flush = _take(outbox)
    assert list(flush.request) == [1] * 4 and list(flush.text) == [""] * 4 and list(flush.count) == [0] * 4
    assert not flush.token_id and not flush.choice and not flush.logprobs


def test_best_of_equal_to_n_is_plain_n(ledger: RequestTable, engine: Recorder) -> None:
    number = ledger.submit(1, ledger.open_queue(), _request(n=2, best_of=2))
    asked = engine.submitted[number].sampling
    assert (asked.n, asked.best_of, asked.logprobs) == (2, None, None)


def test_columns_leave_out_the_usual_values() -> None:
    flush = to_columns([(1, "a", (10,), 0, ()), (2, "b", (11,), 0, ())])
    assert not flush.count and not flush.choice and not flush.logprobs
    assert (list(flush.request), list(flush.text), list(flush.token_id)) == ([1, 2], ["a", "b"], [10, 11])


def test_a_slow_reader_gets_everything_in_order() -> None:
    outbox = OutputQueue()
    for number in range(10_000):
        outbox.put_row((1, str(number), (number,), 0, ()))
    outbox.put_finish(1, 0, FinishReason.STOP, None)
    outbox.flush()
    seen: list[int] = []
    while True:
        flush = outbox.take()
        assert flush is not None
        seen += flush.token_id
        if flush.finish:
            break
    assert seen == list(range(10_000))
