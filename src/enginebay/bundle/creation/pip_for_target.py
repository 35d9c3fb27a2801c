"""Runs pip as if on the target host: with its marker values, and without some dependencies.

A script (`pip_for_target.py OPTIONS RECORD pip arguments…`), since it patches pip: pip evaluates markers for the
running Python, and follows every dependency or none. OPTIONS is JSON: `markers` (name: value), `left_out` (names that
nothing gets), `drop` (distribution: dependencies not to follow; "*" for all). RECORD gets one JSON line per dependency.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any


def normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def override_markers(values: dict[str, str]) -> None:
    from pip._vendor.packaging import markers

    environment = {**markers.default_environment(), **values}
    markers.default_environment = lambda: dict(environment)
    expected = f"python_full_version == '{values['python_full_version']}' and platform_machine == '{values['platform_machine']}'"
    if not markers.Marker(expected).evaluate():
        sys.exit("ERROR: this version of pip does not accept the target's marker values")


def filter_dependencies(
    left_out: set[str], drop: dict[str, list[str]], record: Callable[[dict[str, Any]], None]
) -> None:
    from pip._internal.metadata import select_backend

    distribution: Any = select_backend().Distribution
    iter_all = distribution.iter_dependencies

    def iter_dependencies(self: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        name = normalize_name(self.raw_name)
        dropped = drop.get(name, ())
        for dependency in iter_all(self, *arguments, **named):
            required = normalize_name(dependency.name)
            followed = required not in left_out and required not in dropped and "*" not in dropped
            extras = f"[{','.join(sorted(dependency.extras))}]" if dependency.extras else ""
            requires = f"{dependency.name}{extras}{dependency.specifier}"
            record({"name": name, "version": str(self.version), "requires": requires, "followed": followed})
            if followed:
                yield dependency

    distribution.iter_dependencies = iter_dependencies


def main(arguments: list[str]) -> int:
    options = json.loads(arguments[0])
    override_markers(options["markers"])
    with open(arguments[1], "w", encoding="utf-8") as file:  # noqa: PTH123

        def record(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")

        left_out = {normalize_name(name) for name in options["left_out"]}
        drop = {normalize_name(name): list(map(normalize_name, names)) for name, names in options["drop"].items()}
        filter_dependencies(left_out, drop, record)
        from pip._internal.cli.main import main as pip

        return int(pip(arguments[2:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
