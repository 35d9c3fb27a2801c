"""A configuration found in the working directory may name no secrets, URLs or code until the user trusts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.cli.main import main
from enginebay.config.loader import load_config, validate_config
from enginebay.config.sections.config_keys import MODEL_KEYS, SECTIONS
from enginebay.engines.registry import load_specs
from enginebay.errors import ConfigError

HOSTILE = """\
model: gpt
models:
  gpt: {engine: openai, may_leave_host: true}
openai:
  url: https://evil.example/v1
  key_file: /home/me/.ssh/id_ed25519
"""
SENSITIVE = {
    "openai: {url: 'http://x/v1'}": "openai.url",
    "openai: {key_file: k}": "openai.key_file",
    "openai: {key_env: AWS_SECRET_ACCESS_KEY}": "openai.key_env",
    "inference: {openai: {key_env: X}}": "inference.openai.key_env",
    "models: {m: {openai: {key_env: X}}}": "models.m.openai.key_env",
    "models: {m: {trust_remote_code: true}}": "models.m.trust_remote_code",
    "models: {m: {may_leave_host: true}}": "models.m.may_leave_host",
    "models: {m: {env: [HF_TOKEN]}}": "models.m.env",
    "models: {m: {env: {LD_PRELOAD: ./x.so}}}": "models.m.env",
    "transformers: {trust_remote_code: true}": "transformers.trust_remote_code",
    "transformers: {extra: {x: y}}": "transformers.extra",
    "vllm: {trust_remote_code: true}": "vllm.trust_remote_code",
    "vllm: {extra: {worker_cls: theirs.Worker}}": "vllm.extra",
    "vllm: {speculative: {model: org/name}}": "vllm.speculative.model",
    "vllm: {distributed_backend: ray}": "vllm.distributed_backend",
    "llamacpp: {extra: {model.url: x}}": "llamacpp.extra",
    "server: {keys_file: k.yaml}": "server.keys_file",
    "server: {allow_without_key: true}": "server.allow_without_key",
    "server: {cors_origins: '*'}": "server.cors_origins",
    "server: {log_prompts: true}": "server.log_prompts",
    "sweep: {openai.url: ['http://x/v1']}": "sweep.openai.url",
    "sweep: [{models: {m: {trust_remote_code: [true]}}}]": "sweep.models.m.trust_remote_code",
}
HARMLESS = """\
model: smollm2
models:
  smollm2: {trust_remote_code: false, may_leave_host: false, env: null, source: file:m.gguf}
server: {port: 8001}
llamacpp: {context_length: 512}
"""


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ENGINEBAY_CONFIG", raising=False)
    return Path("enginebay.yaml")


@pytest.mark.parametrize(("text", "key"), SENSITIVE.items(), ids=list(SENSITIVE.values()))
def test_a_local_file_may_not_set_it(local: Path, text: str, key: str) -> None:
    local.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config()
    assert f"enginebay.yaml:1: {key}: " in error.value.message
    assert "not allowed in an untrusted ./enginebay.yaml." in error.value.message
    assert "then run: bay config trust" in error.value.message


@pytest.mark.parametrize("text", SENSITIVE)
def test_a_file_that_the_user_names_may(local: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    local.write_text(text)
    load_config(local)
    monkeypatch.setenv("ENGINEBAY_CONFIG", "enginebay.yaml")
    load_config()


def test_the_file_of_the_home_may(local: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.yaml").write_text(HOSTILE)
    assert load_config().settings_for("openai")["url"] == "https://evil.example/v1"


def test_a_file_that_appears_and_vanishes_is_not_trusted(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look decides which file is read and whether it needs trust."""
    local.write_text(HOSTILE)
    looks = iter([True])
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: next(looks, False) if path == local else is_file(path))
    result = validate_config()
    assert not result.config.trusted and "openai.url" in [problem.key for problem in result.problems]


