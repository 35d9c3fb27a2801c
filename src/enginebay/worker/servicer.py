"""The one gRPC servicer that answers questions about any engine."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from enginebay.contract import Engine, Stats, TellsStats
from enginebay.errors import EnginebayError
from enginebay.worker import wire
from enginebay.worker.ledger import Ledger
from enginebay.worker.memory import resident_bytes
from enginebay.worker.proto import SERVICE
from enginebay.worker.proto import worker_pb2 as pb

_log = logging.getLogger(__name__)


class Servicer:
    """Questions of server processes, answered from one engine."""

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self._engine = engine
        self._ledger = ledger

    def facts(self, _: pb.FactsRequest, context: grpc.ServicerContext) -> pb.FactsReply:
        return pb.FactsReply(json=wire.facts_json(self._engine.facts()))

    def state(self, _: pb.StateRequest, context: grpc.ServicerContext) -> pb.StateReply:
        stats = self._stats()
        return pb.StateReply(
            running=self._engine.running(),
            flushes=self._ledger.flushes,
            tokens=self._ledger.tokens,
            memory_bytes=resident_bytes(),
            steps=stats.steps,
            kv_used_ratio=stats.kv_used_ratio,
            waiting=stats.waiting,
        )

    def _stats(self) -> Stats:
        """What the engine tells of itself, if it does; a failure here must not make a healthy worker look dead."""
        if not isinstance(self._engine, TellsStats):
            return Stats()
        try:
            return self._engine.stats()
        except Exception as error:
            _log.debug("the engine could not tell its numbers: %s", error)
            return Stats()

    def embed(self, request: pb.EmbedRequest, context: grpc.ServicerContext) -> pb.EmbedReply:
        found = self._answer(context, lambda: self._engine.embed([list(one.ids) for one in request.inputs]))
        return pb.EmbedReply(
            vectors=[pb.Vector(values=vector) for vector in found.vectors], prompt_tokens=found.prompt_tokens
        )

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


def handlers(servicer: Servicer) -> grpc.GenericRpcHandler:
    def unary(method: Any, request: Any) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(method, request.FromString, lambda reply: reply.SerializeToString())

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Facts": unary(servicer.facts, pb.FactsRequest),
            "State": unary(servicer.state, pb.StateRequest),
            "Embed": unary(servicer.embed, pb.EmbedRequest),
            "Tokenize": unary(servicer.tokenize, pb.TokenizeRequest),
        },
    )
