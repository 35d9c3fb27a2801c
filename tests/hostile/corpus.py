"""Every case of the corpus: those of each `corpus_*.py` beside this file.

A corpus is a module with `CASES`: cases, or pairs of a name and the fields of a chat request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.hostile.hostile_case import HostileCase, make_case

HERE = Path(__file__).parent


def load_corpus() -> list[HostileCase]:
    cases = [case for path in sorted(HERE.glob("corpus_*.py")) for case in _load_module(path.stem)]
    twins = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    assert not twins, twins
    return cases


def _load_module(name: str) -> Iterator[HostileCase]:
    entries: list[Any] = import_module(f"tests.hostile.{name}").CASES
    for entry in entries:
        yield entry if isinstance(entry, HostileCase) else make_case(f"{name.removeprefix('corpus_')}-{entry[0]}", entry[1])
