from __future__ import annotations

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.profiles.profile import Closed, Constant, Gamma, Limits, Offline, Poisson, Ramp, Trace
from enginebay.lab.profiles.schedule import check_sends, requests_needed, send_times
from enginebay.lab.requests import Request


def requests(count, at_s=None):
    return [Request("a", at_s=None if at_s is None else at_s[place]) for place in range(count)]


def test_a_closed_loop_is_not_scheduled():
    assert send_times(Closed(4), Limits(), 0, requests(3)) is None


def test_offline_sends_all_at_once():
    assert send_times(Offline(), Limits(requests=2), 0, requests(3)) == [0, 0]


def test_without_limits_all_are_sent():
    assert send_times(Constant(2), Limits(), 0, requests(3)) == [0, 0.5, 1.0]


@pytest.mark.parametrize("profile", [Constant(50), Poisson(50), Gamma(50, 0.5)])
def test_the_rate_offered_is_the_rate_asked_for(profile):
    times = send_times(profile, Limits(duration_s=10), 3, requests(1000))
    assert len(times) == 500
    assert times[-1] < 10


@pytest.mark.parametrize(
    ("profile", "limits", "needed"),
    [
        (Poisson(5), Limits(requests=7), 7),
        (Poisson(5), Limits(duration_s=10), 50),
        (Poisson(5), Limits(requests=7, duration_s=10), 7),
        (Poisson(5), Limits(requests=70, duration_s=10), 50),
        (Poisson(5), Limits(), None),
        (Poisson(5), Limits(until_stable=True), 10_000),
        (Poisson(5), Limits(until_stable=True, requests=30), 30),
        (Closed(5), Limits(duration_s=10), None),
        (Closed(5), Limits(requests=10), 10),
        (Ramp(0, 10, 20), Limits(), 100),
        (Ramp(0, 10, 20), Limits(requests=30), 30),
    ],
)
def test_how_many_requests_the_workload_needs(profile, limits, needed):
    assert requests_needed(profile, limits) == needed


def test_a_ramp_is_the_same_where_it_ends_early():
    whole = send_times(Ramp(1, 9, 10), Limits(), 1, requests(50))
    assert len(whole) == 50
    assert send_times(Ramp(1, 9, 10), Limits(requests=20), 1, requests(50)) == whole[:20]
    assert send_times(Ramp(1, 9, 10), Limits(duration_s=5), 1, requests(50)) == [time for time in whole if time < 5]


def test_a_trace_is_replayed_up_to_its_limit():
    recorded = requests(4, [1.0, 2.0, 2.0, 7.0])
    assert send_times(Trace(), Limits(), 0, recorded) == [0, 1, 1, 6]
    assert send_times(Trace(speed=2), Limits(duration_s=2), 0, recorded) == [0, 0.5, 0.5]
    assert send_times(Trace(), Limits(requests=2), 0, recorded) == [0, 1]


@pytest.mark.parametrize(
    ("profile", "limits", "sent", "said"),
    [
        (Trace(), Limits(), requests(2), "needs a workload with times"),
        (Trace(), Limits(), requests(2, [3.0, 1.0]), "go backwards"),
        (Poisson(0.01), Limits(duration_s=2), requests(2), "sends no request at all"),
        (Poisson(1e9), Limits(duration_s=100), requests(2), "too many"),
    ],
)
def test_what_cannot_be_sent_is_refused(profile, limits, sent, said):
    with pytest.raises(ConfigError, match=said) as caught:
        send_times(profile, limits, 0, sent)
    assert caught.value.hint


@pytest.mark.parametrize("profile", [Poisson(5), Gamma(5, 0.5), Constant(5)])
def test_a_workload_that_has_fewer_ends_it(profile):
    """That a file has too few lines is said where it is read."""
    times = send_times(profile, Limits(requests=9, duration_s=10), 0, requests(4))
    assert times == send_times(profile, Limits(), 0, requests(4)) and len(times) == 4


def test_a_ramp_of_which_there_are_fewer_requests_is_its_beginning():
    whole = send_times(Ramp(1, 9, 10), Limits(), 1, requests(50))
    assert send_times(Ramp(1, 9, 10), Limits(), 1, requests(20)) == whole[:20]


def test_a_time_that_is_over_before_the_first_request_is_refused():
    """One request is to be expected in 6 s, and where it falls depends on the seed."""
    profile, limits = Poisson(0.1), Limits(duration_s=6)
    refused = []
    for seed in range(20):
        try:
            check_sends(profile, limits, 1, seed)
            assert send_times(profile, limits, seed, requests(1))
        except ConfigError as error:
            assert "sends no request at all" in error.message and "duration" in error.hint
            with pytest.raises(ConfigError, match="sends no request at all"):
                send_times(profile, limits, seed, requests(1))
            refused.append(seed)
    assert 0 < len(refused) < 20


@pytest.mark.parametrize("profile", [Offline(), Closed(1), Trace(), Constant(0.1), Ramp(1, 9, 10)])
def test_what_sends_something_is_not_refused(profile):
    check_sends(profile, Limits(duration_s=6), 1, 0)
