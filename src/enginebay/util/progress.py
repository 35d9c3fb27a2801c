"""Progress of long work: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from enginebay.util.child_processes import raise_if_interrupted
from enginebay.util.number_format import format_bytes

Say = Callable[[str], None]
Advance = Callable[[int], None]

FIRST_LINE_AFTER_S = 2.0
LINE_INTERVAL_S = 10.0


def say_nothing(_: str) -> None: ...


class ProgressSink:
    """A `Say` that also takes the progress in numbers."""

    def __call__(self, text: str) -> None:
        raise NotImplementedError

    def track(self, label: str, total: int | None, done: int) -> Advance:
        """Return a function to call with the number of bytes just done."""
        raise NotImplementedError


@contextmanager
def track_progress(label: str, total: int | None, say: Say | None, done: int = 0) -> Iterator[Advance]:
    """Yield a function to call with the number of bytes just done. It raises when the work was interrupted.

    Shows nothing if `say` is None.
    """
    if say is None or say is say_nothing:
        yield _make_interruptible(lambda _: None)
    elif isinstance(say, ProgressSink):
        yield _make_interruptible(say.track(label, total, done))
    elif sys.stderr.isatty():
        with _show_bar(label, total, done) as advance:
            yield _make_interruptible(advance)
    else:
        yield _make_interruptible(_print_lines(label, total, say, done))


def _make_interruptible(advance: Advance) -> Advance:
    def checked(count: int) -> None:
        raise_if_interrupted()
        advance(count)

    return checked


@contextmanager
def _show_bar(label: str, total: int | None, done: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class SpeedColumn(TextColumn):  # the library's has decimal units only
        def render(self, task: Task) -> Text:
            return Text(f"{format_bytes(task.finished_speed or task.speed or 0)}/s")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        SpeedColumn(""),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


def _print_lines(label: str, total: int | None, say: Say, done: int) -> Advance:
    started = time.monotonic()
    next_line = started + FIRST_LINE_AFTER_S

    def advance(count: int) -> None:
        nonlocal done, next_line
        done += count
        now = time.monotonic()
        if now >= next_line:
            next_line = now + LINE_INTERVAL_S
            of_total = f" of {format_bytes(total)}" if total else ""
            say(f"{label}: {format_bytes(done)}{of_total}" if done > 0 else f"{label}: {now - started:.0f} s")

    return advance
