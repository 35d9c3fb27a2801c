"""One minute of `make soak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone


ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_minute_at_full_load() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "soak.py", "--minutes", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
