"""The trial of a large constraint: a runaway ends with its child process, and nobody waits for it twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.constraints.constraint_size import LARGE, estimate_states
from enginebay.contract import Guided
from enginebay.engines import compile_trial
from enginebay.engines.compile_trial import CompileTrial, needs_trial
from enginebay.errors import InvalidRequest
from tests.hostile import corpus_guided

# Stands in for the library in the child process. The constraint's text says what its compilation does.
LIBRARY = """
import os

class TokenizerInfo:
    vocab_size = 4

    @staticmethod
    def deserialize_json(text):
        return TokenizerInfo()

class GrammarCompiler:
    def __init__(self, info, max_threads, cache_enabled):
        pass

    def compile_regex(self, text):
        with open(os.environ["TRIALS"], "a") as file:
            file.write(text[0])
        if text[0] == "l":
            while True:
                pass
        if text[0] == "m":
            return b"x" * (3 << 30)
        if text[0] == "d":
            os._exit(3)
        if text[0] == "b":
            raise RuntimeError("bad regex")

class GrammarMatcher:
    def __init__(self, compiled):
        pass

    def is_terminated(self):
        return True

def allocate_token_bitmask(rows, size):
    return None
"""


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that lists what was compiled."""
    (tmp_path / "xgrammar.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TRIALS", str(tmp_path / "trials"))
    monkeypatch.setattr(compile_trial, "_CPU_S", 0.1)
    return tmp_path / "trials"


@pytest.fixture
def trial(trials: Path) -> Iterator[CompileTrial]:
    trial = CompileTrial(lambda: "{}")
    yield trial
    trial._end_child()


def check(trial: CompileTrial, first: str) -> None:
    guided = Guided(regex=f"{first}{{{compile_trial.SAFE_STATES + 1}}}")
    trial.check(guided, "regex", guided.regex or "")


def test_a_small_constraint_needs_no_child(trial: CompileTrial) -> None:
    trial.check(Guided(regex="a+"), "regex", "a+")
    assert trial._child is None


def test_results_are_remembered(trial: CompileTrial, trials: Path) -> None:
    for _ in range(3):
        check(trial, "a")
        with pytest.raises(InvalidRequest, match="bad regex") as caught:
            check(trial, "b")
        assert caught.value.param == "guided_regex" and caught.value.hint
    assert trials.read_text() == "ab"


@pytest.mark.parametrize("first", ["l", "m", "d"])
def test_a_runaway_is_refused_and_the_next_constraint_is_tried(trial: CompileTrial, trials: Path, first: str) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="too much memory to compile"):
            check(trial, first)
    check(trial, "a")
    assert trials.read_text() == f"{first}a"


def test_the_child_ends_with_its_parents_pipe(trial: CompileTrial) -> None:
    check(trial, "a")
    child = trial._child
    assert child is not None and child.stdin is not None
    child.stdin.close()
    assert child.wait(30) == 0


def test_a_child_that_has_ended_is_replaced(trial: CompileTrial) -> None:
    check(trial, "a")
    assert trial._child is not None
    first = trial._child.pid
    os.kill(first, 9)
    trial._child.wait()
    check(trial, "c")
    assert trial._child.pid != first


ORDINARY = [
    entry for entry in corpus_guided.ORDINARY if entry[0] != "an address of a host"
]  # a text can split in many ways


@pytest.mark.parametrize(("name", "fields"), ORDINARY)
def test_ordinary_constraints_need_no_trial(name: str, fields: dict[str, object]) -> None:
    assert not needs_trial(corpus_guided.to_guided(fields))


@pytest.mark.parametrize(
    ("guided", "states"),
    [
        (Guided(regex="(ab){10}c*"), 21),
        (Guided(regex="(a{1000}){1000}"), 1_000_000),
        (Guided(choice=("abc" * 8, "d")), 3),
        (Guided(regex="(?:a?){9}"), LARGE),
        (Guided(regex=r"(\w+\s?){1,20}"), LARGE),
        (Guided(regex="( [a-z]+){1,20}"), 40),
        (Guided(grammar="root ::= ([a-z]?){9}"), LARGE),
        (Guided(json='{"pattern": "(a?){9}"}'), LARGE),
        (Guided(grammar='root ::= "ab"{3}'), 6),
        (Guided(grammar="root ::= ("), LARGE),
        (Guided(json='{"maxLength": 500, "x": [{"pattern": "a{7}"}]}'), 512),
    ],
)
def test_sizes(guided: Guided, states: int) -> None:
    assert estimate_states(guided) == states
