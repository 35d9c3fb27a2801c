"""A transformers engine in this process, without a server: the same greedy requests for every benchmark."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from enginebay.contract import GenerateRequest, Load, Sampling
from enginebay.engines.transformers.engine import TransformersEngine


class TimingSink:
    """A sink that records token ids and the end of all requests."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.first_s: dict[int, float] = {}
        self.characters = 0
        self.open: set[int] = set()
        self.errors: dict[int, Any] = {}
        self.idle = threading.Event()

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None: ...

    def token(
        self, number: int, text: str, token_ids: Sequence[int], choice: int = 0, logprobs: Sequence[Any] = ()
    ) -> None:
        if number not in self.first_s:
            self.first_s[number] = time.monotonic()
        self.tokens[number].extend(token_ids)
        self.characters += len(text)

    def finish(self, number: int, reason: Any, choice: int = 0, stop_reason: Any = None) -> None:
        self.open.discard(number)

    def usage(self, number: int, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None: ...

    def error(self, number: int, error: Any) -> None:
        self.errors[number] = error
        self.open.discard(number)

    def flush(self, ends_step: bool = True) -> None:
        if not self.open:
            self.idle.set()


class EngineBench:
    """An engine and its sink."""

    wait_s: float = 60.0  # time limit of one run

    def __init__(self, path: Path, **settings: Any) -> None:
        self.engine = TransformersEngine(Load("transformers", "", path.name, str(path), settings))
        self.sink = TimingSink()
        self.engine.start(self.sink)
        self._next = 0

    @property
    def runner(self) -> Any:
        return self.engine._components.runner

    @property
    def graphs(self) -> str:
        return str(self.engine.facts().effective.get("cuda_graphs"))

    def run(self, prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> tuple[list[list[int]], float, float]:
        """Return the greedy outputs, the total seconds, and the median seconds to the first token."""
        sink, first = self.sink, self._next
        self._next += len(prompts)
        sink.idle.clear()
        sink.open |= set(range(first, self._next))
        began = time.monotonic()
        for number, (prompt, limit) in enumerate(zip(prompts, tokens, strict=True), start=first):
            sampling = Sampling(temperature=0, max_tokens=limit, ignore_eos=True)
            self.engine.submit(number, GenerateRequest(token_ids=tuple(prompt), sampling=sampling))
        if not sink.idle.wait(self.wait_s) or sink.errors:
            raise RuntimeError(f"the engine failed: {list(sink.errors.values())[:1] or 'timed out'}")
        took_s = time.monotonic() - began
        ttft_s = median(sink.first_s[number] - began for number in range(first, self._next))
        return [sink.tokens[number] for number in range(first, self._next)], took_s, ttft_s
