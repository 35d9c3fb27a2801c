"""Server processes: the supervisor's handle on one, and the program that it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from enginebay.errors import EnginebayError
from enginebay.fleet.routing.model_client import ReplicaHandle
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate
from enginebay.server.auth.api_keys import ApiKey
from enginebay.server.auth.rate_limits import RateLimitDecision
from enginebay.server.requests.suspect_table import SuspectEvent
from enginebay.server.sessions.model_catalog import ReplicaDemand
from enginebay.server.supervisor.process_channel import ProcessChannel, RpcHandler
from enginebay.server.supervisor.server_instance import ServerInstance, ServerSetup
from enginebay.worker.client_side.worker_client import import_grpc

_START_TIMEOUT_S = 60.0
_SNAPSHOT_TIMEOUT_S = 2.0
_EXIT_TIMEOUT_S = 3.0


class ServerProcess:
    """A child process. It inherits the listening socket and one end of the channel."""

    def __init__(self, process: subprocess.Popen[bytes], channel: ProcessChannel) -> None:
        self._process = process
        self.channel = channel
        self.last_snapshot: Any = None  # of its metrics
        self._missed_snapshots = 0  # in a row

    @classmethod
    async def start(
        cls, listening: socket.socket, setup: ServerSetup, handlers: Mapping[str, RpcHandler]
    ) -> ServerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            fds = (listening.fileno(), theirs.fileno())
            command = [sys.executable, "-P", "-m", "enginebay.server.supervisor.child_server", *map(str, fds)]
            process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True)
        child = cls(process, await ProcessChannel.open(ours, handlers))
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await child.channel.call("start", setup)
        except BaseException:
            await child.close()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> dict[str, Any]:
        """How it exited, as fields of a log line. Empty while it runs."""
        code = self._process.returncode
        if code is None:
            return {}
        return {"exit_code": code} if code >= 0 else {"signal": _name_signal(-code)}

    @property
    def silent_s(self) -> float:
        """Time since its last message. 0 until two snapshots are missed: one may be our own event loop's delay."""
        return time.monotonic() - self.channel.last_received_at if self._missed_snapshots > 1 else 0.0

    async def snapshot(self) -> Any:
        """Return its metrics. On a timeout return the last ones, since counters must not drop."""
        self._missed_snapshots += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(_SNAPSHOT_TIMEOUT_S):
                self.last_snapshot = await self.channel.call("snapshot")
            self._missed_snapshots = 0
        return self.last_snapshot

    async def hold_admission(self, variant: str, address: str = "") -> None:
        await self.channel.call("hold_admission", variant, address)

    async def set_replicas(self, variant: str, replicas: tuple[ReplicaHandle, ...]) -> None:
        self.channel.notify("set_replicas", variant, replicas)

    async def exchange_loads(self, loads: Mapping[str, Mapping[str, int]]) -> ReplicaDemand:
        """Tell it the running requests. Return what waits in it; nothing if it does not answer in time."""
        with suppress(TimeoutError, EnginebayError):
            async with asyncio.timeout(_SNAPSHOT_TIMEOUT_S):
                demand: ReplicaDemand = await self.channel.call("exchange_loads", loads)
                return demand
        return ReplicaDemand()

    def release_admission(self, variant: str) -> None:
        self.channel.notify("release_admission", variant)

    async def drain(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s + _EXIT_TIMEOUT_S):
                await self.channel.call("drain")
        except Exception:
            return  # the caller closes it next

    async def close(self) -> None:
        await self.channel.close()  # the child exits when the channel closes
        if not await self._wait_exited():
            self._process.kill()
            await self._wait_exited()

    async def _wait_exited(self) -> bool:
        """Wait up to `_EXIT_TIMEOUT_S`. Return whether the process exited."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                while self._process.poll() is None:
                    await asyncio.sleep(0.02)
        return self._process.returncode is not None


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


# In the child


class _RemoteRateLimits:
    """Rate limits counted by the supervisor for all processes."""

    def __init__(self, channel: ProcessChannel) -> None:
        self._channel = channel

    async def take(self, key: ApiKey) -> RateLimitDecision:
        decision: RateLimitDecision = await self._channel.call("take", key)
        return decision

    def charge(self, key: ApiKey, tokens: int) -> None:
        self._channel.notify("charge", key, tokens)


class _RemoteFleet:
    """The supervisor's fleet over the channel. Implements `SupervisorGateway`."""

    def __init__(self, channel: ProcessChannel) -> None:
        self._channel = channel

    async def acquire(
        self, name: str, timeout_s: float | None = None, failed_address: str = "", queued: bool = True
    ) -> ReplicaHandle:
        replica: ReplicaHandle = await self._channel.call("acquire", name, timeout_s, failed_address, queued)
        return replica

    async def estimate_wait(self, name: str, *, preload: bool = False) -> WaitEstimate:
        estimate: WaitEstimate = await self._channel.call("estimate_wait", name, preload)
        return estimate

    async def list_failures(self) -> dict[str, EnginebayError]:
        failures: dict[str, EnginebayError] = await self._channel.call("list_failures")
        return failures

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        return await self._channel.call("run_admin_command", command, arguments)

    async def begin_trial(self, variant: str, trial: str, urgent: bool = False, address: str = "") -> None:
        await self._channel.call("begin_trial", variant, trial, urgent, address)

    def end_trial(self, variant: str, trial: str) -> None:
        self._channel.notify("end_trial", variant, trial)

    def share_suspect(self, event: SuspectEvent) -> None:
        self._channel.notify("share_suspect", event)


async def _serve(listening: socket.socket, control: socket.socket) -> None:
    instances: list[ServerInstance] = []

    async def start(setup: ServerSetup) -> None:
        await asyncio.to_thread(import_grpc)
        instance = ServerInstance(listening, setup, _RemoteFleet(channel), _RemoteRateLimits(channel), scrape)
        await instance.start()
        instances.append(instance)

    async def configure(setup: ServerSetup) -> None:
        await instances[0].configure(setup)

    async def scrape(_: ServerInstance) -> bytes:
        metrics: bytes = await channel.call("scrape")
        return metrics

    async def snapshot() -> Any:
        return instances[0].snapshot()

    async def drain() -> None:
        await instances[0].drain()

    async def hold_admission(variant: str, address: str) -> None:
        await instances[0].hold_admission(variant, address)

    async def set_replicas(variant: str, replicas: tuple[ReplicaHandle, ...]) -> None:
        if instances:  # else its setup has them
            await instances[0].set_replicas(variant, replicas)

    async def exchange_loads(loads: Mapping[str, Mapping[str, int]]) -> ReplicaDemand:
        return await instances[0].exchange_loads(loads)

    async def release_admission(variant: str) -> None:
        instances[0].release_admission(variant)

    async def apply_suspect(event: SuspectEvent) -> None:
        if event.sender != os.getpid():  # its own are applied already
            instances[0].crash_guard.table.apply(event)

    handlers: dict[str, RpcHandler] = {
        "start": start, "configure": configure, "snapshot": snapshot, "drain": drain, "hold_admission": hold_admission,
        "release_admission": release_admission, "apply_suspect": apply_suspect, "set_replicas": set_replicas,
        "exchange_loads": exchange_loads,
    }  # fmt: skip
    channel = await ProcessChannel.open(control, handlers)
    await channel.closed
    for instance in instances:
        await instance.close()


def main() -> None:
    import uvloop

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # the supervisor handles them
        signal.signal(number, signal.SIG_IGN)
    listening, control = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    uvloop.run(_serve(listening, control))
    os._exit(0)  # does not wait for library threads


if __name__ == "__main__":
    main()
