"""What each agent is told about the server."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from enginebay.cli.launch.agent_settings import AGENTS, ModelTarget

DIRECTORY = Path("/somewhere/private")
MODEL = ModelTarget("http://127.0.0.1:8000", "secret", 'odd "name"/7b', 65_536)
UNLOADED = ModelTarget("http://127.0.0.1:8000", "secret", "toy", None)


def test_codex_gets_overrides_in_toml() -> None:
    settings = AGENTS["codex"].configure(MODEL, DIRECTORY)
    assert set(settings.arguments[::2]) == {"-c"}
    found = tomllib.loads("\n".join(settings.arguments[1::2]))
    assert found["model"] == MODEL.name and found["model_context_window"] == 65_536
    provider = found["model_providers"][found["model_provider"]]
    assert provider["base_url"] == "http://127.0.0.1:8000/v1" and provider["wire_api"] == "responses"
    assert settings.env[provider["env_key"]] == "secret" and not settings.files
    assert found["check_for_update_on_startup"] is found["analytics"]["enabled"] is False


def test_claude_gets_variables_that_win_over_the_settings_of_the_user() -> None:
    settings = AGENTS["claude"].configure(MODEL, DIRECTORY)
    assert settings.arguments == ("--settings", "/somewhere/private/settings.json")
    file = json.loads(settings.files["settings.json"])
    assert file["env"] == settings.env and file["model"] == MODEL.name
    assert settings.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    assert {value for name, value in settings.env.items() if name.endswith("_MODEL")} == {MODEL.name}
    assert settings.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"
    assert settings.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"
    assert "ANTHROPIC_API_KEY" in settings.removed_env


def test_opencode_gets_a_provider() -> None:
    settings = AGENTS["opencode"].configure(MODEL, DIRECTORY)
    config = json.loads(settings.env["OPENCODE_CONFIG_CONTENT"])
    provider, _, model = config["model"].partition("/")
    assert model == MODEL.name and config["small_model"] == config["model"]
    entry = config["provider"][provider]
    assert entry["options"]["baseURL"] == "http://127.0.0.1:8000/v1"
    assert entry["models"][model]["limit"] == {"context": 65_536, "output": 16_384}
    assert "secret" not in settings.env["OPENCODE_CONFIG_CONTENT"]
    assert entry["options"]["apiKey"].strip("{}").removeprefix("env:") in settings.env


def test_continue_gets_a_file() -> None:
    settings = AGENTS["continue"].configure(MODEL, DIRECTORY)
    assert settings.arguments == ("--config", "/somewhere/private/config.yaml")
    [model] = json.loads(settings.files["config.yaml"])["models"]
    assert model["apiBase"] == "http://127.0.0.1:8000/v1" and model["apiKey"] == "secret"
    assert model["defaultCompletionOptions"]["contextLength"] == 65_536


@pytest.mark.parametrize("name", AGENTS)
def test_the_key_is_in_no_argument(name: str) -> None:
    assert not any("secret" in argument for argument in AGENTS[name].configure(MODEL, DIRECTORY).arguments)


@pytest.mark.parametrize("name", AGENTS)
def test_an_unknown_context_is_not_passed_on(name: str) -> None:
    settings = AGENTS[name].configure(UNLOADED, DIRECTORY)
    told = " ".join((*settings.arguments, *settings.env, *settings.env.values(), *settings.files.values()))
    assert not any(word in told for word in ("context_window", "CONTEXT_TOKENS", '"limit"', "contextLength", "None"))


def test_a_small_context_leaves_room_for_the_conversation() -> None:
    assert ModelTarget("", "", "", 4096).max_output_tokens == 1024
    assert ModelTarget("", "", "", 1_000_000).max_output_tokens == 32_000
