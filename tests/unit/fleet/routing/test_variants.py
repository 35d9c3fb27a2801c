"""Variants of configured models, and the errors of those that cannot be planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.config.loader import load_config
from enginebay.errors import EngineMissing, FetchFailed, ModelInvalid, UnknownArchitecture
from enginebay.fleet.routing.variants import build_variants


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))


def _plan_error(tmp_path: Path, text: str, name: str) -> str:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    with pytest.raises(ModelInvalid) as caught:
        build_variants(load_config(file), [name])
    return caught.value.message


@pytest.mark.parametrize("others", ["", "  other: {source: smollm2}\n"], ids=["alone", "among others"])
def test_the_error_for_a_missing_source_names_its_entry(tmp_path: Path, others: str) -> None:
    gone = tmp_path / "gone"
    text = f"models:\n  small: {{source: {gone}}}\n{others}"
    assert _plan_error(tmp_path, text, "small") == f"small: file not found: {gone}"


def test_the_error_for_a_model_without_an_entry_names_the_request(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert _plan_error(tmp_path, "{}\n", gone) == f"file not found: {gone}"


@pytest.mark.parametrize(
    ("entry", "kind", "message"),
    [
        ("source: nosuchmodel, engine: llamacpp", FetchFailed, "unknown model 'nosuchmodel'"),
        ("source: 'fake:', engine: vllm", EngineMissing, "the engine vllm is not installed"),
    ],
)
def test_a_primary_that_cannot_load_is_not_a_client_error(
    tmp_path: Path, entry: str, kind: type[Exception], message: str
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(f"models:\n  small: {{{entry}, fallback: [fake]}}\n")
    first, second = build_variants(load_config(file), ["small"])
    assert type(first.error) is kind and message in str(first.error)
    assert second.error is None and second.kind == "fake"


def test_an_unreadable_format_falls_back_to_the_next_engine(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    file = tmp_path / "models.yaml"
    file.write_text(f"models:\n  small: {{source: {model}, engine: llamacpp, fallback: [fake]}}\n")
    first, second = build_variants(load_config(file), ["small"])
    assert type(first.error) is UnknownArchitecture and "safetensors" in str(first.error)
    assert second.error is None


@pytest.mark.parametrize(
    ("replicas", "idle_s"),
    [("", 60.0), ("replicas: 1", 60.0), ("replicas: {min: 0, idle_s: 5}", 5.0), ("replicas: {max: 1}", None),
     ("replicas: {min: 0, max: 3, idle_s: 5}", 60.0)],
)  # fmt: skip
def test_a_policy_of_at_most_one_replica_decides_when_the_model_is_unloaded(
    tmp_path: Path, replicas: str, idle_s: float | None
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"models:\n  m:\n    engine: fake\n    idle_s: 60\n    {replicas}\n")
    config = load_config(path)
    assert build_variants(config, ["m"])[0].idle_s == idle_s
