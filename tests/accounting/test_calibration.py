"""Calibration meets its target, wastes nothing, and says when there is no answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.accounting import (
    PoissonGaussian,
    batch_choices,
    curve,
    most_steps,
    slot_epsilon,
    smallest_noise,
    smallest_noise_of,
)
from confide.accounting.calibration import BatchChoice, enough
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


def test_a_target_that_any_noise_meets_needs_the_least_noise_there_is():
    found = smallest_noise(1e-6, 1, 500.0, DELTA)
    assert (found.noise_multiplier, found.epsilon, found.evaluations) == (0.05, 0.0, 1)
    assert smallest_noise_of(lambda noise: [PoissonGaussian(0.01, noise)], 300.0, DELTA).noise_multiplier < 0.1


@pytest.mark.parametrize("guess", [0.01, 0.05, 1.0, 1e4, 1e9])
def test_the_noise_of_events_meets_the_target_from_any_guess(guess):
    def events(noise):
        return [PoissonGaussian(0.1, noise, 100), PoissonGaussian(0.01, 5.0, 10)]

    found = smallest_noise_of(events, 1.0, DELTA, guess=guess)
    assert curve(events(found.noise_multiplier)).epsilon(DELTA) == found.epsilon <= 1.0
    if found.evaluations < 10:
        assert curve(events(found.noise_multiplier / 1.0011)).epsilon(DELTA) > 1.0


def test_noise_that_the_events_do_not_have_reaches_no_target():
    events = [PoissonGaussian(0.1, 1.0, 10)]
    target = 0.999 * curve(events).epsilon(DELTA)
    with pytest.raises(BadInput, match=r"no noise multiplier found for epsilon .*; is the target out of reach"):
        smallest_noise_of(lambda noise: events, target, DELTA)


def test_steps_that_cannot_be_accounted_for_at_this_delta_do_not_fit():
    steps = most_steps(0.001, 10.0, 30.0, 1e-9)
    assert curve([PoissonGaussian(0.001, 10.0, steps)]).epsilon(1e-9) < 1.0
    with pytest.raises(BadInput, match="too small for this many steps"):
        curve([PoissonGaussian(0.001, 10.0, steps + 1)]).epsilon(1e-9)
    with pytest.raises(BadInput, match="delta"):
        most_steps(0.001, 10.0, 30.0, 1e-10)


def test_one_step_may_be_all_that_fits():
    event = PoissonGaussian(0.3, 2.0)
    target = curve([event]).epsilon(DELTA)
    assert most_steps(0.3, 2.0, target, DELTA) == 1
    assert most_steps(0.3, 2.0, 0.999 * target, DELTA) == 0
    assert most_steps(0.3, 2.0, curve([PoissonGaussian(0.3, 2.0, 2)]).epsilon(DELTA), DELTA) == 2


def test_batch_sizes_are_powers_of_two_up_to_a_quarter_of_the_corpus():
    choices = batch_choices(1024, 1.001, 8.0, DELTA)
    assert [choice.batch_size for choice in choices] == [2, 4, 8, 16, 32, 64, 128, 256]
    for choice in choices:
        batch, noise = choice.batch_size, choice.noise_multiplier
        assert (choice.sampling_rate, choice.steps) == (batch / 1024, int(1.001 * 1024 / batch) + 1)
        assert choice.noise_per_step == pytest.approx(noise / batch, rel=1e-12)
        assert choice.noise_per_run == pytest.approx(noise / batch / choice.steps**0.5, rel=1e-12)
    assert [choice.batch_size for choice in batch_choices(16, 0.01, 8.0, DELTA)] == [1, 2, 4]
    assert {choice.steps for choice in batch_choices(16, 0.01, 8.0, DELTA)} == {1}


@pytest.mark.parametrize(
    "ask",
    [
        lambda: batch_choices(15, 1.0, 8.0, DELTA),
        lambda: batch_choices(16, 0.0, 8.0, DELTA),
        lambda: smallest_noise(0.1, 1, 501.0, DELTA),
        lambda: smallest_noise(0.1, 1, 0.0, DELTA),
        lambda: smallest_noise(0.1, 0, 1.0, DELTA),
        lambda: smallest_noise(0.1, 1, 1.0, 1.0),
        lambda: smallest_noise(0.1, 1, 1.0, DELTA, k=0),
        lambda: smallest_noise(0.1, 1, 1.0, 0.2, gamma=0.1),
        lambda: smallest_noise_of(lambda noise: [], 0.0, DELTA),
        lambda: smallest_noise_of(lambda noise: [], 1.0, 1.0),
        lambda: most_steps(0.1, 1.0, 501.0, DELTA),
        lambda: most_steps(0.1, 0.0, 1.0, DELTA),
    ],
)
def test_questions_that_make_no_sense_are_refused(ask):
    with pytest.raises(BadInput, match=r"records|epochs|epsilon|steps|delta|k must|noise"):
        ask()


def test_enough_is_the_smallest_batch_within_a_tenth_of_the_least_noise():
    def choice(batch, noise):
        return BatchChoice(batch, 0.1, 1, 1.0, noise, noise)

    assert enough([choice(1, 2.0), choice(2, 1.11), choice(4, 1.1), choice(8, 1.0)]).batch_size == 4
