"""Recorded traces: arrival times and lengths of requests.

azure      CSV with TIMESTAMP (a date), ContextTokens, GeneratedTokens
mooncake   JSON lines with timestamp (ms), input_length, output_length and optional hash_ids: one per leading block of
           tokens, equal for equal tokens
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

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BLANK_LINE = object()
MOONCAKE_COLUMNS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace; `at_s` counts from the first one."""

    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path, format: str) -> list[TraceRow]:
    """Return all rows of a trace by time, the first at 0."""
    rows = sorted(_read_rows(path, format), key=lambda row: row.at_s)
    if not rows:
        raise ConfigError(f"{path} has no requests", "use a trace with at least one request", param="workload.path")
    return [replace(row, at_s=row.at_s - rows[0].at_s) for row in rows]


def _read_rows(path: Path, format: str) -> Iterator[TraceRow]:
    read, columns = (_parse_azure, AZURE_COLUMNS) if format == "azure" else (_parse_mooncake, MOONCAKE_COLUMNS)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines: Any = csv.DictReader(file) if format == "azure" else map(_parse_json_line, file)
            for number, line in enumerate(lines, 2 if format == "azure" else 1):
                if line is not BLANK_LINE:
                    yield _parse_row(path, number, line, read, columns)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "use a text file", param="workload.path") from error


def _parse_row(path: Path, number: int, line: Any, read: Any, columns: tuple[str, ...]) -> TraceRow:
    hint = f"each request needs {', '.join(columns)}"
    try:
        row: TraceRow = read(line)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{path}, line {number}: not a request of this format", hint, param="workload.format"
        ) from None
    if row.input_tokens < 0 or row.output_tokens < 0 or not math.isfinite(row.at_s):
        raise ConfigError(f"{path}, line {number}: negative length or invalid time", hint, param="workload.path")
    return row


def _parse_azure(line: Mapping[str, Any]) -> TraceRow:
    time, inputs, outputs = (line[column] for column in AZURE_COLUMNS)
    date = datetime.fromisoformat(time.strip())
    # Dates without a zone are read as UTC: local time may skip or repeat an hour.
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return TraceRow(date.timestamp(), int(inputs), int(outputs))


def _parse_mooncake(line: Mapping[str, Any]) -> TraceRow:
    time, inputs, outputs = (line[column] for column in MOONCAKE_COLUMNS)
    return TraceRow(
        float(time) / 1000, int(inputs), int(outputs), tuple(int(hash_id) for hash_id in line.get("hash_ids") or ())
    )


def _parse_json_line(line: str) -> Any:
    if not line.strip():
        return BLANK_LINE
    try:
        return json.loads(line)
    except ValueError:
        return None  # the caller reports the line number


def select_rows(
    rows: list[TraceRow], start_s: float, max_rows: int | None, context_length: int | None, too_long: str
) -> tuple[list[TraceRow], list[str]]:
    """Return up to `max_rows` rows that can be sent, from `start_s`, and notes on the others."""
    later = [row for row in rows if row.at_s >= start_s]
    usable = [row for row in later if row.input_tokens and row.output_tokens]
    notes = _make_note(len(later) - len(usable), len(later), "skipped: empty prompt or empty response")
    if too_long != "drop":  # rows after the last one sent need not fit
        usable = usable[:max_rows]
    limit = context_length
    if limit is None:
        return usable[:max_rows], notes
    long = sum(not _fits_context(row, limit) for row in usable)
    if long and too_long == "refuse":
        raise ConfigError(
            f"{long} of {len(usable)} requests in the trace exceed the model's context length of {limit} tokens",
            "set workload.too_long to drop or cut, or use a model with a longer context",
            param="workload.too_long",
        )
    if too_long == "drop":
        fitting = [row for row in usable if _fits_context(row, limit)]
        return fitting[:max_rows], notes + _make_note(
            long, len(usable), f"skipped: longer than the context length of {limit}"
        )
    return [_shorten_row(row, limit) for row in usable], notes + _make_note(
        long, len(usable), f"truncated to the context length of {limit}"
    )


def _fits_context(row: TraceRow, context_length: int) -> bool:
    return row.input_tokens + row.output_tokens <= context_length


def _shorten_row(row: TraceRow, context_length: int) -> TraceRow:
    """Shorten the prompt first; a response that alone fills the context gets half of it."""
    if _fits_context(row, context_length):
        return row
    outputs = row.output_tokens if row.output_tokens < context_length else context_length // 2
    return replace(row, input_tokens=min(row.input_tokens, context_length - outputs), output_tokens=outputs)


def _make_note(count: int, total: int, text: str) -> list[str]:
    return [f"{count} of {total} requests in the trace {text}"] if count else []
