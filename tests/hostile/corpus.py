"""Every case of the corpus: those of each `corpus_*.py` beside this file.

A corpus is a module with `CASES`, or with lists of names and chat fields by what is expected: `REFUSED`, `EITHER`, `ORDINARY`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.hostile.hostile_case import Expected, HostileCase, make_case

HERE = Path(__file__).parent
EXPECTED: dict[str, Expected] = {"REFUSED": "refused", "EITHER": "any", "ORDINARY": "supported"}


def load_corpus() -> list[HostileCase]:
    cases = [case for path in sorted(HERE.glob("corpus_*.py")) for case in _load_module(path.stem)]
    twins = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    assert not twins, twins
    return cases


def _load_module(name: str) -> Iterator[HostileCase]:
    module = import_module(f"tests.hostile.{name}")
    yield from getattr(module, "CASES", ())
    for attribute, expected in EXPECTED.items():
        for title, fields in getattr(module, attribute, ()):
            words = f"{name.removeprefix('corpus_')} {title}".replace(" ", "-")
            yield make_case(words, fields, expected)
