"""What clients do to a server under load, and what each of them must get.

A scene raises `Broken` or `AssertionError` when a request that should have succeeded did not. Those in which the client
goes away expect nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from tests.soaking.connection import Connection, request

MODEL = "text"
STORY = "There was once a server that never slept, and every token that it was given it passed on at once. " * 6
WORDS = "Grüße aus Århus, 世界 🌍! " * 4
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2, 3]}}\n</tool_call>'
ARGUMENTS = '{"city": "Paris", "days": [1, 2, 3]}'
SCRIPTS = {"<<story>>": STORY, "<<words>>": WORDS, "<<call>>": CALL}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
            },
        },
    }
]

_decode = msgspec.json.decode
_CHAT, _COMPLETIONS, _RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@dataclass
class Counts:
    """What has been done so far."""

    answered: int = 0
    left: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Visit:
    """One client's turn."""

    connection: Connection
    random: Random
    counts: Counts

    async def ask(self, path: str, body: Any = None, expect: int = 200) -> Any:
        self.connection.send(path, body)
        status = await self.connection.status()
        data = await self.connection.body()
        assert status == expect, f"{path}: {status} instead of {expect}: {data[:300]!r}"
        return _decode(data) if data[:1] in (b"{", b"[") else data

    async def events(self, path: str, body: Mapping[str, Any], pause_s: float = 0.0) -> list[Any]:
        """The server-sent events of a whole stream."""
        self.connection.send(path, {**body, "stream": True})
        status = await self.connection.status()
        data = b"".join([piece async for piece in self.connection.pieces(pause_s)])
        assert status == 200, f"{path}: {status}: {data[:300]!r}"
        lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
        if path != _RESPONSES:
            assert lines.pop() == b"[DONE]", "the stream does not end as streams end"
        return [_decode(line) for line in lines]

    def length(self) -> int:
        return self.random.randint(1, 300)


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


def joined(events: list[Any], choices: int = 1) -> list[str]:
    """The texts of a streamed chat or completion."""
    texts: list[list[str]] = [[] for _ in range(choices)]
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]].append(choice["delta"].get("content", "") if "delta" in choice else choice["text"])
    return ["".join(text) for text in texts]


# Clients that stay to the end


async def streamed_chat(visit: Visit) -> None:
    most, n = visit.length(), visit.random.choice((1, 1, 1, 2, 4))
    body = chat("Tell <<story>>", max_tokens=most, n=n, stream_options={"include_usage": True})
    events = await visit.events(_CHAT, body)
    assert joined(events, n) == [STORY[:most]] * n
    assert events[-1]["usage"]["completion_tokens"] == n * most
    visit.counts.tokens += n * most


async def whole_chat(visit: Visit) -> None:
    n = visit.random.choice((1, 1, 3))
    answer = await visit.ask(_CHAT, chat("Say <<words>>", n=n))
    assert [one["message"]["content"] for one in answer["choices"]] == [WORDS] * n
    assert answer["usage"]["completion_tokens"] == n * len(WORDS.encode())
    visit.counts.tokens += n * len(WORDS.encode())


async def streamed_completions(visit: Visit) -> None:
    most, prompts = visit.length(), visit.random.randint(1, 4)
    body = {"model": MODEL, "prompt": ["Tell <<story>>"] * prompts, "max_tokens": most}
    assert joined(await visit.events(_COMPLETIONS, body), prompts) == [STORY[:most]] * prompts
    visit.counts.tokens += prompts * most


async def whole_completion(visit: Visit) -> None:
    most = visit.length()
    answer = await visit.ask(_COMPLETIONS, {"model": MODEL, "prompt": "Tell <<story>>", "max_tokens": most})
    assert answer["choices"][0]["text"] == STORY[:most]
    visit.counts.tokens += most


async def streamed_tools(visit: Visit) -> None:
    events = await visit.events(_CHAT, chat("Do <<call>>", tools=TOOLS))
    calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "get_weather" and calls[0]["id"]
    assert "".join(call["function"].get("arguments", "") for call in calls) == ARGUMENTS
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    visit.counts.tokens += len(CALL)


async def whole_tools(visit: Visit) -> None:
    answer = await visit.ask(_CHAT, chat("Do <<call>>", tools=TOOLS))
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    visit.counts.tokens += len(CALL)


async def streamed_response(visit: Visit) -> None:
    events = await visit.events(_RESPONSES, {"model": MODEL, "input": "Say <<words>>"})
    assert "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta") == WORDS
    assert events[-1]["type"] == "response.completed"
    visit.counts.tokens += len(WORDS.encode())


