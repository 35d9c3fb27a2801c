"""The HTTP side of one server process: listener, application and sessions with the workers."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from enginebay.config.sections.server_section import ServerConfig
from enginebay.errors import WorkerDied
from enginebay.fleet.routing.model_client import ReplicaHandle
from enginebay.fleet.routing.variants import ModelRoute
from enginebay.server.api.app import App
from enginebay.server.api.openai.responses_api.background import BackgroundRuns
from enginebay.server.api.request_dialect import encode_http_refusal
from enginebay.server.api.routes import ROUTES
from enginebay.server.auth.api_keys import Keyring
from enginebay.server.http.form_parser import FormLimits
from enginebay.server.http.http_settings import HttpSettings
from enginebay.server.http.listener import HttpListener
from enginebay.server.requests.crash_guard import CrashGuard, TrialGateway
from enginebay.server.requests.server_context import RateLimitsClient, ServerContext
from enginebay.server.requests.suspect_table import SuspectEvent
from enginebay.server.sessions.admission_queue import AdmissionQueue
from enginebay.server.sessions.model_catalog import (
    CatalogEntry,
    FleetGateway,
    ModelCatalog,
    ReplicaDemand,
    VariantConnector,
)
from enginebay.server.state.state_client import StateClient, state_dir
from enginebay.server.telemetry.server_log import ServerLog
from enginebay.server.telemetry.server_metrics import ServerMetrics
from enginebay.server.telemetry.tracing import load_tracer

_TOKENIZER_SLOTS = min(8, max(2, (os.cpu_count() or 2) // 2))  # large bodies that a process tokenizes at once
_GC_THRESHOLDS = (10_000, 20, 50)  # the defaults of Python 3.11: 700, 10, 10
_WRITE_BUFFER_BYTES = 64 << 10  # beyond the kernel's buffer; a connection that exceeds it counts as congested


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """A server process's configuration, sent at its start and on changes. Pickled."""

    config: ServerConfig
    model_routes: tuple[ModelRoute, ...]
    keyring: Keyring
    max_wait_s: float = 300.0  # for a model that is not loaded
    processes: int = 1  # number of processes that share the limits
    replicas: Mapping[str, tuple[ReplicaHandle, ...]] = field(default_factory=dict)  # ready now, by variant
    admin_token: str = field(default="", repr=False)  # for /admin without keys
    suspects: tuple[SuspectEvent, ...] = ()  # known at its start
    offline: bool = False  # never use the network

    @property
    def keyless(self) -> bool:
        """Whether the server accepts local clients only, without keys."""
        return not self.keyring and not self.config.allow_without_key


class SupervisorGateway(FleetGateway, TrialGateway, Protocol):
    """Access to the supervisor, in this process or another."""


