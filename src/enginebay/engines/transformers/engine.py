"""The transformers engine: one loaded model and the thread that steps it."""

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

cpu_cores.disable_openmp_spinning()  # takes effect only before torch is imported

import torch
import transformers

from enginebay.contract import Embedding, Facts, GenerateRequest, Load, Probe, Sink, Stats
from enginebay.engines.compile_trial import check_wait, lower_priority, needs_trial
from enginebay.engines.transformers import runtime_info
from enginebay.engines.transformers.adapters import PeftAdapters
from enginebay.engines.transformers.continuous.continuous_batcher import ContinuousBatcher
from enginebay.engines.transformers.decoding.guided_decoding import GrammarConstraint, GuidedCompiler
from enginebay.engines.transformers.decoding.output_writer import OutputWriter
from enginebay.engines.transformers.decoding.sequence_state import SequenceState, check_request
from enginebay.engines.transformers.distributed.follower import run_follower
from enginebay.engines.transformers.distributed.ranks import Shutdown
from enginebay.engines.transformers.engine_builder import EngineComponents, build_components
from enginebay.engines.transformers.loading.load_options import apply_request_defaults, read_options
from enginebay.engines.transformers.loading.model_loader import import_lazy_modules, is_out_of_memory
from enginebay.engines.transformers.sleep import OffloadableWeights, find_sleep_levels
from enginebay.engines.transformers.static.generate_batcher import GenerateBatcher, OtherWorkFailed
from enginebay.engines.transformers.step_jobs import StepJob, StepJobQueue
from enginebay.errors import EnginebayError, EngineFailed, InvalidRequest, OutOfMemory, Unsupported
from enginebay.util.text_format import summarize_error

_BROKEN_EXIT_CODE = 70
_ERROR_FLUSH_S = 1.0  # time for the last errors to reach the client before the process exits

# Sequences to start, a request to cancel, a job to run, or None to wake the step thread.
_InboxItem = list[SequenceState] | int | StepJob | None


