"""The transformers engine: one loaded model, one thread that steps it."""

from __future__ import annotations

import itertools
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from enginebay.engines import cpu_cores

cpu_cores.disable_openmp_spinning()  # counts only before torch is imported

import torch
import transformers

from enginebay.contract import Embedding, Facts, GenerateRequest, Load, Probe, Sink, Stats
from enginebay.engines.transformers import runtime_info
from enginebay.engines.transformers.adapters import PeftAdapters
from enginebay.engines.transformers.continuous.continuous_batcher import ContinuousBatcher
from enginebay.engines.transformers.decoding.guided_decoding import GrammarConstraint, GuidedCompiler
from enginebay.engines.transformers.decoding.output_writer import OutputWriter
from enginebay.engines.transformers.decoding.sequence_state import SequenceState
from enginebay.engines.transformers.distributed.follower import run_follower
from enginebay.engines.transformers.distributed.ranks import Shutdown
from enginebay.engines.transformers.engine_builder import EngineComponents, build_components
from enginebay.engines.transformers.loading.load_options import apply_request_defaults, read_options
from enginebay.engines.transformers.loading.model_loader import import_lazy_modules, is_out_of_memory
from enginebay.engines.transformers.request_validation import check_request
from enginebay.engines.transformers.sleep import OffloadableWeights, find_sleep_levels
from enginebay.engines.transformers.static.generate_batcher import GenerateBatcher
from enginebay.engines.transformers.step_jobs import StepJob, StepJobQueue
from enginebay.errors import EnginebayError, EngineFailed, InvalidRequest, OutOfMemory, RequestError, Unsupported
from enginebay.util.text_format import summarize_error

_BROKEN_EXIT_CODE = 70
_ERROR_FLUSH_S = 1.0  # the last errors leave the process first

_InboxItem = (
    list[SequenceState] | int | StepJob | None
)  # rows to start, a request to cancel, a job to do, or nothing: wake up


