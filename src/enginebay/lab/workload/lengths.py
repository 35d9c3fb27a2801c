"""How long prompts and answers are: one length for all, or drawn from a distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from enginebay.errors import ConfigError
from enginebay.lab.workload.fields import choice, known_keys, positive_number, whole_number

KEYS = {  # of each distribution: what it takes, and what of that it needs
    "uniform": (("kind", "min", "max"), ("min", "max")),
    "normal": (("kind", "mean", "std", "min", "max"), ("mean", "std")),
    "lognormal": (("kind", "mean", "std", "min", "max"), ("mean", "std")),
}
LEAST_SHARE = 1e-6  # of a distribution must lie within its bounds; further out its figures are not exact


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens. `mean` and `std` are those before it is cut to `minimum`..`maximum`."""

    kind: str
    mean: float | None = None
    std: float | None = None
    minimum: int = 1
    maximum: int | None = None

    def __post_init__(self) -> None:
        whole_number("the shortest length", self.minimum)
        if self.maximum is not None and self.maximum < self.minimum:
            raise ConfigError(
                f"a length of at least {self.minimum} and at most {self.maximum} is impossible", "raise max"
            )


Length = int | Lengths


def read_length(name: str, data: Any) -> Length:
    """An integer, or a distribution as a mapping."""
    if not isinstance(data, Mapping):
        return whole_number(name, data)
    kind = choice(f"{name}.kind", data.get("kind"), KEYS)
    known, required = KEYS[kind]
    given = known_keys(name, data, known, required)
    return Lengths(
        kind=kind,
        mean=None if "mean" not in given else positive_number(f"{name}.mean", given["mean"]),
        std=None if "std" not in given else positive_number(f"{name}.std", given["std"]),
        minimum=whole_number(f"{name}.min", 1 if given.get("min") is None else given["min"]),
        maximum=None if given.get("max") is None else whole_number(f"{name}.max", given["max"]),
    )


def length_data(length: Length) -> Any:
    """A length as the data that `read_length` takes."""
    if isinstance(length, int):
        return length
    named = {"mean": length.mean, "std": length.std, "min": length.minimum, "max": length.maximum}
    return {"kind": length.kind, **{key: value for key, value in named.items() if value is not None}}


def draw_lengths(length: Length, count: int, chance: Any) -> list[int]:
    """So many lengths, from a numpy Generator."""
    if isinstance(length, int):
        return [length] * count
    if length.kind == "uniform":
        assert length.maximum is not None
        return _ints(chance.integers(length.minimum, length.maximum, size=count, endpoint=True))
    return _ints(_within(length, chance.random(count)))


def _within(length: Lengths, shares: Any) -> Any:
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
    if high - low < LEAST_SHARE:
        raise ConfigError("the lengths leave next to nothing between min and max", "bring mean between min and max")
    drawn = mean + std * ndtri(low + shares * (high - low))
    return np.clip(np.rint(np.exp(drawn) if logarithmic else drawn), length.minimum, length.maximum)


def _ints(values: Any) -> list[int]:
    found: list[int] = values.astype(int).tolist()
    return found
