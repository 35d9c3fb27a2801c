from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from enginebay.bundle.installation.host_python import check_target, inspect_python
from enginebay.errors import EnginebayError
from tests.unit.bundle.small_bundle import make_small_bundle


def test_a_python_reports_its_facts_and_packages() -> None:
    python = inspect_python(sys.executable)
    assert python.facts["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert "pytest" in python.packages and python.lzma


def test_a_trimmed_bundle_needs_a_python_with_lzma(tmp_path: Path) -> None:
    manifest = make_small_bundle(tmp_path)
    python = replace(inspect_python(sys.executable), lzma=False)
    check_target(manifest, python)
    trimmed = replace(manifest, trim="sm90")
    check_target(trimmed, replace(python, lzma=True))
    with pytest.raises(EnginebayError, match="without lzma") as caught:
        check_target(trimmed, python)
    assert "\n" not in caught.value.message and "--python" in caught.value.hint
