"""How long prompts and answers are: one length for all, or drawn from a distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from enginebay.errors import ConfigError
from enginebay.lab.workload.field_checks import check_choice, check_keys, check_positive_number, check_whole_number

DISTRIBUTION_KEYS = {  # of each distribution: what it takes, and what of that it needs
    "uniform": (("kind", "min", "max"), ("min", "max")),
    "normal": (("kind", "mean", "std", "min", "max"), ("mean", "std")),
    "lognormal": (("kind", "mean", "std", "min", "max"), ("mean", "std")),
}
MIN_SHARE_WITHIN = 1e-6  # of a distribution must lie within its bounds; further out its figures are not exact


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A distribution of lengths in tokens. `mean` and `std` are those before it is cut to `minimum`..`maximum`."""

    kind: str
    mean: float | None = None
    std: float | None = None
    minimum: int = 1
    maximum: int | None = None

    def __post_init__(self) -> None:
        check_whole_number("the shortest length", self.minimum)
        if self.maximum is not None and self.maximum < self.minimum:
            raise ConfigError(
                f"a length of at least {self.minimum} and at most {self.maximum} is impossible", "raise max"
            )


LengthSpec = int | LengthDistribution


def length_from_value(name: str, data: Any) -> LengthSpec:
    """An integer, or a distribution as a mapping."""
    if not isinstance(data, Mapping):
        return check_whole_number(name, data)
    kind = check_choice(f"{name}.kind", data.get("kind"), DISTRIBUTION_KEYS)
    known, required = DISTRIBUTION_KEYS[kind]
    given = check_keys(name, data, known, required)
    return LengthDistribution(
        kind=kind,
        mean=None if "mean" not in given else check_positive_number(f"{name}.mean", given["mean"]),
        std=None if "std" not in given else check_positive_number(f"{name}.std", given["std"]),
        minimum=check_whole_number(f"{name}.min", 1 if given.get("min") is None else given["min"]),
        maximum=None if given.get("max") is None else check_whole_number(f"{name}.max", given["max"]),
    )


def length_to_value(length: LengthSpec) -> Any:
    """A length as the data that `read_length` takes."""
    if isinstance(length, int):
        return length
    named = {"mean": length.mean, "std": length.std, "min": length.minimum, "max": length.maximum}
    return {"kind": length.kind, **{key: value for key, value in named.items() if value is not None}}


def draw_lengths(length: LengthSpec, count: int, random: Any) -> list[int]:
    """So many lengths, from a numpy Generator."""
    if isinstance(length, int):
        return [length] * count
    if length.kind == "uniform":
        assert length.maximum is not None
        return _to_ints(random.integers(length.minimum, length.maximum, size=count, endpoint=True))
    return _to_ints(_draw_within_bounds(length, random.random(count)))


def _draw_within_bounds(length: LengthDistribution, shares: Any) -> Any:
    """The places of the distribution between its bounds: what lies outside is cut away, not piled up at the bounds."""
    assert length.mean is not None
    assert length.std is not None
    mean, std = length.mean, length.std
    logarithmic = length.kind == "lognormal"
    if logarithmic:
        std = float(np.sqrt(np.log1p((length.std / length.mean) ** 2)))
        mean = float(np.log(length.mean)) - std**2 / 2
    highest = np.inf if length.maximum is None else length.maximum + 0.5
    bounds = np.array([length.minimum - 0.5, highest])  # halves, since lengths are rounded
    low, high = ndtr(((np.log(bounds) if logarithmic else bounds) - mean) / std)
    if high - low < MIN_SHARE_WITHIN:
        raise ConfigError("the lengths leave next to nothing between min and max", "bring mean between min and max")
    drawn = mean + std * ndtri(low + shares * (high - low))
    return np.clip(np.rint(np.exp(drawn) if logarithmic else drawn), length.minimum, length.maximum)


def _to_ints(values: Any) -> list[int]:
    found: list[int] = values.astype(int).tolist()
    return found
