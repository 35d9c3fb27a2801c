from __future__ import annotations

import pytest

from enginebay.lab.report.figure_format import (
    add_unit_to_title,
    format_figure,
    format_interval,
    format_number,
    format_ratio,
    infer_unit,
    pick_column_unit,
)
from enginebay.lab.statistics.confidence_intervals import ConfidenceInterval


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.6, "1,235"), (999.4, "999"), (12.345, "12.3"), (0.01234, "0.0123"), (-3.14159, "-3.14")],
)
def test_numbers_have_three_digits_or_all_of_them_from_a_thousand_on(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3\u202fms"),
        (2.5, "s", "2.50\u202fs"),
        (0.00002, "s", "20.0\u202fµs"),
        (0.0, "s", "0\u202fs"),
        (3 * 2**30, "bytes", "3.00\u202fGiB"),
        (0.25, "share", "25.0%"),
        (4.0, "", "4.00"),
        (None, "s", "–"),
        (float("nan"), "s", "–"),
    ],
)
def test_a_unit_is_chosen_in_which_the_number_reads_well(value: float | None, unit: str, text: str) -> None:
    assert format_figure(value, unit) == text


def test_an_interval_stands_in_the_unit_of_its_estimate() -> None:
    assert format_interval(ConfidenceInterval(1.0, 0.9, 1.1, 5), "s") == "1.00 [0.900, 1.10]\u202fs"


def test_one_run_has_no_interval() -> None:
    assert format_interval(ConfidenceInterval(412.0, None, None, 1), "tokens/s") == "412\u202ftokens/s"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        ((1.234, 1.2, 1.3), ("1.23\u202f×", "[1.20, 1.30]")),
        ((1.0024, 1.0004, 1.0044), ("1.0024\u202f×", "[1.0004, 1.0044]")),  # settled, and must be seen to be
        ((0.409, 0.4, 0.41), ("0.409\u202f×", "[0.400, 0.410]")),
        ((25.2, None, None), ("25.2\u202f×", "")),
        ((1.0, 1.0, 1.0), ("1.00\u202f×", "[1.00, 1.00]")),
    ],
)
def test_a_ratio_has_enough_digits_to_differ_from_one(
    ratio: tuple[float, float | None, float | None], text: tuple[str, str]
) -> None:
    assert format_ratio(*ratio) == text


def test_a_column_has_the_unit_of_its_middle() -> None:
    assert pick_column_unit([0.0009, 0.09, 1.2], "s") == (1e3, "ms")


def test_a_title_has_its_unit_once() -> None:
    assert (add_unit_to_title("TTFT p95", "ms"), add_unit_to_title("Output tokens/s", "tokens/s")) == (
        "TTFT p95, ms",
        "Output tokens/s",
    )


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("ttft_s.p95", "s"),
        ("ttft_s.count", ""),
        ("output_tokens_per_s", "tokens/s"),
        ("goodput_requests_per_s", "requests/s"),
        ("gpu_j_per_output_token", "J"),
        ("gpu_energy_j", "J"),
        ("goodput_share", "share"),
        ("errors", ""),
    ],
)
def test_the_unit_is_in_the_name(name: str, unit: str) -> None:
    assert infer_unit(name) == unit
