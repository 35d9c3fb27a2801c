"""Directories and logs are closed to other users, and a squatted runtime directory is not used."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.errors import ConfigError
from enginebay.util import paths


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Path]:
    """A short temporary directory without XDG_RUNTIME_DIR, as in a container."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(paths, "_SHARED_BASES", (f"{folder}/second",))
        (Path(folder) / "second").mkdir()
        monkeypatch.setenv("ENGINEBAY_HOME", f"{folder}/home")
        yield Path(folder)


def test_a_new_home_is_private(home: Path) -> None:
    paths.prepare_home()
    assert read_mode(home) == 0o700


@pytest.fixture
def default_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ENGINEBAY_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "enginebay"


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_folder_that_the_user_names_keeps_its_mode(home: Path, mode: int) -> None:
    """It may be /srv/models, which others read, or /tmp."""
    (home / "logs").mkdir(parents=True)
    home.chmod(mode)
    (home / "logs").chmod(0o755)
    paths.prepare_home()
    assert (read_mode(home), read_mode(home / "logs")) == (mode, 0o700)


def test_an_open_home_and_its_logs_are_closed(default_home: Path) -> None:
    home = default_home
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "fake-toy.log").write_text("a prompt")
    for path, mode in ((home, 0o755), (home / "logs", 0o755), (home / "logs" / "fake-toy.log", 0o644)):
        path.chmod(mode)
    paths.prepare_home()
    assert [read_mode(path) for path in (home, home / "logs", home / "logs" / "fake-toy.log")] == [0o700, 0o700, 0o600]


def test_access_of_a_group_is_kept(default_home: Path) -> None:
    home = default_home
    home.mkdir()
    home.chmod(0o770)
    paths.prepare_home()
    assert read_mode(home) == 0o770


@pytest.mark.parametrize("append", [True, False])
def test_a_log_is_private_also_if_it_was_not(home: Path, append: bool) -> None:
    log = home / "logs" / "x.log"
    os.close(paths.open_log_file(log, append=append))
    assert (read_mode(log.parent), read_mode(log)) == (0o700, 0o600)
    log.write_text("old ")
    log.chmod(0o644)
    with os.fdopen(paths.open_log_file(log, append=append), "wb") as opened:
        opened.write(b"new")
    assert read_mode(log) == 0o600 and log.read_text() == ("old new" if append else "new")


def test_the_runtime_directory_is_private(short: Path) -> None:
    found = paths.runtime_dir()
    assert found == short / f"enginebay-{os.getuid()}" and read_mode(found) == 0o700
    assert paths.runtime_dir() == found and found in paths.find_runtime_dirs()


def _squat_open(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _squat_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.mkdir(mode=0o700)
    path.symlink_to(target)


@pytest.mark.parametrize("squat", [_squat_open, _squat_link, Path.touch, lambda path: path.symlink_to("/nowhere")])
def test_a_squatted_runtime_directory_is_passed_over(short: Path, squat: object) -> None:
    squatted = short / f"enginebay-{os.getuid()}"
    squat(squatted)  # type: ignore[operator]
    found = paths.runtime_dir()
    assert found == short / "second" / squatted.name and read_mode(found) == 0o700
    (short / "home").mkdir()
    assert paths.runtime_dir() == short / "home" / "run", "a home is nobody else's"
    assert squatted not in paths.find_runtime_dirs()


def test_no_private_directory_at_all(short: Path) -> None:
    for folder in (short, short / "second"):
        (folder / f"enginebay-{os.getuid()}").touch()
    with pytest.raises(ConfigError, match="none of these is a private directory") as caught:
        paths.runtime_dir()
    assert "XDG_RUNTIME_DIR" in caught.value.hint
