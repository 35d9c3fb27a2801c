"""Grouping of repeated runs, and comparisons with their problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.errors import UsageError
from enginebay.lab.statistics.run_comparison import compare_runs
from enginebay.lab.statistics.run_groups import aggregate_runs
from enginebay.lab.store.run_errors import MixedEngines
from enginebay.lab.store.run_reader import Run
from tests.unit.lab.store.run_files import INVALID, write_cycles, write_run

SPEED = "output_tokens_per_s"
SLOW, FAST = [10.0, 10.2, 9.9], [20.0, 20.4, 19.9]


def test_cycles_give_a_mean_with_its_interval(tmp_path: Path) -> None:
    (point,) = aggregate_runs(write_cycles(tmp_path, "vllm", [9.0, 10.0, 11.0]))
    found = point["figures"][SPEED]
    assert (found["estimate"], found["count"]) == (10.0, 3)
    assert found["low"] == pytest.approx(10 - 4.3027 / 3**0.5, abs=1e-3)  # Student's t with 2 degrees
    assert (point["verdict"], point["name"], point["mixed_engines"]) == ("valid", "vllm tiny c1", False)


def test_a_name_contains_the_engine_once(tmp_path: Path) -> None:
    study = {"id": "s1", "point": 0, "cycle": 1, "label": "vllm max_num_seqs=8 c1"}
    (point,) = aggregate_runs([write_run(tmp_path, "r", "vllm", {SPEED: 1.0}, study=study)])
    assert point["name"] == "vllm tiny max_num_seqs=8 c1" and point["label"] == "vllm max_num_seqs=8 c1"


def test_one_run_has_no_interval(tmp_path: Path) -> None:
    (point,) = aggregate_runs(write_cycles(tmp_path, "vllm", [9.0]))
    assert point["figures"][SPEED] == {"estimate": 9.0, "low": None, "high": None, "count": 1}


def test_invalid_runs_are_excluded_and_listed(tmp_path: Path) -> None:
    good = write_cycles(tmp_path, "vllm", [10.0, 10.0])
    bad = write_run(
        tmp_path, "bad", "vllm", {SPEED: 99.0}, INVALID, study={"id": "s1", "point": 0, "cycle": 3, "label": "c1"}
    )
    (point,) = aggregate_runs([*good, bad])
    assert (point["figures"][SPEED]["estimate"], point["left_out"], point["verdict"]) == (10.0, ["bad"], "valid")
    (alone,) = aggregate_runs([bad])
    assert (alone["figures"][SPEED]["estimate"], alone["verdict"]) == (99.0, "invalid")


@pytest.mark.parametrize(
    "other",
    [
        {"profile": {"kind": "closed", "concurrency": 8}},
        {"model": {"name": "large"}},
        {"config": {"batching": {"batch_size": 2}}},
        {"environment": {"host": "there"}},
    ],
)
def test_only_repetitions_are_put_together(tmp_path: Path, other: dict[str, object]) -> None:
    assert len(aggregate_runs([write_run(tmp_path, "a"), write_run(tmp_path, "b")])) == 1
    assert len(aggregate_runs([write_run(tmp_path, "a"), write_run(tmp_path, "c", **other)])) == 2  # type: ignore[arg-type]


def test_engines_are_not_averaged_by_default(tmp_path: Path) -> None:
    runs = [*write_cycles(tmp_path, "vllm", FAST), *write_cycles(tmp_path, "pytorch", SLOW)]
    with pytest.raises(MixedEngines, match=r"pytorch, vllm.*statistically invalid") as refused:
        aggregate_runs(runs)
    assert "--allow-mixed-engines" in refused.value.hint
    (point,) = aggregate_runs(runs, allow_mixed_engines=True)
    assert (point["mixed_engines"], point["verdict"], point["figures"][SPEED]["count"]) == (True, "invalid", 6)


def test_a_clear_difference_is_found_and_reliable(tmp_path: Path) -> None:
    runs = [*write_cycles(tmp_path, "a", SLOW), *write_cycles(tmp_path, "b", FAST)]
    (found,) = compare_runs(runs)
    assert (found["a"]["name"], found["b"]["name"], found["pairs"]) == ("a tiny c1", "b tiny c1", 3)
    assert (found["valid"], found["problems"]) == (True, [])
    speed = found["figures"][SPEED]
    assert speed["differs"] and speed["more_runs"] is None
    assert speed["difference"]["estimate"] == pytest.approx(sum(FAST) / 3 - sum(SLOW) / 3)
    assert speed["difference"]["low"] > 0
    assert speed["ratio"]["estimate"] == pytest.approx(sum(FAST) / sum(SLOW))


def test_pairs_are_made_by_cycle(tmp_path: Path) -> None:
    a = write_cycles(tmp_path, "a", [10.0, 20.0, 30.0])
    b = write_cycles(tmp_path, "b", [11.0, 21.0, 31.0])
    (found,) = compare_runs([a[2], a[0], b[0], b[1], b[2]])
    assert (found["pairs"], found["figures"][SPEED]["difference"]["estimate"]) == (2, 1.0)
    assert found["figures"][SPEED]["a"] == 20.0  # only of the pairs: 10 and 30


def test_an_inconclusive_difference_estimates_the_runs_needed(tmp_path: Path) -> None:
    runs = [*write_cycles(tmp_path, "a", [10.0, 12.0, 9.0]), *write_cycles(tmp_path, "b", [10.5, 11.0, 10.5])]
    speed = compare_runs(runs)[0]["figures"][SPEED]
    assert not speed["differs"] and speed["more_runs"] > 0


def test_each_load_is_compared_with_the_same_load(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, f"{engine}{load}", engine, profile={"kind": "closed", "concurrency": load})
        for engine in ("a", "b")
        for load in (1, 8)
    ]
    found = compare_runs(runs)
    assert [(one["a"]["runs"], one["b"]["runs"]) for one in found] == [(["a1"], ["b1"]), (["a8"], ["b8"])]


@pytest.mark.parametrize(
    ("section", "short", "long"),
    [("workload", {"input_tokens": 8}, {"input_tokens": 512}), ("limits", {"requests": 10}, {"requests": 400})],
)
def test_the_same_profile_with_another_workload_is_another_load(
    tmp_path: Path, section: str, short: dict[str, int], long: dict[str, int]
) -> None:
    runs = [
        write_run(tmp_path, f"{engine}-{name}", engine, config={section: given})
        for engine in ("a", "b")
        for name, given in (("short", short), ("long", long))
    ]
    found = compare_runs(runs)
    pairs = [(one["a"]["runs"], one["b"]["runs"]) for one in found]
    assert pairs == [(["a-short"], ["b-short"]), (["a-long"], ["b-long"])]
    assert all("the workloads differ" not in one["problems"] for one in found)
    assert "the workloads differ" in compare_runs([runs[0], runs[3]])[0]["problems"]
    assert len(aggregate_runs(runs, allow_mixed_engines=True)) == 2


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"workload": {"sha256": "def"}}, "the requests differ"),
        ({"model": {"name": "other"}}, "the models differ"),
        ({"profile": {"kind": "offline"}}, "the workloads differ"),
        ({"environment": {"host": "there"}}, "they ran on different hosts"),
        ({"environment": {"host": "here", "gpu": ["H100 GPU-b"]}}, "they ran on different GPUs"),
        ({"study": "s2"}, "they are from different studies"),
        ({"verdict": INVALID}, "all runs of b tiny c1 are invalid"),
    ],
)
def test_problems_of_a_comparison_are_listed(tmp_path: Path, other: dict[str, object], problem: str) -> None:
    here = {"host": "here", "gpu": ["H200 GPU-a"]}
    runs = [*write_cycles(tmp_path, "a", SLOW, environment=here), *write_cycles(tmp_path, "b", FAST, **other)]  # type: ignore[arg-type]
    (found,) = compare_runs(runs)
    assert not found["valid"] and any(one.startswith(problem) for one in found["problems"]), found["problems"]
    assert found["pairs"] == 3


@pytest.mark.parametrize("gpus", [["H200 GPU-a", "H200 GPU-b"], []])
def test_more_gpus_or_none_are_a_matter_of_settings(tmp_path: Path, gpus: list[str]) -> None:
    one = write_cycles(tmp_path, "a", SLOW, environment={"host": "here", "gpu": ["H200 GPU-a"]})
    (found,) = compare_runs([*one, *write_cycles(tmp_path, "b", FAST, environment={"host": "here", "gpu": gpus})])
    assert found["valid"] and found["problems"] == []


def test_means_are_of_the_pairs_that_the_difference_is_of(tmp_path: Path) -> None:
    def cycles(engine: str, values: list[float | None]) -> list[Run]:
        return [
            write_run(
                tmp_path, f"{engine}{number}", engine, {} if value is None else {"ttft_s": {"p95": value}},
                study={"id": "s", "point": 0, "cycle": number, "label": "c1"},
            )
            for number, value in enumerate(values)
        ]  # fmt: skip

    (found,) = compare_runs([*cycles("a", [1.0, 1.0, 10.0]), *cycles("b", [2.0, 2.0, None])])
    figure = found["figures"]["ttft_s.p95"]
    assert (figure["a"], figure["b"], figure["difference"]["estimate"]) == (1.0, 2.0, 1.0)


def test_a_running_server_with_other_settings_is_another_point(tmp_path: Path) -> None:
    slow, fast = (write_run(tmp_path, f"s{step}", effective={"step_s": step}) for step in (0.024, 0.003))
    assert len(aggregate_runs([slow, fast])) == 2
    assert len(aggregate_runs([slow, write_run(tmp_path, "again", effective={"step_s": 0.024})])) == 1


def test_one_pair_and_no_pair(tmp_path: Path) -> None:
    a, b = write_cycles(tmp_path, "a", SLOW), write_cycles(tmp_path, "b", FAST)
    (one,) = compare_runs([a[0], b[0]])
    assert one["problems"] == ["one pair has no interval: at least 3 cycles are needed"]
    (none,) = compare_runs([a[0], b[1]])
    assert (none["problems"], none["figures"]) == (["no cycle ran on both"], {})


def test_repetitions_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compare_runs(write_cycles(tmp_path, "a", SLOW))


def test_parity_and_settings_stand_next_to_the_speeds(tmp_path: Path) -> None:
    def answers(*ids: int) -> dict[str, object]:
        return {"answers": [{"prompt_ids": [1], "token_ids": list(ids), "logprobs": [-0.5, None], "text": ""}]}

    a = write_cycles(tmp_path, "a", SLOW, parity=answers(7, 8), effective={"batch": 4, "dtype": "float32"})
    b = write_cycles(tmp_path, "b", FAST, parity=answers(7, 9), effective={"batch": 8, "dtype": "float32"})
    (found,) = compare_runs([*a, *b])
    assert found["parity"]["same_prompt_ids"] is True
    assert found["parity"]["greedy_agreement"] == 0.5
    assert found["settings"] == {"batch": {"a": 4, "b": 8}}
