"""A run's manifest: what was asked, what really ran, where, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.lab.store.canonical_json import hash_value, to_plain
from enginebay.lab.store.durable_files import write_synced
from enginebay.lab.store.run_environment import describe_environment as read_environment
from enginebay.lab.store.run_errors import CorruptRun
from enginebay.lab.store.run_folders import utc_now

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
SELF_HASH_KEY = "manifest_sha256"  # of everything else in it, so that a number changed afterwards shows

SECTIONS: dict[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "id": str,
    "study": dict,  # id, point, cycle, label
    "created": str,
    "engine": dict,  # kind, version, versions
    "model": dict,  # name, sha256 or source
    "config": dict,  # as given
    "effective": dict,  # as the engine really ran
    "environment": dict,
    "seeds": dict,
    "profile": dict,
    "workload": dict,  # with the sha256 of the requests
    "server": dict,  # url, ours, facts
    "window_s": (int, float, type(None)),
    "measures": dict,
    "verdict": dict,  # status, reasons
    "files": dict,  # by name: sha256, rows
    "absent": dict,  # what could not be read, and why
}
STATUSES = ("valid", "informative", "invalid")  # the worst one last


def new_manifest(
    run_id: str,
    *,
    engine: Mapping[str, Any],
    model: Mapping[str, Any],
    study: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """What is known before a run; the rest comes by `RunWriter.update` and `RunWriter.finish`."""
    empty: dict[str, Any] = {name: {} for name, kind in SECTIONS.items() if kind is dict}
    given = {
        "schema_version": SCHEMA_VERSION,
        "id": run_id,
        "created": utc_now().isoformat(timespec="microseconds"),
        "window_s": None,
        "engine": engine,
        "model": model,
        "study": study or {},
        "environment": environment if environment is not None else read_environment(),
        **sections,
    }
    refuse_unknown_sections(given)
    return {**empty, **given}


def refuse_unknown_sections(sections: Mapping[str, Any]) -> None:
    """A section that no reader knows is a mistake of the writer's."""
    unknown = sorted(set(sections) - set(SECTIONS))
    if unknown:
        raise ValueError(f"no such section of a manifest: {', '.join(unknown)}")


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    content = to_plain(manifest)
    content[SELF_HASH_KEY] = hash_value(content)
    write_synced(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """A finished run's manifest, checked against itself."""
    try:
        content = json.loads((folder / MANIFEST_NAME).read_bytes())
    except FileNotFoundError:
        raise CorruptRun(
            folder, f"it has no {MANIFEST_NAME}", "if it is no run, move it out of the folder of runs"
        ) from None
    except (OSError, ValueError) as error:
        raise CorruptRun(folder, f"{MANIFEST_NAME} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise CorruptRun(folder, f"{MANIFEST_NAME} is not an object")
    _check_version(folder, content.get("schema_version"))
    said = content.pop(SELF_HASH_KEY, None)
    if said != hash_value(content):
        raise CorruptRun(
            folder, f"{MANIFEST_NAME} was changed after the run: its sha256 is not the one it was written with"
        )
    _check_sections(folder, content)
    if content["id"] != folder.name:
        raise CorruptRun(
            folder,
            f"{MANIFEST_NAME} says that it is {content['id']}",
            "give the folder its name back, or remove the copy",
        )
    return content


def _check_version(folder: Path, version: object) -> None:
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise CorruptRun(
            folder,
            f"schema version {version!r} is not known, this Enginebay reads {SCHEMA_VERSION}",
            "upgrade enginebay" if newer else "",
        )


def _check_sections(folder: Path, content: dict[str, Any]) -> None:
    """Whoever reads a manifest may rely on the kinds of its sections."""
    for name, kind in SECTIONS.items():
        if name not in content:
            raise CorruptRun(folder, f"{MANIFEST_NAME} has no {name}")
        if not isinstance(content[name], kind):
            raise CorruptRun(folder, f"{name} in {MANIFEST_NAME} is of the wrong kind")
    for name in ("point", "cycle"):
        if not isinstance(content["study"].get(name, 0), int):
            raise CorruptRun(folder, f"study.{name} in {MANIFEST_NAME} is not a whole number")
    if content["verdict"].get("status") not in STATUSES:
        raise CorruptRun(folder, "it has no verdict")
