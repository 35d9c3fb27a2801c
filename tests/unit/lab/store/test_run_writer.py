"""A run is read as it was written, and only a finished run counts."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from enginebay.lab.store.parquet import BATCH_ROWS
from enginebay.lab.store.run_folders import list_partial_folders, remove_stale_partials
from enginebay.lab.store.run_reader import list_runs, load_run
from enginebay.lab.store.run_writer import RunWriter
from enginebay.lab.validity.verdict import Reason, Verdict
from enginebay.lab.workload.request_records import Record
from tests.unit.lab.store.run_files import RECORDS, SAMPLES, TOKENS, VALID, make_manifest, write_run


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = write_run(tmp_path, parity={"answers": [{"prompt_ids": [1]}]})
    assert run.read_records() == RECORDS
    assert run.read_token_times() == TOKENS
    samples = run.read_samples()
    assert [one.time_s for one in samples] == [1.0, 1.5]  # since the start of the window
    assert [replace(sample, time_s=sample.time_s + 99.0) for sample in samples] == SAMPLES
    assert run.read_parity() == {"answers": [{"prompt_ids": [1]}]}
    assert {name: said["rows"] for name, said in run.manifest["files"].items()} == {
        "requests.parquet": 2,
        "tokens.parquet": 3,
        "power.parquet": 2,
        "parity.json": 1,
    }


def test_nothing_but_the_run_is_left(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [run.id]
    assert {one.name for one in run.path.iterdir()} == {
        "manifest.json",
        "requests.parquet",
        "tokens.parquet",
        "power.parquet",
    }
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o444 for one in run.path.iterdir())


def test_without_meters_there_is_no_power_file(tmp_path: Path) -> None:
    with RunWriter(tmp_path, make_manifest(absent={"power": "no meter here"})) as writer:
        run = load_run(writer.finish({}, VALID))
    assert not (run.path / "power.parquet").exists()
    assert (run.read_samples(), run.read_records(), run.read_token_times(), run.read_parity()) == ([], [], {}, None)


def test_long_runs_are_written_in_batches(tmp_path: Path) -> None:
    count = BATCH_ROWS + 5
    with RunWriter(tmp_path, make_manifest()) as writer:
        for start in range(0, count, 4096):
            some = range(start, min(start + 4096, count))
            writer.add_records([Record(n, n / 10, n / 10) for n in some], {n: [float(n), n + 0.5] for n in some})
        run = load_run(writer.finish({}, VALID))
    assert [record.index for record in run.read_records()] == list(range(count))
    tokens = run.read_token_times()
    assert len(tokens) == count and tokens[count - 1] == [count - 1, count - 0.5]


def test_lone_surrogates_and_non_finite_numbers_do_not_lose_a_run(tmp_path: Path) -> None:
    with RunWriter(tmp_path, make_manifest(config={"name": "\ud83d"})) as writer:
        writer.add_records([Record(0, 0.0, 0.0, text="a\ud83d")], {})
        writer.write_parity({"answers": [{"logprobs": [-math.inf]}]})
        run = load_run(writer.finish({"x": math.nan, "ttft_s": {"p99": math.inf}}, VALID))
    assert run.read_records()[0].text == "a?"
    assert run.measures == {"x": None, "ttft_s": {"p99": None}}
    assert run.read_parity() == {"answers": [{"logprobs": [None]}]}


def test_a_verdict_is_kept_with_its_reasons(tmp_path: Path) -> None:
    with RunWriter(tmp_path, make_manifest()) as writer:
        path = writer.finish({}, Verdict("invalid", (Reason("errors", "invalid", "3 failed", 0.3, 0.01),)))
    run = load_run(path)
    assert run.status == "invalid"
    assert (run.reasons[0]["code"], run.reasons[0]["limit"]) == ("errors", 0.01)


def test_sections_that_become_known_later(tmp_path: Path) -> None:
    with RunWriter(tmp_path, make_manifest()) as writer:
        writer.update(effective={"batch": 4}, window_s=12.5)
        run = load_run(writer.finish({}, VALID))
    assert (run.manifest["effective"], run.manifest["window_s"]) == ({"batch": 4}, 12.5)
    with pytest.raises(ValueError, match="effectve"):
        make_manifest(effectve={})


def test_an_id_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    first = write_run(tmp_path)
    with RunWriter(tmp_path, make_manifest()) as second, RunWriter(tmp_path, make_manifest()) as third:
        assert [second.id, third.id] == [f"{first.id}_2", f"{first.id}_3"]
        assert load_run(second.finish({}, VALID)).id == second.id
    assert [run.id for run in list_runs(tmp_path)[0]] == [first.id, f"{first.id}_2"]


def test_a_run_that_is_left_unfinished_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunWriter(tmp_path, make_manifest()) as writer:
        writer.add_records(RECORDS, TOKENS)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_run_being_written_is_not_listed_and_not_cleaned_up(tmp_path: Path) -> None:
    with RunWriter(tmp_path, make_manifest()) as writer:
        writer.add_records(RECORDS, TOKENS)
        assert list_runs(tmp_path) == ([], [])
        assert remove_stale_partials(tmp_path) == []
        assert list_partial_folders(tmp_path) == [writer.partial]
        assert json.loads((writer.partial / "requests.parquet.spool").read_bytes().splitlines()[0])["index"] == 0
        writer.finish({}, VALID)
    assert remove_stale_partials(tmp_path) == []
    assert len(list_runs(tmp_path)[0]) == 1


def test_folders_of_a_dead_writer_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "20261115-143015-x.partial"
    left.mkdir()
    (left / "requests.parquet.spool").write_bytes(b'{"index": 0, "inten')
    assert list_runs(tmp_path) == ([], [])
    assert remove_stale_partials(tmp_path) == [left]
    assert not left.exists()
