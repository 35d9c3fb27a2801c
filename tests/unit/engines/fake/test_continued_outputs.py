"""An output that another engine began: wherever it was cut, both parts are the whole."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from enginebay.contract import FinishReason, GenerateRequest, Guided, Load, Sampling
from enginebay.engines.fake.engine import FakeEngine

Row = tuple[str, tuple[int, ...]]
End = tuple[FinishReason, str | int | None]


class RecordingSink:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.end: End | None = None
        self.ended = threading.Event()

    def token(self, number: int, text: str, token_ids: Any, choice: int = 0, logprobs: Any = ()) -> None:
        self.rows.append((text, tuple(token_ids)))

    def finish(self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None) -> None:
        self.end = (reason, stop_reason)

    def flush(self, ends_step: bool = True) -> None:
        if self.end is not None:
            self.ended.set()


def run(request: GenerateRequest, **settings: Any) -> tuple[list[Row], End | None]:
    engine, sink = FakeEngine(Load("fake", "", "toy", "", settings)), RecordingSink()
    engine.start(sink)  # type: ignore[arg-type]
    engine.submit(1, request)
    assert sink.ended.wait(10)
    engine.close()
    return sink.rows, sink.end


ACCENTS = "naïve 🙂🙃 ЖЖ 漢字"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}, {}),
    "seeded": ({"temperature": 1.0, "seed": 3, "max_tokens": 12, "ignore_eos": True}, {}),
    "penalties": ({"temperature": 0.0, "max_tokens": 12, "min_tokens": 8, "frequency_penalty": 0.9}, {}),
    "ngrams": ({"temperature": 0.0, "max_tokens": 12, "no_repeat_ngram_size": 2, "ignore_eos": True}, {}),
    "choice": ({"temperature": 0.0, "guided": Guided(choice=("hello", "help"))}, {}),
    "characters": ({}, {"script": ACCENTS}),
    "stop string": ({"stop": ("END", "EN-")}, {"script": "one EN EN- END"}),
    "held back text": ({"stop": ("END",), "max_tokens": 6}, {"script": "one EN EN- END"}),
    "stop token": ({"stop_token_ids": (ord("!"),), "min_tokens": 4}, {"script": "a!bcd!e"}),
}


@pytest.mark.parametrize("case", CASES)
def test_both_parts_are_the_whole(case: str) -> None:
    sampling, settings = CASES[case]
    request = GenerateRequest(token_ids=tuple(b"hello"), sampling=Sampling(**sampling))
    rows, end = run(request, **settings)
    for cut in range(1, len(rows) + 1):
        sent = [token for _, ids in rows[:cut] for token in ids]
        rest, rest_end = run(replace(request, generated=tuple(sent)), **settings)
        after = [row for row in rows[cut:] if row[1]]
        assert [row for row in rest if row[1]] == after and rest_end == end, f"cut after {cut}"
        text = "".join(text for text, ids in rows[:cut] if ids) + "".join(text for text, _ in rest)
        assert text == "".join(text for text, _ in rows)
