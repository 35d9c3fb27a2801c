"""The HTTP side of one server process: its listener, its application, its sessions with the workers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from enginebay.config.server import ServerConfig
from enginebay.fleet.model_client import Resident
from enginebay.fleet.variants import Offering
from enginebay.server.app import App
from enginebay.server.context import Context, RateLimits
from enginebay.server.failures import refusal
from enginebay.server.http.listener import Listener
from enginebay.server.http.settings import HttpSettings
from enginebay.server.keys import Keyring
from enginebay.server.logs import Log
from enginebay.server.metrics import Metrics
from enginebay.server.offers import Catalogue, FleetPort, Offer
from enginebay.server.tracing import load_tracer

_WRITE_BUFFER_BYTES = 64 << 10  # what a connection holds beyond the kernel's own buffer before it counts as slow


@dataclass(frozen=True, slots=True)
class Setup:
    """What a server process is told at its start, and when the configuration has changed. Crosses the process border."""

    config: ServerConfig
    offerings: tuple[Offering, ...]
    keyring: Keyring
    max_wait_s: float = 300.0  # for a model that is not loaded
    share: int = 1  # how many processes divide the limits
    residents: Mapping[str, Resident] = field(default_factory=dict)  # variants that are awake now

    @property
    def keyless(self) -> bool:
        """Guarded by loopback alone."""
        return not self.keyring and not self.config.allow_without_key


class Instance:
    def __init__(
        self, sock: socket.socket, setup: Setup, fleet: FleetPort, rates: RateLimits,
        scrape: Callable[[Instance], Awaitable[bytes]], metrics: Metrics | None = None, log: Log | None = None,
    ) -> None:  # fmt: skip
        config = setup.config
        self.metrics = metrics or Metrics()
        self.log = log or make_log(config)
        self._setup = setup
        self._tracer = load_tracer(os.environ)
        self._context = Context(
            config=config,
            catalogue=Catalogue(self._offers(setup, ())),
            metrics=self.metrics,
            log=self.log,
            rates=rates,
            scrape=lambda: scrape(self),
            fleet=fleet,
            max_wait_s=setup.max_wait_s,
        )
        self._app = App(self._context, setup.keyring, self._tracer, keyless=setup.keyless)
        self._http = _http_settings(config)
        self._listener = Listener(sock, self._http, self._app)
        if self._tracer.note:
            self.log.event(self._tracer.note, level="warning")

    async def start(self) -> None:
        await self._meet(self._setup.residents)
        self._listener.start()

    def _offers(self, setup: Setup, known: Iterable[Offer]) -> list[Offer]:
        """Those that are offered as before keep their sessions and queues."""
        kept = {offer.name: offer for offer in known}
        return [self._offer(setup, one, kept.get(one.model)) for one in setup.offerings]

    def _offer(self, setup: Setup, offering: Offering, known: Offer | None) -> Offer:
        limits = setup.config.limits
        same = known is not None and limits == self._setup.config.limits
        if known is None or not same or known.offering.variants != offering.variants:
            return Offer(offering, limits, setup.share)
        known.offering = offering
        for session, kind in zip(known.sessions, offering.kinds, strict=True):
            session.kind = kind  # a variant keeps its name on another engine
            if session.served is not None:
                session.served.client.loras = offering.loras
        return known

    async def _meet(self, residents: Mapping[str, Resident]) -> None:
        """Sessions with what is awake, so that nobody has to wait for them."""
        limits = self._context.config.limits
        for offer in self._context.catalogue.offers.values():
            for session in offer.sessions:
                if session.name in residents:
                    await session.meet(residents[session.name], limits, self.metrics)

    async def configure(self, setup: Setup) -> None:
        """Take in another configuration. Answers under way go on as they began."""
        before = self._context.catalogue
        offers = self._offers(setup, before.offers.values())
        self._setup = setup
        self._context.config = setup.config
        self._context.max_wait_s = setup.max_wait_s
        self._context.catalogue = Catalogue(offers)
        self._app.keyring, self._app.keyless = setup.keyring, setup.keyless
        self._http.update(_http_settings(setup.config))
        await self._meet(setup.residents)
        for offer in before.offers.values():
            if offer not in offers:
                offer.retire()

    def snapshot(self) -> dict[str, object]:
        self.metrics.connections.child().set(len(self._listener.connections))
        offers = self._context.catalogue.offers.values()
        offered = {(offer.name, session.kind) for offer in offers for session in offer.sessions}
        for gauge in (self.metrics.requests_running, self.metrics.requests_waiting):
            gauge.drop_idle(offered)
        return self.metrics.snapshot()

    async def drain(self) -> bool:
        """Accept nothing more and let answers finish; gives back whether all did in time."""
        self._context.draining = True
        self._listener.stop_accepting()
        drain_s = self._context.config.drain_s
        try:
            async with asyncio.timeout(drain_s):
                await self._listener.drained()
        except TimeoutError:
            self.log.event("answers were cut off at the end of the drain", level="warning", drain_s=drain_s)
            return False
        return True

    async def close(self) -> None:
        await self._app.close()
        await self._listener.close()
        await self._context.catalogue.close()
        await asyncio.to_thread(self._tracer.close)
        self.log.close()


def make_log(config: ServerConfig) -> Log:
    return Log(config.log_format, config.log_level, config.log_prompts)  # type: ignore[arg-type]


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
