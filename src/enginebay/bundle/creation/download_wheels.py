"""Fetching wheels for another host: pip resolves and downloads, told what that host is like."""

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
    """One distribution's wish for another, with the target's markers decided."""

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
    """Download what `requirements` need there, less what is left out. Raises `FetchFailed` in pip's own words."""
    shutil.rmtree(folder, ignore_errors=True)  # pip keeps what it fetched in its own cache
    folder.mkdir(parents=True)
    order = {"markers": build_marker_values(target), "left_out": list(left_out), "drop": dict(drop or {})}
    record = folder.with_name(f"{folder.name}.jsonl")
    script = [sys.executable, str(pip_for_target.__file__), json.dumps(order), str(record)]
    pip = ["download", *_QUIET, "--dest", str(folder), *build_pip_options(target), *requirements]
    try:
        commands.run(f"fetching {label}", [*script, *pip])
    except FetchFailed as error:
        raise _explain_failure(label, target, commands.path, error) from None
    lines = record.read_text(encoding="utf-8").splitlines()
    return DownloadedWheels(
        tuple(sorted(folder.glob("*.whl"))), tuple(DependencyEdge(**json.loads(line)) for line in lines)
    )


def _explain_failure(what: str, target: TargetPlatform, log: Path, error: FetchFailed) -> FetchFailed:
    said = [
        line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith("ERROR: ")
    ]
    if not said:
        return error
    shown = said[-1].removeprefix("ERROR: ")
    where = f"Python {target.python} on {target.platform} {target.arch}"
    return FetchFailed(f"{what} cannot be had for {where}: {shown}", f"pip's whole output: {log}")
