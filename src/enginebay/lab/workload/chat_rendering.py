"""Chats as the model reads them: template tokens count too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enginebay.errors import EnginebayError
from enginebay.lab.workload.byte_tokenizer import BYTE_TOKENIZER_NAME
from enginebay.lab.workload.workload_spec import ChatRender, JsonlSpec, Message, TextTokenizer, WorkloadSpec
from enginebay.text.chat.chat_renderer import load_renderer


def can_send_chats(spec: WorkloadSpec) -> bool:
    """Return whether the workload may contain messages."""
    return isinstance(spec, JsonlSpec) or spec.send == "chat"


def make_chat_renderer(path: str | None, tokenizer: TextTokenizer | None) -> ChatRender | None:
    """Return a function from messages to token ids, by the chat template at `path`; None if there is none."""
    if path is None or path == BYTE_TOKENIZER_NAME or tokenizer is None:
        return None
    try:
        renderer = load_renderer(Path(path))
    except (EnginebayError, OSError):
        return None
    if not renderer.available:
        return None
    encode = tokenizer.encode

    def render(messages: Sequence[Message]) -> list[int]:
        return encode(renderer.render(messages), add_special=False)  # the template adds the special tokens

    return render
