"""Profiles from config data and from the short text of `--profile`.

{"kind": "poisson", "rate": 4}
{"kind": "sweep", "profile": "closed", "concurrencies": [1, 8, 32]}
poisson:rate=4,requests=200        a profile with its limits
poisson:rate=1/2/4                 a sweep
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from enginebay.errors import ConfigError
from enginebay.lab.profiles.profile import (
    LIMIT_KEYS,
    Closed,
    Constant,
    Gamma,
    Offline,
    Poisson,
    Profile,
    Ramp,
    Trace,
    read_limits,
)
from enginebay.lab.workload.fields import choice, known_keys

KINDS: dict[str, type[Profile]] = {
    "offline": Offline,
    "closed": Closed,
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "trace": Trace,
    "ramp": Ramp,
}
SWEPT = {  # what a sweep varies, and what the list of its values is called
    "closed": ("concurrency", "concurrencies"),
    "constant": ("rate", "rates"),
    "poisson": ("rate", "rates"),
    "gamma": ("rate", "rates"),
    "trace": ("speed", "speeds"),
}
EXAMPLE = "for example poisson:rate=4,requests=200"


def read_profile(data: Mapping[str, Any]) -> list[Profile]:
    """The profiles that config data asks for: one, or several of a sweep."""
    if not isinstance(data, Mapping) or "kind" not in data:
        raise ConfigError("profile needs a kind", f"choose from {', '.join((*KINDS, 'sweep'))}", param="profile.kind")
    kind = choice("profile.kind", data["kind"], (*KINDS, "sweep"))
    rest = {key: value for key, value in data.items() if key != "kind"}
    return _sweep(rest) if kind == "sweep" else [_one(kind, rest)]


def _one(kind: str, data: Mapping[str, Any]) -> Profile:
    made = KINDS[kind]
    names = [field.name for field in fields(made)]
    required = [field.name for field in fields(made) if field.default is MISSING]
    for key in data:
        if key in LIMIT_KEYS and key not in names:
            raise ConfigError(
                f"profile {kind} has no key {key!r}", f"write {key} under limits", param=f"profile {kind}.{key}"
            )
    return made(**known_keys(f"profile {kind}", data, names, required))


def _sweep(data: Mapping[str, Any]) -> list[Profile]:
    kind = choice("profile.profile", data.get("profile"), SWEPT)
    varied, plural = SWEPT[kind]
    values = data.get(plural)
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"a sweep of {kind} needs {plural}", f"add {plural}: [1, 2, 4]", param=f"profile.{plural}")
    same = {key: value for key, value in data.items() if key not in ("profile", plural)}
    if varied in same:
        raise ConfigError(f"a sweep has {plural}, not {varied}", f"remove {varied}", param=f"profile.{varied}")
    swept = [_one(kind, {**same, varied: value}) for value in values]
    if len(set(swept)) < len(swept):
        raise ConfigError(
            f"profile.{plural} has a value twice", "use num_cycles to repeat points", param=f"profile.{plural}"
        )
    return swept


def parse_profile(text: str) -> tuple[list[Profile], dict[str, Any]]:
    """The short text of a profile, and the limits that it gives, as `read_limits` takes them."""
    kind, _, rest = text.partition(":")
    pairs = _pairs(rest)
    own = [field.name for field in fields(KINDS[kind])] if kind in KINDS else []
    limits = {key: value for key, value in pairs.items() if key in LIMIT_KEYS and key not in own}
    if kind in KINDS:  # its limits are among what the short text takes
        known_keys(f"profile {kind}", pairs, dict.fromkeys((*own, *LIMIT_KEYS)))
    data = {key: value for key, value in pairs.items() if key not in limits}
    varied, plural = SWEPT.get(kind, ("", ""))
    if isinstance(data.get(varied), list):
        data = {"kind": "sweep", "profile": kind, plural: data.pop(varied), **data}
    read_limits(limits)  # what is wrong with them is said now
    return read_profile({"kind": kind, **data}), limits


def _pairs(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or key in found:
            wrong = "is there twice" if key in found else "is not key=value"
            raise ConfigError(f"{part.strip()!r} in the profile {wrong}", EXAMPLE, param="profile")
        found[key] = [_value(one) for one in value.split("/")] if "/" in value else _value(value)
    return found


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
