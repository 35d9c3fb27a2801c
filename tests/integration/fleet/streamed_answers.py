"""Streams as their clients read them: what was sent in all, and how it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_TIMEOUT_S = 120.0


@dataclass
class StreamedAnswer:
    """Everything a client may rely on. Two answers to one request are equal, but for ids and times."""

    text: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)  # name and fragments of arguments, by index
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)  # of the stream
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def arguments(self) -> list[Any]:
        return [json.loads("".join(parts[1:])) for _, parts in sorted(self.calls.items())]

    def normalize(self) -> StreamedAnswer:
        """Join what may be split differently, and leave out what depends on the cache."""
        calls = {index: [parts[0], "".join(parts[1:])] for index, parts in self.calls.items()}
        logprobs = [(token, round(value, 2)) for token, value in self.logprobs]
        usage = {name: self.usage[name] for name in sorted(self.usage) if isinstance(self.usage[name], int)}
        return StreamedAnswer(self.text, calls, logprobs, self.finish_reasons, usage, self.ends, self.errors)


class StreamReader:
    """Reads one stream. `begun` is set with its first output."""

    def __init__(self, client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
        self._client = client
        self._path = path
        options = {} if path == RESPONSES else {"stream_options": {"include_usage": True}}
        self._body = {**body, "stream": True, **options}
        self.begun = asyncio.Event()
        self.answer = StreamedAnswer()

    async def read(self) -> StreamedAnswer:
        """Read to the end."""
        async for event in self._read_events():
            if event == "[DONE]":
                self.answer.ends.append(event)
            elif self._path == RESPONSES:
                self._add_response_event(json.loads(event))
            else:
                self._add_chunk(json.loads(event))
        return self.answer

    async def _read_events(self) -> AsyncIterator[str]:
        async with self._client.stream("POST", self._path, json=self._body, timeout=_TIMEOUT_S) as response:
            if response.status_code != 200:
                self.answer.errors.append(json.loads(await response.aread())["error"])
                return
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")

    def _add_chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.answer.errors.append(chunk["error"])
            return
        if chunk.get("usage"):
            self.answer.usage = chunk["usage"]
        for choice in chunk["choices"]:
            delta = choice.get("delta", choice)
            text = delta.get("content") or delta.get("text") or ""
            self.answer.text += text
            for call in delta.get("tool_calls") or ():
                parts = self.answer.calls.setdefault(call["index"], [])
                parts += [call["function"][name] for name in ("name", "arguments") if call["function"].get(name)]
            self.answer.logprobs += _read_logprobs(choice.get("logprobs") or {})
            if choice["finish_reason"]:
                self.answer.finish_reasons.append(choice["finish_reason"])
            if text or delta.get("tool_calls"):
                self.begun.set()

    def _add_response_event(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "response.output_text.delta":
            self.answer.text += event["delta"]
            self.begun.set()
        elif kind in ("response.completed", "response.incomplete"):
            self.answer.ends.append(kind)
            self.answer.usage = event["response"]["usage"]
        elif kind in ("response.failed", "error"):
            self.answer.errors.append(event)


def _read_logprobs(logprobs: dict[str, Any]) -> list[tuple[str, float]]:
    if "content" in logprobs:
        return [(entry["token"], entry["logprob"]) for entry in logprobs["content"] or ()]
    return list(zip(logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), strict=True))