class TransformersEngine:
    """Implements `contract.Engine`. With several processes, rank 0 is the engine and the other ranks `follow`."""

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
        self._trial_pool = ThreadPoolExecutor(1, "guided-trial", lower_priority)  # small ones do not wait for it
        self._compiler_lock = threading.Lock()
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
        """Import the modules that a load needs, besides torch and transformers. Touches no device."""
        import_lazy_modules()

    def start(self, sink: Sink) -> None:
        self._output = output = OutputWriter(sink)
        components = self._components
        if components.generator is None:
            return
        if components.runner is not None:
            self._continuous_batcher = ContinuousBatcher(components.runner, components.limits, output, components.ranks)
        self._generate_batcher = GenerateBatcher(
            components.generator,
            components.batch_rules,
            output,
            components.ranks,
            self._on_generate_step,
            self._options.is_assisted,
        )
        self._thread = threading.Thread(target=self._run_steps, name="transformers-steps", daemon=True)
        self._thread.start()

    def follow(self) -> None:
        """On ranks above 0: execute the commands of rank 0 until it closes."""
        run_follower(self._components)

    def facts(self) -> Facts:
        components = self._components
        return Facts(
            kind="transformers",
            version=transformers.__version__,
            model=self._load.model,
            context_length=components.loaded_model.context_length,
            max_batch=components.max_batch,
            memory_bytes=runtime_info.measure_memory_bytes(),
            versions=runtime_info.get_versions(),
            asked=dict(self._load.settings),
            effective=self._get_effective_settings(),
            max_step_tokens=components.effective.get("batching.max_tokens_per_batch"),
            warnings=components.warnings,
            refused=components.refused,
            load_s=self._load_s,
            sleep_levels=self._supported_sleep_levels,
            phases={"load": self._load_s},
        )

    def submit(self, number: int, request: GenerateRequest) -> None:
        output = self._output
        if self._generate_batcher is None or output is None:
            raise Unsupported(
                "this model is loaded for embeddings only", "request embeddings, or load it with task: generate"
            )
        if self._closing:
            raise EngineFailed("the engine has stopped", "load the model again")
        request = replace(request, sampling=apply_request_defaults(request.sampling, self._options.request_defaults))
        check_request(request, self._components.loaded_model.context_length, self._components.adapters.names)
        if request.generated and self._components.loaded_model.model.config.is_encoder_decoder:
            raise Unsupported("this model cannot continue an output: it has an encoder")
        output.open(number, request.sampling.n, len(request.token_ids or ()))
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
            raise Unsupported("this model is loaded for text generation", "load it with task: embed")
        return self._components.embedder.embed(inputs)

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(self._components.loaded_model.tokenizer.encode(text, add_special_tokens=add_special).ids)

    def running(self) -> int:
        return 0 if self._output is None else self._output.open_count

    def stats(self) -> Stats:
        """Report KV cache usage for continuous batching only: the cache of generate() has no limit."""
        batcher, continuous = self._generate_batcher, self._continuous_batcher
        if batcher is None or self._output is None:
            return Stats()
        if continuous is None:
            return Stats(batcher.steps, None, len(self._output.get_request_numbers() - batcher.get_running_numbers()))
        waiting = self._output.get_request_numbers() - batcher.get_running_numbers() - continuous.get_running_numbers()
        return Stats(batcher.steps + continuous.steps, continuous.compute_kv_cache_usage(), len(waiting))

    def sleep(self, level: int) -> None:
        """Offload the weights. The KV cache is empty: all requests have ended."""
        if level not in self._supported_sleep_levels:
            supported = ", ".join(map(str, self._supported_sleep_levels)) or "none"
            raise InvalidRequest(f"sleep level {level} is not supported", f"supported: {supported}", param="level")
        if not self._asleep:
            self._run_between_steps(self._offload_weights, "go to sleep")
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self._run_between_steps(self._weights.restore, "wake")
            self._asleep = False

    def add_lora(self, name: str, path: str) -> None:
        self._check_can_change_adapters()
        self._run_between_steps(
            lambda: self._change_adapters(lambda adapters: adapters.add(name, path)), f"load adapter {name}"
        )

    def remove_lora(self, name: str) -> None:
        """Withdraw an adapter from new requests; delete it when the requests that use it have ended."""
        self._check_can_change_adapters()
        self._components.adapters.withdraw(name)
        job = StepJob(lambda: self._change_adapters(lambda adapters: adapters.delete(name)), after_adapter=name)
        if self._thread is None:
            job.action()
        else:
            self._inbox.put(job)

    def close(self) -> None:
        self._closing = True
        self._compile_pool.shutdown(wait=False, cancel_futures=True)
        self._trial_pool.shutdown(wait=False, cancel_futures=True)
        if self._guided_compiler is not None:
            self._guided_compiler.close()
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _find_sleep_levels(self) -> tuple[int, ...]:
        components, options = self._components, self._options
        return find_sleep_levels(
            components.loaded_model.model,
            single_process=components.ranks.is_single_process,
            quantized=components.loaded_model.quantization is not None,
            compiled=options.compile_mode is not None,
            draft=options.draft_model is not None,
        )

    def _get_effective_settings(self) -> dict[str, Any]:
        """Return the settings in effect, including CUDA graphs that were disabled after the load."""
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
                f"{self._load.model} runs in several processes and cannot change adapters while it is loaded",
                "list the adapter under the model's loras",
                param="lora",
            )
        if "lora" in self._components.refused:
            raise InvalidRequest(
                "adapters need a library that is not installed", self._components.refused["lora"], param="lora"
            )
        if self._asleep:
            raise InvalidRequest(
                f"{self._load.model} is asleep", "wake it before you change its adapters", param="lora"
            )

    def _run_between_steps(self, action: Callable[[], None], action_label: str) -> None:
        """Run an action in the step thread and wait for it; run it here if there is no step thread."""
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
                raise OutOfMemory(f"out of memory: {self._load.model} could not {action_label}") from error
            raise EngineFailed(f"{self._load.model} could not {action_label}: {summarize_error(error)}") from error

    def _submit_guided(self, number: int, request: GenerateRequest, seed: int) -> None:
        """Compile a small constraint here, in the compile thread; pass a large one on, so that it delays no other request."""
        assert request.sampling.guided is not None
        if needs_trial(request.sampling.guided):
            self._trial_pool.submit(self._compile_guided, number, request, seed, time.monotonic())
        else:
            self._compile_guided(number, request, seed, None)

    def _compile_guided(self, number: int, request: GenerateRequest, seed: int, queued_at: float | None) -> None:
        """Compile a constraint and queue its request. `queued_at`: since when it waits for a trial; None if it needs none."""
        assert request.sampling.guided is not None and self._output is not None
        if not self._output.is_open(number):
            return
        try:
            if queued_at is not None:
                check_wait(queued_at)
            constraint = self._get_compiler().compile(request.sampling.guided, needs_trial=queued_at is not None)
            self._inbox.put(self._build_sequences(number, request, seed, constraint))
        except EnginebayError as error:
            self._output.fail(number, error)
        except Exception as error:
            self._output.fail(number, EngineFailed(f"the guided constraint could not be compiled: {error}"))

    def _get_compiler(self) -> GuidedCompiler:
        loaded = self._components.loaded_model
        with self._compiler_lock:
            if self._guided_compiler is None:
                self._guided_compiler = GuidedCompiler(
                    loaded.hf_tokenizer, loaded.vocab_size, sorted(loaded.eos_token_ids)
                )
            return self._guided_compiler

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
        """Run the step thread until the engine closes."""
        assert self._generate_batcher is not None
        busy = False
        while not self._closing:
            wait_s = None if not self._generate_batcher.has_waiting else self._options.max_wait_s
            self._drain_inbox(block=not busy, wait_s=wait_s)
            try:
                busy = self._step()
            except Exception as error:
                self._fail_running(error)
                busy = True  # the last good step may still have output pending
            self._jobs.run_ready(self._get_adapters_in_use)
        self._drain_inbox(block=False)
        self._jobs.fail_all(EngineFailed("the engine has stopped", "load the model again"))
        self._components.ranks.broadcast(Shutdown())
        self._components.ranks.close()

    def _step(self) -> bool:
        """Run a batch of generate() if one is ready, then a step of continuous batching. Return False when idle."""
        assert self._generate_batcher is not None
        generated = self._generate_batcher.advance()
        stepped = self._continuous_batcher is not None and self._continuous_batcher.advance()
        return generated or stepped

    def _get_adapters_in_use(self) -> set[str | None]:
        assert self._generate_batcher is not None
        return self._generate_batcher.get_adapters_in_use() | (
            set() if self._continuous_batcher is None else self._continuous_batcher.get_adapters_in_use()
        )

    def _on_generate_step(self) -> None:
        """Advance continuous batching after each step inside generate()."""
        assert self._generate_batcher is not None
        self._drain_inbox(block=False)
        if self._closing:
            for number in self._generate_batcher.get_request_numbers():
                self._generate_batcher.cancel(number)
        elif self._continuous_batcher is not None:
            self._continuous_batcher.advance()

    def _drain_inbox(self, block: bool, wait_s: float | None = None) -> None:
        """Process all inbox items; if `block`, wait for the first one, at most `wait_s`."""
        while True:
            try:
                item = self._inbox.get(block, wait_s)
            except queue.Empty:
                return
            block = False
            if isinstance(item, int):
                self._cancel_request(item)
            elif isinstance(item, StepJob):
                self._jobs.add(item)
            elif item is not None:
                self._start_sequences(item)

    def _start_sequences(self, sequences: list[SequenceState]) -> None:
        assert self._generate_batcher is not None and self._output is not None
        first = sequences[0]
        if not self._output.is_open(first.number):
            return
        if first.lora is not None and not self._components.adapters.is_loaded(first.lora):
            self._output.fail(first.number, InvalidRequest(f"adapter {first.lora} was removed", param="lora"))
            return
        if first.finish_reason is not None:  # another worker completed it, and did not send its end
            self._output.finish(first, first.finish_reason)
            self._output.flush()
            return
        if (first.sampling.num_beams or 1) > 1:
            self._generate_batcher.add_beam_search(sequences)
        elif self._continuous_batcher is not None:
            self._continuous_batcher.add(sequences)
        else:
            self._generate_batcher.add(sequences)

    def _cancel_request(self, number: int) -> None:
        assert self._generate_batcher is not None
        self._generate_batcher.cancel(number)
        if self._continuous_batcher is not None:
            self._continuous_batcher.cancel(number)

    def _fail_running(self, error: Exception) -> None:
        """Fail all running requests after an error in a step. With followers, exit the process."""
        assert self._generate_batcher is not None and self._output is not None
        if isinstance(error, OtherWorkFailed) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        numbers = self._generate_batcher.get_request_numbers()
        if self._continuous_batcher is not None:
            numbers |= self._continuous_batcher.get_request_numbers()
        failure: EnginebayError = EngineFailed(f"the model failed: {summarize_error(error)}")
        if is_out_of_memory(error):
            failure = OutOfMemory("out of memory while generating", "lower batching.batch_size or max_tokens")
        elif isinstance(error, EnginebayError):
            failure = error
        self._generate_batcher.clear_running()
        for number in numbers:
            self._cancel_request(number)
            self._output.fail(number, failure)
        if self._continuous_batcher is not None:
            self._continuous_batcher.reset()
        if is_out_of_memory(error) and torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not self._components.ranks.is_single_process:
            # The ranks are out of sync: exit, so that the supervisor restarts the worker.
            time.sleep(_ERROR_FLUSH_S)
            os._exit(_BROKEN_EXIT_CODE)
