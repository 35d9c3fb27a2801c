from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from enginebay.engines.llamacpp import completion_driver
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