def _collect_garbage_less_often() -> None:
    """Collections at the usual rate took a ninth of a request's time, mostly to look at modules and tables again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class ServerInstance:
    def __init__(
        self, sock: socket.socket, setup: ServerSetup, fleet: SupervisorGateway, rates: RateLimitsClient,
        scrape: Callable[[ServerInstance], Awaitable[bytes]], metrics: ServerMetrics | None = None, log: ServerLog | None = None,
    ) -> None:  # fmt: skip
        config = setup.config
        self.metrics = metrics or ServerMetrics()
        self.log = log or open_log(config)
        self._setup = setup
        self._tracer = load_tracer(os.environ)
        self._holds: dict[str, tuple[str, Callable[[], None]]] = {}  # by variant: a worker address, how to end it
        self.crash_guard = CrashGuard(fleet, self.metrics, self.log)
        for event in setup.suspects:
            self.crash_guard.table.apply(event)
        state = StateClient(state_dir(), config.state) if config.state.enabled else None
        self._context = ServerContext(
            config=config,
            catalog=ModelCatalog(self._build_entries(setup, ())),
            metrics=self.metrics,
            log=self.log,
            rate_limits=rates,
            scrape=lambda: scrape(self),
            fleet=fleet,
            max_wait_s=setup.max_wait_s,
            routes=ROUTES,
            crash_guard=self.crash_guard,
            offline=setup.offline,
            state=state,
            background=BackgroundRuns(state) if state is not None else None,
            tokenizer_queue=AdmissionQueue(_TOKENIZER_SLOTS, config.limits.queue, config.limits.queue_timeout_s),
        )
        self._app = App(
            self._context, setup.keyring, self._tracer, keyless=setup.keyless, admin_token=setup.admin_token
        )
        self._http = _build_http_settings(config)
        self._listener = HttpListener(sock, self._http, self._app)
        if self._tracer.note:
            self.log.log_event(self._tracer.note, level="warning")

    async def start(self) -> None:
        await self._connect_replicas(self._setup.replicas)
        _collect_garbage_less_often()
        self._listener.start()

    def _build_entries(self, setup: ServerSetup, known: Iterable[CatalogEntry]) -> list[CatalogEntry]:
        """Build the catalog entries. Unchanged models keep their sessions and queues."""
        by_name = {entry.name: entry for entry in known}
        return [self._build_or_keep_entry(setup, route, by_name.get(route.model)) for route in setup.model_routes]

    def _build_or_keep_entry(self, setup: ServerSetup, route: ModelRoute, known: CatalogEntry | None) -> CatalogEntry:
        limits = setup.config.limits
        same = known is not None and limits == self._setup.config.limits
        if known is None or not same or known.route.variants != route.variants:
            return CatalogEntry(route, limits, setup.processes)
        known.route = route
        for connector, kind in zip(known.connectors, route.kinds, strict=True):
            connector.kind = kind  # a variant keeps its name on another engine
            connector.set_loras(route.loras)
        return known

    async def _connect_replicas(self, replicas: Mapping[str, tuple[ReplicaHandle, ...]]) -> None:
        """Open sessions with the ready replicas, so that no request has to."""
        limits = self._context.config.limits
        for connector in self._list_connectors():
            for replica in replicas.get(connector.name, ()):
                with suppress(WorkerDied):  # the next request finds another
                    await connector.connect(replica, limits, self.metrics)

    def _list_connectors(self) -> list[VariantConnector]:
        return [connector for entry in self._context.catalog.entries.values() for connector in entry.connectors]

    # Models with several replicas

    async def set_replicas(self, variant: str, replicas: tuple[ReplicaHandle, ...]) -> None:
        """Use exactly these replicas of a variant."""
        for connector in self._list_connectors():
            if connector.name == variant:
                await connector.set_replicas(replicas, self._context.config.limits, self.metrics)

    async def exchange_loads(self, loads: Mapping[str, Mapping[str, int]]) -> ReplicaDemand:
        """Note the running requests of variants by worker address, and say what waits here."""
        connectors = [connector for connector in self._list_connectors() if connector.name in loads]
        outdated = tuple(connector.name for connector in connectors if connector.note_loads(loads[connector.name]))
        return ReplicaDemand({connector.name: connector.queue.waiting for connector in connectors}, outdated)

    async def configure(self, setup: ServerSetup) -> None:
        """Apply another configuration. Responses in progress are not affected."""
        before = self._context.catalog
        entries = self._build_entries(setup, before.entries.values())
        self._setup = setup
        self._context.config = setup.config
        self._context.max_wait_s = setup.max_wait_s
        self._context.offline = setup.offline
        self._context.catalog = ModelCatalog(entries)
        self._app.keyring, self._app.keyless = setup.keyring, setup.keyless
        self._http.update(_build_http_settings(setup.config))
        await self._connect_replicas(setup.replicas)
        for entry in before.entries.values():
            if entry not in entries:
                entry.retire()

    async def hold_admission(self, variant: str, address: str = "") -> None:
        """Send no request to the variant's worker at this address, or to none if it is the only one. Wait until it is idle."""
        if variant in self._holds and self._holds[variant][0] != address:
            self.release_admission(variant)
        connector = next((one for one in self._list_connectors() if one.name == variant), None)
        if connector is None:
            return
        if variant not in self._holds:
            if connector.reserve(address):
                self._holds[variant] = address, connector.end_reservation
            else:
                connector.queue.hold()
                self._holds[variant] = address, connector.queue.release
        if connector.is_reserved(address):
            await connector.wait_idle(address)
        else:
            await connector.queue.wait_idle()

    def release_admission(self, variant: str) -> None:
        _, release = self._holds.pop(variant, ("", lambda: None))
        release()

    def snapshot(self) -> dict[str, object]:
        self.metrics.connections.child().set(len(self._listener.connections))
        entries = self._context.catalog.entries.values()
        served = {(entry.name, connector.kind) for entry in entries for connector in entry.connectors}
        for gauge in (self.metrics.requests_running, self.metrics.requests_waiting):
            gauge.drop_idle_children(served)
        return self.metrics.snapshot()

    async def drain(self) -> bool:
        """Stop accepting and wait for responses to finish. Return whether all finished within `drain_s`."""
        self._context.draining = True
        self._listener.stop_accepting()
        drain_s = self._context.config.drain_s
        try:
            async with asyncio.timeout(drain_s):
                await self._listener.wait_drained()
                await self._app.wait_idle()
        except TimeoutError:
            self.log.log_event("drain timed out, responses aborted", level="warning", drain_s=drain_s)
            return False
        return True

    async def close(self) -> None:
        await self._app.close()
        await self._listener.close()
        await self._context.catalog.close()
        await self._close_state()
        await asyncio.to_thread(self._tracer.close)
        self.log.close()

    async def _close_state(self) -> None:
        if self._context.background is not None:
            self._context.background.close()
        if self._context.state is not None:
            await asyncio.to_thread(self._context.state.close)


def open_log(config: ServerConfig) -> ServerLog:
    return ServerLog(config.log_format, config.log_level, config.log_prompts)  # type: ignore[arg-type]


def _build_http_settings(config: ServerConfig) -> HttpSettings:
    limits = config.limits
    return HttpSettings(
        max_body_bytes=limits.body_bytes,
        max_header_bytes=limits.header_bytes,
        max_connections=limits.connections,
        header_timeout_s=limits.header_timeout_s,
        body_timeout_s=limits.body_timeout_s,
        keep_alive_s=limits.keep_alive_s,
        stall_timeout_s=limits.stall_timeout_s,
        write_buffer_bytes=_WRITE_BUFFER_BYTES,
        max_buffered_bytes=limits.body_buffer_bytes,
        max_client_buffered_bytes=limits.client_body_buffer_bytes,
        max_unread_bytes=limits.unread_bytes,
        encode_refusal=encode_http_refusal,
        form_limits=FormLimits(
            limits.form_parts, limits.form_field_bytes, limits.form_header_bytes, limits.form_name_chars
        ),
        max_form_disk_bytes=limits.form_disk_bytes,
        max_client_form_disk_bytes=limits.client_form_disk_bytes,
        max_websockets=limits.websockets,
        max_client_websockets=limits.client_websockets,
        websocket_idle_s=limits.websocket_idle_s,
    )
