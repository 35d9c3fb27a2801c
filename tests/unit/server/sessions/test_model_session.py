from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from enginebay.server.api.openai.model_objects import redact_paths
from enginebay.server.sessions.model_session import ModelSession

BEGIN, END = 900, 901


def _restore(text: str, ids: list[int]) -> str:
    names = {BEGIN: "<tool_call>", END: "</tool_call>"}
    encoder = SimpleNamespace(get_token_bytes=lambda token: names.get(token, chr(token % 256)).encode())
    session: Any = SimpleNamespace(markers=names, client=SimpleNamespace(prompt_encoder=encoder))
    return ModelSession.restore_markers(session, text, ids)


def test_text_without_markers_is_left_alone() -> None:
    assert _restore("abc", [97, 98, 99]) == "abc"


def test_a_marker_alone() -> None:
    assert _restore("", [BEGIN]) == "<tool_call>"


def test_markers_keep_their_positions_among_several_tokens() -> None:
    assert _restore("ab", [97, END, BEGIN, 98]) == "a</tool_call><tool_call>b"


def test_paths_of_this_host_are_not_shown() -> None:
    redacted = redact_paths(
        {"a": "/srv/models/x.gguf", "b": ["~/x", {"c": "see /etc/x: it is 5 tokens/s"}], "d": 3, "e": "a/b"}
    )
    assert redacted == {"a": "(a path)", "b": ["(a path)", {"c": "see (a path): it is 5 tokens/s"}], "d": 3, "e": "a/b"}
