"""The `fleet:` section and the fleet keys of models."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from enginebay.config.config_dump import to_json, to_yaml
from enginebay.config.config_schema import build_json_schema
from enginebay.config.loader import to_config_error, validate_config
from enginebay.config.resolved_config import Config, ModelConfig
from enginebay.config.sections.config_keys import FALLBACK_TRIGGERS, MODEL_KEYS
from enginebay.config.sections.fleet_section import FLEET_SECTION, FleetConfig
from enginebay.errors import ConfigError

ISSUED = {
    "memory_bytes": None,
    "gpu_memory_bytes": None,
    "max_awake": None,
    "min_residency_s": None,
    "max_wait_s": 300.0,
    "queue": 1024,
    "switch_slo_s": 60.0,
    "idle_s": None,
    "sleep": "auto",
    "standby": (),
    "hang_s": 120.0,
    "load_timeout_s": 600.0,
    "restarts": 5,
    "restart_window_s": 600.0,
    "backoff_s": 1.0,
    "backoff_max_s": 60.0,
}


def refusal(load: Any, text: str, **more: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(text, **more)
    return str(error.value.message)


def accepts(specs: Any, text: str) -> bool:
    return bool(Draft202012Validator(build_json_schema(specs)).is_valid(yaml.safe_load(text)))


def test_the_defaults(load: Any) -> None:
    fleet = load("").fleet
    assert fleet == load("fleet:").fleet == FleetConfig()
    assert {one.name: getattr(fleet, one.name) for one in fields(fleet)} == ISSUED
    assert load("fleet: {sleep: null, standby: null, queue: null}").fleet == FleetConfig()
    with pytest.raises(FrozenInstanceError):
        fleet.queue = 1


def test_every_key_has_help_and_a_number_has_a_minimum() -> None:
    assert set(FLEET_SECTION.settings) == set(ISSUED)
    for name, setting in FLEET_SECTION.settings.items():
        assert setting.help, name
        assert setting.type in ("str|bool|int", "list|str") or setting.minimum is not None or name == "idle_s", name


def test_file_then_variables_then_flags(load: Any) -> None:
    text = "fleet: {queue: 1, max_awake: 2, hang_s: 3, memory_bytes: 4}"
    environ = {"ENGINEBAY_FLEET_MAX_AWAKE": "5", "ENGINEBAY__FLEET__HANG_S": "6"}
    config = load(text, environ=environ, flags={"fleet.memory_bytes": 7})
    fleet = config.fleet
    assert (fleet.queue, fleet.max_awake, fleet.hang_s, fleet.memory_bytes) == (1, 5, 6.0, 7)
    origins = [str(config.find_origin(f"fleet.{name}")) for name in ("queue", "max_awake", "memory_bytes", "restarts")]
    assert origins == ["bay.yaml:1", "ENGINEBAY_FLEET_MAX_AWAKE", "flag", "default"]


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("SLEEP", "off", "sleep", "off"),
        ("SLEEP", "2", "sleep", 2),
        ("SLEEP", "auto", "sleep", "auto"),
        ("STANDBY", "fast, broad", "standby", ("fast", "wide")),
        ("STANDBY", "", "standby", ()),
        ("IDLE_S", "90", "idle_s", 90.0),
        ("PORT", "tcp://10.0.0.1:80", "queue", 1024),
        ("SERVICE_PORT", "80", "queue", 1024),
    ],
)
def test_variables(load: Any, variable: str, text: str, name: str, value: Any) -> None:
    found = getattr(load("", environ={f"ENGINEBAY_FLEET_{variable}": text}).fleet, name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{max_awake: 0}", "fleet.max_awake: expected at least 1, got 0"),
        ("{memory_bytes: lots}", "fleet.memory_bytes: expected bytes, or a size such as 4GiB, got 'lots'"),
        ("{max_wait_s: -1}", "fleet.max_wait_s: expected at least 0, got -1"),
        ("{sleep: true}", "fleet.sleep: expected auto, off, false, 1 or 2, got true"),
        ("{sleep: 3}", "fleet.sleep: expected auto, off, false, 1 or 2, got 3"),
        ("{sleep: 0}", "fleet.sleep: expected auto, off, false, 1 or 2, got 0"),
        ("{standby: [fats]}", "fleet.standby: unknown engine 'fats'; did you mean fast?"),
        ("{standby: [auto]}", "fleet.standby: unknown engine 'auto'; available: fast, wide"),
        ("{standby: [fast, 5]}", "fleet.standby: unknown engine 5; available: fast, wide"),
        ("{standby: [wide, broad]}", "fleet.standby: lists wide twice"),
        ("{max_awaek: 1}", "fleet.max_awaek: unknown key; did you mean fleet.max_awake?"),
        ("{pinned: true}", "fleet.pinned: unknown key"),
        ("5", "fleet: expected a mapping"),
    ],
)
def test_a_problem_is_reported_with_its_key(load: Any, specs: Any, text: str, said: str) -> None:
    assert f"bay.yaml:1: {said}" in refusal(load, f"fleet: {text}")
    assert accepts(specs, f"fleet: {text}") is ("twice" in said)


def test_a_mistyped_variable_is_an_error_too(load: Any) -> None:
    said = refusal(load, "", environ={"ENGINEBAY_FLEET_QUEEU": "4"})
    assert said == "ENGINEBAY_FLEET_QUEEU: fleet.queeu: unknown key; did you mean fleet.queue?"


def test_show_has_the_whole_block_and_it_loads_again(load: Any, specs: Any) -> None:
    config = load(
        "fleet: {sleep: off, standby: broad, idle_s: 60}\nmodels: {m: {sleep: off, fallback: broad, idle_s: 5}}"
    )
    shown = to_yaml(config)
    assert "  sleep: 'off'  # bay.yaml:1\n" in shown
    assert "  standby: [wide]  # bay.yaml:1\n" in shown
    assert "  queue: 1024  # default\n" in shown
    assert "    fallback: [wide]  # bay.yaml:2\n" in shown
    again = load(shown)
    assert (again.fleet, again.models["m"].fallback) == (config.fleet, ("wide",))
    assert (again.sleep_for("m"), again.idle_s_for("m")) == ("off", 5.0)
    assert to_json(config)["origins"]["fleet.restarts"] == "default"
    Draft202012Validator(build_json_schema(specs)).validate(yaml.safe_load(shown))


# --- keys of a model


def test_fleet_keys_of_a_model(load: Any, specs: Any) -> None:
    text = """\
