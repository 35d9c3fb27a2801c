from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.engines.llamacpp import library


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a short path, as a worker's own is."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "temp"))
    (directory / "temp").mkdir()
    (directory / "worker").mkdir()
    yield directory
    shutil.rmtree(directory)


def _made(monkeypatch: pytest.MonkeyPatch, worker: Path | None) -> Path:
    monkeypatch.delenv("ENGINEBAY_WORKER_DIR", raising=False)
    if worker is not None:
        monkeypatch.setenv("ENGINEBAY_WORKER_DIR", str(worker))
    directory = library._make_private_directory()
    assert directory.stat().st_mode & 0o777 == 0o700 and len(str(directory / "s.sock")) < 100
    return directory


def test_the_socket_lies_in_the_workers_own_directory(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _made(monkeypatch, short / "worker").parent == short / "worker"


def test_without_a_usable_one_it_lies_in_the_temporary_directory(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _made(monkeypatch, None).parent == short / "temp"
    assert _made(monkeypatch, short / "gone").parent == short / "temp"


def test_a_long_path_is_passed_over(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = short / ("d" * 80)
    long.mkdir()
    assert _made(monkeypatch, long).parent == short / "temp"
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    directory = _made(monkeypatch, long)
    assert directory.parent == Path("/tmp")
    directory.rmdir()
