from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.resolved_config import ModelConfig
from enginebay.contract import LaunchMode, Load, Probe
from enginebay.engines.registry import get_spec
from enginebay.errors import ConfigError, EngineMissing
from enginebay.fleet.lifecycle.launch_plan import (
    _prepare_model_path,
    choose_launch_mode,
    make_launch_plan,
    select_model_variables,
)
from enginebay.worker.client_side.worker_process import WorkerLaunch, build_argv


def test_tensor_parallel_on_transformers_goes_through_torchrun() -> None:
    settings = {"sharding.strategy": "tensor_parallel", "sharding.num_shards": 2}
    assert choose_launch_mode(get_spec("transformers"), settings) == (LaunchMode.TORCHRUN, 2)
    assert choose_launch_mode(get_spec("vllm"), settings) == (LaunchMode.DIRECT, 1), "vLLM starts its own processes"


def test_a_launcher_can_be_configured_if_the_engine_supports_it() -> None:
    assert choose_launch_mode(get_spec("transformers"), {"launch": "accelerate"}) == (LaunchMode.ACCELERATE, 1)
    with pytest.raises(ConfigError, match="cannot be launched by accelerate"):
        choose_launch_mode(get_spec("vllm"), {"launch": "accelerate"})


def test_a_plan_for_display_converts_no_weights() -> None:
    stored: Any = SimpleNamespace(format="gguf", path=Path("model.gguf"), name="m")
    said: list[str] = []
    assert (
        _prepare_model_path(stored, get_spec("transformers"), Path("no-python"), said.append, convert=False)
        == stored.path
        and not said
    )


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (LaunchMode.DIRECT, ["serve"]),
        (LaunchMode.TORCHRUN, ["torch.distributed.run", "2"]),
        (LaunchMode.ACCELERATE, ["accelerate.commands.launch", "2"]),
    ],
)
def test_the_command_line_of_each_launcher(mode: LaunchMode, words: list[str]) -> None:
    launch = WorkerLaunch(Load("x", "a:B", "m", ""), Path("/env/bin/python"), Path("/run"), Path("/log"), mode, 2)
    line = build_argv(launch, Path("/run/w"))
    assert line[0] == "/env/bin/python" and line[-2:] == ["serve", "/run/w"]
    assert all(word in line for word in words)


def test_a_model_gets_its_own_variables_and_those_that_settings_name() -> None:
    environ = {"MY_KEY": "secret", "HF_TOKEN": "hub", "OTHER": "x"}
    configured = ModelConfig("m", env={"HF_TOKEN": None, "MISSING": None, "MODE": "fast"})
    settings = {"key_env": "MY_KEY", "url": "http://x/v1"}
    assert select_model_variables(get_spec("openai"), settings, configured, environ) == {
        "MY_KEY": "secret",
        "HF_TOKEN": "hub",
        "MODE": "fast",
    }
    assert select_model_variables(get_spec("vllm"), {}, ModelConfig("m"), environ) == {}


@pytest.mark.parametrize("source", ["minilm", "hf:org/name"])
def test_nothing_is_downloaded_that_no_installed_engine_could_load(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("enginebay.environments.get_installed_engines", lambda: {"fake": Probe("1")})
    monkeypatch.setattr("enginebay.models.ensure_model", lambda *_, **__: pytest.fail("it was downloaded"))
    with pytest.raises(EngineMissing, match=f"no installed engine can run {source}") as error:
        make_launch_plan(source)
    assert "`bay engines install transformers`" in error.value.hint
    assert ("llamacpp" in error.value.hint) is (source != "minilm"), "llama.cpp does not read safetensors"
