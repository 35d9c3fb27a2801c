"""Merging and checking: precedence, names, types, ranges, and errors that say where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enginebay.config.loader import check_settings, load_config
from enginebay.config.sections.config_keys import MODEL_KEYS, TOOL_FORMATS
from enginebay.contract import Sampling, refuses
from enginebay.errors import ConfigError, UnknownEngine
from enginebay.text.tool_calls import TOOL_CALL_FORMATS


def lines(error: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    found = error.value.message.splitlines()
    return [line.strip() for line in found[1:]] if len(found) > 1 else found


# --- shape and aliases


@pytest.mark.parametrize("value", ["[]", "[[]]", "[{}]", "{}", "{x: 1}", "true", "-1", ".nan", "''", "words"])
@pytest.mark.parametrize("key", [*MODEL_KEYS, "sampling", "loras", "fast", "nonsense"])
def test_a_value_of_the_wrong_kind_is_named_and_breaks_nothing(load: Any, key: str, value: str) -> None:
    """Any input gives a config or problems, never another error."""
    try:
        load(f"models:\n  toy: {{source: m, {key}: {value}}}\n")
    except ConfigError as error:
        assert "models.toy" in error.message


def test_inference_and_the_top_level_are_one_schema(load: Any) -> None:
    config = load("inference:\n  engine: fast\n  fast: {max_num_seqs: 4}\nmodel: m\n")
    assert (config.engine, config.model, config.settings_for("fast")) == ("fast", "m", {"max_num_seqs": 4})


def test_a_key_in_both_names_both(load: Any) -> None:
    with pytest.raises(ConfigError) as error:
        load("engine: fast\ninference:\n  backend: wide\n")
    assert lines(error) == ["bay.yaml:3: inference.backend: duplicates engine (bay.yaml:1); remove one of them"]


def test_aliases_of_keys_and_engines(load: Any) -> None:
    config = load("backend: broad\nmodel_name: org/m\nbroad: {compile: default}\n")
    assert (config.engine, config.model) == ("wide", "org/m")
    assert config.settings_for("broad") == config.settings_for("wide") == {"compile": "default"}


def test_a_setting_has_other_names_in_every_layer(load: Any) -> None:
    config = load("fast: {parallel: 4}\nmodels:\n  m: {fast: {parallel: 8}}\n")
    assert config.settings_for("fast") == {"max_num_seqs": 4}
    assert config.settings_for("fast", "m") == {"max_num_seqs": 8}
    flags = load("fast: {parallel: 4}\n", flags={"fast.max_num_seqs": 16})
    assert flags.settings_for("fast") == {"max_num_seqs": 16}, "a flag overrides the file, whatever name either uses"
    with pytest.raises(ConfigError) as error:
        load("fast: {parallel: 4, max_num_seqs: 4}\n")
    assert "fast.max_num_seqs: duplicates fast.parallel (bay.yaml:1)" in error.value.message
    with pytest.raises(ConfigError, match="parallel"):
        load("fast: {parallel: 0}\n")
    with pytest.raises(ConfigError, match=r"did you mean fast\.parallel"):
        load("fast: {paralel: 4}\n")


def test_auto_in_a_sweep_takes_the_values_that_the_engine_suggests(load: Any) -> None:
    for text in ("sweep: {fast.max_num_seqs: auto}", "sweep: {fast: {max_num_seqs: auto}}"):
        assert load(text).experiment.sweep in ({"fast.max_num_seqs": [8, 16]}, {"fast": {"max_num_seqs": [8, 16]}})
    assert load("sweep: {fast.parallel: auto}").experiment.sweep == {"fast.parallel": [8, 16]}
    both = load("sweep: [{fast.max_num_seqs: auto}, {fast.max_num_seqs: [1]}]")
    assert both.experiment.sweep == [{"fast.max_num_seqs": [8, 16]}, {"fast.max_num_seqs": [1]}]
    with pytest.raises(ConfigError, match="block_size"):
        load("sweep: {fast.block_size: auto}")  # suggests none, and auto is no value of it


def test_experiment_keys_become_sampling_and_experiment(load: Any) -> None:
    config = load(
        "max_output_tokens: 9\nmin_output_tokens: 2\nrandom_seed: 5\ndecoder: {top_k: -1, do_sample: false}\n"
        "num_cycles: 3\nnum_input_prompts: 7\nmax_input_tokens: 64\ntraffic_simulation: {enabled: true, target_qps: 2}"
    )
    assert config.sampling == {"max_tokens": 9, "min_tokens": 2, "seed": 5, "top_k": -1, "do_sample": False}
    Sampling(**config.sampling)
    assert (config.experiment.num_cycles, config.experiment.num_input_prompts) == (3, 7)
    assert config.experiment.max_input_tokens == 64
    assert config.experiment.traffic_simulation.enabled
    assert config.experiment.traffic_simulation.target_qps == 2.0


def test_one_parameter_under_two_names_is_a_problem(load: Any) -> None:
    with pytest.raises(ConfigError) as error:
        load("decoder: {temperature: 1}\nsampling: {temperature: 0.5}\n")
    assert "sampling.temperature: duplicates decoder.temperature (bay.yaml:1)" in error.value.message


@pytest.mark.parametrize(("text", "listed"), [("a: [1", False), ("modle: m", True)])
def test_the_list_of_keys_helps_with_keys_alone(load: Any, text: str, listed: bool) -> None:
    with pytest.raises(ConfigError) as error:
        load(text)
    assert ("lists every key" in error.value.hint) is listed


def test_null_leaves_a_setting_unset_and_empty_sections_are_fine(load: Any) -> None:
    config = load("fast:\n  max_num_seqs: null\n  speculative:\nsampling:\nmodels:\n  m:\nbatching:\n")
    assert config.settings_for("fast", "m") == {}


# --- precedence


def test_file_then_environment_then_flags(load: Any) -> None:
    text = "engine: wide\nfast: {max_num_seqs: 1, memory: 0.6, block_size: 8}\n"
    environ = {"ENGINEBAY_ENGINE": "fast", "ENGINEBAY__FAST__MEMORY": "0.7", "ENGINEBAY__FAST__BLOCK_SIZE": "16"}
    config = load(text, environ=environ, flags={"fast.block_size": 32, "model": None})
    assert config.engine == "fast"
    assert config.settings_for("fast") == {"max_num_seqs": 1, "memory": 0.7, "block_size": 32}
    assert str(config.find_origin("fast.max_num_seqs")) == "bay.yaml:2"
    assert str(config.find_origin("fast.memory")) == "ENGINEBAY__FAST__MEMORY"
    assert str(config.find_origin("fast.block_size")) == "flag"
    assert str(config.find_origin("offline")) == "default"


def test_a_flag_beats_a_more_specific_key_in_the_file(load: Any) -> None:
    text = "models:\n  m: {engine: wide, sampling: {temperature: 0.1}, fast: {fp_precision: float16}}\n"
    config = load(text, flags={"sampling.temperature": 0.9, "engine": "fast", "fp_precision": "float32"})
    assert config.sampling_for("fast", "m") == {"temperature": 0.9}
    assert config.engine_for("m") == "fast"
    assert config.settings_for("fast", "m") == {"fp_precision": "float32"}


def test_within_the_file_the_more_specific_key_wins(load: Any) -> None:
    config = load(
        "engine: fast\nfp_precision: float16\nbatching: {batch_size: 2}\nsampling: {temperature: 1, top_p: 0.5}\n"
        "fast: {fp_precision: bfloat16, max_num_seqs: 3, top_k: 7}\n"
        "models:\n  m:\n    engine: wide\n    sampling: {temperature: 0.2}\n"
        "    fast: {max_num_seqs: 9, fp_precision: float32}\n    wide: {fp_precision: float32}\n"
    )
    general = {"fp_precision": "bfloat16", "batching.batch_size": 2, "max_num_seqs": 3}
    assert config.settings_for("fast") == general
    assert config.settings_for("fast", "m") == {**general, "fp_precision": "float32", "max_num_seqs": 9}
    assert config.settings_for("wide", "m") == {"fp_precision": "float32", "batching.batch_size": 2}
    assert config.sampling_for("fast", "m") == {"temperature": 0.2, "top_p": 0.5, "top_k": 7}
    assert config.sampling_for("wide") == {"temperature": 1.0, "top_p": 0.5}
    assert (config.engine_for(), config.engine_for("m")) == ("fast", "wide")


def test_variables_hold_yaml_but_a_shell_has_no_types(load: Any) -> None:
    environ = {
        "ENGINEBAY_MODEL": "7",
        "ENGINEBAY_OFFLINE": "1",
        "ENGINEBAY__FAST__EAGER": "0",
        "ENGINEBAY__FAST__EXTRA": "{a: [1, 2]}",
        "ENGINEBAY__FAST__SPECULATIVE__NUM_TOKENS": "5",
        "ENGINEBAY__FAST__BLOCK_SIZE": "",
        "ENGINEBAY_SOMETHING_ELSE": "x",
    }
    config = load("", environ=environ)
    assert (config.model, config.offline) == ("7", True)
    assert config.settings_for("fast") == {"eager": False, "extra": {"a": [1, 2]}, "speculative.num_tokens": 5}


def test_a_variable_adds_to_a_map_of_the_file_and_null_takes_back(load: Any) -> None:
    environ = {"ENGINEBAY__WIDE__MAX_MEMORY__CPU": "30GiB", "ENGINEBAY__WIDE__COMPILE": "null"}
    config = load("wide: {max_memory: {'0': 20GiB}, compile: default}\n", environ=environ)
    assert config.settings_for("wide") == {"max_memory": {"0": "20GiB", "cpu": "30GiB"}}


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"ENGINEBAY__FAST__MAX_SEQS": "1"}, "ENGINEBAY__FAST__MAX_SEQS: fast.max_seqs: unknown key; did you mean "),
        ({"ENGINEBAY__FAST__EXTRA": "{a"}, "ENGINEBAY__FAST__EXTRA: fast.extra: is not a YAML value"),
        ({"ENGINEBAY__FAST____X": "1"}, "empty name between underscores"),
        (
            {"ENGINEBAY__FAST": "1", "ENGINEBAY__FAST__EAGER": "1"},
            "conflicts with ENGINEBAY__FAST, which sets fast as a whole",
        ),
        ({"ENGINEBAY_ENGINE": "fast", "ENGINEBAY__ENGINE": "wide"}, "engine: is also set by "),
        (
            {"ENGINEBAY_ENGINE": "fats"},
            "ENGINEBAY_ENGINE: engine: unknown engine 'fats'; did you mean fast?",
        ),
    ],
)
def test_a_wrong_variable_is_named(load: Any, environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load("", environ=environ)
    assert says in error.value.message


# --- which file


def test_default_paths_and_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, specs: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    assert load_config(environ={}, specs=specs).path is None
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.yaml").write_text("model: at-home\n")
    assert load_config(environ={}, specs=specs).model == "at-home"
    Path("enginebay.yaml").write_text("model: here\n")
    assert load_config(environ={}, specs=specs).model == "here"
    Path("other.yaml").write_text("model: other\n")
    assert load_config(environ={"ENGINEBAY_CONFIG": "other.yaml"}, specs=specs).model == "other"
    for path, environ in ((Path("none.yaml"), {}), (None, {"ENGINEBAY_CONFIG": "none.yaml"}), (tmp_path, {})):
        with pytest.raises(ConfigError, match=r"none\.yaml|is a directory") as error:
            load_config(path, environ=environ, specs=specs)
        assert error.value.exit_code == 2


# --- problems


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast:\n  max_num_seq: 1\n", "bay.yaml:2: fast.max_num_seq: unknown key; did you mean fast.max_num_seqs?"),
        (
            "fast: {speculative: {methd: x}}",
            "fast.speculative.methd: unknown key; did you mean fast.speculative.method?",
        ),
        ("inference: {fast: {eagr: 1}}", "inference.fast.eagr: unknown key; did you mean inference.fast.eager?"),
        ("max_num_seqs: 3\n", "bay.yaml:1: max_num_seqs: unknown key here; did you mean fast.max_num_seqs?"),
        ("wide: {block_size: 8}", "wide.block_size: unknown key here; did you mean fast.block_size?"),
        ("temprature: 1\n", "temprature: unknown key here; did you mean sampling.temperature?"),
        ("modle: x\n", "modle: unknown key; did you mean model?"),
        ("zzz: 1\n", "zzz: unknown key"),
        ("fsat: {eager: true}", "fsat: unknown key; did you mean fast?"),
        ("inference: {inference: {}}", "inference.inference: unknown key"),
        ("models: {m: {sorce: x}}", "models.m.sorce: unknown key; did you mean models.m.source?"),
        ("batching: {batchsize: 1}", "batching.batchsize: unknown key; did you mean batching.batch_size?"),
        (
            "traffic_simulation: {qps: 1}",
            "traffic_simulation.qps: unknown key; known here: enabled, mode, seed, target_qps",
        ),
        ("engine: fats", "engine: unknown engine 'fats'; did you mean fast?"),
        ("models: {m: {engine: qqq}}", "models.m.engine: unknown engine 'qqq'; available: auto, fast, wide"),
        ("fast: {max_num_seqs: 0}", "fast.max_num_seqs: expected 1 to 1024, got 0"),
        ("fast: {memory: 0.4}", "fast.memory: expected 0.5 to 0.99, got 0.4"),
        ("batching: {batch_size: 0}", "batching.batch_size: expected at least 1, got 0"),
        ("fast: {block_size: 12}", "fast.block_size: expected 8, 16 or 32, got 12"),
        ("fast: {speculative: {method: ngrams}}", "expected ngram or eagle, got 'ngrams'; did you mean ngram?"),
        ("fast: {max_num_seqs: yes}", "fast.max_num_seqs: expected a whole number, got true"),
        ("fast: {max_num_seqs: 1.5}", "fast.max_num_seqs: expected a whole number, got 1.5"),
        ("fast: {eager: 1}", "fast.eager: expected true or false, got 1"),
        ("fast: {memory: .inf}", "fast.memory: expected a finite number, got inf"),
        ("fast: {memory: {a: 1}}", "fast.memory: expected a number, got a mapping"),
        ("wide: {compile: true}", "wide.compile: expected false or default, got true"),
        ("fast: {extra: 3}", "fast.extra: expected a mapping, got 3"),
        ("fast: {speculative: ngram}", "fast.speculative: expected a mapping"),
        ("fast: 3", "fast: expected a mapping"),
        ("batching: 3", "batching: expected a mapping"),
        ("traffic_simulation: 3", "traffic_simulation: expected a mapping"),
        ("models: {m: 7}", "models.m: expected a mapping"),
        ("model: 7", "model: expected text, got 7; quote it"),
        ("sampling: {temperature: 3}", "sampling.temperature: expected 0 to 2, got 3"),
        ("sampling: {min_tokens: 5, max_tokens: 2}", "sampling.min_tokens: min_tokens (5) exceeds max_tokens (2)"),
        ("sampling: {stop: [a, 3]}", "sampling.stop: expected a list of text"),
        ("sampling: {logit_bias: {x: 1}}", "sampling.logit_bias: expected a mapping of token ids to numbers"),
        ("fast: {logprobs: 0}", "fast.logprobs: expected 1 to 20, got 0"),
        ("models: {m: {loras: {a: }}}", "models.m.loras.a: expected the path of the adapter"),
        ("fp_precision: float8", "fp_precision: expected float16, bfloat16 or float32, got 'float8'"),
        ("engine: wide\nfp_precision: float16", "bay.yaml:2: fp_precision: expected float32, got 'float16' (on wide)"),
    ],
)
def test_a_problem_is_one_line_with_its_key(load: Any, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(text)
    assert says in error.value.message
    assert len(lines(error)) == 1
    assert error.value.message.startswith("bay.yaml:")


def test_the_schema_hint_is_printed_once(load: Any) -> None:
    for text in ("zzz: 1\n", "zzz: 1\nyyy: 2\n"):
        with pytest.raises(ConfigError) as error:
            load(text)
        assert str(error.value).count("`bay config schema`") == 1


def test_all_problems_come_at_once(load: Any) -> None:
    with pytest.raises(ConfigError) as error:
        load("engine: fats\nfast:\n  max_num_seqs: 0\n  nope: 1\nsampling: {temperature: hot}\n")
    assert error.value.message.startswith("the configuration has 4 problems\n")
    assert [line.split(": ")[0] for line in lines(error)] == ["bay.yaml:1", "bay.yaml:3", "bay.yaml:4", "bay.yaml:5"]


def test_auto_takes_any_engines_value_and_complains_once_the_engine_is_known(load: Any) -> None:
    config = load("fp_precision: float16\n")
    assert config.settings_for("fast") == {"fp_precision": "float16"}
    with pytest.raises(ConfigError, match="fp_precision: expected float32, got 'float16'"):
        config.settings_for("wide")
    with pytest.raises(UnknownEngine):
        config.settings_for("nope")


# --- warnings


def test_a_retired_key_loads_shows_and_warns_once(load: Any) -> None:
    config = load("engine: fast\nfast:\n  swap_space: 4\n")
    assert [str(one) for one in config.warnings] == [
        "bay.yaml:3: fast.swap_space: removed in fast 0.11; instead: offload"
    ]
    assert (config.warnings[0].key, config.warnings[0].line) == ("fast.swap_space", 3)
    assert config.settings_for("fast") == {"swap_space": 4}


def test_strict_makes_warnings_problems(load: Any) -> None:
    text = "engine: fast\nbatching: {strategy: dynamic}\nfast: {swap_space: 4}\ndecoder: {no_repeat_ngram_size: 3}\n"
    assert len(load(text).warnings) == 3
    with pytest.raises(ConfigError) as error:
        load(text, strict=True)
    assert len(lines(error)) == 3


def test_inapplicable_depends_on_the_chosen_engine(load: Any) -> None:
    text = "batching: {strategy: dynamic}\nsampling: {no_repeat_ngram_size: 3, top_p: 0.5}\n"
    assert load(f"engine: wide\n{text}").warnings == ()
    on_fast = load(f"engine: fast\n{text}")
    assert [one.message for one in on_fast.warnings] == [
        "has no effect on fast; instead: it always batches continuously",
        "has no effect on fast; instead: repetition_penalty",
    ]
    assert on_fast.sampling_for("fast") == {"top_p": 0.5}
    undecided = load(f"\n{text}")
    assert undecided.warnings == ()
    assert undecided.warnings_for("fast") == on_fast.warnings
    assert undecided.warnings_for("wide") == ()
    assert on_fast.warnings_for("fast") == ()
    assert undecided.sampling_for("wide") == {"no_repeat_ngram_size": 3, "top_p": 0.5}


def test_neutral_values_do_not_warn(load: Any) -> None:
    config = load("engine: fast\nsampling: {no_repeat_ngram_size: 0}\nfast: {batching: {strategy: null}}\n")
    assert config.warnings == ()


def test_a_models_own_engine_is_what_its_keys_are_checked_on(load: Any) -> None:
    config = load("models:\n  m: {engine: fast, sampling: {no_repeat_ngram_size: 2}, fast: {swap_space: 1}}\n")
    assert {one.key for one in config.warnings} == {
        "models.m.sampling.no_repeat_ngram_size",
        "models.m.fast.swap_space",
    }


# --- models


def test_models_paths_are_beside_the_file(load: Any, tmp_path: Path) -> None:
    config = load(
        "models:\n  m:\n    source: file:weights/m.gguf\n    task: embed\n    loras: {a: adapters/a, b: /b}\n"
        "  h: {source: 'hf:org/name@main', backend: broad}\n"
    )
    assert config.models["m"].source == f"file:{tmp_path}/weights/m.gguf"
    assert config.models["m"].loras == {"a": f"{tmp_path}/adapters/a", "b": "/b"}
    assert config.models["m"].task == "embed"
    assert (config.models["h"].source, config.models["h"].engine) == ("hf:org/name@main", "wide")


def test_a_model_can_say_how_it_writes_tool_calls(load: Any) -> None:
    config = load("models:\n  m: {tool_format: mistral}\n  other: {}\n")
    assert (config.models["m"].tool_format, config.models["other"].tool_format) == ("mistral", "auto")
    with pytest.raises(
        ConfigError, match=r"models\.m\.tool_format: expected auto, .* got 'hermes2'; did you mean hermes"
    ):
        load("models:\n  m: {tool_format: hermes2}\n")
    assert set(TOOL_FORMATS) == {"auto", *TOOL_CALL_FORMATS}


def test_trust_on_an_engine_counts_for_the_models_of_the_file(load: Any) -> None:
    nobody_named = load("fast: {trust_remote_code: true}\n")
    assert nobody_named.trusts_remote_code("fast", "any")
    assert not nobody_named.trusts_remote_code("wide", "any")
    text = "model: top\nfast: {trust_remote_code: true}\nmodels:\n  m: {}\n  no: {trust_remote_code: false}\n"
    named = load(text + "  yes: {wide: {trust_remote_code: true}}\n", flags={})
    assert named.trusts_remote_code("fast", "m")
    assert named.trusts_remote_code("fast", "top")
    assert not named.trusts_remote_code("fast", "no")
    assert not named.trusts_remote_code("fast", "stranger")
    assert named.trusts_remote_code("wide", "yes")
    assert not named.trusts_remote_code("wide", "m")
    assert "trust_remote_code" not in named.settings_for("fast", "m")


def test_a_config_cannot_be_changed(load: Any) -> None:
    config = load("sampling: {temperature: 1}\nmodels: {m: {}}\n")
    with pytest.raises(AttributeError):
        config.engine = "fast"
    with pytest.raises(TypeError):
        config.sampling["temperature"] = 2
    with pytest.raises(TypeError):
        config.models["n"] = config.models["m"]


def test_a_request_parameter_that_an_engine_declares_is_its_setting(load: Any) -> None:
    config = load("fast: {logprobs: 3, top_k: 5}\n")
    assert config.settings_for("fast") == {"logprobs": 3}
    assert config.sampling_for("fast") == {"top_k": 5}
    assert config.sampling_for("wide") == {}


def test_settings_the_installed_version_rejects_add_warnings(load: Any, specs: Any) -> None:
    config = load("engine: fast\nfast: {eager: true}\n")
    fast = specs["fast"]
    setting = replace(fast.settings["eager"], capability=refuses("leave it out: fast 1.2 does not take it"))
    older = replace(fast, settings={**fast.settings, "eager": setting})
    assert config.warnings == config.warnings_for("fast") == ()
    assert [one.key for one in config.warnings_for("fast", spec=older)] == ["fast.eager"]


def test_settings_of_one_run_are_checked_like_a_block(specs: Any) -> None:
    given = {"speculative.num_tokens": 3, "eager": True, "memory": None}
    assert check_settings(specs["fast"], given) == {"speculative.num_tokens": 3, "eager": True}
    with pytest.raises(ConfigError, match="max_seqs: unknown key; did you mean max_num_seqs"):
        check_settings(specs["fast"], {"max_seqs": 1})
    with pytest.raises(ConfigError, match=r"memory: expected .* got 2"):
        check_settings(specs["fast"], {"memory": 2})
    with pytest.raises(ConfigError) as error:
        check_settings(specs["fast"], {"top_k": 2, "trust_remote_code": True})
    assert len(lines(error)) == 2


def test_an_engine_without_use_for_a_setting_has_no_say_in_its_values(load: Any) -> None:
    with pytest.raises(ConfigError, match=r"batching\.strategy: expected static or dynamic, got 'sometimes'"):
        load("batching: {strategy: sometimes}\n")