def test_flags_and_variables_may_set_what_the_file_may_not(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local.write_text("models: {gpt: {engine: llamacpp}}")
    monkeypatch.setenv("ENGINEBAY__OPENAI__KEY_ENV", "MY_KEY")
    config = load_config(flags={"openai.url": "https://mine.example/v1"})
    assert config.settings_for("openai") == {"url": "https://mine.example/v1", "key_env": "MY_KEY"}


def test_a_harmless_file_needs_no_trust(local: Path) -> None:
    local.write_text(HARMLESS)
    assert load_config().server.port == 8001


def test_the_problems_of_a_hostile_file_are_all_named(local: Path) -> None:
    local.write_text(HOSTILE)
    keys = [problem.key for problem in validate_config().problems]
    assert {"models.gpt.may_leave_host", "openai.url", "openai.key_file"} <= set(keys)


def test_a_trusted_file_is_trusted_until_it_changes(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local.write_text(HOSTILE)
    assert main(["config", "validate"]) == 2
    assert main(["config", "trust"]) == 0
    assert load_config().trusted and load_config().settings_for("openai")["key_file"].endswith("id_ed25519")
    assert main(["config", "show"]) == 0
    local.write_text(HOSTILE + "# another one\n")
    capsys.readouterr()
    assert main(["config", "show"]) == 2
    assert "then run: bay config trust" in capsys.readouterr().err
    assert main(["config", "trust", "enginebay.yaml"]) == 0
    load_config()
    assert main(["config", "trust", "--revoke"]) == 0
    with pytest.raises(ConfigError):
        load_config()


def test_trusting_prints_what_the_file_may_do_then(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local.write_text(HOSTILE + "sweep: {vllm.extra: [{a: 1}]}\nmodel_name: [nonsense]\n")
    for _ in range(2):  # also when it is trusted already
        assert main(["config", "trust"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "enginebay.yaml:3: models.gpt.may_leave_host: sends prompts to another host",
            "enginebay.yaml:5: openai.url: sends prompts to a URL",
            "enginebay.yaml:6: openai.key_file: names a secret",
            "enginebay.yaml:7: sweep.vllm.extra: may run code",
            "enginebay.yaml: trusted as it is now; trust it again after a change",
        ]


def test_a_key_in_the_listing_cannot_move_the_cursor(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local.write_text('models: {"m\\e[2K": {trust_remote_code: true}}')
    assert main(["config", "trust"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "trust_remote_code: runs code" in out


def test_a_file_that_is_too_large_is_not_trusted(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local.write_bytes(b"#" * ((1 << 20) + 1))
    assert main(["config", "trust"]) == 2
    assert "over 1 MiB" in capsys.readouterr().err


def test_the_same_content_elsewhere_is_not_trusted(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.write_text(HOSTILE)
    assert main(["config", "trust"]) == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    local.write_text(HOSTILE)
    with pytest.raises(ConfigError):
        load_config()


def test_trusting_a_file_that_is_not_there(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "trust"]) != 0
    assert "config file not found: enginebay.yaml" in capsys.readouterr().err
    assert main(["config", "trust", "--revoke"]) == 0


def test_a_damaged_record_trusts_nothing(local: Path, tmp_path: Path) -> None:
    local.write_text(HOSTILE)
    assert main(["config", "trust"]) == 0
    (tmp_path / "home" / "trusted_configs.json").write_text("[1")
    with pytest.raises(ConfigError):
        load_config()
    assert main(["config", "trust"]) == 0
    load_config()


def test_show_says_whether_the_file_is_trusted(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local.write_text(HARMLESS)
    assert main(["config", "show"]) == 0
    assert capsys.readouterr().out.startswith("# enginebay.yaml is not trusted")
    assert main(["config", "trust"]) == 0
    capsys.readouterr()
    assert main(["config", "show"]) == 0
    assert "not trusted" not in capsys.readouterr().out


def test_what_names_a_secret_a_url_or_code_is_declared_as_such() -> None:
    """A new key with such a name needs a decision."""
    declared = {
        f"{kind}.{name}": setting for kind, spec in load_specs().items() for name, setting in spec.settings.items()
    }
    declared |= {f"models.{name}": setting for name, setting in MODEL_KEYS.items()}
    declared |= {
        f"{section.name}.{name}": setting for section in SECTIONS.values() for name, setting in section.settings.items()
    }
    words = {"url", "key", "keys", "secret", "code", "env", "extra", "command", "plugin"}
    suspects = {name for name in declared if words & set(name.rpartition(".")[2].split("_"))}
    assert {name for name in suspects if not declared[name].sensitive} == set()
