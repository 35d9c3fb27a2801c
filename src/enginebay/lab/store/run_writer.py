"""Write a run: into a partial folder as it goes, finished by one rename."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from enginebay.lab.store import run_manifest
from enginebay.lab.store.canonical_json import to_canonical_json, to_plain
from enginebay.lab.store.parquet import BATCH_ROWS, POWER_TABLE, REQUESTS_TABLE, TOKENS_TABLE, ParquetTable, write_table
from enginebay.lab.store.run_folders import claim_folder
from enginebay.lab.workload.request_records import Record
from enginebay.meters.sample import Sample
from enginebay.util.atomic_file import sync_to_disk, write_atomically

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()


class RowSpool:
    """Rows on disk, waiting to become a Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")

    def append(self, rows: Iterable[Any]) -> None:
        lines = bytearray()
        for row in rows:
            lines += _encode_row(row) + b"\n"
        self._file.write(lines)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def read_batches(self, size: int) -> Iterator[list[Any]]:
        """Yield the rows in batches: a long run may not fit in memory."""
        with self.path.open("rb") as file:
            while lines := list(islice(file, size)):
                yield [_DECODER.decode(line) for line in lines]


def _encode_row(row: Any) -> bytes:
    try:
        return _ENCODER.encode(row)
    except (UnicodeEncodeError, TypeError):
        return _ENCODER.encode(to_plain(row))


PARITY_FILE = "parity.json"


class RunWriter:
    """Writes one run. Until `finish` returns there is only a partial folder, which readers ignore.

    As a context manager it removes the partial folder if `finish` was not called.
    """

    def __init__(self, folder: Path, manifest_start: Mapping[str, Any]) -> None:
        self._manifest: dict[str, Any] = dict(manifest_start)
        run_manifest.refuse_unknown_sections(self._manifest)
        self.id, self.partial, self._hold = claim_folder(folder, self._manifest["id"])
        self._manifest["id"] = self.id
        self.path = folder / self.id
        self._spools = {
            table.name: RowSpool(self.partial / f"{table.name}.spool")
            for table in (REQUESTS_TABLE, TOKENS_TABLE, POWER_TABLE)
        }
        self._files: dict[str, int] = {}  # rows of each finished file

    def add_records(self, records: Sequence[Record], tokens: Mapping[int, Sequence[float]]) -> None:
        """Add finished requests, and the arrival times of their output events by the record's index."""
        self._spools[REQUESTS_TABLE.name].append(records)
        self._spools[TOKENS_TABLE.name].append((index, list(times)) for index, times in tokens.items())

    def add_samples(self, samples: Iterable[Sample], origin_s: float = 0.0) -> None:
        """Add the meters' samples, stored on the run's clock; `origin_s` is the start of the measured window on the meters'."""
        self._spools[POWER_TABLE.name].append(replace(sample, time_s=sample.time_s - origin_s) for sample in samples)

    def write_parity(self, content: Mapping[str, Any]) -> None:
        """Store the parity answers: under `answers` one `ParityAnswer` per prompt, so that any two runs can be compared."""
        write_atomically(self.partial / PARITY_FILE, to_canonical_json(content), sync=True)
        self._files[PARITY_FILE] = len(content.get("answers") or ())

    def write_file(self, name: str, content: bytes) -> Path:
        """Store a text file with the run, such as its server's configuration."""
        write_atomically(self.partial / name, content, sync=True)
        self._files[name] = content.count(b"\n")
        return self.partial / name

    def update(self, **sections: Any) -> None:
        """Set sections of the manifest that were unknown at the start, such as `effective`, `server` or `window_s`."""
        run_manifest.refuse_unknown_sections(sections)
        self._manifest |= sections

    def finish(self, measures: Mapping[str, Any], verdict: Any) -> Path:
        """Write the tables and the manifest, make all files read-only, and rename the folder. Return it."""
        self._close_spools()
        for table in (REQUESTS_TABLE, TOKENS_TABLE, POWER_TABLE):
            self._write_table(table)
        self.update(measures=measures, verdict=verdict, files=self._describe_files())
        run_manifest.write_manifest(self.partial / run_manifest.MANIFEST_NAME, self._manifest)
        for spool in self._spools.values():
            spool.path.unlink()
        for file in self.partial.iterdir():
            file.chmod(0o444)
        sync_to_disk(self.partial)
        self.partial.rename(self.path)
        self._hold.release()
        sync_to_disk(self.path.parent)
        return self.path

    def abandon(self) -> None:
        """Remove the partial folder."""
        self._close_spools()
        shutil.rmtree(self.partial, ignore_errors=True)
        self._hold.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.partial.exists():
            self.abandon()

    def _close_spools(self) -> None:
        for spool in self._spools.values():
            spool.close()

    def _write_table(self, table: ParquetTable) -> None:
        spool = self._spools[table.name]
        if table is POWER_TABLE and not spool.path.stat().st_size:
            return  # no meter, no file: the manifest's `absent` says why
        path = self.partial / table.name
        batches = spool.read_batches(BATCH_ROWS)
        self._files[table.name] = write_table(
            table, path, _flatten_events(batches) if table is TOKENS_TABLE else batches
        )
        sync_to_disk(path)

    def _describe_files(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"sha256": run_manifest.hash_file(self.partial / name), "rows": rows}
            for name, rows in sorted(self._files.items())
        }


def _flatten_events(batches: Iterable[list[Any]]) -> Iterator[list[dict[str, Any]]]:
    """Turn rows of one request each into rows of one event each, about a batch at a time."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        for index, times in batch:
            rows += [{"index": index, "time_s": time_s} for time_s in times]
            if len(rows) >= BATCH_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows
