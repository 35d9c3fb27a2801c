"""Prints the requirements of an installed distribution, one per line.

Runs as a script in the new environment (`dist_requirements.py DISTRIBUTION,... DROPPED,...`) and uses pip's parser.
A recipe that installs a library with --no-deps then installs these, except the dropped ones.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires


def canonicalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def list_requirements(distributions: list[str], dropped: list[str]) -> list[str]:
    """Return the requirements of the first installed distribution, with markers evaluated for this Python."""
    from pip._vendor.packaging.requirements import Requirement

    excluded = {canonicalize_name(name) for name in dropped}
    requirements: list[str] = []
    for text in _read_declared(distributions):
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and canonicalize_name(requirement.name) not in excluded:
            requirement.marker = None
            requirements.append(str(requirement))
    return requirements


def _read_declared(distributions: list[str]) -> list[str]:
    for name in distributions:
        try:
            return requires(name) or []
        except PackageNotFoundError:
            continue
    sys.exit(f"none of {', '.join(distributions)} is installed")


if __name__ == "__main__":
    names = [[name for name in argument.split(",") if name] for argument in sys.argv[1:3]]
    print("\n".join(list_requirements(*names)))
