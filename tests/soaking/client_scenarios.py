"""Client behaviours under load, and the responses each must get.

A scenario raises `BrokenConnection` or `AssertionError` when a request fails that should succeed. Scenarios in which the
client disconnects expect nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from tests.soaking.soak_connection import SoakConnection, build_request

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
class VisitCounts:
    """Totals so far."""

    answered: int = 0
    left: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class ClientVisit:
    """One client's visit: a connection, randomness, and the totals."""

    connection: SoakConnection
    random: Random
    counts: VisitCounts

    async def ask(self, path: str, body: Any = None, expect: int = 200) -> Any:
        self.connection.send(path, body)
        status = await self.connection.read_status()
        data = await self.connection.read_body()
        assert status == expect, f"{path}: {status} instead of {expect}: {data[:300]!r}"
        return _decode(data) if data[:1] in (b"{", b"[") else data

    async def stream_events(self, path: str, body: Mapping[str, Any], pause_s: float = 0.0) -> list[Any]:
        """Return the server-sent events of a whole stream."""
        self.connection.send(path, {**body, "stream": True})
        status = await self.connection.read_status()
        data = b"".join([piece async for piece in self.connection.read_pieces(pause_s)])
        assert status == 200, f"{path}: {status}: {data[:300]!r}"
        lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
        if path != _RESPONSES:
            assert lines.pop() == b"[DONE]", "the stream does not end with [DONE]"
        return [_decode(line) for line in lines]

    def draw_length(self) -> int:
        return self.random.randint(1, 300)


def build_chat_body(content: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


def join_texts(events: list[Any], choices: int = 1) -> list[str]:
    """Return the text of each choice of a streamed chat or completion."""
    texts: list[list[str]] = [[] for _ in range(choices)]
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]].append(choice["delta"].get("content", "") if "delta" in choice else choice["text"])
    return ["".join(text) for text in texts]


# Clients that stay to the end


async def streamed_chat(visit: ClientVisit) -> None:
    limit, n = visit.draw_length(), visit.random.choice((1, 1, 1, 2, 4))
    body = build_chat_body("Tell <<story>>", max_tokens=limit, n=n, stream_options={"include_usage": True})
    events = await visit.stream_events(_CHAT, body)
    assert join_texts(events, n) == [STORY[:limit]] * n
    assert events[-1]["usage"]["completion_tokens"] == n * limit
    visit.counts.tokens += n * limit


async def whole_chat(visit: ClientVisit) -> None:
    n = visit.random.choice((1, 1, 3))
    response = await visit.ask(_CHAT, build_chat_body("Say <<words>>", n=n))
    assert [choice["message"]["content"] for choice in response["choices"]] == [WORDS] * n
    assert response["usage"]["completion_tokens"] == n * len(WORDS.encode())
    visit.counts.tokens += n * len(WORDS.encode())


async def streamed_completions(visit: ClientVisit) -> None:
    limit, prompts = visit.draw_length(), visit.random.randint(1, 4)
    body = {"model": MODEL, "prompt": ["Tell <<story>>"] * prompts, "max_tokens": limit}
    assert join_texts(await visit.stream_events(_COMPLETIONS, body), prompts) == [STORY[:limit]] * prompts
    visit.counts.tokens += prompts * limit


async def whole_completion(visit: ClientVisit) -> None:
    limit = visit.draw_length()
    response = await visit.ask(_COMPLETIONS, {"model": MODEL, "prompt": "Tell <<story>>", "max_tokens": limit})
    assert response["choices"][0]["text"] == STORY[:limit]
    visit.counts.tokens += limit


async def streamed_tools(visit: ClientVisit) -> None:
    events = await visit.stream_events(_CHAT, build_chat_body("Do <<call>>", tools=TOOLS))
    calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "get_weather" and calls[0]["id"]
    assert "".join(call["function"].get("arguments", "") for call in calls) == ARGUMENTS
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    visit.counts.tokens += len(CALL)


