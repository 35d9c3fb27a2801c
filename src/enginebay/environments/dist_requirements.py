"""Prints what an installed distribution requires here, one requirement a line.

Runs as a script in the new environment (`requires.py DISTRIBUTION,... DROPPED,...`), with pip's own parser: a recipe
that installs a library without its dependencies then installs those, less the ones left out on purpose.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires


def canonicalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def list_requirements(distributions: list[str], dropped: list[str]) -> list[str]:
    """Requirements of the first distribution that is installed, with their markers decided for this Python."""
    from pip._vendor.packaging.requirements import Requirement

    left_out = {canonicalize_name(name) for name in dropped}
    kept: list[str] = []
    for text in _read_declared(distributions):
        one = Requirement(text)
        if canonicalize_name(one.name) in left_out or (
            one.marker is not None and not one.marker.evaluate({"extra": ""})
        ):
            continue
        one.marker = None
        kept.append(str(one))
    return kept


def _read_declared(distributions: list[str]) -> list[str]:
    for name in distributions:
        try:
            return requires(name) or []
        except PackageNotFoundError:
            continue
    sys.exit(f"none of {', '.join(distributions)} is installed")


if __name__ == "__main__":
    given = [[name for name in argument.split(",") if name] for argument in sys.argv[1:3]]
    print("\n".join(list_requirements(*given)))
