from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from enginebay.contract import FinishReason, GenerateRequest, Guided, Sampling
from enginebay.engines.llamacpp import completion_driver
from enginebay.engines.llamacpp.call_queue import ActiveRequest, LibraryCall
from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.llguidance_matcher import ConstraintError
from enginebay.engines.llamacpp.request_body import LlamaBodyBuilder
from enginebay.errors import EngineFailed, InvalidRequest

_PROBE, _BRACE = 31, 90


class FakeLibrary:
    """Supports every JSON schema except those of type `odd`."""

    def __init__(self) -> None:
        self.tried: list[Any] = []

    def call_route(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        return {"tokens": [_PROBE]}

    def run_completion(self, body: Mapping[str, Any]) -> Any:
        self.tried.append(body["json_schema"])
        return {"__verbose": {"tokens": [_PROBE if body["json_schema"]["type"] == "odd" else _BRACE]}}


def _driver(library: FakeLibrary) -> completion_driver.LlamaDriver:
    return completion_driver.LlamaDriver(library, None, True)  # type: ignore[arg-type]


def test_a_schema_is_checked_once_and_an_unsupported_one_is_refused() -> None:
    library = FakeLibrary()
    driver = _driver(library)
    for _ in range(2):
        driver._check_schema({"type": "object"}, {})
        with pytest.raises(InvalidRequest, match="does not support"):
            driver._check_schema({"type": "odd"}, {})
    assert library.tried == [{"type": "object"}, {"type": "odd"}]


def test_a_schema_is_checked_with_the_requests_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    library, bodies = FakeLibrary(), list[Mapping[str, Any]]()
    usual = library.run_completion
    monkeypatch.setattr(library, "run_completion", lambda body: bodies.append(body) or usual(body))  # type: ignore[func-returns-value]
    lora = {"lora": [{"id": 0, "scale": 1.0}]}
    _driver(library)._check_schema({"type": "object"}, lora)
    assert [body["lora"] for body in bodies] == [lora["lora"]]


def test_the_schema_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_driver, "_SCHEMA_CACHE_SIZE", 2)
    library = FakeLibrary()
    driver = _driver(library)
    for name in ("a", "b", "a", "c", "a", "b"):
        driver._check_schema({"type": name}, {})
    assert [schema["type"] for schema in library.tried] == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("log_text", "message"),
    [
        (
            "E llg error: at 2(8): failed to compile JSON schema: Invalid type: odd\n   1 | %llguidance {}\n"
            '   2 | start: %json {"type":"odd"}\n              ^\n',
            "llama.cpp does not support this JSON schema: Invalid type: odd",
        ),
        ("", "llama.cpp does not support this JSON schema"),
    ],
)
def test_the_refusal_quotes_the_librarys_log(monkeypatch: pytest.MonkeyPatch, log_text: str, message: str) -> None:
    monkeypatch.setattr(completion_driver.StderrTail, "read", lambda _: log_text)
    with pytest.raises(InvalidRequest) as caught:
        _driver(FakeLibrary())._check_schema({"type": "odd"}, {})
    assert (caught.value.message, caught.value.param) == (message, "guided_json")


def test_a_server_failure_is_not_cached_as_a_schema_error(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    driver = _driver(library)
    usual = library.run_completion
    monkeypatch.setattr(library, "run_completion", lambda _: {"error": {"code": 503, "message": "ending"}})
    with pytest.raises(EngineFailed, match="ending"):
        driver._check_schema({"type": "string"}, {})
    monkeypatch.setattr(library, "run_completion", usual)
    driver._check_schema({"type": "string"}, {})


def test_the_refusal_quotes_the_librarys_response(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(library, "run_completion", lambda _: {"error": {"code": 400, "message": "no such type"}})
    with pytest.raises(InvalidRequest, match="schema: no such type"):
        _driver(library)._check_schema({"type": "odd"}, {})


# A constraint that the library gives up while it generates


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
    def start(self, grammar: str) -> FakeFollower:
        if "odd" in grammar:
            raise ConstraintError("failed to compile JSON schema: odd\n   1 | %llguidance {}\n")
        return FakeFollower(b"ab")


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


def _generate(library: ScriptedLibrary, **sampling: Any) -> RecordingSink:
    sink, fields = RecordingSink(), {"guided": Guided(regex="ab"), **sampling}
    request = GenerateRequest(token_ids=(1,), sampling=Sampling(**fields))
    outputs = [ChoiceOutput(0, request.sampling, 16, lambda *_: [])]
    call = LibraryCall(ActiveRequest(1, LlamaBodyBuilder(request, 64, {})), outputs, 17)
    driver = completion_driver.LlamaDriver(library, sink, True, FakeLlguidance())  # type: ignore[arg-type]
    driver.run(call)
    return sink


def test_an_output_within_its_constraint_is_sent() -> None:
    sink = _generate(ScriptedLibrary(["a", "", "b"]))
    assert (sink.text, sink.reason) == ("ab", FinishReason.STOP)


@pytest.mark.parametrize("pieces", [["a", "x"], ["@"], ["a"], []])
def test_an_output_outside_its_constraint_ends_with_an_error(pieces: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _generate(ScriptedLibrary(pieces))
    assert "cannot keep the output within" in caught.value.message and caught.value.param == "guided_regex"


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
