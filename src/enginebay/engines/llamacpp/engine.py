"""The llamacpp engine. llama.cpp's server runs in this process and batches continuously; each call has a thread."""

from __future__ import annotations

import resource
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from enginebay.contract import Embedding, Facts, GenerateRequest, Load, Probe, Sink, Stats
from enginebay.contract.sampling_parameters import GUIDED_PARAMETERS
from enginebay.engines.llamacpp.call_queue import ActiveRequest, CallQueue, LibraryCall, split_choices
from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.completion_driver import NO_LLGUIDANCE, LlamaDriver, make_context_overflow, to_error
from enginebay.engines.llamacpp.guided.llguidance_matcher import load_llguidance
from enginebay.engines.llamacpp.library import LlamaServer, detect_host, import_library, read_gguf_model
from enginebay.engines.llamacpp.load_plan import plan_load
from enginebay.engines.llamacpp.request_body import LlamaBodyBuilder
from enginebay.engines.llamacpp.token_pieces import TokenPieces
from enginebay.errors import EnginebayError, EngineFailed, Unsupported
from enginebay.meters.devices.proc_files import read_resident_bytes

_CLOSE_TIMEOUT_S = 10.0


class LlamaCppEngine:
    """One GGUF model."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._path = Path(load.path)
        file = read_gguf_model(self._path)
        library = import_library(bool(load.settings.get("busy_wait")))
        self._plan = plan_load(load, file, detect_host(library))
        self._server = LlamaServer(library, self._path, self._plan, load.loras)
        self._versions = _list_versions(library)
        self._llguidance = load_llguidance(library, file, lambda token: self._token_pieces.get_piece(token))
        self._adapter_ids = {name: index for index, name in enumerate(load.loras)}
        self._queue = CallQueue(self._plan.max_batch, self._plan.cache_tokens)
        self._active: dict[int, ActiveRequest] = {}
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    @classmethod
    def probe(cls) -> Probe:
        library = import_library()
        params = library.CommonParams()
        return Probe(
            version=library.__version__,
            versions=_list_versions(library),
            settings=tuple(name for name in dir(params) if not name.startswith("_")),
            devices=tuple(sorted({_parse_device_kind(device) for device in library.get_device_info()})),
            notes=(library.get_system_info().strip(" |"),),
        )

    @classmethod
    def warm(cls) -> None:
        """Import the library. It looks for devices only when a model is loaded."""
        import_library()

    def start(self, sink: Sink) -> None:
        self._sink = sink
        prompt_cache = bool(self._load.settings.get("prompt_cache", True))
        self._driver = LlamaDriver(self._server, sink, prompt_cache, self._llguidance, lambda: self._token_pieces)

    def facts(self) -> Facts:
        return Facts(
            kind=self._load.kind,
            version=self._versions["xllamacpp"],
            model=self._load.model,
            context_length=self._plan.context_length,
            max_batch=self._plan.max_batch,
            memory_bytes=read_resident_bytes() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            versions=self._versions,
            asked=dict(self._load.settings),
            effective=dict(self._plan.effective),
            max_step_tokens=self._plan.effective.get("batch_size"),
            reservable_tokens=self._plan.cache_tokens
            if self._plan.has_shared_cache and not self._is_embedding
            else None,
            warnings=(*self._plan.warnings, *self._list_library_warnings()),
            refused=self._list_refused(),
        )

    def _list_refused(self) -> dict[str, str]:
        if self._is_embedding:
            return {}
        refused = {"embeddings": "the model is loaded for generation; load it with task: embed"}
        return refused | (dict.fromkeys(GUIDED_PARAMETERS, NO_LLGUIDANCE) if self._llguidance is None else {})

    def _list_library_warnings(self) -> list[str]:
        is_affected = self._llguidance is None and not self._is_embedding
        return [f"{NO_LLGUIDANCE}: requests with a constraint are refused"] if is_affected else []

    @property
    def _is_embedding(self) -> bool:
        return self._load.task == "embed"

    @cached_property
    def _token_pieces(self) -> TokenPieces:
        return TokenPieces.from_gguf(read_gguf_model(self._path))

    def submit(self, number: int, request: GenerateRequest) -> None:
        if self._is_embedding:
            raise Unsupported(
                "this model is loaded for embeddings", "request embeddings, or load it with task: generate"
            )
        calls = self._build_calls(number, request)
        with self._lock:
            self._active[number] = calls[0].request
            for call in calls:
                self._queue.put(call)
            self._start_admitted()

    def _build_calls(self, number: int, request: GenerateRequest) -> list[LibraryCall]:
        """Return the library calls for a request. Raises if the prompt does not fit or a parameter is invalid."""
        prompt_tokens, context = len(request.token_ids or ()), self._plan.context_length
        if prompt_tokens + 1 > context:
            raise make_context_overflow(prompt_tokens, context)
        sampling = request.sampling
        limit = min(sampling.max_tokens or context, context - prompt_tokens)
        active = ActiveRequest(number, LlamaBodyBuilder(request, context, self._adapter_ids), request.lora)
        outputs = [ChoiceOutput(choice, sampling, limit, self._find_unreported) for choice in range(sampling.n)]
        if request.generated:
            outputs[0].restore(request.generated, self._token_pieces.get_piece)
        # Stop tokens and min_tokens end or continue each choice separately.
        together = not sampling.stop_token_ids and not sampling.min_tokens
        need = prompt_tokens + limit
        max_size = min(self._plan.max_batch, self._plan.cache_tokens // need)
        calls: list[LibraryCall] = []
        for size in split_choices(sampling.n, together, max_size):
            calls.append(LibraryCall(active, outputs[:size], size * need, prompt_tokens))
            del outputs[:size]
        active.calls_left = len(calls)
        return calls

    def _find_unreported(self, text: str, token_id: int, missing: int) -> list[int]:
        return self._token_pieces.find_unreported(text, token_id, missing)

    def _start_admitted(self) -> None:
        """Start the calls that fit. The caller holds the lock."""
        for call in self._queue.admit():
            thread = threading.Thread(
                target=self._run_call, args=(call,), name=f"call-{call.request.number}", daemon=True
            )
            self._threads.add(thread)
            thread.start()

    def _run_call(self, call: LibraryCall) -> None:
        request = call.request
        problem: EnginebayError | None = None
        try:
            if not request.cancelled:
                self._driver.run(call)
        except EnginebayError as error:
            problem = error
        except Exception as error:  # one request must not fail the others
            problem = EngineFailed(f"llama.cpp failed on this request: {type(error).__name__}: {error}")
        with self._lock:
            request.calls_left -= 1
            if problem is not None or not request.calls_left:
                self._active.pop(request.number, None)
            if problem is not None:
                self._queue.drop_waiting(request)
            failed = problem if not request.cancelled else None
            request.cancelled |= problem is not None  # stops the request's other calls
            self._queue.release(call)
            self._threads.discard(threading.current_thread())
            self._start_admitted()
        if failed is not None:
            self._sink.error(request.number, failed)
            self._sink.flush()

    def cancel(self, number: int) -> None:
        """Drop waiting calls. Running calls end at their next chunk, which comes with every step."""
        with self._lock:
            request = self._active.pop(number, None)
            if request is not None:
                request.cancelled = True
                self._queue.drop_waiting(request)
                self._start_admitted()

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        if not self._is_embedding:
            raise Unsupported("this model is loaded for generation", "load it with task: embed", param="embeddings")
        for ids in inputs:
            if len(ids) > self._plan.context_length:
                raise make_context_overflow(len(ids), self._plan.context_length)
        response = self._server.embed({"input": [list(ids) for ids in inputs]})
        if "data" not in response:
            raise to_error(response)
        rows = sorted(response["data"], key=lambda row: int(row["index"]))
        return Embedding(tuple(tuple(row["embedding"]) for row in rows), int(response["usage"]["prompt_tokens"]))

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": True}
        return list(self._server.call_route("POST", "/tokenize", body)["tokens"])

    def running(self) -> int:
        return len(self._active)

    def stats(self) -> Stats:
        """Return statistics. The library counts the steps; it does not report cache usage, so the engine counts that."""
        steps = self._server.read_metrics().get("n_decode_total")
        with self._lock:
            cached = self._queue.count_cached_tokens(self._plan.has_shared_cache)
            waiting = self._queue.count_waiting_requests()
        used = None if self._is_embedding else min(1.0, cached / self._plan.cache_tokens)
        return Stats(None if steps is None else int(steps), used, waiting)

    def metrics(self) -> dict[str, float]:
        """Return the library's own counters."""
        return self._server.read_metrics()

    def close(self) -> None:
        for number in list(self._active):
            self.cancel(number)
        for thread in list(self._threads):
            thread.join(_CLOSE_TIMEOUT_S)
        if not self._threads:  # exiting while the library is busy is safe; waiting for it is not
            self._server.close()


def _list_versions(library: Any) -> dict[str, str]:
    version: str = library.__version__  # importlib.metadata takes longer to import than the library
    build = library.BUILD_INFO
    return {
        "xllamacpp": version,
        "llama.cpp": f"b{version.rpartition('.')[2]}",
        "build": f"{build['build_target']}, {build['compiler']}",
    }


def _parse_device_kind(device: dict[str, Any]) -> str:
    """Return the device's name without its number: cpu, cuda, metal, vulkan."""
    return str(device["name"]).rstrip("0123456789").lower()
