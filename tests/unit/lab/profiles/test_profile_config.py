from __future__ import annotations

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.profiles.profile import (
    ClosedLoopProfile,
    ConstantProfile,
    GammaProfile,
    OfflineProfile,
    PoissonProfile,
    RampProfile,
    RunLimits,
    TraceProfile,
    limits_from_dict,
    profile_label,
    profile_to_dict,
)
from enginebay.lab.profiles.profile_config import PROFILE_KINDS, parse_profile, profiles_from_dict

ALL = [
    OfflineProfile(),
    ClosedLoopProfile(32),
    ConstantProfile(4),
    PoissonProfile(4.5),
    GammaProfile(4, 0.5),
    TraceProfile(2.0),
    RampProfile(0, 8, 60),
]
NAMES = ["offline", "c32", "constant-4", "poisson-4.5", "gamma-4-b0.5", "trace-x2", "ramp-0-8-60s"]


def test_every_kind_is_tried_here():
    assert [type(one) for one in ALL] == list(PROFILE_KINDS.values())


@pytest.mark.parametrize("profile", ALL, ids=NAMES)
def test_data_can_be_read_again(profile):
    assert profiles_from_dict(profile_to_dict(profile)) == [profile]


@pytest.mark.parametrize(("profile", "name"), list(zip(ALL, NAMES, strict=True)), ids=NAMES)
def test_names(profile, name):
    assert profile_label(profile) == name


def test_open_loops_and_rates():
    assert [one.kind for one in ALL if one.open_loop] == ["constant", "poisson", "gamma", "trace", "ramp"]
    assert [one.rate for one in ALL] == [None, None, 4, 4.5, 4, None, None]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"profile": "poisson", "rates": [1, 2.5]}, [PoissonProfile(1), PoissonProfile(2.5)]),
        ({"profile": "gamma", "rates": [1, 2], "burstiness": 0.5}, [GammaProfile(1, 0.5), GammaProfile(2, 0.5)]),
        ({"profile": "closed", "concurrencies": [1, 8]}, [ClosedLoopProfile(1), ClosedLoopProfile(8)]),
        ({"profile": "trace", "speeds": [1, 2]}, [TraceProfile(1), TraceProfile(2)]),
    ],
)
def test_a_sweep_is_several(data, expected):
    assert profiles_from_dict({"kind": "sweep", **data}) == expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "needs a kind"),
        ("poisson", "needs a kind"),
        ({"kind": "poison", "rate": 1}, "did you mean 'poisson'"),
        ({"kind": "poisson"}, "needs rate"),
        ({"kind": "poisson", "rate": 0}, "above 0"),
        ({"kind": "poisson", "rate": -1}, "above 0"),
        ({"kind": "poisson", "rate": float("nan")}, "finite"),
        ({"kind": "poisson", "rate": float("inf")}, "finite"),
        ({"kind": "poisson", "rate": "4"}, "must be a number"),
        ({"kind": "poisson", "rate": True}, "must be a number"),
        ({"kind": "poisson", "rate": 4, "burstiness": 2}, "no key 'burstiness'"),
        ({"kind": "poisson", "rate": 4, "requests": 9}, "write requests under limits"),
        ({"kind": "offline", "rate": 4}, "takes no keys"),
        ({"kind": "closed", "concurrency": 1.5}, "whole number"),
        ({"kind": "closed", "concurrency": 0}, "at least 1"),
        ({"kind": "gamma", "rate": 1, "burstiness": 0}, "above 0"),
        ({"kind": "trace", "speed": 0}, "above 0"),
        ({"kind": "ramp", "from_rate": 0, "to_rate": 0, "duration_s": 5}, "sends nothing"),
        ({"kind": "ramp", "from_rate": -1, "to_rate": 1, "duration_s": 5}, "0 or above"),
        ({"kind": "sweep"}, "profile.profile"),
        ({"kind": "sweep", "profile": "ramp"}, "profile.profile"),
        ({"kind": "sweep", "profile": "poisson"}, "needs rates"),
        ({"kind": "sweep", "profile": "poisson", "rates": []}, "needs rates"),
        ({"kind": "sweep", "profile": "poisson", "rates": 4}, "needs rates"),
        ({"kind": "sweep", "profile": "poisson", "rates": [1, 0]}, "above 0"),
        ({"kind": "sweep", "profile": "poisson", "rates": [[1], 2]}, "must be a number"),
        ({"kind": "sweep", "profile": "poisson", "rates": [1, 1]}, "a value twice"),
        ({"kind": "sweep", "profile": "poisson", "rates": [1], "rate": 2}, "remove rate"),
        ({"kind": "sweep", "profile": "poisson", "concurrencies": [1]}, "needs rates"),
    ],
)
def test_bad_values_are_refused_with_a_hint(data, said):
    with pytest.raises(ConfigError) as caught:
        profiles_from_dict(data)
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "profiles", "limits"),
    [
        ("offline", [OfflineProfile()], {}),
        ("poisson:rate=4,requests=200", [PoissonProfile(4)], {"requests": 200}),
        ("poisson: rate=0.5, duration_s=1e2", [PoissonProfile(0.5)], {"duration_s": 100.0}),
        (
            "closed:concurrency=1/8,until_stable=true",
            [ClosedLoopProfile(1), ClosedLoopProfile(8)],
            {"until_stable": True},
        ),
        ("gamma:rate=1/2,burstiness=0.5", [GammaProfile(1, 0.5), GammaProfile(2, 0.5)], {}),
        ("sweep:profile=constant,rates=1/2", [ConstantProfile(1), ConstantProfile(2)], {}),
        ("ramp:from_rate=1,to_rate=9,duration_s=30,requests=5", [RampProfile(1, 9, 30)], {"requests": 5}),
        (
            "poisson:rate=4,until_stable=false,max_requests=10000",
            [PoissonProfile(4)],
            {"until_stable": False, "max_requests": 10_000},
        ),
    ],
)
def test_short_text(text, profiles, limits):
    assert parse_profile(text) == (profiles, limits)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "poisson",
        "poisson:4",
        "poisson:rate=",
        "poisson:rate=4,rate=5",
        "poisson:rate=nan",
        "poisson:rate=4,request=5",
        "x:y=1",
        "poisson:rate=4,requests=0",
        "poisson:rate=4,requests=1/2",
    ],
)
def test_bad_short_text_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse_profile(text)
    assert caught.value.hint


def test_what_the_short_text_takes_names_the_limits_too():
    with pytest.raises(ConfigError) as caught:
        parse_profile("poisson:rate=4,total=5")
    assert "takes rate, requests, duration_s" in caught.value.hint


def test_limits():
    assert limits_from_dict({"requests": 5, "duration_s": None}) == RunLimits(requests=5)
    assert RunLimits(until_stable=True, max_requests=70).max_count == 70
    assert RunLimits(max_requests=70).max_count is None


@pytest.mark.parametrize(
    "data",
    [
        {"requests": 0},
        {"requests": 2.5},
        {"duration_s": 0},
        {"duration_s": float("inf")},
        {"until_stable": 1},
        {"relative_width": 1.5},
        {"seconds": 4},
    ],
)
def test_bad_limits_are_refused(data):
    with pytest.raises(ConfigError) as caught:
        limits_from_dict(data)
    assert caught.value.hint
