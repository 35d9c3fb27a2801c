"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from enginebay.errors import EnginebayError


def emit_json(data: Any) -> None:
    """The machine-readable answer of a command that has `--json`."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows for a person: aligned columns, cells wrapped to the terminal."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*("" if cell is None else str(cell) for cell in row))
    # Whoever reads a pipe wants whole names and paths; only a terminal has an edge.
    width = None if sys.stdout.isatty() else 10_000
    Console(soft_wrap=False, highlight=False, markup=False, width=width).print(shown)


def note(text: str) -> None:
    """A line for the person at the terminal that is not part of the result."""
    print(text, file=sys.stderr, flush=True)


def print_error(error: EnginebayError) -> int:
    """Say what is wrong and what to do; give back the exit code."""
    note(f"bay: {error.message}")
    if error.hint:
        note(f"     {error.hint}")
    return error.exit_code
