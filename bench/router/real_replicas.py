"""Conversations with two llama.cpp replicas behind `bay serve`: routed by their prompts, or to a random replica.

A session key of its own for every request sends it to a random replica, so both sides are the same server and code.
"""

from __future__ import annotations

import http.client
import json
import random
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.server.loadgen import build_chat_body
from bench.server.server_process import BenchServerProcess, find_free_port

_BAY = Path(sys.executable).with_name("bay")
_MODEL = "smollm2"
_REPLICAS = 2
_CONVERSATIONS = 4  # at once: as many as all slots of both
_TURNS = 3
_TOKENS = 8
_THINK_S = 6.0
_SYSTEM = (
    "You help the crew of ship number {number} with their work. " + "Answer briefly, name the deck, and be kind. " * 26
)
_QUESTIONS = ("Where is the anchor?", "Who cooks tonight?", "Is the engine warm?", "When do we arrive?")
_TIMEOUT_S = 300.0


@dataclass(slots=True)
class ConversationTally:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttfts: list[float] = field(default_factory=list)
    replicas: list[str] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def mean_ttft_s(self) -> float:
        return sum(self.ttfts) / len(self.ttfts)


class RealReplicas:
    """`bay serve` with replicas of one small model."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        self._port = find_free_port()
        self._key = secrets.token_hex(16)
        self._server: BenchServerProcess | None = None
        self._talks = 0

    def start(self) -> None:
        settings = {"context_length": 8192, "max_batch": 2, "threads": 1}  # a slot keeps one conversation
        model = {"source": _MODEL, "engine": "llamacpp", "replicas": _REPLICAS, "llamacpp": settings}
        config = self._directory / "config.yaml"
        config.write_text(yaml.safe_dump({"models": {"talk": model}, "server": {"log_level": "warning"}}))
        command = [str(_BAY), "serve", "--config", str(config), "--port", str(self._port)]
        environment = {"ENGINEBAY_API_KEY": self._key}
        self._server = BenchServerProcess(command, self._directory / "log", (), environment, self._directory)
        url, headers = f"http://127.0.0.1:{self._port}", {"Authorization": f"Bearer {self._key}"}
        self._server.wait_ready(url, build_chat_body("talk", 4, False), headers, timeout_s=_TIMEOUT_S)
        deadline = time.monotonic() + _TIMEOUT_S
        while (
            len({self._ask([{"role": "user", "content": "hi"}], ConversationTally(), {}) for _ in range(4)}) < _REPLICAS
        ):
            if time.monotonic() > deadline:
                raise SystemExit("the second replica did not load")
            time.sleep(0.5)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def converse(self, at_random: bool) -> ConversationTally:
        """Hold several conversations at once, each about another ship."""
        tally = ConversationTally()
        make_headers: Callable[[], dict[str, str]] = (
            (lambda: {"x-session-id": secrets.token_hex(8)}) if at_random else dict[str, str]
        )
        threads = [
            threading.Thread(target=self._hold_conversation, args=(self._talks + number, tally, make_headers))
            for number in range(_CONVERSATIONS)
        ]
        self._talks += _CONVERSATIONS
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return tally

    def _hold_conversation(
        self, number: int, tally: ConversationTally, make_headers: Callable[[], dict[str, str]]
    ) -> None:
        dice = random.Random(number)
        messages = [{"role": "system", "content": _SYSTEM.format(number=number)}]
        for turn in range(_TURNS):
            messages.append({"role": "user", "content": _QUESTIONS[turn % len(_QUESTIONS)]})
            time.sleep(dice.uniform(0, _THINK_S))  # else a freed slot always gets the conversation it had
            self._ask(messages, tally, make_headers())
            messages.append({"role": "assistant", "content": "On deck two, all is well."})

    def _ask(self, messages: list[dict[str, str]], tally: ConversationTally, headers: dict[str, str]) -> str:
        """Stream one answer. Return the replica."""
        options = {"stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True}
        body = {"model": "talk", "messages": messages, "max_tokens": _TOKENS, "stream": True, **options}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        try:
            began = time.perf_counter()
            known = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {**known, **headers})
            answer = connection.getresponse()
            if answer.status != 200:
                raise SystemExit(f"the server answered {answer.status}: {answer.read()[:300]!r}")
            self._read_stream(answer, began, tally)
            tally.replicas.append(answer.headers["x-enginebay-replica"])
            return tally.replicas[-1]
        finally:
            connection.close()

    def _read_stream(self, answer: http.client.HTTPResponse, began: float, tally: ConversationTally) -> None:
        first_at, usage = 0.0, dict[str, Any]()
        for line in answer:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if not first_at and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    first_at = time.perf_counter()
                usage = chunk.get("usage") or usage
        tally.ttfts.append(first_at - began)
        tally.prompt_tokens += usage["prompt_tokens"]
        tally.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
