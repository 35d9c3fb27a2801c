"""Prompt and response lengths: fixed, or drawn from a distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from enginebay.errors import ConfigError
from enginebay.lab.workload.field_checks import check_choice, check_keys, check_positive_number, check_whole_number

DISTRIBUTION_KEYS = {  # per distribution: accepted keys and required keys
    "uniform": (("kind", "min", "max"), ("min", "max")),
    "normal": (("kind", "mean", "std", "min", "max"), ("mean", "std")),
    "lognormal": (("kind", "mean", "std", "min", "max"), ("mean", "std")),
}
MIN_SHARE_WITHIN = 1e-6  # of the distribution within its bounds; below it, numerics are inexact


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A distribution of token counts. `mean` and `std` are before truncation to `minimum`..`maximum`."""

    kind: str
    mean: float | None = None
    std: float | None = None
    minimum: int = 1
    maximum: int | None = None

    def __post_init__(self) -> None:
        check_whole_number("the minimum length", self.minimum)
        if self.maximum is not None and self.maximum < self.minimum:
            raise ConfigError(
                f"a length of at least {self.minimum} and at most {self.maximum} is impossible", "raise max"
            )


LengthSpec = int | LengthDistribution


def length_from_value(name: str, data: Any) -> LengthSpec:
    """Build from an integer or a mapping."""
    if not isinstance(data, Mapping):
        return check_whole_number(name, data)
    kind = check_choice(f"{name}.kind", data.get("kind"), DISTRIBUTION_KEYS)
    known, required = DISTRIBUTION_KEYS[kind]
    values = check_keys(name, data, known, required)
    return LengthDistribution(
        kind=kind,
        mean=None if "mean" not in values else check_positive_number(f"{name}.mean", values["mean"]),
        std=None if "std" not in values else check_positive_number(f"{name}.std", values["std"]),
        minimum=check_whole_number(f"{name}.min", 1 if values.get("min") is None else values["min"]),
        maximum=None if values.get("max") is None else check_whole_number(f"{name}.max", values["max"]),
    )


def length_to_value(length: LengthSpec) -> Any:
    """Return a length as data that `length_from_value` accepts."""
    if isinstance(length, int):
        return length
    keys = {"mean": length.mean, "std": length.std, "min": length.minimum, "max": length.maximum}
    return {"kind": length.kind, **{key: value for key, value in keys.items() if value is not None}}


def draw_lengths(length: LengthSpec, count: int, random: Any) -> list[int]:
    """Draw `count` lengths from a numpy Generator."""
    if isinstance(length, int):
        return [length] * count
    if length.kind == "uniform":
        assert length.maximum is not None
        return _to_ints(random.integers(length.minimum, length.maximum, size=count, endpoint=True))
    return _to_ints(_draw_within_bounds(length, random.random(count)))


def _draw_within_bounds(length: LengthDistribution, shares: Any) -> Any:
    """Sample the truncated distribution: mass outside the bounds is cut off, not moved to them."""
    import numpy as np
    from scipy.special import ndtr, ndtri

    assert length.mean is not None
    assert length.std is not None
    mean, std = length.mean, length.std
    logarithmic = length.kind == "lognormal"
    if logarithmic:
        std = float(np.sqrt(np.log1p((length.std / length.mean) ** 2)))
        mean = float(np.log(length.mean)) - std**2 / 2
    highest = np.inf if length.maximum is None else length.maximum + 0.5
    bounds = np.array([length.minimum - 0.5, highest])  # halves, because lengths are rounded
    low, high = ndtr(((np.log(bounds) if logarithmic else bounds) - mean) / std)
    if high - low < MIN_SHARE_WITHIN:
        raise ConfigError("almost no length falls between min and max", "set mean between min and max")
    drawn = mean + std * ndtri(low + shares * (high - low))
    return np.clip(np.rint(np.exp(drawn) if logarithmic else drawn), length.minimum, length.maximum)


def _to_ints(values: Any) -> list[int]:
    lengths: list[int] = values.astype(int).tolist()
    return lengths