async def scored(visit: Visit) -> None:
    body = chat("Anything", max_tokens=8, logprobs=True, top_logprobs=3, ignore_eos=True)
    answer = await visit.ask(_CHAT, body)
    assert len(answer["choices"][0]["logprobs"]["content"]) == 8
    visit.counts.tokens += 8


async def embeddings(visit: Visit) -> None:
    count = visit.random.randint(1, 16)
    answer = await visit.ask("/v1/embeddings", {"model": MODEL, "input": ["some text"] * count})
    assert len(answer["data"]) == count


async def questions(visit: Visit) -> None:
    tokens = await visit.ask("/tokenize", {"model": MODEL, "prompt": "a text"})
    assert tokens["count"] == 6
    assert (await visit.ask("/v1/models"))["data"][0]["id"] == MODEL
    assert b"enginebay_requests_total" in await visit.ask("/metrics")


async def mistakes(visit: Visit) -> None:
    """Each has its answer, and the connection goes on."""
    await visit.ask(_CHAT, chat("hi", temperature=5), expect=400)
    await visit.ask(_CHAT, {**chat("hi"), "model": f"no{visit.random.random()}"}, expect=404)
    await visit.ask(_CHAT, b'{"model": "text", "messages": [', expect=400)
    await visit.ask(f"/v1/nothing/{visit.random.random()}", expect=404)
    await visit.ask(_CHAT, chat("hi", **{f"field{visit.random.random()}": 1}), expect=400)


async def slow_reader(visit: Visit) -> None:
    """Takes its time, and gets everything all the same."""
    n = visit.random.choice((1, 2))
    pause_s = visit.random.uniform(0.0005, 0.004)
    events = await visit.events(_CHAT, chat("Tell <<story>>", n=n), pause_s)
    assert joined(events, n) == [STORY] * n
    visit.counts.tokens += n * len(STORY)


# Clients that leave


async def leaves_a_stream(visit: Visit) -> None:
    body = chat(
        "Tell <<story>>", n=visit.random.choice((1, 1, 4)), stream=True, tools=visit.random.choice((None, TOOLS))
    )
    visit.connection.send(_CHAT, body)
    await visit.connection.status()
    stay = visit.random.randint(0, 12)
    async for _ in visit.connection.pieces():
        stay -= 1
        if stay < 0:
            break
    visit.connection.leave()
    visit.counts.left += 1


async def leaves_at_once(visit: Visit) -> None:
    path, body = visit.random.choice(
        (
            (_CHAT, chat("Tell <<story>>", stream=visit.random.random() < 0.5, n=2)),
            (_COMPLETIONS, {"model": MODEL, "prompt": ["Tell <<story>>"] * 3, "max_tokens": 500}),
            (_RESPONSES, {"model": MODEL, "input": "Tell <<story>>", "stream": True}),
            ("/v1/embeddings", {"model": MODEL, "input": ["some text"] * 64}),
        )
    )
    visit.connection.send(path, body)
    await asyncio.sleep(visit.random.choice((0, 0.001, 0.005, 0.02)))
    visit.connection.leave()
    visit.counts.left += 1


async def leaves_in_the_middle_of_a_request(visit: Visit) -> None:
    data = request(_CHAT, chat("Tell <<story>>" + "x" * 2000))
    visit.connection.send_raw(data[: visit.random.randint(1, len(data) - 1)])
    await asyncio.sleep(visit.random.uniform(0, 0.01))
    visit.connection.leave()
    visit.counts.left += 1


async def stalls(visit: Visit) -> None:
    """Asks for much, reads nothing, and is gone a while later."""
    visit.connection.send(_CHAT, chat("Tell <<story>>", n=4, stream=True))
    await asyncio.sleep(visit.random.uniform(0.2, 1.5))
    visit.connection.leave()
    visit.counts.left += 1


Scene = Callable[[Visit], Awaitable[None]]

# How often, in shares of the whole.
SCENES: Mapping[Scene, int] = {
    streamed_chat: 260,
    whole_chat: 100,
    streamed_completions: 80,
    whole_completion: 100,
    streamed_tools: 40,
    whole_tools: 40,
    streamed_response: 60,
    scored: 20,
    embeddings: 60,
    questions: 20,
    mistakes: 20,
    slow_reader: 15,
    leaves_a_stream: 100,
    leaves_at_once: 60,
    leaves_in_the_middle_of_a_request: 20,
    stalls: 5,
}
SMALL_BUFFER = (slow_reader, stalls)  # on connections of their own, for which the kernel keeps little
