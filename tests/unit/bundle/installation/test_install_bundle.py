"""Real installs of tiny bundles: real environments, a real store, no network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from enginebay.bundle.installation import install_engine
from enginebay.bundle.installation.install_bundle import BundleInstallOptions, BundleInstallResult, install_bundle
from enginebay.environments import list_environments
from enginebay.errors import EnginebayError, EngineFailed, UsageError
from enginebay.models import ModelStore
from tests.unit.bundle.small_bundle import (
    flip_byte,
    ignore_progress,
    make_small_bundle,
    make_stored_model,
    make_tiny_wheel,
    rewrite_manifest,
)
from tests.unit.models.tiny_models import write_gguf


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/nobody-listens-here")
    return tmp_path / "home"


def install(folder: Path, **options: object) -> BundleInstallResult:
    return install_bundle(BundleInstallOptions(folder, **options), ignore_progress, ignore_progress)  # type: ignore[arg-type]


def run(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def left_over(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.name in (".bundle", "tiny~bundle") or path.suffix == ".whl"]


def test_an_install_adds_engine_and_model_and_a_second_one_does_nothing(tmp_path: Path, home: Path) -> None:
    engine = {"variables": {"AN_ENGINE": "knows"}}
    make_small_bundle(
        tmp_path / "b", [make_tiny_wheel(tmp_path, "library", "3.1")], make_stored_model(tmp_path), engine
    )
    done = install(tmp_path / "b")
    (made,) = done.engines
    assert done.models == ["tiny"] and done.already_installed == []
    (found,) = list_environments("fake")
    assert (found.version, found.path, found.device) == ("9.9", home / "engines" / "fake-9.9", "cpu")
    assert run(made.python, "import library, os; print(library.VERSION, os.environ['AN_ENGINE'])") == "3.1 knows"
    assert "library==3.1" in (home / "engines" / "fake-9.9" / "freeze.txt").read_text()
    assert ModelStore().verify("tiny") == []
    assert left_over(home) == []
    again = install(tmp_path / "b")
    assert (again.engines, again.models, again.already_installed) == ([], [], ["fake 9.9", "tiny"])


def test_an_environment_sees_the_host_if_the_bundle_counts_on_it(tmp_path: Path, home: Path) -> None:
    old = make_tiny_wheel(tmp_path, "pluggy", "0.1")  # the host has another, which fits
    engine = {"provided": ("pytest",), "expects": {"pytest>=8": ("fake",), "typer<0.1": ("fake",)}}
    said: list[str] = []
    make_small_bundle(tmp_path / "b", [make_tiny_wheel(tmp_path, "library"), old], engine=engine)
    (made,) = install_bundle(
        BundleInstallOptions(tmp_path / "b", python=sys.executable), ignore_progress, said.append
    ).engines
    assert run(made.python, "import library, pytest; print(pytest.__file__)") == str(Path(pytest.__file__))
    assert run(made.python, "import pluggy; print(getattr(pluggy, 'VERSION', ''))") != "0.1"
    assert "# from the host: pluggy==" in (home / "engines" / "fake-9.9" / "freeze.txt").read_text()
    assert any("needs typer<0.1, but the host has" in line for line in said)


def test_missing_provided_packages_are_reported_before_anything_happens(tmp_path: Path, home: Path) -> None:
    engine = {"provided": ("torchless",), "expects": {"torchless==2": ("fake",)}}
    make_small_bundle(tmp_path / "b", [make_tiny_wheel(tmp_path, "library")], engine=engine)
    with pytest.raises(EnginebayError, match="lacks packages that the bundle expects: torchless") as caught:
        install(tmp_path / "b")
    assert "--python" in caught.value.hint
    assert list_environments() == []


def test_a_bundle_for_another_host_is_rejected_in_one_line(tmp_path: Path) -> None:
    make_small_bundle(tmp_path / "b", store=make_stored_model(tmp_path), target={"arch": "sparc"})
    with pytest.raises(EnginebayError, match="is for architecture sparc") as caught:
        install(tmp_path / "b")
    assert "\n" not in caught.value.message and "bay bundle create" in caught.value.hint


def test_a_corrupt_part_is_named_and_nothing_is_published(tmp_path: Path, home: Path) -> None:
    made = make_small_bundle(tmp_path / "b", [make_tiny_wheel(tmp_path, "library")], make_stored_model(tmp_path), {})
    last = made.models[0].files[0].offset // 1000 + 1
    flip_byte(tmp_path / "b" / f"bundle.tar.{last:03d}", made.models[0].files[0].offset % 1000)
    with pytest.raises(EnginebayError, match=rf"bundle\.tar\.{last:03d} is corrupt"):
        install(tmp_path / "b")
    assert list_environments() == [] and ModelStore().list_models() == [] and left_over(home) == []
    (tmp_path / "b" / "bundle.tar.001").unlink()
    with pytest.raises(EnginebayError, match=r"bundle\.tar\.001 is missing"):
        install(tmp_path / "b")


def test_an_engine_that_does_not_start_is_not_installed(tmp_path: Path) -> None:
    broken = make_tiny_wheel(tmp_path, "broken", google__protobuf__x="", enginebay="")
    engine = {"kind": "transformers", "version": "1.0"}
    make_small_bundle(tmp_path / "b", [broken], engine=engine)
    with pytest.raises(EnginebayError, match=r"transformers 1\.0 was not installed"):
        install(tmp_path / "b")
    assert list_environments() == []


def test_a_failed_probe_says_that_bays_environment_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise EngineFailed("it cannot be imported", "look at the log")

    make_small_bundle(tmp_path / "b", engine={"version": "9.8"})
    monkeypatch.setattr(install_engine.probing, "probe_engine", fail)
    with pytest.raises(EngineFailed, match=r"fake 9\.8 was installed in this environment, .*: it cannot be imported"):
        install(tmp_path / "b", current=True, recreate=True)


def test_leftovers_of_an_interrupted_install_are_removed(tmp_path: Path, home: Path) -> None:
    make_small_bundle(tmp_path / "b", [make_tiny_wheel(tmp_path, "library")], make_stored_model(tmp_path), {})
    for left in (".bundle/library-1.0-py3-none-any.whl", "models/.partial/tiny~bundle/tiny.gguf"):
        (home / left).parent.mkdir(parents=True)
        (home / left).write_text("half")
    (home / "engines" / ".store" / "fake-9.9~aaaaaa" / "bin").mkdir(parents=True)
    assert len(install(tmp_path / "b").engines) == 1
    assert left_over(home) == [] and not (home / "engines" / ".store" / "fake-9.9~aaaaaa").exists()


def test_another_model_of_the_same_name_stays(tmp_path: Path) -> None:
    make_small_bundle(tmp_path / "b", store=make_stored_model(tmp_path))
    other = write_gguf(tmp_path / "other.gguf")
    other.write_bytes(other.read_bytes() + b"\0" * 32)
    ModelStore().pull(str(other), "tiny")
    with pytest.raises(UsageError, match="another model named tiny"):
        install(tmp_path / "b")
    assert install(tmp_path / "b", with_models=False).models == []


def test_a_manifest_that_lies_about_a_model_writes_nothing_elsewhere(tmp_path: Path, home: Path) -> None:
    make_small_bundle(tmp_path / "b", store=make_stored_model(tmp_path))
    models = json.loads((tmp_path / "b" / "bundle.json").read_text())["models"]
    models[0]["manifest"]["files"][0]["path"] = "../../../escaped"
    models[0]["files"][0]["path"] = "models/tiny/../../../escaped"
    rewrite_manifest(tmp_path / "b", models=models)
    with pytest.raises(EnginebayError, match="outside the bundle"):
        install(tmp_path / "b")
    models[0]["files"][0]["path"] = "models/tiny/fine"
    rewrite_manifest(tmp_path / "b", models=models)
    with pytest.raises(EnginebayError, match="invalid for the model tiny"):
        install(tmp_path / "b")
    models[0]["manifest"]["name"] = "../tiny"
    rewrite_manifest(tmp_path / "b", models=models)
    with pytest.raises(UsageError, match="is not a valid model name"):
        install(tmp_path / "b")
    assert not list(tmp_path.rglob("escaped"))
