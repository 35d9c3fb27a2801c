"""The target of a bundle (Python, platform, architecture, glibc) and pip's options for it. Pure."""

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
    glibc: str = DEFAULT_GLIBC  # the host has this version or newer
    platform: str = "linux"


def parse_target(python: str | None, system: str, arch: str | None, glibc: str | None) -> TargetPlatform:
    """Parse the target options. Defaults to this host's values. Raises `UsageError`."""
    here = describe_this_python()
    python, arch = python or here["python"], arch or here["arch"]
    if not re.fullmatch(r"3\.\d+", python) or int(python[2:]) < MIN_PYTHON[1]:
        raise UsageError(f"--python {python} is not supported", "use 3.11 or newer, as in --python 3.12")
    if system != "linux":
        raise UsageError(f"--platform {system} is not supported", "use --platform linux")
    if arch.lower() not in ARCHS:
        raise UsageError(f"--arch {arch} is not supported", "use --arch x86_64 or --arch aarch64")
    if glibc is not None and not re.fullmatch(r"2\.\d+", glibc):
        raise UsageError(f"--glibc {glibc} is not a glibc version", "see `ldd --version`, as in --glibc 2.28")
    return TargetPlatform(python, ARCHS[arch.lower()], glibc or DEFAULT_GLIBC, system)


def list_platform_tags(target: TargetPlatform) -> list[str]:
    """Return the accepted platform tags. The oldest comes first and is preferred: it runs on the most hosts."""
    newest = int(target.glibc.partition(".")[2])
    tags = [f"{name}_{target.arch}" for name, minor in _LEGACY_TAGS.items() if minor <= newest]
    tags += [f"manylinux_2_{minor}_{target.arch}" for minor in range(5, newest + 1)]
    return [*tags, f"linux_{target.arch}"]


def build_pip_options(target: TargetPlatform) -> list[str]:
    tags = [option for tag in list_platform_tags(target) for option in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python, *tags]


def build_marker_values(target: TargetPlatform) -> dict[str, str]:
    """Return the target's environment marker values. pip would use this host's, even for another target."""
    here = platform.python_version()
    full = here if here.startswith(f"{target.python}.") else f"{target.python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": target.arch,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": target.python,
        "sys_platform": "linux",
    }


def find_required_glibc(wheels: Iterable[str]) -> str:
    """Return the glibc that all of these wheels need, by their file names; empty if any will do."""
    minor = max((_find_oldest_glibc(name) for name in wheels), default=0)
    return f"2.{minor}" if minor else ""


def _find_oldest_glibc(wheel: str) -> int:
    minors = [int(new) if new else _LEGACY_TAGS[old] for new, old in _GLIBC_TAG.findall(wheel)]
    return min(minors, default=0)
