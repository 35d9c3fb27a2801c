"""SIGHUP at any time: handled once the server can reload."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from enginebay.server.supervisor import child_server
from enginebay.server.supervisor.shutdown_signals import ReloadSignal


@pytest.fixture(autouse=True)
def _restore_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("early", [0, 1, 3])
async def test_an_early_hangup_reloads_once_later(early: int) -> None:
    reload_signal, calls = ReloadSignal(), []
    for _ in range(early):
        os.kill(os.getpid(), signal.SIGHUP)
    reload_signal.subscribe(lambda: calls.append("reload"))
    assert len(calls) == min(early, 1)
    os.kill(os.getpid(), signal.SIGHUP)
    async with asyncio.timeout(30):
        while len(calls) < min(early, 1) + 1:
            await asyncio.sleep(0.01)


def test_server_processes_leave_signals_to_their_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reached(Exception):
        pass

    def reached(**_: object) -> None:
        raise Reached

    monkeypatch.setattr(child_server.sys, "argv", ["child_server", "3", "4"])
    monkeypatch.setattr(child_server.socket, "socket", reached)
    with pytest.raises(Reached):
        child_server.main()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        assert signal.getsignal(number) is signal.SIG_IGN
