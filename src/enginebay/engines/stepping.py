"""A base class for simple engines: implement a token generator, inherit streaming, batching and cancellation.

For libraries that yield one token at a time. The base class applies `max_tokens`, `n`, `stop` and `stop_token_ids`; the
generator applies all other sampling parameters. Engines with their own scheduler implement `contract.Engine` directly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from enginebay.contract import Embedding, Facts, FinishReason, GenerateRequest, Load, Probe, Sink
from enginebay.errors import ContextOverflow, EnginebayError, EngineFailed, Unsupported
from enginebay.meters.devices.proc_files import read_resident_bytes
from enginebay.text.tokenization.detokenizer import StopScanner

Tokens = Iterator[tuple[int, str]]  # token id and text; the text is empty while a character is incomplete


class SteppingEngine:
    """Implements `contract.Engine` on top of `answer`. Each step advances all running requests by one token, in one thread."""

    kind = ""
    context_length = 4096
    max_batch = 64
    step_s = 0.0  # pause after each step

    def __init__(self, load: Load) -> None:
        self.load = load
        self._running: dict[int, list[_RunningChoice]] = {}
        self._condition = threading.Condition()
        self._closed = False

    def answer(self, request: GenerateRequest, choice: int) -> Tokens:
        """Yield the tokens of one choice; the end of the iterator ends the sequence."""
        raise NotImplementedError

    @classmethod
    def probe(cls) -> Probe:
        raise NotImplementedError

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        raise NotImplementedError

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        raise Unsupported(f"{self.kind} does not support embeddings", "use another engine", param="embeddings")

    def facts(self) -> Facts:
        probe = self.probe()
        return Facts(
            kind=self.kind,
            version=probe.version,
            model=self.load.model,
            context_length=self.context_length,
            max_batch=self.max_batch,
            memory_bytes=read_resident_bytes(),
            versions=probe.versions,
            asked=dict(self.load.settings),
            effective={**self.load.settings, "step_s": self.step_s},
        )

    def start(self, sink: Sink) -> None:
        threading.Thread(target=self._run_steps, args=(sink,), name="steps", daemon=True).start()

    def submit(self, number: int, request: GenerateRequest) -> None:
        prompt = request.token_ids or ()
        output_limit = self.context_length - len(prompt)
        if output_limit < 1:
            raise ContextOverflow(
                f"the prompt ({len(prompt)} tokens) plus output exceeds the model's context length of {self.context_length} tokens",
                "shorten the prompt",
                param="prompt",
            )
        choices = [
            _RunningChoice(number, index, request, self.answer(request, index), output_limit)
            for index in range(request.sampling.n)
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
            sink.flush()  # one message per step
            time.sleep(self.step_s)


def _step_request(number: int, choices: Sequence[_RunningChoice], sink: Sink) -> bool:
    """Advance each choice of a request by one token. Return False when the request has ended."""
    try:
        running = [choice.step(sink) for choice in choices]
        return any(running)
    except EnginebayError as error:
        sink.error(number, error)
    except Exception as error:  # a library error fails its request, not the step thread
        sink.error(number, EngineFailed(f"the engine failed: {type(error).__name__}: {error}"))
    return False


class _RunningChoice:
    """One choice of a running request."""

    def __init__(self, number: int, choice: int, request: GenerateRequest, tokens: Tokens, output_limit: int) -> None:
        self.number, self.choice, self.tokens = number, choice, tokens
        self.prompt_tokens = len(request.token_ids or ())
        self.tokens_left = min(output_limit, request.sampling.max_tokens or output_limit)
        self.stop_token_ids = request.sampling.stop_token_ids
        self.stop_scanner = StopScanner(request.sampling.stop)
        self.started = self.ended = False

    def step(self, sink: Sink) -> bool:
        """Generate one token and send it to the sink. Return False when the choice has ended."""
        if self.ended:
            return False
        if not self.started:
            self.started = True
            if self.choice == 0:
                sink.accepted(self.number, self.prompt_tokens)
        generated = next(self.tokens, None)
        if generated is None:
            return self._finish(sink, FinishReason.STOP)
        token, text = generated
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
