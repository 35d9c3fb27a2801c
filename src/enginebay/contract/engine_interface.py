"""The interface between a worker and the engine it hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from enginebay.contract.engine_messages import (
    Embedding,
    Facts,
    FinishReason,
    GenerateRequest,
    Load,
    Stats,
    TokenLogprobs,
)
from enginebay.contract.engine_spec import Probe
from enginebay.errors import EnginebayError
from enginebay.meters.sample import Absent, Meter


class Sink(Protocol):
    """Where an engine puts what it made. Any thread may call it; it never blocks and never raises.

    For each request: `accepted` once, then `token`s, then `finish` once for each choice; or `error` once, at any time.
    Nothing leaves before `flush`: call it after each engine step, or after each token where steps cannot be seen.
    What is put for a request that has ended (cancelled, finished) is ignored.
    """

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None: ...

    def token(
        self,
        number: int,
        text: str,
        token_ids: Sequence[int],
        choice: int = 0,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> None: ...

    def finish(
        self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None
    ) -> None: ...

    def usage(self, number: int, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
        """Before the last `finish`, from engines whose tokens have no ids here: their own count is the one that holds."""

    def error(self, number: int, error: EnginebayError) -> None: ...

    def flush(self, ends_step: bool = True) -> None:
        """What was put leaves now. `ends_step`: with it everything is put that the engine computed together; what that took
        is divided among those it was put for. Engines that flush single tokens may leave it."""


class Engine(Protocol):
    """One loaded model. Created in the worker's main thread, before any other thread exists.

    `submit` and `cancel` return at once and are called from one thread; `submit` may raise a `RequestError`.
    After `cancel` the engine stops computing the request within a step; nothing more needs to be put for it.
    Requests hold token ids only, and only parameters that the spec does not refuse.
    """

    def __init__(self, load: Load) -> None: ...

    @classmethod
    def probe(cls) -> Probe: ...

    def start(self, sink: Sink) -> None: ...

    def facts(self) -> Facts: ...

    def submit(self, number: int, request: GenerateRequest) -> None: ...

    def cancel(self, number: int) -> None: ...

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding: ...

    def tokenize(self, text: str, add_special: bool) -> list[int]: ...

    def running(self) -> int:
        """Requests the engine is computing or holding, cancelled ones not counted."""
        ...

    def close(self) -> None: ...


# What an engine may have beyond `Engine`.


@runtime_checkable
class SupportsSleep(Protocol):
    """Frees device memory and gets it back. Called while no request runs, by one thread at a time; may take seconds.

    Level 1 keeps the weights in RAM, level 2 discards them and reads them again; `Facts.sleep_levels` says which there
    are. A worker whose engine has none is kept as it is.
    """

    def sleep(self, level: int) -> None: ...

    def wake(self) -> None: ...


@runtime_checkable
class SupportsLora(Protocol):
    """Adapters come and go while requests run. Raises `InvalidRequest` for one that does not fit."""

    def add_lora(self, name: str, path: str) -> None: ...

    def remove_lora(self, name: str) -> None: ...


@runtime_checkable
class SupportsStats(Protocol):
    """Numbers about its own work."""

    def stats(self) -> Stats:
        """Asked about every second, from any thread and while the engine works: cheap, and never waits for a step."""
        ...


@runtime_checkable
class HasMeter(Protocol):
    """Knows better than the host's meters what its requests use, or that these cannot tell."""

    def meter(self) -> Meter | Absent | None:
        """None: the host's meters are right."""
        ...
