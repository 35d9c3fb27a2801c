"""A real bundle for this host: created with pip, corrupted, repaired, and installed with nothing but Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BAY = [sys.executable, "-m", "enginebay.cli.main"]
# pip has no index, and other network access reaches a closed port.
NO_NETWORK = {
    "PIP_NO_INDEX": "1",
    "HF_HUB_OFFLINE": "1",
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
}


def run(command: list[str], expect: int = 0, **environ: str) -> tuple[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") or not environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**env, **environ})
    assert done.returncode == expect, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "bundle"
    run([*BAY, "bundle", "create", "--engine", "llamacpp", "--model", "smollm2", "--split", "60MB", "-o", str(out)])
    return out


@pytest.fixture(scope="module")
def host(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Another host: the bundle's install.py, run by a Python that has no packages."""
    home = tmp_path_factory.mktemp("host")
    bare = [getattr(sys, "_base_executable", sys.executable), "-I", "-S", str(bundle / "install.py")]
    environ = {**NO_NETWORK, "ENGINEBAY_HOME": str(home)}
    run(bare, **environ)
    return environ


def test_it_is_in_parts_and_every_package_has_its_hash(bundle: Path) -> None:
    shown = json.loads(run([*BAY, "bundle", "show", str(bundle), "--json"])[0])
    assert sorted(path.name for path in bundle.iterdir()) == sorted(
        ["bundle.json", "install.py", *(part["file"] for part in shown["parts"])]
    )
    assert all(part["size"] <= 60_000_000 for part in shown["parts"]) and len(shown["parts"]) > 1
    names = {one["name"] for one in shown["packages"] if len(one["file"]["sha256"]) == 64}
    assert {"enginebay", "pip", "xllamacpp", "grpcio"} <= names
    assert [model["manifest"]["name"] for model in shown["models"]] == ["smollm2"]


def test_a_corrupt_part_is_named_and_not_installed(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    with (copy / "bundle.tar.002").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"damage")
    assert "bundle.tar.002 is corrupt" in run([*BAY, "bundle", "verify", str(copy)], expect=1)[1]
    environ = {**NO_NETWORK, "ENGINEBAY_HOME": str(tmp_path / "home")}
    assert "bundle.tar.002 is corrupt" in run([*BAY, "bundle", "install", str(copy)], expect=1, **environ)[1]
    shutil.copy(bundle / "bundle.tar.002", copy)
    run([*BAY, "bundle", "verify", str(copy)])


def test_the_other_host_answers_without_a_network(host: dict[str, str]) -> None:
    home = Path(host["ENGINEBAY_HOME"])
    bay = str(home / "bay" / "bin" / "bay")
    answer, _ = run([bay, "run", "smollm2", "Why is the sky blue?", "--max-tokens", "12", "--offline"], **host)
    assert len(answer.split()) >= 5
    (row,) = (
        one for one in json.loads(run([bay, "engines", "list", "--json"], **host)[0]) if one["kind"] == "llamacpp"
    )
    assert row["installed"] and row["where"].startswith(str(home / "engines"))


def test_a_second_install_does_nothing(bundle: Path, host: dict[str, str]) -> None:
    _, said = run([sys.executable, str(bundle / "install.py")], **host)
    assert "llamacpp" in said and said.count("already") == 3


def test_the_engine_can_be_installed_into_bays_environment(bundle: Path, host: dict[str, str]) -> None:
    bay = str(Path(host["ENGINEBAY_HOME"]) / "bay" / "bin" / "bay")
    run([bay, "bundle", "install", str(bundle), "--into", "current"], **host)
    rows = json.loads(run([bay, "engines", "list", "--json"], **host)[0])
    assert "this environment" in [row["where"] for row in rows if row["kind"] == "llamacpp"]
