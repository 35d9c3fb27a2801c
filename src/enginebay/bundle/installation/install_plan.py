"""Plans which wheels of a bundle to install, and checks the packages that the host provides. Pure."""

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
    kept: Mapping[str, str]  # suitable packages of the host: name and version


def accepts(requirement: str, version: str) -> bool:
    """Return whether a version satisfies a requirement. Unparsable ones pass: the probe decides."""
    try:
        return bool(Requirement(requirement).specifier.contains(Version(version), prereleases=True))
    except (InvalidRequirement, InvalidVersion):
        return True


def find_unmet(engine: BundledEngine, installed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the expected host packages that are missing, and one line per version mismatch."""
    missing, mismatched = dict[str, None](), []
    for requirement, users in (engine.expects or {}).items():
        name = parse_requirement_name(requirement)
        if name not in installed:
            missing[name] = None
        elif not accepts(requirement, installed[name]):
            mismatched.append(f"{', '.join(users)} needs {requirement}, but the host has {installed[name]}")
    return list(missing), mismatched


def plan_engine_install(
    engine: BundledEngine, packages: Sequence[BundledPackage], installed: Mapping[str, str]
) -> EngineInstallPlan:
    """Prefer the host's packages where they fit, since its other packages depend on them.

    The engine itself always comes from the bundle. `installed` is empty for an environment that does not see the host.
    """
    requirements = [*engine.needs, *(requirement for package in packages for requirement in package.requires)]
    install, kept = [], {}
    for package in packages:
        version = installed.get(package.name)
        fits = version is not None and all(
            accepts(requirement, version)
            for requirement in requirements
            if parse_requirement_name(requirement) == package.name
        )
        if version is not None and fits and package.name not in engine.distributions:
            kept[package.name] = version
        else:
            install.append(package)
    return EngineInstallPlan(tuple(install), kept)


def find_conflicts(plan: EngineInstallPlan, installed: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line per installed package that a new one would break. `installed`: package, requirement."""
    new = {package.name: package for package in plan.install}
    return [
        f"{user} needs {requirement}, but the bundle has {new[parse_requirement_name(requirement)].version}"
        for user, requirement in installed
        if user not in new
        and parse_requirement_name(requirement) in new
        and not accepts(requirement, new[parse_requirement_name(requirement)].version)
    ]
