"""Chats are counted with the model's template."""

from __future__ import annotations

from pathlib import Path

from enginebay.lab.workload.byte_tokenizer import BYTE_TOKENIZER_NAME, ByteTokenizer
from enginebay.lab.workload.chat_rendering import can_send_chats, make_chat_renderer
from enginebay.lab.workload.workload_builder import build_workload
from enginebay.lab.workload.workload_spec import JsonlSpec, SyntheticSpec, TraceSpec
from tests.unit.lab.workload.small_tokenizers import make_byte_level

TEMPLATE = "{% for one in messages %}[{{ one.role }}]{{ one.content }}{% endfor %}[assistant]"


def model(folder: Path) -> str:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def test_a_synthetic_chat_has_the_requested_length_including_the_template(tmp_path: Path) -> None:
    tokenizer = make_byte_level()
    render = make_chat_renderer(model(tmp_path), tokenizer)
    made = build_workload(SyntheticSpec(40, send="chat"), tokenizer, 3, 0, render=render).requests
    for request in made:
        (message,) = request.prompt
        assert isinstance(message, dict)
        text = f"[user]{message['content']}[assistant]"
        assert request.input_tokens == len(tokenizer.encode(text, add_special=False)) == 40


def test_without_a_template_the_length_is_unknown(tmp_path: Path) -> None:
    assert make_chat_renderer(str(tmp_path), make_byte_level()) is None
    assert make_chat_renderer(str(tmp_path / "nowhere"), make_byte_level()) is None
    assert make_chat_renderer(BYTE_TOKENIZER_NAME, ByteTokenizer()) is None
    assert make_chat_renderer(model(tmp_path), None) is None


def test_which_workloads_send_chats(tmp_path: Path) -> None:
    assert can_send_chats(JsonlSpec(tmp_path)) and can_send_chats(SyntheticSpec(4, send="chat"))
    assert not can_send_chats(SyntheticSpec(4)) and not can_send_chats(TraceSpec(tmp_path, "azure"))
