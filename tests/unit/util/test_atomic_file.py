"""Atomic files: all of it or nothing, the mode kept, and nothing left behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from enginebay.util.atomic_file import read_json_object, read_json_or_none, write_atomically, write_json

SOURCE = Path(__file__).parents[3] / "src" / "enginebay"


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, "old")
    write_atomically(path, b"new", sync=True)
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_an_open_reader_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with path.open() as reader:
        write_atomically(path, "new")
        assert reader.read() == "old"


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    write_json(tmp_path / "file", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "file", {("not", "a"): "key"})
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "file", 5)  # type: ignore[arg-type]
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", "text")
    assert read_json_object(tmp_path / "file") == {"a": 1}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_the_mode_is_given_or_that_of_the_old_file_or_the_usual_one(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "usual", "")
        write_atomically(tmp_path / "private", "", mode=0o600)
        write_atomically(tmp_path / "private", "again")
    finally:
        os.umask(umask)
    assert (tmp_path / "usual").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_a_new_file_replaces_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    write_atomically(tmp_path / "a", "1", overwrite=False)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "a", "2", overwrite=False)
    monkeypatch.setattr(Path, "hardlink_to", refuse)  # a file system without hard links
    write_atomically(tmp_path / "b", "1", overwrite=False)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "b", "2", overwrite=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "1", "b": "1"}


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("[1]")
    with pytest.raises(ValueError, match="list is not a JSON object"):
        read_json_object(tmp_path / "list")
    (tmp_path / "broken").write_text("[1")
    (tmp_path / "deep").write_text("[" * 100_000)
    assert [read_json_or_none(tmp_path / name) for name in ("list", "broken", "deep", "missing")] == [[1]] + [None] * 3


def test_no_other_module_writes_a_file_and_renames_it() -> None:
    """Folders and links are renamed elsewhere; so is a download that resumes."""
    pattern = re.compile(r"\b(mkstemp|NamedTemporaryFile)\b|\.write_(text|bytes)\([^\n]*\n\s+[^\n]*\.replace\(")
    found = [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if pattern.search(path.read_text())]
    assert found == []
