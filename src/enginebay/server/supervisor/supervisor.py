"""Owns the fleet and the listening socket, and serves in this process or in several child processes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from enginebay.config.resolved_config import Config
from enginebay.errors import EnginebayError
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.crash_records import forgive_crashes
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.replica_scaler import find_ready, group_replicas, list_handles
from enginebay.fleet.memory.memory_observed import ObservedResources
from enginebay.fleet.routing.variants import build_routes
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate
from enginebay.server.auth.admin_token import AdminToken
from enginebay.server.auth.api_keys import ApiKey, Keyring
from enginebay.server.auth.rate_limits import RateLimitDecision, RateLimiter
from enginebay.server.requests.suspect_table import SuspectEvent, SuspectTable
from enginebay.server.state.state_client import check_state_file
from enginebay.server.supervisor.admin_commands import AdminCommands
from enginebay.server.supervisor.child_server import ServerProcess
from enginebay.server.supervisor.desired_state import DesiredState
from enginebay.server.supervisor.listen_socket import start_listening
from enginebay.server.supervisor.process_channel import RpcHandler
from enginebay.server.supervisor.replica_sharing import ReplicaSharing
from enginebay.server.supervisor.server_instance import ServerInstance, ServerSetup, open_log
from enginebay.server.supervisor.shutdown_signals import ReloadSignal, StopSignal
from enginebay.server.supervisor.trial_coordinator import TrialCoordinator
from enginebay.server.telemetry import prometheus_text
from enginebay.server.telemetry.fleet_observer import FleetObserver, observe_workers
from enginebay.server.telemetry.server_metrics import (
    ServerMetrics,
    Snapshot,
    add_hit_ratio,
    keep_counters,
    merge_snapshots,
    sum_family,
)
from enginebay.util.hardware import keep_gpus, read_host
from enginebay.worker.client_side.worker_client import import_grpc

_CONFIGURE_TIMEOUT_S = 30.0
_CHECK_INTERVAL_S = 5.0  # between health checks of server processes
_RESTART_DELAY_S = 0.5  # limits the restart rate of a process that crashes at once

ReportStatus = Callable[[str], None]


class LocalRateLimits:
    """Rate limits counted in this process."""

    def __init__(self) -> None:
        self._rates = RateLimiter()

    async def take(self, key: ApiKey) -> RateLimitDecision:
        return self._rates.take(key)

    def charge(self, key: ApiKey, tokens: int) -> None:
        self._rates.charge(key, tokens)


class Supervisor:
    """Implements `SupervisorGateway` for this process; server processes reach it over their channels."""

    def __init__(
        self, desired: DesiredState, sock: socket.socket, report: ReportStatus,
        on_ready: Callable[[list[Replica], dict[str, EnginebayError]], None], read_desired: Callable[[], DesiredState], read_keys: Callable[[Config], Keyring], reload_signal: ReloadSignal,
    ) -> None:  # fmt: skip
        config = desired.config
        self.desired = desired
        self._sock = sock
        self._admin_token = AdminToken(sock)
        self._report = report
        self._on_ready = on_ready
        self._metrics = ServerMetrics()
        self._log = open_log(config.server)
        self._observer = FleetObserver(self._log, self._metrics)
        host = read_host()
        keep_gpus(host.gpus)
        self.fleet = Fleet(desired.variants, config.fleet, host, ObservedResources.load(), self._observer)
        self._admin = AdminCommands(self.fleet, desired, self._apply, read_desired, read_keys)
        self._stop = StopSignal()
        self._reload_signal = reload_signal
        self._instance: ServerInstance | None = None
        self._children: list[ServerProcess] = []
        self._setup_version = 0  # of the last setup sent to server processes
        self._dead_counters: Snapshot = {}  # of server processes that died
        self._suspects = SuspectTable()  # for server processes that start later
        self._trials = TrialCoordinator(self._list_processes)
        self._sharing = ReplicaSharing(self.fleet, self._list_processes)

    # The fleet, for server processes

    async def acquire(
        self, name: str, timeout_s: float | None = None, failed_address: str = "", queued: bool = True
    ) -> Any:
        return await self.fleet.acquire(name, timeout_s, failed_address, queued=queued)

    async def estimate_wait(self, name: str, preload: bool = False) -> WaitEstimate:
        replica = self.fleet.get_replica(name)
        if preload and find_ready(self.fleet.list_copies(replica)) is None:
            self.fleet.raise_if_unavailable(replica)
            self.fleet.preload(name)
        return self.fleet.estimate_wait(name)

    async def list_failures(self) -> dict[str, EnginebayError]:
        return self.fleet.list_failures()

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        try:
            return await self._admin.execute(command, arguments)
        except EnginebayError as error:
            if command == "reload":  # other operators should see it too
                self._log.log_event("reload failed", level="error", error=str(error))
            raise

    async def begin_trial(self, variant: str, trial: str, urgent: bool = False, address: str = "") -> None:
        await self._trials.begin(variant, trial, urgent, address)

    def end_trial(self, variant: str, trial: str) -> None:
        self._trials.end(variant, trial)

    def _list_processes(self) -> Sequence[ServerInstance | ServerProcess]:
        """List the server processes that live: one that exited runs nothing."""
        if self._instance is not None:
            return [self._instance]
        return [child for child in self._children if not child.channel.closed.done()]

    def share_suspect(self, event: SuspectEvent) -> None:
        self._suspects.apply(event)
        for child in self._children:
            child.channel.notify("apply_suspect", event)
        replica = self.fleet.replicas.get(event.variant)
        if event.kind == "refused" and replica is not None:
            copies = self.fleet.list_copies(replica)
            for copy in copies:
                forgive_crashes(copy, event.addresses, self.fleet.config)
            if find_ready(copies) is None:
                self.fleet.preload(event.variant)

    # Serving

    async def serve(self) -> None:
        """Load the models marked `load: start`, then serve until a signal."""
        try:
            await asyncio.to_thread(check_state_file, self.desired.config.server.state)
            if not await self._load_at_start():
                self._log.log_event("stopped", note="before serving")
                return
            await asyncio.to_thread(import_grpc)
            start_listening(self._sock)
            self._sharing.start()
            self._reload_signal.subscribe(lambda: asyncio.ensure_future(self._reload_on_signal()))
            if self.desired.config.server.workers == 1:
                await self._serve_in_process()
            else:
                await self._serve_in_children()
        finally:
            self._sock.close()
            self._admin_token.remove()
            await self._sharing.close()
            await self._admin.close()
            await self.fleet.close()

    async def _load_at_start(self) -> bool:
        """Load models, pinned ones first. Return False if a stop signal came."""
        for variant in sorted(self.desired.variants, key=lambda variant: not variant.settings.pinned):
            if not variant.primary or variant.plan is None or variant.settings.load != "start":
                continue
            if not self.fleet.fits_without_eviction(variant.name) and any(
                replica.ready for replica in self.fleet.replicas.values()
            ):
                error = self.fleet.list_failures().get(variant.name)
                reason = f"{variant.name} does not fit alongside the others: it loads on its first request"
                self._report(reason if error is None else error.message)
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
        replicas = self.fleet.replicas.values()
        return ServerSetup(
            config.server,
            build_routes([replica.variant for replica in replicas if replica.number == 1]),
            self.desired.keyring,
            config.fleet.max_wait_s,
            config.server.workers,
            {name: list_handles(copies) for name, copies in group_replicas(replicas).items()},
            self._admin_token.text,
            self._suspects.list_events(),
            config.offline,
        )

    def _mark_serving(self) -> None:
        firsts = [replica for replica in self.fleet.replicas.values() if replica.number == 1]
        self._on_ready(firsts, self.fleet.list_failures())
        self._observer.serving = True

    async def _observe_fleet(self) -> None:
        self._observer.update_gauges(self.fleet.replicas.values())
        await observe_workers(
            self._metrics, [replica.worker for replica in self.fleet.replicas.values() if replica.worker is not None]
        )

    async def _serve_in_process(self) -> None:
        async def scrape(instance: ServerInstance) -> bytes:
            await self._observe_fleet()
            return prometheus_text.render_metrics(add_hit_ratio(instance.snapshot()))

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
        """Serve in child processes, which share the socket. Rate limits and metrics are combined here."""
        handlers, children = self._build_handlers(RateLimiter()), self._children
        try:
            for _ in range(self.desired.config.server.workers):
                children.append(await self._start_child(handlers))
            self._mark_serving()
            await self._supervise_children(handlers)
            self._sock.close()  # while it is open, new connections would wait in the backlog
            self._log_stopping()
            drain_s = self.desired.config.server.drain_s
            await asyncio.gather(*(child.drain(drain_s) for child in children))
            self._log.log_event("stopped")
        finally:
            await asyncio.gather(*(child.close() for child in children))

    async def _supervise_children(self, handlers: dict[str, RpcHandler]) -> None:
        """Keep all server processes alive and responsive until a stop signal."""
        tasks = [asyncio.create_task(self._restart_child(index, handlers)) for index in range(len(self._children))]
        tasks.append(asyncio.create_task(self._watch_children()))
        try:
            await asyncio.wait({self._stop.requested, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # raises: these tasks end only by an error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _restart_child(self, index: int, handlers: dict[str, RpcHandler]) -> None:
        """Restart the server process at `index` whenever it exits."""
        while True:
            child = self._children[index]
            await asyncio.wait({child.channel.closed})
            await child.close()
            self._record_exit(child)
            self._trials.end_all(child.pid)
            while self._children[index] is child:
                await asyncio.sleep(_RESTART_DELAY_S)
                with contextlib.suppress(EnginebayError, OSError, TimeoutError):  # retried in the next iteration
                    self._children[index] = await self._start_child(handlers)

    def _record_exit(self, child: ServerProcess) -> None:
        """Log that a server process died, and keep its counters: totals must not fall."""
        last, child.last_snapshot = child.last_snapshot, None
        held = {}
        if last is not None:
            self._dead_counters = merge_snapshots([self._dead_counters, keep_counters(last)])
            held["requests"] = int(
                sum(sum_family(last, f"enginebay_requests_{state}") for state in ("running", "waiting"))
            )
        self._log.log_event("server process died", level="error", pid=child.pid, **child.exit_status, **held)

    async def _watch_children(self) -> None:
        """Kill server processes that hang, so that they are restarted and release their connections."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            await asyncio.gather(*(self._check_child(child) for child in self._children))

    async def _check_child(self, child: ServerProcess) -> None:
        try:
            await child.snapshot()
        except EnginebayError:
            return  # it exited, which `_restart_child` handles, or it replied with an error and so is alive
        if child.silent_s > self.desired.config.fleet.hang_s:
            self._log.log_event("server process hung", level="error", pid=child.pid, silent_s=round(child.silent_s))
            await child.close()

    def _log_stopping(self) -> None:
        self._log.log_event("stopping", drain_s=self.desired.config.server.drain_s, note="signal again to force quit")

    def _build_handlers(self, rates: RateLimiter) -> dict[str, RpcHandler]:
        async def take(key: ApiKey) -> RateLimitDecision:
            return rates.take(key)

        async def charge(key: ApiKey, tokens: int) -> None:
            rates.charge(key, tokens)

        async def end_trial(variant: str, trial: str) -> None:
            self.end_trial(variant, trial)

        async def share_suspect(event: SuspectEvent) -> None:
            self.share_suspect(event)

        async def scrape() -> bytes:
            await self._observe_fleet()
            children = list(self._children)
            await asyncio.gather(*(child.snapshot() for child in children), return_exceptions=True)
            return prometheus_text.render_metrics(add_hit_ratio(self._merge_metrics(children)))

        return {
            "take": take, "charge": charge, "scrape": scrape, "acquire": self.acquire, "estimate_wait": self.estimate_wait,
            "list_failures": self.list_failures, "run_admin_command": self.run_admin_command,
            "begin_trial": self.begin_trial, "end_trial": end_trial, "share_suspect": share_suspect,
        }  # fmt: skip

    def _merge_metrics(self, children: Sequence[ServerProcess]) -> Snapshot:
        """Merge the metrics of all processes. One that died since its last report has only its counters."""
        snapshots = [
            keep_counters(child.last_snapshot) if child.channel.closed.done() else child.last_snapshot
            for child in children
            if child.last_snapshot is not None
        ]
        return merge_snapshots([self._metrics.snapshot(), self._dead_counters, *snapshots])

    # Changes at run time

    async def _apply(self, desired: DesiredState | None = None) -> None:
        """Send server processes a changed configuration, or changed models and adapters."""
        if desired is not None:
            self.desired = desired
            self.fleet.configure(desired.config.fleet)
        self._setup_version += 1
        setup = self._build_setup()
        if self._instance is not None:
            await self._instance.configure(setup)
        await asyncio.gather(*(self._configure_child(child, setup) for child in self._children))

    async def _configure_child(self, child: ServerProcess, setup: ServerSetup) -> None:
        """Configure a server process, or kill it if that fails: its replacement starts with the new setup."""
        try:
            async with asyncio.timeout(_CONFIGURE_TIMEOUT_S):
                await child.channel.call("configure", setup)
        except (EnginebayError, TimeoutError) as error:
            self._log.log_event("server process failed to apply a change", level="error", error=repr(error))
            await child.close()

    async def _start_child(self, handlers: dict[str, RpcHandler]) -> ServerProcess:
        """Start a server process with the latest setup, even if it changes meanwhile."""
        version = self._setup_version
        child = await ServerProcess.start(self._sock, self._build_setup(), handlers)
        try:
            if version != self._setup_version:
                await self._configure_child(child, self._build_setup())
            for event in self._suspects.list_events():  # some may be new since its setup
                child.channel.notify("apply_suspect", event)
        except BaseException:  # nothing else references it
            await child.close()
            raise
        return child

    async def _reload_on_signal(self) -> None:
        with contextlib.suppress(EnginebayError):  # already logged
            changes = await self.run_admin_command("reload", {})
            self._log.log_event("configuration reloaded", **changes)
