"""The fake engine: steps like a real one, with configurable delays and failures."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from enginebay import __version__
from enginebay.contract import Embedding, Facts, FinishReason, GenerateRequest, Load, Probe, Sink, Stats, TokenLogprobs
from enginebay.engines.fake.energy_meter import FakeEnergyMeter
from enginebay.engines.fake.schema_instance import build_instance
from enginebay.engines.fake.script_rules import read_rules, select_output
from enginebay.engines.fake.spec import SPEC
from enginebay.engines.fake.toy_model import EOS, ToySampler
from enginebay.errors import ContextOverflow, EngineFailed, InvalidRequest, LoadFailed, OutOfMemory
from enginebay.meters.sample import Meter
from enginebay.text.tokenization.detokenizer import StopScanner

ScriptPiece = tuple[str, tuple[int, ...]]  # text and token ids of one event


@lru_cache(maxsize=1024)
def split_script(text: str) -> tuple[ScriptPiece, ...]:
    """Split a script into events, one token per byte; the last byte of a character carries its text."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return tuple((decoder.decode(bytes((byte,))), (byte,)) for byte in text.encode())


class _FakeSequence:
    """One choice of a running request."""

    __slots__ = (
        "_decoder",
        "_end",
        "_sampler",
        "_script_pieces",
        "_stop_scanner",
        "choice",
        "ended",
        "generated",
        "max_tokens",
        "number",
        "prompt_tokens",
        "ready_at",
        "sampling",
    )

    def __init__(
        self, number: int, choice: int, request: GenerateRequest, script: str | None, output_limit: int, ready_at: float
    ) -> None:
        sampling = request.sampling
        self.number, self.choice, self.sampling, self.ready_at = number, choice, sampling, ready_at
        self.max_tokens = min(output_limit, sampling.max_tokens or output_limit)
        self.generated = 0
        self.prompt_tokens = len(request.token_ids or ()) if choice == 0 else 0  # all choices share the prompt
        self.ended = False
        self._script_pieces: Iterator[ScriptPiece] | None = None
        self._sampler: ToySampler | None = None
        if script is not None:
            self._script_pieces = iter(split_script(script))
        else:
            self._sampler = ToySampler(request.token_ids or (), sampling, choice, request.lora or "")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop_scanner = StopScanner(sampling.stop) if sampling.stop else None
        self._end: tuple[FinishReason, str | int | None] | None = None
        for token in request.generated:
            self._replay(token)

    def _replay(self, token: int) -> None:
        """Take over a token that another worker generated and sent."""
        if self._script_pieces is not None:
            text, _ = next(self._script_pieces, ("", ()))
        else:
            assert self._sampler is not None
            self._sampler.replay(token)
            text = self._decoder.decode(bytes((token,)))
        self._append(token, text)

    def step(self, sink: Sink) -> None:
        """Generate one token and send it to the sink."""
        if self._end is None:
            token, text, logprobs = self._next_token()
            if token == EOS:
                self._end = (FinishReason.STOP, None)
            else:
                text = self._append(token, text)
                sink.token(self.number, text, (token,), self.choice, logprobs)
        if self._end is not None:
            self._finish(sink, *self._end)

    def _append(self, token: int, text: str) -> str:
        """Add a token, and set `_end` if it is the last. Return the text to send."""
        self.generated += 1
        if token in self.sampling.stop_token_ids and self.generated > self.sampling.value("min_tokens"):
            self._end = (FinishReason.STOP, token)
            return ""
        if self._stop_scanner is not None:
            text = self._stop_scanner.feed(text)
            if self._stop_scanner.matched is not None:
                self._end = (FinishReason.STOP, self._stop_scanner.matched)
        if self._end is None and self.generated >= self.max_tokens:
            self._end = (FinishReason.LENGTH, None)
        return text

    def _next_token(self) -> tuple[int, str, Sequence[TokenLogprobs]]:
        if self._script_pieces is not None:
            text, ids = next(self._script_pieces, ("", (EOS,)))
            return ids[0], text, ()
        assert self._sampler is not None
        token, logprobs = self._sampler.sample_next()
        text = "" if token == EOS else self._decoder.decode(bytes((token,)))
        return token, text, () if logprobs is None else (logprobs,)

    def _finish(self, sink: Sink, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.ended = True
        rest = self._stop_scanner.finish() if self._stop_scanner is not None else ""
        if rest:
            sink.token(self.number, rest, (), self.choice)
        sink.finish(self.number, reason, self.choice, stop_reason)


class FakeEngine:
    """Implements `contract.Engine` without a library."""

    def __init__(self, load: Load) -> None:
        defaults = {name: setting.default for name, setting in SPEC.settings.items()}
        self._settings: dict[str, Any] = {**defaults, **load.settings}
        self._load = load
        self._sequences: list[_FakeSequence] = []
        self._queued: list[_FakeSequence] = []
        self._cancelled: set[int] = set()
        self._condition = threading.Condition()
        self._closed = False
        self._tokens = 0
        self._steps = 0
        self._hanging = False
        idle_w, busy_w = self._settings["idle_w"], self._settings["busy_w"]
        self._meter = None if idle_w is None else FakeEnergyMeter(idle_w, busy_w)
        self._loras = set(load.loras)
        self._rules = read_rules(self._settings["script_rules"] or ())
        with suppress(OSError):  # the disk may have no space for logs
            os.write(1, f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '(unset)')}\n".encode())
        time.sleep(self._settings["load_s"])
        self._fail_load(self._settings["fail_load"])

    def _fail_load(self, how: str | None) -> None:
        if how == "error":
            raise LoadFailed(
                f"{self._load.model} failed to load: fail_load is error", "unset the fake engine's fail_load"
            )
        if how == "out_of_memory":
            raise OutOfMemory(f"not enough memory to load {self._load.model}: fail_load is out_of_memory")
        if how == "crash":
            print("the fake engine crashes while loading: fail_load is crash", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "hang":
            time.sleep(3600)
        limit, length = self._settings["oom_above"], self._settings["context_length"]
        if limit is not None and length > limit:
            raise OutOfMemory(
                f"not enough memory to load {self._load.model} with a context of {length} tokens",
                f"lower context_length to {limit}",
            )

    @classmethod
    def probe(cls) -> Probe:
        return Probe(version=__version__, devices=("cpu", "cuda"))  # "cuda": GPUs that a test declares

    def start(self, sink: Sink) -> None:
        threading.Thread(target=self._run_steps, args=(sink,), name="steps", daemon=True).start()

    def facts(self) -> Facts:
        return Facts(
            kind="fake",
            version=__version__,
            model=self._load.model,
            context_length=self._settings["context_length"],
            max_batch=self._settings["max_batch"],
            memory_bytes=self._settings["memory_bytes"],
            asked=dict(self._load.settings),
            effective={**self._settings, "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES")},
            sleep_levels=(1, 2),
        )

    def meter(self) -> Meter | None:
        return self._meter

    def sleep(self, level: int) -> None:
        if level not in (1, 2):
            raise InvalidRequest(f"unknown sleep level {level}", "use level 1 or 2", param="level")
        time.sleep(self._settings["sleep_s"])

    def wake(self) -> None:
        time.sleep(self._settings["wake_s"])
        if self._settings["wake_fails"]:
            raise EngineFailed("the fake engine failed to wake: wake_fails is set")

    def add_lora(self, name: str, path: str) -> None:
        if not Path(path).exists():
            raise InvalidRequest(f"adapter {name}: {path} does not exist", "pass the path of an adapter", param="lora")
        self._loras.add(name)

    def remove_lora(self, name: str) -> None:
        if name not in self._loras:
            raise InvalidRequest(
                f"unknown LoRA adapter {name!r}", f"available: {', '.join(sorted(self._loras)) or 'none'}", param="lora"
            )
        self._loras.discard(name)

    def submit(self, number: int, request: GenerateRequest) -> None:
        prompt = request.token_ids or ()
        output_limit = self._settings["context_length"] - len(prompt)
        if output_limit < 1:
            raise ContextOverflow(
                f"the prompt ({len(prompt)} tokens) plus output exceeds the model's context length of "
                f"{self._settings['context_length']} tokens",
                "shorten the prompt",
                param="prompt",
            )
        self._fail_on_prompt(prompt)
        script = self._find_script(prompt)
        guided = request.sampling.guided
        if script is None and guided is not None and guided.json is not None:
            script = json.dumps(build_instance(json.loads(guided.json)))
        ready_at = time.perf_counter() + self._settings["prefill_s"]
        with self._condition:
            for choice in range(request.sampling.n):
                self._queued.append(_FakeSequence(number, choice, request, script, output_limit, ready_at))
            self._condition.notify()

    def _fail_on_prompt(self, prompt: Sequence[int]) -> None:
        crash, hang = self._settings["crash_on_prompt"], self._settings["hang_on_prompt"]
        text = bytes(token for token in prompt if token < EOS).decode(errors="replace") if crash or hang else ""
        if crash and crash in text:
            print("the fake engine crashes: the prompt contains crash_on_prompt", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)  # the main thread gets the signal
        self._hanging = self._hanging or bool(hang and hang in text)

    def _find_script(self, prompt: Sequence[int]) -> str | None:
        text = bytes(token for token in prompt if token < EOS).decode(errors="replace")
        output = select_output(self._rules, text)
        if output is not None:
            return output
        for fragment, script in (self._settings["script_by_prompt"] or {}).items():
            if fragment in text:
                return str(script)
        script = self._settings["script"]
        return None if script is None else str(script)

    def cancel(self, number: int) -> None:
        with self._condition:
            self._queued = [sequence for sequence in self._queued if sequence.number != number]
            self._cancelled.add(number)

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        for ids in inputs:
            self._fail_on_prompt(ids)
        return Embedding(tuple(_hash_to_vector(ids) for ids in inputs), sum(map(len, inputs)))

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(text.encode())

    def running(self) -> int:
        with self._condition:
            return len(self._get_request_numbers())

    def stats(self) -> Stats:
        """Report 0 for KV cache usage: there is no cache."""
        with self._condition:
            in_batch = {sequence.number for sequence in self._sequences[: self._settings["max_batch"]]}
            return Stats(self._steps, 0.0, len(self._get_request_numbers() - in_batch))

    def _get_request_numbers(self) -> set[int]:
        """Return the open requests. The caller holds the lock."""
        return {sequence.number for sequence in (*self._sequences, *self._queued)} - self._cancelled

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _run_steps(self, sink: Sink) -> None:
        step_s, max_batch = self._settings["step_s"], self._settings["max_batch"]
        while self._admit():
            batch = self._sequences if len(self._sequences) <= max_batch else self._sequences[:max_batch]
            self._step(batch, sink)
            self._steps += 1
            if any(
                sequence.ended for sequence in batch
            ):  # before the flush: a client that sees the end must not see it running
                with self._condition:
                    self._sequences = [sequence for sequence in self._sequences if not sequence.ended]
            sink.flush()
            if step_s:
                time.sleep(step_s)

    def _admit(self) -> bool:
        """Admit queued sequences and drop cancelled ones; wait while there are none. Return False when closed."""
        with self._condition:
            while not self._closed:
                self._sequences += self._queued
                self._queued = []
                if self._cancelled:
                    self._sequences = [
                        sequence for sequence in self._sequences if sequence.number not in self._cancelled
                    ]
                    self._cancelled.clear()
                if self._meter is not None:
                    self._meter.set_busy(bool(self._sequences))
                if self._sequences:
                    return True
                self._condition.wait()
        return False

    def _step(self, batch: Sequence[_FakeSequence], sink: Sink) -> None:
        has_prefill_delay = self._settings["prefill_s"] > 0
        if self._settings["token_s"]:
            tokens = sum(1 if sequence.generated else 1 + sequence.prompt_tokens for sequence in batch)
            time.sleep(self._settings["token_s"] * tokens)
        fail_after = self._settings["fail_after_tokens"]
        for sequence in batch:
            if has_prefill_delay and sequence.ready_at > time.perf_counter():
                continue
            sequence.step(sink)
            if fail_after is not None and sequence.generated >= fail_after and not sequence.ended:
                sequence.ended = True
                sink.error(sequence.number, EngineFailed(f"the fake engine failed: fail_after_tokens is {fail_after}"))
        self._tokens += len(batch)
        if self._hanging:
            time.sleep(3600)
        crash, hang = self._settings["crash_after_tokens"], self._settings["hang_after_tokens"]
        if crash is not None and self._tokens >= crash:
            sink.flush()
            time.sleep(0.05)
            print(f"the fake engine crashes: crash_after_tokens is {crash}", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if hang is not None and self._tokens >= hang:
            sink.flush()
            time.sleep(3600)


def _hash_to_vector(ids: Sequence[int]) -> tuple[float, ...]:
    """Return a unit vector of eight numbers that depends only on the tokens."""
    digest = hashlib.sha256(bytes(token % 256 for token in ids)).digest()
    values = [byte - 127.5 for byte in digest[:8]]
    length = sum(value * value for value in values) ** 0.5
    return tuple(value / length for value in values)
