"""Prompts to token ids, in one place for all engines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from enginebay.contract import GenerateRequest
from enginebay.errors import EnginebayError, Unsupported
from enginebay.text.chat.chat_messages import normalize_messages
from enginebay.text.chat.chat_renderer import DEFAULT_TEMPLATE, TOOL_USE_TEMPLATE, ChatRenderer, load_renderer
from enginebay.text.tokenization.tokenizer import Tokenizer, decode_token_bytes, load_tokenizer

_LONG_CHARS = 8_000  # characters; about a millisecond of work
_MANY_MESSAGES = 32  # messages
_BYTE_VOCABULARY = 256
_MAX_CACHED = 4  # models whose tokenizer and template stay read: a switch back need not read them again

Messages = Sequence[Mapping[str, Any]]
FileStamp = tuple[tuple[str, int, int], ...]
_read_lock = threading.Lock()


class RemoteTokenizer(Protocol):
    """Whatever can ask the engine for its own tokenizer."""

    async def tokenize(self, text: str, add_special: bool = True) -> list[int]: ...


class PromptEncoder:
    """Renders chats with the model's template and tokenizes with the model's tokenizer.

    Where the model brings no tokenizer we can read, the engine's own is asked; where it brings no template, a chat is
    refused, except on engines without weights (`plain`), which get the messages' text line by line.
    """

    def __init__(self, source: Path | None, remote_tokenizer: RemoteTokenizer, byte_tokens: bool = False) -> None:
        self._remote_tokenizer = remote_tokenizer
        self._renders_plain = source is None
        self._byte_tokens = byte_tokens
        self.tokenizer: Tokenizer | None = None
        self.renderer: ChatRenderer | None = None
        if source is not None:
            self.tokenizer, self.renderer = _load_cached(source)

    @property
    def has_chat_template(self) -> bool:
        """Whether this model has a chat template."""
        return self._renders_plain or (self.renderer is not None and self.renderer.available)

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template, for whoever looks for a tool format in it."""
        found = self.renderer.templates if self.renderer is not None else {}
        return found.get(TOOL_USE_TEMPLATE) or found.get(DEFAULT_TEMPLATE)

    @property
    def supports_tools(self) -> bool:
        """Whether the chat template has a place for tools. An engine without weights has nobody to show them to."""
        return self._renders_plain or "tools" in (self.chat_template or "")

    @property
    def vocabulary_size(self) -> int | None:
        """How many token ids there are, where it is known."""
        if self._byte_tokens:
            return _BYTE_VOCABULARY
        return None if self.tokenizer is None else self.tokenizer.vocabulary_size

    def get_token_bytes(self, number: int) -> bytes:
        """What one token stands for; nothing where the engine alone knows."""
        if self._byte_tokens:
            return bytes((number,)) if number < _BYTE_VOCABULARY else b""
        return b"" if self.tokenizer is None else decode_token_bytes(self.tokenizer, number)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        if self._byte_tokens:
            return bytes(number for number in ids if number < _BYTE_VOCABULARY).decode("utf-8", "replace")
        if self.tokenizer is None:
            raise Unsupported("this model's tokenizer is known to its engine alone", param="tokens")
        return self.tokenizer.decode(ids, skip_special=False)

    def render(self, messages: Messages, **options: Any) -> str:
        """A chat as the one text the model was trained on."""
        if self._renders_plain:
            return "\n".join(str(message["content"]) for message in normalize_messages(messages, keep_parts=False))
        if self.renderer is None or not self.renderer.available:
            raise Unsupported(
                "this model has no chat template",
                "give the prompt as plain text: at /v1/completions, or with --raw",
                param="messages",
            )
        return self.renderer.render(messages, **options)

    async def encode_request(self, request: GenerateRequest, large: bool = False, **options: Any) -> tuple[int, ...]:
        """The request's prompt as token ids. `large`: there is much to do, even if this one is short: it is one of many."""
        if request.token_ids is not None:
            return request.token_ids
        if request.messages is not None:
            return await self.encode(await self.render_async(request.messages, large, **options), add_special=False)
        [found] = await self.encode_all((request.text or "",), large=large)
        return found

    async def render_async(self, messages: Messages, large: bool = False, **options: Any) -> str:
        """As `render`, beside the event loop when there is much to do: templates are programs."""
        if (
            large
            or len(messages) > _MANY_MESSAGES
            or sum(len(str(message.get("content", ""))) for message in messages) > _LONG_CHARS
        ):
            return await asyncio.to_thread(self.render, messages, **options)
        return self.render(messages, **options)

    async def encode(self, text: str, add_special: bool = True) -> tuple[int, ...]:
        [found] = await self.encode_all((text,), add_special)
        return found

    async def encode_all(
        self, texts: Sequence[str], add_special: bool = True, large: bool = False
    ) -> list[tuple[int, ...]]:
        """Of many texts. Other streams must not wait for them when they are long together."""
        if self.tokenizer is None and not self._byte_tokens:
            return [tuple(await self._remote_tokenizer.tokenize(text, add_special)) for text in texts]
        if large or sum(map(len, texts)) > _LONG_CHARS:
            return await asyncio.to_thread(self._encode_texts, texts, add_special)
        return self._encode_texts(texts, add_special)

    def _encode_texts(self, texts: Sequence[str], add_special: bool) -> list[tuple[int, ...]]:
        if self._byte_tokens:
            return [tuple(text.encode("utf-8", "replace")) for text in texts]
        assert self.tokenizer is not None
        return list(map(tuple, self.tokenizer.encode_batch(texts, add_special)))


def preload_prompt_files(source: Path | None) -> None:
    """Read a model's tokenizer and template while something else is waited for. What is wrong is said when they are used."""
    try:
        if source is not None:
            _load_cached(source)
    except (EnginebayError, OSError):
        pass


def _load_cached(source: Path) -> tuple[Tokenizer | None, ChatRenderer]:
    """Read once, however many ask, until the files change."""
    with _read_lock:
        return _load_files(source, _compute_stamp(source))


@lru_cache(_MAX_CACHED)
def _load_files(source: Path, stamp: FileStamp) -> tuple[Tokenizer | None, ChatRenderer]:
    try:
        tokenizer = load_tokenizer(source)
    except Unsupported:
        tokenizer = None  # the engine's own serves instead
    return tokenizer, load_renderer(source)


def _compute_stamp(source: Path) -> FileStamp:
    """Changes with the files."""
    files = sorted((*source.glob("*"), *source.glob("*/*.jinja"))) if source.is_dir() else [source]
    found = ((str(file), file.stat()) for file in files if file.exists())
    return tuple((name, known.st_mtime_ns, known.st_size) for name, known in found)
