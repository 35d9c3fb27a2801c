"""`bay experiment` as users run it, on an engine with configurable delays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BAY = Path(sys.executable).with_name("bay")
QUICK = {
    "engine": "fake",
    "model_name": "toy",
    "max_input_tokens": 16,
    "max_output_tokens": 8,
    "num_input_prompts": 40,
    "profile": {"kind": "closed", "concurrency": 4},
    "parity": {"prompts": 2, "tokens": 4},
    "fake": {"step_s": 0.002},
}

Lab = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture()
def lab(tmp_path: Path) -> Lab:
    """Return a function that runs `bay ...` with its own ENGINEBAY_HOME."""

    def run(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ENGINEBAY_HOME": str(tmp_path / "home")}
        return subprocess.run(
            [str(BAY), *arguments], capture_output=True, text=True, timeout=timeout_s, env=environment, cwd=tmp_path
        )

    return run


@pytest.fixture()
def write(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a config file: the quick experiment with changes."""

    def write_config(**changes: Any) -> str:
        path = tmp_path / "study.yaml"
        path.write_text(json.dumps({**QUICK, **changes}))
        return str(path)

    return write_config
