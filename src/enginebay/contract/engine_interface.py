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
    """Receives an engine's output. Any thread may call it; it never blocks and never raises.

    Per request: `accepted` once, then `token`s, then `finish` once per choice; or `error` once, at any time.
    Nothing is sent before `flush`: call it after each engine step, or after each token if steps are not visible.
    Output for a request that has ended (cancelled, finished) is ignored.
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
        """Report token counts before the last `finish`. Only for engines whose output has no token ids."""

    def error(self, number: int, error: EnginebayError) -> None: ...

    def flush(self, ends_step: bool = True) -> None:
        """Send the output so far.

        `ends_step`: the output of a whole engine step is complete, and its energy is divided among its requests.
        Engines that flush single tokens may ignore it.
        """


class Engine(Protocol):
    """One loaded model. Created in the worker's main thread, before any other thread exists.

    `submit` and `cancel` return at once and are called by one thread at a time; `submit` may raise a `RequestError`.
    After `cancel` the engine stops computing the request within a step and need not report its end.
    Requests contain token ids (messages or text if the spec `renders`), and only parameters that the spec does not refuse.
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
        """Return the number of running and queued requests, without cancelled ones."""
        ...

    def close(self) -> None: ...


# Optional protocols of an engine.


@runtime_checkable
class SupportsSleep(Protocol):
    """Frees device memory and restores it. Called while no request runs, by one thread at a time; may take seconds.

    Level 1 keeps the weights in RAM, level 2 discards and reloads them; `Facts.sleep_levels` lists the supported ones.
    A worker whose engine supports none stays loaded.
    """

    def sleep(self, level: int) -> None: ...

    def wake(self) -> None: ...


@runtime_checkable
class SupportsLora(Protocol):
    """Adds and removes LoRA adapters while requests run. Raises `InvalidRequest` for an incompatible adapter."""

    def add_lora(self, name: str, path: str) -> None: ...

    def remove_lora(self, name: str) -> None: ...


@runtime_checkable
class SupportsStats(Protocol):
    """Reports statistics."""

    def stats(self) -> Stats:
        """Return statistics. Called about once a second from any thread: must be cheap and never wait for a step."""
        ...


@runtime_checkable
class HasMeter(Protocol):
    """Has its own energy meter, or knows that the host's meters do not apply."""

    def meter(self) -> Meter | Absent | None:
        """Return the meter, or None to use the host's."""
        ...
