"""Lists and descriptions of models."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import UnknownModel
from enginebay.fleet.routing.variants import ModelRoute
from enginebay.server.api.ollama import model_details
from enginebay.server.api.ollama.generation import resolve_model
from enginebay.server.sessions.model_catalog import CatalogEntry, ModelCatalog
from tests.unit.models.tiny_models import write_directory

GIB = 2**30


def make_catalog(source: Path | None = None, task: str = "generate") -> ModelCatalog:
    route = ModelRoute("small", ("small",), ("fake",), ("tiny",), task=task, source=source)
    other = ModelRoute("other:8b", ("other:8b",), ("fake",))
    return ModelCatalog([CatalogEntry(entry, ServerLimits(), 1) for entry in (route, other)])


def row(model: str = "small", **fields: Any) -> dict[str, Any]:
    shown = {"model": model, "state": "awake", "gpus": [], "needs_bytes": {"ram": GIB}, "memory_bytes": 2 * GIB}
    return {**shown, "idle_limit_s": 300.0, "idle_s": 100.0, "pinned": False, **fields}


@pytest.mark.parametrize(
    ("name", "known"),
    [("small", "small"), ("small:latest", "small"), ("tiny:latest", "tiny"), ("other:8b", "other:8b")],
)
def test_names(name: str, known: str) -> None:
    assert resolve_model(make_catalog(), name) == known


@pytest.mark.parametrize("name", ["small:7b", "other", "other:latest", ":latest", "", "x" * 10_000])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownModel, match="not found") as caught:
        resolve_model(make_catalog(), name)
    assert "small" in caught.value.hint and len(caught.value.message) < 200


def test_a_list_with_files_and_without(tmp_path: Path) -> None:
    small, other, tiny = model_details._build_list(make_catalog(write_directory(tmp_path))).models
    assert (small.name, small.details.format) == ("small", "safetensors")
    assert small.size > 0 and small.details.family and small.details.parameter_size
    assert (other.size, other.details.format) == (0, "")
    assert (tiny.details.parent_model, tiny.size) == ("small", small.size)
    assert len({model.digest for model in (small, other, tiny)}) == 3
    assert datetime.fromisoformat(small.modified_at).tzinfo is not None


def test_files_that_are_gone_are_no_error(tmp_path: Path) -> None:
    assert model_details._build_list(make_catalog(tmp_path / "gone")).models[0].size == 0


def test_a_description(tmp_path: Path) -> None:
    entry = make_catalog(write_directory(tmp_path)).entries["small"]
    shown = model_details._build_description(entry, "small")
    architecture = shown.model_info["general.architecture"]
    assert shown.model_info[f"{architecture}.context_length"] > 0
    assert shown.model_info["general.parameter_count"] > 0
    assert shown.capabilities == ["completion", "tools"]
    embedder = make_catalog(task="embed").entries["small"]
    assert model_details._build_description(embedder, "small").capabilities == ["embedding"]


def test_models_that_think() -> None:
    assert model_details._list_capabilities("generate", True) == ["completion", "tools", "thinking"]


def running(*rows: dict[str, Any]) -> Any:
    return model_details._build_running(make_catalog(), list(rows)).models


def left_s(model: Any) -> float:
    return (datetime.fromisoformat(model.expires_at) - datetime.now(UTC)).total_seconds()


def test_loaded_models_only() -> None:
    assert running(row(state="cold"), row(state="asleep"), row("gone")) == []


def test_when_a_model_is_unloaded() -> None:
    [model] = running(row())
    assert left_s(model) == pytest.approx(200, abs=30) and (model.size, model.size_vram) == (2 * GIB, 0)
    assert all(left_s(running(row(**never))[0]) > 1e9 for never in ({"idle_limit_s": None}, {"pinned": True}))
    assert left_s(running(row(idle_limit_s=0.0))[0]) == pytest.approx(0, abs=30)
    assert left_s(running(row(idle_s=None))[0]) == pytest.approx(300, abs=30)  # it runs a request


def test_replicas_are_one_model() -> None:
    needs = {"ram": GIB, "gpu0": 4 * GIB}
    [model] = running(row(gpus=[0], needs_bytes=needs), row(gpus=[1], needs_bytes=needs))
    assert (model.size, model.size_vram) == (8 * GIB, 8 * GIB)
