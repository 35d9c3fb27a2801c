"""A run's manifest: what was requested, what actually ran, where, and the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.lab.store.canonical_json import hash_value, to_plain
from enginebay.lab.store.run_environment import describe_environment
from enginebay.lab.store.run_errors import CorruptRun
from enginebay.lab.store.run_folders import utc_now
from enginebay.util.atomic_file import write_atomically

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
SELF_HASH_KEY = "manifest_sha256"  # of everything else in the manifest, to detect later changes

SECTIONS: dict[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "id": str,
    "study": dict,  # id, point, cycle, label
    "created": str,
    "engine": dict,  # kind, version, versions
    "model": dict,  # name, sha256 or source
    "config": dict,  # as the user wrote it
    "effective": dict,  # as the engine actually ran
    "environment": dict,
    "seeds": dict,
    "profile": dict,
    "workload": dict,  # with the sha256 of the requests
    "server": dict,  # url, ours, facts
    "window_s": (int, float, type(None)),
    "measures": dict,
    "verdict": dict,  # status, reasons
    "files": dict,  # by name: sha256, rows
    "absent": dict,  # what could not be measured, and why
}
STATUSES = ("valid", "informative", "invalid")  # worst last


def new_manifest(
    run_id: str,
    *,
    engine: Mapping[str, Any],
    model: Mapping[str, Any],
    study: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """Return what is known before a run. `RunWriter.update` and `RunWriter.finish` add the rest."""
    empty: dict[str, Any] = {name: {} for name, kind in SECTIONS.items() if kind is dict}
    known = {
        "schema_version": SCHEMA_VERSION,
        "id": run_id,
        "created": utc_now().isoformat(timespec="microseconds"),
        "window_s": None,
        "engine": engine,
        "model": model,
        "study": study or {},
        "environment": environment if environment is not None else describe_environment(),
        **sections,
    }
    refuse_unknown_sections(known)
    return {**empty, **known}


def refuse_unknown_sections(sections: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a section that no reader knows."""
    unknown = sorted(set(sections) - set(SECTIONS))
    if unknown:
        raise ValueError(f"unknown manifest section: {', '.join(unknown)}")


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    content = to_plain(manifest)
    content[SELF_HASH_KEY] = hash_value(content)
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", sync=True)


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check a finished run's manifest. Raise `CorruptRun`."""
    try:
        content = json.loads((folder / MANIFEST_NAME).read_bytes())
    except FileNotFoundError:
        raise CorruptRun(
            folder, f"it has no {MANIFEST_NAME}", "if it is not a run, move it out of the runs folder"
        ) from None
    except (OSError, ValueError) as error:
        raise CorruptRun(folder, f"{MANIFEST_NAME} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise CorruptRun(folder, f"{MANIFEST_NAME} is not an object")
    _check_version(folder, content.get("schema_version"))
    stored_hash = content.pop(SELF_HASH_KEY, None)
    if stored_hash != hash_value(content):
        raise CorruptRun(folder, f"{MANIFEST_NAME} was changed after the run: its sha256 does not match")
    _check_sections(folder, content)
    if content["id"] != folder.name:
        raise CorruptRun(
            folder, f"the id in {MANIFEST_NAME} is {content['id']}", "restore the folder's name, or remove the copy"
        )
    return content


def _check_version(folder: Path, version: object) -> None:
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise CorruptRun(
            folder,
            f"schema version {version!r} is unknown; this version of Enginebay reads {SCHEMA_VERSION}",
            "upgrade enginebay" if newer else "",
        )


def _check_sections(folder: Path, content: dict[str, Any]) -> None:
    """Check the sections' types, so that readers can rely on them."""
    for name, kind in SECTIONS.items():
        if name not in content:
            raise CorruptRun(folder, f"{MANIFEST_NAME} has no {name}")
        if not isinstance(content[name], kind):
            raise CorruptRun(folder, f"{name} in {MANIFEST_NAME} has the wrong type")
    for name in ("point", "cycle"):
        if not isinstance(content["study"].get(name, 0), int):
            raise CorruptRun(folder, f"study.{name} in {MANIFEST_NAME} is not an integer")
    if content["verdict"].get("status") not in STATUSES:
        raise CorruptRun(folder, "it has no verdict")
