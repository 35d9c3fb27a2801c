"""Downloads wheels for another host, in rounds of `pip download --no-deps`.

pip evaluates markers for the running Python, even with `--platform`, and follows every dependency or none. So this
module reads each wheel's dependencies itself, with the target's markers, and asks pip for the best version of each.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from enginebay.bundle.creation.target_platform import TargetPlatform, build_marker_values, build_pip_options
from enginebay.bundle.creation.wheels import read_metadata
from enginebay.environments.command_runner import CommandRunner
from enginebay.environments.dist_requirements import canonicalize_name
from enginebay.errors import FetchFailed

_QUIET = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
_PIP = (sys.executable, "-m", "pip", "download", "--no-deps", *_QUIET)
_NOT_FOUND = re.compile(r"No matching distribution found for ([\w.-]+)")
_MAX_ROUNDS = 100


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


@dataclass(frozen=True, slots=True)
class _Wheel:
    path: Path
    name: str
    version: str
    requires: tuple[Requirement, ...]


def download_wheels(
    label: str,
    requirements: Iterable[str],
    folder: Path,
    target: TargetPlatform,
    commands: CommandRunner,
    left_out: Iterable[str] = (),
    drop: Mapping[str, list[str]] | None = None,
) -> DownloadedWheels:
    """Download the requirements and their dependencies for the target. Raises `FetchFailed` with pip's error.

    Never downloads what `left_out` names. `drop` maps a distribution to the dependencies not to follow; "*" means all.
    """
    shutil.rmtree(folder, ignore_errors=True)  # pip caches downloads itself
    folder.mkdir(parents=True)
    pip = [*_PIP, "--dest", str(folder), *build_pip_options(target)]
    reason = "no set of versions meets them all"
    resolution = _Resolution(list(map(Requirement, requirements)), target, left_out, drop or {})
    for _ in range(_MAX_ROUNDS):
        pending = resolution.choose_wheels(folder)
        if not pending:
            break
        logged = commands.path.stat().st_size
        try:
            commands.run(f"fetching {label}", [*pip, *pending])
        except FetchFailed as error:
            errors = _read_errors(commands.path, logged)
            if not errors:
                raise
            reason = errors[-1]
            if not resolution.exclude_conflict(reason):
                raise _build_failure(label, target, reason, commands.path) from error
    else:
        raise _build_failure(label, target, f"the requirements contradict each other: {reason}", commands.path)
    return DownloadedWheels(
        tuple(sorted(wheel.path for wheel in resolution.chosen.values())), tuple(resolution.list_edges())
    )


class _Resolution:
    """The newest versions that meet each other's requirements, as far as the downloaded wheels tell."""

    def __init__(
        self, roots: list[Requirement], target: TargetPlatform, left_out: Iterable[str], drop: Mapping[str, list[str]]
    ) -> None:
        self._markers = build_marker_values(target)
        self._roots = [root for root in roots if root.marker is None or root.marker.evaluate(self._markers)]
        self._left_out = set(map(canonicalize_name, left_out))
        self._drop = {canonicalize_name(name): set(map(canonicalize_name, names)) for name, names in drop.items()}
        self._wheels: dict[Path, _Wheel] = {}
        self._demands: dict[str, list[tuple[str, Requirement]]] = {}  # by name: the user, and what it requires
        self._followed: set[tuple[str, str]] = set()  # name and extra
        self._excluded: dict[str, str] = defaultdict(str)  # name: specifiers
        self.chosen: dict[str, _Wheel] = {}

    def choose_wheels(self, folder: Path) -> list[str]:
        """Choose among the wheels in the folder. Return the requirements that none of them meets."""
        self._wheels |= {path: _read_wheel(path) for path in set(folder.glob("*.whl")) - set(self._wheels)}
        for _ in range(_MAX_ROUNDS):
            self._collect_demands()
            chosen = {name: wheel for name in self._demands if (wheel := self._find_best(name)) is not None}
            if chosen == self.chosen:
                break
            self.chosen = chosen
        else:
            raise FetchFailed("the requirements contradict each other: no set of versions meets them all")
        return [self._format_demand(name) for name in self._demands if name not in self.chosen]

    def exclude_conflict(self, error: str) -> bool:
        """Exclude a version whose requirement nothing meets, alone or with those of others. Return whether there is one."""
        match = _NOT_FOUND.search(error)
        demands = self._demands.get(canonicalize_name(match[1]), []) if match else []
        users = [user for user, _ in reversed(demands) if user and not self._is_pinned(user)]
        if not users:
            return False
        self._excluded[users[0]] += f",!={self.chosen[users[0]].version}"
        return True

    def list_edges(self) -> Iterator[DependencyEdge]:
        for name, extra in sorted(self._followed):
            wheel = self.chosen[name]
            for required in self._iter_requirements(wheel, extra):
                extras = f"[{','.join(sorted(required.extras))}]" if required.extras else ""
                text = f"{required.name}{extras}{required.specifier}"
                yield DependencyEdge(name, wheel.version, text, self._is_followed(name, required))

    def _collect_demands(self) -> None:
        self._demands, self._followed = {}, set()
        queue = [("", root) for root in self._roots]
        for user, requirement in queue:  # grows on the way
            name = canonicalize_name(requirement.name)
            self._demands.setdefault(name, []).append((user, requirement))
            for extra in {"", *requirement.extras}:
                if name in self.chosen and (name, extra) not in self._followed:
                    self._followed.add((name, extra))
                    wheel = self.chosen[name]
                    requirements = self._iter_requirements(wheel, extra)
                    queue += [(name, required) for required in requirements if self._is_followed(name, required)]

    def _iter_requirements(self, wheel: _Wheel, extra: str) -> Iterator[Requirement]:
        """Yield what the wheel requires on the target; for an extra, what it adds."""
        for required in wheel.requires:
            plain = required.marker is None or required.marker.evaluate({**self._markers, "extra": ""})
            if plain != bool(extra) and (plain or required.marker.evaluate({**self._markers, "extra": extra})):  # type: ignore[union-attr]
                yield required

    def _is_followed(self, name: str, required: Requirement) -> bool:
        dropped = self._drop.get(name, set())
        return "*" not in dropped and canonicalize_name(required.name) not in self._left_out | dropped

    def _is_pinned(self, name: str) -> bool:
        return any(
            required.url or "==" in str(required.specifier) for user, required in self._demands[name] if not user
        )

    def _find_best(self, name: str) -> _Wheel | None:
        specifiers = self._merge_specifiers(name)
        wheels = [
            wheel
            for wheel in self._wheels.values()
            if wheel.name == name and specifiers.contains(wheel.version, prereleases=True)
        ]
        return max(wheels, key=lambda wheel: Version(wheel.version), default=None)

    def _format_demand(self, name: str) -> str:
        url = next((required.url for _, required in self._demands[name] if required.url), None)
        return f"{name} @ {url}" if url else f"{name}{self._merge_specifiers(name)}"

    def _merge_specifiers(self, name: str) -> SpecifierSet:
        texts = [str(required.specifier) for _, required in self._demands[name]]
        return SpecifierSet(",".join(filter(None, texts)) + self._excluded[name])


def _read_wheel(path: Path) -> _Wheel:
    headers = read_metadata(path)
    requires = tuple(Requirement(text) for text in headers.get_all("Requires-Dist", ()))
    return _Wheel(path, canonicalize_name(headers["Name"]), headers["Version"], requires)


def _read_errors(log: Path, start: int) -> list[str]:
    lines = log.read_bytes()[start:].decode("utf-8", "replace").splitlines()
    return [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]


def _build_failure(label: str, target: TargetPlatform, reason: str, log: Path) -> FetchFailed:
    platform = f"Python {target.python} on {target.platform} {target.arch}"
    return FetchFailed(f"failed to fetch {label} for {platform}: {reason}", f"see pip's full output: {log}")
