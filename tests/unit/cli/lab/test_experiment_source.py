"""The model hash of a run: equal for equal files, so that runs of other models are not grouped with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.cli.lab.study_points import _describe_source
from enginebay.models.model_manifest import FileRecord, ModelManifest
from enginebay.util.paths import models_dir


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))


def keep(name: str, sha256: str) -> Path:
    folder = models_dir() / name
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(b"weights")
    files = (FileRecord("model.gguf", sha256, 7),)
    manifest = ModelManifest(
        name, f"file:{name}", None, "model.gguf", files, "gguf", "Llama", 2048, 1, "Q4", "2026-11-15"
    )
    manifest.write(folder)
    return folder / "model.gguf"


def source(path: Path | None) -> dict[str, Any]:
    plan: Any = SimpleNamespace(source=path, version="1.0", launch=SimpleNamespace(load=SimpleNamespace(path="made")))
    return _describe_source(plan)


def test_the_hash_is_that_of_the_stored_files() -> None:
    one, same, other = (source(keep(name, sha256)) for name, sha256 in (("a", "11"), ("b", "11"), ("c", "22")))
    assert one["path"] == "made" and one["engine_version"] == "1.0"
    assert one["sha256"] == same["sha256"] != other["sha256"]


def test_a_model_that_is_not_in_the_store_has_none(tmp_path: Path) -> None:
    keep("a", "11")
    assert "sha256" not in source(tmp_path / "elsewhere.gguf")
    assert "sha256" not in source(None)
