from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from enginebay.lab.store.run_export import export_runs
from enginebay.util.number_format import format_digits
from tests.unit.lab.store.run_files import INVALID, write_run

SPEED = "output_tokens_per_s"


def test_csv_has_a_row_for_each_run_and_says_which_is_invalid(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, "a", measures={SPEED: 10.0, "ttft_s": {"p95": 0.25}}, study={"label": 'x,"y"'}),
        write_run(tmp_path, "b", measures={SPEED: 20.0, "absent": {"j": "none"}}, verdict=INVALID),
    ]
    first, second = csv.DictReader(io.StringIO(export_runs(runs, "csv")))
    assert (first["id"], first["verdict"], first[SPEED], first["ttft_s.p95"]) == ("a", "valid", "10.0", "0.25")
    assert first["label"] == 'x,"y"'
    assert (second["verdict"], second["reasons"], second["ttft_s.p95"]) == ("invalid", "send_lag", "")


def test_markdown_marks_each_number_of_an_invalid_run_and_says_why(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, "a"), write_run(tmp_path, "b", measures={SPEED: 20.0}, verdict=INVALID)]
    text = export_runs(runs, "markdown")
    lines = text.splitlines()
    assert lines[0].endswith(f"| label | {SPEED} |")
    assert lines[2].endswith("| 10.00 |")
    assert lines[3].endswith("| 20.00 (invalid) |")
    assert "- `b` is invalid: send_lag: requests left \\| late" in lines


def test_markdown_blames_only_what_makes_a_run_invalid(tmp_path: Path) -> None:
    caveat = {"code": "too_few_cycles", "severity": "informative", "message": "1 cycle"}
    grave = {"code": "errors", "severity": "invalid", "message": "2 failed"}
    runs = [
        write_run(tmp_path, "a", verdict={"status": "informative", "reasons": [caveat]}),
        write_run(tmp_path, "b", verdict={"status": "invalid", "reasons": [grave, caveat]}),
    ]
    assert export_runs(runs, "markdown").splitlines()[-3:] == [
        "- `a` is informative: too_few_cycles: 1 cycle",
        "- `b` is invalid: errors: 2 failed",
        "- `b` would be informative for this reason alone: too_few_cycles: 1 cycle",
    ]


def test_json_is_the_manifests(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    assert json.loads(export_runs([run], "json")) == [run.manifest]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0, "0"),
        (1234.5, "1234"),
        (12.345, "12.35"),
        (0.012341, "0.01234"),
        (-0.5, "-0.5000"),
        (1e-9, "1.000e-09"),
        (3, "3.000"),
        (123456789.0, "123456789"),
        (1e12, "1.000e+12"),
    ],
)
def test_numbers_have_four_digits(value: float | None, text: str) -> None:
    assert format_digits(value) == text
