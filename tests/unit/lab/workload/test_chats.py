"""Chats are counted with the model's own template."""

from __future__ import annotations

from pathlib import Path

from enginebay.lab.workload.byte_tokenizer import NAME, ByteTokenizer
from enginebay.lab.workload.chats import chat_render, sends_chats
from enginebay.lab.workload.make import make_workload
from enginebay.lab.workload.spec import Jsonl, Recorded, Synthetic
from tests.unit.lab.workload.small_tokenizers import byte_level

TEMPLATE = "{% for one in messages %}[{{ one.role }}]{{ one.content }}{% endfor %}[assistant]"


def model(folder: Path) -> str:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def test_a_synthetic_chat_has_the_wanted_length_template_included(tmp_path: Path) -> None:
    tokenizer = byte_level()
    render = chat_render(model(tmp_path), tokenizer)
    made = make_workload(Synthetic(40, send="chat"), tokenizer, 3, 0, render=render).requests
    for request in made:
        (message,) = request.prompt
        assert isinstance(message, dict)
        text = f"[user]{message['content']}[assistant]"
        assert request.input_tokens == len(tokenizer.encode(text, add_special=False)) == 40


def test_without_a_template_there_is_nothing_to_count_with(tmp_path: Path) -> None:
    assert chat_render(str(tmp_path), byte_level()) is None
    assert chat_render(str(tmp_path / "nowhere"), byte_level()) is None
    assert chat_render(NAME, ByteTokenizer()) is None
    assert chat_render(model(tmp_path), None) is None


def test_which_workloads_send_chats(tmp_path: Path) -> None:
    assert sends_chats(Jsonl(tmp_path)) and sends_chats(Synthetic(4, send="chat"))
    assert not sends_chats(Synthetic(4)) and not sends_chats(Recorded(tmp_path, "azure"))
