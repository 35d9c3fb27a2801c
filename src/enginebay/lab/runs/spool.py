"""Files that only grow: one JSON value a line, handed to the system at once so that a killed process loses none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from enginebay.lab.runs.plain import plain

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()


class Spool:
    """Rows on their way into a Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")

    def append(self, rows: Iterable[Any]) -> None:
        lines = bytearray()
        for row in rows:
            lines += _encode(row) + b"\n"
        self._file.write(lines)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def batches(self, size: int) -> Iterator[list[Any]]:
        """The rows, so many at a time: a long run does not have to fit in memory."""
        with self.path.open("rb") as file:
            while lines := list(islice(file, size)):
                yield [_DECODER.decode(line) for line in lines]


def _encode(row: Any) -> bytes:
    try:
        return _ENCODER.encode(row)
    except (UnicodeEncodeError, TypeError):
        return _ENCODER.encode(plain(row))