class TransformersEngine:
    """See `contract.Engine`. In a launch of several processes, rank 0 is the engine and the others `follow`."""

    def __init__(self, load: Load) -> None:
        started = time.monotonic()
        self._load = load
        self._options = read_options(load.settings)
        self._components: EngineComponents = build_components(load, self._options)
        self._load_s = time.monotonic() - started
        self._supported_sleep_levels = self._find_sleep_levels()
        self._weights = OffloadableWeights(self._components.loaded_model.model)
        self._asleep = False
        self._jobs = StepJobQueue()
        self._inbox: queue.SimpleQueue[_InboxItem] = queue.SimpleQueue()
        self._next_sequence_id = itertools.count()
        self._seed_source = random.Random(self._options.seed)
        self._compile_pool = ThreadPoolExecutor(1, thread_name_prefix="guided")
        self._guided_compiler: GuidedCompiler | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._output: OutputWriter | None = None
        self._continuous_batcher: ContinuousBatcher | None = None
        self._generate_batcher: GenerateBatcher | None = None

    @classmethod
    def probe(cls) -> Probe:
        return Probe(
            version=transformers.__version__,
            versions=runtime_info.get_versions(),
            settings=None,
            architectures=None,
            devices=runtime_info.list_devices(),
            refused=runtime_info.find_refused_params(),
        )

    @classmethod
    def warm(cls) -> None:
        """Import all that a load will need; this module has imported torch and transformers. Touches no device."""
        import_lazy_modules()

    def start(self, sink: Sink) -> None:
        self._output = outlet = OutputWriter(sink)
        parts = self._components
        if parts.generator is None:
            return
        if parts.runner is not None:
            self._continuous_batcher = ContinuousBatcher(parts.runner, parts.limits, outlet, parts.ranks)
        self._generate_batcher = GenerateBatcher(
            parts.generator, parts.batch_rules, outlet, parts.ranks, self._on_generate_step, self._options.is_assisted
        )
        self._thread = threading.Thread(target=self._run_steps, name="transformers-steps", daemon=True)
        self._thread.start()

    def follow(self) -> None:
        """Ranks above 0: do as rank 0 says, until it closes."""
        run_follower(self._components)

    def facts(self) -> Facts:
        parts = self._components
        return Facts(
            kind="transformers",
            version=transformers.__version__,
            model=self._load.model,
            context_length=parts.loaded_model.context_length,
            max_batch=parts.max_batch,
            memory_bytes=runtime_info.measure_memory_bytes(),
            versions=runtime_info.get_versions(),
            asked=dict(self._load.settings),
            effective=self._get_effective_settings(),
            warnings=parts.warnings,
            refused=parts.refused,
            load_s=self._load_s,
            sleep_levels=self._supported_sleep_levels,
            phases={"load": self._load_s},
        )

    def submit(self, number: int, request: GenerateRequest) -> None:
        outlet = self._output
        if self._generate_batcher is None or outlet is None:
            raise Unsupported(
                "this model is loaded for embeddings", "ask it for embeddings, or set task: generate if it can"
            )
        if self._closing:
            raise EngineFailed("the engine has stopped", "load the model again")
        request = replace(request, sampling=apply_request_defaults(request.sampling, self._options.request_defaults))
        check_request(request, self._components.loaded_model.context_length, self._components.adapters.names)
        outlet.open(number, request.sampling.n, len(request.token_ids or ()))
        seed = request.sampling.seed
        seed = self._seed_source.getrandbits(62) if seed is None else seed
        if request.sampling.guided is None:
            self._inbox.put(self._build_sequences(number, request, seed, None))
        else:
            self._compile_pool.submit(self._submit_guided, number, request, seed)

    def cancel(self, number: int) -> None:
        if self._output is not None:
            self._output.close(number)
        self._inbox.put(number)

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        if self._components.embedder is None:
            raise Unsupported("this model is loaded for generation", "load it with task: embed")
        return self._components.embedder.embed(inputs)

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(self._components.loaded_model.tokenizer.encode(text, add_special_tokens=add_special).ids)

    def running(self) -> int:
        return 0 if self._output is None else self._output.open_count

    def stats(self) -> Stats:
        """The cache of generate() belongs to the library, which sets it no limit: only continuous batching knows a share."""
        batcher, continuous = self._generate_batcher, self._continuous_batcher
        if batcher is None or self._output is None:
            return Stats()
        if continuous is None:
            return Stats(batcher.steps, None, len(self._output.get_request_numbers() - batcher.get_running_numbers()))
        waiting = self._output.get_request_numbers() - batcher.get_running_numbers() - continuous.get_running_numbers()
        return Stats(batcher.steps + continuous.steps, continuous.compute_kv_cache_usage(), len(waiting))

    def sleep(self, level: int) -> None:
        """No row is left in the KV cache: all have ended."""
        if level not in self._supported_sleep_levels:
            known = ", ".join(map(str, self._supported_sleep_levels)) or "none"
            raise InvalidRequest(f"there is no sleep level {level} here", f"levels: {known}", param="level")
        if not self._asleep:
            self._run_between_steps(self._offload_weights, "go to sleep")
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self._run_between_steps(self._weights.restore, "wake")
            self._asleep = False

    def add_lora(self, name: str, path: str) -> None:
        self._check_can_change_adapters()
        self._run_between_steps(lambda: self._change_adapters(lambda a: a.add(name, path)), f"load adapter {name}")

    def remove_lora(self, name: str) -> None:
        """New requests no longer find it; it is deleted when those that use it have ended."""
        self._check_can_change_adapters()
        self._components.adapters.withdraw(name)
        job = StepJob(lambda: self._change_adapters(lambda a: a.delete(name)), after_adapter=name)
        if self._thread is None:
            job.action()
        else:
            self._inbox.put(job)

    def close(self) -> None:
        self._closing = True
        self._compile_pool.shutdown(wait=False, cancel_futures=True)
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _find_sleep_levels(self) -> tuple[int, ...]:
        parts, options = self._components, self._options
        return find_sleep_levels(
            parts.loaded_model.model,
            single_process=parts.ranks.is_single_process,
            quantized=parts.loaded_model.quantization is not None,
            compiled=options.compile_mode is not None,
            draft=options.draft_model is not None,
        )

    def _get_effective_settings(self) -> dict[str, Any]:
        """As it was loaded, but for what turned out not to work."""
        reason = self._components.runner.graphs_disabled_reason if self._components.runner is not None else None
        return self._components.effective | ({"cuda_graphs": f"off: {reason}"} if reason is not None else {})

    def _offload_weights(self) -> None:
        if self._components.runner is not None:
            self._components.runner.prepare_to_sleep()
        self._weights.offload()

    def _change_adapters(self, change: Callable[[PeftAdapters], None]) -> None:
        if self._components.runner is not None:
            self._components.runner.invalidate_graphs()
        change(self._components.adapters)

    def _check_can_change_adapters(self) -> None:
        if not self._components.ranks.is_single_process:
            raise InvalidRequest(
                f"{self._load.model} runs in several processes, which take adapters only when they load",
                "list the adapter under the model's loras",
                param="lora",
            )
        if "lora" in self._components.refused:
            raise InvalidRequest(
                "adapters need a library that is not there", self._components.refused["lora"], param="lora"
            )
        if self._asleep:
            raise InvalidRequest(f"{self._load.model} is asleep", "wake it before its adapters change", param="lora")

    def _run_between_steps(self, action: Callable[[], None], action_label: str) -> None:
        """In the step thread, while this one waits; here, where there is none."""
        job = StepJob(action)
        try:
            if self._thread is None:
                action()
            else:
                self._inbox.put(job)
                job.future.result()
        except EnginebayError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(f"memory ran out: {self._load.model} could not {action_label}") from error
            line = summarize_error(error)
            raise EngineFailed(f"{self._load.model} could not {action_label}: {line}") from error

    def _submit_guided(self, number: int, request: GenerateRequest, seed: int) -> None:
        """On the compiling thread: a large schema must not hold up everyone's next token."""
        assert request.sampling.guided is not None and self._output is not None
        loaded = self._components.loaded_model
        try:
            if self._guided_compiler is None:
                self._guided_compiler = GuidedCompiler(
                    loaded.hf_tokenizer, loaded.vocab_size, sorted(loaded.eos_token_ids)
                )
            self._inbox.put(
                self._build_sequences(number, request, seed, self._guided_compiler.compile(request.sampling.guided))
            )
        except RequestError as error:
            self._output.fail(number, error)
        except Exception as error:
            self._output.fail(number, EngineFailed(f"the guided constraint could not be prepared: {error}"))

    def _build_sequences(
        self, number: int, request: GenerateRequest, seed: int, constraint: GrammarConstraint | None
    ) -> list[SequenceState]:
        loaded = self._components.loaded_model
        return [
            SequenceState(
                next(self._next_sequence_id),
                number,
                choice,
                request,
                seed,
                loaded.eos_token_ids,
                loaded.context_length,
                loaded.tokenizer,
                constraint.copy() if constraint is not None else None,
            )
            for choice in range(request.sampling.n)
        ]

    def _run_steps(self) -> None:
        """The step thread."""
        assert self._generate_batcher is not None
        busy = False
        while not self._closing:
            wait_s = None if not self._generate_batcher.has_waiting else self._options.max_wait_s
            self._drain_inbox(block=not busy, wait_s=wait_s)
            try:
                busy = self._step()
            except Exception as error:
                self._fail_running(error)
                busy = True  # texts of the last good step may still have to be handed out
            self._jobs.run_ready(self._get_adapters_in_use)
        self._drain_inbox(block=False)
        self._jobs.fail_all(EngineFailed("the engine has stopped", "load the model again"))
        self._components.ranks.broadcast(Shutdown())
        self._components.ranks.close()

    def _step(self) -> bool:
        """One step of continuous batching, or else one batch of generate()."""
        assert self._generate_batcher is not None
        searched = self._generate_batcher.advance()
        stepped = self._continuous_batcher is not None and self._continuous_batcher.advance()
        return searched or stepped

    def _get_adapters_in_use(self) -> set[str | None]:
        assert self._generate_batcher is not None
        return self._generate_batcher.get_adapters_in_use() | (
            set() if self._continuous_batcher is None else self._continuous_batcher.get_adapters_in_use()
        )

    def _on_generate_step(self) -> None:
        """Inside generate(), after each of its steps: others go on meanwhile."""
        assert self._generate_batcher is not None
        self._drain_inbox(block=False)
        if self._closing:
            for number in self._generate_batcher.get_request_numbers():
                self._generate_batcher.cancel(number)
        elif self._continuous_batcher is not None:
            self._continuous_batcher.advance()

    def _drain_inbox(self, block: bool, wait_s: float | None = None) -> None:
        """Everything that has come in; waits for something when `block`."""
        while True:
            try:
                work = self._inbox.get(block, wait_s)
            except queue.Empty:
                return
            block = False
            if isinstance(work, int):
                self._cancel_request(work)
            elif isinstance(work, StepJob):
                self._jobs.add(work)
            elif work is not None:
                self._start_sequences(work)

    def _start_sequences(self, rows: list[SequenceState]) -> None:
        assert self._generate_batcher is not None and self._output is not None
        first = rows[0]
        if not self._output.is_open(first.number):
            return
        if first.lora is not None and not self._components.adapters.is_loaded(first.lora):
            self._output.fail(first.number, InvalidRequest(f"adapter {first.lora} was removed", param="lora"))
            return
        if (first.sampling.num_beams or 1) > 1:
            self._generate_batcher.add_beam_search(rows)
        elif self._continuous_batcher is not None:
            self._continuous_batcher.add(rows)
        else:
            self._generate_batcher.add(rows)

    def _cancel_request(self, number: int) -> None:
        assert self._generate_batcher is not None
        self._generate_batcher.cancel(number)
        if self._continuous_batcher is not None:
            self._continuous_batcher.cancel(number)

    def _fail_running(self, error: Exception) -> None:
        """A step went wrong: all that was being computed is lost, the engine is not (unless it has followers)."""
        assert self._generate_batcher is not None and self._output is not None
        numbers = self._generate_batcher.get_request_numbers()
        if self._continuous_batcher is not None:
            numbers |= self._continuous_batcher.get_request_numbers()
        told: EnginebayError = EngineFailed(f"the model failed: {summarize_error(error)}")
        if is_out_of_memory(error):
            told = OutOfMemory("memory ran out while generating", "lower batching.batch_size or max_tokens")
        elif isinstance(error, EnginebayError):
            told = error
        self._generate_batcher.clear_running()
        for number in numbers:
            self._cancel_request(number)
            self._output.fail(number, told)
        if self._continuous_batcher is not None:
            self._continuous_batcher.reset()
        if is_out_of_memory(error) and torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not self._components.ranks.is_single_process:
            # The ranks no longer agree on what comes next: end, so that whoever watches starts the worker again.
            time.sleep(_ERROR_FLUSH_S)
            os._exit(_BROKEN_EXIT_CODE)
