"""Console output: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from enginebay.errors import EnginebayError


def emit_json(data: Any) -> None:
    """Print the result of a command with `--json`."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print aligned columns, with cells wrapped to the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    # A pipe gets whole names and paths; only a terminal needs wrapping.
    width = None if sys.stdout.isatty() else 10_000
    Console(soft_wrap=False, highlight=False, markup=False, width=width).print(table)


def note(text: str) -> None:
    """Print a line on stderr that is not part of the result."""
    print(text, file=sys.stderr, flush=True)


def redraw_line(text: str = "") -> None:
    """Replace the current line of the terminal on stderr."""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def print_error(error: EnginebayError) -> int:
    """Print an error with its hint; return its exit code."""
    note(f"bay: {error.message}")
    if error.hint:
        note(f"     {error.hint}")
    return error.exit_code
