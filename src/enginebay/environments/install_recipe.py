"""Turns a requested engine into the pip commands that install it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from enginebay.contract import EngineSpec, Recipe
from enginebay.environments.dist_requirements import canonicalize_name
from enginebay.environments.versions import version_key
from enginebay.errors import EngineMissing, UsageError
from enginebay.util.text_format import find_nearest

# What the worker imports in every engine environment. The generated messages need protobuf 4.25 or newer.
WORKER_REQUIREMENTS = (
    "grpcio>=1.62.3",
    "protobuf>=4.25.3",
    "grpcio-health-checking>=1.62.3",
    "grpcio-reflection>=1.62.3",
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class InstallTarget:
    """One thing to install: an engine with a recipe, or a package that provides an engine."""

    spec: EngineSpec | None
    version: str | None = None
    package: str = ""


def parse_target(requested: str, specs: Mapping[str, EngineSpec], is_package: bool = False) -> InstallTarget:
    """Parse `KIND`, `KIND==VERSION`, a path or a requirement."""
    name, _, version = (part.strip() for part in requested.partition("=="))
    known = {**{alias: spec for spec in specs.values() for alias in spec.aliases}, **specs}
    if is_package or not _PLAIN_NAME.fullmatch(name) or name.endswith((".whl", ".tar.gz")):
        return InstallTarget(None, package=requested)
    if name in known:
        return InstallTarget(known[name], version or None)
    # A typo must not install an unrelated package from the index.
    near = find_nearest(name, known)
    raise UsageError(
        f"unknown engine {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
        f"for a package that provides an engine: bay engines install --package {requested}",
    )


def select_recipe(spec: EngineSpec, device: str) -> Recipe:
    """Return the recipe for `device` ("cpu" or "cuda"). Falls back to the CPU recipe on a GPU host."""
    for when in (device, "any", "cpu"):
        for recipe in spec.recipes:
            if recipe.when == when:
                return recipe
    if not spec.recipes:
        raise UsageError(
            f"{spec.kind} has no install recipe", "install the package that provides it: bay engines install PACKAGE"
        )
    raise EngineMissing(f"{spec.kind} has no install recipe for a {device} host")


def fill_step(step: tuple[str, ...], version: str, requires: list[str] | None = None) -> list[str]:
    """Return a step's pip arguments. `{requires}` expands to one argument per requirement."""
    arguments: list[str] = []
    for argument in step[1:] if step[:1] == ("install",) else step:
        if argument == "{requires}":
            arguments += requires or []
        else:
            arguments.append(argument.replace("{version}", version))
    return arguments


def find_pins(recipe: Recipe) -> list[str]:
    """Return pip's arguments for the versions that were tested together, if the recipe has such a list."""
    package, _, file = recipe.pins.partition(":")
    try:
        path = files(package) / file if file else None
    except ModuleNotFoundError:  # an engine that is installed in its own environment only
        return []
    return ["-c", str(path)] if path is not None and path.is_file() else []


def uses_requirements(step: tuple[str, ...]) -> bool:
    return "{requires}" in step


def is_pin(line: str) -> bool:
    """Return whether a line of `pip freeze` can be a constraint; a package from a path cannot."""
    return "==" in line and " @ " not in line


def are_satisfied(requirements: Sequence[str], frozen: Sequence[str]) -> bool:
    """Return whether the frozen packages satisfy every `name>=version`."""
    installed = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in frozen if is_pin(line))
    }
    minimums = [requirement.split(">=") for requirement in requirements]
    return all(
        version_key(installed.get(canonicalize_name(name), "0")) >= version_key(least) for name, least in minimums
    )
