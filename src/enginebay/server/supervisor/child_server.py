"""Server processes as the supervisor sees them, and the program they run."""

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
from enginebay.server.supervisor.process_channel import ProcessChannel, RpcHandler
from enginebay.server.supervisor.server_instance import ServerInstance, ServerSetup
from enginebay.worker.client_side.worker_client import import_grpc

_START_TIMEOUT_S = 60.0
_SNAPSHOT_TIMEOUT_S = 2.0
_EXIT_TIMEOUT_S = 3.0


class ServerProcess:
    """One child: it inherits the listening socket and one end of a line to us."""

    def __init__(self, process: subprocess.Popen[bytes], line: ProcessChannel) -> None:
        self._process = process
        self.channel = line
        self._last_snapshot: Any = None
        self._missed_snapshots = 0  # questions in a row

    @classmethod
    async def start(
        cls, listening: socket.socket, setup: ServerSetup, handlers: Mapping[str, RpcHandler]
    ) -> ServerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [
                sys.executable,
                "-P",
                "-m",
                "enginebay.server.supervisor.child_server",
                str(listening.fileno()),
                str(theirs.fileno()),
            ]
            process = subprocess.Popen(
                command,
                pass_fds=(listening.fileno(), theirs.fileno()),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
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
    def silent_s(self) -> float:
        """How long it has said nothing at all; one question without an answer may be our own standstill."""
        return time.monotonic() - self.channel.last_received_at if self._missed_snapshots > 1 else 0.0

    async def snapshot(self) -> Any:
        """Its metrics; where it does not answer, those it last told, since counts must not fall and rise again."""
        self._missed_snapshots += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(_SNAPSHOT_TIMEOUT_S):
                self._last_snapshot = await self.channel.call("snapshot")
            self._missed_snapshots = 0
        return self._last_snapshot

    async def drain(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s + _EXIT_TIMEOUT_S):
                await self.channel.call("drain")
        except Exception:
            return  # it is closed next, whatever kept it

    async def close(self) -> None:
        await self.channel.close()  # the child ends when its line does
        if not await self._wait_exited():
            self._process.kill()
            await self._wait_exited()

    async def _wait_exited(self) -> bool:
        """After a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                while self._process.poll() is None:
                    await asyncio.sleep(0.02)
        return self._process.returncode is not None


# In the child


class _RemoteRateLimits:
    """Shares counted by the supervisor, for all processes together."""

    def __init__(self, line: ProcessChannel) -> None:
        self._channel = line

    async def take(self, key: ApiKey) -> RateLimitDecision:
        verdict: RateLimitDecision = await self._channel.call("take", key)
        return verdict

    def charge(self, key: ApiKey, tokens: int) -> None:
        self._channel.notify("charge", key, tokens)


class _RemoteFleet:
    """The supervisor's fleet, over the line to it. Implements `offers.FleetPort`."""

    def __init__(self, line: ProcessChannel) -> None:
        self._channel = line

    async def acquire(self, name: str, timeout_s: float | None = None, failed_address: str = "") -> ReplicaHandle:
        found: ReplicaHandle = await self._channel.call("want", name, timeout_s, failed_address)
        return found

    async def estimate_wait(self, name: str, *, preload: bool = False) -> WaitEstimate:
        found: WaitEstimate = await self._channel.call("look_ahead", name, preload)
        return found

    async def list_failures(self) -> dict[str, EnginebayError]:
        found: dict[str, EnginebayError] = await self._channel.call("troubles")
        return found

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        return await self._channel.call("order", command, arguments)


async def _serve(listening: socket.socket, control: socket.socket) -> None:
    instances: list[ServerInstance] = []

    async def start(setup: ServerSetup) -> None:
        await asyncio.to_thread(import_grpc)
        instance = ServerInstance(listening, setup, _RemoteFleet(line), _RemoteRateLimits(line), _scrape)
        await instance.start()
        instances.append(instance)

    async def configure(setup: ServerSetup) -> None:
        await instances[0].configure(setup)

    async def _scrape(_: ServerInstance) -> bytes:
        found: bytes = await line.call("scrape")
        return found

    async def snapshot() -> Any:
        return instances[0].snapshot()

    async def drain() -> None:
        await instances[0].drain()

    line = await ProcessChannel.open(
        control, {"start": start, "configure": configure, "snapshot": snapshot, "drain": drain}
    )
    await line.closed
    for instance in instances:
        await instance.close()


def main() -> None:
    import uvloop

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # the supervisor hears it too, and tells us
        signal.signal(number, signal.SIG_IGN)
    listening, control = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    uvloop.run(_serve(listening, control))
    os._exit(0)  # threads of libraries have nothing left to do


if __name__ == "__main__":
    main()
