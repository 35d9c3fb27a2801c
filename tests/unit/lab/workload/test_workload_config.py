from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.workload.length_distributions import LengthDistribution
from enginebay.lab.workload.workload_config import workload_from_dict, workload_to_dict
from enginebay.lab.workload.workload_spec import JsonlSpec, SyntheticSpec, TraceSpec


@pytest.fixture
def folder(tmp_path):
    for name in ("a.jsonl", "a.csv", "a.txt"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_synthetic():
    data = {
        "kind": "synthetic",
        "input_tokens": 8,
        "output_tokens": {"kind": "uniform", "min": 1, "max": 4},
        "send": "text",
    }
    assert workload_from_dict(data) == SyntheticSpec(
        8, LengthDistribution("uniform", minimum=1, maximum=4), send="text"
    )


def test_paths_are_relative_to_the_config(folder):
    assert workload_from_dict({"kind": "jsonl", "path": "a.jsonl", "shuffle": True}, folder) == JsonlSpec(
        folder / "a.jsonl", shuffle=True
    )


@pytest.mark.parametrize(("name", "format"), [("a.csv", "azure"), ("a.jsonl", "mooncake")])
def test_the_format_of_a_trace_follows_from_its_name(folder, name, format):
    assert workload_from_dict({"kind": "trace", "path": name}, folder) == TraceSpec(folder / name, format)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "needs a kind"),
        ([], "needs a kind"),
        ({"kind": "synthetics"}, "did you mean 'synthetic'"),
        ({"kind": "synthetic"}, "needs input_tokens"),
        ({"kind": "synthetic", "input_tokens": 0}, "at least 1"),
        ({"kind": "synthetic", "input_tokens": -5}, "at least 1"),
        ({"kind": "synthetic", "input_tokens": 8, "output_tokens": 0}, "at least 1"),
        ({"kind": "synthetic", "input_tokens": 8, "requests": 0}, "at least 1"),
        ({"kind": "synthetic", "input_tokens": 8, "outputs": 3}, "no key 'outputs'"),
        ({"kind": "synthetic", "input_tokens": 8, "send": "bytes"}, "workload.send"),
        ({"kind": "synthetic", "input_tokens": 8, "shared_prefix_tokens": 8}, "fills prompts of 8"),
        ({"kind": "synthetic", "input_tokens": 8, "prefix_groups": 2}, "needs a shared prefix"),
        ({"kind": "jsonl"}, "needs path"),
        ({"kind": "jsonl", "path": 3}, "must be a file path"),
        ({"kind": "jsonl", "path": "absent.jsonl"}, "file not found"),
        ({"kind": "jsonl", "path": "a.jsonl", "repeat": "yes"}, "true or false"),
        ({"kind": "trace", "path": "a.txt"}, "workload.format"),
        ({"kind": "trace", "path": "a.csv", "start_s": -1}, "0 or above"),
        ({"kind": "trace", "path": "a.csv", "too_long": "keep"}, "workload.too_long"),
    ],
)
def test_bad_values_are_refused_with_a_hint(folder, data, said):
    with pytest.raises(ConfigError) as caught:
        workload_from_dict(data, folder)
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "spec",
    [
        SyntheticSpec(
            8, LengthDistribution("normal", 5.0, 1.0), shared_prefix_tokens=4, prefix_groups=2, requests=3, seed=9
        ),
        JsonlSpec(Path("a.jsonl"), max_input_tokens=5, output_tokens=3),
        TraceSpec(Path("a.csv"), "azure", start_s=2.0, too_long="cut"),
    ],
)
def test_data_can_be_read_again(folder, monkeypatch, spec):
    monkeypatch.chdir(folder)
    assert workload_from_dict(workload_to_dict(spec)) == spec
