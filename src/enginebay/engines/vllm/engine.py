"""vLLM's asynchronous engine behind the engine contract.

main thread      makes the engine, which forks or spawns vLLM's engine process; submit, cancel, embed, close
loop thread      runs AsyncLLM: sends requests to the engine process, detokenizes, fills the sink
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from enginebay.contract import Embedding, Facts, GenerateRequest, Load, Probe, Sampling, Sink, Stats
from enginebay.engines.vllm import answers, launch, library, memory, model_files, stepwise
from enginebay.engines.vllm.adapters import Adapters
from enginebay.engines.vllm.arguments import plan
from enginebay.engines.vllm.failures import first_line, is_death, load_error, one_line, request_error
from enginebay.engines.vllm.generate import Generate
from enginebay.engines.vllm.outputs import Stream
from enginebay.engines.vllm.sampling import arguments, structured
from enginebay.engines.vllm.sleeping import Sleeper, sleep_levels
from enginebay.engines.vllm.step_stats import StepStats
from enginebay.errors import (
    ContextOverflow,
    EnginebayError,
    EngineFailed,
    InvalidRequest,
    LoadFailed,
    Unsupported,
    WorkerDied,
)

_DEATH_EXIT_CODE = 70
_DEATH_DELAY_S = 1.0  # the last errors leave the process first
_SAMPLE = "The capital of France is"  # its answer is compared before and after a sleep that drops the weights
_SAMPLE_TOKENS = 8
_FORGET_POLL_S = 0.05
_SPECULATING = "vLLM cannot combine it with speculative decoding; load the model without speculative"


class _Runner(Protocol):
    def prepare(self, stream: Stream, prompt: Any, params: Any, lora: Any) -> Any: ...

    async def add(self, stream: Stream, request: Any) -> None: ...

    async def abort(self, stream: Stream) -> None: ...


class VllmEngine:
    """One model on vLLM. Needs its main thread to be the only one while it is made."""

    def __init__(self, load: Load) -> None:
        library.set_environment()
        config_json = model_files.check(load.path, load.settings.get("load_format"))
        model_files.check_draft(load.settings)
        ranks = model_files.lora_ranks(load.loras)
        self._load = load
        self._plan = plan(load, library.host(), config_json, ranks)
        self._architectures = [str(name) for name in config_json.get("architectures") or ()]
        self._notes = launch.ErrorNotes()
        self._llm = self._start_vllm()
        self._stats = StepStats()
        self._stats.attach(self._llm)
        self._config = self._llm.vllm_config
        self._context = int(self._config.model_config.max_model_len)
        self._adapters = Adapters(load.model, load.loras, *self._room_for_adapters())
        self._adapting = threading.Lock()
        self._sleeper = Sleeper(self._llm, sleep_levels(self._plan.arguments), self._sample)
        self._live: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="vllm-prepare")  # compiles grammars beside the loop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-loop", daemon=True)
        self._thread.start()  # only now: the engine process is forked
        self._add_loras()
        self._try_out()

    @classmethod
    def probe(cls) -> Probe:
        return library.probe()

    @classmethod
    def warm(cls) -> None:
        """Import all that a load will need, so that a load in this process, or in one forked from it, need not.

        Touches no device and starts no thread: the engine process can still be forked.
        """
        library.set_environment()
        library.import_all()

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._runner: _Runner = self._call(self._open())

    def facts(self) -> Facts:
        return Facts(
            kind="vllm",
            version=library.version(),
            model=self._load.model,
            context_length=self._context,
            max_batch=int(self._config.scheduler_config.max_num_seqs),
            memory_bytes=memory.used_bytes(),
            versions=library.versions(),
            asked=dict(self._load.settings),
            effective={
                **library.effective(self._config),
                "stepwise": self._stepwise,
                "mixed_graphs": "on" if self._plan.mixed_graphs else "off",
            },
            warnings=tuple(self._plan.warnings),
            refused=self._refused(),
            sleep_levels=self._sleeper.levels,
            phases=self._notes.phases(),
        )

    def submit(self, number: int, request: GenerateRequest) -> None:
        if self._load.task == "embed":
            raise Unsupported(f"{self._load.model} was loaded to embed, not to generate", "load it with task: generate")
        if number in self._live:
            raise InvalidRequest(f"request number {number} is taken")
        sampling = self._with_defaults(request.sampling)
        prompt = list(request.token_ids or ())
        self._check_length(len(prompt), 1)
        params = self._params(sampling, len(prompt))
        lora = self._adapters.find(request.lora)
        stream = Stream(number, self._sink, self._live, self._fail, sampling.logprobs, lora)
        self._live[number] = stream
        self._post(self._begin(stream, prompt, params, lora))

    def cancel(self, number: int) -> None:
        stream = self._live.pop(number, None)
        if stream is not None:
            self._post(self._runner.abort(stream))

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        if self._load.task != "embed":
            raise Unsupported(f"{self._load.model} was loaded to generate, not to embed", "load it with task: embed")
        for one in inputs:
            self._check_length(len(one), 0)
        vectors: list[tuple[float, ...]] = self._call(answers.vectors(self._llm, [list(one) for one in inputs]))
        return Embedding(tuple(vectors), sum(len(one) for one in inputs))

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(self._llm.get_tokenizer().encode(text, add_special_tokens=add_special))

    def running(self) -> int:
        return len(self._live)

    def stats(self) -> Stats:
        return self._stats.read()

    def sleep(self, level: int) -> None:
        self._manage(self._fall_asleep(level), "go to sleep")

    def wake(self) -> None:
        self._manage(self._sleeper.wake(), "wake")

    def add_lora(self, name: str, path: str) -> None:
        with self._adapting:
            self._check_awake()
            request = self._adapters.checked(name, path)
            if request is not None:
                self._manage(self._fit(name, request), f"load adapter {name}")
                self._adapters.put(name, request)

    def remove_lora(self, name: str) -> None:
        """New requests no longer find it; vLLM forgets it when those that use it have ended."""
        with self._adapting:
            self._check_awake()
            self._post(self._forget(self._adapters.drop(name)))

    def close(self) -> None:
        self._closing = True
        self._live.clear()
        self._slow.shutdown(wait=False, cancel_futures=True)
        if self._llm.output_handler is not None:
            # Else it reports the end of its engine process as a failure.
            self._loop.call_soon_threadsafe(self._llm.output_handler.cancel)
        self._llm.shutdown()
        self._llm.shutdown = lambda *_, **__: None  # it would shut down again when it is collected, half dismantled
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    # While loading, in the main thread

    def _start_vllm(self) -> Any:
        method = str(self._load.settings.get("start_method") or "auto")
        try:
            return launch.start(launch.create_config(self._plan), self._plan, method, self._notes)
        except launch.StartFailed as failure:
            raise self._load_error(failure.kind, failure.text) from failure
        except Exception as error:
            logging.getLogger(__name__).exception("vLLM refused its configuration")
            raise self._load_error(type(error).__name__, str(error)) from error

    def _load_error(self, kind: str, text: str) -> EnginebayError:
        known = library.architectures()
        return load_error(kind, text, self._load.model, library.version(), self._architectures, known)

    def _room_for_adapters(self) -> tuple[int, int | None]:
        """Highest rank, and how many; on a CPU the last slot must stay empty (see arguments.py)."""
        config = self._config.lora_config
        if config is None:
            return 0, None
        return int(config.max_lora_rank), int(config.max_loras) - 1 if library.device() == "cpu" else None

    def _try_out(self) -> None:
        """One token on a CPU, where vLLM computes nothing while loading: a missing kernel shows now."""
        if library.device() != "cpu":
            return
        embeds = self._load.task == "embed"
        work = answers.vectors(self._llm, [[1]]) if embeds else answers.greedy(self._llm, [1], 1)
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except Exception as error:
            self.close()
            raise self._load_error(*(self._notes.first() or (type(error).__name__, str(error)))) from error

    def _add_loras(self) -> None:
        """A broken adapter fails the load rather than its first request."""
        for name, lora in self._adapters.all().items():
            try:
                asyncio.run_coroutine_threadsafe(self._fit(name, lora), self._loop).result()
            except Exception as error:
                self.close()
                raise LoadFailed(first_line(error)) from error

    # In the caller's thread

    def _with_defaults(self, sampling: Sampling) -> Sampling:
        settings = self._load.settings
        if sampling.logprobs is None and settings.get("logprobs") is not None:
            sampling = replace(sampling, logprobs=int(settings["logprobs"]))
        if not sampling.logit_bias and settings.get("logit_bias") and self._config.speculative_config is None:
            bias = {int(token): float(value) for token, value in settings["logit_bias"].items()}
            sampling = replace(sampling, logit_bias=bias)
        return sampling

    def _check_length(self, prompt: int, output: int) -> None:
        if prompt + output > self._context:
            raise ContextOverflow(
                f"the prompt has {prompt} tokens and the context holds {self._context}",
                "shorten the prompt, or load the model with a larger max_model_len",
                param="prompt",
            )

    def _params(self, sampling: Sampling, prompt_tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        given = arguments(sampling, prompt_tokens, self._context)
        try:
            if sampling.guided is not None:
                given["structured_outputs"] = StructuredOutputsParams(**structured(sampling.guided))
            return SamplingParams(**given, output_kind=RequestOutputKind.DELTA, skip_clone=True)
        except Exception as error:
            raise request_error(error) from error

    def _refused(self) -> dict[str, str]:
        refused: dict[str, str] = {}
        if self._config.speculative_config is not None:
            refused.update(min_p=_SPECULATING, logit_bias=_SPECULATING)
        if self._load.task != "embed":
            refused["embeddings"] = "load the model with task: embed"
        if not self._adapters.enabled:
            refused["lora"] = "the model was loaded without adapters; list them under its loras, or set lora.enabled"
        return refused

    def _post(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.call_soon_threadsafe(self._spawn, work)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except Exception as error:
            raise request_error(error) from error

    def _manage(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except EnginebayError:
            raise
        except Exception as error:
            if is_death(error):
                raise WorkerDied(self._death(), "the worker's log has more") from error
            raise EngineFailed(f"vLLM failed to {what}: {type(error).__name__}: {first_line(error)}") from error

    def _check_awake(self) -> None:
        if self._sleeper.level:
            raise InvalidRequest(f"{self._load.model} is asleep", "wake it before its adapters change", param="lora")

    # In the loop's thread

    async def _fall_asleep(self, level: int) -> None:
        while self._adapters.leaving:
            await asyncio.sleep(_FORGET_POLL_S)
        await self._sleeper.sleep(level)

    async def _sample(self) -> Sequence[float]:
        """The same answer, or the same vector, as long as the weights are the same."""
        ids = self.tokenize(_SAMPLE, add_special=True)[: max(1, self._context - _SAMPLE_TOKENS)]
        if self._load.task == "embed":
            return (await answers.vectors(self._llm, [ids]))[0]
        return await answers.greedy(self._llm, ids, min(_SAMPLE_TOKENS, self._context - len(ids)))

    async def _fit(self, name: str, request: Any) -> None:
        """Load an adapter into vLLM, which says here whether it fits."""
        try:
            await self._llm.add_lora(request)
        except Exception as error:
            if is_death(error):
                raise
            raise InvalidRequest(
                f"adapter {name} does not fit {self._load.model}: {first_line(error)}", param="lora"
            ) from error

    async def _forget(self, lora: Any) -> None:
        while any(stream.lora is lora for stream in tuple(self._live.values())):
            await asyncio.sleep(_FORGET_POLL_S)
        try:
            await self._llm.remove_lora(lora.lora_int_id)
        finally:
            self._adapters.gone(lora)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self) -> _Runner:
        tasks = tuple(await self._llm.get_supported_tasks())
        reason = "it was turned off" if self._load.settings.get("stepwise") == "off" else None
        reason = reason or stepwise.why_not(self._llm, library.version())
        self._stepwise = "off" if reason else "auto"
        if reason and self._load.settings.get("stepwise") != "off":
            self._plan.warnings.append(f"stepwise: {reason}; tokens come through generate(), which is slower")
        runner: _Runner = Generate(self._llm, self._sink.flush)
        if reason is None:
            runner = stepwise.Stepwise(self._llm, tasks, self._sink.flush)
        self._llm._run_output_handler()  # otherwise it starts with the first request, and a death before it goes unseen
        self._llm.output_handler.add_done_callback(self._ended)
        return runner

    async def _begin(self, stream: Stream, prompt: list[int], params: Any, lora: Any) -> None:
        from vllm.inputs import tokens_input

        try:
            given = (stream, tokens_input(prompt), params, lora)
            if params.structured_outputs is None:
                request = self._runner.prepare(*given)
            else:
                request = await self._loop.run_in_executor(self._slow, self._runner.prepare, *given)
            if stream.number in self._live:
                await self._runner.add(stream, request)
        except Exception as error:
            self._fail(stream.number, error)

    def _fail(self, number: int, error: BaseException) -> None:
        if self._live.pop(number, None) is None:
            return
        found = WorkerDied(self._death(), "the worker's log has more") if is_death(error) else request_error(error)
        if isinstance(found, EngineFailed):
            logging.getLogger(__name__).error("request %d failed", number, exc_info=error)
        self._sink.error(number, found)
        self._sink.flush()

    def _ended(self, _: Any) -> None:
        """vLLM's output handler never ends by itself: its engine process is gone, and so is this worker."""
        if self._closing:
            return
        for number in list(self._live):
            self._fail(number, WorkerDied(self._death(), "the worker's log has more; it is started again"))
        timer = threading.Timer(_DEATH_DELAY_S, self._die)
        timer.daemon = True
        timer.start()

    def _death(self) -> str:
        cause = self._notes.first()
        return (
            f"vLLM's engine process ended: {one_line(cause[1]) or cause[0]}" if cause else "vLLM's engine process ended"
        )

    @staticmethod
    def _die() -> None:
        os._exit(_DEATH_EXIT_CODE)
