"""Every case of the corpus: those of each `corpus_*.py` beside this file.

A corpus is a module with `CASES`, or with lists of names and chat fields by what is expected: `REFUSED`, `EITHER`, `ORDINARY`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from zlib import crc32

from tests.hostile.hostile_case import Expected, HostileCase, make_case

HERE = Path(__file__).parent
EXPECTED: dict[str, Expected] = {"REFUSED": "refused", "EITHER": "any", "ORDINARY": "supported"}

# Killed or blocked a worker, kept others waiting, or was answered too late.
ONCE_HARMFUL = {
    "grammar-deep-parentheses",
    "grammar-ambiguous",
    "grammar-ambiguous-stars",
    "grammar-ambiguous-options",
    "grammar-nested-repeats",
    "grammar-many-alternatives",
    "regex-optional-any",
    "regex-optional-letters",
    "regex-optional-five",
    "regex-nul",
    "regex-class-that-matches-nothing",
    "choice-nul",
    "tokenize-1-mb",
    "tokenize-4-mb",
    "detokenize-million",
}


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


def is_in_sample(case: HostileCase) -> bool:
    """Whether `make test-ci` sends this case to real engines too: about a fifth, by name, and what once did harm."""
    return case.name in ONCE_HARMFUL or crc32(case.name.encode()) % 19 < 4
