"""The `server:` section: defaults, checks, variables, flags, `bay config`."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from enginebay.config.config_dump import to_json, to_yaml
from enginebay.config.config_schema import build_json_schema
from enginebay.config.sections.server_section import SERVER_SECTION, ServerConfig, ServerLimits, StateLimits
from enginebay.errors import ConfigError


def refusal(load: Any, text: str, **more: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(text, **more)
    return str(error.value.message)


def test_the_defaults_are_safe(load: Any) -> None:
    server = load("").server
    assert server == ServerConfig()
    assert (server.host, server.port, server.workers) == ("127.0.0.1", 8000, 1)
    assert (server.allow_without_key, server.log_prompts, server.cors_origins, server.keys_file) == (
        False,
        False,
        (),
        None,
    )
    assert server.limits == ServerLimits()
    assert (server.limits.body_bytes, server.limits.max_tokens) == (4 << 20, None)


def test_every_key_has_help_and_a_default_of_its_own_type() -> None:
    nested = (ServerLimits, StateLimits)
    plain = len(fields(ServerConfig)) - len(nested)
    assert len(SERVER_SECTION.settings) == plain + sum(len(fields(section)) for section in nested)
    for name, setting in SERVER_SECTION.settings.items():
        assert setting.help, name
        if name.startswith("limits.") and name != "limits.guided":
            assert setting.minimum is not None, name
            assert setting.default is None or setting.default >= setting.minimum, name
            assert setting.type in ("int", "float"), name


def test_the_configuration_is_frozen(load: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        load("").server.port = 1
    with pytest.raises(FrozenInstanceError):
        load("").server.limits.n = 10**6


def test_file_then_variables_then_flags(load: Any) -> None:
    text = "server: {host: 0.0.0.0, port: 1, workers: 2, limits: {n: 3, queue: 4}}"
    environ = {"ENGINEBAY_SERVER_PORT": "2", "ENGINEBAY_SERVER_LIMITS_QUEUE": "5", "ENGINEBAY__SERVER__WORKERS": "3"}
    config = load(text, environ=environ, flags={"server.port": 0, "server.host": None})
    server = config.server
    assert (server.host, server.port, server.workers) == ("0.0.0.0", 0, 3)
    assert (server.limits.n, server.limits.queue, server.limits.running) == (3, 5, 1024)
    assert str(config.find_origin("server.host")) == "bay.yaml:1"
    assert str(config.find_origin("server.port")) == "flag"
    assert str(config.find_origin("server.limits.queue")) == "ENGINEBAY_SERVER_LIMITS_QUEUE"
    assert str(config.find_origin("server.limits.stop")) == "default"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("HOST", "::1", "host", "::1"),
        ("HOST", "0", "host", "0"),
        ("CORS_ORIGINS", "*", "cors_origins", ("*",)),
        ("CORS_ORIGINS", "https://a.org, http://b:81", "cors_origins", ("https://a.org", "http://b:81")),
        ("LOG_PROMPTS", "1", "log_prompts", True),
        ("DRAIN_S", "5", "drain_s", 5.0),
        ("PORT", "", "port", 8000),
        ("PORT", "tcp://10.0.0.1:80", "port", 8000),
        ("SERVICE_HOST", "10.0.0.1", "port", 8000),
        ("PORT_8000_TCP_ADDR", "10.0.0.1", "port", 8000),
    ],
)
def test_variables_are_text_where_text_is_meant(load: Any, variable: str, text: str, name: str, value: Any) -> None:
    server = load("", environ={f"ENGINEBAY_SERVER_{variable}": text}).server
    assert getattr(server, name) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{port: 70000}", "server.port: expected 0 to 65535, got 70000"),
        ("{port: -1}", "server.port: expected 0 to 65535, got -1"),
        ("{port: http}", "server.port: expected a whole number, got 'http'"),
        ("{workers: 0}", "server.workers: expected 1 to 64, got 0"),
        ("{workers: true}", "server.workers: expected a whole number, got true"),
        ("{drain_s: .inf}", "server.drain_s: expected a finite number, got inf"),
        ("{host: ''}", "server.host: expected an address, got an empty value"),
        ("{log_format: jsn}", "server.log_format: expected text or json, got 'jsn'; did you mean json?"),
        ("{prot: 1}", "server.prot: unknown key; did you mean server.port?"),
        ("{limits: {body_byte: 1}}", "server.limits.body_byte: unknown key; did you mean server.limits.body_bytes?"),
        ("{body_bytes: 4096}", "server.body_bytes: unknown key here; did you mean server.limits.body_bytes?"),
        ("{limits: {n: 0}}", "server.limits.n: expected at least 1, got 0"),
        ("{limits: {schema_depth: 1000}}", "server.limits.schema_depth: expected 1 to 200, got 1000"),
        ("{limits: 5}", "server.limits: expected a mapping"),
        ("5", "server: expected a mapping"),
        (
            "{cors_origins: [https://a.org/]}",
            "server.cors_origins: expected lower-case origins such as https://app.example.org, or *, got 'https://a.org/'",
        ),
        (
            "{cors_origins: [1]}",
            "server.cors_origins: expected lower-case origins such as https://app.example.org, or *, got '1'",
        ),
        (
            "{cors_origins: 'javascript://x'}",
            "server.cors_origins: expected lower-case origins such as https://app.example.org, or *, got 'javascript://x'",
        ),
    ],
)
def test_a_problem_is_reported_with_its_key(load: Any, specs: Any, text: str, said: str) -> None:
    assert f"bay.yaml:1: {said}" in refusal(load, f"server: {text}")
    if "empty" not in said and "origins" not in said and "inf" not in said:
        assert not Draft202012Validator(build_json_schema(specs)).is_valid(yaml.safe_load(f"server: {text}"))


def test_a_mistyped_variable_is_an_error_too(load: Any) -> None:
    said = refusal(load, "", environ={"ENGINEBAY_SERVER_WORKRES": "4"})
    assert said == "ENGINEBAY_SERVER_WORKRES: server.workres: unknown key; did you mean server.workers?"


def test_one_key_by_two_variables_is_an_error(load: Any) -> None:
    said = refusal(load, "", environ={"ENGINEBAY_SERVER_PORT": "1", "ENGINEBAY__SERVER__PORT": "2"})
    assert "is also set by" in said


def test_a_keys_file_lies_beside_the_config(load: Any, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    assert load("server: {keys_file: my/keys.yaml}").server.keys_file == tmp_path / "my/keys.yaml"
    assert load("", environ={"ENGINEBAY_SERVER_KEYS_FILE": "/etc/k"}).server.keys_file == Path("/etc/k")


def test_null_and_empty_sections_mean_the_defaults(load: Any) -> None:
    text = "server: {host: null, cors_origins: null, limits: {max_tokens: null, n: null}}"
    assert load(text).server == load("server:").server == load("server: {limits: }").server == ServerConfig()


def test_show_has_the_whole_block_and_it_loads_again(load: Any, specs: Any) -> None:
    config = load("server: {port: 0, cors_origins: [https://a.org], keys_file: k, limits: {max_tokens: 9}}")
    shown = to_yaml(config)
    assert "  port: 0  # bay.yaml:1\n" in shown
    assert "  workers: 1  # default\n" in shown
    assert "    max_tokens: 9  # bay.yaml:1\n" in shown
    assert load(shown).server == config.server
    assert to_json(config)["origins"]["server.limits.stop"] == "default"
    Draft202012Validator(build_json_schema(specs)).validate(yaml.safe_load(shown))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("{}", ("json", "regex", "grammar", "choice")),
        ("{guided: [json, choice]}", ("json", "choice")),
        ("{guided: 'json, regex'}", ("json", "regex")),
        ("{guided: []}", ()),
        ("{guided: none}", ()),
    ],
)
def test_the_kinds_of_constraints_that_clients_may_send(load: Any, text: str, kinds: tuple[str, ...]) -> None:
    assert load(f"server: {{limits: {text}}}").server.limits.guided == kinds


def test_an_unknown_kind_of_constraint_is_refused(load: Any) -> None:
    with pytest.raises(ConfigError, match=r"server\.limits\.guided: expected none, or some of json, regex"):
        load("server: {limits: {guided: [gbnf]}}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", StateLimits(1 << 30, 30 * 86400.0)),
        ("server: {state: off}", StateLimits(0)),
        ("server: {state: on}", StateLimits()),
        ("server: {state: {max_bytes: 100MB, max_age_s: 1h}}", StateLimits(100_000_000, 3600.0)),
    ],
)
def test_state(load: Any, text: str, expected: StateLimits) -> None:
    assert load(text).server.state == expected and expected.enabled == ("off" not in text)


def test_state_by_variables(load: Any) -> None:
    assert not load("", environ={"ENGINEBAY_SERVER_STATE": "off"}).server.state.enabled
    assert load("", environ={"ENGINEBAY_SERVER_STATE_MAX_BYTES": "5MiB"}).server.state.max_bytes == 5 << 20


def test_a_state_too_small_for_anything_is_refused(load: Any) -> None:
    assert "expected off, or at least 1048576" in refusal(load, "server: {state: {max_bytes: 1000}}")
    assert "server.state" in refusal(load, "server: {state: maybe}")
