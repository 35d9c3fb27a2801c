"""Clients that send one request after another and count the outcomes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx2 as httpx

_TIMEOUT_S = 120.0
_BEGUN = 3  # events of a stream, by which something of its answer has come


@dataclass
class OutcomeTally:
    """How requests ended. A `lost` one got neither a complete answer nor an error."""

    whole: int = 0
    told: Counter[str] = field(default_factory=Counter)  # error events at the end of a stream, by code
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)  # HTTP errors, by status and code
    lost: list[str] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return self.whole + self.told.total() + self.refused.total() + len(self.lost)


class BackgroundWorkload:
    """`async with BackgroundWorkload(url, ["toy"])`: sends requests within the block and awaits them at its end."""

    def __init__(
        self, url: str, models: Sequence[str], *, streams: int = 4, wholes: int = 4, max_tokens: int = 40,
        pause_s: float = 0.0, **fields: Any,
    ) -> None:  # fmt: skip
        self.streamed, self.unstreamed = OutcomeTally(), OutcomeTally()
        self.asked = 0
        self.answers: Counter[int] = Counter()  # whole ones, by client
        self.slowest_s = 0.0
        self._url = url
        self._kinds = [True] * streams + [False] * wholes
        self._models = list(itertools.islice(itertools.cycle(models), len(self._kinds)))
        self._body = {"max_tokens": max_tokens, "ignore_eos": True, **fields}
        self._pause_s = pause_s
        self._stopping = False
        self._begun = False
        self._progress = asyncio.Condition()

    async def __aenter__(self) -> BackgroundWorkload:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # a reused connection may be closed
        self._client = httpx.AsyncClient(base_url=self._url, timeout=_TIMEOUT_S, limits=limits)
        self._tasks = [asyncio.create_task(self._run_client(number)) for number in range(len(self._kinds))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        try:
            if error is not None:
                for task in self._tasks:
                    task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=error is not None)
        finally:
            await self._client.aclose()

    def stop(self) -> None:
        """Send no more requests."""
        self._stopping = True

    @property
    def lost(self) -> list[str]:
        return self.streamed.lost + self.unstreamed.lost

    @property
    def ended(self) -> int:
        return self.streamed.ended + self.unstreamed.ended

    async def wait_for_end(self, within_s: float = 60.0) -> None:
        """Wait until one more request has ended."""
        before = self.ended
        async with asyncio.timeout(within_s), self._progress:
            await self._progress.wait_for(lambda: self.ended > before)

    async def wait_mid_stream(self, within_s: float = 60.0) -> None:
        """Wait until a stream has received its first tokens."""
        async with asyncio.timeout(within_s), self._progress:
            self._begun = False
            await self._progress.wait_for(lambda: self._begun)

    async def _note_event(self, number: int) -> None:
        if number == _BEGUN:
            async with self._progress:
                self._begun = True
                self._progress.notify_all()

    async def wait_answers_for_all(self, times: int = 1, within_s: float = 180.0, *, streams: bool = False) -> None:
        """Wait for `times` more complete answers per client; streams count only with `streams`."""
        waited = [number for number, stream in enumerate(self._kinds) if streams or not stream]
        goals = {number: self.answers[number] + times for number in waited}
        async with asyncio.timeout(within_s), self._progress:
            await self._progress.wait_for(lambda: all(self.answers[one] >= goal for one, goal in goals.items()))

    async def _run_client(self, number: int) -> None:
        stream = self._kinds[number]
        tally = self.streamed if stream else self.unstreamed
        loop = asyncio.get_running_loop()
        while not self._stopping:
            body = {**self._body, "model": self._models[number], "prompt": "hello", "stream": stream}
            began, whole = loop.time(), False
            self.asked += 1
            try:
                whole = await (self._ask_stream(body, tally) if stream else self._ask_whole(body, tally))
            except (httpx.HTTPError, ValueError, KeyError) as error:
                tally.lost.append(f"{type(error).__name__}: {error}")
            self.slowest_s = max(self.slowest_s, loop.time() - began)
            self.answers[number] += whole
            async with self._progress:
                self._progress.notify_all()
            await asyncio.sleep(self._pause_s)

    async def _ask_whole(self, body: dict[str, Any], tally: OutcomeTally) -> bool:
        answer = await self._client.post("/v1/completions", json=body)
        found = answer.json()
        if answer.status_code == 200:
            made = found["usage"]["completion_tokens"]
            return _note_end(tally, made, body, found["choices"][0]["finish_reason"])
        tally.refused[answer.status_code, found["error"]["code"]] += 1
        return False

    async def _ask_stream(self, body: dict[str, Any], tally: OutcomeTally) -> bool:
        body = {**body, "stream_options": {"include_usage": True}}
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                error = json.loads(await answer.aread())["error"]
                tally.refused[answer.status_code, error["code"]] += 1
                return False
            events = []
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    events.append(line[6:])
                    await self._note_event(len(events))
        last = events[-1] if events else ""
        if last == "[DONE]":
            chunks = [json.loads(event) for event in events[:-1]]
            reasons = [one["choices"][0]["finish_reason"] for one in chunks if one["choices"]]
            return _note_end(tally, chunks[-1]["usage"]["completion_tokens"], body, reasons[-1])
        if "error" in (found := json.loads(last)):
            tally.told[found["error"]["code"]] += 1
        else:
            tally.lost.append(f"a stream ended with {last[:200]}")
        return False


def _note_end(tally: OutcomeTally, made: int, body: dict[str, Any], reason: str | None) -> bool:
    """Record the end of an answer. Return whether it is complete."""
    if made == body["max_tokens"] and reason == "length":
        tally.whole += 1
        return True
    tally.lost.append(f"an answer of {made} tokens that ended with {reason}")
    return False
