"""Owns the fleet and the listening socket, and serves: in this process, or in several that share both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from enginebay.config.resolved_config import Config
from enginebay.errors import EnginebayError
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.memory.memory_observed import ObservedResources
from enginebay.fleet.routing.variants import build_routes
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate
from enginebay.server.auth.api_keys import ApiKey, Keyring
from enginebay.server.auth.rate_limits import RateLimitDecision, RateLimiter
from enginebay.server.supervisor.admin_commands import AdminCommands
from enginebay.server.supervisor.child_server import ServerProcess
from enginebay.server.supervisor.desired_state import DesiredState
from enginebay.server.supervisor.listen_socket import start_listening
from enginebay.server.supervisor.process_channel import RpcHandler
from enginebay.server.supervisor.server_instance import ServerInstance, ServerSetup, open_log
from enginebay.server.supervisor.shutdown_signals import ReloadSignal, StopSignal
from enginebay.server.telemetry import prometheus_text
from enginebay.server.telemetry.fleet_observer import FleetObserver
from enginebay.server.telemetry.server_metrics import ServerMetrics, merge_snapshots
from enginebay.server.telemetry.worker_metrics import observe_workers
from enginebay.util.hardware import read_host
from enginebay.worker.client_side.worker_client import import_grpc

_CONFIGURE_TIMEOUT_S = 30.0
_CHECK_INTERVAL_S = 5.0  # between looks at server processes
_RESTART_DELAY_S = 0.5  # before another is started: one that cannot live must not keep us busy

ReportStatus = Callable[[str], None]


class LocalRateLimits:
    """Shares counted in this process."""

    def __init__(self) -> None:
        self._rates = RateLimiter()

    async def take(self, key: ApiKey) -> RateLimitDecision:
        return self._rates.take(key)

    def charge(self, key: ApiKey, tokens: int) -> None:
        self._rates.charge(key, tokens)


class Supervisor:
    """Implements `offers.FleetPort` for this process; server processes reach it over their lines."""

    def __init__(
        self, desired: DesiredState, sock: socket.socket, report: ReportStatus, on_ready: Callable[[list[Replica]], None],
        read_desired: Callable[[], DesiredState], read_keys: Callable[[Config], Keyring], reload_signal: ReloadSignal,
    ) -> None:  # fmt: skip
        config = desired.config
        self.desired = desired
        self._sock = sock
        self._report = report
        self._on_ready = on_ready
        self._metrics = ServerMetrics()
        self._log = open_log(config.server)
        self._observer = FleetObserver(self._log, self._metrics)
        self.fleet = Fleet(desired.variants, config.fleet, read_host(), ObservedResources.load(), self._observer)
        self._admin = AdminCommands(self.fleet, desired, self._apply, read_desired, read_keys)
        self._stop = StopSignal()
        self._reload_signal = reload_signal
        self._instance: ServerInstance | None = None
        self._children: list[ServerProcess] = []
        self._setup_version = 0  # of what server processes have been told

    # The fleet, for server processes

    async def acquire(self, name: str, timeout_s: float | None = None, failed_address: str = "") -> Any:
        return await self.fleet.acquire(name, timeout_s, failed_address)

    async def estimate_wait(self, name: str, preload: bool = False) -> WaitEstimate:
        if preload and not (place := self.fleet.get_replica(name)).ready:
            self.fleet.raise_if_unavailable(place)
            self.fleet.preload(name)
        return self.fleet.estimate_wait(name)

    async def list_failures(self) -> dict[str, EnginebayError]:
        return self.fleet.list_failures()

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        try:
            return await self._admin.execute(command, arguments)
        except EnginebayError as error:
            if command == "reload":  # whoever else looks after the server must learn of it, too
                self._log.log_event("the configuration stays as it was", level="error", error=str(error))
            raise

    # Serving

    async def serve(self) -> None:
        """Load what is to be loaded at the start, then serve until a signal."""
        try:
            if not await self._load_at_start():
                self._log.log_event("stopped", note="nothing was served yet")
                return
            await asyncio.to_thread(import_grpc)
            start_listening(self._sock)
            self._reload_signal.subscribe(lambda: asyncio.ensure_future(self._reload_on_signal()))
            if self.desired.config.server.workers == 1:
                await self._serve_in_process()
            else:
                await self._serve_in_children()
        finally:
            self._sock.close()
            await self._admin.close()
            await self.fleet.close()

    async def _load_at_start(self) -> bool:
        """False: a signal came first."""
        for variant in sorted(self.desired.variants, key=lambda one: not one.settings.pinned):
            if not variant.primary or variant.plan is None or variant.settings.load != "start":
                continue
            if not self.fleet.fits_without_eviction(variant.name) and any(
                place.ready for place in self.fleet.replicas.values()
            ):
                self._report(f"{variant.name} does not fit beside the others: it is loaded when it is asked for")
                continue
            self._report(f"loading {variant.model} on {variant.kind}")
            loading = asyncio.ensure_future(self.fleet.acquire(variant.name, float("inf"), queued=False))
            waited: set[asyncio.Future[Any]] = {loading, self._stop.requested}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.requested.done():
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)
                return False
            if loading.exception() is None or not self.desired.config.fallback_for(variant.model, variant.kind):
                await loading
        return True

    def _build_setup(self) -> ServerSetup:
        config = self.desired.config
        places = self.fleet.replicas.values()
        return ServerSetup(
            config.server,
            build_routes([place.variant for place in places]),
            self.desired.keyring,
            config.fleet.max_wait_s,
            config.server.workers,
            {place.name: place.worker.handle for place in places if place.ready and place.worker is not None},
        )

    def _mark_serving(self) -> None:
        self._on_ready(list(self.fleet.replicas.values()))
        self._observer.serving = True

    async def _observe_fleet(self) -> None:
        self._observer.update_gauges(self.fleet.replicas.values())
        await observe_workers(
            self._metrics, [place.worker for place in self.fleet.replicas.values() if place.worker is not None]
        )

    async def _serve_in_process(self) -> None:
        async def scrape(instance: ServerInstance) -> bytes:
            await self._observe_fleet()
            return prometheus_text.render_metrics(instance.snapshot())

        instance = ServerInstance(
            self._sock, self._build_setup(), self, LocalRateLimits(), scrape, self._metrics, self._log
        )
        self._instance = instance
        await instance.start()
        self._mark_serving()
        try:
            await self._stop.requested
            self._log_stopping()
            await instance.drain()
            self._log.log_event("stopped")
        finally:
            await instance.close()

    async def _serve_in_children(self) -> None:
        """Server processes share the socket; rates and metrics come together here."""
        handlers, children = self._build_handlers(RateLimiter()), self._children
        try:
            for _ in range(self.desired.config.server.workers):
                children.append(await self._start_child(handlers))
            self._mark_serving()
            await self._supervise_children(handlers)
            self._sock.close()  # with ours open, connections would wait for somebody to accept them
            self._log_stopping()
            drain_s = self.desired.config.server.drain_s
            await asyncio.gather(*(child.drain(drain_s) for child in children))
            self._log.log_event("stopped")
        finally:
            await asyncio.gather(*(child.close() for child in children))

    async def _supervise_children(self, handlers: dict[str, RpcHandler]) -> None:
        """Until a signal comes, all server processes are there and answer."""
        keeping = [asyncio.create_task(self._restart_child(place, handlers)) for place in range(len(self._children))]
        keeping.append(asyncio.create_task(self._watch_children()))
        try:
            await asyncio.wait({self._stop.requested, *keeping}, return_when=asyncio.FIRST_COMPLETED)
            for task in keeping:
                if task.done():
                    task.result()  # raises: of themselves they do not end
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def _restart_child(self, index: int, handlers: dict[str, RpcHandler]) -> None:
        """When the one there has ended, another takes its place."""
        while True:
            child = self._children[index]
            await asyncio.wait({child.channel.closed})
            await child.close()
            await asyncio.sleep(_RESTART_DELAY_S)
            with contextlib.suppress(EnginebayError, OSError, TimeoutError):  # else in the next round
                self._children[index] = await self._start_child(handlers)

    async def _watch_children(self) -> None:
        """One that stands still keeps those waiting whose connections it was given: it is ended, so that a new one comes."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            await asyncio.gather(*(self._check_child(child) for child in self._children))

    async def _check_child(self, child: ServerProcess) -> None:
        try:
            await child.snapshot()
        except EnginebayError:
            return  # it has gone, which is seen elsewhere, or could not: that is a word, too
        if child.silent_s > self.desired.config.fleet.hang_s:
            self._log.log_event(
                "a server process stood still", level="error", pid=child.pid, silent_s=round(child.silent_s)
            )
            await child.close()

    def _log_stopping(self) -> None:
        self._log.log_event("stopping", drain_s=self.desired.config.server.drain_s, note="once more ends at once")

    def _build_handlers(self, rates: RateLimiter) -> dict[str, RpcHandler]:
        async def take(key: ApiKey) -> RateLimitDecision:
            return rates.take(key)

        async def charge(key: ApiKey, tokens: int) -> None:
            rates.charge(key, tokens)

        async def scrape() -> bytes:
            await self._observe_fleet()
            found = await asyncio.gather(*(child.snapshot() for child in self._children), return_exceptions=True)
            snapshots: list[Any] = [one for one in found if not isinstance(one, BaseException | None)]
            return prometheus_text.render_metrics(merge_snapshots([self._metrics.snapshot(), *snapshots]))

        return {
            "take": take, "charge": charge, "scrape": scrape,
            "want": self.acquire, "look_ahead": self.estimate_wait, "troubles": self.list_failures, "order": self.run_admin_command,
        }  # fmt: skip

    # Changes while it serves

    async def _apply(self, wanted: DesiredState | None = None) -> None:
        """Tell server processes what has changed: the configuration, or the models and adapters that there are."""
        if wanted is not None:
            self.desired = wanted
            self.fleet.configure(wanted.config.fleet)
        self._setup_version += 1
        setup = self._build_setup()
        if self._instance is not None:
            await self._instance.configure(setup)
        await asyncio.gather(*(self._configure_child(child, setup) for child in self._children))

    async def _configure_child(self, child: ServerProcess, setup: ServerSetup) -> None:
        """One that does not take it in is ended: the next one starts with it."""
        try:
            async with asyncio.timeout(_CONFIGURE_TIMEOUT_S):
                await child.channel.call("configure", setup)
        except (EnginebayError, TimeoutError) as error:
            self._log.log_event("a server process did not take in a change", level="error", error=repr(error))
            await child.close()

    async def _start_child(self, handlers: dict[str, RpcHandler]) -> ServerProcess:
        """A server process that knows the latest, whatever has changed while it started."""
        changes = self._setup_version
        child = await ServerProcess.start(self._sock, self._build_setup(), handlers)
        try:
            if changes != self._setup_version:
                await self._configure_child(child, self._build_setup())
        except BaseException:  # nobody would know of it
            await child.close()
            raise
        return child

    async def _reload_on_signal(self) -> None:
        with contextlib.suppress(EnginebayError):  # which is in the log
            found = await self.run_admin_command("reload", {})
            self._log.log_event("configuration taken in", **found)
