"""Adding and removing adapters, without vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.engines.vllm.adapters import VllmAdapters
from enginebay.errors import InvalidRequest


class Request:
    def __init__(self, lora_name: str, lora_int_id: int, lora_path: str) -> None:
        self.lora_name, self.lora_int_id, self.lora_path = lora_name, lora_int_id, lora_path


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(LoRARequest=Request)
    monkeypatch.setitem(sys.modules, "vllm.lora.request", module)  # type: ignore[arg-type]


def adapter(folder: Path, rank: Any = 8, file: str = "adapter_model.safetensors") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (folder / file).touch()
    return str(folder)


def test_a_reused_name_gets_a_new_id_and_a_new_vllm_name(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    adapters = VllmAdapters("m", {"a": path}, 16)
    first = adapters.find("a")
    adapters.remove("a")
    again = adapters.prepare("a", path)
    adapters.add("a", again)
    assert adapters.find("a") is again
    assert (first.lora_int_id, again.lora_int_id) == (1, 2)
    assert first.lora_name != again.lora_name  # by which vLLM finds cached prefixes


def test_adding_the_same_adapter_again_is_a_no_op_and_another_path_is_refused(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    adapters = VllmAdapters("m", {"a": path}, 16)
    assert adapters.prepare("a", path) is None
    with pytest.raises(InvalidRequest, match="already loaded from"):
        adapters.prepare("a", adapter(tmp_path / "b"))


def test_a_model_without_adapter_support_names_the_setting(tmp_path: Path) -> None:
    adapters = VllmAdapters("m", {}, 0)
    with pytest.raises(InvalidRequest) as caught:
        adapters.prepare("a", adapter(tmp_path / "a"))
    assert "lora.enabled" in caught.value.hint


def test_what_does_not_fit(tmp_path: Path) -> None:
    adapters = VllmAdapters("m", {}, 16)
    with pytest.raises(InvalidRequest) as caught:
        adapters.prepare("a", adapter(tmp_path / "a", rank=32))
    assert "lora.max_rank: 32" in caught.value.hint
    with pytest.raises(InvalidRequest, match="pickle"):
        adapters.prepare("b", adapter(tmp_path / "b", file="adapter_model.bin"))
    with pytest.raises(InvalidRequest, match="not a directory"):
        adapters.prepare("c", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidRequest, match="has the rank 'x'"):
        adapters.prepare("d", adapter(tmp_path / "d", rank="x"))


def test_a_removed_adapter_holds_its_slot_until_its_last_request_ends(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    adapters = VllmAdapters("m", {"a": path, "b": path}, 16, max_adapters=2)
    with pytest.raises(InvalidRequest, match="at most 2 adapters"):
        adapters.prepare("c", path)
    left = adapters.remove("a")
    with pytest.raises(InvalidRequest, match="unknown LoRA adapter 'a'"):
        adapters.find("a")
    assert adapters.has_draining
    with pytest.raises(InvalidRequest, match="at most 2 adapters"):
        adapters.prepare("c", path)
    adapters.forget_removed(left)
    assert not adapters.has_draining
    assert adapters.prepare("c", path).lora_int_id == 3
    assert adapters.find(None) is None
