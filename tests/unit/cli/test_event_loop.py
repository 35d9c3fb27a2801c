"""Signals while the event loop of a command starts."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator

import pytest

from enginebay.cli.event_loop import run_in_loop
from enginebay.cli.termination import Terminated, TerminationHandler


@pytest.fixture(autouse=True)
def _heeded() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    TerminationHandler().install()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def _answer() -> str:
    await asyncio.sleep(0)
    return "done"


def test_it_returns_the_result_and_restores_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run_in_loop(_answer()) == "done"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_while_the_loop_is_made(
    number: signal.Signals, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal during setup is delivered once the loop is complete, and nothing leaks."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    made: list[asyncio.AbstractEventLoop] = []

    def make() -> asyncio.AbstractEventLoop:
        signal.raise_signal(number)
        made.append(asyncio.new_event_loop())
        return made[0]

    with pytest.raises(raised):
        run_in_loop(_answer(), make)
    assert made[0].is_closed() and not unraisable


def test_an_interrupt_while_it_runs() -> None:
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(interrupted())
