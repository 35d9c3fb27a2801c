"""The one gRPC servicer that answers questions about any engine."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from enginebay.contract import Engine, Sleeps, Stats, TakesAdapters, TellsStats
from enginebay.errors import EnginebayError, EngineFailed, Unsupported
from enginebay.worker import wire
from enginebay.worker.ledger import Ledger
from enginebay.worker.memory import resident_bytes
from enginebay.worker.proto import SERVICE
from enginebay.worker.proto import worker_pb2 as pb

_log = logging.getLogger(__name__)
_EMBEDDINGS = 64  # at once; each holds a thread for as long as it takes
_CANCELLED_S = 10.0  # by then an engine has let go of requests that were cancelled


class Servicer:
    """Questions of server processes, answered from one engine."""

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self._engine = engine
        self._ledger = ledger
        self._changing = threading.Lock()  # sleep, wake and adapters: one at a time
        self._asleep = False
        self._steps: tuple[int | None, float] = (None, 0.0)  # last seen, and when it had changed

    def facts(self, _: pb.FactsRequest, context: grpc.ServicerContext) -> pb.FactsReply:
        return pb.FactsReply(json=wire.facts_json(self._engine.facts()))

    def state(self, _: pb.StateRequest, context: grpc.ServicerContext) -> pb.StateReply:
        stats = self._stats()
        door = self._ledger.door
        return pb.StateReply(
            running=self._engine.running(),
            requests=door.entered,
            idle_s=door.idle_s(),
            open=door.is_open,
            quiet_s=self._quiet_s(stats.steps),
            first_token_s=self._ledger.first_token_s,
            flushes=self._ledger.flushes,
            tokens=self._ledger.tokens,
            memory_bytes=resident_bytes(),
            steps=stats.steps,
            kv_used_ratio=stats.kv_used_ratio,
            waiting=stats.waiting,
        )

    def _quiet_s(self, steps: int | None) -> float:
        """Since the engine last showed a sign of life, while it has something to do."""
        now = time.monotonic()
        if steps != self._steps[0]:
            self._steps = (steps, now)
        busy_since = now - self._ledger.door.busy_s()
        return max(0.0, now - max(busy_since, self._ledger.moved_at, self._steps[1]))

    def _stats(self) -> Stats:
        """What the engine tells of itself, if it does; a failure here must not make a healthy worker look dead."""
        if not isinstance(self._engine, TellsStats):
            return Stats()
        try:
            return self._engine.stats()
        except Exception as error:
            _log.debug("the engine could not tell its numbers: %s", error)
            return Stats()

    # The door and what is behind it

    def drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainReply:
        return pb.DrainReply(running=self._ledger.door.close(request.patience_s))

    def open(self, _: pb.OpenRequest, context: grpc.ServicerContext) -> pb.OpenReply:
        self._answer(context, self._open)
        return pb.OpenReply()

    def _open(self) -> None:
        if self._asleep:
            raise EngineFailed("the engine is asleep", "wake it first")
        self._ledger.door.open()

    def sleep(self, request: pb.SleepRequest, context: grpc.ServicerContext) -> pb.SleepReply:
        self._answer(context, lambda: self._sleep(request.level))
        return pb.SleepReply(memory_bytes=resident_bytes())

    def _sleep(self, level: int) -> None:
        with self._changing:
            door = self._ledger.door
            if door.is_open or door.running or not self._let_go():
                raise EngineFailed("requests are still running", "drain the worker first")
            if level and not self._asleep and isinstance(self._engine, Sleeps):
                self._asleep = True  # even when it fails half-way: nobody may be let in then
                self._engine.sleep(level)

    def _let_go(self) -> bool:
        deadline = time.monotonic() + _CANCELLED_S
        while self._engine.running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def wake(self, _: pb.WakeRequest, context: grpc.ServicerContext) -> pb.WakeReply:
        self._answer(context, self._wake)
        return pb.WakeReply(memory_bytes=resident_bytes())

    def _wake(self) -> None:
        with self._changing:
            if self._asleep and isinstance(self._engine, Sleeps):
                self._engine.wake()
            self._asleep = False
            self._ledger.first_token_s = None
            self._ledger.door.open()

    def add_lora(self, request: pb.AddLoraRequest, context: grpc.ServicerContext) -> pb.AddLoraReply:
        self._answer(context, lambda: self._adapters().add_lora(request.name, request.path))
        return pb.AddLoraReply()

    def remove_lora(self, request: pb.RemoveLoraRequest, context: grpc.ServicerContext) -> pb.RemoveLoraReply:
        self._answer(context, lambda: self._adapters().remove_lora(request.name))
        return pb.RemoveLoraReply()

    def _adapters(self) -> TakesAdapters:
        if not isinstance(self._engine, TakesAdapters):
            raise Unsupported("this engine takes adapters only when it is loaded", "load the model again with them")
        return self._engine

    # What is computed here rather than in a session

    def embed(self, request: pb.EmbedRequest, context: grpc.ServicerContext) -> pb.EmbedReply:
        found = self._answer(context, lambda: self._embed([list(one.ids) for one in request.inputs]))
        return pb.EmbedReply(
            vectors=[pb.Vector(values=vector) for vector in found.vectors], prompt_tokens=found.prompt_tokens
        )

    def _embed(self, inputs: list[list[int]]) -> Any:
        self._ledger.door.enter()
        try:
            return self._engine.embed(inputs)
        finally:
            self._ledger.moved_at = time.monotonic()
            self._ledger.door.leave()

    def tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeReply:
        found = self._answer(context, lambda: self._engine.tokenize(request.text, request.add_special))
        return pb.TokenizeReply(token_ids=found)

    def _answer(self, context: grpc.ServicerContext, ask: Any) -> Any:
        """A unary answer; our errors travel whole in a trailer, the engine's own as a plain failure."""
        try:
            return ask()
        except EnginebayError as error:
            context.set_trailing_metadata(
                (("enginebay-error-bin", wire.failure_message(0, error).SerializeToString()),)
            )
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        except Exception as error:
            context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")


class _Apart:
    """A method with threads of its own: however many wait for it, the other questions are answered."""

    def __init__(self, method: Any, threads: int) -> None:
        self._method = method
        self.experimental_thread_pool = ThreadPoolExecutor(threads)  # gRPC looks for it by this name

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._method(request, context)


def handlers(servicer: Servicer) -> grpc.GenericRpcHandler:
    def unary(method: Any, request: Any) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(method, request.FromString, lambda reply: reply.SerializeToString())

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Facts": unary(servicer.facts, pb.FactsRequest),
            "State": unary(servicer.state, pb.StateRequest),
            "Embed": unary(_Apart(servicer.embed, _EMBEDDINGS), pb.EmbedRequest),
            "Tokenize": unary(servicer.tokenize, pb.TokenizeRequest),
            "Drain": unary(servicer.drain, pb.DrainRequest),
            "Open": unary(servicer.open, pb.OpenRequest),
            "Sleep": unary(servicer.sleep, pb.SleepRequest),
            "Wake": unary(servicer.wake, pb.WakeRequest),
            "AddLora": unary(servicer.add_lora, pb.AddLoraRequest),
            "RemoveLora": unary(servicer.remove_lora, pb.RemoveLoraRequest),
        },
    )
