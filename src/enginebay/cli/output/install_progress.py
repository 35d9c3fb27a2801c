"""Progress of an install: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from enginebay.cli.output.console import note

ProgressReporter = Callable[[str, str], None]
_PLAIN_EVERY_S = 10.0
_PLAIN_WIDTH = 100
_OTHER_COLUMNS = 12  # width of the spinner and the clock


@contextmanager
def show_progress(title: str) -> Iterator[ProgressReporter]:
    if sys.stderr.isatty():
        with _show_spinner(title) as report:
            yield report
    else:
        yield _make_line_reporter(title)


@contextmanager
def _show_spinner(title: str) -> Iterator[ProgressReporter]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title)

        def report(stage: str, line: str) -> None:
            text = " · ".join(part for part in (title, stage, line) if part)
            progress.update(task, description=text[: max(20, console.width - _OTHER_COLUMNS)])

        yield report


def _make_line_reporter(title: str) -> ProgressReporter:
    """Report each stage once, and progress within a long stage every few seconds."""
    started = time.monotonic()
    last_stage, last_printed_s = "", started

    def report(stage: str, line: str) -> None:
        nonlocal last_stage, last_printed_s
        now = time.monotonic()
        if stage != last_stage or (line and now - last_printed_s >= _PLAIN_EVERY_S):
            last_stage, last_printed_s = stage, now
            note(f"[{now - started:4.0f} s] {title}: {stage}{f': {line[:_PLAIN_WIDTH]}' if line else ''}")

    return report
