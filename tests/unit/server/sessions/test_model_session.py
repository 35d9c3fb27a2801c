from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.fleet.routing.output_markers import find_marker_ids, select_reasoning_format
from enginebay.server.api.openai.model_objects import redact_paths
from enginebay.server.sessions.model_session import ModelSession
from enginebay.text.reasoning import REASONING_FORMATS
from enginebay.text.tool_calls import TOOL_CALL_FORMATS

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


def test_markers_are_those_of_calls_and_of_thoughts_that_are_special() -> None:
    ids = {"[TOOL_CALLS]": 9, "[THINK]": 34, "[/THINK]": 35}
    tokenizer = SimpleNamespace(raw=SimpleNamespace(token_to_id=ids.get), special_ids={9, 34})
    encoder: Any = SimpleNamespace(tokenizer=tokenizer)
    markers = (*TOOL_CALL_FORMATS["mistral"].markers, *REASONING_FORMATS["mistral"].markers)
    assert find_marker_ids(encoder, markers) == {9: "[TOOL_CALLS]", 34: "[THINK]"}


@pytest.mark.parametrize(
    ("configured", "renders", "template", "name"),
    [
        ("auto", False, "{{ '<think>' }}", "think"),
        ("auto", False, None, None),
        ("none", False, "{{ '<think>' }}", None),
        ("harmony", False, None, "harmony"),
        ("auto", True, None, "think"),
        ("none", True, None, None),
    ],
)
def test_the_format_of_thoughts(configured: str, renders: bool, template: str | None, name: str | None) -> None:
    client: Any = SimpleNamespace(
        handle=SimpleNamespace(reasoning_format=configured),
        spec=SimpleNamespace(renders=renders),
        prompt_encoder=SimpleNamespace(chat_template=template),
    )
    chosen = select_reasoning_format(client)
    assert (chosen.name if chosen else None) == name
