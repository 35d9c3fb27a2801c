"""Measure the streamed tokens per second of each dialect beside those of chat, in turns on one server.

    python -m bench.server.dialect_comparison

The engine is the fake one, and server, engine and client share all cores: what differs is the encoding of events. The client
reads bytes and checks only the end of each stream, so that it costs every dialect the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bench.server.bay_server import BayServer
from bench.server.server_process import exit_on_sigterm
from bench.server.thresholds import check_at_least

_STREAMS, _TOKENS = 64, 256
_SCRIPT = "abcdefghijklmnopqrstuvwxyz" * 10
_TARGET = 0.9
_MESSAGES = [{"role": "user", "content": "Say hi."}]


@dataclass(frozen=True, slots=True)
class Dialect:
    path: str
    build_body: Callable[[str], dict[str, Any]]
    end: bytes  # in the last event of a whole stream


def _count(name: str) -> bytes:
    return b'"%b":%d' % (name.encode(), _TOKENS)


DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions",
        lambda model: {
            "model": model, "messages": _MESSAGES, "max_tokens": _TOKENS, "stream": True,
            "stream_options": {"include_usage": True},
        },
        _count("completion_tokens"),
    ),
    "Responses": Dialect(
        "/v1/responses",
        lambda model: {"model": model, "input": "Say hi.", "max_output_tokens": _TOKENS, "stream": True, "store": False},
        _count("output_tokens"),
    ),
    "Messages": Dialect(
        "/v1/messages",
        lambda model: {"model": model, "messages": _MESSAGES, "max_tokens": _TOKENS, "stream": True},
        _count("output_tokens"),
    ),
    "Ollama": Dialect(
        "/api/chat",
        lambda model: {"model": model, "messages": _MESSAGES, "options": {"num_predict": _TOKENS}},
        _count("eval_count"),
    ),
}  # fmt: skip


def build_request(url: str, dialect: Dialect, model: str, headers: Mapping[str, str]) -> bytes:
    body = json.dumps(dialect.build_body(model)).encode()
    lines = [f"POST {dialect.path} HTTP/1.1", f"Host: {urlsplit(url).netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def read_stream(url: str, request: bytes, end: bytes) -> None:
    """Read one stream to its end. Raise if it is not whole."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(request)
        last = b""
        while received := await reader.read(1 << 16):
            last = (last + received)[-4096:]
    finally:
        writer.close()
    if end not in last:
        raise SystemExit(f"a stream is not whole: {last[-500:].decode(errors='replace')}")


async def measure(url: str, request: bytes, end: bytes, seconds: float) -> float:
    """Return the tokens per second of streams that follow one another on each connection."""
    deadline, streams = time.perf_counter() + seconds, 0

    async def run() -> None:
        nonlocal streams
        while time.perf_counter() < deadline:
            await read_stream(url, request, end)
            streams += 1

    began = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(_STREAMS)))
    return streams * _TOKENS / (time.perf_counter() - began)


def compare(rounds: int, seconds: float) -> bool:
    server = BayServer("dialects", "toy", "fake", {"script": _SCRIPT})
    values: dict[str, list[float]] = {name: [] for name in DIALECTS}
    try:
        url = server.start()
        for number in range(-1, rounds):
            for name in DIALECTS if number % 2 else reversed(DIALECTS):
                dialect = DIALECTS[name]
                request = build_request(url, dialect, server.model, server.headers)
                tokens_per_s = asyncio.run(measure(url, request, dialect.end, seconds))
                if number >= 0:
                    values[name].append(tokens_per_s)
    finally:
        server.stop()
    good = True
    for name in list(DIALECTS)[1:]:
        ratios = [value / chat for value, chat in zip(values[name], values["chat"], strict=True)]
        means = f"{statistics.mean(values[name]):,.0f} : {statistics.mean(values['chat']):,.0f}"
        good &= check_at_least(_TARGET, f"{name} beside chat, tok/s {means}", ratios)
    return good


def main() -> int:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    return 0 if compare(arguments.rounds, arguments.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
