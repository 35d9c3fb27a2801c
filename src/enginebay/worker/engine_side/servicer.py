"""The one gRPC servicer that answers questions about any engine."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from enginebay.contract import Engine, Stats, SupportsLora, SupportsSleep, SupportsStats
from enginebay.errors import EnginebayError, EngineFailed, Unsupported
from enginebay.worker import codec
from enginebay.worker.engine_side.request_table import RequestTable
from enginebay.worker.engine_side.resident_memory import read_resident_bytes
from enginebay.worker.proto import SERVICE
from enginebay.worker.proto import worker_pb2 as pb

_log = logging.getLogger(__name__)
_EMBEDDING_THREADS = 64  # at once; each holds a thread for as long as it takes
_CANCEL_TIMEOUT_S = 10.0  # by then an engine has let go of requests that were cancelled


class WorkerServicer:
    """Questions of server processes, answered from one engine."""

    def __init__(self, engine: Engine, requests: RequestTable) -> None:
        self._engine = engine
        self._requests = requests
        self._state_lock = threading.Lock()  # sleep, wake and adapters: one at a time
        self._asleep = False
        self._last_steps: tuple[int | None, float] = (None, 0.0)  # last seen, and when it had changed

    def facts(self, _: pb.FactsRequest, context: grpc.ServicerContext) -> pb.FactsReply:
        return pb.FactsReply(json=codec.encode_facts(self._engine.facts()))

    def state(self, _: pb.StateRequest, context: grpc.ServicerContext) -> pb.StateReply:
        stats = self._read_stats()
        door = self._requests.gate
        return pb.StateReply(
            running=self._engine.running(),
            requests=door.total_entered,
            idle_s=door.measure_idle_s(),
            open=door.is_open,
            quiet_s=self._measure_quiet_s(stats.steps),
            first_token_s=self._requests.first_token_s,
            flushes=self._requests.flushes,
            tokens=self._requests.tokens,
            memory_bytes=read_resident_bytes(),
            steps=stats.steps,
            kv_used_ratio=stats.kv_used_ratio,
            waiting=stats.waiting,
        )

    def _measure_quiet_s(self, steps: int | None) -> float:
        """Since the engine last showed a sign of life, while it has something to do."""
        now = time.monotonic()
        if steps != self._last_steps[0]:
            self._last_steps = (steps, now)
        busy_since = now - self._requests.gate.measure_busy_s()
        return max(0.0, now - max(busy_since, self._requests.last_output_at, self._last_steps[1]))

    def _read_stats(self) -> Stats:
        """What the engine tells of itself, if it does; a failure here must not make a healthy worker look dead."""
        if not isinstance(self._engine, SupportsStats):
            return Stats()
        try:
            return self._engine.stats()
        except Exception as error:
            _log.debug("the engine could not tell its numbers: %s", error)
            return Stats()

    # The door and what is behind it

    def drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainReply:
        return pb.DrainReply(running=self._requests.gate.close(request.patience_s))

    def open(self, _: pb.OpenRequest, context: grpc.ServicerContext) -> pb.OpenReply:
        self._call_or_abort(context, self._open_gate)
        return pb.OpenReply()

    def _open_gate(self) -> None:
        if self._asleep:
            raise EngineFailed("the engine is asleep", "wake it first")
        self._requests.gate.open()

    def sleep(self, request: pb.SleepRequest, context: grpc.ServicerContext) -> pb.SleepReply:
        self._call_or_abort(context, lambda: self._sleep_engine(request.level))
        return pb.SleepReply(memory_bytes=read_resident_bytes())

    def _sleep_engine(self, level: int) -> None:
        with self._state_lock:
            door = self._requests.gate
            if door.is_open or door.running or not self._wait_until_idle():
                raise EngineFailed("requests are still running", "drain the worker first")
            if level and not self._asleep and isinstance(self._engine, SupportsSleep):
                self._asleep = True  # even when it fails half-way: nobody may be let in then
                self._engine.sleep(level)

    def _wait_until_idle(self) -> bool:
        deadline = time.monotonic() + _CANCEL_TIMEOUT_S
        while self._engine.running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def wake(self, _: pb.WakeRequest, context: grpc.ServicerContext) -> pb.WakeReply:
        self._call_or_abort(context, self._wake_engine)
        return pb.WakeReply(memory_bytes=read_resident_bytes())

    def _wake_engine(self) -> None:
        with self._state_lock:
            if self._asleep and isinstance(self._engine, SupportsSleep):
                self._engine.wake()
            self._asleep = False
            self._requests.first_token_s = None
            self._requests.gate.open()

    def add_lora(self, request: pb.AddLoraRequest, context: grpc.ServicerContext) -> pb.AddLoraReply:
        self._call_or_abort(context, lambda: self._require_adapters().add_lora(request.name, request.path))
        return pb.AddLoraReply()

    def remove_lora(self, request: pb.RemoveLoraRequest, context: grpc.ServicerContext) -> pb.RemoveLoraReply:
        self._call_or_abort(context, lambda: self._require_adapters().remove_lora(request.name))
        return pb.RemoveLoraReply()

    def _require_adapters(self) -> SupportsLora:
        if not isinstance(self._engine, SupportsLora):
            raise Unsupported("this engine takes adapters only when it is loaded", "load the model again with them")
        return self._engine

    # What is computed here rather than in a session

    def embed(self, request: pb.EmbedRequest, context: grpc.ServicerContext) -> pb.EmbedReply:
        found = self._call_or_abort(context, lambda: self._embed_inputs([list(one.ids) for one in request.inputs]))
        return pb.EmbedReply(
            vectors=[pb.Vector(values=vector) for vector in found.vectors], prompt_tokens=found.prompt_tokens
        )

    def _embed_inputs(self, inputs: list[list[int]]) -> Any:
        self._requests.gate.enter()
        try:
            return self._engine.embed(inputs)
        finally:
            self._requests.last_output_at = time.monotonic()
            self._requests.gate.leave()

    def tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeReply:
        found = self._call_or_abort(context, lambda: self._engine.tokenize(request.text, request.add_special))
        return pb.TokenizeReply(token_ids=found)

    def _call_or_abort(self, context: grpc.ServicerContext, function: Any) -> Any:
        """A unary answer; our errors travel whole in a trailer, the engine's own as a plain failure."""
        try:
            return function()
        except EnginebayError as error:
            context.set_trailing_metadata(
                (("enginebay-error-bin", codec.encode_failure(0, error).SerializeToString()),)
            )
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        except Exception as error:
            context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")


