"""Calibration meets its target, wastes nothing, and says when there is no answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.accounting import PoissonGaussian, batch_choices, curve, most_steps, slot_epsilon, smallest_noise
from confide.accounting.calibration import enough
from confide.errors import BadInput

DELTA = 1e-5


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.001, 1.0),
    st.integers(1, 5000),
    st.floats(0.1, 20.0),
    st.integers(1, 4),
    st.sampled_from(["substitution", "zero-out"]),
)
def test_the_smallest_noise_meets_the_target_in_ten_evaluations(rate, steps, target, k, adjacency):
    found = smallest_noise(rate, steps, target, DELTA, adjacency=adjacency, k=k)
    at = curve([PoissonGaussian(rate, found.noise_multiplier, steps)], adjacency, k).epsilon(DELTA)
    assert at == found.epsilon <= target
    assert found.evaluations <= 10
    if found.noise_multiplier > 0.06:
        less = PoissonGaussian(rate, found.noise_multiplier / 1.005, steps)
        assert curve([less], adjacency, k).epsilon(DELTA) > target


def test_a_bayesian_target():
    found = smallest_noise(0.03125, 320, 0.3, DELTA, gamma=0.1)
    at = slot_epsilon(curve([PoissonGaussian(0.03125, found.noise_multiplier, 320)]), 0.1, DELTA)
    assert 0.29 < at <= 0.3
    with pytest.raises(BadInput, match="delta2"):
        smallest_noise(0.03125, 320, 0.3, 0.01, gamma=0.1, delta2=0.02)


@pytest.mark.parametrize(("rate", "noise", "target"), [(0.03125, 2.0, 1.97), (0.5, 20.0, 1.0), (0.01, 1.0, 3.0)])
def test_the_most_steps_fit_and_one_more_does_not(rate, noise, target):
    steps = most_steps(rate, noise, target, DELTA)
    assert curve([PoissonGaussian(rate, noise, steps)]).epsilon(DELTA) <= target
    assert curve([PoissonGaussian(rate, noise, steps + 1)]).epsilon(DELTA) > target


@pytest.mark.parametrize("target", [50.0, 200.0, 500.0])
def test_large_targets_are_met(target):
    found = smallest_noise(0.01, 100, target, DELTA)
    assert found.epsilon <= target
    assert smallest_noise(0.01, 100, target, DELTA, gamma=0.14).epsilon <= target


def test_not_even_one_step():
    assert most_steps(1.0, 0.5, 0.1, DELTA) == 0


def test_an_unreachable_target_is_explained():
    with pytest.raises(BadInput, match="no noise multiplier"):
        smallest_noise(1.0, 10**6, 0.001, DELTA)
    with pytest.raises(BadInput, match="does not limit"):
        most_steps(0.001, 50.0, 100.0, DELTA)


def test_larger_batches_carry_less_noise_per_step():
    choices = batch_choices(4096, 4, 2.0, DELTA)
    noises = [choice.noise_per_step for choice in choices]
    assert noises == sorted(noises, reverse=True)
    least = min(choice.noise_per_run for choice in choices)
    assert enough(choices).noise_per_run <= 1.1 * least
    assert enough(choices).batch_size < choices[-1].batch_size
    for choice in choices:
        event = PoissonGaussian(choice.sampling_rate, choice.noise_multiplier, choice.steps)
        assert curve([event]).epsilon(DELTA) <= 2.0
