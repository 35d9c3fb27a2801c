"""The Python API: one model on one engine, in three lines.

    with Stack("smollm2") as stack:
        print(stack.generate("What is the capital of France?"))

A string becomes one chat message if the model has a chat template; otherwise, or with `raw=True`, it is the raw prompt.
A list of strings or chats runs as one batch. Sampling defaults: temperature 0.1, top_p 0.9, max_tokens 500.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from enginebay.config.loader import load_config
from enginebay.config.resolved_config import Config
from enginebay.contract import Delta, Facts, GenerateRequest, Support, parse_sampling
from enginebay.contract.engine_messages import Done
from enginebay.errors import InvalidRequest
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan, Say, make_launch_plan
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.routing.output_markers import ThoughtSplitter, plan_splitting
from enginebay.util.child_processes import interrupt_all
from enginebay.util.paths import prepare_home
from enginebay.util.progress import say_nothing

_SETTINGS_HINT = 'pass engine settings as a dict: Stack(MODEL, settings={"context_length": 8192})'
SAMPLING_DEFAULTS: Mapping[str, Any] = {"temperature": 0.1, "top_p": 0.9, "max_tokens": 500}

Chat = Sequence[Mapping[str, Any]]
Prompt = str | Chat
T = TypeVar("T")


class AsyncStack:
    """One model on one engine. Open it with `async with`, or with `await stack.open()` and `await stack.close()`.

    `engine` is a kind, `KIND==VERSION`, or None for the best one on this host. `settings` are engine settings by dotted name.
    `task` is "generate" or "embed". Further keywords are sampling defaults of this stack.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        engine: str | None = None,
        config: Config | str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        task: str | None = None,
        offline: bool | None = None,
        strict: bool = False,
        say: Say = say_nothing,
        **sampling: Any,
    ) -> None:
        if not isinstance(config, Config):
            flags = {} if offline is None else {"offline": offline}
            config = load_config(Path(config) if config else None, flags=flags, strict=strict)
        parse_sampling(sampling, _SETTINGS_HINT)  # fail now rather than at the first request
        self._config = config
        self._plan_options = {"engine": engine, "settings": settings, "task": task, "strict": strict}
        self._model, self._say, self._sampling = model, say, sampling
        self._plan: LaunchPlan | None = None
        self._worker: ModelWorker | None = None

    @property
    def worker(self) -> ModelWorker:
        if self._worker is None:
            raise _not_open_error()
        return self._worker

    @property
    def facts(self) -> Facts:
        """Facts about the loaded engine: versions, effective settings, context length, memory."""
        return self.worker.facts

    @property
    def plan(self) -> LaunchPlan:
        return self.worker.plan

    @property
    def warnings(self) -> list[str]:
        """Settings without effect, one line per key."""
        known = [str(warning) for warning in (*self._config.warnings, *self.plan.warnings)]
        others = [line for line in self.facts.warnings if not any(line.partition(":")[0] in text for text in known)]
        return list(dict.fromkeys((*known, *others)))

    def prepare(self) -> LaunchPlan:
        """Choose the engine, fetch and convert the model. Runs in the calling thread, so that Ctrl-C stops it at once."""
        if self._plan is None:
            prepare_home()
            self._plan = make_launch_plan(self._model, config=self._config, say=self._say, **self._plan_options)  # type: ignore[arg-type]
        return self._plan

    async def open(self) -> AsyncStack:
        """Start the worker and load the model, after `prepare`."""
        if self._worker is None:
            try:
                plan = await asyncio.to_thread(self.prepare)
            except asyncio.CancelledError:
                interrupt_all()  # the thread would keep fetching
                raise
            self._say(f"loading {plan.model} on {plan.spec.kind}")
            self._worker = await ModelWorker.start(plan)
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
        """Return the answer to a prompt, or a list of answers to a list of prompts, run as one batch."""
        if _is_batch(prompt):
            answers = [self._collect(item, raw, sampling) for item in cast("Sequence[Prompt]", prompt)]
            return list(await asyncio.gather(*answers))
        return await self._collect(cast("Prompt", prompt), raw, sampling)

    async def _collect(self, prompt: Prompt, raw: bool, sampling: Mapping[str, Any]) -> str:
        return "".join([piece async for piece in self.stream(prompt, raw=raw, **sampling)])

    async def stream(self, prompt: Prompt, *, raw: bool = False, **sampling: Any) -> AsyncIterator[str]:
        """Yield the answer piece by piece. Leaving the loop early cancels the request."""
        async for event in self.events(prompt, raw=raw, **sampling):
            if isinstance(event, Delta) and event.text and event.choice == 0:
                yield event.text

    async def events(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        lora: str | None = None,
        allow_special_tokens: bool | None = None,
        **sampling: Any,
    ) -> AsyncIterator[Delta | Done]:
        """Yield all engine events: deltas with token ids and logprobs, then `Done` with usage and timing.

        `allow_special_tokens`: text that spells a control token becomes it; default: in a raw prompt, not in a chat.
        """
        request = self.build_request(prompt, raw=raw, lora=lora, **sampling)
        stream = self.worker.generate(request, allow_special_tokens=allow_special_tokens)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    def build_request(
        self, prompt: Prompt, *, raw: bool = False, lora: str | None = None, **sampling: Any
    ) -> GenerateRequest:
        """Build the request. Precedence: defaults < configuration < this stack's sampling < this call's."""
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise InvalidRequest(
                f"expected a prompt as text or a list of messages, got {type(prompt).__name__}", param="prompt"
            )
        if not prompt:
            raise InvalidRequest("the prompt is empty", param="prompt")
        configured = self._config.sampling_for(self.plan.spec.kind, self.plan.model)
        defaults = {
            name: value for name, value in {**SAMPLING_DEFAULTS, **configured}.items() if self._supports_parameter(name)
        }
        chosen = parse_sampling({**defaults, **self._sampling, **sampling})
        if not isinstance(prompt, str):
            return GenerateRequest(messages=tuple(prompt), sampling=chosen, lora=lora)
        if raw or not self.worker.prompt_encoder.has_chat_template:
            return GenerateRequest(text=prompt, sampling=chosen, lora=lora)
        return GenerateRequest(messages=({"role": "user", "content": prompt},), sampling=chosen, lora=lora)

    async def plan_splitting(
        self, prompt: Prompt, *, raw: bool = False, **sampling: Any
    ) -> Callable[[], ThoughtSplitter] | None:
        """Return what creates a splitter for each answer, which splits its thought from it. None: there is no thought."""
        request = self.build_request(prompt, raw=raw, **sampling)
        if request.messages is None or request.sampling.guided is not None:  # a constraint binds all of the output
            return None
        return await plan_splitting(self.worker, request.messages)

    def _supports_parameter(self, parameter: str) -> bool:
        """Return whether a default applies: those that the engine refuses are dropped."""
        declared = self.plan.spec.request.get(parameter)
        refused = declared is None or declared.support is Support.REFUSES
        return not refused and parameter not in self.facts.refused

    async def embed(self, texts: str | Sequence[str]) -> list[tuple[float, ...]]:
        """Return one vector per text. Most engines need a stack with `task="embed"`."""
        result = await self.worker.embed([texts] if isinstance(texts, str) else list(texts))
        return list(result.vectors)

    async def __aenter__(self) -> AsyncStack:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Stack:
    """The same without `await`. Works in scripts and notebooks: its event loop runs in its own thread."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._stack = AsyncStack(model, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def prepare(self) -> LaunchPlan:
        """Choose the engine, fetch and convert the model. Loads nothing."""
        return self._stack.prepare()

    def open(self) -> Stack:
        if self._loop is None:
            self._stack.prepare()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="enginebay", daemon=True)
            self._thread.start()
            atexit.register(self.close)
            try:
                self._run_blocking(self._stack.open())
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        self._run_blocking(self._stack.close())
        loop, self._loop = self._loop, None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()
        atexit.unregister(self.close)

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
        """Return the answer to a prompt, or a list of answers to a list of prompts, run as one batch."""
        answer: str | list[str] = self._run_blocking(self._stack.generate(prompt, raw=raw, **sampling))
        return answer

    def stream(self, prompt: Prompt, *, raw: bool = False, **sampling: Any) -> Iterator[str]:
        """Yield the answer piece by piece. Leaving the loop early cancels the request."""
        return self._iterate(self._stack.stream(prompt, raw=raw, **sampling))

    def events(self, prompt: Prompt, *, raw: bool = False, **sampling: Any) -> Iterator[Delta | Done]:
        return self._iterate(self._stack.events(prompt, raw=raw, **sampling))

    def plan_splitting(
        self, prompt: Prompt, *, raw: bool = False, **sampling: Any
    ) -> Callable[[], ThoughtSplitter] | None:
        """Return what creates a splitter for each answer, which splits its thought from it. None: there is no thought."""
        plan: Callable[[], ThoughtSplitter] | None = self._run_blocking(
            self._stack.plan_splitting(prompt, raw=raw, **sampling)
        )
        return plan

    def embed(self, texts: str | Sequence[str]) -> list[tuple[float, ...]]:
        vectors: list[tuple[float, ...]] = self._run_blocking(self._stack.embed(texts))
        return vectors

    def _iterate(self, pieces: AsyncIterator[T]) -> Iterator[T]:
        end = object()
        try:
            while (piece := self._run_blocking(anext(cast("Any", pieces), end))) is not end:
                yield cast("T", piece)
        finally:
            if self._loop is not None:
                with suppress(RuntimeError):  # still running: an interrupt has cancelled it, so it ends on its own
                    self._run_blocking(cast("Any", pieces).aclose())

    def _run_blocking(self, work: Any) -> Any:
        if self._loop is None:
            if asyncio.iscoroutine(work):
                work.close()
            raise _not_open_error()
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(work), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def __enter__(self) -> Stack:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _not_open_error() -> InvalidRequest:
    return InvalidRequest("the stack is not open", "use it in a `with` block, or call open() first")


def _is_batch(prompt: Any) -> bool:
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return False
    return not prompt or not isinstance(prompt[0], Mapping)


async def _as_coroutine(work: Any) -> Any:
    return await work
