"""Constraints that the library does not take, or stops enforcing while it generates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.contract import FinishReason, GenerateRequest, Guided, Load, Sampling
from enginebay.contract.sampling_parameters import GUIDED_PARAMETERS
from enginebay.engines.llamacpp import completion_driver
from enginebay.engines.llamacpp.call_queue import ActiveRequest, LibraryCall
from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.engine import LlamaCppEngine
from enginebay.engines.llamacpp.guided.llguidance_matcher import ConstraintError
from enginebay.engines.llamacpp.request_body import LlamaBodyBuilder
from enginebay.errors import InvalidRequest, Unsupported


class FakeFollower:
    """Allows the text `wanted` and nothing else."""

    def __init__(self, wanted: bytes) -> None:
        self.wanted = wanted

    def consume(self, text: str, tokens: Sequence[int]) -> bool:
        data = text.encode()
        if not self.wanted.startswith(data):
            return False
        self.wanted = self.wanted.removeprefix(data)
        return True

    def is_accepting(self) -> bool:
        return not self.wanted

    is_complete = is_accepting


class FakeLlguidance:
    def start(self, grammar: str, is_cancelled: Callable[[], bool]) -> FakeFollower:
        if "odd" in grammar:
            raise ConstraintError("failed to compile JSON schema: odd\n   1 | %llguidance {}\n")
        return FakeFollower(b"ab")


_LLGUIDANCE = FakeLlguidance()


class ScriptedLibrary:
    """Generates these pieces, then the end token."""

    def __init__(self, pieces: Sequence[str], stop_type: str = "eos") -> None:
        self.pieces = pieces
        self.stop_type = stop_type

    def stream_completion(self, body: Mapping[str, Any], callback: Callable[[dict[str, Any]], bool]) -> None:
        details = {"tokens_evaluated": 1, "index": 0, "tokens_predicted": 0, "truncated": False, "tokens": [5]}
        for number, piece in enumerate(self.pieces, 1):
            verbose = {**details, "content": piece, "tokens_predicted": number}
            if callback({"choices": [{"finish_reason": None, "logprobs": None}], "__verbose": verbose}):
                return
        verbose = {**details, "content": "", "stop_type": self.stop_type}
        callback({"choices": [{"finish_reason": "stop", "logprobs": None}], "__verbose": verbose})


class RecordingSink:
    def __init__(self) -> None:
        self.text = ""
        self.reason: Any = None

    def accepted(self, *_: Any) -> None: ...

    def flush(self) -> None: ...

    def token(self, number: int, text: str, *_: Any) -> None:
        self.text += text

    def finish(self, number: int, reason: Any, *_: Any) -> None:
        self.reason = reason


def _generate(library: ScriptedLibrary, llguidance: Any = _LLGUIDANCE, **sampling: Any) -> RecordingSink:
    sink, fields = RecordingSink(), {"guided": Guided(regex="ab"), **sampling}
    request = GenerateRequest(token_ids=(1,), sampling=Sampling(**fields))
    outputs = [ChoiceOutput(0, request.sampling, 16, lambda *_: [])]
    call = LibraryCall(ActiveRequest(1, LlamaBodyBuilder(request, 64, {})), outputs, 17)
    driver = completion_driver.LlamaDriver(library, sink, True, llguidance)  # type: ignore[arg-type]
    driver.run(call)
    return sink


def test_an_output_within_its_constraint_is_sent() -> None:
    sink = _generate(ScriptedLibrary(["a", "", "b"]))
    assert (sink.text, sink.reason) == ("ab", FinishReason.STOP)


@pytest.mark.parametrize("pieces", [["a", "x"], ["@"], ["a"], []])
def test_an_output_outside_its_constraint_ends_with_an_error(pieces: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _generate(ScriptedLibrary(pieces))
    assert "stopped enforcing the regex" in caught.value.message and caught.value.param == "guided_regex"


def test_an_output_that_is_cut_off_is_no_error() -> None:
    sink = _generate(ScriptedLibrary(["a"], "limit"), max_tokens=1)
    assert (sink.text, sink.reason) == ("a", FinishReason.LENGTH)


def test_what_follows_a_complete_output_is_left_out() -> None:
    """With ignore_eos the library must go on, but nothing may follow."""
    sink = _generate(ScriptedLibrary(["ab", "ab"]), ignore_eos=True)
    assert (sink.text, sink.reason) == ("ab", FinishReason.STOP)


def test_the_refusal_quotes_llguidance() -> None:
    with pytest.raises(InvalidRequest) as caught:
        _generate(ScriptedLibrary([]), guided=Guided(json='{"type": "odd"}'))
    assert caught.value.message == "llama.cpp does not support this JSON schema: odd"
    assert caught.value.param == "guided_json"


@pytest.mark.parametrize("guided", [Guided(regex="ab"), Guided(json="{}"), Guided(choice=("a",))])
def test_a_build_without_llguidance_gets_no_grammar_of_llguidance(guided: Guided) -> None:
    """llama.cpp would abort."""
    with pytest.raises(Unsupported, match="no llguidance") as caught:
        _generate(ScriptedLibrary(["ab"]), None, guided=guided)
    assert (caught.value.param or "").startswith("guided_")


def test_the_engine_says_that_a_build_has_no_llguidance() -> None:
    plan = SimpleNamespace(
        context_length=1, max_batch=1, effective={}, cache_tokens=1, has_shared_cache=False, warnings=()
    )
    engine = object.__new__(LlamaCppEngine)
    vars(engine).update(
        _load=Load(engine="llamacpp", kind="llamacpp", model="m", path="p"),
        _plan=plan,
        _versions={"xllamacpp": "1"},
        _llguidance=None,
    )
    facts = engine.facts()
    assert set(GUIDED_PARAMETERS) <= facts.refused.keys() and "no llguidance" in facts.warnings[0]
    vars(engine)["_llguidance"] = _LLGUIDANCE
    assert not set(GUIDED_PARAMETERS) & engine.facts().refused.keys() and not engine.facts().warnings
