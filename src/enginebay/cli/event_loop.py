"""`asyncio.run` for commands. Defers signals while the loop is created, so that an interrupt leaves no traceback."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_loop(work: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> T:
    """Run a coroutine to completion in a new event loop."""
    runner = asyncio.Runner(loop_factory=loop_factory)
    try:
        with _defer_signals(signal.SIGINT, signal.SIGTERM):
            runner.get_loop()
        return runner.run(work)
    finally:
        runner.close()
        work.close()  # it may not have started


@contextmanager
def _defer_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Hold signals back and deliver them afterwards."""
    pending: list[int] = []
    before = {number: signal.signal(number, lambda number, _: pending.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for pending_number in pending:
        signal.raise_signal(pending_number)
