"""Owns the workers and the listening socket, and serves: in this process, or in several that share both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from enginebay.config.model import Config
from enginebay.errors import EnginebayError
from enginebay.fleet.model_worker import ModelWorker
from enginebay.fleet.plan import Plan
from enginebay.server import exposition
from enginebay.server.children import ServerProcess
from enginebay.server.control import Handler
from enginebay.server.instance import Instance, Setup
from enginebay.server.keys import Key, Keyring
from enginebay.server.listening import listen
from enginebay.server.metrics import Metrics, merge
from enginebay.server.rates import Rates, Verdict
from enginebay.server.signals import Stop
from enginebay.server.worker_metrics import observe_workers
from enginebay.worker.client import import_grpc

Say = Callable[[str], None]


class LocalRates:
    """Shares counted in this process."""

    def __init__(self) -> None:
        self._rates = Rates()

    async def take(self, key: Key) -> Verdict:
        return self._rates.take(key)

    def charge(self, key: Key, tokens: int) -> None:
        self._rates.charge(key, tokens)


async def serve(
    config: Config, plans: Sequence[Plan], keyring: Keyring, sock: socket.socket, say: Say, ready: Callable[[list[ModelWorker]], None]
) -> None:  # fmt: skip
    """Load the models, then serve until a signal. `ready` is called once requests are answered."""
    stop = Stop()
    workers: list[ModelWorker] = []
    try:
        for plan in plans:
            say(f"loading {plan.model} on {plan.spec.kind}")
            sampling = config.sampling_for(plan.spec.kind, plan.model)
            opening = asyncio.ensure_future(ModelWorker.open(plan, sampling))
            waited: set[asyncio.Future[Any]] = {opening, stop.asked}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if stop.asked.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                return
            workers.append(await opening)
        await asyncio.to_thread(import_grpc)
        setup = Setup(config.server, tuple(worker.resident for worker in workers), keyring, config.server.workers)
        listen(sock)
        if config.server.workers == 1:
            await _serve_here(sock, setup, workers, stop, lambda: ready(workers))
        else:
            await _serve_in_children(sock, setup, workers, stop, lambda: ready(workers))
    finally:
        sock.close()
        await asyncio.gather(*(worker.close() for worker in workers))


async def _serve_here(
    sock: socket.socket, setup: Setup, workers: Sequence[ModelWorker], stop: Stop, ready: Callable[[], None]
) -> None:
    async def scrape(instance: Instance) -> bytes:
        await observe_workers(instance.metrics, workers)
        return exposition.render(instance.snapshot())

    instance = Instance(sock, setup, workers, LocalRates(), scrape)
    instance.start()
    ready()
    try:
        await stop.asked
        instance.log.event("stopping", drain_s=setup.config.drain_s, note="once more ends at once")
        await instance.drain()
        instance.log.event("stopped")
    finally:
        await instance.close()


async def _serve_in_children(
    sock: socket.socket, setup: Setup, workers: Sequence[ModelWorker], stop: Stop, ready: Callable[[], None]
) -> None:
    """Server processes share the socket; rates and metrics come together here."""
    rates = Rates()
    own = Metrics()
    children: list[ServerProcess] = []

    async def take(key: Key) -> Verdict:
        return rates.take(key)

    async def charge(key: Key, tokens: int) -> None:
        rates.charge(key, tokens)

    async def scrape() -> bytes:
        await observe_workers(own, workers)
        found = await asyncio.gather(*(child.line.call("snapshot") for child in children), return_exceptions=True)
        snapshots: list[Any] = [one for one in found if not isinstance(one, BaseException)]
        return exposition.render(merge([own.snapshot(), *snapshots]))

    handlers: dict[str, Handler] = {"take": take, "charge": charge, "scrape": scrape}
    try:
        for _ in range(setup.config.workers):
            children.append(await ServerProcess.start(sock, setup, handlers))
        ready()
        while not stop.asked.done():
            await asyncio.wait(
                {stop.asked, *(child.line.closed for child in children)}, return_when=asyncio.FIRST_COMPLETED
            )
            for place, child in enumerate(children):
                if child.line.closed.done() and not stop.asked.done():
                    await child.close()
                    await asyncio.wait({stop.asked}, timeout=0.5)  # one that cannot live must not keep us busy
                    with contextlib.suppress(EnginebayError, OSError, TimeoutError):  # else once more in the next round
                        children[place] = await ServerProcess.start(sock, setup, handlers)
        sock.close()  # with ours open, connections would wait for somebody to accept them
        await asyncio.gather(*(child.drain(setup.config.drain_s) for child in children))
    finally:
        await asyncio.gather(*(child.close() for child in children))
