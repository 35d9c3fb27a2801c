"""`--set`: engine settings by bare name, configuration keys by full name."""

from __future__ import annotations

import pytest

from enginebay.cli.options.stack_options import build_stack_options, split_assignments, warn_unused_keys
from enginebay.config.loader import check_settings
from enginebay.engines import registry
from enginebay.errors import ConfigError


def test_full_names_are_the_configurations_and_bare_ones_the_engines() -> None:
    given = ["context_length=9", "batching.strategy=static", "llamacpp.threads=2", "sampling.seed=1", "server.port=1",
             "offline=true", "sampling={seed: 3}", "pytorch.dtype=float32"]  # fmt: skip
    keys, settings = split_assignments(given)
    assert settings == {"context_length": 9, "batching.strategy": "static"}
    assert keys == {"llamacpp.threads": 2, "sampling.seed": 1, "server.port": 1, "offline": True, "sampling": {"seed": 3},
                    "pytorch.dtype": "float32"}  # fmt: skip


def test_a_setting_of_an_engine_is_meant_where_the_configuration_has_a_key_of_that_name_too() -> None:
    assert split_assignments(["model=m"]) == ({}, {"model": "m"})


def test_they_reach_the_stack() -> None:
    found = build_stack_options(None, ["fake.max_batch=3", "step_s=0.1"], True, False, "fake")
    assert found["config"].settings_for("fake", "toy") == {"max_batch": 3} and found["config"].offline
    assert found["settings"] == {"step_s": 0.1}
    with pytest.raises(ConfigError, match="model: is a configuration key, not a setting of this engine"):
        check_settings(registry.get_spec("fake"), {"model": "m"})
    with pytest.raises(ConfigError, match=r"did you mean fake\.max_batch"):
        build_stack_options(None, ["fake.max_bacth=3"], None, False, "fake")


def test_a_key_of_another_engine_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    warn_unused_keys(["vllm.max_num_seqs=3", "fake.max_batch=3", "sampling.seed=1", "step_s=0.1"], "fake")
    assert capsys.readouterr().err == "warning: vllm.max_num_seqs applies to vllm only, and this runs on fake\n"
