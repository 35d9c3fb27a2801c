"""Rows of a run as Parquet. The columns are the fields of the dataclasses, so that the two cannot drift apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from enginebay.lab.requests import Record
from enginebay.lab.runs.samples import StoredSample

Row = TypeVar("Row")
BATCH_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Token:
    """One output event of a request: never a count of tokens."""

    index: int
    time_s: float


@dataclass(frozen=True)
class Table:
    name: str
    row: type


REQUESTS = Table("requests.parquet", Record)
TOKENS = Table("tokens.parquet", Token)
POWER = Table("power.parquet", StoredSample)


def write_table(table: Table, path: Path, batches: Iterable[list[dict[str, Any]]]) -> int:
    """Write rows batch by batch; gives how many there were."""
    schema = _schema(table.row)
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            rows += len(batch)
    return rows


def read_rows(row: type[Row], path: Path) -> list[Row]:
    """The rows again. A field that was added after the file was written has its default."""
    found: Any = pq.read_table(path)
    known = [one.name for one in fields(row) if one.name in found.column_names]  # type: ignore[arg-type]
    columns = [_values(found.column(name)) for name in known]
    return [row(**dict(zip(known, values, strict=True))) for values in zip(*columns, strict=True)]


def read_columns(path: Path, names: list[str]) -> list[list[Any]]:
    found: Any = pq.read_table(path, columns=names)
    return [found.column(name).to_pylist() for name in names]


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_list(column.type):
        return [tuple(one) for one in values]
    return values


def _schema(row: type) -> Any:
    kinds = get_type_hints(row)
    return pa.schema([pa.field(name, _kind(kind)) for name, kind in kinds.items()])


def _kind(annotation: Any) -> Any:
    """The column's type for `int`, `float | None`, `tuple[str, ...]` and the like."""
    given = [one for one in get_args(annotation) if one not in (type(None), ...)] or [annotation]
    simple = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}[given[0]]
    return pa.list_(simple) if getattr(annotation, "__origin__", None) is tuple else simple
