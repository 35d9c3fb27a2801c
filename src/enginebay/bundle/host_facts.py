"""Prints, as JSON, what a Python is and which packages it sees. A script: run by the Python that is asked."""

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
    """Where its packages lie: its import path, less the standard library and this script's folder."""
    own = os.path.dirname(os.path.abspath(__file__))
    standard = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}
    skipped = {own, *standard, *(os.path.join(path, "lib-dynload") for path in standard)}
    return [path for path in sys.path if os.path.isdir(path) and os.path.abspath(path) not in skipped]  # noqa: PTH112


def list_packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for one in distributions(path=list_package_paths()):
        if one.metadata["Name"] and one.version:
            found.setdefault(re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(), one.version)
    return found


if __name__ == "__main__":
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standalone.py")
    facts = runpy.run_path(beside)["facts_of_this_python"]()
    lzma = find_spec("_lzma") is not None  # a Python may be built without it
    print(json.dumps({"facts": facts, "paths": list_package_paths(), "packages": list_packages(), "lzma": lzma}))
