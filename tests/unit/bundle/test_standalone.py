"""What install.py does with its options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from enginebay.bundle.standalone import BundleError, _options

HERE = ["--python", sys.executable]


@pytest.mark.parametrize(
    ("given", "place", "rest"),
    [
        ([], None, HERE),
        (["--venv", "/opt/bay"], "/opt/bay", HERE),
        (["--venv=/opt/bay", "--no-models"], "/opt/bay", ["--no-models", *HERE]),
        (["--python=/usr/bin/python3", "--recreate"], None, ["--recreate", "--python", "/usr/bin/python3"]),
        (["--python", "python3"], None, ["--python", "python3"]),
        (["--py", "python3"], None, ["--py", "python3", *HERE]),  # not ours to guess
        (["--into", "current"], None, ["--into", "current"]),  # bay's own environment, so no other Python
        (["--into=own"], None, ["--into", "own", *HERE]),
        (["--into", "current", "--python", "x"], None, ["--into", "current", "--python", "x"]),  # bay refuses it
    ],
)
def test_options_are_seen_in_both_forms(given: list[str], place: str | None, rest: list[str]) -> None:
    assert _options(given) == (Path(place) if place else None, rest)


@pytest.mark.parametrize("given", [["--venv"], ["--venv="], ["--venv", "--no-models"], ["--python"]])
def test_an_option_without_its_value_is_refused(given: list[str]) -> None:
    with pytest.raises(BundleError, match=given[0].rstrip("=")) as caught:
        _options(given)
    assert "\n" not in caught.value.message and caught.value.hint
