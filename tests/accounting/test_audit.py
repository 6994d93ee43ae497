"""Audits reject what is false and almost never what is true; ceilings hold for attacks that exist."""

import math

import numpy as np
import pytest

from confide.accounting import (
    Ceilings,
    PoissonGaussian,
    curve,
    many_run_lower_bound,
    one_run_lower_bound,
    one_run_reach,
)
from confide.errors import BadInput


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_randomised_response_is_rejected_at_most_five_percent_of_the_time(epsilon):
    """The worst (ε, 0) mechanism tells each coin with probability e^ε/(1+e^ε)."""
    rng = np.random.default_rng(11)
    canaries, runs = 200, 400
    right = rng.binomial(canaries, 1 / (1 + math.exp(-epsilon)), size=runs)
    bounds = {int(r): one_run_lower_bound(canaries, canaries, int(r), 0.0) for r in set(right.tolist())}
    wrong = sum(bounds[int(r)] > epsilon for r in right)
    assert wrong <= 34  # 5 % of 400, and three standard deviations


def test_an_audit_of_a_leaking_run_exceeds_a_small_certificate():
    assert one_run_lower_bound(500, 500, 490, 1e-5) > 2.0


def test_many_runs_reject_at_most_five_percent_of_the_time():
    rng = np.random.default_rng(5)
    epsilon = 1.0
    tpr, fpr = math.e / (1 + math.e), 1 / (1 + math.e)
    wrong = sum(
        many_run_lower_bound(100, int(rng.binomial(100, tpr)), 100, int(rng.binomial(100, fpr)), 0.0) > epsilon
        for _ in range(400)
    )
    assert wrong <= 34


def test_no_audit_of_a_size_reaches_beyond_its_reach():
    for canaries in (10, 100, 1000):
        reach = one_run_reach(canaries, 1e-5)
        assert one_run_lower_bound(canaries, canaries, canaries, 1e-5) <= reach + 1e-9
    assert one_run_reach(1000, 1e-5) > one_run_reach(100, 1e-5)


@pytest.mark.parametrize("numbers", [(10, 11, 5), (10, 5, 6), (0, 0, 0), (10, 5, -1)])
def test_impossible_counts_are_refused(numbers):
    with pytest.raises(BadInput):
        one_run_lower_bound(*numbers, 1e-5)


def test_the_best_attack_on_one_step_stays_under_the_ceilings():
    """The optimal threshold on a single noisy step with opposite gradients reaches, and does not pass, the ceilings."""
    rate, noise = 0.5, 1.0
    ceilings = Ceilings(curve([PoissonGaussian(rate, noise, 1)]))
    rng = np.random.default_rng(2)
    draws = 400_000
    secret = rng.binomial(1, rate, draws) + noise * rng.normal(size=draws)
    masked = -rng.binomial(1, rate, draws) + noise * rng.normal(size=draws)
    accuracy = (np.mean(secret > 0) + np.mean(masked <= 0)) / 2
    assert accuracy <= ceilings.accuracy() + 0.003
    assert accuracy >= ceilings.accuracy() - 0.01
    for fpr in (0.01, 0.1):
        threshold = np.quantile(masked, 1 - fpr)
        assert np.mean(secret > threshold) <= float(ceilings.tpr(fpr)[0]) + 0.003


def test_exposure_ceilings_rise_with_canaries_and_stay_above_chance():
    from confide.accounting.ceilings import chance_exposure

    ceilings = Ceilings(curve([PoissonGaussian(0.03125, 2.0, 320)]))
    means = [ceilings.exposure_mean(10**6, c) for c in (1, 2, 10, 50)]
    assert means == sorted(means)
    assert means[0] > chance_exposure(10**6)
    assert ceilings.exposure_tail(0.0) == 1.0
