"""Items as they are stored and listed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import InvalidRequest
from enginebay.server.api.openai.responses_api.stored_items import decode_summary, encode_summary, to_stored_item
from enginebay.server.state.stored_records import make_id


def test_a_message_gets_an_id_a_status_and_parts() -> None:
    stored = to_stored_item({"role": "user", "content": "hi"})
    assert stored["id"].startswith("msg_") and stored["type"] == "message" and stored["status"] == "completed"
    assert stored["content"] == [{"type": "input_text", "text": "hi"}]
    made = f"{make_id('msg')}_0"
    answer = to_stored_item({"role": "assistant", "content": "yes", "id": made, "phase": "final_answer"})
    assert answer["id"] == made and answer["phase"] == "final_answer"
    assert answer["content"] == [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}]


@pytest.mark.parametrize("item_id", [None, "", "x" * 129, 7, ["a"], "fc_1", "fc_0b1c2d3e-1111-4222-8333-444455556666"])
def test_an_id_that_the_server_did_not_make_is_replaced(item_id: object) -> None:
    stored = to_stored_item({"type": "function_call", "id": item_id, "call_id": "c", "name": "f", "arguments": "{}"})
    assert stored["id"].startswith("fc_") and len(stored["id"]) == 51


@given(st.text())
def test_a_summary_comes_back(summary: str) -> None:
    assert decode_summary(encode_summary(summary), "input[0]") == summary


@pytest.mark.parametrize("content", [None, 7, "", "bay1.", "bay1.####", "bay1.e30=", "bay1.WzFd", "gAAAAABx", "bay1.é"])
def test_other_compactions_are_refused(content: object) -> None:
    with pytest.raises(InvalidRequest, match="did not make"):
        decode_summary(content, "input[0]")
