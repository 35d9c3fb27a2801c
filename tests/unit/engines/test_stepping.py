"""SteppingEngine: order of events, finish reasons, cancellation and library errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from enginebay.contract import FinishReason, GenerateRequest, Load, Probe, Sampling, TokenLogprobs
from enginebay.engines.stepping import SteppingEngine, Tokens
from enginebay.errors import ContextOverflow, EnginebayError, Unsupported


class Counting(SteppingEngine):
    """Counts up from the prompt's length, for ever or until a tenth token."""

    kind = "counting"
    context_length = 50

    @classmethod
    def probe(cls) -> Probe:
        return Probe("1")

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(text.encode())

    def answer(self, request: GenerateRequest, choice: int) -> Tokens:
        start = len(request.token_ids or ())
        if start == 13:
            raise RuntimeError("the library is superstitious")
        for at in range(10**6 if request.sampling.ignore_eos else 10):
            yield start + at, f"{start + at} "


class Recorder:
    """A sink that records all events."""

    def __init__(self) -> None:
        self.accepted_tokens: dict[int, int] = {}
        self.text: dict[tuple[int, int], str] = {}
        self.ids: dict[tuple[int, int], list[int]] = {}
        self.ends: dict[tuple[int, int], tuple[FinishReason, str | int | None]] = {}
        self.errors: dict[int, EnginebayError] = {}
        self.order: list[int | str] = []
        self.flushed = threading.Condition()

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None:
        self.accepted_tokens[number] = prompt_tokens

    def token(
        self, number: int, text: str, token_ids: Sequence[int], choice: int = 0, logprobs: Sequence[TokenLogprobs] = ()
    ) -> None:
        assert number in self.accepted_tokens
        self.text[number, choice] = self.text.get((number, choice), "") + text
        self.ids.setdefault((number, choice), []).extend(token_ids)
        self.order.append(number)

    def finish(self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None) -> None:
        assert (number, choice) not in self.ends
        self.ends[number, choice] = (reason, stop_reason)

    def error(self, number: int, error: EnginebayError) -> None:
        self.errors[number] = error

    def flush(self) -> None:
        self.order.append("flush")
        with self.flushed:
            self.flushed.notify_all()

    def wait_for(self, *numbers: int) -> None:
        with self.flushed:
            done = self.flushed.wait_for(
                lambda: all((number, 0) in self.ends or number in self.errors for number in numbers), timeout=30
            )
        assert done, "the requests did not end"


@pytest.fixture
def engine() -> Counting:
    return Counting(Load("counting", "here:Counting", "model", ""))


def request(length: int = 3, **sampling: object) -> GenerateRequest:
    return GenerateRequest(token_ids=(1,) * length, sampling=Sampling(**sampling))  # type: ignore[arg-type]


def run(engine: Counting, *requests: GenerateRequest) -> Recorder:
    sink = Recorder()
    for number, submitted in enumerate(requests):
        engine.submit(number, submitted)
    engine.start(sink)
    sink.wait_for(*range(len(requests)))
    engine.close()
    return sink


def test_tokens_come_until_the_generator_ends(engine: Counting) -> None:
    sink = run(engine, request())
    assert sink.accepted_tokens == {0: 3}
    assert sink.ids[0, 0] == list(range(3, 13))
    assert sink.ends[0, 0] == (FinishReason.STOP, None)
    assert engine.running() == 0


def test_max_tokens_and_the_context_end_it(engine: Counting) -> None:
    sink = run(engine, request(max_tokens=4), request(45, ignore_eos=True))
    assert len(sink.ids[0, 0]) == 4
    assert len(sink.ids[1, 0]) == 5
    assert sink.ends[0, 0] == sink.ends[1, 0] == (FinishReason.LENGTH, None)


def test_stop_strings_are_found_across_tokens_and_cut_off(engine: Counting) -> None:
    sink = run(engine, request(stop=("5 6",)), request(stop_token_ids=(5,)), request(stop=("12 13",)))
    assert (sink.text[0, 0], sink.ends[0, 0]) == ("3 4 ", (FinishReason.STOP, "5 6"))
    assert (sink.text[1, 0], sink.ends[1, 0]) == ("3 4 ", (FinishReason.STOP, 5))
    assert sink.text[2, 0].endswith("11 12 "), "text held back for an unmatched stop string must be sent"


def test_every_choice_ends_on_its_own(engine: Counting) -> None:
    sink = run(engine, request(n=3, max_tokens=2))
    assert {choice for _, choice in sink.ends} == {0, 1, 2}


def test_requests_advance_together_one_token_a_step(engine: Counting) -> None:
    sink = run(engine, request(max_tokens=2), request(max_tokens=2))
    assert sink.order == [0, 1, "flush", 0, 1, "flush"]


def test_a_failing_library_ends_its_own_request_only(engine: Counting) -> None:
    sink = run(engine, request(13), request(max_tokens=2))
    assert "superstitious" in sink.errors[0].message
    assert sink.ends[1, 0] == (FinishReason.LENGTH, None)


def test_cancel_stops_the_work(engine: Counting) -> None:
    engine.context_length = 10**7
    sink = Recorder()
    engine.submit(0, request(ignore_eos=True))
    engine.start(sink)
    while not sink.ids:
        time.sleep(0.001)
    engine.cancel(0)
    assert engine.running() == 0

    def is_idle() -> bool:
        count = len(sink.ids[0, 0])
        time.sleep(0.05)
        return len(sink.ids[0, 0]) == count

    assert any(is_idle() for _ in range(20))  # after the step in progress
    engine.close()


def test_a_prompt_longer_than_the_context_is_refused(engine: Counting) -> None:
    with pytest.raises(ContextOverflow, match=r"60 tokens.*50"):
        engine.submit(0, request(60))


def test_embeddings_are_refused(engine: Counting) -> None:
    with pytest.raises(Unsupported):
        engine.embed([[1]])


def test_facts_show_what_runs(engine: Counting) -> None:
    facts = engine.facts()
    assert (facts.kind, facts.version, facts.context_length, facts.max_batch) == ("counting", "1", 50, 64)
    assert facts.memory_bytes > 1_000_000 or not Path("/proc/self/statm").exists()
