"""The Python API: one model on one engine, in three lines.

    with Stack("smollm2") as stack:
        print(stack.generate("What is the capital of France?"))

A string is asked as one chat message when the model has a chat template, and taken as it is otherwise or with
`raw=True`. A list of strings (or of chats) is one batch. Sampling defaults: temperature 0.1, top_p 0.9, max_tokens 500.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from enginebay.config.load import load_config
from enginebay.config.model import Config
from enginebay.contract import Delta, Facts, GenerateRequest, Sampling
from enginebay.contract.messages import Done
from enginebay.errors import InvalidRequest
from enginebay.fleet.model_worker import ModelWorker
from enginebay.fleet.plan import Plan, Say, make_plan

DEFAULTS: Mapping[str, Any] = {"temperature": 0.1, "top_p": 0.9, "max_tokens": 500}

Chat = Sequence[Mapping[str, Any]]
Prompt = str | Chat
T = TypeVar("T")


class AsyncStack:
    """One model on one engine. Open it with `async with`, or with `await stack.open()` and `await stack.close()`."""

    def __init__(
        self,
        model: str | None = None,
        *,
        engine: str | None = None,
        config: Config | str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        offline: bool | None = None,
        strict: bool = False,
        say: Say = lambda _: None,
        **sampling: Any,
    ) -> None:
        flags = {} if offline is None else {"offline": offline}
        self._config = (
            config if isinstance(config, Config) else load_config(Path(config) if config else None, flags=flags)
        )
        self._model, self._engine, self._settings, self._strict, self._say = model, engine, settings, strict, say
        self._sampling = sampling
        self._worker: ModelWorker | None = None

    @property
    def worker(self) -> ModelWorker:
        if self._worker is None:
            raise InvalidRequest("the stack is not open", "use it in a `with` block, or call open() first")
        return self._worker

    @property
    def facts(self) -> Facts:
        """What is true of the loaded engine: versions, effective settings, context length, memory."""
        return self.worker.facts

    @property
    def plan(self) -> Plan:
        return self.worker.plan

    @property
    def warnings(self) -> list[str]:
        """Settings that loaded and have no effect, one line each."""
        return list(dict.fromkeys((*map(str, self._config.warnings), *self.plan.warnings, *self.facts.warnings)))

    async def open(self) -> AsyncStack:
        if self._worker is None:
            plan = await asyncio.to_thread(
                make_plan,
                self._model,
                engine=self._engine,
                config=self._config,
                settings=self._settings,
                strict=self._strict,
                say=self._say,
            )
            self._say(f"loading {plan.model} on {plan.spec.kind}")
            self._worker = await ModelWorker.open(plan)
        return self

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    @overload
    async def generate(self, prompt: str, *, raw: bool = False, **sampling: Any) -> str: ...
    @overload
    async def generate(
        self, prompt: Chat | Sequence[Prompt], *, raw: bool = False, **sampling: Any
    ) -> str | list[str]: ...
    async def generate(
        self, prompt: Prompt | Sequence[Prompt], *, raw: bool = False, **sampling: Any
    ) -> str | list[str]:
        """The answer to a prompt; a list of answers to a list of prompts, which run as one batch."""
        if _is_many(prompt):
            many = [self._collect(one, raw, sampling) for one in cast("Sequence[Prompt]", prompt)]
            return list(await asyncio.gather(*many))
        return await self._collect(cast("Prompt", prompt), raw, sampling)

    async def _collect(self, prompt: Prompt, raw: bool, sampling: Mapping[str, Any]) -> str:
        return "".join([piece async for piece in self.stream(prompt, raw=raw, **sampling)])

    async def stream(self, prompt: Prompt, *, raw: bool = False, **sampling: Any) -> AsyncIterator[str]:
        """The answer piece by piece. Leaving the loop early cancels the request."""
        async for event in self.events(prompt, raw=raw, **sampling):
            if isinstance(event, Delta) and event.text and event.choice == 0:
                yield event.text

    async def events(
        self, prompt: Prompt, *, raw: bool = False, lora: str | None = None, **sampling: Any
    ) -> AsyncIterator[Delta | Done]:
        """Everything the engine says: deltas with token ids and logprobs, then `Done` with usage and timing."""
        request = self.request(prompt, raw=raw, lora=lora, **sampling)
        stream = self.worker.generate(request)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    def request(
        self, prompt: Prompt, *, raw: bool = False, lora: str | None = None, **sampling: Any
    ) -> GenerateRequest:
        """The request as it will be sent: defaults < configuration < this stack's sampling < this call's."""
        configured = self._config.sampling_for(self.plan.spec.kind, self.plan.model)
        possible = {name: value for name, value in configured.items() if name not in self.facts.refused}
        chosen = make_sampling({**DEFAULTS, **possible, **self._sampling, **sampling})
        if not isinstance(prompt, str):
            return GenerateRequest(messages=tuple(prompt), sampling=chosen, lora=lora)
        if raw or not self.worker.prompts.chats:
            return GenerateRequest(text=prompt, sampling=chosen, lora=lora)
        return GenerateRequest(messages=({"role": "user", "content": prompt},), sampling=chosen, lora=lora)

    async def embed(self, texts: str | Sequence[str]) -> list[tuple[float, ...]]:
        """One vector for each text."""
        found = await self.worker.embed([texts] if isinstance(texts, str) else list(texts))
        return list(found.vectors)

    async def __aenter__(self) -> AsyncStack:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Stack:
    """The same without `await`. Works in scripts and in notebooks: its event loop runs in a thread of its own."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="enginebay", daemon=True)
        self._stack = AsyncStack(model, **options)

    def open(self) -> Stack:
        if not self._thread.is_alive():
            self._thread.start()
            atexit.register(self.close)
        self._wait(self._stack.open())
        return self

    def close(self) -> None:
        if self._thread.is_alive():
            self._wait(self._stack.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            atexit.unregister(self.close)
        if not self._loop.is_closed():
            self._loop.close()

    @property
    def facts(self) -> Facts:
        return self._stack.facts

    @property
    def warnings(self) -> list[str]:
        return self._stack.warnings

    @overload
    def generate(self, prompt: str, *, raw: bool = False, **sampling: Any) -> str: ...
    @overload
    def generate(self, prompt: Chat | Sequence[Prompt], *, raw: bool = False, **sampling: Any) -> str | list[str]: ...
    def generate(self, prompt: Any, *, raw: bool = False, **sampling: Any) -> str | list[str]:
        """The answer to a prompt; a list of answers to a list of prompts, which run as one batch."""
        answer: str | list[str] = self._wait(self._stack.generate(prompt, raw=raw, **sampling))
        return answer

    def stream(self, prompt: Prompt, *, raw: bool = False, **sampling: Any) -> Iterator[str]:
        """The answer piece by piece. Leaving the loop early cancels the request."""
        return self._pull(self._stack.stream(prompt, raw=raw, **sampling))

    def events(self, prompt: Prompt, *, raw: bool = False, **sampling: Any) -> Iterator[Delta | Done]:
        return self._pull(self._stack.events(prompt, raw=raw, **sampling))

    def embed(self, texts: str | Sequence[str]) -> list[tuple[float, ...]]:
        return self._wait(self._stack.embed(texts))

    def _pull(self, pieces: AsyncIterator[T]) -> Iterator[T]:
        end = object()
        try:
            while (piece := self._wait(anext(cast("Any", pieces), end))) is not end:
                yield cast("T", piece)
        finally:
            self._wait(cast("Any", pieces).aclose())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(work), self._loop)
        try:
            result: T = future.result()
            return result
        except KeyboardInterrupt:
            future.cancel()
            raise

    def __enter__(self) -> Stack:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def make_sampling(values: Mapping[str, Any]) -> Sampling:
    """Sampling from keyword arguments; an unknown name is an error that names the nearest."""
    known = Sampling.__dataclass_fields__
    for name in values:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1)
            raise InvalidRequest(
                f"there is no sampling parameter {name!r}", f"did you mean {near[0]}?" if near else "", param=name
            )
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if value is not None
    }
    if isinstance(plain.get("stop"), str):
        plain["stop"] = (plain["stop"],)
    return Sampling(**plain)


def _is_many(prompt: Any) -> bool:
    return not isinstance(prompt, str) and (not prompt or not isinstance(prompt[0], Mapping))


async def _as_coroutine(work: Any) -> Any:
    return await work
