"""Lays out tables: tab-separated for a pipe, fitted to the width of a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

_GAP = 2
_READABLE = 20  # a column is wrapped to this width, not below
_LONG_WORD = 32  # a wider one, such as a path, follows its row instead of widening its column
_CHUNKS = re.compile(r"[^/,=:@._-]*[/,=:@._-]*")  # where a word wider than the line may be broken


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Where it has no room, its values follow their rows as `name: value`.

    Columns of the highest rank give way first, all together; those of rank 0 one by one from the right.
    """

    name: str
    rank: int = 0
    right: bool = False  # aligned to the right
    detail: bool = False  # never beside the others: its values follow their rows

    @property
    def title(self) -> str:
        return self.name.upper()


def to_columns(columns: Sequence[Column | str]) -> list[Column]:
    return [column if isinstance(column, Column) else Column(column) for column in columns]


def to_cells(row: Sequence[Any]) -> list[str]:
    """Convert values to text without tabs and line breaks."""
    return ["" if cell is None else re.sub(r"[\t\r\n]+", " ", str(cell)) for cell in row]


def render_tsv(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the header and one line per row, separated by tabs."""
    return ["\t".join(cells) for cells in ([column.title for column in columns], *rows)]


def render_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Return the lines of the header and of the rows, none wider than `width`. Loses no text."""
    texts = [[column.title, *(row[index] for row in rows)] for index, column in enumerate(columns)]
    natural = [max(map(cell_len, column)) for column in texts]
    least = [
        max(_measure_words(texts[index], _LONG_WORD if index else width), min(size, _READABLE))
        for index, size in enumerate(natural)
    ]
    shown = _select_columns(columns, least, width)
    sizes = _fit_sizes(shown, natural, least, width)
    if empty := {index for index in shown[1:] if all(_has_no_room(row[index], sizes[index]) for row in rows)}:
        shown = [index for index in shown if index not in empty or not rows]
        sizes = _fit_sizes(shown, natural, least, width)
    fitted, rights = [sizes[index] for index in shown], [columns[index].right for index in shown]
    body: list[str] = []
    for row in rows:
        below = {index for index, cell in enumerate(row) if index and _has_no_room(cell, sizes.get(index, 0))}
        body += _render_row(["" if index in below else row[index] for index in shown], fitted, rights)
        body += _render_details([(_label_detail(columns, index), row[index]) for index in sorted(below)], width)
    return _render_row([columns[index].title for index in shown], fitted, rights), body


def _measure_words(texts: Sequence[str], longest: int) -> int:
    """Return the width of the widest word, of those that are not wider than `longest`."""
    sizes = (cell_len(word) for text in texts for word in text.split())
    return max((size for size in sizes if size <= longest), default=0)


def _has_no_room(cell: str, size: int) -> bool:
    """Return whether a cell would be broken within a word."""
    return any(cell_len(word) > size for word in cell.split())


def _label_detail(columns: Sequence[Column], index: int) -> str:
    return "" if len(columns) == 2 else f"{columns[index].name}: "


def _select_columns(columns: Sequence[Column], least: Sequence[int], width: int) -> list[int]:
    """Return the columns that fit side by side. The first always stays."""
    shown = [index for index, column in enumerate(columns) if not column.detail]
    while len(shown) > 1 and sum(least[index] + _GAP for index in shown) - _GAP > width:
        rank = max(columns[index].rank for index in shown[1:])
        leaving = {index for index in shown[1:] if columns[index].rank == rank} if rank else {shown[-1]}
        shown = [index for index in shown if index not in leaving]
    return shown


def _fit_sizes(shown: Sequence[int], natural: Sequence[int], least: Sequence[int], width: int) -> dict[int, int]:
    """Return the width of each column, the widest ones narrowed until all fit."""
    sizes, room = {index: natural[index] for index in shown}, width - _GAP * (len(shown) - 1)
    if len(shown) == 1:
        return {shown[0]: min(natural[shown[0]], room)}
    while sum(sizes.values()) > room:
        widest = max((index for index in shown if sizes[index] > least[index]), key=sizes.__getitem__)
        sizes[widest] -= 1
    return sizes


def _render_row(cells: Sequence[str], sizes: Sequence[int], rights: Sequence[bool]) -> list[str]:
    wrapped = [wrap_text(cell, size) for cell, size in zip(cells, sizes, strict=True)]
    lines = []
    for number in range(max(map(len, wrapped))):
        parts = [_pad(cell[number] if number < len(cell) else "", size, right)
                 for cell, size, right in zip(wrapped, sizes, rights, strict=True)]  # fmt: skip
        lines.append((" " * _GAP).join(parts).rstrip())
    return lines


def _pad(text: str, size: int, right: bool) -> str:
    space = " " * (size - cell_len(text))
    return f"{space}{text}" if right else f"{text}{space}"


def _render_details(pairs: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return indented lines of labels and values, as many to a line as fit."""
    lines, has_room = list[str](), False
    for label, value in pairs:
        first, *more = wrap_text(f"{label}{value}", max(width - 2 * _GAP, 1))
        if has_room and not more and cell_len(f"{lines[-1]}  {first}") <= width:
            lines[-1] += f"  {first}"
        else:
            lines += [f"  {first}", *(f"    {line}" for line in more)]
        has_room = not more
    return lines


def wrap_text(text: str, width: int) -> list[str]:
    """Break a text between words. A word wider than the line is broken after a separator, or else anywhere."""
    lines, line = [], ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        lines += [line] if line else []
        *whole, line = [word] if cell_len(word) <= width else _split_word(word, width)
        lines += whole
    return [*lines, line]


def _split_word(word: str, width: int) -> list[str]:
    pieces, piece = [], ""
    for chunk in filter(None, _CHUNKS.findall(word)):
        for part in [chunk] if cell_len(chunk) <= width else chunk:
            if piece and cell_len(piece + part) > width:
                pieces.append(piece)
                piece = ""
            piece += part
    return [*pieces, piece]
