"""PEFT adapters, on a fake model that records the calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from enginebay.engines.transformers.adapters import PeftAdapters
from enginebay.errors import InvalidRequest, LoadFailed


class FakeModel:
    """Records which adapters are loaded and which one is active."""

    def __init__(self, broken: str = "") -> None:
        self.loaded: list[str] = []
        self.on: str | None = None
        self.broken = broken

    def load_adapter(self, path: str, adapter_name: str) -> None:
        self.loaded.append(adapter_name)
        self.on = adapter_name  # as peft does
        if self.broken and path.endswith(self.broken):
            raise RuntimeError("size mismatch\nmore")

    def delete_adapter(self, name: str) -> None:
        self.loaded.remove(name)

    def disable_adapters(self) -> None:
        if not self.loaded:
            raise ValueError("No adapter loaded.")
        self.on = None

    def enable_adapters(self) -> None:
        self.on = self.on or "some"

    def set_adapter(self, name: str) -> None:
        self.on = name


def folder(path: Path, rank: Any = 8) -> str:
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"r": rank}))
    header = json.dumps({"lora_A.weight": {"dtype": "F32", "shape": [8, 64], "data_offsets": [0, 0]}}).encode()
    (path / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return str(path)


@pytest.mark.parametrize("rank", [0, -1, 65, 10**7, "x", None])
def test_a_rank_beyond_the_weights_is_refused_before_peft_sees_it(tmp_path: Path, rank: Any) -> None:
    """PEFT allocates matrices of that rank first: a large one ended the worker."""
    model = FakeModel()
    with pytest.raises(InvalidRequest, match="its rank is"):
        PeftAdapters(model, {}).add("a", folder(tmp_path / "a", rank))
    assert model.loaded == []


def test_an_adapter_added_at_run_time_is_inactive_at_first(tmp_path: Path) -> None:
    model, path = FakeModel(), folder(tmp_path / "a")
    adapters = PeftAdapters(model, {"a": path})
    adapters.activate("a")
    adapters.add("b", folder(tmp_path / "b"))
    assert model.on is None
    adapters.activate("a")
    assert model.on == model.loaded[0]
    adapters.activate("b")
    assert model.on == model.loaded[1]
    adapters.activate(None)
    assert model.on is None


def test_a_withdrawn_adapter_stays_until_it_is_deleted(tmp_path: Path) -> None:
    model, path = FakeModel(), folder(tmp_path / "a")
    adapters = PeftAdapters(model, {"a": path})
    adapters.activate("a")
    adapters.withdraw("a")
    assert adapters.names == frozenset()
    assert adapters.is_loaded("a")
    with pytest.raises(InvalidRequest, match="still use"):
        adapters.add("a", path)
    with pytest.raises(InvalidRequest, match="unknown LoRA adapter"):
        adapters.withdraw("a")
    adapters.delete("a")
    assert (model.loaded, model.on) == ([], None)
    adapters.add("a", path)
    assert adapters.names == {"a"}


def test_adding_again_is_a_no_op_and_another_path_is_refused(tmp_path: Path) -> None:
    model, path = FakeModel(), folder(tmp_path / "a")
    adapters = PeftAdapters(model, {"a": path})
    adapters.add("a", path)
    assert len(model.loaded) == 1
    with pytest.raises(InvalidRequest, match="is already loaded from"):
        adapters.add("a", folder(tmp_path / "b"))


def test_a_failed_load_leaves_nothing_behind(tmp_path: Path) -> None:
    model = FakeModel(broken="b")
    adapters = PeftAdapters(model, {"a": folder(tmp_path / "a")})
    with pytest.raises(InvalidRequest, match=r"b cannot be loaded: size mismatch\n"):
        adapters.add("b", folder(tmp_path / "b"))
    assert (len(model.loaded), model.on, adapters.names) == (1, None, {"a"})
    with pytest.raises(InvalidRequest, match=r"has no adapter_config\.json"):
        adapters.add("c", str(tmp_path))
    with pytest.raises(LoadFailed, match="cannot be loaded"):
        PeftAdapters(FakeModel(broken="b"), {"b": str(tmp_path / "b")})


def test_pickled_adapters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").touch()
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(LoadFailed, match=r"no adapter_model\.safetensors"):
        PeftAdapters(FakeModel(), {"a": str(tmp_path)})
