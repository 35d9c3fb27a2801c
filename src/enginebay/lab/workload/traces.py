"""Recorded traces: when requests came and how long they were.

azure      CSV with TIMESTAMP (a date), ContextTokens, GeneratedTokens
mooncake   JSON lines with timestamp (ms), input_length, output_length and, where known, hash_ids: one for each block of tokens
           that the prompt begins with, equal where the tokens were equal
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from enginebay.errors import ConfigError

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BLANK = object()
MOONCAKE = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace; `at_s` counts from the trace's first."""

    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path, format: str) -> list[Row]:
    """All rows of a trace by time, the first at 0."""
    rows = sorted(_rows(path, format), key=lambda row: row.at_s)
    if not rows:
        raise ConfigError(f"{path} has no requests", "name a trace with at least one", param="workload.path")
    return [replace(row, at_s=row.at_s - rows[0].at_s) for row in rows]


def _rows(path: Path, format: str) -> Iterator[Row]:
    read, columns = (_azure, AZURE) if format == "azure" else (_mooncake, MOONCAKE)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines: Any = csv.DictReader(file) if format == "azure" else map(_parsed, file)
            for number, line in enumerate(lines, 2 if format == "azure" else 1):
                if line is not BLANK:
                    yield _row(path, number, line, read, columns)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "name a text file", param="workload.path") from error


def _row(path: Path, number: int, line: Any, read: Any, columns: tuple[str, ...]) -> Row:
    hint = f"each request needs {', '.join(columns)}"
    try:
        row: Row = read(line)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{path}, line {number}: not a request of this format", hint, param="workload.format"
        ) from None
    if row.input_tokens < 0 or row.output_tokens < 0 or not math.isfinite(row.at_s):
        raise ConfigError(f"{path}, line {number}: a length below 0, or no time", hint, param="workload.path")
    return row


def _azure(line: Mapping[str, Any]) -> Row:
    time, inputs, outputs = (line[column] for column in AZURE)
    date = datetime.fromisoformat(time.strip())
    # Dates without a zone are taken as UTC: the local one might have an hour that is missing or comes twice.
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return Row(date.timestamp(), int(inputs), int(outputs))


def _mooncake(line: Mapping[str, Any]) -> Row:
    time, inputs, outputs = (line[column] for column in MOONCAKE)
    return Row(float(time) / 1000, int(inputs), int(outputs), tuple(int(one) for one in line.get("hash_ids") or ()))


def _parsed(line: str) -> Any:
    if not line.strip():
        return BLANK
    try:
        return json.loads(line)
    except ValueError:
        return None  # said with its line number by the caller


def select_rows(
    rows: list[Row], start_s: float, most: int | None, context_length: int | None, too_long: str
) -> tuple[list[Row], list[str]]:
    """Up to `most` rows that can be sent, from `start_s` on, and what became of the others in words."""
    later = [row for row in rows if row.at_s >= start_s]
    kept = [row for row in later if row.input_tokens and row.output_tokens]
    notes = _note(len(later) - len(kept), len(later), "left out: nothing in or nothing out")
    if too_long != "drop":  # what comes after the last that is sent need not fit
        kept = kept[:most]
    limit = context_length
    if limit is None:
        return kept[:most], notes
    long = sum(not _fits(row, limit) for row in kept)
    if long and too_long == "refuse":
        raise ConfigError(
            f"{long} of {len(kept)} requests of the trace do not fit the model's context of {limit} tokens",
            "set workload.too_long to drop or cut, or take a model with a longer context",
            param="workload.too_long",
        )
    if too_long == "drop":
        fitting = [row for row in kept if _fits(row, limit)]
        return fitting[:most], notes + _note(long, len(kept), f"left out: longer than the context of {limit}")
    return [_shortened(row, limit) for row in kept], notes + _note(long, len(kept), f"cut to the context of {limit}")


def _fits(row: Row, context_length: int) -> bool:
    return row.input_tokens + row.output_tokens <= context_length


def _shortened(row: Row, context_length: int) -> Row:
    """The prompt gives way first; an answer that fills the context alone is left half of it."""
    if _fits(row, context_length):
        return row
    outputs = row.output_tokens if row.output_tokens < context_length else context_length // 2
    return replace(row, input_tokens=min(row.input_tokens, context_length - outputs), output_tokens=outputs)


def _note(some: int, of: int, what: str) -> list[str]:
    return [f"{some} of {of} requests of the trace {what}"] if some else []
