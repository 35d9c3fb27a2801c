"""Sweeps: expanded, and pruned of what an engine refuses or ignores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.config.sections.sweep_grid import MAX_POINTS, expand_sweep
from enginebay.config.sweep_points import expand_points
from enginebay.errors import ConfigError

# --- written out


def test_no_sweep_is_one_point_without_changes() -> None:
    assert expand_sweep(None) == expand_sweep({}) == expand_sweep([]) == expand_sweep([{}]) == [{}]


def test_a_grid_is_every_combination_with_the_last_key_fastest() -> None:
    assert expand_sweep({"a.x": [1, 2], "b": ["p", "q"]}) == [
        {"a.x": 1, "b": "p"},
        {"a.x": 1, "b": "q"},
        {"a.x": 2, "b": "p"},
        {"a.x": 2, "b": "q"},
    ]


def test_grids_in_turn_nested_sections_and_single_values() -> None:
    assert expand_sweep([{"a": {"x": [1, None], "y": {"z": 5}}}, {"b": [{"kind": "k"}]}, {}]) == [
        {"a.x": 1, "a.y.z": 5},
        {"a.x": None, "a.y.z": 5},
        {"b": {"kind": "k"}},
        {},
    ]


def test_equal_points_are_one_and_true_is_not_one() -> None:
    assert expand_sweep([{"a": [1, 1, True, 1.5]}, {"a": [True]}]) == [{"a": 1}, {"a": True}, {"a": 1.5}]
    assert expand_sweep([{"a": 1, "b": 2}, {"b": 2, "a": 1}]) == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ([3], "expected a grid of values, got '3'"),
        ({"a": []}, "the sweep has no values for a"),
        ({"a": None}, "the sweep has no values for a"),
        ({"a": {}}, "the sweep has no values for a"),
        ({"a.b": [1], "a": {"b": [2]}}, "the sweep lists a.b twice"),
        ({"engines": [["a"]]}, "engines applies to the whole study"),
        ({"inference": {"sweep": [1]}}, "sweep applies to the whole study"),
        (
            {"a": list(range(MAX_POINTS)), "b": [1, 2]},
            f"the sweep has {2 * MAX_POINTS} points; the maximum is {MAX_POINTS}",
        ),
    ],
)
def test_invalid_sweeps(sweep: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        expand_sweep(sweep)
    assert says in error.value.message and error.value.hint


# --- the points of a study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, specs: Any) -> Any:
    """`study(text, ...)`: the labels of the points that are kept, and the reasons by label of the others."""
    monkeypatch.chdir(tmp_path)

    def found(text: str, **more: Any) -> tuple[list[str], dict[str, str]]:
        Path("bay.yaml").write_text(text)
        kept, dropped = expand_points(Path("bay.yaml"), **{"environ": {}, "specs": specs, **more})
        assert all(point.config.engine_for(point.config.model) == point.engine for point in kept)
        return [point.label for point in kept], {one.label: "\n".join(one.reasons) for one in dropped}

    return found


def test_without_a_sweep_each_engine_is_a_point(study: Any) -> None:
    assert study("engine: fast") == (["fast"], {})
    assert study("") == (["auto"], {})
    assert study("engines: [wide, fast]") == (["wide", "fast"], {})
    assert study("engines: [wide, fast]", flags={"engine": "fast"}) == (["fast"], {})
    assert study("model: m\nmodels: {m: {engine: wide}}\nengines: [fast]") == (["fast"], {})


def test_each_point_is_the_config_with_its_changes_on_top(tmp_path: Path, specs: Any) -> None:
    path = tmp_path / "bay.yaml"
    path.write_text(
        "engine: fast\nsampling: {temperature: 0.5}\nfast: {max_num_seqs: 1, memory: 0.6}\n"
        "profile: {kind: poisson, rate: 1}\n"
        "sweep: {fast.max_num_seqs: [32, null], profile: [{rate: 4}, {kind: closed, concurrency: 2}]}\n"
    )
    environ = {"ENGINEBAY__FAST__MAX_NUM_SEQS": "2"}
    kept, dropped = expand_points(path, environ=environ, specs=specs, flags={"model": "m"})
    assert not dropped
    assert [(one.config.settings_for("fast"), one.config.experiment.effective_profile) for one in kept] == [
        ({"max_num_seqs": 32, "memory": 0.6}, {"kind": "poisson", "rate": 4}),
        ({"max_num_seqs": 32, "memory": 0.6}, {"kind": "closed", "concurrency": 2}),
        ({"memory": 0.6}, {"kind": "poisson", "rate": 4}),
        ({"memory": 0.6}, {"kind": "closed", "concurrency": 2}),
    ]
    assert {one.config.model for one in kept} == {"m"}
    assert str(kept[0].config.find_origin("fast.max_num_seqs")) == "sweep"
    assert kept[1].label == 'fast max_num_seqs=32 profile={"kind": "closed", "concurrency": 2}'


def test_settings_of_another_engine_are_dropped_and_equal_points_run_once(study: Any) -> None:
    text = "engines: [fast, broad]\nsweep: {fast.max_num_seqs: [1, 2], batching.batch_size: [4, 8]}\n"
    kept, dropped = study(text)
    assert kept == [
        "fast max_num_seqs=1 batching.batch_size=4",
        "fast max_num_seqs=1 batching.batch_size=8",
        "fast max_num_seqs=2 batching.batch_size=4",
        "fast max_num_seqs=2 batching.batch_size=8",
        "wide batching.batch_size=4",
        "wide batching.batch_size=8",
    ]
    reason = "fast.max_num_seqs: does not belong to wide"
    assert dropped == {
        "wide fast.max_num_seqs=2 batching.batch_size=4": reason,
        "wide fast.max_num_seqs=2 batching.batch_size=8": reason,
    }


def test_a_grid_of_one_engine_leaves_the_others_as_they_are(study: Any) -> None:
    kept, dropped = study("engines: [fast, wide]\nsweep: {fast.max_num_seqs: [1, 2]}\n")
    assert (kept, list(dropped)) == (
        ["fast max_num_seqs=1", "fast max_num_seqs=2", "wide"],
        ["wide fast.max_num_seqs=2"],
    )


def test_grids_for_each_engine(study: Any) -> None:
    text = "engines: [fast, wide]\nsweep: [{fast.max_num_seqs: [1, 2]}, {models: {m: {broad: {compile: [default]}}}}"
    kept, dropped = study(f"{text}]\n")
    assert kept == ["fast max_num_seqs=1", "fast max_num_seqs=2", "wide models.m.broad.compile=default"]
    assert set(dropped) == {
        "fast models.m.broad.compile=default",
        "wide fast.max_num_seqs=1",
        "wide fast.max_num_seqs=2",
    }
    assert study(f"{text}, {{}}]\n")[0] == [*kept[:2], "fast", kept[2], "wide"]


def test_engines_may_be_swept(study: Any) -> None:
    kept, _ = study("engines: [fast]\nsweep: {backend: [fast, broad], batching.batch_size: [1, 2]}\n")
    assert kept == [
        "fast batching.batch_size=1",
        "fast batching.batch_size=2",
        "wide batching.batch_size=1",
        "wide batching.batch_size=2",
    ]


@pytest.mark.parametrize(
    ("sweep", "kept", "reasons"),
    [
        (
            "batching.strategy: [static, dynamic]",
            ["wide batching.strategy=static", "wide batching.strategy=dynamic"],
            {
                "fast batching.strategy=static": "has no effect on fast; instead: it always batches continuously",
                "fast batching.strategy=dynamic": "has no effect on fast; instead: it always batches continuously",
            },
        ),
        (
            "decoder.no_repeat_ngram_size: [0, 3]",
            [
                "fast decoder.no_repeat_ngram_size=0",
                "wide decoder.no_repeat_ngram_size=0",
                "wide decoder.no_repeat_ngram_size=3",
            ],
            {"fast decoder.no_repeat_ngram_size=3": "has no effect on fast; instead: repetition_penalty"},
        ),
        (
            "fp_precision: [float16, float32]",
            ["fast fp_precision=float16", "fast fp_precision=float32", "wide fp_precision=float32"],
            {"wide fp_precision=float16": "fp_precision: expected float32, got 'float16' (on wide)"},
        ),
        (
            "fast.swap_space: [4]",
            ["wide"],
            {"fast swap_space=4": "fast.swap_space: removed in fast 0.11; instead: offload"},
        ),
        (
            "min_output_tokens: [1, 64], max_output_tokens: 32",
            ["fast min_output_tokens=1 max_output_tokens=32", "wide min_output_tokens=1 max_output_tokens=32"],
            {
                "fast min_output_tokens=64 max_output_tokens=32": "min_tokens (64) exceeds max_tokens (32)",
                "wide min_output_tokens=64 max_output_tokens=32": "min_tokens (64) exceeds max_tokens (32)",
            },
        ),
    ],
)
def test_what_an_engine_refuses_is_dropped_with_its_reason(
    study: Any, sweep: str, kept: list[str], reasons: dict[str, str]
) -> None:
    found, dropped = study(f"engines: [fast, wide]\nsweep: {{{sweep}}}\n")
    assert found == kept
    assert dropped.keys() == reasons.keys()
    assert all(reason in dropped[label] for label, reason in reasons.items())


def test_a_key_of_the_file_without_effect_drops_no_point_unless_strict(study: Any) -> None:
    text = "engines: [fast, wide]\nbatching: {strategy: dynamic}\nsweep: {batching.batch_size: [1]}\n"
    assert study(text) == (["fast batching.batch_size=1", "wide batching.batch_size=1"], {})
    kept, dropped = study(text, strict=True)
    assert (kept, list(dropped)) == (["wide batching.batch_size=1"], ["fast batching.batch_size=1"])


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ("fast.max_num_seq: [1]", "sweep.fast.max_num_seq: unknown key; did you mean fast.max_num_seqs?"),
        ("fast.max_num_seqs: [1, 5000]", "sweep.fast.max_num_seqs: expected 1 to 1024, got 5000"),
        (
            "fp_precision: [float8]",
            "sweep.fp_precision: expected float16, bfloat16 or float32, got 'float8'; did you mean float32?",
        ),
        ("engine: [fats]", "sweep.engine: unknown engine 'fats'; did you mean fast?"),
    ],
)
def test_what_is_wrong_on_every_engine_is_an_error(study: Any, sweep: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        study(f"engines: [wide]\nsweep: {{{sweep}}}\n")
    assert error.value.message == f"bay.yaml:2: {says}"


@pytest.mark.parametrize(
    ("sweep", "flags"),
    [
        ("fast.max_num_seqs: [1]", {"inference.fast.max_num_seqs": 3}),
        ("backend: [fast]", {"engine": "fast"}),
        ("max_output_tokens: [1]", {"sampling": {"max_tokens": 3}}),
        ("profile.rate: [1]", {"profile": "closed:concurrency=1"}),
    ],
)
def test_a_swept_key_cannot_be_a_flag_too(study: Any, sweep: str, flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is swept and also set by a flag"):
        study(f"engine: fast\nsweep: {{{sweep}}}\n", flags=flags)


def test_auto_is_pruned_as_the_engine_it_stands_for(study: Any) -> None:
    text = "sweep: {fast.max_num_seqs: [1, 2]}\n"
    assert study(text)[0] == ["auto fast.max_num_seqs=1", "auto fast.max_num_seqs=2"]
    assert study(text, auto="fast")[0] == ["fast max_num_seqs=1", "fast max_num_seqs=2"]
    assert study(text, auto="wide")[0] == ["wide"]


def test_a_file_of_a_point_is_beside_the_config(tmp_path: Path, specs: Any) -> None:
    path = tmp_path / "bay.yaml"
    path.write_text("engine: fast\nworkload: {kind: jsonl}\nsweep: {workload.path: [a.jsonl, b.jsonl]}\n")
    kept, _ = expand_points(path, environ={}, specs=specs)
    found = [(one.config.experiment.workload or {})["path"] for one in kept]
    assert found == [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"]
