"""Chats as the model reads them: what its template puts around the messages counts too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enginebay.errors import EnginebayError
from enginebay.lab.workload.byte_tokenizer import NAME
from enginebay.lab.workload.spec import Jsonl, Message, Render, TextTokenizer, WorkloadSpec
from enginebay.text.chat import load_renderer


def sends_chats(spec: WorkloadSpec) -> bool:
    """Whether messages may be among what a workload sends."""
    return isinstance(spec, Jsonl) or spec.send == "chat"


def chat_render(path: str | None, tokenizer: TextTokenizer | None) -> Render | None:
    """From messages to token ids by the template of the model at `path`. None: no template can be read there."""
    if path is None or path == NAME or tokenizer is None:
        return None
    try:
        renderer = load_renderer(Path(path))
    except (EnginebayError, OSError):
        return None
    if not renderer.available:
        return None
    encode = tokenizer.encode

    def render(messages: Sequence[Message]) -> list[int]:
        return encode(renderer.render(messages), add_special=False)  # the template writes the special ones

    return render