class _DedicatedThreads:
    """A method with threads of its own: however many wait for it, the other questions are answered."""

    def __init__(self, method: Any, threads: int) -> None:
        self._method = method
        self.experimental_thread_pool = ThreadPoolExecutor(threads)  # gRPC looks for it by this name

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._method(request, context)


def build_handlers(servicer: WorkerServicer) -> grpc.GenericRpcHandler:
    def unary(method: Any, request: Any) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(method, request.FromString, lambda reply: reply.SerializeToString())

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Facts": unary(servicer.facts, pb.FactsRequest),
            "State": unary(servicer.state, pb.StateRequest),
            "Embed": unary(_DedicatedThreads(servicer.embed, _EMBEDDING_THREADS), pb.EmbedRequest),
            "Tokenize": unary(servicer.tokenize, pb.TokenizeRequest),
            "Drain": unary(servicer.drain, pb.DrainRequest),
            "Open": unary(servicer.open, pb.OpenRequest),
            "Sleep": unary(servicer.sleep, pb.SleepRequest),
            "Wake": unary(servicer.wake, pb.WakeRequest),
            "AddLora": unary(servicer.add_lora, pb.AddLoraRequest),
            "RemoveLora": unary(servicer.remove_lora, pb.RemoveLoraRequest),
        },
    )
