"""The HTTP side of one server process: its listener, its application, its sessions with the workers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from enginebay.config.server import ServerConfig
from enginebay.fleet.model_client import ModelClient, Resident
from enginebay.server.app import App
from enginebay.server.context import Context, RateLimits
from enginebay.server.failures import refusal
from enginebay.server.http.listener import Listener
from enginebay.server.http.settings import HttpSettings
from enginebay.server.keys import Keyring
from enginebay.server.logs import Log
from enginebay.server.metrics import Metrics
from enginebay.server.served import Catalogue, ServedModel
from enginebay.server.tracing import load_tracer

_WRITE_BUFFER_BYTES = 64 << 10  # what a connection holds beyond the kernel's own buffer before it counts as slow


@dataclass(frozen=True, slots=True)
class Setup:
    """What a server process is told at its start. Crosses the process border."""

    config: ServerConfig
    residents: tuple[Resident, ...]
    keyring: Keyring
    share: int = 1  # how many processes divide the limits

    @property
    def keyless(self) -> bool:
        """Guarded by loopback alone."""
        return not self.keyring and not self.config.allow_without_key


class Instance:
    def __init__(
        self, sock: socket.socket, setup: Setup, clients: Sequence[ModelClient], rates: RateLimits,
        scrape: Callable[[Instance], Awaitable[bytes]],
    ) -> None:  # fmt: skip
        config = setup.config
        self.metrics = Metrics()
        self.log = Log(config.log_format, config.log_level, config.log_prompts)  # type: ignore[arg-type]
        self.models = [ServedModel(client, config.limits, self.metrics, setup.share) for client in clients]
        self._tracer = load_tracer(os.environ)
        self._drain_s = config.drain_s
        self._context = Context(
            config=config,
            catalogue=Catalogue(self.models),
            metrics=self.metrics,
            log=self.log,
            rates=rates,
            scrape=lambda: scrape(self),
        )
        self._app = App(self._context, setup.keyring, self._tracer, keyless=setup.keyless)
        self._listener = Listener(sock, _http_settings(config), self._app)
        if self._tracer.note:
            self.log.event(self._tracer.note, level="warning")

    def start(self) -> None:
        self._listener.start()

    def snapshot(self) -> dict[str, object]:
        self.metrics.connections.child().set(len(self._listener.connections))
        return self.metrics.snapshot()

    async def drain(self) -> bool:
        """Accept nothing more and let answers finish; gives back whether all did in time."""
        self._context.draining = True
        self._listener.stop_accepting()
        try:
            async with asyncio.timeout(self._drain_s):
                await self._listener.drained()
        except TimeoutError:
            self.log.event("answers were cut off at the end of the drain", level="warning", drain_s=self._drain_s)
            return False
        return True

    async def close(self) -> None:
        await self._app.close()
        await self._listener.close()
        await asyncio.to_thread(self._tracer.close)
        self.log.close()


def _http_settings(config: ServerConfig) -> HttpSettings:
    limits = config.limits
    return HttpSettings(
        body_bytes=limits.body_bytes,
        header_bytes=limits.header_bytes,
        connections=limits.connections,
        header_timeout_s=limits.header_timeout_s,
        body_timeout_s=limits.body_timeout_s,
        keep_alive_s=limits.keep_alive_s,
        stall_timeout_s=limits.stall_timeout_s,
        write_buffer_bytes=_WRITE_BUFFER_BYTES,
        refusal=refusal,
    )
