"""The speed of an engine, fitted to batches of two lengths."""

from __future__ import annotations

import pytest

from enginebay.lab.study.engine_speed import BATCH, LONG_TOKENS, SHORT_TOKENS, summarize_speed
from enginebay.lab.workload.request_records import Record

PROMPT_S, TOKEN_S = 0.2, 0.01


def answer(begin_s: float, tokens: int, token_s: float = TOKEN_S) -> Record:
    first_s, last_s = begin_s + PROMPT_S, begin_s + PROMPT_S + token_s * (tokens - 1)
    return Record(0, 0.0, 0.0, first_s, last_s, last_s, 8, tokens)


def one_by_one(tokens: int) -> list[Record]:
    """An engine that runs one request at a time."""
    return [answer(index * (PROMPT_S + TOKEN_S * (tokens - 1)), tokens) for index in range(BATCH)]


def together(tokens: int) -> list[Record]:
    """An engine that reads the prompts one after the other, and then generates for all of them at a third of the speed."""
    return [answer(BATCH * PROMPT_S - PROMPT_S, tokens, 3 * TOKEN_S) for _ in range(BATCH)]


@pytest.mark.parametrize(
    ("batch", "seconds"),
    [(one_by_one, BATCH * (PROMPT_S + TOKEN_S * 127)), (together, BATCH * PROMPT_S + 3 * TOKEN_S * 127)],
)
def test_the_time_of_longer_answers_is_extrapolated(batch: object, seconds: float) -> None:
    assert callable(batch)
    speed = summarize_speed(2.0, answer(0.0, LONG_TOKENS), batch(SHORT_TOKENS), batch(LONG_TOKENS))
    assert speed.single_s(128) == pytest.approx(PROMPT_S + TOKEN_S * 127)
    assert speed.batch_s(128) == pytest.approx(seconds)
    assert speed.requests_per_s(128) == pytest.approx(BATCH / seconds)


def test_noise_makes_no_negative_time() -> None:
    long, short = [answer(0.0, 1)], [answer(0.5, 1)]  # the longer answers came first
    speed = summarize_speed(2.0, answer(0.0, LONG_TOKENS), short, long)
    assert speed.batch_token_s == 0 and speed.batch_s(1) > 0 and speed.requests_per_s(1_000) > 0
