"""llama.cpp in this process, through xllamacpp: its server batches continuously, we hand it one call per thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from enginebay.contract import Embedding, Facts, GenerateRequest, Load, Probe, Sink, Stats
from enginebay.engines.llamacpp.body import BodyMaker
from enginebay.engines.llamacpp.calls import Call, Held, Queue, group_sizes
from enginebay.engines.llamacpp.driver import Driver, error_of, overflow
from enginebay.engines.llamacpp.library import Library, host, import_library
from enginebay.engines.llamacpp.model_file import read_model
from enginebay.engines.llamacpp.output import Output
from enginebay.engines.llamacpp.pieces import Pieces
from enginebay.engines.llamacpp.plan import make_plan
from enginebay.errors import EnginebayError, EngineFailed, Unsupported

_CLOSE_S = 10.0


class LlamaCppEngine:
    """One GGUF model."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._path = Path(load.path)
        file = read_model(self._path)
        library = import_library(bool(load.settings.get("busy_wait")))
        self._plan = make_plan(load, file, host(library))
        self._library = Library(library, self._path, self._plan, load.loras)
        self._versions = _versions(library)
        self._loras = {name: place for place, name in enumerate(load.loras)}
        self._queue = Queue(self._plan.max_batch, self._plan.cache_tokens)
        self._held: dict[int, Held] = {}
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    @classmethod
    def probe(cls) -> Probe:
        library = import_library()
        params = library.CommonParams()
        return Probe(
            version=library.__version__,
            versions=_versions(library),
            settings=tuple(name for name in dir(params) if not name.startswith("_")),
            devices=tuple(sorted({_device_kind(one) for one in library.get_device_info()})),
            notes=(library.get_system_info().strip(" |"),),
        )

    @classmethod
    def warm(cls) -> None:
        """Import the library; it looks for devices when a model is loaded."""
        import_library()

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._driver = Driver(self._library, sink, bool(self._load.settings.get("prompt_cache", True)))

    def facts(self) -> Facts:
        return Facts(
            kind=self._load.kind,
            version=self._versions["xllamacpp"],
            model=self._load.model,
            context_length=self._plan.context_length,
            max_batch=self._plan.max_batch,
            memory_bytes=_resident_bytes(),
            versions=self._versions,
            asked=dict(self._load.settings),
            effective=dict(self._plan.effective),
            warnings=self._plan.warnings,
            refused={} if self._embeds else {"embeddings": "the model is loaded to generate; load it with task: embed"},
        )

    @property
    def _embeds(self) -> bool:
        return self._load.task == "embed"

    @cached_property
    def _pieces(self) -> Pieces:
        return Pieces.of_file(read_model(self._path))

    def submit(self, number: int, request: GenerateRequest) -> None:
        if self._embeds:
            raise Unsupported(
                "this model is loaded for embeddings", "ask it for embeddings, or set task: generate if it can"
            )
        calls = self._calls(number, request)
        with self._lock:
            self._held[number] = calls[0].held
            for call in calls:
                self._queue.put(call)
            self._start_what_fits()

    def _calls(self, number: int, request: GenerateRequest) -> list[Call]:
        """The request's calls of the library. Raises when the prompt does not fit or a parameter is wrong."""
        prompt, context = len(request.token_ids or ()), self._plan.context_length
        if prompt + 1 > context:
            raise overflow(prompt, context)
        sampling = request.sampling
        limit = min(sampling.max_tokens or context, context - prompt)
        held = Held(number, BodyMaker(request, context, self._loras), request.lora)
        outputs = [Output(choice, sampling, limit, self._unreported) for choice in range(sampling.n)]
        # A choice that ends by a stop token, or goes on after min_tokens, must be ended or continued on its own.
        together = not sampling.stop_token_ids and not sampling.min_tokens
        need = prompt + limit
        most = min(self._plan.max_batch, self._plan.cache_tokens // need)
        calls: list[Call] = []
        for size in group_sizes(sampling.n, together, most):
            calls.append(Call(held, outputs[:size], size * need, prompt))
            del outputs[:size]
        held.calls_left = len(calls)
        return calls

    def _unreported(self, text: str, token_id: int, missing: int) -> list[int]:
        return self._pieces.unreported(text, token_id, missing)

    def _start_what_fits(self) -> None:
        """With the lock held."""
        for call in self._queue.startable():
            thread = threading.Thread(target=self._run, args=(call,), name=f"call-{call.held.number}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _run(self, call: Call) -> None:
        held = call.held
        problem: EnginebayError | None = None
        try:
            if not held.cancelled:
                self._driver.run(call)
        except EnginebayError as error:
            problem = error
        except Exception as error:  # one request's surprise must not end the others
            problem = EngineFailed(f"llama.cpp failed on this request: {type(error).__name__}: {error}")
        with self._lock:
            held.calls_left -= 1
            if problem is not None or not held.calls_left:
                self._held.pop(held.number, None)
            if problem is not None:
                self._queue.drop(held)
            failed = problem if not held.cancelled else None
            held.cancelled |= problem is not None  # ends the request's other calls
            self._queue.give_back(call)
            self._threads.discard(threading.current_thread())
            self._start_what_fits()
        if failed is not None:
            self._sink.error(held.number, failed)
            self._sink.flush()

    def cancel(self, number: int) -> None:
        """What waits is forgotten; what runs ends at its next chunk, which comes with every step."""
        with self._lock:
            held = self._held.pop(number, None)
            if held is not None:
                held.cancelled = True
                self._queue.drop(held)
                self._start_what_fits()

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        if not self._embeds:
            raise Unsupported("this model is loaded for generation", "load it with task: embed", param="embeddings")
        for one in inputs:
            if len(one) > self._plan.context_length:
                raise overflow(len(one), self._plan.context_length)
        answer = self._library.embed({"input": [list(one) for one in inputs]})
        if "data" not in answer:
            raise error_of(answer)
        rows = sorted(answer["data"], key=lambda row: int(row["index"]))
        return Embedding(tuple(tuple(row["embedding"]) for row in rows), int(answer["usage"]["prompt_tokens"]))

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": True}
        return list(self._library.ask("POST", "/tokenize", body)["tokens"])

    def running(self) -> int:
        return len(self._held)

    def stats(self) -> Stats:
        """Steps by the library's count; it keeps that of the cache to itself, so the cache's is ours."""
        steps = self._library.metrics().get("n_decode_total")
        with self._lock:
            cached = self._queue.cached_tokens(self._plan.shared_cache)
            waiting = self._queue.requests_waiting()
        used = None if self._embeds else min(1.0, cached / self._plan.cache_tokens)
        return Stats(None if steps is None else int(steps), used, waiting)

    def metrics(self) -> dict[str, float]:
        """The library's own counters."""
        return self._library.metrics()

    def close(self) -> None:
        for number in list(self._held):
            self.cancel(number)
        for thread in list(self._threads):
            thread.join(_CLOSE_S)
        if not self._threads:  # else the process ends with the library still busy, which is safe; waiting for it is not
            self._library.close()


def _versions(library: Any) -> dict[str, str]:
    found: str = library.__version__  # importlib.metadata takes longer to import than the library
    build = library.BUILD_INFO
    return {
        "xllamacpp": found,
        "llama.cpp": f"b{found.rpartition('.')[2]}",
        "build": f"{build['build_target']}, {build['compiler']}",
    }


def _device_kind(device: dict[str, Any]) -> str:
    """cpu, cuda, metal, vulkan: the device's name without its number."""
    return str(device["name"]).rstrip("0123456789").lower()


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE")
