"""A writer killed at any moment leaves a complete run, or a partial folder that readers ignore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_no_kill_leaves_half_a_run_or_loses_a_finished_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.lab.store.killed_writer", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    *wrong, (_, killed, _, finished) = [line.split() for line in done.stdout.splitlines()]
    assert wrong == [], done.stdout
    assert int(killed) > 80  # 20 at random moments, and nearly all at a line
    assert int(finished) >= 20