async def whole_tools(visit: ClientVisit) -> None:
    response = await visit.ask(_CHAT, build_chat_body("Do <<call>>", tools=TOOLS))
    [call] = response["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    visit.counts.tokens += len(CALL)


async def streamed_response(visit: ClientVisit) -> None:
    events = await visit.stream_events(_RESPONSES, {"model": MODEL, "input": "Say <<words>>"})
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == WORDS
    assert events[-1]["type"] == "response.completed"
    visit.counts.tokens += len(WORDS.encode())


async def ask_logprobs(visit: ClientVisit) -> None:
    body = build_chat_body("Anything", max_tokens=8, logprobs=True, top_logprobs=3, ignore_eos=True)
    response = await visit.ask(_CHAT, body)
    assert len(response["choices"][0]["logprobs"]["content"]) == 8
    visit.counts.tokens += 8


async def embeddings(visit: ClientVisit) -> None:
    count = visit.random.randint(1, 16)
    response = await visit.ask("/v1/embeddings", {"model": MODEL, "input": ["some text"] * count})
    assert len(response["data"]) == count


async def ask_information(visit: ClientVisit) -> None:
    tokens = await visit.ask("/tokenize", {"model": MODEL, "prompt": "a text"})
    assert tokens["count"] == 6
    assert (await visit.ask("/v1/models"))["data"][0]["id"] == MODEL
    assert b"enginebay_requests_total" in await visit.ask("/metrics")


async def send_unknown_fields(visit: ClientVisit) -> None:
    """They are ignored by name; no name is remembered."""
    await visit.ask(_CHAT, build_chat_body("hi", **{f"field{visit.random.random()}": 1}))


async def send_invalid_requests(visit: ClientVisit) -> None:
    """Each request gets its error, and the connection stays usable."""
    await visit.ask(_CHAT, build_chat_body("hi", temperature=5), expect=400)
    await visit.ask(_CHAT, {**build_chat_body("hi"), "model": f"no{visit.random.random()}"}, expect=404)
    await visit.ask(_CHAT, b'{"model": "text", "messages": [', expect=400)
    await visit.ask(f"/v1/nothing/{visit.random.random()}", expect=404)
    await visit.ask(_CHAT, build_chat_body("hi", temprature=1), expect=400)


async def read_slowly(visit: ClientVisit) -> None:
    """Reads slowly and still gets everything."""
    n = visit.random.choice((1, 2))
    pause_s = visit.random.uniform(0.0005, 0.004)
    events = await visit.stream_events(_CHAT, build_chat_body("Tell <<story>>", n=n), pause_s)
    assert join_texts(events, n) == [STORY] * n
    visit.counts.tokens += n * len(STORY)


# Clients that disconnect


async def leave_stream(visit: ClientVisit) -> None:
    body = build_chat_body(
        "Tell <<story>>", n=visit.random.choice((1, 1, 4)), stream=True, tools=visit.random.choice((None, TOOLS))
    )
    visit.connection.send(_CHAT, body)
    await visit.connection.read_status()
    pieces_left = visit.random.randint(0, 12)
    async for _ in visit.connection.read_pieces():
        pieces_left -= 1
        if pieces_left < 0:
            break
    visit.connection.abort()
    visit.counts.left += 1


async def leave_at_once(visit: ClientVisit) -> None:
    path, body = visit.random.choice(
        (
            (_CHAT, build_chat_body("Tell <<story>>", stream=visit.random.random() < 0.5, n=2)),
            (_COMPLETIONS, {"model": MODEL, "prompt": ["Tell <<story>>"] * 3, "max_tokens": 500}),
            (_RESPONSES, {"model": MODEL, "input": "Tell <<story>>", "stream": True}),
            ("/v1/embeddings", {"model": MODEL, "input": ["some text"] * 64}),
        )
    )
    visit.connection.send(path, body)
    await asyncio.sleep(visit.random.choice((0, 0.001, 0.005, 0.02)))
    visit.connection.abort()
    visit.counts.left += 1


async def leave_mid_request(visit: ClientVisit) -> None:
    data = build_request(_CHAT, build_chat_body("Tell <<story>>" + "x" * 2000))
    visit.connection.send_raw(data[: visit.random.randint(1, len(data) - 1)])
    await asyncio.sleep(visit.random.uniform(0, 0.01))
    visit.connection.abort()
    visit.counts.left += 1


async def stall(visit: ClientVisit) -> None:
    """Requests a lot, reads nothing, and disconnects later."""
    visit.connection.send(_CHAT, build_chat_body("Tell <<story>>", n=4, stream=True))
    await asyncio.sleep(visit.random.uniform(0.2, 1.5))
    visit.connection.abort()
    visit.counts.left += 1


ClientScenario = Callable[[ClientVisit], Awaitable[None]]

# Scenarios and their weights.
SCENARIOS: Mapping[ClientScenario, int] = {
    streamed_chat: 260,
    whole_chat: 100,
    streamed_completions: 80,
    whole_completion: 100,
    streamed_tools: 40,
    whole_tools: 40,
    streamed_response: 60,
    ask_logprobs: 20,
    embeddings: 60,
    ask_information: 20,
    send_invalid_requests: 20,
    send_unknown_fields: 5,
    read_slowly: 15,
    leave_stream: 100,
    leave_at_once: 60,
    leave_mid_request: 20,
    stall: 5,
}
SMALL_BUFFER = (read_slowly, stall)  # on their own connections with a small receive buffer
