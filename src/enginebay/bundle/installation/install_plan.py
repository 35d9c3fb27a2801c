"""Which wheels of a bundle a host needs, and whether it has what it was said to have. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from enginebay.bundle.bundle_manifest import BundledEngine, BundledPackage
from enginebay.bundle.creation.engine_requirements import parse_requirement_name


@dataclass(frozen=True, slots=True)
class EngineInstallPlan:
    install: tuple[BundledPackage, ...]
    kept: Mapping[str, str]  # the host's own, which fit: name and version


def accepts(requirement: str, version: str) -> bool:
    """Whether a version meets a requirement; what cannot be read is left to the import that follows."""
    try:
        return bool(Requirement(requirement).specifier.contains(Version(version), prereleases=True))
    except (InvalidRequirement, InvalidVersion):
        return True


def find_unmet(engine: BundledEngine, installed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """What the host was said to have: the names that are not there, and a line for each that is of another version."""
    gone, other = dict[str, None](), []
    for requirement, by in (engine.expects or {}).items():
        name = parse_requirement_name(requirement)
        if name not in installed:
            gone[name] = None
        elif not accepts(requirement, installed[name]):
            other.append(f"{', '.join(by)} wants {requirement}, and the host has {installed[name]}")
    return list(gone), other


def plan_engine_install(
    engine: BundledEngine, packages: Sequence[BundledPackage], installed: Mapping[str, str]
) -> EngineInstallPlan:
    """The host's own packages come first where they fit: its other packages were installed to go with them.

    The engine itself always comes from the bundle. `there` is empty for an environment that sees nothing of the host.
    """
    wishes = [*engine.needs, *(wish for one in packages for wish in one.requires)]
    install, kept = [], {}
    for one in packages:
        version = installed.get(one.name)
        fits = version is not None and all(
            accepts(wish, version) for wish in wishes if parse_requirement_name(wish) == one.name
        )
        if version is not None and fits and one.name not in engine.distributions:
            kept[one.name] = version
        else:
            install.append(one)
    return EngineInstallPlan(tuple(install), kept)


def find_conflicts(chosen: EngineInstallPlan, installed: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each installed package that would not go with a new one; `there`: who, requirement."""
    new = {one.name: one for one in chosen.install}
    return [
        f"{who} needs {requirement}, and the bundle brings {new[parse_requirement_name(requirement)].version}"
        for who, requirement in installed
        if who not in new
        and parse_requirement_name(requirement) in new
        and not accepts(requirement, new[parse_requirement_name(requirement)].version)
    ]
