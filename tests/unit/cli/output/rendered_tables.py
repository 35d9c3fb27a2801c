"""What every table keeps at every width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from enginebay.cli.output.table_layout import Column, render_table

WIDTHS = (80, 100, 120)
INDENT = 4


def check_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> str:
    """Render a table and assert that it fits and that no header, value or word of it is lost or broken."""
    header, body = render_table(columns, rows, width)
    lines = [*header, *body]
    assert [line for line in lines if cell_len(line) > width] == []
    assert [line for line in lines if line != line.rstrip()] == []
    shown = set(" ".join(lines).split())
    joined = "".join("".join(lines).split())
    for index, column in enumerate(columns):
        beside, below = set(column.title.split()) <= shown, set(f"{column.name}:".split()) <= shown
        assert beside or below or len(columns) == 2 or not any(row[index] for row in rows), column
    for word in {word for row in rows for cell in row for word in cell.split()}:
        assert word in shown or (cell_len(word) > width - INDENT and word in joined), (word, lines)
    return "\n".join(lines)
