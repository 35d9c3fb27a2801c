"""Read stored runs, and verify them against their hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay.lab.store.run_errors import CorruptRun
from enginebay.lab.store.run_folders import list_finished_folders
from enginebay.lab.store.run_manifest import hash_file, read_manifest
from enginebay.lab.workload.request_records import Record

if TYPE_CHECKING:
    from enginebay.meters.sample import Sample


@dataclass(frozen=True)
class Run:
    """A finished run. The manifest is in memory; requests, tokens and samples are read on demand."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.manifest["id"])

    @property
    def engine(self) -> str:
        """The engine kind, or the address of a server that is not Enginebay."""
        return str(self.manifest["engine"].get("kind") or self.manifest["server"].get("url") or "unknown")

    @property
    def model(self) -> str:
        return str(self.manifest["model"].get("name", ""))

    @property
    def requested_settings(self) -> Mapping[str, Any]:
        """The engine settings as the user wrote them."""
        settings = self.manifest["config"].get(self.engine)
        return settings if isinstance(settings, Mapping) else {}

    @property
    def label(self) -> str:
        return str(self.manifest["study"].get("label", ""))

    @property
    def study_id(self) -> str | None:
        study_id = self.manifest["study"].get("id")
        return None if study_id is None else str(study_id)

    @property
    def cycle(self) -> int:
        return int(self.manifest["study"].get("cycle") or 1)

    @property
    def status(self) -> str:
        return str(self.manifest["verdict"]["status"])

    @property
    def reasons(self) -> list[dict[str, Any]]:
        return list(self.manifest["verdict"].get("reasons") or ())

    @property
    def measures(self) -> Mapping[str, Any]:
        measures: Mapping[str, Any] = self.manifest["measures"]
        return measures

    def read_records(self) -> list[Record]:
        from enginebay.lab.store.parquet import REQUESTS_TABLE, read_rows

        return read_rows(Record, self.path / REQUESTS_TABLE.name)

    def read_token_times(self) -> dict[int, list[float]]:
        """Return when the output events of each request arrived, by the record's index."""
        from enginebay.lab.store.parquet import TOKENS_TABLE, read_columns

        times: dict[int, list[float]] = {}
        for index, time_s in zip(*read_columns(self.path / TOKENS_TABLE.name, ["index", "time_s"]), strict=True):
            times.setdefault(index, []).append(time_s)
        return times

    def read_samples(self) -> list[Sample]:
        """Return the meters' samples; `time_s` counts from the start of the measured window. Empty if no meter could be read; `absent` in the manifest says why."""
        from enginebay.lab.store.parquet import POWER_TABLE, read_rows
        from enginebay.meters.sample import Sample

        return read_rows(Sample, self.path / POWER_TABLE.name) if POWER_TABLE.name in self.manifest["files"] else []

    def read_parity(self) -> dict[str, Any] | None:
        """Return the answers to the parity prompts. None: none were sent."""
        if "parity.json" not in self.manifest["files"]:
            return None
        content: dict[str, Any] = json.loads((self.path / "parity.json").read_bytes())
        return content

    def verify(self) -> None:
        """Check every file against its hash. Raise `CorruptRun`."""
        for name, entry in self.manifest["files"].items():
            if not isinstance(entry, dict) or Path(name).name != name:
                raise CorruptRun(self.path, f"its manifest names an invalid file: {name}")
            try:
                sha256 = hash_file(self.path / name)
            except FileNotFoundError:
                raise CorruptRun(self.path, f"{name} is missing") from None
            except OSError as error:
                raise CorruptRun(self.path, f"{name} cannot be read: {error.strerror}") from None
            if sha256 != entry.get("sha256"):
                raise CorruptRun(self.path, f"{name} was changed after the run: its sha256 does not match the manifest")
        for name in ("requests.parquet", "tokens.parquet"):
            if name not in self.manifest["files"]:
                raise CorruptRun(self.path, f"its manifest does not name {name}")


def load_run(path: Path, verify: bool = True) -> Run:
    """Load the run in a folder. Raise `CorruptRun`."""
    run = Run(path, read_manifest(path))
    if verify:
        run.verify()
    return run


def list_runs(folder: Path, verify: bool = True) -> tuple[list[Run], list[CorruptRun]]:
    """Return every finished run, oldest first, and the errors of those that cannot be read."""
    runs: list[Run] = []
    errors: list[CorruptRun] = []
    for path in list_finished_folders(folder):
        try:
            runs.append(load_run(path, verify))
        except CorruptRun as error:
            errors.append(error)
    return sorted(runs, key=lambda run: (run.manifest["created"], run.id)), errors
