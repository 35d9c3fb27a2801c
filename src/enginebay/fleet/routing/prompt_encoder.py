"""Encodes prompts and chats to token ids, for all engines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from enginebay.contract import GenerateRequest
from enginebay.errors import EnginebayError, Unsupported
from enginebay.fleet.routing.prompt_bounds import PromptBound
from enginebay.text.chat.chat_messages import normalize_messages
from enginebay.text.chat.chat_renderer import DEFAULT_TEMPLATE, TOOL_USE_TEMPLATE, ChatRenderer, load_renderer
from enginebay.text.chat.plain_chat import render_plain
from enginebay.text.tokenization.tokenizer import Tokenizer, decode_token_bytes, load_tokenizer
from enginebay.util.hardware import release_free_memory

_LONG_CHARS = 8_000  # about a millisecond of work
_HUGE_CHARS = 200_000  # takes tens of megabytes to tokenize
_BATCH_CHARS = 256_000
_MANY_MESSAGES = 32
_BYTE_VOCABULARY = 256
_END_TOKENS = 64  # of a prompt, which hold the tags that open a thought
_MAX_CACHED = 4  # models whose tokenizer and template stay in memory across switches

Messages = Sequence[Mapping[str, Any]]
FileStamp = tuple[tuple[str, int, int], ...]
_read_lock = threading.Lock()


class RemoteTokenizer(Protocol):
    """Tokenizes with the engine's own tokenizer."""

    async def tokenize(self, text: str, add_special: bool = True) -> list[int]: ...


class PromptEncoder:
    """Renders chats with the model's template and tokenizes with the model's tokenizer.

    Falls back to the engine's tokenizer if the model has none that we can read. Rejects chats if the model has no
    template, except for engines without weights (`source` is None): they get plain text.
    """

    def __init__(self, source: Path | None, remote_tokenizer: RemoteTokenizer, byte_tokens: bool = False) -> None:
        self._remote_tokenizer = remote_tokenizer
        self._renders_plain = source is None
        self._byte_tokens = byte_tokens
        self.tokenizer: Tokenizer | None = None
        self.renderer: ChatRenderer | None = None
        self.allow_special_tokens = False  # the default for chats
        if source is not None:
            self.tokenizer, self.renderer = _load_cached(source)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._renders_plain or (self.renderer is not None and self.renderer.available)

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template, to detect the tool format."""
        templates = self.renderer.templates if self.renderer is not None else {}
        return templates.get(TOOL_USE_TEMPLATE) or templates.get(DEFAULT_TEMPLATE)

    @property
    def supports_tools(self) -> bool:
        """Whether the chat template renders tools. Engines without weights accept them."""
        return self._renders_plain or "tools" in (self.chat_template or "")

    @property
    def vocabulary_size(self) -> int | None:
        """The number of token ids, if known."""
        if self._byte_tokens:
            return _BYTE_VOCABULARY
        return None if self.tokenizer is None else self.tokenizer.vocabulary_size

    def get_token_bytes(self, number: int) -> bytes:
        """Return the bytes of one token; empty if only the engine knows them."""
        if self._byte_tokens:
            return bytes((number,)) if number < _BYTE_VOCABULARY else b""
        return b"" if self.tokenizer is None else decode_token_bytes(self.tokenizer, number)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, including special tokens."""
        if self._byte_tokens:
            return bytes(number for number in ids if number < _BYTE_VOCABULARY).decode("utf-8", "replace")
        if self.tokenizer is None:
            raise Unsupported("only the engine has this model's tokenizer", param="tokens")
        return self.tokenizer.decode(ids, skip_special=False)

    def decode_end(self, ids: Sequence[int]) -> str | None:
        """Return the text of a prompt's last token ids. None: only the engine knows it."""
        if self.tokenizer is None and not self._byte_tokens:
            return None
        return self.decode(ids[-_END_TOKENS:])

    def render(self, messages: Messages, **options: Any) -> str:
        """Render a chat with the model's template."""
        if self._renders_plain:
            return render_plain(normalize_messages(messages, keep_parts=False), options.get("tools"))
        if self.renderer is None or not self.renderer.available:
            raise Unsupported(
                "this model has no chat template",
                "send the prompt as plain text: to /v1/completions, or with --raw",
                param="messages",
            )
        return self.renderer.render(messages, **options)

    async def encode_request(
        self,
        request: GenerateRequest,
        large: bool = False,
        bound: PromptBound | None = None,
        /,
        *,
        allow_special_tokens: bool | None = None,
        **options: Any,
    ) -> tuple[int, ...]:
        """Return the request's prompt as token ids. `large`: use a thread even if it is short, as one of many.

        `allow_special_tokens`: text that spells a special token becomes that token. None: the model's default in a
        chat; true for a text, which may be a rendered chat. Raises `TextTooLong` if `bound` is exceeded. `options` are
        the client's: they may have any other name.
        """
        if request.token_ids is not None:
            return request.token_ids
        if request.messages is not None:
            return await self.encode_chat(request.messages, options, large, allow_special_tokens, bound=bound)
        return await self.encode_text(
            request.text or "", large=large, allow_special_tokens=allow_special_tokens is not False, bound=bound
        )

    async def encode_chat(
        self,
        messages: Messages,
        options: Mapping[str, Any],
        large: bool = False,
        allow_special_tokens: bool | None = None,
        add_special: bool = False,
        bound: PromptBound | None = None,
    ) -> tuple[int, ...]:
        """Render a chat with these options and return its token ids."""
        if allow_special_tokens is False:
            self._check_escapes()
        allowed = self.allow_special_tokens if allow_special_tokens is None else allow_special_tokens
        if allowed or self.tokenizer is None or self.renderer is None or not self.renderer.available:
            text = await self.render_async(messages, large, **options)
            return await self.encode_text(text, add_special, large=large, bound=bound)
        special_text = self.tokenizer.special_text
        render = partial(self.renderer.render_escaped, messages, special_text, **options)
        text, literals = await asyncio.to_thread(render) if large or _is_long(messages) else render()
        if not literals:
            return await self.encode_text(text, add_special, large=large, bound=bound)
        if bound is not None:
            text = await self.apply_bound(text, bound, literals)
        return tuple(await asyncio.to_thread(special_text.encode, text, literals, add_special))

    async def apply_bound(self, text: str, bound: PromptBound, literals: Mapping[str, str] | None = None) -> str:
        """Return the part of the text that is needed. Raises `TextTooLong` if all of it is, and does not fit.

        `literals`: what its stand-ins stand for, which is longer.
        """
        if bound.is_short(len(_restore(text, literals))):
            return text
        tokens = chars = 0
        for piece in bound.split(text):
            [ids] = await self.encode_all((_restore(piece, literals),), add_special=False, large=True)
            tokens, chars = tokens + len(ids), chars + len(piece)
            if bound.has_enough(tokens):
                return bound.cut_text(text, chars)
        return text

    async def render_async(self, messages: Messages, large: bool = False, /, **options: Any) -> str:
        """Render a chat; a large one in a thread, because templates are programs."""
        if large or _is_long(messages):
            return await asyncio.to_thread(self.render, messages, **options)
        return self.render(messages, **options)

    async def encode_text(
        self,
        text: str,
        add_special: bool = True,
        *,
        large: bool = False,
        allow_special_tokens: bool = True,
        bound: PromptBound | None = None,
    ) -> tuple[int, ...]:
        """Return the token ids of a text, in which special tokens may count as plain text."""
        if bound is not None:
            text = await self.apply_bound(text, bound)
        if not allow_special_tokens:
            self._check_escapes()
        if not allow_special_tokens and self.tokenizer is not None:
            return tuple(await asyncio.to_thread(self.tokenizer.special_text.encode_literally, text, add_special))
        [ids] = await self.encode_all((text,), add_special, large)
        return ids

    def _check_escapes(self) -> None:
        """Raise if special tokens cannot be told from text."""
        if self.tokenizer is None and not self._byte_tokens:
            raise Unsupported(
                "only the engine has this model's tokenizer, and it reads special tokens in texts",
                "remove allow_special_tokens",
                param="allow_special_tokens",
            )

    def encode_at_once(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a short text, with special tokens; empty if only the engine has the tokenizer."""
        return () if self.tokenizer is None and not self._byte_tokens else self._encode_texts((text,), False)[0]

    async def encode(self, text: str, add_special: bool = True) -> tuple[int, ...]:
        [ids] = await self.encode_all((text,), add_special)
        return ids

    async def encode_all(
        self, texts: Sequence[str], add_special: bool = True, large: bool = False
    ) -> list[tuple[int, ...]]:
        """Encode many texts; long ones in a thread, so that they do not delay other streams."""
        if self.tokenizer is None and not self._byte_tokens:
            return [tuple(await self._remote_tokenizer.tokenize(text, add_special)) for text in texts]
        if large or sum(map(len, texts)) > _LONG_CHARS:
            batches = [await asyncio.to_thread(self._encode_texts, batch, add_special) for batch in _batch(texts)]
            return [ids for batch in batches for ids in batch]
        return self._encode_texts(texts, add_special)

    def _encode_texts(self, texts: Sequence[str], add_special: bool) -> list[tuple[int, ...]]:
        if self._byte_tokens:
            return [tuple(text.encode("utf-8", "replace")) for text in texts]
        assert self.tokenizer is not None
        encoded = list(map(tuple, self.tokenizer.encode_batch(texts, add_special)))
        if sum(map(len, texts)) > _HUGE_CHARS:
            release_free_memory()
        return encoded


def _restore(text: str, literals: Mapping[str, str] | None) -> str:
    for stand_in, literal in (literals or {}).items():
        text = text.replace(stand_in, literal)
    return text


def _batch(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split many texts into batches of about `_BATCH_CHARS`: the memory of each is free before the next."""
    start = chars = 0
    for at, text in enumerate(texts):
        if at > start and chars + len(text) > _BATCH_CHARS:
            yield texts[start:at]
            start, chars = at, 0
        chars += len(text)
    yield texts[start:]


def _is_long(messages: Messages) -> bool:
    return (
        len(messages) > _MANY_MESSAGES
        or sum(len(str(message.get("content", ""))) for message in messages) > _LONG_CHARS
    )


def preload_prompt_files(source: Path | None) -> None:
    """Read a model's tokenizer and template ahead of time. Errors surface on first use."""
    try:
        if source is not None:
            _load_cached(source)
    except (EnginebayError, OSError):
        pass


def _load_cached(source: Path) -> tuple[Tokenizer | None, ChatRenderer]:
    """Read the files once until they change."""
    with _read_lock:
        return _load_files(source, _compute_stamp(source))


@lru_cache(_MAX_CACHED)
def _load_files(source: Path, stamp: FileStamp) -> tuple[Tokenizer | None, ChatRenderer]:
    try:
        tokenizer = load_tokenizer(source)
        _ = tokenizer.special_text  # takes a moment for a large vocabulary
    except Unsupported:
        return None, load_renderer(source)  # use the engine's own
    return tokenizer, load_renderer(source)


def _compute_stamp(source: Path) -> FileStamp:
    """Return a value that changes with the files."""
    files = sorted((*source.glob("*"), *source.glob("*/*.jinja"))) if source.is_dir() else [source]
    stats = ((str(file), file.stat()) for file in files if file.exists())
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
