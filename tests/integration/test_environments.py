"""Real environments with real pip: atomic builds, side-by-side versions, removal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ECHO = Path(__file__).parents[2] / "examples" / "engine-echo"
INSTALL_S = 300


class Bay:
    """The bay command with a separate home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.engines = home / "engines"
        self.env = {**os.environ, "ENGINEBAY_HOME": str(home)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "enginebay.cli.main", "engines", *arguments]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, *arguments: str, expect: int = 0) -> tuple[str, str]:
        running = self.start(*arguments)
        out, err = running.communicate(timeout=INSTALL_S)
        assert running.returncode == expect, err
        return out, err

    def listed(self, kind: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self("list", "--json")[0])
        return [row for row in rows if row["kind"] == kind and row["installed"]]

    def built(self) -> list[Path]:
        return list((self.engines / ".store").glob("*"))

    def published(self) -> list[str]:
        return sorted(path.name for path in self.engines.glob("[!.]*"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Bay:
    """A home with the echo engine in it."""
    bay = Bay(tmp_path_factory.mktemp("home"))
    bay("install", str(ECHO))
    return bay


@pytest.fixture
def bay(tmp_path: Path) -> Iterator[Bay]:
    yield Bay(tmp_path / "home")


def package(folder: Path, version: str, broken: bool = False) -> Path:
    """Another version of the echo package, or one whose engine cannot be imported."""
    shutil.copytree(ECHO, folder, ignore=shutil.ignore_patterns("__pycache__"))
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "0.1.0"', f'version = "{version}"'))
    if broken:
        (folder / "src" / "engine_echo" / "engine.py").write_text("import a_library_that_is_not_there\n")
    return folder


def wait_for_pip(bay: Bay, running: subprocess.Popen[str]) -> None:
    """Until pip is at work in the new environment."""
    limit = time.monotonic() + 120
    while running.poll() is None and time.monotonic() < limit:
        if any("Processing" in log.read_text() for log in (bay.home / "logs").glob("install-*.log")):
            return
        time.sleep(0.02)
    pytest.fail(f"pip never started: {running.communicate()}")


def users_of(path: Path) -> list[str]:
    """Command lines of processes that work in a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(path) in line:
            found.append(line)
    return found


def test_a_third_party_engine_gets_its_own_environment(shared: Bay) -> None:
    (row,) = shared.listed("echo")
    folder = shared.engines / "echo-0.1.0"
    assert row["version"] == "0.1.0"
    assert json.loads((folder / "spec.json").read_text())["engine"] == "engine_echo.engine:EchoEngine"
    assert json.loads((folder / "probe.json").read_text())["version"] == "0.1.0"
    assert "grpcio==" in (folder / "freeze.txt").read_text()


def test_its_python_and_its_console_scripts_work(shared: Bay) -> None:
    folder = shared.engines / "echo-0.1.0"
    for command in ([str(folder / "bin" / "python"), "-m", "pip", "list"], [str(folder / "bin" / "pip"), "list"]):
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "engine-echo" in listed


def test_enginebay_itself_is_not_in_it(shared: Bay) -> None:
    assert "enginebay" not in (shared.engines / "echo-0.1.0" / "freeze.txt").read_text().replace(str(ECHO), "")


def test_two_versions_live_side_by_side_and_go_one_by_one(shared: Bay, tmp_path: Path) -> None:
    shared("install", str(package(tmp_path / "newer", "0.2.0")))
    assert [row["version"] for row in shared.listed("echo")] == ["0.2.0", "0.1.0"]
    _, err = shared("remove", "echo", expect=2)
    assert "installed 2 times" in err
    shared("remove", "echo==0.2.0")
    assert shared.published() == ["echo-0.1.0"]
    assert len(shared.built()) == 1


def test_an_engine_that_cannot_start_is_not_installed(shared: Bay, tmp_path: Path) -> None:
    _, err = shared("install", str(package(tmp_path / "broken", "0.3.0", broken=True)), expect=1)
    assert "a_library_that_is_not_there" in err
    assert "Traceback" not in err.splitlines()[0]
    assert shared.published() == ["echo-0.1.0"]
    assert len(shared.built()) == 1


def test_a_killed_install_publishes_nothing_and_the_next_one_cleans_up(bay: Bay) -> None:
    running = bay.start("install", str(ECHO))
    wait_for_pip(bay, running)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    assert bay.published() == []
    assert len(bay.built()) == 1
    limit = time.monotonic() + 30
    while users_of(bay.engines) and time.monotonic() < limit:
        time.sleep(0.05)
    assert users_of(bay.engines) == [], "pip outlived the install"
    bay("install", str(ECHO))
    assert bay.published() == ["echo-0.1.0"]
    assert len(bay.built()) == 1


def test_ctrl_c_leaves_nothing_at_all(bay: Bay) -> None:
    running = bay.start("install", str(ECHO))
    wait_for_pip(bay, running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert (bay.published(), bay.built()) == ([], [])


def test_a_missing_package_fails_with_pips_last_lines(bay: Bay) -> None:
    _, err = bay("install", "--package", "./no/such/package", expect=1)
    assert "no/such/package" in err
    assert "install-package-no-such-package.log" in err
    assert (bay.published(), bay.built()) == ([], [])
