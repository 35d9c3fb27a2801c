"""The trial of a large constraint: a runaway ends with its child process, and nobody waits for it twice."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.constraints.constraint_size import LARGE, estimate_states
from enginebay.contract import Guided
from enginebay.engines import compile_trial, compile_trial_child
from enginebay.engines.compile_trial import CompileTrial, check_wait, needs_trial
from enginebay.errors import EngineFailed, InvalidRequest, Overloaded
from tests.hostile import corpus_guided

# Stands in for the library in the child process. The constraint's text says what its compilation does.
LIBRARY = """
import os

class TokenizerInfo:
    vocab_size = 4

    def __init__(self, vocabulary=(), stop_token_ids=()):
        pass

    @staticmethod
    def deserialize_json(text):
        return TokenizerInfo()

class GrammarCompiler:
    def __init__(self, info, max_threads, cache_enabled):
        pass

    def compile_grammar(self, text):
        pass

    def compile_regex(self, text):
        with open(os.environ["TRIALS"], "a+") as file:
            file.seek(0)
            is_first = text[0] not in file.read()
            file.write(text[0])
        if text[0] == "e" and is_first:
            os._exit(0)
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


def test_results_are_remembered(trial: CompileTrial, trials: Path) -> None:
    for _ in range(3):
        check(trial, "a")
        with pytest.raises(InvalidRequest, match="bad regex") as caught:
            check(trial, "b")
        assert caught.value.param == "guided_regex" and caught.value.hint
    assert trials.read_text() == "ab"


@pytest.mark.parametrize(("first", "tries"), [("l", 1), ("m", 1), ("d", 2)])
def test_a_runaway_is_refused_and_the_next_constraint_is_tried(
    trial: CompileTrial, trials: Path, first: str, tries: int
) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="takes more than 4 s or 1 GiB"):
            check(trial, first)
    check(trial, "a")
    assert trials.read_text() == f"{first * tries}a"


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


def test_a_child_that_ends_without_an_answer_is_replaced(trial: CompileTrial, trials: Path) -> None:
    """A child that has nothing to do may end just when it gets a constraint."""
    check(trial, "a")
    for _ in range(2):
        check(trial, "e")
    assert trials.read_text() == "aee"


def test_a_child_that_does_not_start_is_no_verdict(trial: CompileTrial, trials: Path) -> None:
    library = trials.with_name("xgrammar.py")
    library.write_text("raise ImportError('broken')")
    with pytest.raises(EngineFailed, match="did not start"):
        check(trial, "a")
    assert trial._child is None
    library.write_text(LIBRARY)
    check(trial, "a")


def test_a_tokenizer_that_cannot_be_described_is_no_verdict(trials: Path) -> None:
    trial = CompileTrial(lambda: str(1 // 0))
    with pytest.raises(EngineFailed, match="did not start"):
        check(trial, "a")


def test_a_busy_server_is_no_verdict(trial: CompileTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(compile_trial, "_DEADLINE_S", 0.0)
        with pytest.raises(Overloaded) as caught:
            check(trial, "l")
        assert caught.value.retry_after_s > 1
    check(trial, "a")


def test_a_trial_that_got_processor_time_is_a_verdict_for_now(
    trial: CompileTrial, trials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_trial, "_CPU_S", 60.0)
    monkeypatch.setattr(compile_trial, "_DEADLINE_S", 0.5)
    monkeypatch.setattr(compile_trial, "_STARVED_S", 0.01)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="takes more than"):
            check(trial, "l")
    assert trials.read_text() == "ll"


def test_a_library_that_needs_torch_gets_it(trial: CompileTrial, trials: Path) -> None:
    check_torch = "import sys\nif '--with-torch' not in sys.argv: import torch; torch.tensor(1).shape\n"
    trials.with_name("xgrammar.py").write_text(check_torch + LIBRARY)
    check(trial, "a")
    assert trial._child is not None
    assert b"--with-torch" in Path(f"/proc/{trial._child.pid}/cmdline").read_bytes()


def test_a_long_wait_ends() -> None:
    check_wait(time.monotonic())
    with pytest.raises(Overloaded):
        check_wait(time.monotonic() - 60)


def test_what_xgrammar_rejects_may_pass(trials: Path) -> None:
    trial = CompileTrial(lambda: "{}", limits_only=True)
    trial.check(Guided(grammar="b"), "grammar", "b")
    for text in "mb":  # too expensive; a large regex that xgrammar rejects
        with pytest.raises(InvalidRequest):
            trial.check(Guided(regex=text), "regex", text)
    trial.close()


def test_nothing_is_tried_after_the_end(trial: CompileTrial) -> None:
    check(trial, "a")
    child = trial._child
    trial.close()
    assert child is not None and child.returncode is not None and trial._child is None
    with pytest.raises(EngineFailed, match="stopped"):
        check(trial, "c")
    assert trial._child is None


# The child's side


def test_limits_stay_below_inherited_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root may raise a hard limit."""
    limits: dict[int, tuple[int, int]] = {}
    timers: dict[int, float] = {}
    hard = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_CORE: 100}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard[kind], hard[kind]))
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(signal, "setitimer", timers.__setitem__)
    compile_trial_child._limit_resources(3.0, 1 << 20)
    assert timers == {signal.ITIMER_PROF: 3.0}
    assert limits[resource.RLIMIT_CORE] == (0, 100)
    assert limits[resource.RLIMIT_AS][0] > 1 << 20 and limits[resource.RLIMIT_AS][1] == resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("slow_steps", "code"), [([], None), ([0], None), ([0, 1, 2, 3, 4], None), ([*range(1, 9)], "slow")]
)
def test_a_few_slow_steps_are_allowed(monkeypatch: pytest.MonkeyPatch, slow_steps: list[int], code: str | None) -> None:
    clock = SimpleNamespace(now=0.0, steps=0)

    def fill(mask: Any) -> None:
        mask[0, 0] = 1
        clock.now += 0.2 if clock.steps in slow_steps else 0.001
        clock.steps += 1

    monkeypatch.setattr(compile_trial_child.time, "process_time", lambda: clock.now)
    matcher = SimpleNamespace(
        is_terminated=lambda: False, fill_next_token_bitmask=fill, accept_token=lambda token: True
    )
    assert compile_trial_child._follow(matcher, SimpleNamespace(vocab_size=32)) == code


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
        (Guided(json="{"), LARGE),
        (Guided(json='{"maxLength": 1e999}'), LARGE),
        (Guided(json="[" * 100_000), LARGE),
        (Guided(json='{"maxLength": 500, "x": [{"pattern": "a{7}"}]}'), 512),
        (Guided(json='{"maxLength": 20000}'), 502),
    ],
)
def test_sizes(guided: Guided, states: int) -> None:
    assert estimate_states(guided) == states
