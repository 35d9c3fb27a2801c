"""Prompts to token ids, in one place for all engines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from enginebay.contract import GenerateRequest
from enginebay.errors import Unsupported
from enginebay.text.chat import ChatRenderer, load_renderer
from enginebay.text.tokenizer import Tokenizer, load_tokenizer

_LONG = 8_000  # characters; about a millisecond of work

Messages = Sequence[Mapping[str, Any]]


class Tokenizes(Protocol):
    """Whatever can ask the engine for its own tokenizer."""

    async def tokenize(self, text: str, add_special: bool = True) -> list[int]: ...


class Prompts:
    """Renders chats with the model's template and tokenizes with the model's tokenizer.

    Where the model brings no tokenizer we can read, the engine's own is asked; where it brings no template, a chat is
    refused, except on engines without weights (`plain`), which get the messages' text line by line.
    """

    def __init__(self, source: Path | None, engine: Tokenizes) -> None:
        self._engine = engine
        self._plain = source is None
        self.tokenizer: Tokenizer | None = None
        self.renderer: ChatRenderer | None = None
        if source is None:
            return
        try:
            self.tokenizer = load_tokenizer(source)
        except Unsupported:
            self.tokenizer = None  # the engine's own serves instead
        self.renderer = load_renderer(source)

    @property
    def chats(self) -> bool:
        """Whether this model has a chat template."""
        return self._plain or (self.renderer is not None and self.renderer.available)

    def render(self, messages: Messages, **options: Any) -> str:
        """A chat as the one text the model was trained on."""
        if self._plain:
            return "\n".join(str(message.get("content", "")) for message in messages)
        if self.renderer is None or not self.renderer.available:
            raise Unsupported(
                "this model has no chat template", "give the prompt as plain text: --raw", param="messages"
            )
        return self.renderer.render(messages, **options)

    async def token_ids(self, request: GenerateRequest, **options: Any) -> tuple[int, ...]:
        """The request's prompt as token ids."""
        if request.token_ids is not None:
            return request.token_ids
        if request.messages is not None:
            return await self.encode(self.render(request.messages, **options), add_special=False)
        return await self.encode(request.text or "", add_special=True)

    async def encode(self, text: str, add_special: bool = True) -> tuple[int, ...]:
        if self.tokenizer is None:
            return tuple(await self._engine.tokenize(text, add_special))
        if len(text) > _LONG:  # other streams must not wait for a long prompt
            return tuple(await asyncio.to_thread(self.tokenizer.encode, text, add_special))
        return tuple(self.tokenizer.encode(text, add_special))
