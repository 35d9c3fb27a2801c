"""gRPC's health and reflection services, imported on first use so that they do not delay loading."""

from __future__ import annotations

import threading
from typing import Any

import grpc

_HEALTH, _REFLECTION = "/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/"


class LazyRpcHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves health and reflection for one service."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._handlers: dict[str, list[Any]] = {}
        self._health: Any = None
        self._shutting_down = False

    def service(self, details: Any) -> Any:
        """Return the handler of this call, or None if it is for another service."""
        for prefix, make in ((_HEALTH, self._make_health), (_REFLECTION, self._make_reflection)):
            if details.method.startswith(prefix):
                with self._lock:
                    if prefix not in self._handlers:
                        self._handlers[prefix] = make()
                handlers = (handler.service(details) for handler in self._handlers[prefix])
                return next((handler for handler in handlers if handler is not None), None)
        return None

    def shut_down(self) -> None:
        """Report NOT_SERVING from now on."""
        with self._lock:
            self._shutting_down = True
            if self._health is not None:
                self._health.enter_graceful_shutdown()

    def _make_health(self) -> list[Any]:
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc

        self._health = health.HealthServicer()
        self._health.set(self._service, health_pb2.HealthCheckResponse.SERVING)
        if self._shutting_down:
            self._health.enter_graceful_shutdown()
        collector = _HandlerCollector()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, collector)
        return collector.handlers

    def _make_reflection(self) -> list[Any]:
        from grpc_health.v1 import health
        from grpc_reflection.v1alpha import reflection

        collector = _HandlerCollector()
        reflection.enable_server_reflection((self._service, health.SERVICE_NAME, reflection.SERVICE_NAME), collector)
        return collector.handlers


class _HandlerCollector:
    """Stands in for a server and collects the handlers added to it."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self.handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Ignore them: these are the same handlers by method name."""
