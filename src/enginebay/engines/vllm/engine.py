"""The vllm engine.

main thread      creates the engine, which forks or spawns vLLM's engine process; submit, cancel, embed, close
loop thread      runs AsyncLLM: sends requests to the engine process, detokenizes, writes to the sink
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from enginebay.contract import Embedding, Facts, GenerateRequest, Guided, Load, Probe, Sampling, Sink, Stats
from enginebay.engines.compile_trial import check_wait, lower_priority
from enginebay.engines.vllm import async_llm, engine_process, library, model_checks
from enginebay.engines.vllm.adapters import VllmAdapters
from enginebay.engines.vllm.async_llm import GenerateDriver
from enginebay.engines.vllm.errors import (
    extract_reason,
    is_engine_death,
    summarize_error,
    to_load_error,
    to_request_error,
)
from enginebay.engines.vllm.load_plan import plan_load
from enginebay.engines.vllm.patches import declarations, forked_start, output_handler
from enginebay.engines.vllm.patches.compatibility import PatchSelection
from enginebay.engines.vllm.patches.continued_requests import ContinuedOutput, plan_continuation
from enginebay.engines.vllm.patches.load_log import LoadLog
from enginebay.engines.vllm.patches.scheduler_stats import SchedulerStatsReader
from enginebay.engines.vllm.patches.step_outputs import StepDriver
from enginebay.engines.vllm.request_stream import RequestStream
from enginebay.engines.vllm.sampling import (
    apply_default_sampling,
    build_params,
    check_constraint,
    create_compile_trial,
    write_trial_source,
)
from enginebay.engines.vllm.sleep import Sleeper, list_sleep_levels
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
_DEATH_DELAY_S = 1.0  # lets the last errors leave the process
_FINGERPRINT_PROMPT = "The capital of France is"  # its output is compared before and after sleep level 2
_FINGERPRINT_TOKENS = 8
_ADAPTER_POLL_S = 0.05
_NOT_WITH_SPECULATION = "vLLM cannot combine it with speculative decoding; load the model without speculative"


class _RequestDriver(Protocol):
    def prepare(self, stream: RequestStream, prompt: Any, params: Any, lora: Any) -> Any: ...

    async def add(self, stream: RequestStream, request: Any) -> None: ...

    async def abort(self, stream: RequestStream) -> None: ...


class VllmEngine:
    """One model on vLLM. No other thread may run while it is created."""

    def __init__(self, load: Load) -> None:
        library.set_environment()
        library.number_visible_devices()
        config_json = model_checks.check_model(load.path, load.settings.get("load_format"))
        model_checks.check_draft_model(load.settings)
        ranks = model_checks.read_lora_ranks(load.loras)
        self._load = load
        self._plan = plan_load(load, library.detect_host(), config_json, ranks)
        self._architectures = [str(name) for name in config_json.get("architectures") or ()]
        self._patches = PatchSelection(load.settings, library.get_version(), self._plan.warnings)
        self._load_log = LoadLog(enabled=self._patches.applies(declarations.LOAD_LOG))
        self._llm = self._start_vllm()
        self._stats = SchedulerStatsReader()
        if self._patches.applies(declarations.SCHEDULER_STATS):
            self._stats.attach(self._llm)
        self._config = self._llm.vllm_config
        self._context_length = int(self._config.model_config.max_model_len)
        self._adapters = VllmAdapters(load.model, load.loras, *self._read_lora_limits())
        self._adapter_lock = threading.Lock()
        self._sleeper = Sleeper(self._llm, list_sleep_levels(self._plan.arguments), self._compute_fingerprint)
        self._active: dict[int, RequestStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._prepare_pool = ThreadPoolExecutor(1, thread_name_prefix="vllm-prepare")  # compiles grammars
        self._trial_pool = ThreadPoolExecutor(1, "guided-trial", lower_priority)  # small ones do not wait for it
        self._trial = create_compile_trial(self._llm)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-loop", daemon=True)
        self._thread.start()  # not earlier: a second thread would prevent the fork
        self._load_listed_adapters()
        self._run_smoke_test()

    @classmethod
    def probe(cls) -> Probe:
        return library.probe()

    @classmethod
    def warm(cls) -> None:
        """Import all that a load needs, to speed up a load in this process or one forked from it.

        Touches no device and starts no thread, so the engine process can still be forked.
        """
        library.set_environment()
        forked_start.import_all(library.detect_device())

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._driver: _RequestDriver = self._run_and_wait(self._create_driver())

    def facts(self) -> Facts:
        return Facts(
            kind="vllm",
            version=library.get_version(),
            model=self._load.model,
            context_length=self._context_length,
            max_batch=int(self._config.scheduler_config.max_num_seqs),
            max_step_tokens=self._config.scheduler_config.max_num_batched_tokens,
            memory_bytes=engine_process.measure_used_bytes(),
            versions=library.list_versions(),
            asked=dict(self._load.settings),
            effective={
                **library.read_effective_settings(self._config),
                "stepwise": "auto" if self._uses_step_outputs else "off",
                "mixed_graphs": "on" if self._plan.mixed_graphs else "off",
                "continued_requests": "on" if self._plan.continued_requests else "off",
            },
            warnings=tuple(self._plan.warnings),
            refused=self._list_refused(),
            sleep_levels=self._sleeper.levels,
            phases=self._load_log.read_phases(),
        )

    def submit(self, number: int, request: GenerateRequest) -> None:
        if self._load.task == "embed":
            raise Unsupported(
                f"{self._load.model} is loaded for embeddings, not for generation", "load it with task: generate"
            )
        if number in self._active:
            raise InvalidRequest(f"request number {number} is already in use")
        speculates = self._config.speculative_config is not None
        sampling = apply_default_sampling(request.sampling, self._load.settings, speculates)
        prompt, continued = list(request.token_ids or ()), None
        self._check_length(len(prompt), 1)
        try:
            params = build_params(sampling, len(prompt), self._context_length)
            if request.generated:
                continued = ContinuedOutput(request.generated, prompt, params)
                prompt, params = self._plan_continuation(continued, sampling)
        except EnginebayError:
            raise
        except Exception as error:
            raise to_request_error(error) from error
        lora = self._adapters.find(request.lora)
        stream = RequestStream(number, self._sink, self._active, self._fail_request, sampling.logprobs, lora, continued)
        self._active[number] = stream
        self._run_in_loop(self._start_request(stream, prompt, params, lora, sampling.guided))

    def cancel(self, number: int) -> None:
        stream = self._active.pop(number, None)
        if stream is not None:
            self._run_in_loop(self._driver.abort(stream))

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        if self._load.task != "embed":
            raise Unsupported(
                f"{self._load.model} is loaded for generation, not for embeddings", "load it with task: embed"
            )
        for ids in inputs:
            self._check_length(len(ids), 0)
        vectors: list[tuple[float, ...]] = self._run_and_wait(
            async_llm.compute_embeddings(self._llm, [list(ids) for ids in inputs])
        )
        return Embedding(tuple(vectors), sum(len(ids) for ids in inputs))

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(self._llm.get_tokenizer().encode(text, add_special_tokens=add_special))

    def running(self) -> int:
        return len(self._active)

    def stats(self) -> Stats:
        return self._stats.read()

    def sleep(self, level: int) -> None:
        self._run_admin_operation(self._drain_adapters_and_sleep(level), "sleep")

    def wake(self) -> None:
        self._run_admin_operation(self._sleeper.wake(), "wake")

    def add_lora(self, name: str, path: str) -> None:
        with self._adapter_lock:
            self._check_awake()
            request = self._adapters.prepare(name, path)
            if request is not None:
                self._run_admin_operation(self._load_adapter(name, request), f"load adapter {name}")
                self._adapters.add(name, request)

    def remove_lora(self, name: str) -> None:
        """Hide the adapter from new requests. vLLM unloads it when running requests no longer use it."""
        with self._adapter_lock:
            self._check_awake()
            self._run_in_loop(self._unload_adapter(self._adapters.remove(name)))

    def close(self) -> None:
        self._closing = True
        self._active.clear()
        self._prepare_pool.shutdown(wait=False, cancel_futures=True)
        self._trial_pool.shutdown(wait=False, cancel_futures=True)
        self._trial.close()
        # Otherwise it reports the end of its engine process as a failure.
        self._loop.call_soon_threadsafe(output_handler.cancel_output_handler, self._llm)
        self._llm.shutdown()
        self._llm.shutdown = lambda *_, **__: None  # garbage collection would shut it down again
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    # While loading, in the main thread

    def _start_vllm(self) -> Any:
        try:
            return engine_process.start_engine(
                engine_process.create_config(self._plan), self._plan, self._patches, self._load_log
            )
        except engine_process.EngineStartFailed as failure:
            raise self._make_load_error(failure.kind, failure.text) from failure
        except Exception as error:
            logging.getLogger(__name__).exception("vLLM rejected its configuration")
            raise self._make_load_error(type(error).__name__, str(error)) from error

    def _make_load_error(self, kind: str, text: str) -> EnginebayError:
        known = library.list_architectures()
        return to_load_error(kind, text, self._load.model, library.get_version(), self._architectures, known)

    def _read_lora_limits(self) -> tuple[int, int | None]:
        """Return the highest rank and the adapter limit. On a CPU the last slot must stay empty (see load_plan.py)."""
        config = self._config.lora_config
        if config is None:
            return 0, None
        return int(config.max_lora_rank), int(config.max_loras) - 1 if library.detect_device() == "cpu" else None

    def _run_smoke_test(self) -> None:
        """Compute one token on a CPU. vLLM computes nothing there while loading, so a missing kernel shows up now."""
        if library.detect_device() != "cpu":
            return
        embeds = self._load.task == "embed"
        work = (
            async_llm.compute_embeddings(self._llm, [[1]]) if embeds else async_llm.generate_greedy(self._llm, [1], 1)
        )
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except Exception as error:
            self.close()
            raise self._make_load_error(
                *(self._load_log.find_first_error() or (type(error).__name__, str(error)))
            ) from error

    def _load_listed_adapters(self) -> None:
        """Load the adapters now, so that a broken one fails the load rather than its first request."""
        for name, lora in self._adapters.all().items():
            try:
                asyncio.run_coroutine_threadsafe(self._load_adapter(name, lora), self._loop).result()
            except Exception as error:
                self.close()
                raise LoadFailed(summarize_error(error)) from error

    # In the caller's thread

    def _check_length(self, prompt: int, output: int) -> None:
        if prompt + output > self._context_length:
            raise ContextOverflow(
                f"the prompt ({prompt} tokens) plus output exceeds the model's context length of {self._context_length} tokens",
                "shorten the prompt, or load the model with a larger max_model_len",
                param="prompt",
            )

    def _plan_continuation(self, output: ContinuedOutput, sampling: Sampling) -> tuple[list[int], Any]:
        if not self._uses_step_outputs:
            raise Unsupported(
                "vLLM cannot continue an output without the patch step_outputs", "see `bay engines show vllm`"
            )
        return plan_continuation(output, sampling, self._context_length, self._plan.continued_requests)

    def _list_refused(self) -> dict[str, str]:
        refused: dict[str, str] = {}
        if self._config.speculative_config is not None:
            refused.update(min_p=_NOT_WITH_SPECULATION, logit_bias=_NOT_WITH_SPECULATION)
        if self._load.task != "embed":
            refused["embeddings"] = "load the model with task: embed"
        if not self._adapters.enabled:
            refused["lora"] = (
                "the model was loaded without adapter support; list adapters under its loras, or set lora.enabled"
            )
        return refused

    def _run_in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.call_soon_threadsafe(self._create_task, work)

    def _run_and_wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except Exception as error:
            raise to_request_error(error) from error

    def _run_admin_operation(self, work: Coroutine[Any, Any, None], action: str) -> None:
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except EnginebayError:
            raise
        except Exception as error:
            if is_engine_death(error):
                raise WorkerDied(self._describe_death(), "see the worker's log") from error
            raise EngineFailed(f"vLLM failed to {action}: {type(error).__name__}: {summarize_error(error)}") from error

    def _check_awake(self) -> None:
        if self._sleeper.level:
            raise InvalidRequest(f"{self._load.model} is asleep", "wake it before changing its adapters", param="lora")

    # In the loop's thread

    async def _drain_adapters_and_sleep(self, level: int) -> None:
        while self._adapters.has_draining:
            await asyncio.sleep(_ADAPTER_POLL_S)
        await self._sleeper.sleep(level)

    async def _compute_fingerprint(self) -> Sequence[float]:
        """Return greedy tokens or an embedding, which change if the weights do."""
        ids = self.tokenize(_FINGERPRINT_PROMPT, add_special=True)[: max(1, self._context_length - _FINGERPRINT_TOKENS)]
        if self._load.task == "embed":
            return (await async_llm.compute_embeddings(self._llm, [ids]))[0]
        return await async_llm.generate_greedy(
            self._llm, ids, min(_FINGERPRINT_TOKENS, self._context_length - len(ids))
        )

    async def _load_adapter(self, name: str, request: Any) -> None:
        """Load an adapter into vLLM. Raises `InvalidRequest` if it does not fit the model."""
        try:
            await self._llm.add_lora(request)
        except Exception as error:
            if is_engine_death(error):
                raise
            raise InvalidRequest(
                f"adapter {name} does not fit {self._load.model}: {summarize_error(error)}", param="lora"
            ) from error

    async def _unload_adapter(self, lora: Any) -> None:
        while any(stream.lora is lora for stream in tuple(self._active.values())):
            await asyncio.sleep(_ADAPTER_POLL_S)
        try:
            await self._llm.remove_lora(lora.lora_int_id)
        finally:
            self._adapters.forget_removed(lora)

    def _create_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create_driver(self) -> _RequestDriver:
        self._uses_step_outputs = self._patches.applies(declarations.STEP_OUTPUTS)
        driver: _RequestDriver = GenerateDriver(self._llm, self._sink.flush)
        if self._uses_step_outputs:
            driver = StepDriver(self._llm, tuple(await self._llm.get_supported_tasks()), self._sink.flush)
        if self._patches.applies(declarations.OUTPUT_HANDLER):
            output_handler.watch_output_handler(self._llm, lambda _: self._end_worker())
        return driver

    async def _start_request(
        self, stream: RequestStream, prompt: list[int], params: Any, lora: Any, guided: Guided | None
    ) -> None:
        from vllm.inputs import tokens_input

        try:
            arguments = (stream, tokens_input(prompt), params, lora)
            if guided is None:
                request = self._driver.prepare(*arguments)
            else:
                request = await self._prepare_guided(guided, arguments)
            if stream.number in self._active:
                await self._driver.add(stream, request)
        except Exception as error:
            self._fail_request(stream.number, error)

    async def _prepare_guided(self, guided: Guided, arguments: tuple[RequestStream, Any, Any, Any]) -> Any:
        run = self._loop.run_in_executor
        if await run(self._prepare_pool, check_constraint, guided, self._config):
            return await run(self._trial_pool, self._try_and_prepare, guided, arguments, time.monotonic())
        return await run(self._prepare_pool, self._driver.prepare, *arguments)

    def _try_and_prepare(self, guided: Guided, arguments: tuple[RequestStream, Any, Any, Any], queued_at: float) -> Any:
        """Return the prepared request of a large constraint; None if it was cancelled while it waited."""
        if arguments[0].number not in self._active:
            return None
        check_wait(queued_at)
        self._trial.check(guided, *write_trial_source(guided))
        return self._driver.prepare(*arguments)

    def _fail_request(self, number: int, error: BaseException) -> None:
        if self._active.pop(number, None) is None:
            return
        failure = (
            WorkerDied(self._describe_death(), "see the worker's log")
            if is_engine_death(error)
            else to_request_error(error)
        )
        if isinstance(failure, EngineFailed):
            logging.getLogger(__name__).error("request %d failed", number, exc_info=error)
        self._sink.error(number, failure)
        self._sink.flush()
        if is_engine_death(error):
            self._end_worker()

    def _end_worker(self) -> None:
        """Fail all requests and end the process, because vLLM's engine process has died."""
        if self._closing:
            return
        self._closing = True
        for number in list(self._active):
            self._fail_request(number, WorkerDied(self._describe_death(), "see the worker's log; the worker restarts"))
        timer = threading.Timer(_DEATH_DELAY_S, self._exit_process)
        timer.daemon = True
        timer.start()

    def _describe_death(self) -> str:
        cause = self._load_log.find_first_error()
        return (
            f"vLLM's engine process ended: {extract_reason(cause[1]) or cause[0]}"
            if cause
            else "vLLM's engine process ended"
        )

    @staticmethod
    def _exit_process() -> None:
        os._exit(_DEATH_EXIT_CODE)
