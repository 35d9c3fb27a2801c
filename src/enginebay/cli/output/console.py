"""Console output: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from enginebay.errors import EnginebayError

if TYPE_CHECKING:
    from enginebay.cli.output.table_layout import Column


def emit_json(data: Any) -> None:
    """Print the result of a command with `--json`."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n")


def print_table(columns: Sequence[Column | str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: fitted to a terminal, tab-separated elsewhere."""
    from enginebay.cli.output.table_layout import render_table, render_tsv, to_cells, to_columns

    heads, cells = to_columns(columns), [to_cells(row) for row in rows]
    width = get_terminal_width()
    if width is None:
        lines = render_tsv(heads, cells)
    else:
        header, body = render_table(heads, cells, width)
        lines = [*map(_embolden, header), *body]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def get_terminal_width() -> int | None:
    """Return the columns of the terminal; None if stdout is none."""
    return max(shutil.get_terminal_size().columns, 1) if sys.stdout.isatty() else None


def _embolden(text: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not text else f"\x1b[1m{text}\x1b[0m"


def print_summary(text: str) -> None:
    """Print a line about a table: beside it on a terminal, apart from it on stderr where a program reads the table."""
    print(text, file=sys.stdout if sys.stdout.isatty() else sys.stderr, flush=True)


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
