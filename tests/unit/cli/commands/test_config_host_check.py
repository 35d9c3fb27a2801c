"""`bay config validate` on a host without the configured engines and models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.main import main


@pytest.fixture(autouse=True)
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is stored, no engine is built."""
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for variable in ("ENGINEBAY_CONFIG", "ENGINEBAY_OFFLINE", "ENGINEBAY_ENGINE", "ENGINEBAY_MODEL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(
        "enginebay.environments.engine_probe.is_in_current_environment", lambda spec: spec.kind == "fake"
    )


def warnings(capsys: pytest.CaptureFixture[str], *arguments: str, **config: Any) -> dict[str, str]:
    Path("bay.yaml").write_text(json.dumps(config))
    assert main(["config", "validate", "bay.yaml", "--json", *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    return {one["key"]: one["message"] for one in told["warnings"]}


def test_an_engine_that_is_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    found = warnings(
        capsys, models={"m": {"source": "smollm2", "engine": "vllm", "fallback": ["transformers", "fake"]}}
    )
    assert set(found) == {"models.m.engine", "models.m.fallback"}
    assert "vllm is not installed" in found["models.m.engine"]
    assert "bay engines install transformers" in found["models.m.fallback"]


def test_a_missing_engine_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    models = {"a": {"source": "smollm2"}, "b": {"source": "smollm2"}}
    assert set(warnings(capsys, engine="vllm", models=models)) == {"engine"}


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    found = warnings(capsys, models={"gone": {"source": "file:gone.gguf"}, "nameless": {}})
    assert set(found) == {"models.gone.source", "models.nameless"}
    assert "model not found:" in found["models.gone.source"] and "gone.gguf" in found["models.gone.source"]
    assert "bay models pull" in found["models.nameless"]
    assert set(warnings(capsys, model="nameless")) == {"model"}


def test_downloadable_models_are_missing_only_offline(capsys: pytest.CaptureFixture[str]) -> None:
    models = {"small": {"source": "smollm2"}, "hub": {"source": "hf:org/name"}}
    assert warnings(capsys, models=models) == {}
    found = warnings(capsys, models=models, offline=True)
    assert set(found) == {"models.small.source", "models.hub.source"}
    assert "bay models pull hf:org/name" in found["models.hub.source"]


def test_an_engine_without_weights_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert warnings(capsys, models={"m": {"engine": "fake"}}) == {}


def test_the_engine_that_would_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    Path("model/model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    found = warnings(capsys, models={"m": {"source": "file:model"}})
    assert "is not installed" in found["models.m.source"] and "bay engines install" in found["models.m.source"]


def test_a_person_reads_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bay.yaml").write_text("models:\n  m:\n    source: smollm2\n    engine: vllm\n")
    assert main(["config", "validate", "bay.yaml", "--strict"]) == 0
    told = capsys.readouterr()
    assert told.out == "bay.yaml: ok, 1 warning\n"
    (line,) = told.err.splitlines()
    assert line.startswith("warning: bay.yaml:4: models.m.engine: ") and "bay engines install vllm" in line


def problems(capsys: pytest.CaptureFixture[str], **config: Any) -> dict[str, str]:
    Path("bay.yaml").write_text(json.dumps(config))
    code = main(["config", "validate", "bay.yaml", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == (2 if told["problems"] else 0)
    return {one["key"]: one["message"] for one in told["problems"]}


def write_peft_adapter() -> None:
    Path("peft").mkdir(exist_ok=True)
    Path("peft/adapter_config.json").write_text('{"r": 8}')
    Path("peft/adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def test_an_adapter_that_the_engine_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    """`bay serve` would die of it."""
    write_peft_adapter()
    Path("small.gguf").write_bytes(b"GGUF")
    found = problems(capsys, models={"m": {"source": "smollm2", "engine": "llamacpp", "loras": {"a": "peft"}}})
    assert set(found) == {"models.m.loras.a"}
    assert "LoRA adapter a is a PEFT directory, but llamacpp reads a GGUF file" in found["models.m.loras.a"]
    assert "convert_lora_to_gguf.py" in found["models.m.loras.a"]
    found = problems(capsys, models={"m": {"source": "smollm2", "engine": "vllm", "loras": {"a": "small.gguf"}}})
    assert "is a GGUF file, but vllm reads a PEFT directory" in found["models.m.loras.a"]
    assert problems(capsys, models={"m": {"source": "smollm2", "engine": "vllm", "loras": {"a": "peft"}}}) == {}
    assert problems(capsys, models={"m": {"engine": "fake", "loras": {"a": "peft", "b": "small.gguf"}}}) == {}


def test_an_adapter_on_an_engine_of_the_chain(capsys: pytest.CaptureFixture[str]) -> None:
    write_peft_adapter()
    model = {"source": "smollm2", "engine": "vllm", "fallback": ["llamacpp"], "loras": {"a": "peft"}}
    assert "llamacpp reads a GGUF file" in problems(capsys, models={"m": model})["models.m.loras.a"]


def test_a_missing_file_may_be_on_another_host(capsys: pytest.CaptureFixture[str]) -> None:
    model = {"source": "smollm2", "engine": "llamacpp", "loras": {"a": "gone.gguf"}}
    found = warnings(capsys, models={"m": model}, server={"keys_file": "gone.yaml"})
    assert "LoRA adapter a not found:" in found["models.m.loras.a"] and "gone.gguf" in found["models.m.loras.a"]
    assert "file not found:" in found["server.keys_file"]


def test_a_task_that_the_engine_does_not_support(capsys: pytest.CaptureFixture[str]) -> None:
    remote = {"engine": "openai", "task": "embed", "may_leave_host": True}
    assert "openai does not support it" in problems(capsys, models={"m": remote})["models.m.task"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--port", "99999"], "server.port: expected 0 to 65535, got 99999"),
        (["config", "validate", "--preset", "nope"], "unknown preset 'nope'"),
    ],
)
def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err.splitlines()[0]
