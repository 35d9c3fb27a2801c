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
)
from enginebay.lab.profiles.send_schedule import check_sends_any, count_requests_needed, draw_send_times
from enginebay.lab.workload.request_records import Request


def requests(count, at_s=None):
    return [Request("a", at_s=None if at_s is None else at_s[place]) for place in range(count)]


def test_a_closed_loop_is_not_scheduled():
    assert draw_send_times(ClosedLoopProfile(4), RunLimits(), 0, requests(3)) is None


def test_offline_sends_all_at_once():
    assert draw_send_times(OfflineProfile(), RunLimits(requests=2), 0, requests(3)) == [0, 0]


def test_without_limits_all_are_sent():
    assert draw_send_times(ConstantProfile(2), RunLimits(), 0, requests(3)) == [0, 0.5, 1.0]


@pytest.mark.parametrize("profile", [ConstantProfile(50), PoissonProfile(50), GammaProfile(50, 0.5)])
def test_the_offered_rate_is_the_requested_rate(profile):
    times = draw_send_times(profile, RunLimits(duration_s=10), 3, requests(1000))
    assert len(times) == 500
    assert times[-1] < 10


@pytest.mark.parametrize(
    ("profile", "limits", "needed"),
    [
        (PoissonProfile(5), RunLimits(requests=7), 7),
        (PoissonProfile(5), RunLimits(duration_s=10), 50),
        (PoissonProfile(5), RunLimits(requests=7, duration_s=10), 7),
        (PoissonProfile(5), RunLimits(requests=70, duration_s=10), 50),
        (PoissonProfile(5), RunLimits(), None),
        (PoissonProfile(5), RunLimits(until_stable=True), 10_000),
        (PoissonProfile(5), RunLimits(until_stable=True, requests=30), 30),
        (ClosedLoopProfile(5), RunLimits(duration_s=10), None),
        (ClosedLoopProfile(5), RunLimits(requests=10), 10),
        (RampProfile(0, 10, 20), RunLimits(), 100),
        (RampProfile(0, 10, 20), RunLimits(requests=30), 30),
    ],
)
def test_how_many_requests_the_workload_needs(profile, limits, needed):
    assert count_requests_needed(profile, limits) == needed


def test_a_ramp_is_the_same_where_it_ends_early():
    whole = draw_send_times(RampProfile(1, 9, 10), RunLimits(), 1, requests(50))
    assert len(whole) == 50
    assert draw_send_times(RampProfile(1, 9, 10), RunLimits(requests=20), 1, requests(50)) == whole[:20]
    assert draw_send_times(RampProfile(1, 9, 10), RunLimits(duration_s=5), 1, requests(50)) == [
        time for time in whole if time < 5
    ]


def test_a_trace_is_replayed_up_to_its_limit():
    recorded = requests(4, [1.0, 2.0, 2.0, 7.0])
    assert draw_send_times(TraceProfile(), RunLimits(), 0, recorded) == [0, 1, 1, 6]
    assert draw_send_times(TraceProfile(speed=2), RunLimits(duration_s=2), 0, recorded) == [0, 0.5, 0.5]
    assert draw_send_times(TraceProfile(), RunLimits(requests=2), 0, recorded) == [0, 1]


@pytest.mark.parametrize(
    ("profile", "limits", "sent", "said"),
    [
        (TraceProfile(), RunLimits(), requests(2), "needs a workload with arrival times"),
        (TraceProfile(), RunLimits(), requests(2, [3.0, 1.0]), "are not in order"),
        (PoissonProfile(0.01), RunLimits(duration_s=2), requests(2), "sends no request"),
        (PoissonProfile(1e9), RunLimits(duration_s=100), requests(2), "too many"),
    ],
)
def test_what_cannot_be_sent_is_refused(profile, limits, sent, said):
    with pytest.raises(ConfigError, match=said) as caught:
        draw_send_times(profile, limits, 0, sent)
    assert caught.value.hint


@pytest.mark.parametrize("profile", [PoissonProfile(5), GammaProfile(5, 0.5), ConstantProfile(5)])
def test_a_workload_that_has_fewer_ends_it(profile):
    """A file with too few lines fails when it is read."""
    times = draw_send_times(profile, RunLimits(requests=9, duration_s=10), 0, requests(4))
    assert times == draw_send_times(profile, RunLimits(), 0, requests(4)) and len(times) == 4


def test_a_ramp_of_which_there_are_fewer_requests_is_its_beginning():
    whole = draw_send_times(RampProfile(1, 9, 10), RunLimits(), 1, requests(50))
    assert draw_send_times(RampProfile(1, 9, 10), RunLimits(), 1, requests(20)) == whole[:20]


def test_a_time_that_is_over_before_the_first_request_is_refused():
    """One request is expected in 6 s; the seed decides when."""
    profile, limits = PoissonProfile(0.1), RunLimits(duration_s=6)
    refused = []
    for seed in range(20):
        try:
            check_sends_any(profile, limits, 1, seed)
            assert draw_send_times(profile, limits, seed, requests(1))
        except ConfigError as error:
            assert "sends no request" in error.message and "duration" in error.hint
            with pytest.raises(ConfigError, match="sends no request"):
                draw_send_times(profile, limits, seed, requests(1))
            refused.append(seed)
    assert 0 < len(refused) < 20


@pytest.mark.parametrize(
    "profile", [OfflineProfile(), ClosedLoopProfile(1), TraceProfile(), ConstantProfile(0.1), RampProfile(1, 9, 10)]
)
def test_what_sends_something_is_not_refused(profile):
    check_sends_any(profile, RunLimits(duration_s=6), 1, 0)
