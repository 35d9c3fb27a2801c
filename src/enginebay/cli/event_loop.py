"""`asyncio.run` for commands: an interrupt never meets a loop that is half made, whose end would be a traceback."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_loop(work: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> T:
    runner = asyncio.Runner(loop_factory=loop_factory)
    try:
        with _defer_signals(signal.SIGINT, signal.SIGTERM):
            runner.get_loop()
        return runner.run(work)
    finally:
        runner.close()
        work.close()  # it may not have begun


@contextmanager
def _defer_signals(*numbers: signal.Signals) -> Iterator[None]:
    """What comes meanwhile has its effect afterwards."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for one in came:
        signal.raise_signal(one)
