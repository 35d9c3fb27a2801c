from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from enginebay.engines.llamacpp import completion_driver
from enginebay.errors import EngineFailed, InvalidRequest

_PROBE, _BRACE = 31, 90


class FakeLibrary:
    """Follows every JSON schema but those of type `odd`."""

    def __init__(self) -> None:
        self.tried: list[Any] = []

    def call_route(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        return {"tokens": [_PROBE]}

    def run_completion(self, body: Mapping[str, Any]) -> Any:
        self.tried.append(body["json_schema"])
        return {"__verbose": {"tokens": [_PROBE if body["json_schema"]["type"] == "odd" else _BRACE]}}


def _driver(library: FakeLibrary) -> completion_driver.LlamaDriver:
    return completion_driver.LlamaDriver(library, None, True)  # type: ignore[arg-type]


def test_a_schema_is_tried_once_and_one_that_is_not_followed_is_refused() -> None:
    library = FakeLibrary()
    made = _driver(library)
    for _ in range(2):
        made._check_schema({"type": "object"}, {})
        with pytest.raises(InvalidRequest, match="cannot follow"):
            made._check_schema({"type": "odd"}, {})
    assert library.tried == [{"type": "object"}, {"type": "odd"}]


def test_a_schema_is_tried_with_the_adapter_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    library, bodies = FakeLibrary(), list[Mapping[str, Any]]()
    usual = library.run_completion
    monkeypatch.setattr(library, "complete_at_once", lambda body: bodies.append(body) or usual(body))  # type: ignore[func-returns-value]
    lora = {"lora": [{"id": 0, "scale": 1.0}]}
    _driver(library)._check_schema({"type": "object"}, lora)
    assert [body["lora"] for body in bodies] == [lora["lora"]]


def test_only_so_many_verdicts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_driver, "_SCHEMA_CACHE_SIZE", 2)
    library = FakeLibrary()
    made = _driver(library)
    for name in ("a", "b", "a", "c", "a", "b"):
        made._check_schema({"type": name}, {})
    assert [one["type"] for one in library.tried] == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "E llg error: at 2(8): failed to compile JSON schema: Invalid type: odd\n   1 | %llguidance {}\n"
            '   2 | start: %json {"type":"odd"}\n              ^\n',
            "llama.cpp cannot follow this JSON schema: Invalid type: odd",
        ),
        ("", "llama.cpp cannot follow this JSON schema"),
    ],
)
def test_the_refusal_says_what_the_library_says(monkeypatch: pytest.MonkeyPatch, said: str, message: str) -> None:
    monkeypatch.setattr(completion_driver.StderrTail, "text", lambda _: said)
    with pytest.raises(InvalidRequest) as caught:
        _driver(FakeLibrary())._check_schema({"type": "odd"}, {})
    assert (caught.value.message, caught.value.param) == (message, "guided_json")


def test_a_failure_that_is_not_the_schemas_is_no_verdict_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    made = _driver(library)
    usual = library.run_completion
    monkeypatch.setattr(library, "complete_at_once", lambda _: {"error": {"code": 503, "message": "ending"}})
    with pytest.raises(EngineFailed, match="ending"):
        made._check_schema({"type": "string"}, {})
    monkeypatch.setattr(library, "complete_at_once", usual)
    made._check_schema({"type": "string"}, {})


def test_the_refusal_says_what_the_library_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(library, "complete_at_once", lambda _: {"error": {"code": 400, "message": "no such type"}})
    with pytest.raises(InvalidRequest, match="schema: no such type"):
        _driver(library)._check_schema({"type": "odd"}, {})
