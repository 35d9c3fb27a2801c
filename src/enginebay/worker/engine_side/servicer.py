"""The gRPC service of a worker, the same for all engines."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from enginebay.contract import Engine, Stats, SupportsLora, SupportsSleep, SupportsStats
from enginebay.errors import EnginebayError, EngineFailed, Unsupported
from enginebay.meters.devices.proc_files import list_process_tree, read_resident_bytes
from enginebay.worker import codec
from enginebay.worker.engine_side.request_table import RequestTable
from enginebay.worker.proto import SERVICE
from enginebay.worker.proto import worker_pb2 as pb

_log = logging.getLogger(__name__)
_EMBEDDING_THREADS = 64  # each embedding holds one until it ends
_CANCEL_TIMEOUT_S = 10.0  # for an engine to drop cancelled requests


class WorkerServicer:
    """Answers RPCs of server processes for one engine."""

    def __init__(self, engine: Engine, requests: RequestTable) -> None:
        self._engine = engine
        self._requests = requests
        self._state_lock = threading.Lock()  # sleep, wake and adapters: one at a time
        self._asleep = False
        self._last_steps: tuple[int | None, float] = (None, 0.0)  # step count, and when it last changed

    def facts(self, _: pb.FactsRequest, context: grpc.ServicerContext) -> pb.FactsReply:
        return pb.FactsReply(json=codec.encode_facts(self._engine.facts()))

    def state(self, _: pb.StateRequest, context: grpc.ServicerContext) -> pb.StateReply:
        stats = self._read_stats()
        gate = self._requests.gate
        return pb.StateReply(
            running=self._engine.running(),
            requests=gate.total_entered,
            idle_s=gate.measure_idle_s(),
            open=gate.is_open,
            quiet_s=self._measure_quiet_s(stats.steps),
            first_token_s=self._requests.first_token_s,
            flushes=self._requests.flushes,
            tokens=self._requests.tokens,
            memory_bytes=_read_tree_bytes(),
            steps=stats.steps,
            kv_used_ratio=stats.kv_used_ratio,
            waiting=stats.waiting,
        )

    def _measure_quiet_s(self, steps: int | None) -> float:
        """Return the seconds since the engine last made progress while requests run."""
        now = time.monotonic()
        if steps != self._last_steps[0]:
            self._last_steps = (steps, now)
        busy_since = now - self._requests.gate.measure_busy_s()
        return max(0.0, now - max(busy_since, self._requests.last_output_at, self._last_steps[1]))

    def _read_stats(self) -> Stats:
        """Return the engine's stats, if it has any. A failure here must not make a healthy worker look dead."""
        if not isinstance(self._engine, SupportsStats):
            return Stats()
        try:
            return self._engine.stats()
        except Exception as error:
            _log.debug("the engine failed to report its stats: %s", error)
            return Stats()

    # Drain, sleep, adapters

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
        return pb.SleepReply(memory_bytes=_read_tree_bytes())

    def _sleep_engine(self, level: int) -> None:
        with self._state_lock:
            gate = self._requests.gate
            if gate.is_open or gate.running or not self._wait_until_idle():
                raise EngineFailed("requests are still running", "drain the worker first")
            if level and not self._asleep and isinstance(self._engine, SupportsSleep):
                self._asleep = True  # even if it fails half-way: it must accept no requests then
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
        return pb.WakeReply(memory_bytes=_read_tree_bytes())

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
            raise Unsupported("this engine loads adapters only with the model", "configure them and reload the model")
        return self._engine

    # Unary computations

    def embed(self, request: pb.EmbedRequest, context: grpc.ServicerContext) -> pb.EmbedReply:
        inputs = [list(tokens.ids) for tokens in request.inputs]
        embedding = self._call_or_abort(context, lambda: self._embed_inputs(inputs))
        return pb.EmbedReply(
            vectors=[pb.Vector(values=vector) for vector in embedding.vectors], prompt_tokens=embedding.prompt_tokens
        )

    def _embed_inputs(self, inputs: list[list[int]]) -> Any:
        self._requests.gate.enter()
        try:
            return self._engine.embed(inputs)
        finally:
            self._requests.last_output_at = time.monotonic()
            self._requests.gate.leave()

    def tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeReply:
        ids = self._call_or_abort(context, lambda: self._engine.tokenize(request.text, request.add_special))
        return pb.TokenizeReply(token_ids=ids)

    def _call_or_abort(self, context: grpc.ServicerContext, function: Any) -> Any:
        """Call the function; on failure abort the RPC. An `EnginebayError` travels complete in the trailing metadata."""
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
    """A method with its own threads, so that slow calls do not block the other RPCs."""

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


def _read_tree_bytes() -> int:
    """Return the resident memory of the worker and its descendants."""
    return sum(map(read_resident_bytes, list_process_tree(os.getpid())))
