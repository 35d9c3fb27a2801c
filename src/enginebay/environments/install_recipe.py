"""From what a person asked for to the pip commands that build it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from enginebay.contract import EngineSpec, Recipe
from enginebay.environments.dist_requirements import canonicalize_name
from enginebay.environments.versions import version_key
from enginebay.errors import EngineMissing, UsageError

# What the worker itself imports in every engine's environment. The generated messages work from protobuf 4.25 on.
WORKER_REQUIREMENTS = (
    "grpcio>=1.62.3",
    "protobuf>=4.25.3",
    "grpcio-health-checking>=1.62.3",
    "grpcio-reflection>=1.62.3",
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class InstallTarget:
    """One thing to install: an engine we have a recipe for, or a package that brings an engine."""

    spec: EngineSpec | None
    version: str | None = None
    package: str = ""


def parse_target(requested: str, specs: Mapping[str, EngineSpec], is_package: bool = False) -> InstallTarget:
    """What `KIND`, `KIND==VERSION`, a path or a requirement means."""
    name, _, version = (part.strip() for part in requested.partition("=="))
    known = {**{alias: one for one in specs.values() for alias in one.aliases}, **specs}
    if is_package or not _PLAIN_NAME.fullmatch(name) or name.endswith((".whl", ".tar.gz")):
        return InstallTarget(None, package=requested)
    if name in known:
        return InstallTarget(known[name], version or None)
    # A slip of the finger must not fetch a stranger's package from the index.
    near = get_close_matches(name, known, n=1)
    raise UsageError(
        f"there is no engine called {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
        f"if it is a package that brings an engine: bay engines install --package {requested}",
    )


def select_recipe(spec: EngineSpec, device: str) -> Recipe:
    """The recipe for `device` ("cpu" or "cuda"); a CPU build also serves a host with a GPU when it is the only one."""
    for wanted in (device, "any", "cpu"):
        for one in spec.recipes:
            if one.when == wanted:
                return one
    if not spec.recipes:
        raise UsageError(
            f"{spec.kind} has no recipe of its own", "give the package that brings it: bay engines install PACKAGE"
        )
    raise EngineMissing(f"{spec.kind} has no recipe for a host with {device} only")


def fill_step(step: tuple[str, ...], version: str, requires: list[str] | None = None) -> list[str]:
    """A step's pip arguments. `{requires}` is an argument of its own and becomes many."""
    arguments: list[str] = []
    for argument in step[1:] if step[:1] == ("install",) else step:
        if argument == "{requires}":
            arguments += requires or []
        else:
            arguments.append(argument.replace("{version}", version))
    return arguments


def uses_requirements(step: tuple[str, ...]) -> bool:
    return "{requires}" in step


def is_pin(line: str) -> bool:
    """Whether a line of `pip freeze` can be a constraint; a package from a path cannot."""
    return "==" in line and " @ " not in line


def are_satisfied(requirements: Sequence[str], frozen: Sequence[str]) -> bool:
    """Whether what is installed covers every `name>=version`."""
    there = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in frozen if is_pin(line))
    }
    wanted = [need.split(">=") for need in requirements]
    return all(version_key(there.get(canonicalize_name(name), "0")) >= version_key(least) for name, least in wanted)
