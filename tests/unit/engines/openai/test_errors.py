"""Addresses, keys, model lists, and error responses."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enginebay.contract import Load
from enginebay.engines.openai.errors import (
    describe_in_full,
    error_from_event,
    error_from_status,
    parse_retry_after_s,
    replace_lone_surrogates,
)
from enginebay.engines.openai.model_listing import parse_listed_model
from enginebay.engines.openai.remote_server import RemoteServer, parse_remote_server
from enginebay.errors import (
    ConfigError,
    ContextOverflow,
    EnginebayError,
    EngineFailed,
    InvalidRequest,
    LoadFailed,
    Overloaded,
    RequestError,
    Unreachable,
)
from tests.unit.engines.openai.scripted_server import KEY, MODEL

REMOTE = RemoteServer(True, "api.example.com", 443, "/v1", MODEL, KEY)


def _remote(environ: dict[str, str] | None = None, **settings: Any) -> RemoteServer:
    return parse_remote_server(Load("openai", "", MODEL, "", settings), environ or {})


# Addresses and keys


def test_an_address_is_taken_apart() -> None:
    result = _remote(url="https://API.example.com/some where/v1/")
    assert (result.uses_tls, result.host, result.port, result.base_path) == (
        True,
        "api.example.com",
        443,
        "/some%20where/v1",
    )
    assert result.authority == "api.example.com" and result.model == MODEL
    assert b"POST /some%20where/v1/chat/completions HTTP/1.1\r\nHost: api.example.com\r\n" in result.build_post(
        "/chat/completions", b"{}"
    )
    assert _remote(url="http://[::1]:8000/v1").authority == "[::1]:8000"
    assert _remote(url="http://h", model="theirs").model == "theirs"


@pytest.mark.parametrize(
    "url",
    [None, "", "api.example.com/v1", "ftp://x/v1", "file:///etc/passwd", "http://", "http://x:port/v1",
     "https://me:hunter2@x/v1", "https://x/v1?key=hunter2", "https://x/v1#hunter2", "http://[::1", "http://a b/v1"],
)  # fmt: skip
def test_a_wrong_address_is_refused_without_repeating_it(url: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        _remote(url=url)
    assert "hunter2" not in str(caught.value) and caught.value.hint


def test_a_key_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    for result in (_remote({"K": KEY}, url="http://h", key_env="K"), _remote(url="http://h", key_file=str(file))):
        assert result.api_key == KEY
        assert f"Authorization: Bearer {KEY}\r\n".encode() in result.build_get("/models")
        assert KEY not in repr(result)
        assert "unencrypted" in result.warnings[0]
    assert b"Authorization" not in _remote(url="http://h").build_get("/models")
    assert not _remote({"K": KEY}, url="http://localhost:1", key_env="K").warnings


def test_an_unusable_key_is_an_error_that_does_not_show_it(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(f"{KEY}\nX-Evil: 1\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for settings in (
        {"key_env": "K"},
        {"key_file": str(tmp_path / "none")},
        {"key_file": str(tmp_path)},
        {"key_file": str(wrong)},
        {"key_file": str(binary)},
        {"key_env": "K", "key_file": str(wrong)},
    ):
        with pytest.raises(ConfigError) as caught:
            _remote(url="http://h", **settings)
        assert KEY not in str(caught.value)


# Models


def test_the_context_is_taken_from_the_list() -> None:
    for name in ("max_model_len", "context_length", "context_window"):
        body = json.dumps({"data": [{"id": "other", name: 1}, {"id": MODEL, name: 512}]}).encode()
        assert parse_listed_model(REMOTE, body).context_length == 512
    assert (
        parse_listed_model(REMOTE, json.dumps({"data": [{"id": MODEL, "max_model_len": None}]}).encode()).context_length
        == 0
    )


def test_an_unlisted_model_is_an_error_that_names_some_listed_ones() -> None:
    names = [f"model-{place}" for place in range(20)] + ["far-away-2"]
    with pytest.raises(LoadFailed) as caught:
        parse_listed_model(REMOTE, json.dumps({"data": [{"id": name} for name in names]}).encode())
    assert "'far-away'; it has far-away-2, " in caught.value.message and "16 more" in caught.value.message
    assert "openai.model" in caught.value.hint and "openai.verify" in caught.value.hint


def test_a_server_that_lists_no_models_is_a_warning() -> None:
    assert "cannot check" in parse_listed_model(REMOTE, b'{"data": []}').warnings[0]


@pytest.mark.parametrize("body", [b"<html>", b"[", b'{"data": 5}', b'"text"', b"null"])
def test_a_response_that_is_not_a_model_list_is_an_error(body: bytes) -> None:
    with pytest.raises(LoadFailed, match="did not return a list of models"):
        parse_listed_model(REMOTE, body)


# Refusals


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (400, {"error": {"message": "top_p is odd", "param": "top_p"}}, InvalidRequest, "top_p is odd"),
        (422, {"detail": "Unexpected fields"}, InvalidRequest, "Unexpected fields"),
        (400, {"error": {"message": "no", "code": "context_length_exceeded"}}, ContextOverflow, "no"),
        (
            400,
            {"error": {"message": "This model's maximum context length is 512 tokens. However, ..."}},
            ContextOverflow,
            "512",
        ),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 5", "error_type": "v"}, ContextOverflow, "<= 5"),
        (413, b"<html>nginx</html>", InvalidRequest, "rejects the request"),
        (401, {"error": {"message": f"Incorrect API key: {KEY}"}}, Unreachable, "rejects the API key"),
        (403, b"", Unreachable, "rejects the API key"),
        (404, {"error": {"message": "no such model"}}, EngineFailed, "no such model"),
        (429, {"error": {"message": f"slow down {KEY}"}}, Overloaded, r"slow down \*\*\*"),
        (503, b"busy", Overloaded, "busy"),
        (408, b"", Unreachable, "408"),
        (504, b"", Unreachable, "504"),
        (502, b"<html>nginx</html>", Unreachable, "502"),
        (418, b"teapot", EngineFailed, "teapot"),
        (500, b"\xff\x00oops\n\nmore", Unreachable, "oops more"),
        (301, b"", EngineFailed, "redirects"),
        (500, ["odd", {"a": 1}], Unreachable, "odd"),
    ],
)
def test_a_refusal_becomes_the_right_error(
    status: int, body: Any, error: type[EnginebayError], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    result = error_from_status(REMOTE, status, {}, data)
    assert type(result) is error
    full = describe_in_full(result)  # what an administrator reads
    assert re.search(words, full) and "api.example.com" in full and KEY not in full and "\n" not in full
    assert KEY not in str(result) and "\n" not in result.message
    if isinstance(result, RequestError):
        assert result.message.startswith("the remote server rejects the request")
        assert re.search(words, result.message) and "api.example.com" not in str(result)
    elif isinstance(result, Overloaded):  # its own words are for the log
        assert result.message == "the remote server is overloaded"
        assert "api.example.com" not in str(result) and not re.search(words, str(result))
        assert [record.getMessage() for record in caplog.records] == [full]
    else:
        assert result.message == full


def test_without_a_key_the_error_asks_for_one() -> None:
    result = error_from_status(RemoteServer(True, "h", 443, "", MODEL), 401, {}, b"")
    assert "requires an API key" in result.message and "openai.key_env" in result.hint


def test_errors_in_a_stream() -> None:
    assert isinstance(error_from_event(REMOTE, {"error": {"message": "bad", "code": 400}}), InvalidRequest)
    assert isinstance(error_from_event(REMOTE, {"error": {"message": "the prompt is too long"}}), ContextOverflow)
    assert "api.example.com" not in str(error_from_event(REMOTE, {"error": {"message": "bad", "code": 400}}))
    assert error_from_event(REMOTE, {"error": f"boom {KEY}"}).message.endswith("boom ***")


def test_the_parameter_a_server_names_is_kept() -> None:
    assert error_from_status(REMOTE, 400, {}, b'{"error": {"message": "m", "param": "top_p"}}').param == "top_p"


def test_retry_after() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_retry_after_s({"retry-after": "7"}) == 7
    assert parse_retry_after_s({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, now) == 30
    assert parse_retry_after_s({"retry-after": "Wed, 31 Dec 2025 00:00:30 GMT"}, now) == 0
    assert parse_retry_after_s({"retry-after": "soon"}) is None
    assert parse_retry_after_s({}) is None
    result = error_from_status(REMOTE, 429, {"retry-after": "7"}, b"")
    assert isinstance(result, Overloaded) and result.retry_after_s == 7


def test_lone_surrogates_are_replaced() -> None:
    assert replace_lone_surrogates("a\ud83db") == "a\ufffdb"
    assert replace_lone_surrogates("\U0001f600é") == "\U0001f600é"
