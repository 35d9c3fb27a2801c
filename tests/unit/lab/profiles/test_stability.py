from __future__ import annotations

import pytest

from enginebay.lab.profiles.stability import check_stability, find_warmup_end, is_warmup_over, next_check_count
from enginebay.lab.workload.seeded_random import make_generator


def noise(count, seed=1, mean=1.0, spread=0.1):
    return make_generator(seed).normal(mean, spread, size=count).tolist()


def test_steady_values_have_no_warm_up_to_speak_of():
    cuts = [find_warmup_end(noise(400, seed)) for seed in range(40)]
    assert sorted(cuts)[20] <= 40  # the median; MSER cuts a little now and then by chance
    assert find_warmup_end([1.0] * 100) == 0


def test_a_slow_start_is_cut_off():
    values = [value + (2.0 if place < 60 else 0.0) for place, value in enumerate(noise(400))]
    assert 60 <= find_warmup_end(values) <= 100
    assert is_warmup_over(values)


def test_a_figure_that_goes_on_falling_is_still_warming_up():
    assert not is_warmup_over([10 - place / 50 for place in range(400)])


def test_too_few_values_are_not_stable():
    assert find_warmup_end([1.0, 5.0]) == 0
    assert not is_warmup_over([1.0] * 19)
    assert is_warmup_over([1.0] * 20)


def test_steady_values_are_stable_and_the_mean_is_theirs():
    found = [check_stability(noise(2000, seed)) for seed in range(60)]
    stable = [one for one in found if one.stable]
    assert len(stable) >= 48
    assert all(one.half_width < 0.02 for one in stable)
    inside = sum(abs(one.mean - 1) <= one.half_width for one in stable)
    assert inside / len(stable) >= 0.85


def test_noisy_values_need_more_of_them():
    assert check_stability(noise(200, spread=0.5)).reason == "the interval of the mean is too wide"
    assert check_stability(noise(200, spread=0.5), relative_width=0.3).stable


def test_a_load_that_builds_up_is_not_stable_though_the_interval_is_narrow():
    rising = [1 + place / 40_000 for place in range(2000)]
    found = check_stability(rising, relative_width=0.05)
    assert not found.stable
    assert found.half_width is None or found.half_width < 0.05
    wave = [value + 0.02 * (place // 250 % 2) for place, value in enumerate(noise(2000, spread=0.005))]
    assert check_stability(wave, relative_width=0.05).reason == "successive batches are correlated"


@pytest.mark.parametrize("values", [[], [1.0], noise(60)])
def test_few_values_are_never_stable(values):
    found = check_stability(values, relative_width=0.9)
    assert not found.stable
    assert found.mean is None


def test_equal_values_are_stable():
    assert check_stability([2.0] * 100).stable
    assert check_stability([2.0] * 100).half_width == 0


def test_looks_get_rarer():
    assert next_check_count(200) == 250
    assert next_check_count(1) == 2
