"""Keys and values as users of Ollama, llama-swap, llama.cpp and vLLM write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.config.config_dump import to_json, to_yaml
from enginebay.config.config_schema import build_json_schema
from enginebay.config.loader import check_settings, load_config
from enginebay.config.resolved_config import Config
from enginebay.engines.registry import get_spec, load_specs
from enginebay.errors import ConfigError


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))

    def read(text: str, environ: dict[str, str] | None = None, **more: Any) -> Config:
        Path("bay.yaml").write_text(text, encoding="utf-8")
        return load_config(Path("bay.yaml"), environ=environ or {}, **more)

    return read


@pytest.mark.parametrize(
    ("kind", "text", "settings"),
    [
        ("vllm", "{quantization: fp8}", {"quantization_method": "fp8"}),
        ("vllm", "{quantization: {load_in_4bit: true}}", {"quantization.load_in_4bit": True}),
        ("vllm", "{lora: true, max_lora_rank: 32}", {"lora.enabled": True, "lora.max_rank": 32}),
        ("vllm", "{enable_lora: true, lora: {max_loras: 2}}", {"lora.enabled": True, "lora.max_loras": 2}),
        ("vllm", "{attention_backend: FLASH_ATTN}", {"attention.backend": "FLASH_ATTN"}),
        ("vllm", "{speculative: ngram}", {"speculative.method": "ngram"}),
        ("vllm", "{num_ctx: 4096}", {"max_model_len": 4096}),
        ("transformers", "{quantization: awq, n_ctx: 64}", {"quantization_method": "awq", "context_length": 64}),
        ("llamacpp", "{max_model_len: 4096}", {"context_length": 4096}),
        ("llamacpp", "{type_k: q8_0, type_v: q8_0}", {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
        ("llamacpp", "{num_gpu: 3, num_thread: 2, num_batch: 64}", {"gpu_layers": 3, "threads": 2, "batch_size": 64}),
        ("llamacpp", "{use_mmap: false, flash_attn: true}", {"mmap": False, "flash_attention": True}),
    ],
)
def test_engines_know_the_names_of_their_libraries(read: Any, kind: str, text: str, settings: dict[str, Any]) -> None:
    assert read(f"{kind}: {text}").settings_for(kind) == settings


def test_the_name_of_a_section_is_its_main_key_only_with_a_plain_value(read: Any) -> None:
    with pytest.raises(ConfigError, match=r"vllm\.lora: duplicates vllm\.enable_lora \(bay\.yaml:1\); remove one"):
        read("vllm: {enable_lora: true, lora: false}")
    flagged = read("vllm: {lora: true}", flags={"vllm.lora.enabled": False})
    assert flagged.settings_for("vllm") == {"lora.enabled": False}, "a flag wins, whatever name either uses"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm: {rope_scaling: yarn}", "vllm.rope_scaling: expected a mapping, got 'yarn'"),
        ("vllm: {sharding: 2}", "vllm.sharding: expected a mapping, got 2; for example: sharding: {strategy: ...}"),
        ("quantization: fp8", "quantization: expected a mapping, got 'fp8'; for example: quantization: {load_in_4bit: true}"),
        ("vllm: 5", "vllm: expected a mapping, got 5; for example: vllm: {max_num_seqs: 64}"),
        ("server: 8000", "server: expected a mapping, got 8000; for example: server: {host: 127.0.0.1}"),
        ("fleet: 4GB", "fleet: expected a mapping, got '4GB'; for example: fleet: {memory_bytes: 4GiB}"),
        ("models: [a]", "models: expected a mapping, got ['a']; for example: models: {NAME: {source: hf:ORG/NAME}}"),
        ("models: {a: 5}", "models.a: expected a mapping, got 5; for example: a: {source: hf:ORG/NAME}"),
        ("llamacpp: {numa: true}", "llamacpp.numa: expected disabled, distribute, isolate, numactl or mirror, got true"),
        ("sampling: {top_typ: 1}", "sampling.top_typ: unknown key"),
    ],
)  # fmt: skip
def test_a_wrong_shape_comes_with_an_example(read: Any, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert said in error.value.message
    assert "quote it" not in error.value.message


def test_a_model_may_be_just_its_source(read: Any) -> None:
    config = read("models: {a: smollm2, b: {model: hf:org/name}}")
    assert (config.models["a"].source, config.models["b"].source) == ("smollm2", "hf:org/name")
    with pytest.raises(
        ConfigError, match=r"models\.b\.source: duplicates models\.b\.model \(bay\.yaml:1\); remove one"
    ):
        read("models: {b: {model: x, source: y}}")


@pytest.mark.parametrize(
    ("text", "idle_s"),
    [
        ("idle_s: 10m", 600.0), ("idle_s: 90", 90.0), ("idle_s: -1", None), ("idle_s: 0", 0.0),
        ("keep_alive: 10m", 600.0), ("keep_alive: 1h30m", 5400.0), ("keep_alive: -1", None), ("keep_alive: -1m", None),
        ("keep_alive: 0", 0.0), ("keep_alive: '300'", 300.0), ("ttl: 300", 300.0), ("ttl: 0", None), ("ttl: 0.0", None), ("ttl: 0s", None), ("ttl: '0'", None), ("ttl: -1", None),
    ],
)  # fmt: skip
def test_idle_times(read: Any, text: str, idle_s: float | None) -> None:
    """As in Ollama, a negative `keep_alive` is never and 0 is at once; llama-swap's `ttl: 0` is never."""
    assert read(f"models: {{m: {{{text}}}}}").idle_s_for("m") == idle_s
    assert read(f"fleet: {{{text}}}\nmodels: {{m: }}").idle_s_for("m") == idle_s
    assert read(f"fleet: {{idle_s: 7}}\nmodels: {{m: {{{text}}}}}").idle_s_for("m") == idle_s


