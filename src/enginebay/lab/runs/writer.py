"""Writing a run: into a partial folder as it goes, and finished by one rename."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from enginebay.lab.requests import Record
from enginebay.lab.runs import manifest as manifests
from enginebay.lab.runs.durable import READ_ONLY, sha256_of, sync, write_synced
from enginebay.lab.runs.folders import claim
from enginebay.lab.runs.parquet import BATCH_ROWS, POWER, REQUESTS, TOKENS, Table, write_table
from enginebay.lab.runs.plain import canonical
from enginebay.lab.runs.samples import SampleLike, stored
from enginebay.lab.runs.spool import Spool

PARITY = "parity.json"


class RunWriter:
    """One run on its way to disk. Until `finish` has returned there is no run, only a partial folder that nobody reads.

    As a context manager it removes the partial folder when it is left without `finish`.
    """

    def __init__(self, folder: Path, manifest_start: Mapping[str, Any]) -> None:
        self._manifest: dict[str, Any] = dict(manifest_start)
        manifests.refuse_unknown(self._manifest)
        self.id, self.partial, self._hold = claim(folder, self._manifest["id"])
        self._manifest["id"] = self.id
        self.path = folder / self.id
        self._spools = {table.name: Spool(self.partial / f"{table.name}.spool") for table in (REQUESTS, TOKENS, POWER)}
        self._files: dict[str, int] = {}  # rows of each finished file

    def records(self, records: Sequence[Record], tokens: Mapping[int, Sequence[float]]) -> None:
        """Requests that are over, and when each of their output events arrived, by the record's index."""
        self._spools[REQUESTS.name].append(records)
        self._spools[TOKENS.name].append((index, list(times)) for index, times in tokens.items())

    def samples(self, samples: Iterable[SampleLike], origin_s: float = 0.0) -> None:
        """What the meters read; `origin_s` is the start of the measured window on their clock."""
        self._spools[POWER.name].append(stored(one, origin_s) for one in samples)

    def parity(self, content: Mapping[str, Any]) -> None:
        """What the parity prompts gave: under `answers` one `lab.parity.Answer` each, so that any two runs can be compared."""
        write_synced(self.partial / PARITY, canonical(content))
        self._files[PARITY] = len(content.get("answers") or ())

    def keep(self, name: str, content: bytes) -> Path:
        """A file of text that belongs to the run, such as the configuration its server had."""
        write_synced(self.partial / name, content)
        self._files[name] = content.count(b"\n")
        return self.partial / name

    def update(self, **sections: Any) -> None:
        """Sections of the manifest that became known meanwhile, such as `effective`, `server` or `window_s`."""
        manifests.refuse_unknown(sections)
        self._manifest |= sections

    def finish(self, measures: Mapping[str, Any], verdict: Any) -> Path:
        """Write what is left, make it read-only, and let it become a run. Gives its folder."""
        self._close_spools()
        for table in (REQUESTS, TOKENS, POWER):
            self._write(table)
        self.update(measures=measures, verdict=verdict, files=self._described())
        manifests.write_manifest(self.partial / manifests.NAME, self._manifest)
        for spool in self._spools.values():
            spool.path.unlink()
        for file in self.partial.iterdir():
            file.chmod(READ_ONLY)
        sync(self.partial)
        self.partial.rename(self.path)
        self._hold.release()
        sync(self.path.parent)
        return self.path

    def abandon(self) -> None:
        """Leave nothing behind of a run that is not to be finished."""
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

    def _write(self, table: Table) -> None:
        spool = self._spools[table.name]
        if table is POWER and not spool.path.stat().st_size:
            return  # no meter, no file: the manifest's `absent` says why
        path = self.partial / table.name
        batches = spool.batches(BATCH_ROWS)
        self._files[table.name] = write_table(table, path, _events(batches) if table is TOKENS else batches)
        sync(path)

    def _described(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"sha256": sha256_of(self.partial / name), "rows": rows} for name, rows in sorted(self._files.items())
        }


def _events(batches: Iterable[list[Any]]) -> Iterator[list[dict[str, Any]]]:
    """One row for each event, of lines that hold one request each; about a batch of rows at a time."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        for index, times in batch:
            rows += [{"index": index, "time_s": time_s} for time_s in times]
            if len(rows) >= BATCH_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows
