"""Prints a Python's platform facts and packages as JSON. A script, run by the Python in question."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import sysconfig
from importlib.metadata import distributions
from importlib.util import find_spec


def list_package_paths() -> list[str]:
    """Return the import path without the standard library and this script's folder."""
    own = os.path.dirname(os.path.abspath(__file__))
    standard = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}
    skipped = {own, *standard, *(os.path.join(path, "lib-dynload") for path in standard)}
    return [path for path in sys.path if os.path.isdir(path) and os.path.abspath(path) not in skipped]  # noqa: PTH112


def list_packages() -> dict[str, str]:
    packages: dict[str, str] = {}
    for package in distributions(path=list_package_paths()):
        if package.metadata["Name"] and package.version:
            packages.setdefault(re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower(), package.version)
    return packages


if __name__ == "__main__":
    standalone = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standalone.py")
    facts = runpy.run_path(standalone)["describe_this_python"]()
    lzma = find_spec("_lzma") is not None  # a Python may be built without it
    print(json.dumps({"facts": facts, "paths": list_package_paths(), "packages": list_packages(), "lzma": lzma}))
