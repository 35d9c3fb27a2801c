"""What an agent is told about the server: arguments, environment variables and files. One function per agent. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

KEY_VARIABLE = "ENGINEBAY_API_KEY"
_PROVIDER = "enginebay"
_MAX_OUTPUT_TOKENS = 32_000
_CODEX_IDLE_MS = 1_800_000  # a model may load, and read a long prompt, before the first token


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A model of a running server, as an agent reaches it."""

    url: str  # without /v1
    key: str
    name: str
    context_length: int | None  # None: not known before the model's first load

    @property
    def max_output_tokens(self) -> int | None:
        """The longest answer that leaves most of the context to the conversation."""
        return None if self.context_length is None else min(_MAX_OUTPUT_TOKENS, max(1, self.context_length // 4))


@dataclass(frozen=True, slots=True)
class AgentSettings:
    arguments: tuple[str, ...] = ()  # before the user's
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # in the temporary directory, by name
    removed_env: tuple[str, ...] = ()  # variables of the user's that would select another server


@dataclass(frozen=True, slots=True)
class Agent:
    title: str
    command: str
    package: str  # on npm
    min_context: int  # its own instructions and tools, and room for work
    configure: Callable[[ModelTarget, Path], AgentSettings]  # the path: of the temporary directory


def configure_codex(model: ModelTarget, directory: Path) -> AgentSettings:
    """Override individual keys, so that the user's config.toml, history and login stay as they are."""
    provider = f"model_providers.{_PROVIDER}"
    overrides: dict[str, object] = {
        "model": model.name,
        "model_provider": _PROVIDER,
        f"{provider}.name": "Enginebay",
        f"{provider}.base_url": f"{model.url}/v1",
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": KEY_VARIABLE,
        f"{provider}.stream_idle_timeout_ms": _CODEX_IDLE_MS,
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        "web_search": "disabled",
        "features.plugins": False,  # their marketplace is fetched at each start
        "features.apps": False,
    }
    if model.context_length is not None:
        overrides["model_context_window"] = model.context_length
    # TOML writes strings, numbers and booleans as JSON does.
    pairs = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in overrides.items()]
    return AgentSettings(tuple(part for pair in pairs for part in ("-c", pair)), {KEY_VARIABLE: model.key})


def configure_claude(model: ModelTarget, directory: Path) -> AgentSettings:
    """Set variables in a settings file too: those of the user's settings.json override the environment."""
    env = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_AUTH_TOKEN": model.key,
        **dict.fromkeys(
            (
                "ANTHROPIC_MODEL",
                "ANTHROPIC_DEFAULT_OPUS_MODEL",
                "ANTHROPIC_DEFAULT_SONNET_MODEL",
                "ANTHROPIC_DEFAULT_HAIKU_MODEL",
                "ANTHROPIC_SMALL_FAST_MODEL",
                "CLAUDE_CODE_SUBAGENT_MODEL",
            ),
            model.name,
        ),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # telemetry, error reports, feedback and updates
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",  # such as tools whose schemas only its own service loads
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # it differs in each request, and a prefix cache would never hit
    }
    if model.context_length is not None:
        env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(model.context_length)
        env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(model.context_length)
        env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(model.max_output_tokens)
    settings = {"env": env, "model": model.name}
    return AgentSettings(
        ("--settings", str(directory / "settings.json")),
        env,
        {"settings.json": _write_json(settings)},
        removed_env=(
            "ANTHROPIC_API_KEY",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
            "CLAUDE_CODE_USE_FOUNDRY",
        ),
    )


def configure_opencode(model: ModelTarget, directory: Path) -> AgentSettings:
    """Merge a provider into the user's configuration."""
    entry: dict[str, object] = {"name": model.name}
    if model.context_length is not None:
        entry["limit"] = {"context": model.context_length, "output": model.max_output_tokens}
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"{_PROVIDER}/{model.name}",
        "small_model": f"{_PROVIDER}/{model.name}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {
            _PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Enginebay",
                "options": {"baseURL": f"{model.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
                "models": {model.name: entry},
            }
        },
    }
    return AgentSettings(
        env={
            "OPENCODE_CONFIG_CONTENT": json.dumps(config, ensure_ascii=False),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            KEY_VARIABLE: model.key,
        }
    )


def configure_continue(model: ModelTarget, directory: Path) -> AgentSettings:
    """Write a configuration of its own; JSON is YAML."""
    entry: dict[str, object] = {
        "name": model.name,
        "provider": "openai",
        "model": model.name,
        "apiBase": f"{model.url}/v1",
        "apiKey": model.key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
    }
    if model.context_length is not None:
        entry["defaultCompletionOptions"] = {
            "contextLength": model.context_length,
            "maxTokens": model.max_output_tokens,
        }
    config = {"name": "Enginebay", "version": "1.0.0", "schema": "v1", "models": [entry]}
    return AgentSettings(
        ("--config", str(directory / "config.yaml")),
        {"CONTINUE_TELEMETRY_ENABLED": "0"},
        {"config.yaml": _write_json(config)},
    )


def _write_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


AGENTS: Mapping[str, Agent] = {
    "codex": Agent("Codex", "codex", "@openai/codex", 16_384, configure_codex),
    "claude": Agent("Claude Code", "claude", "@anthropic-ai/claude-code", 32_768, configure_claude),
    "opencode": Agent("opencode", "opencode", "opencode-ai", 16_384, configure_opencode),
    "continue": Agent("Continue", "cn", "@continuedev/cli", 8_192, configure_continue),
}
