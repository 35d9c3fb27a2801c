"""Headline panels: which engine leads, and whether the difference is significant."""

from __future__ import annotations

import re
from typing import Any

from enginebay.lab.report.engine_pairs import compare_engine_pairs
from enginebay.lab.report.report_points import arrange_runs
from enginebay.lab.report.sections.glance_section import render_glance
from tests.unit.lab.report.report_runs import InMemoryRun, make_run, make_study

INVALID = {"status": "invalid", "reasons": [{"code": "send_lag", "severity": "invalid", "message": "late"}]}


def panels(runs: list[InMemoryRun]) -> dict[str, str]:
    """The text of each panel by its title, and of the heading as `load`."""
    report = arrange_runs(runs)
    found = render_glance(report, compare_engine_pairs(report))
    head, *rest = re.split(r'<div class="panel">', found)
    texts = [re.sub(r"<[^>]*>", "|", part) for part in rest]
    names = [next(piece for piece in text.split("|") if piece) for text in texts]
    return {
        "load": re.sub(r"<[^>]*>", "", head),
        **{name: " ".join(text.replace("|", " ").split()) for name, text in zip(names, texts, strict=True)},
    }


def test_the_engine_that_is_ahead_of_all_is_named_with_the_ratios() -> None:
    said = panels(make_study(cycles=3))["TPOT median, ms"]
    assert said.startswith("TPOT median, ms vllm is lowest")
    found = re.findall(r"vllm has (0\.\d+) × \[(0\.\d+), (0\.\d+)\] of this", said)
    assert len(found) == 2  # of llamacpp and of transformers
    assert all(float(low) <= float(ratio) <= float(high) for ratio, low, high in found)


def test_the_best_is_first() -> None:
    said = panels(make_study(cycles=3))["Energy per output token, J"]
    assert re.findall(r"(llamacpp|transformers|vllm) \d", said) == ["llamacpp", "transformers", "vllm"]


def test_the_heaviest_load_is_shown_where_most_can_be_compared() -> None:
    assert "Poisson, 6/s" in panels(make_study(cycles=3))["load"]


def test_a_load_where_an_engine_is_invalid_gives_way_to_one_where_all_are_valid() -> None:
    runs = [
        make_run(
            engine,
            rate,
            cycle,
            point=point,
            token_s=token_s,
            verdict=INVALID if (engine, rate) == ("b", 6.0) else {"status": "valid"},
        )
        for cycle in (1, 2, 3)
        for point, (engine, token_s, rate) in enumerate(
            [("a", 0.01, 2.0), ("b", 0.02, 2.0), ("a", 0.01, 6.0), ("b", 0.02, 6.0)]
        )
    ]
    assert "Poisson, 2/s" in panels(runs)["load"]


def test_an_inconclusive_comparison_estimates_the_runs_needed() -> None:
    runs = [
        make_run(engine, 4.0, cycle, point=point, token_s=0.01 * (1 + noise))
        for cycle, noises in enumerate([(0.0, 0.05), (0.06, 0.0), (0.0, 0.04)], start=1)
        for point, (engine, noise) in enumerate(zip("ab", noises, strict=True))
    ]
    said = panels(runs)["TPOT median, ms"]
    assert "Inconclusive" in said
    assert re.search(r"would resolve a difference of this size|so small that", said)


def test_one_cycle_is_inconclusive() -> None:
    said = panels(make_study(cycles=1))["TPOT median, ms"]
    assert "Inconclusive" in said and "not reliable: one pair has no interval" in said


def test_invalid_runs_are_inconclusive() -> None:
    said: dict[str, Any] = panels(make_study(cycles=3, verdict=INVALID))
    assert "invalid" in said["load"]
    assert "Invalid: must not be published" in said["TPOT median, ms"]
    assert "of this" not in said["TPOT median, ms"]


def test_what_was_not_measured_has_its_reason() -> None:
    runs = [make_run(engine, cycle=cycle, watts=None) for cycle in (1, 2) for engine in "ab"]
    assert "Not measured No energy was read." in panels(runs)["Energy per output token"]


def test_one_engine_has_its_numbers_and_no_winner() -> None:
    said = panels([make_run(cycle=cycle) for cycle in (1, 2, 3)])["Output tokens/s"]
    assert "highest" not in said and re.search(r"vllm \d+", said)
