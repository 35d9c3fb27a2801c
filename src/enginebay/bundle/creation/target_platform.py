"""The host a bundle is for: Python, system, processor, C library; and how pip is told of it. Pure."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass

from enginebay.bundle.standalone import describe_this_python
from enginebay.errors import UsageError

ARCHS = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
MIN_PYTHON = (3, 11)
DEFAULT_GLIBC = "2.35"  # of 2022
_LEGACY_TAGS = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
_GLIBC_TAG = re.compile(r"manylinux_2_(\d+)_|(manylinux1|manylinux2010|manylinux2014)_")


@dataclass(frozen=True, slots=True)
class TargetPlatform:
    python: str  # "3.12"
    arch: str  # "x86_64" or "aarch64"
    glibc: str = DEFAULT_GLIBC  # the newest that the host is known to have
    platform: str = "linux"


def parse_target(python: str | None, system: str, arch: str | None, glibc: str | None) -> TargetPlatform:
    """The target as asked for; what is not given is this host's. Raises `UsageError`."""
    here = describe_this_python()
    python, arch = python or here["python"], arch or here["arch"]
    if not re.fullmatch(r"3\.\d+", python) or int(python[2:]) < MIN_PYTHON[1]:
        raise UsageError(
            f"--python {python} is not a Python that bay runs on", "give 3.11 or newer, as in --python 3.12"
        )
    if system != "linux":
        raise UsageError(f"bundles for {system} are not made", "only --platform linux")
    if arch.lower() not in ARCHS:
        raise UsageError(f"--arch {arch} is not a known processor", "use --arch x86_64 or --arch aarch64")
    if glibc is not None and not re.fullmatch(r"2\.\d+", glibc):
        raise UsageError(f"--glibc {glibc} is not a version of glibc", "as in --glibc 2.28; `ldd --version` tells it")
    return TargetPlatform(python, ARCHS[arch.lower()], glibc or DEFAULT_GLIBC, system)


def list_platform_tags(wanted: TargetPlatform) -> list[str]:
    """What a wheel's platform may be. The oldest comes first, and is preferred: it runs on the most hosts."""
    newest = int(wanted.glibc.partition(".")[2])
    tags = [f"{name}_{wanted.arch}" for name, minor in _LEGACY_TAGS.items() if minor <= newest]
    tags += [f"manylinux_2_{minor}_{wanted.arch}" for minor in range(5, newest + 1)]
    return [*tags, f"linux_{wanted.arch}"]


def build_pip_options(wanted: TargetPlatform) -> list[str]:
    tags = [option for tag in list_platform_tags(wanted) for option in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", wanted.python, *tags]


def build_marker_values(wanted: TargetPlatform) -> dict[str, str]:
    """What environment markers see there. pip itself would take this host's, even for another target."""
    here = platform.python_version()
    full = here if here.startswith(f"{wanted.python}.") else f"{wanted.python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": wanted.arch,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": wanted.python,
        "sys_platform": "linux",
    }


def find_required_glibc(wheels: Iterable[str]) -> str:
    """The oldest glibc on which all of these wheels run, by their names; empty if any will do."""
    least = max((_find_oldest_glibc(name) for name in wheels), default=0)
    return f"2.{least}" if least else ""


def _find_oldest_glibc(wheel: str) -> int:
    found = [int(new) if new else _LEGACY_TAGS[old] for new, old in _GLIBC_TAG.findall(wheel)]
    return min(found, default=0)
