"""Downloads wheels for another host: pip resolves with the target's platform and markers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from enginebay.bundle.creation import pip_for_target
from enginebay.bundle.creation.target_platform import TargetPlatform, build_marker_values, build_pip_options
from enginebay.environments.command_runner import CommandRunner
from enginebay.errors import FetchFailed

_QUIET = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")


@dataclass(frozen=True, slots=True)
class DependencyEdge:
    """One distribution's requirement on another, with markers evaluated for the target."""

    name: str
    version: str
    requires: str
    followed: bool


@dataclass(frozen=True, slots=True)
class DownloadedWheels:
    wheels: tuple[Path, ...]
    edges: tuple[DependencyEdge, ...]


def download_wheels(
    label: str,
    requirements: Iterable[str],
    folder: Path,
    target: TargetPlatform,
    commands: CommandRunner,
    left_out: Iterable[str] = (),
    drop: Mapping[str, list[str]] | None = None,
) -> DownloadedWheels:
    """Download the requirements and their dependencies for the target. Raises `FetchFailed` with pip's error."""
    shutil.rmtree(folder, ignore_errors=True)  # pip caches downloads itself
    folder.mkdir(parents=True)
    options = {"markers": build_marker_values(target), "left_out": list(left_out), "drop": dict(drop or {})}
    record = folder.with_name(f"{folder.name}.jsonl")
    script = [sys.executable, str(pip_for_target.__file__), json.dumps(options), str(record)]
    pip = ["download", *_QUIET, "--dest", str(folder), *build_pip_options(target), *requirements]
    try:
        commands.run(f"fetching {label}", [*script, *pip])
    except FetchFailed as error:
        raise _explain_failure(label, target, commands.path, error) from None
    lines = record.read_text(encoding="utf-8").splitlines()
    return DownloadedWheels(
        tuple(sorted(folder.glob("*.whl"))), tuple(DependencyEdge(**json.loads(line)) for line in lines)
    )


def _explain_failure(label: str, target: TargetPlatform, log: Path, error: FetchFailed) -> FetchFailed:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if not errors:
        return error
    platform = f"Python {target.python} on {target.platform} {target.arch}"
    return FetchFailed(f"failed to fetch {label} for {platform}: {errors[-1]}", f"see pip's full output: {log}")
