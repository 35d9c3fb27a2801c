"""Sound runs for validity tests, and parts to break them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.workload.request_records import Record, Request

TOKENS = 16


def make_record(index: int, at_s: float, took_s: float = 1.0, **changes: Any) -> Record:
    """An answered request of 16 tokens."""
    sound = Record(
        index=index,
        intended_s=at_s,
        sent_s=at_s + 0.0005,
        first_s=at_s + took_s / 4,
        last_s=at_s + took_s,
        end_s=at_s + took_s,
        input_tokens=32,
        output_tokens=TOKENS,
        events=TOKENS,
        status=200,
    )
    return replace(sound, **changes)


def make_failed(index: int, at_s: float, error: str) -> Record:
    return Record(index=index, intended_s=at_s, sent_s=at_s, end_s=at_s + 0.1, error=error)


def make_paced(count: int = 400, rate: float = 10.0, took_s: float = 1.0) -> list[Record]:
    return [make_record(index, index / rate, took_s) for index in range(count)]


def make_open_loop(records: list[Record] | None = None, **changes: Any) -> RunFacts:
    """40 s at a constant 10 requests/s, each answered after a second; the window ends with the last answer."""
    own = make_paced() if records is None else records
    window_s = max((one.end_s or 0.0 for one in own), default=1.0) or 1.0
    sound = RunFacts(own, window_s=window_s, profile="constant", rate_per_s=10.0, requests=make_requests(len(own)))
    return replace(sound, **changes)


def make_closed_loop(concurrency: int = 4, rounds: int = 100, **changes: Any) -> RunFacts:
    """A closed loop of one-second requests."""
    own = [
        make_record(turn * concurrency + lane, float(turn), sent_s=float(turn), intended_s=float(turn))
        for turn in range(rounds)
        for lane in range(concurrency)
    ]
    sound = RunFacts(
        own, window_s=float(rounds), profile="closed", concurrency=concurrency, requests=make_requests(len(own))
    )
    return replace(sound, **changes)


def make_requests(count: int) -> list[Request]:
    return [Request(prompt=(1, 2, 3), input_tokens=32, output_tokens=TOKENS)] * count
