"""Number formatting: three significant digits and a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from enginebay.lab.statistics.confidence_intervals import ConfidenceInterval
from enginebay.util.number_format import format_digits

# unit -> (factor, displayed unit), small to large; the largest unit with a value of at least 1 is used
UNIT_STEPS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1e6, "µs"), (1e3, "ms"), (1.0, "s")),
    "J": ((1e3, "mJ"), (1.0, "J"), (1e-3, "kJ")),
    "bytes": ((1.0, "B"), (2.0**-10, "KiB"), (2.0**-20, "MiB"), (2.0**-30, "GiB")),
    "share": ((100.0, "%"),),
}
UNIT_SUFFIXES = (
    ("tokens_per_s", "tokens/s"),
    ("requests_per_s", "requests/s"),
    ("_per_s", "/s"),
    ("_s", "s"),
    ("_j", "J"),
    ("_w", "W"),
    ("_bytes", "bytes"),
    ("_c", "°C"),
    ("_hz", "Hz"),
    ("_share", "share"),
    ("utilisation", "share"),
)


def infer_unit(name: str) -> str:
    """Return the unit that a measure's name implies."""
    stem, _, inner = name.partition(".")
    if inner == "count":
        return ""
    if "j_per_" in stem:
        return "J"
    return next((unit for suffix, unit in UNIT_SUFFIXES if stem.endswith(suffix)), "")


def format_number(value: float) -> str:
    """Format with three significant digits, and whole numbers from 1,000."""
    return format_digits(value, 3, thousands=",")


def pick_unit_step(size: float, unit: str) -> tuple[float, str]:
    """Return the factor and the unit in which this size reads best."""
    steps = UNIT_STEPS.get(unit, ((1.0, unit),))
    if size == 0:
        return steps[-1]
    fitting = [step for step in steps if abs(size) * step[0] >= 1]
    return fitting[-1] if fitting else steps[0]


def format_figure(value: float | None, unit: str = "") -> str:
    """Format one number with its unit."""
    if value is None or not math.isfinite(value):
        return "–"
    factor, shown = pick_unit_step(value, unit)
    return _append_unit(format_number(value * factor), shown)


def format_interval(interval: ConfidenceInterval, unit: str = "") -> str:
    """Format an estimate and its interval in one unit: `412 [404, 420] tokens/s`; without an interval, the estimate alone."""
    if interval.low is None or interval.high is None:
        return format_figure(interval.estimate, unit)
    factor, shown = pick_unit_step(interval.estimate, unit)
    low, high = format_number(interval.low * factor), format_number(interval.high * factor)
    return _append_unit(f"{format_number(interval.estimate * factor)} [{low}, {high}]", shown)


def pick_column_unit(estimates: Sequence[float], unit: str) -> tuple[float, str]:
    """Return the factor and unit for a whole column, chosen by its middle value."""
    ordered = sorted(abs(estimate) for estimate in estimates)
    return pick_unit_step(ordered[len(ordered) // 2], unit)


def add_unit_to_title(title: str, unit: str) -> str:
    """Append the unit to a title unless the title ends with it."""
    return f"{title}, {unit}" if unit and not title.endswith(unit) else title


def format_ratio(estimate: float, low: float | None, high: float | None) -> tuple[str, str]:
    """Format a ratio and its interval with enough decimals to distinguish them from 1."""
    ends = [value for value in (estimate, low, high) if value is not None]
    decimals = next((count for count in range(2, 5) if all(end == 1 or round(end, count) != 1 for end in ends)), 5)

    def text(value: float) -> str:
        return f"{value:.{decimals}f}" if 0.5 <= value < 10 else format_number(value)

    interval = "" if low is None or high is None else f"[{text(low)}, {text(high)}]"
    return f"{text(estimate)}\u202f×", interval


def _append_unit(text: str, unit: str) -> str:
    if not unit:
        return text
    return f"{text}%" if unit == "%" else f"{text}\u202f{unit}"
