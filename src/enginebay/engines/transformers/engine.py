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

from enginebay.engines import cores

cores.let_threads_sleep()  # counts only before torch is imported

import torch
import transformers

from enginebay.contract import Embedding, Facts, GenerateRequest, Load, Probe, Sink, Stats
from enginebay.engines.transformers import measure, warm
from enginebay.engines.transformers.adapters import Adapters
from enginebay.engines.transformers.assembly import Parts, assemble
from enginebay.engines.transformers.batcher import Batcher
from enginebay.engines.transformers.continuous import Continuous
from enginebay.engines.transformers.following import follow
from enginebay.engines.transformers.guided import Constraint, GuidedCompiler
from enginebay.engines.transformers.jobs import Job, Jobs
from enginebay.engines.transformers.loading import out_of_memory
from enginebay.engines.transformers.options import read_options, with_defaults
from enginebay.engines.transformers.outlet import Outlet
from enginebay.engines.transformers.parallel import Closing
from enginebay.engines.transformers.requests import check
from enginebay.engines.transformers.row import Row
from enginebay.engines.transformers.sleeping import Weights, sleep_levels
from enginebay.errors import EnginebayError, EngineFailed, InvalidRequest, OutOfMemory, RequestError, Unsupported
from enginebay.wording import in_one_line

_BROKEN_EXIT_CODE = 70
_LAST_WORDS_S = 1.0  # the last errors leave the process first

_Work = list[Row] | int | Job | None  # rows to start, a request to cancel, a job to do, or nothing: wake up


