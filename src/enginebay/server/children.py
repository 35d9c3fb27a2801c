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
from enginebay.fleet.model_client import Resident
from enginebay.fleet.outlook import Outlook
from enginebay.server.control import Handler, Line
from enginebay.server.instance import Instance, Setup
from enginebay.server.keys import Key
from enginebay.server.rates import Verdict
from enginebay.worker.client import import_grpc

_START_S = 60.0
_SNAPSHOT_S = 2.0
_END_S = 3.0


class ServerProcess:
    """One child: it inherits the listening socket and one end of a line to us."""

    def __init__(self, process: subprocess.Popen[bytes], line: Line) -> None:
        self._process = process
        self.line = line
        self._snapshot: Any = None
        self._unanswered = 0  # questions in a row

    @classmethod
    async def start(cls, listening: socket.socket, setup: Setup, handlers: Mapping[str, Handler]) -> ServerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [
                sys.executable,
                "-P",
                "-m",
                "enginebay.server.children",
                str(listening.fileno()),
                str(theirs.fileno()),
            ]
            process = subprocess.Popen(
                command,
                pass_fds=(listening.fileno(), theirs.fileno()),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        child = cls(process, await Line.open(ours, handlers))
        try:
            async with asyncio.timeout(_START_S):
                await child.line.call("start", setup)
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
        return time.monotonic() - self.line.heard_at if self._unanswered > 1 else 0.0

    async def snapshot(self) -> Any:
        """Its metrics; where it does not answer, those it last told, since counts must not fall and rise again."""
        self._unanswered += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(_SNAPSHOT_S):
                self._snapshot = await self.line.call("snapshot")
            self._unanswered = 0
        return self._snapshot

    async def drain(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s + _END_S):
                await self.line.call("drain")
        except Exception:
            return  # it is closed next, whatever kept it

    async def close(self) -> None:
        await self.line.close()  # the child ends when its line does
        if not await self._has_ended():
            self._process.kill()
            await self._has_ended()

    async def _has_ended(self) -> bool:
        """After a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while self._process.poll() is None:
                    await asyncio.sleep(0.02)
        return self._process.returncode is not None


# In the child


class _SharedRates:
    """Shares counted by the supervisor, for all processes together."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def take(self, key: Key) -> Verdict:
        verdict: Verdict = await self._line.call("take", key)
        return verdict

    def charge(self, key: Key, tokens: int) -> None:
        self._line.tell("charge", key, tokens)


class _SharedFleet:
    """The supervisor's fleet, over the line to it. Implements `offers.FleetPort`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def want(self, name: str, patience_s: float | None = None, broken: str = "") -> Resident:
        found: Resident = await self._line.call("want", name, patience_s, broken)
        return found

    async def look_ahead(self, name: str, *, wish: bool = False) -> Outlook:
        found: Outlook = await self._line.call("look_ahead", name, wish)
        return found

    async def troubles(self) -> dict[str, EnginebayError]:
        found: dict[str, EnginebayError] = await self._line.call("troubles")
        return found

    async def order(self, command: str, arguments: dict[str, Any]) -> Any:
        return await self._line.call("order", command, arguments)


async def _run(listening: socket.socket, control: socket.socket) -> None:
    instances: list[Instance] = []

    async def start(setup: Setup) -> None:
        await asyncio.to_thread(import_grpc)
        instance = Instance(listening, setup, _SharedFleet(line), _SharedRates(line), _scrape)
        await instance.start()
        instances.append(instance)

    async def configure(setup: Setup) -> None:
        await instances[0].configure(setup)

    async def _scrape(_: Instance) -> bytes:
        found: bytes = await line.call("scrape")
        return found

    async def snapshot() -> Any:
        return instances[0].snapshot()

    async def drain() -> None:
        await instances[0].drain()

    line = await Line.open(control, {"start": start, "configure": configure, "snapshot": snapshot, "drain": drain})
    await line.closed
    for instance in instances:
        await instance.close()


def main() -> None:
    import uvloop

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # the supervisor hears it too, and tells us
        signal.signal(number, signal.SIG_IGN)
    listening, control = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    uvloop.run(_run(listening, control))
    os._exit(0)  # threads of libraries have nothing left to do


if __name__ == "__main__":
    main()
