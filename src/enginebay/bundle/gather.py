"""Fetching wheels for another host: pip resolves and downloads, told what that host is like."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from enginebay.bundle import pip_for_target
from enginebay.bundle.target import Target, marker_values, pip_options
from enginebay.errors import FetchFailed
from enginebay.fleet.environments.commands import Commands

_QUIET = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")


@dataclass(frozen=True, slots=True)
class Edge:
    """One distribution's wish for another, with the target's markers decided."""

    name: str
    version: str
    requires: str
    followed: bool


@dataclass(frozen=True, slots=True)
class Gathered:
    wheels: tuple[Path, ...]
    edges: tuple[Edge, ...]


def gather(
    what: str,
    requirements: Iterable[str],
    into: Path,
    target: Target,
    commands: Commands,
    left_out: Iterable[str] = (),
    drop: Mapping[str, list[str]] | None = None,
) -> Gathered:
    """Download what `requirements` need there, less what is left out. Raises `FetchFailed` in pip's own words."""
    shutil.rmtree(into, ignore_errors=True)  # pip keeps what it fetched in its own cache
    into.mkdir(parents=True)
    order = {"markers": marker_values(target), "left_out": list(left_out), "drop": dict(drop or {})}
    record = into.with_name(f"{into.name}.jsonl")
    script = [sys.executable, str(pip_for_target.__file__), json.dumps(order), str(record)]
    pip = ["download", *_QUIET, "--dest", str(into), *pip_options(target), *requirements]
    try:
        commands.run(f"fetching {what}", [*script, *pip])
    except FetchFailed as error:
        raise _failure(what, target, commands.path, error) from None
    lines = record.read_text(encoding="utf-8").splitlines()
    return Gathered(tuple(sorted(into.glob("*.whl"))), tuple(Edge(**json.loads(line)) for line in lines))


def _failure(what: str, target: Target, log: Path, error: FetchFailed) -> FetchFailed:
    said = [
        line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith("ERROR: ")
    ]
    if not said:
        return error
    shown = said[-1].removeprefix("ERROR: ")
    where = f"Python {target.python} on {target.platform} {target.arch}"
    return FetchFailed(f"{what} cannot be had for {where}: {shown}", f"pip's whole output: {log}")