models:
  plain: {}
  set:
    engine: fast
    pinned: true
    load: use
    idle_s: 30
    memory_bytes: 1000
    sleep: 2
    fallback: [broad]
    fallback_on: [load, queue, load]
    may_leave_host: true
    smaller_on_out_of_memory: true
  one: {sleep: off, fallback: "fast", fallback_on: context}
  none: {fallback: [], fallback_on: [], sleep: null}
"""
    models = load(text).models
    assert accepts(specs, text)
    plain, found, one, none = (models[name] for name in ("plain", "set", "one", "none"))
    assert (plain.pinned, plain.load, plain.idle_s, plain.memory_bytes, plain.sleep) == (
        False,
        "start",
        None,
        None,
        None,
    )
    assert (plain.fallback, plain.fallback_on) == ((), FALLBACK_TRIGGERS)
    assert (plain.may_leave_host, plain.smaller_on_out_of_memory) == (False, False)
    assert (found.pinned, found.load, found.idle_s, found.memory_bytes, found.sleep) == (True, "use", 30.0, 1000, 2)
    assert (found.fallback, found.fallback_on) == (("wide",), ("load", "queue"))
    assert (found.may_leave_host, found.smaller_on_out_of_memory) == (True, True)
    assert (one.sleep, one.fallback, one.fallback_on) == ("off", ("fast",), ("context",))
    assert (none.sleep, none.fallback, none.fallback_on) == (None, (), ())


def test_the_table_of_keys_and_the_dataclass_agree() -> None:
    declared = {one.name: one.default for one in fields(ModelConfig)}
    for name, setting in MODEL_KEYS.items():
        default = tuple(setting.default) if isinstance(setting.default, list) else setting.default
        assert declared[name] == default, name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{load: later}", "load: expected start or use, got 'later'"),
        ("{pinned: 2}", "pinned: expected true or false, got 2"),
        ("{memory_bytes: 0}", "memory_bytes: expected at least 1, got 0"),
        ("{sleep: deep}", "sleep: expected auto, off, false, 1 or 2, got 'deep'"),
        ("{may_leave_host: maybe}", "may_leave_host: expected true or false, got 'maybe'"),
        ("{fallback: [wdie]}", "fallback: unknown engine 'wdie'; did you mean wide?"),
        ("{fallback: [auto]}", "fallback: unknown engine 'auto'; available: fast, wide"),
        ("{fallback: [wide, fast, broad]}", "fallback: lists wide twice"),
        ("{fallback: {wide: 1}}", "fallback: expected a list or text, got a mapping"),
        ("{engine: broad, fallback: [wide]}", "fallback: lists wide, the engine it falls back from"),
        ("{fallback_on: [que]}", "fallback_on: unknown item 'que'; did you mean queue?"),
        ("{fallback_on: [3]}", f"fallback_on: unknown item '3'; available: {', '.join(FALLBACK_TRIGGERS)}"),
        ("{falback: wide}", "falback: unknown key; did you mean models.m.fallback?"),
    ],
)
def test_problems_of_a_model(load: Any, specs: Any, text: str, said: str) -> None:
    assert f"bay.yaml:1: models.m.{said}" in refusal(load, f"models: {{m: {text}}}")
    only_the_loader_knows = "twice" in said or "falls back from" in said
    assert accepts(specs, f"models: {{m: {text}}}") is only_the_loader_knows


def test_a_chain_may_not_name_the_engine_of_the_top_level(load: Any) -> None:
    said = refusal(load, "engine: wide\nmodels: {m: {fallback: [fast, wide]}}")
    assert said == "bay.yaml:2: models.m.fallback: lists wide, the engine it falls back from"


def test_an_engine_chosen_by_flag_is_dropped_from_the_chain(load: Any) -> None:
    text = "models: {m: {engine: fast, fallback: [wide]}, auto: {fallback: [fast, wide]}}"
    assert load(text).fallback_for("m") == ("wide",)
    assert load(text, flags={"engine": "wide"}).fallback_for("m") == ()
    assert load(text, environ={"ENGINEBAY_ENGINE": "broad"}).fallback_for("m") == ()
    assert load(text).fallback_for("auto") == ("fast", "wide")
    assert load(text).fallback_for("auto", "fast") == ("wide",)
    assert load(text).fallback_for("unheard of") == ()


def test_the_models_key_wins_unless_the_fleets_source_is_stronger(load: Any) -> None:
    text = "fleet: {idle_s: 10, sleep: 1}\nmodels: {own: {idle_s: 20, sleep: off}, plain: {}}"
    config = load(text)
    assert [config.idle_s_for(name) for name in ("own", "plain", "unheard of")] == [20.0, 10.0, 10.0]
    assert [config.sleep_for(name) for name in ("own", "plain")] == ["off", 1]
    told = load(text, environ={"ENGINEBAY_FLEET_IDLE_S": "30"}, flags={"fleet.sleep": "auto"})
    assert (told.idle_s_for("own"), told.sleep_for("own")) == (30.0, "auto")
    assert (load("").idle_s_for("m"), load("").sleep_for("m"), Config().sleep_for("m")) == (None, "auto", "auto")


# --- prompts that would leave this host


LEAVES = "far would send this model's prompts to another host; set models.m.may_leave_host: true to allow it"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("models: {m: {engine: far}}", "bay.yaml:1: models.m.engine"),
        ("models: {m: {engine: away}}", "bay.yaml:1: models.m.engine"),
        ("models: {m: {fallback: [wide, away]}}", "bay.yaml:1: models.m.fallback"),
        ("models: {m: {engine: far, may_leave_host: false}}", "bay.yaml:1: models.m.engine"),
        ("models: {m: {engine: far, may_leave_host: null}}", "bay.yaml:1: models.m.engine"),
        ("engine: far\nmodels: {m: {}}", "bay.yaml:1: engine"),
        ("engine: far\nmodel: m", "bay.yaml:1: engine"),
        ("engine: far\nmodels: {m: , other: {may_leave_host: true}}", "bay.yaml:1: engine"),
    ],
)
def test_a_remote_engine_needs_leave(load: Any, far_too: Any, text: str, place: str) -> None:
    assert refusal(load, text, specs=far_too) == f"{place}: {LEAVES}"


def test_a_flag_or_a_variable_does_not_give_leave(load: Any, far_too: Any) -> None:
    text = "models: {m: {engine: fast}}"
    assert refusal(load, text, specs=far_too, flags={"engine": "far"}) == f"flag: engine: {LEAVES}"
    environ = {"ENGINEBAY_ENGINE": "away"}
    assert refusal(load, text, specs=far_too, environ=environ) == f"ENGINEBAY_ENGINE: engine: {LEAVES}"


def test_every_remote_engine_is_reported(load: Any, far_too: Any) -> None:
    text = "engine: far\nmodels: {m: {}, n: {engine: fast, fallback: far}}"
    said = refusal(load, text, specs=far_too)
    assert "the configuration has 2 problems" in said
    assert "bay.yaml:1: engine: " in said
    assert "bay.yaml:2: models.n.fallback: " in said


@pytest.mark.parametrize(
    "text",
    [
        "models: {m: {engine: far, may_leave_host: true}}",
        "models: {m: {fallback: [fast, far], may_leave_host: true}}",
        "engine: far\nmodels: {m: {may_leave_host: true}}",
        "engine: far\nmodels: {m: {engine: fast}}",
        "fleet: {standby: [far]}\nmodels: {m: {}}",
    ],
)
def test_with_leave_it_is_fine(load: Any, far_too: Any, text: str) -> None:
    assert "m" in load(text, specs=far_too).models


def test_may_leave_host_is_checked_for_an_engine_of_one_run(load: Any, far_too: Any) -> None:
    config = load("models: {m: {}, free: {may_leave_host: true}}", specs=far_too)
    config.check_may_leave_host("far", "free")
    config.check_may_leave_host("fast", "m")
    for kind in ("far", "away"):
        with pytest.raises(ConfigError, match="would send this model's prompts to another host"):
            config.check_may_leave_host(kind, "m")
    with pytest.raises(ConfigError):
        config.check_may_leave_host("far", "a model the config does not have")


def test_problems_of_chains_come_with_all_others(tmp_path: Path, far_too: Any) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("models: {m: {engine: far, load: never}}\nfleet: {queue: -1}\n")
    found = validate_config(path, environ={}, specs=far_too).problems
    assert {one.key for one in found} == {"models.m.engine", "models.m.load", "fleet.queue"}
    assert "3 problems" in to_config_error(found).message


def test_responses_resume_unless_the_server_or_the_model_says_no(load: Any) -> None:
    config = load("server: {resume: off}\nmodels: {own: {resume: on}, plain: {}}")
    assert [config.resume_for(name) for name in ("own", "plain")] == [True, False]
    assert load("models: {m: {resume: off}}").resume_for("m") is False
    assert Config().resume_for("m") and load("").resume_for("m")
