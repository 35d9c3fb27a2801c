"""Runs pip as if on the target host: environment markers get its values, and some dependencies are not followed.

A script of its own (`pip_for_target.py ORDER RECORD pip arguments…`), since it changes pip from inside, for which pip
has no option: it decides markers by the Python that runs it, and follows every dependency or none. ORDER is JSON: `markers`
(name: value), `left_out` (names nobody gets), `drop` (distribution: names it does not get; "*" for all). RECORD gets one
JSON line for each dependency seen.
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

    there = {**markers.default_environment(), **values}
    markers.default_environment = lambda: dict(there)
    asked = f"python_full_version == '{values['python_full_version']}' and platform_machine == '{values['platform_machine']}'"
    if not markers.Marker(asked).evaluate():
        sys.exit("ERROR: this version of pip cannot be told what the target host is like")


def filter_dependencies(
    left_out: set[str], drop: dict[str, list[str]], record: Callable[[dict[str, Any]], None]
) -> None:
    from pip._internal.metadata import select_backend

    found: Any = select_backend().Distribution
    all_of_them = found.iter_dependencies

    def iter_dependencies(self: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        name = normalize_name(self.raw_name)
        dropped = drop.get(name, ())
        for one in all_of_them(self, *arguments, **named):
            wanted = normalize_name(one.name)
            followed = wanted not in left_out and wanted not in dropped and "*" not in dropped
            wish = one.name + (f"[{','.join(sorted(one.extras))}]" if one.extras else "") + str(one.specifier)
            record({"name": name, "version": str(self.version), "requires": wish, "followed": followed})
            if followed:
                yield one

    found.iter_dependencies = iter_dependencies


def main(arguments: list[str]) -> int:
    order = json.loads(arguments[0])
    override_markers(order["markers"])
    with open(arguments[1], "w", encoding="utf-8") as file:  # noqa: PTH123

        def record(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")

        left_out = {normalize_name(name) for name in order["left_out"]}
        drop = {normalize_name(name): [normalize_name(one) for one in names] for name, names in order["drop"].items()}
        filter_dependencies(left_out, drop, record)
        from pip._internal.cli.main import main as pip

        return int(pip(arguments[2:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
