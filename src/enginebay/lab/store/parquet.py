"""Read and write a run's rows as Parquet. The columns are the fields of the dataclasses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from enginebay.lab.workload.request_records import Record
from enginebay.meters.sample import Sample

RowT = TypeVar("RowT")
BATCH_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One output event of a request; an event may carry several tokens."""

    index: int
    time_s: float


@dataclass(frozen=True)
class ParquetTable:
    name: str
    row: type


REQUESTS_TABLE = ParquetTable("requests.parquet", Record)
TOKENS_TABLE = ParquetTable("tokens.parquet", TokenEvent)
POWER_TABLE = ParquetTable("power.parquet", Sample)


def write_table(table: ParquetTable, path: Path, batches: Iterable[list[dict[str, Any]]]) -> int:
    """Write rows batch by batch and return their number."""
    schema = _build_schema(table.row)
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            rows += len(batch)
    return rows


def read_rows(row: type[RowT], path: Path) -> list[RowT]:
    """Read rows. A field added after the file was written gets its default."""
    table: Any = pq.read_table(path)
    names = [field.name for field in fields(row) if field.name in table.column_names]  # type: ignore[arg-type]
    columns = [_read_values(table.column(name)) for name in names]
    return [row(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def read_columns(path: Path, names: list[str]) -> list[list[Any]]:
    table: Any = pq.read_table(path, columns=names)
    return [table.column(name).to_pylist() for name in names]


def _read_values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_list(column.type):
        return [tuple(value) for value in values]
    return values


def _build_schema(row: type) -> Any:
    kinds = get_type_hints(row)
    return pa.schema([pa.field(name, _column_type(kind)) for name, kind in kinds.items()])


def _column_type(annotation: Any) -> Any:
    """Return the Arrow type of `int`, `float | None`, `tuple[str, ...]` and the like."""
    types = [argument for argument in get_args(annotation) if argument not in (type(None), ...)] or [annotation]
    item_type = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}[types[0]]
    return pa.list_(item_type) if getattr(annotation, "__origin__", None) is tuple else item_type
