"""Reading runs. Nothing of a folder is believed before its hashes agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay.lab.store.durable_files import hash_file
from enginebay.lab.store.run_errors import CorruptRun
from enginebay.lab.store.run_folders import list_finished_folders
from enginebay.lab.store.run_manifest import read_manifest
from enginebay.lab.workload.request_records import Record

if TYPE_CHECKING:
    from enginebay.lab.store.stored_samples import StoredSample


@dataclass(frozen=True)
class Run:
    """A finished run. The manifest is in memory; requests, tokens and samples are read when asked for."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.manifest["id"])

    @property
    def engine(self) -> str:
        """Its kind; of a server that is not ours, its address."""
        return str(self.manifest["engine"].get("kind") or self.manifest["server"].get("url") or "unknown")

    @property
    def model(self) -> str:
        return str(self.manifest["model"].get("name", ""))

    @property
    def requested_settings(self) -> Mapping[str, Any]:
        """The engine's settings as they were asked for."""
        found = self.manifest["config"].get(self.engine)
        return found if isinstance(found, Mapping) else {}

    @property
    def label(self) -> str:
        return str(self.manifest["study"].get("label", ""))

    @property
    def study_id(self) -> str | None:
        found = self.manifest["study"].get("id")
        return None if found is None else str(found)

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
        found: Mapping[str, Any] = self.manifest["measures"]
        return found

    def read_records(self) -> list[Record]:
        from enginebay.lab.store.parquet import REQUESTS_TABLE, read_rows

        return read_rows(Record, self.path / REQUESTS_TABLE.name)

    def read_token_times(self) -> dict[int, list[float]]:
        """When each output event of a request arrived, by the record's index."""
        from enginebay.lab.store.parquet import TOKENS_TABLE, read_columns

        found: dict[int, list[float]] = {}
        for index, time_s in zip(*read_columns(self.path / TOKENS_TABLE.name, ["index", "time_s"]), strict=True):
            found.setdefault(index, []).append(time_s)
        return found

    def read_samples(self) -> list[StoredSample]:
        """Empty where no meter could be read; `absent` in the manifest says why."""
        from enginebay.lab.store.parquet import POWER_TABLE, read_rows
        from enginebay.lab.store.stored_samples import StoredSample

        return (
            read_rows(StoredSample, self.path / POWER_TABLE.name) if POWER_TABLE.name in self.manifest["files"] else []
        )

    def read_parity(self) -> dict[str, Any] | None:
        """What the parity prompts gave, or None where none were asked."""
        if "parity.json" not in self.manifest["files"]:
            return None
        content: dict[str, Any] = json.loads((self.path / "parity.json").read_bytes())
        return content

    def verify(self) -> None:
        """Check every file against its hash."""
        for name, said in self.manifest["files"].items():
            if not isinstance(said, dict) or Path(name).name != name:
                raise CorruptRun(self.path, f"its manifest names a file that cannot be: {name}")
            try:
                found = hash_file(self.path / name)
            except FileNotFoundError:
                raise CorruptRun(self.path, f"{name} is missing") from None
            except OSError as error:
                raise CorruptRun(self.path, f"{name} cannot be read: {error.strerror}") from None
            if found != said.get("sha256"):
                raise CorruptRun(self.path, f"{name} was changed after the run: its sha256 is not the manifest's")
        for name in ("requests.parquet", "tokens.parquet"):
            if name not in self.manifest["files"]:
                raise CorruptRun(self.path, f"its manifest does not name {name}")


def load_run(path: Path, verify: bool = True) -> Run:
    """A run by its folder; raises CorruptRun with what is wrong."""
    run = Run(path, read_manifest(path))
    if verify:
        run.verify()
    return run


def list_runs(folder: Path, verify: bool = True) -> tuple[list[Run], list[CorruptRun]]:
    """Every finished run, oldest first, and what is wrong with those that cannot be read. Partial ones are no runs."""
    runs: list[Run] = []
    problems: list[CorruptRun] = []
    for one in list_finished_folders(folder):
        try:
            runs.append(load_run(one, verify))
        except CorruptRun as problem:
            problems.append(problem)
    return sorted(runs, key=lambda run: (run.manifest["created"], run.id)), problems
