"""The short way to bind an engine: give a generator of tokens, and streaming, batching and cancelling come with it.

For libraries that hand out one token at a time. `max_tokens`, `n`, `stop` and `stop_token_ids` are done here; all else
that shapes the tokens is the generator's. Engines with a scheduler of their own implement `contract.Engine` directly.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from enginebay.contract import Embedding, Facts, FinishReason, GenerateRequest, Load, Probe, Sink
from enginebay.errors import ContextOverflow, EnginebayError, EngineFailed, Unsupported
from enginebay.text.tokenization.detokenizer import StopScanner

Tokens = Iterator[tuple[int, str]]  # a token and its text, which may be empty while a character is incomplete


class SteppingEngine:
    """Implements `contract.Engine` over `answer`. All running requests advance by one token a step, in one thread."""

    kind = ""
    context_length = 4096
    max_batch = 64
    step_s = 0.0  # least time of a step

    def __init__(self, load: Load) -> None:
        self.load = load
        self._running: dict[int, list[_RunningChoice]] = {}
        self._condition = threading.Condition()
        self._closed = False

    def answer(self, request: GenerateRequest, choice: int) -> Tokens:
        """The tokens of one choice, as they are made; its end is the end of the sequence."""
        raise NotImplementedError

    @classmethod
    def probe(cls) -> Probe:
        raise NotImplementedError

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        raise NotImplementedError

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        raise Unsupported(f"{self.kind} makes no embeddings", "use another engine", param="embeddings")

    def facts(self) -> Facts:
        probe = self.probe()
        return Facts(
            kind=self.kind,
            version=probe.version,
            model=self.load.model,
            context_length=self.context_length,
            max_batch=self.max_batch,
            memory_bytes=_read_resident_bytes(),
            versions=probe.versions,
            asked=dict(self.load.settings),
            effective={**self.load.settings, "step_s": self.step_s},
        )

    def start(self, sink: Sink) -> None:
        threading.Thread(target=self._run_steps, args=(sink,), name="steps", daemon=True).start()

    def submit(self, number: int, request: GenerateRequest) -> None:
        prompt = request.token_ids or ()
        room = self.context_length - len(prompt)
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens, the context holds {self.context_length}",
                "shorten the prompt",
                param="prompt",
            )
        choices = [
            _RunningChoice(number, at, request, self.answer(request, at), room) for at in range(request.sampling.n)
        ]
        with self._condition:
            self._running[number] = choices
            self._condition.notify()

    def cancel(self, number: int) -> None:
        with self._condition:
            self._running.pop(number, None)

    def running(self) -> int:
        return len(self._running)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _run_steps(self, sink: Sink) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._running or self._closed)
                if self._closed:
                    return
                batch = list(self._running.items())[: self.max_batch]
            for number, choices in batch:
                if not _step_request(number, choices, sink):
                    self.cancel(number)
            sink.flush()  # all that this step made leaves in one message
            time.sleep(self.step_s)


def _read_resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0  # not on Linux


def _step_request(number: int, choices: Sequence[_RunningChoice], sink: Sink) -> bool:
    """One token for each choice of a request. False: the request has ended."""
    try:
        going_on = [choice.step(sink) for choice in choices]
        return any(going_on)
    except EnginebayError as error:
        sink.error(number, error)
    except Exception as error:  # whatever the library raises must reach its own request, not end the thread
        sink.error(number, EngineFailed(f"the engine failed: {type(error).__name__}: {error}"))
    return False


class _RunningChoice:
    """One choice of one request, as it is being made."""

    def __init__(self, number: int, choice: int, request: GenerateRequest, tokens: Tokens, room: int) -> None:
        self.number, self.choice, self.tokens = number, choice, tokens
        self.prompt_tokens = len(request.token_ids or ())
        self.tokens_left = min(room, request.sampling.max_tokens or room)
        self.stop_token_ids = request.sampling.stop_token_ids
        self.stop_scanner = StopScanner(request.sampling.stop)
        self.started = self.ended = False

    def step(self, sink: Sink) -> bool:
        """Make one token and tell the sink. False: it has ended."""
        if self.ended:
            return False
        if not self.started:
            self.started = True
            if self.choice == 0:
                sink.accepted(self.number, self.prompt_tokens)
        made = next(self.tokens, None)
        if made is None:
            return self._finish(sink, FinishReason.STOP)
        token, text = made
        if token in self.stop_token_ids:
            sink.token(self.number, "", (token,), self.choice)
            return self._finish(sink, FinishReason.STOP, token)
        sink.token(self.number, self.stop_scanner.feed(text), (token,), self.choice)
        self.tokens_left -= 1
        if self.stop_scanner.matched is not None:
            return self._finish(sink, FinishReason.STOP, self.stop_scanner.matched)
        return self.tokens_left > 0 or self._finish(sink, FinishReason.LENGTH)

    def _finish(self, sink: Sink, reason: FinishReason, stop_reason: str | int | None = None) -> bool:
        self.ended = True
        rest = self.stop_scanner.finish()
        if rest:
            sink.token(self.number, rest, (), self.choice)
        sink.finish(self.number, reason, self.choice, stop_reason)
        return False
