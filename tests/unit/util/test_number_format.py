"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest

from enginebay.util.number_format import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600), ("1h30m", 5400), ("90 s", 90), ("500ms", 0.5), ("2d", 172800), ("10 min", 600), ("-1m", -60),
        ("300", 300), ("-1", -1), ("", None), ("m", None), ("10 parsecs", None), ("1h-3m", None), ("9" * 50 + "s", None),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 * 10**9), ("4gb", 4 * 10**9), ("4 GiB", 4 * 2**30), ("4G", 4 * 10**9), ("4Gi", 4 * 2**30), ("1T", 10**12),
        ("1.5MB", 1_500_000), ("100kB", 100_000), ("12", 12), ("12B", 12), ("", None), ("GB", None), ("-4GB", None),
        ("9" * 400, None),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size
