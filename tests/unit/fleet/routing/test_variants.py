"""What could be loaded, and what is said of a model that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.config.loader import load_config
from enginebay.errors import EngineMissing, FetchFailed, ModelInvalid, UnknownArchitecture
from enginebay.fleet.routing.variants import build_variants


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))


def _refused(tmp_path: Path, text: str, name: str) -> str:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    with pytest.raises(ModelInvalid) as refused:
        build_variants(load_config(file), [name])
    return refused.value.message


@pytest.mark.parametrize("others", ["", "  other: {source: smollm2}\n"], ids=["alone", "among others"])
def test_a_missing_source_is_told_with_the_name_of_its_entry(tmp_path: Path, others: str) -> None:
    gone = tmp_path / "gone"
    text = f"models:\n  small: {{source: {gone}}}\n{others}"
    assert _refused(tmp_path, text, "small") == f"small: there is no file {gone}"


def test_a_model_without_an_entry_is_told_by_what_it_was_asked_for(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert _refused(tmp_path, "{}\n", gone) == f"there is no file {gone}"


@pytest.mark.parametrize(
    ("entry", "kind", "told"),
    [
        ("source: nosuchmodel, engine: llamacpp", FetchFailed, "there is no model 'nosuchmodel'"),
        ("source: 'fake:', engine: vllm", EngineMissing, "the engine vllm is not installed"),
    ],
)
def test_what_a_chain_cannot_begin_with_is_not_blamed_on_those_who_ask(
    tmp_path: Path, entry: str, kind: type[Exception], told: str
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(f"models:\n  small: {{{entry}, fallback: [fake]}}\n")
    first, second = build_variants(load_config(file), ["small"])
    assert type(first.error) is kind and told in str(first.error)
    assert second.error is None and second.kind == "fake"


def test_a_format_that_the_engine_does_not_read_is_for_the_next_one(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    file = tmp_path / "models.yaml"
    file.write_text(f"models:\n  small: {{source: {model}, engine: llamacpp, fallback: [fake]}}\n")
    first, second = build_variants(load_config(file), ["small"])
    assert type(first.error) is UnknownArchitecture and "safetensors" in str(first.error)
    assert second.error is None
