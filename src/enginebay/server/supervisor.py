"""Owns the fleet and the listening socket, and serves: in this process, or in several that share both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from enginebay.config.model import Config
from enginebay.errors import EnginebayError
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.host import read_host
from enginebay.fleet.measured import Measured
from enginebay.fleet.outlook import Outlook
from enginebay.fleet.place import Place
from enginebay.fleet.variants import offerings
from enginebay.server import exposition
from enginebay.server.children import ServerProcess
from enginebay.server.control import Handler
from enginebay.server.fleet_events import FleetEvents
from enginebay.server.instance import Instance, Setup, make_log
from enginebay.server.keys import Key, Keyring
from enginebay.server.listening import listen
from enginebay.server.metrics import Metrics, merge
from enginebay.server.orders import Orders
from enginebay.server.rates import Rates, Verdict
from enginebay.server.signals import Hangups, Stop
from enginebay.server.wanted import Wanted
from enginebay.server.worker_metrics import observe_workers
from enginebay.worker.client import import_grpc

_CONFIGURE_S = 30.0
_LOOK_S = 5.0  # between looks at server processes
_AGAIN_S = 0.5  # before another is started: one that cannot live must not keep us busy

Say = Callable[[str], None]


class LocalRates:
    """Shares counted in this process."""

    def __init__(self) -> None:
        self._rates = Rates()

    async def take(self, key: Key) -> Verdict:
        return self._rates.take(key)

    def charge(self, key: Key, tokens: int) -> None:
        self._rates.charge(key, tokens)


class Supervisor:
    """Implements `offers.FleetPort` for this process; server processes reach it over their lines."""

    def __init__(
        self, wanted: Wanted, sock: socket.socket, say: Say, ready: Callable[[list[Place]], None],
        read_again: Callable[[], Wanted], read_keys: Callable[[Config], Keyring], hangups: Hangups,
    ) -> None:  # fmt: skip
        config = wanted.config
        self.wanted = wanted
        self._sock = sock
        self._say = say
        self._ready = ready
        self._metrics = Metrics()
        self._log = make_log(config.server)
        self._events = FleetEvents(self._log, self._metrics)
        self.fleet = Fleet(wanted.variants, config.fleet, read_host(), Measured.load(), self._events)
        self._orders = Orders(self.fleet, wanted, self._take_in, read_again, read_keys)
        self._stop = Stop()
        self._hangups = hangups
        self._instance: Instance | None = None
        self._children: list[ServerProcess] = []
        self._changes = 0  # of what server processes have been told

    # The fleet, for server processes

    async def want(self, name: str, patience_s: float | None = None, broken: str = "") -> Any:
        return await self.fleet.want(name, patience_s, broken)

    async def look_ahead(self, name: str, wish: bool = False) -> Outlook:
        if wish and not (place := self.fleet.place(name)).ready:
            self.fleet.refuse_in_trouble(place)
            self.fleet.wish(name)
        return self.fleet.outlook(name)

    async def troubles(self) -> dict[str, EnginebayError]:
        return self.fleet.troubles()

    async def order(self, command: str, arguments: dict[str, Any]) -> Any:
        try:
            return await self._orders.carry_out(command, arguments)
        except EnginebayError as error:
            if command == "reload":  # whoever else looks after the server must learn of it, too
                self._log.event("the configuration stays as it was", level="error", error=str(error))
            raise

    # Serving

    async def serve(self) -> None:
        """Load what is to be loaded at the start, then serve until a signal."""
        try:
            if not await self._load():
                self._log.event("stopped", note="nothing was served yet")
                return
            await asyncio.to_thread(import_grpc)
            listen(self._sock)
            self._hangups.listen(lambda: asyncio.ensure_future(self._hang_up()))
            if self.wanted.config.server.workers == 1:
                await self._serve_here()
            else:
                await self._serve_in_children()
        finally:
            self._sock.close()
            await self._orders.close()
            await self.fleet.close()

    async def _load(self) -> bool:
        """False: a signal came first."""
        for variant in sorted(self.wanted.variants, key=lambda one: not one.settings.pinned):
            if not variant.first or variant.plan is None or variant.settings.load != "start":
                continue
            if not self.fleet.fits(variant.name) and any(place.ready for place in self.fleet.places.values()):
                self._say(f"{variant.name} does not fit beside the others: it is loaded when it is asked for")
                continue
            self._say(f"loading {variant.model} on {variant.kind}")
            loading = asyncio.ensure_future(self.fleet.want(variant.name, float("inf"), queued=False))
            waited: set[asyncio.Future[Any]] = {loading, self._stop.asked}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.asked.done():
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)
                return False
            if loading.exception() is None or not self.wanted.config.fallback_for(variant.model, variant.kind):
                await loading
        return True

    def _setup(self) -> Setup:
        config = self.wanted.config
        places = self.fleet.places.values()
        return Setup(
            config.server,
            offerings([place.variant for place in places]),
            self.wanted.keyring,
            config.fleet.max_wait_s,
            config.server.workers,
            {place.name: place.worker.resident for place in places if place.ready and place.worker is not None},
        )

    def _serving(self) -> None:
        self._ready(list(self.fleet.places.values()))
        self._events.serving = True

    async def _observe(self) -> None:
        self._events.observe(self.fleet.places.values())
        await observe_workers(
            self._metrics, [place.worker for place in self.fleet.places.values() if place.worker is not None]
        )

    async def _serve_here(self) -> None:
        async def scrape(instance: Instance) -> bytes:
            await self._observe()
            return exposition.render(instance.snapshot())

        instance = Instance(self._sock, self._setup(), self, LocalRates(), scrape, self._metrics, self._log)
        self._instance = instance
        await instance.start()
        self._serving()
        try:
            await self._stop.asked
            self._log_stopping()
            await instance.drain()
            self._log.event("stopped")
        finally:
            await instance.close()

    async def _serve_in_children(self) -> None:
        """Server processes share the socket; rates and metrics come together here."""
        handlers, children = self._handlers(Rates()), self._children
        try:
            for _ in range(self.wanted.config.server.workers):
                children.append(await self._child(handlers))
            self._serving()
            await self._keep_all(handlers)
            self._sock.close()  # with ours open, connections would wait for somebody to accept them
            self._log_stopping()
            drain_s = self.wanted.config.server.drain_s
            await asyncio.gather(*(child.drain(drain_s) for child in children))
            self._log.event("stopped")
        finally:
            await asyncio.gather(*(child.close() for child in children))

    async def _keep_all(self, handlers: dict[str, Handler]) -> None:
        """Until a signal comes, all server processes are there and answer."""
        keeping = [asyncio.create_task(self._keep(place, handlers)) for place in range(len(self._children))]
        keeping.append(asyncio.create_task(self._watch()))
        try:
            await asyncio.wait({self._stop.asked, *keeping}, return_when=asyncio.FIRST_COMPLETED)
            for task in keeping:
                if task.done():
                    task.result()  # raises: of themselves they do not end
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def _keep(self, place: int, handlers: dict[str, Handler]) -> None:
        """When the one there has ended, another takes its place."""
        while True:
            child = self._children[place]
            await asyncio.wait({child.line.closed})
            await child.close()
            await asyncio.sleep(_AGAIN_S)
            with contextlib.suppress(EnginebayError, OSError, TimeoutError):  # else in the next round
                self._children[place] = await self._child(handlers)

    async def _watch(self) -> None:
        """One that stands still keeps those waiting whose connections it was given: it is ended, so that a new one comes."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.gather(*(self._look_at(child) for child in self._children))

    async def _look_at(self, child: ServerProcess) -> None:
        try:
            await child.snapshot()
        except EnginebayError:
            return  # it has gone, which is seen elsewhere, or could not: that is a word, too
        if child.silent_s > self.wanted.config.fleet.hang_s:
            self._log.event(
                "a server process stood still", level="error", pid=child.pid, silent_s=round(child.silent_s)
            )
            await child.close()

    def _log_stopping(self) -> None:
        self._log.event("stopping", drain_s=self.wanted.config.server.drain_s, note="once more ends at once")

    def _handlers(self, rates: Rates) -> dict[str, Handler]:
        async def take(key: Key) -> Verdict:
            return rates.take(key)

        async def charge(key: Key, tokens: int) -> None:
            rates.charge(key, tokens)

        async def scrape() -> bytes:
            await self._observe()
            found = await asyncio.gather(*(child.snapshot() for child in self._children), return_exceptions=True)
            snapshots: list[Any] = [one for one in found if not isinstance(one, BaseException | None)]
            return exposition.render(merge([self._metrics.snapshot(), *snapshots]))

        return {
            "take": take, "charge": charge, "scrape": scrape,
            "want": self.want, "look_ahead": self.look_ahead, "troubles": self.troubles, "order": self.order,
        }  # fmt: skip

    # Changes while it serves

    async def _take_in(self, wanted: Wanted | None = None) -> None:
        """Tell server processes what has changed: the configuration, or the models and adapters that there are."""
        if wanted is not None:
            self.wanted = wanted
            self.fleet.configure(wanted.config.fleet)
        self._changes += 1
        setup = self._setup()
        if self._instance is not None:
            await self._instance.configure(setup)
        await asyncio.gather(*(self._configure(child, setup) for child in self._children))

    async def _configure(self, child: ServerProcess, setup: Setup) -> None:
        """One that does not take it in is ended: the next one starts with it."""
        try:
            async with asyncio.timeout(_CONFIGURE_S):
                await child.line.call("configure", setup)
        except (EnginebayError, TimeoutError) as error:
            self._log.event("a server process did not take in a change", level="error", error=repr(error))
            await child.close()

    async def _child(self, handlers: dict[str, Handler]) -> ServerProcess:
        """A server process that knows the latest, whatever has changed while it started."""
        changes = self._changes
        child = await ServerProcess.start(self._sock, self._setup(), handlers)
        try:
            if changes != self._changes:
                await self._configure(child, self._setup())
        except BaseException:  # nobody would know of it
            await child.close()
            raise
        return child

    async def _hang_up(self) -> None:
        with contextlib.suppress(EnginebayError):  # which is in the log
            found = await self.order("reload", {})
            self._log.event("configuration taken in", **found)
