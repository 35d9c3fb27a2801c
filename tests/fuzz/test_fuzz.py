"""Random hostile requests on every engine, for `ENGINEBAY_FUZZ_S` seconds each (60 unless set).

The rules are those of `tests/hostile`. A failure prints its seed and number; to send that request alone:

    ENGINEBAY_FUZZ_SEED=7 ENGINEBAY_FUZZ_NUMBER=123 pytest tests/fuzz -k llamacpp

What is found and mended joins the corpus in `tests/hostile`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from random import SystemRandom

import pytest

from tests.fuzz.random_cases import make_random_case
from tests.hostile.site_keeper import SiteKeeper

SECONDS = float(os.environ.get("ENGINEBAY_FUZZ_S", "60"))
SEED = int(os.environ.get("ENGINEBAY_FUZZ_SEED", SystemRandom().randrange(10**6)))
NUMBER = os.environ.get("ENGINEBAY_FUZZ_NUMBER")
MAX_FAILURES = 20


def _list_numbers() -> Iterator[int]:
    """One number, or one after the other until the time is over."""
    if NUMBER is not None:
        yield int(NUMBER)
        return
    began, number = time.monotonic(), 0
    while time.monotonic() - began < SECONDS:
        yield number
        number += 1


@pytest.mark.timeout(SECONDS * 3 + 900)
def test_random_requests(keeper: SiteKeeper) -> None:
    failures: list[str] = []
    sent = 0
    for number in _list_numbers():
        case, sent = make_random_case(SEED, number), sent + 1
        try:
            keeper.attack_alone(case)
        except AssertionError as failure:
            failures.append(f"{case.name}: {str(failure)[:1500]}")
            print(failures[-1], flush=True)
        if len(failures) == MAX_FAILURES:
            break
    print(f"{sent} requests, seed {SEED}")
    assert sent and not failures, f"seed {SEED}, {len(failures)} of {sent} failed:\n" + "\n".join(failures)
    keeper.site.assert_honest_unharmed()
    keeper.site.assert_memory_back()