def test_two_names_of_one_key_are_one_error(read: Any) -> None:
    with pytest.raises(ConfigError) as error:
        read("models:\n  m:\n    idle_s: 60\n    keep_alive: 5m\n")
    assert error.value.message == (
        "bay.yaml:4: models.m.keep_alive: duplicates models.m.idle_s (bay.yaml:3); remove one of them"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [("4GB", 4 * 10**9), ("4GiB", 4 * 2**30), ("512MiB", 2**29), ("1.5G", 1_500_000_000), ("4096", 4096)],
)
def test_sizes(read: Any, text: str, found: int) -> None:
    config = read(f"fleet: {{memory_bytes: {text}}}\nmodels: {{m: {{memory_bytes: {text}}}}}")
    assert config.fleet.memory_bytes == config.models["m"].memory_bytes == found
    assert read("", {"ENGINEBAY_FLEET_MEMORY_BYTES": text}).fleet.memory_bytes == found
    assert read(f"server: {{limits: {{body_bytes: {text}}}}}").server.limits.body_bytes == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fleet: {idle_s: soon}", "fleet.idle_s: expected seconds, or a duration such as 10m, got 'soon'"),
        ("fleet: {memory_bytes: lots}", "fleet.memory_bytes: expected bytes, or a size such as 4GiB, got 'lots'"),
        (f"fleet: {{memory_bytes: '{'9' * 500}GB'}}", "fleet.memory_bytes: expected bytes"),
        ("fleet: {max_wait_s: -5m}", "fleet.max_wait_s: expected at least 0, got -300"),
    ],
)
def test_values_without_meaning(read: Any, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert said in error.value.message


@pytest.mark.parametrize("key", ["context_length", "n_ctx", "num_ctx", "ctx_size", "max_model_len"])
def test_the_context_length_of_a_model_holds_on_any_engine(read: Any, key: str) -> None:
    config = read(f"models: {{m: {{{key}: 2048}}}}")
    assert config.settings_for("llamacpp", "m") == config.settings_for("transformers", "m") == {"context_length": 2048}
    assert config.settings_for("vllm", "m") == {"max_model_len": 2048}
    own = read(f"models: {{m: {{{key}: 2048, llamacpp: {{n_ctx: 512}}}}}}")
    assert own.settings_for("llamacpp", "m") == {"context_length": 512}, "the engine's block is more specific"
    with pytest.raises(ConfigError, match="expected at least 16, got 4"):
        read(f"models: {{m: {{{key}: 4}}}}").settings_for("llamacpp", "m")


def test_request_defaults_have_other_names(read: Any) -> None:
    config = read("sampling: {num_predict: 7, repeat_penalty: 1.1}\nmodels: {m: {sampling: {max_new_tokens: 9}}}")
    assert config.sampling == {"max_tokens": 7, "repetition_penalty": 1.1}
    assert config.models["m"].sampling == {"max_tokens": 9}


def test_show_has_the_canonical_key_and_its_origin(read: Any) -> None:
    shown = to_json(read("models:\n  m:\n    keep_alive: 10m\n    num_ctx: 64\nvllm: {quantization: fp8}\n"))
    assert shown["config"]["models"] == {"m": {"idle_s": 600.0, "context_length": 64}}
    assert shown["origins"]["models.m.idle_s"] == "bay.yaml:3"
    assert shown["origins"]["vllm.quantization_method"] == "bay.yaml:5"


def test_show_leaves_out_what_a_variable_overrides(read: Any) -> None:
    text = (
        "models:\n  m:\n    engine: vllm\n    idle_s: 60\n    sampling: {seed: 1, top_k: 2}\n"
        "    llamacpp: {context_length: 64, threads: 2}\n"
    )
    environ = {
        "ENGINEBAY_ENGINE": "llamacpp",
        "ENGINEBAY_FLEET_IDLE_S": "5",
        "ENGINEBAY__SAMPLING__SEED": "3",
        "ENGINEBAY__LLAMACPP__CONTEXT_LENGTH": "128",
    }
    config = read(text, environ)
    assert config.settings_for("llamacpp", "m") == {"context_length": 128, "threads": 2}
    shown = to_json(config)["config"]
    assert shown["models"] == {"m": {"sampling": {"top_k": 2}, "llamacpp": {"threads": 2}}}
    assert shown["llamacpp"]["context_length"] == 128 and "context_length: 64" not in to_yaml(config)
    assert to_json(read(text))["config"]["models"]["m"]["llamacpp"] == {"context_length": 64, "threads": 2}


def test_show_leaves_out_a_context_length_that_a_variable_overrides(read: Any) -> None:
    text = "models: {m: {engine: vllm, num_ctx: 64}}"
    assert to_json(read(text))["config"]["models"] == {"m": {"engine": "vllm", "context_length": 64}}
    config = read(text, {"ENGINEBAY__VLLM__MAX_MODEL_LEN": "128"})
    assert config.settings_for("vllm", "m") == {"max_model_len": 128}
    assert to_json(config)["config"]["models"] == {"m": {"engine": "vllm"}}


@pytest.mark.parametrize(
    ("key", "said"), [("cmd", "set source and engine"), ("from", "set source"), ("parameters", "sampling")]
)
def test_keys_of_other_tools_name_ours(read: Any, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(f"models: {{m: {{{key}: x}}}}")
    assert f"models.m.{key}: unknown key; " in error.value.message and said in error.value.message


def test_a_request_parameter_is_not_an_engine_setting() -> None:
    with pytest.raises(ConfigError) as error:
        check_settings(get_spec("llamacpp"), {"max_tokens": 5})
    assert "set sampling.max_tokens, or pass --max-tokens" in error.value.message


@pytest.mark.parametrize(("key", "wrong"), [("type_kk", "top_k"), ("nope", "openai")])
def test_far_names_are_not_suggested(read: Any, key: str, wrong: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(f"llamacpp: {{{key}: 1}}\n")
    assert wrong not in error.value.message


def test_an_unknown_engine_suggests_only_near_ones(read: Any) -> None:
    with pytest.raises(ConfigError, match=r"unknown engine 'nope'; available: auto, "):
        read("engine: nope")


def test_the_schema_has_every_spelling() -> None:
    schema = build_json_schema(load_specs())["$defs"]
    model, vllm = schema["model"]["properties"], schema["engine_vllm"]["properties"]
    assert model["keep_alive"] == model["ttl"] == model["idle_s"] and "string" in model["idle_s"]["type"]
    assert model["model"] == model["source"] and model["backend"] == model["engine"]
    section, plain = vllm["quantization"]["anyOf"]
    assert "load_in_4bit" in section["properties"] and plain == vllm["quantization_method"]
    assert schema["fleet"]["properties"]["ttl"] == schema["fleet"]["properties"]["idle_s"]
