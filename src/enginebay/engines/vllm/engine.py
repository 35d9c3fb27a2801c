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
from enginebay.engines import cores
from enginebay.engines.vllm import launch, library, memory, model_files, stepwise
from enginebay.engines.vllm.arguments import plan
from enginebay.engines.vllm.failures import first_line, is_death, load_error, one_line, request_error
from enginebay.engines.vllm.generate import Generate
from enginebay.engines.vllm.outputs import Stream
from enginebay.engines.vllm.sampling import arguments, structured
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
_SPECULATING = "vLLM cannot combine it with speculative decoding; load the model without speculative"


class _Runner(Protocol):
    def prepare(self, stream: Stream, prompt: Any, params: Any, lora: Any) -> Any: ...

    async def add(self, stream: Stream, request: Any) -> None: ...

    async def abort(self, stream: Stream) -> None: ...


class VllmEngine:
    """One model on vLLM. Needs its main thread to be the only one while it is made."""

    def __init__(self, load: Load) -> None:
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # telemetry
        os.environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "65536")  # a step in one piece
        cores.let_threads_sleep()
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
        self._loras = {name: self._lora_request(number, name) for number, name in enumerate(load.loras, start=1)}
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
            effective={**library.effective(self._config), "stepwise": self._stepwise},
            warnings=tuple(self._plan.warnings),
            refused=self._refused(),
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
        stream = Stream(number, self._sink, self._live, self._fail, sampling.logprobs)
        lora = self._lora(request.lora)
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
        vectors: list[tuple[float, ...]] = self._call(self._encode([list(one) for one in inputs]))
        return Embedding(tuple(vectors), sum(len(one) for one in inputs))

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(self._llm.get_tokenizer().encode(text, add_special_tokens=add_special))

    def running(self) -> int:
        return len(self._live)

    def stats(self) -> Stats:
        return self._stats.read()

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

    def _try_out(self) -> None:
        """One token on a CPU, where vLLM computes nothing while loading: a missing kernel shows now."""
        if library.device() != "cpu":
            return
        try:
            asyncio.run_coroutine_threadsafe(self._first_token(), self._loop).result()
        except Exception as error:
            self.close()
            raise self._load_error(*(self._notes.first() or (type(error).__name__, str(error)))) from error

    async def _first_token(self) -> None:
        if self._load.task == "embed":
            await self._encode([[1]])
            return
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        params = SamplingParams(temperature=0.0, max_tokens=1)
        async for _ in self._llm.generate(tokens_input([1]), params, "first-token"):
            pass

    def _lora_request(self, number: int, name: str) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(name, number, self._load.loras[name])

    def _add_loras(self) -> None:
        """A broken adapter fails the load rather than its first request."""
        for name, lora in self._loras.items():
            try:
                asyncio.run_coroutine_threadsafe(self._llm.add_lora(lora), self._loop).result()
            except Exception as error:
                self.close()
                raise LoadFailed(f"adapter {name} does not fit {self._load.model}: {first_line(error)}") from error

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

    def _lora(self, name: str | None) -> Any:
        if name is None:
            return None
        if name not in self._loras:
            known = ", ".join(self._loras) or "none"
            raise InvalidRequest(
                f"{self._load.model} has no adapter {name!r}", f"known adapters: {known}", param="lora"
            )
        return self._loras[name]

    def _refused(self) -> dict[str, str]:
        refused: dict[str, str] = {}
        if self._config.speculative_config is not None:
            refused.update(min_p=_SPECULATING, logit_bias=_SPECULATING)
        if self._load.task != "embed":
            refused["embeddings"] = "load the model with task: embed"
        if not self._loras:
            refused["lora"] = "the model was loaded without adapters; list them under its loras"
        return refused

    def _post(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.call_soon_threadsafe(self._spawn, work)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except Exception as error:
            raise request_error(error) from error

    # In the loop's thread

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

    async def _encode(self, inputs: list[list[int]]) -> list[tuple[float, ...]]:
        from vllm import PoolingParams
        from vllm.inputs import tokens_input

        async def one(index: int, ids: list[int]) -> tuple[float, ...]:
            found: Any = None
            async for output in self._llm.encode(
                tokens_input(ids), PoolingParams(task="embed"), f"embed-{id(inputs)}-{index}"
            ):
                found = output.outputs.data
            return tuple(found.float().flatten().tolist())

        return list(await asyncio.gather(*(one(index, ids) for index, ids in enumerate(inputs))))

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
