from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from enginebay import __version__
from enginebay.bundle.creation import wheels
from enginebay.bundle.creation.wheels import build_own_wheel
from enginebay.errors import FetchFailed
from tests.unit.bundle.small_bundle import ignore_progress, make_tiny_wheel


def assert_record_is_right(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        lines = {row[0]: row[1:] for row in csv.reader(archive.read(record).decode().splitlines())}
        assert set(lines) == set(archive.namelist())
        for name in set(lines) - {record}:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            assert lines[name] == [f"sha256={digest}", str(archive.getinfo(name).file_size)]


def pip_installs(wheel: Path, into: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(into)]
    subprocess.run([*pip, str(wheel)], check=True)


def test_a_trimmed_wheel_is_a_wheel_that_pip_installs(tmp_path: Path) -> None:
    repetitive = "the same again " * (1 << 20)  # as large as kernels, and as dull
    wheel = make_tiny_wheel(tmp_path, "engine", "2.0", tiny__kept="kept", tiny__gone="gone", tiny__large=repetitive)
    (tmp_path / "to").mkdir()
    made = wheels.copy_without(wheel, ["tiny/gone"], "sm90", tmp_path / "to", ignore_progress)
    assert made.name == "engine-2.0-0sm90-py3-none-any.whl"
    assert wheels.read_name_and_version(made) == ("engine", "2.0")
    assert_record_is_right(made)
    with zipfile.ZipFile(made) as archive:
        assert "Build: 0sm90" in archive.read("engine-2.0.dist-info/WHEEL").decode()
        assert archive.getinfo("tiny/large").compress_type == zipfile.ZIP_LZMA
        assert archive.getinfo("tiny/kept").compress_type == zipfile.ZIP_DEFLATED
    pip_installs(made, tmp_path / "site")
    assert (tmp_path / "site" / "tiny" / "large").read_text() == repetitive
    assert not (tmp_path / "site" / "tiny" / "gone").exists()


def test_a_trimmed_wheel_keeps_executable_bits(tmp_path: Path) -> None:
    wheel = make_tiny_wheel(tmp_path, "engine")
    with zipfile.ZipFile(wheel, "a") as archive:
        entry = zipfile.ZipInfo("engine_bin/run")
        entry.external_attr = 0o100755 << 16
        archive.writestr(entry, "#!/bin/sh\n")
    (tmp_path / "to").mkdir()
    made = wheels.copy_without(wheel, [], "x", tmp_path / "to", ignore_progress)
    with zipfile.ZipFile(made) as archive:
        assert archive.getinfo("engine_bin/run").external_attr >> 16 == 0o100755


def test_our_own_wheel_holds_the_running_package_and_its_command(tmp_path: Path) -> None:
    made = build_own_wheel(tmp_path)
    assert made.name == f"enginebay-{__version__}-py3-none-any.whl"
    assert wheels.read_name_and_version(made) == ("enginebay", __version__)
    assert_record_is_right(made)
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        assert (
            "bay = enginebay.cli.main:run"
            in archive.read(f"enginebay-{__version__}.dist-info/entry_points.txt").decode()
        )
    assert {
        "enginebay/cli/main.py",
        "enginebay/bundle/standalone.py",
        "enginebay/server/api/openapi/docs_page.html",
    } <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    assert build_own_wheel(tmp_path / "again").read_bytes() == made.read_bytes()


def test_a_file_that_is_not_a_wheel_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x-1-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(FetchFailed, match="is not a wheel"):
        wheels.read_name_and_version(tmp_path / "x-1-py3-none-any.whl")
