"""Parse profiles from config data and from the short form of `--profile`.

{"kind": "poisson", "rate": 4}
{"kind": "sweep", "profile": "closed", "concurrencies": [1, 8, 32]}
poisson:rate=4,requests=200        a profile with limits
poisson:rate=1/2/4                 a sweep
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from enginebay.errors import ConfigError
from enginebay.lab.profiles.profile import (
    LIMIT_KEYS,
    ClosedLoopProfile,
    ConstantProfile,
    GammaProfile,
    OfflineProfile,
    PoissonProfile,
    Profile,
    RampProfile,
    TraceProfile,
    limits_from_dict,
)
from enginebay.lab.workload.field_checks import check_choice, check_keys

PROFILE_KINDS: dict[str, type[Profile]] = {
    "offline": OfflineProfile,
    "closed": ClosedLoopProfile,
    "constant": ConstantProfile,
    "poisson": PoissonProfile,
    "gamma": GammaProfile,
    "trace": TraceProfile,
    "ramp": RampProfile,
}
SWEEP_KEYS = {  # the swept key, and the key of its list of values
    "closed": ("concurrency", "concurrencies"),
    "constant": ("rate", "rates"),
    "poisson": ("rate", "rates"),
    "gamma": ("rate", "rates"),
    "trace": ("speed", "speeds"),
}
PROFILE_EXAMPLE = "for example poisson:rate=4,requests=200"


def profiles_from_dict(data: Mapping[str, Any]) -> list[Profile]:
    """Build the profiles of a config section: one, or several for a sweep."""
    if not isinstance(data, Mapping) or "kind" not in data:
        raise ConfigError(
            "profile needs a kind", f"choose from {', '.join((*PROFILE_KINDS, 'sweep'))}", param="profile.kind"
        )
    kind = check_choice("profile.kind", data["kind"], (*PROFILE_KINDS, "sweep"))
    rest = {key: value for key, value in data.items() if key != "kind"}
    return _expand_sweep(rest) if kind == "sweep" else [_build_profile(kind, rest)]


def _build_profile(kind: str, data: Mapping[str, Any]) -> Profile:
    profile_type = PROFILE_KINDS[kind]
    names = [field.name for field in fields(profile_type)]
    required = [field.name for field in fields(profile_type) if field.default is MISSING]
    for key in data:
        if key in LIMIT_KEYS and key not in names:
            raise ConfigError(
                f"profile {kind} has no key {key!r}", f"write {key} under limits", param=f"profile {kind}.{key}"
            )
    return profile_type(**check_keys(f"profile {kind}", data, names, required))


def _expand_sweep(data: Mapping[str, Any]) -> list[Profile]:
    kind = check_choice("profile.profile", data.get("profile"), SWEEP_KEYS)
    varied, plural = SWEEP_KEYS[kind]
    values = data.get(plural)
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"a sweep of {kind} needs {plural}", f"add {plural}: [1, 2, 4]", param=f"profile.{plural}")
    common = {key: value for key, value in data.items() if key not in ("profile", plural)}
    if varied in common:
        raise ConfigError(f"a sweep takes {plural}, not {varied}", f"remove {varied}", param=f"profile.{varied}")
    swept = [_build_profile(kind, {**common, varied: value}) for value in values]
    if len(set(swept)) < len(swept):
        raise ConfigError(
            f"profile.{plural} contains a value twice", "use num_cycles to repeat points", param=f"profile.{plural}"
        )
    return swept


def parse_profile(text: str) -> tuple[list[Profile], dict[str, Any]]:
    """Parse the short form into profiles and the data of its limits, as `limits_from_dict` accepts it."""
    kind, _, rest = text.partition(":")
    pairs = _parse_pairs(rest)
    own = [field.name for field in fields(PROFILE_KINDS[kind])] if kind in PROFILE_KINDS else []
    limits = {key: value for key, value in pairs.items() if key in LIMIT_KEYS and key not in own}
    if kind in PROFILE_KINDS:  # the short form may include limits
        check_keys(f"profile {kind}", pairs, dict.fromkeys((*own, *LIMIT_KEYS)))
    data = {key: value for key, value in pairs.items() if key not in limits}
    varied, plural = SWEEP_KEYS.get(kind, ("", ""))
    if isinstance(data.get(varied), list):
        data = {"kind": "sweep", "profile": kind, plural: data.pop(varied), **data}
    limits_from_dict(limits)  # raises early if they are invalid
    return profiles_from_dict({"kind": kind, **data}), limits


def _parse_pairs(text: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or key in pairs:
            wrong = "appears twice" if key in pairs else "is not key=value"
            raise ConfigError(f"{part.strip()!r} in the profile {wrong}", PROFILE_EXAMPLE, param="profile")
        pairs[key] = [_parse_value(item) for item in value.split("/")] if "/" in value else _parse_value(value)
    return pairs


def _parse_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