class TransformersEngine:
    """See `contract.Engine`. In a launch of several processes, rank 0 is the engine and the others `follow`."""

    def __init__(self, load: Load) -> None:
        started = time.monotonic()
        self._load = load
        self._options = read_options(load.settings)
        self._parts: Parts = assemble(load, self._options)
        self._load_s = time.monotonic() - started
        self._levels = self._sleep_levels()
        self._weights = Weights(self._parts.loaded.model)
        self._asleep = False
        self._jobs = Jobs()
        self._inbox: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._keys = itertools.count()
        self._seeds = random.Random(self._options.seed)
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="guided")
        self._guided: GuidedCompiler | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._outlet: Outlet | None = None
        self._continuous: Continuous | None = None
        self._batcher: Batcher | None = None

    @classmethod
    def probe(cls) -> Probe:
        return Probe(
            version=transformers.__version__,
            versions=measure.versions(),
            settings=None,
            architectures=None,
            devices=measure.devices(),
            refused=measure.refused(),
        )

    @classmethod
    def warm(cls) -> None:
        """Import all that a load will need; this module has imported torch and transformers. Touches no device."""
        warm.import_all()

    def start(self, sink: Sink) -> None:
        self._outlet = outlet = Outlet(sink)
        parts = self._parts
        if parts.generator is None:
            return
        if parts.runner is not None:
            self._continuous = Continuous(parts.runner, parts.limits, outlet, parts.peers)
        self._batcher = Batcher(
            parts.generator, parts.rules, outlet, parts.peers, self._between, self._options.assisted
        )
        self._thread = threading.Thread(target=self._work, name="transformers-steps", daemon=True)
        self._thread.start()

    def follow(self) -> None:
        """Ranks above 0: do as rank 0 says, until it closes."""
        follow(self._parts)

    def facts(self) -> Facts:
        parts = self._parts
        return Facts(
            kind="transformers",
            version=transformers.__version__,
            model=self._load.model,
            context_length=parts.loaded.context_length,
            max_batch=parts.max_batch,
            memory_bytes=measure.memory_bytes(),
            versions=measure.versions(),
            asked=dict(self._load.settings),
            effective=self._effective(),
            warnings=parts.warnings,
            refused=parts.refused,
            load_s=self._load_s,
            sleep_levels=self._levels,
            phases={"load": self._load_s},
        )

    def submit(self, number: int, request: GenerateRequest) -> None:
        outlet = self._outlet
        if self._batcher is None or outlet is None:
            raise Unsupported(
                "this model is loaded for embeddings", "ask it for embeddings, or set task: generate if it can"
            )
        if self._closing:
            raise EngineFailed("the engine has stopped", "load the model again")
        request = replace(request, sampling=with_defaults(request.sampling, self._options.defaults))
        check(request, self._parts.loaded.context_length, self._parts.adapters.names)
        outlet.open(number, request.sampling.n, len(request.token_ids or ()))
        seed = request.sampling.seed
        seed = self._seeds.getrandbits(62) if seed is None else seed
        if request.sampling.guided is None:
            self._inbox.put(self._rows(number, request, seed, None))
        else:
            self._compiling.submit(self._submit_guided, number, request, seed)

    def cancel(self, number: int) -> None:
        if self._outlet is not None:
            self._outlet.close(number)
        self._inbox.put(number)

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        if self._parts.embedder is None:
            raise Unsupported("this model is loaded for generation", "load it with task: embed")
        return self._parts.embedder.embed(inputs)

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return list(self._parts.loaded.tokenizer.encode(text, add_special_tokens=add_special).ids)

    def running(self) -> int:
        return 0 if self._outlet is None else self._outlet.live

    def stats(self) -> Stats:
        """The cache of generate() belongs to the library, which sets it no limit: only continuous batching knows a share."""
        batcher, continuous = self._batcher, self._continuous
        if batcher is None or self._outlet is None:
            return Stats()
        if continuous is None:
            return Stats(batcher.steps, None, len(self._outlet.numbers() - batcher.computing()))
        waiting = self._outlet.numbers() - batcher.computing() - continuous.computing()
        return Stats(batcher.steps + continuous.steps, continuous.used_ratio(), len(waiting))

    def sleep(self, level: int) -> None:
        """No row is left in the KV cache: all have ended."""
        if level not in self._levels:
            known = ", ".join(map(str, self._levels)) or "none"
            raise InvalidRequest(f"there is no sleep level {level} here", f"levels: {known}", param="level")
        if not self._asleep:
            self._do_between_steps(self._leave_device, "go to sleep")
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self._do_between_steps(self._weights.come_back, "wake")
            self._asleep = False

    def add_lora(self, name: str, path: str) -> None:
        self._check_adaptable()
        self._do_between_steps(lambda: self._change_adapters(lambda a: a.add(name, path)), f"load adapter {name}")

    def remove_lora(self, name: str) -> None:
        """New requests no longer find it; it is deleted when those that use it have ended."""
        self._check_adaptable()
        self._parts.adapters.withdraw(name)
        job = Job(lambda: self._change_adapters(lambda a: a.delete(name)), after=name)
        if self._thread is None:
            job.do()
        else:
            self._inbox.put(job)

    def close(self) -> None:
        self._closing = True
        self._compiling.shutdown(wait=False, cancel_futures=True)
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _sleep_levels(self) -> tuple[int, ...]:
        parts, options = self._parts, self._options
        return sleep_levels(
            parts.loaded.model,
            alone=parts.peers.alone,
            quantized=parts.loaded.quantization is not None,
            compiled=options.compile_mode is not None,
            draft=options.draft_model is not None,
        )

    def _effective(self) -> dict[str, Any]:
        """As it was loaded, but for what turned out not to work."""
        reason = self._parts.runner.why_not_recorded if self._parts.runner is not None else None
        return self._parts.effective | ({"cuda_graphs": f"off: {reason}"} if reason is not None else {})

    def _leave_device(self) -> None:
        if self._parts.runner is not None:
            self._parts.runner.rest()
        self._weights.leave()

    def _change_adapters(self, change: Callable[[Adapters], None]) -> None:
        if self._parts.runner is not None:
            self._parts.runner.forget_recordings()
        change(self._parts.adapters)

    def _check_adaptable(self) -> None:
        if not self._parts.peers.alone:
            raise InvalidRequest(
                f"{self._load.model} runs in several processes, which take adapters only when they load",
                "list the adapter under the model's loras",
                param="lora",
            )
        if "lora" in self._parts.refused:
            raise InvalidRequest("adapters need a library that is not there", self._parts.refused["lora"], param="lora")
        if self._asleep:
            raise InvalidRequest(f"{self._load.model} is asleep", "wake it before its adapters change", param="lora")

    def _do_between_steps(self, do: Callable[[], None], what: str) -> None:
        """In the step thread, while this one waits; here, where there is none."""
        job = Job(do)
        try:
            if self._thread is None:
                do()
            else:
                self._inbox.put(job)
                job.done.result()
        except EnginebayError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise OutOfMemory(f"memory ran out: {self._load.model} could not {what}") from error
            line = in_one_line(error)
            raise EngineFailed(f"{self._load.model} could not {what}: {line}") from error

    def _submit_guided(self, number: int, request: GenerateRequest, seed: int) -> None:
        """On the compiling thread: a large schema must not hold up everyone's next token."""
        assert request.sampling.guided is not None and self._outlet is not None
        loaded = self._parts.loaded
        try:
            if self._guided is None:
                self._guided = GuidedCompiler(loaded.hf_tokenizer, loaded.vocab_size, sorted(loaded.eos))
            self._inbox.put(self._rows(number, request, seed, self._guided.compile(request.sampling.guided)))
        except RequestError as error:
            self._outlet.fail(number, error)
        except Exception as error:
            self._outlet.fail(number, EngineFailed(f"the guided constraint could not be prepared: {error}"))

    def _rows(self, number: int, request: GenerateRequest, seed: int, constraint: Constraint | None) -> list[Row]:
        loaded = self._parts.loaded
        return [
            Row(
                next(self._keys),
                number,
                choice,
                request,
                seed,
                loaded.eos,
                loaded.context_length,
                loaded.tokenizer,
                constraint.copy() if constraint is not None else None,
            )
            for choice in range(request.sampling.n)
        ]

    def _work(self) -> None:
        """The step thread."""
        assert self._batcher is not None
        busy = False
        while not self._closing:
            wait_s = None if not self._batcher.waiting else self._options.max_wait_s
            self._take(block=not busy, wait_s=wait_s)
            try:
                busy = self._step()
            except Exception as error:
                self._fail(error)
                busy = True  # texts of the last good step may still have to be handed out
            self._jobs.run(self._adapters_in_use)
        self._take(block=False)
        self._jobs.give_up(EngineFailed("the engine has stopped", "load the model again"))
        self._parts.peers.send(Closing())
        self._parts.peers.close()

    def _step(self) -> bool:
        """One step of continuous batching, or else one batch of generate()."""
        assert self._batcher is not None
        searched = self._batcher.advance()
        stepped = self._continuous is not None and self._continuous.advance()
        return searched or stepped

    def _adapters_in_use(self) -> set[str | None]:
        assert self._batcher is not None
        return self._batcher.loras() | (set() if self._continuous is None else self._continuous.loras())

    def _between(self) -> None:
        """Inside generate(), after each of its steps: others go on meanwhile."""
        assert self._batcher is not None
        self._take(block=False)
        if self._closing:
            for number in self._batcher.numbers():
                self._batcher.cancel(number)
        elif self._continuous is not None:
            self._continuous.advance()

    def _take(self, block: bool, wait_s: float | None = None) -> None:
        """Everything that has come in; waits for something when `block`."""
        while True:
            try:
                work = self._inbox.get(block, wait_s)
            except queue.Empty:
                return
            block = False
            if isinstance(work, int):
                self._drop(work)
            elif isinstance(work, Job):
                self._jobs.add(work)
            elif work is not None:
                self._add(work)

    def _add(self, rows: list[Row]) -> None:
        assert self._batcher is not None and self._outlet is not None
        first = rows[0]
        if not self._outlet.is_open(first.number):
            return
        if first.lora is not None and not self._parts.adapters.knows(first.lora):
            self._outlet.fail(first.number, InvalidRequest(f"adapter {first.lora} was removed", param="lora"))
            return
        if (first.sampling.num_beams or 1) > 1:
            self._batcher.add_search(rows)
        elif self._continuous is not None:
            self._continuous.add(rows)
        else:
            self._batcher.add(rows)

    def _drop(self, number: int) -> None:
        assert self._batcher is not None
        self._batcher.cancel(number)
        if self._continuous is not None:
            self._continuous.cancel(number)

    def _fail(self, error: Exception) -> None:
        """A step went wrong: all that was being computed is lost, the engine is not (unless it has followers)."""
        assert self._batcher is not None and self._outlet is not None
        numbers = self._batcher.numbers()
        if self._continuous is not None:
            numbers |= self._continuous.numbers()
        told: EnginebayError = EngineFailed(f"the model failed: {in_one_line(error)}")
        if out_of_memory(error):
            told = OutOfMemory("memory ran out while generating", "lower batching.batch_size or max_tokens")
        elif isinstance(error, EnginebayError):
            told = error
        self._batcher.abandon()
        for number in numbers:
            self._drop(number)
            self._outlet.fail(number, told)
        if self._continuous is not None:
            self._continuous.start_over()
        if out_of_memory(error) and torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not self._parts.peers.alone:
            # The ranks no longer agree on what comes next: end, so that whoever watches starts the worker again.
            time.sleep(_LAST_WORDS_S)
            os._exit(_BROKEN_EXIT_CODE)
