"""Audits reject what is false and almost never what is true; ceilings hold for attacks that exist."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from confide.accounting import (
    Ceilings,
    Gaussian,
    Noiseless,
    PoissonGaussian,
    curve,
    many_run_lower_bound,
    one_run_lower_bound,
    one_run_reach,
    redraw_bound,
)
from confide.accounting.audit import one_run_p_value
from confide.accounting.ceilings import EXACT, chance_exposure
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


@pytest.mark.parametrize("numbers", [(10, 11, 5), (10, 5, 6), (0, 0, 0), (10, 0, 0), (10, 5, -1)])
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
    ceilings = Ceilings(curve([PoissonGaussian(0.03125, 2.0, 320)]))
    means = [ceilings.exposure_mean(10**6, c) for c in (1, 2, 10, 50)]
    assert means == sorted(means)
    assert means[0] > chance_exposure(10**6)
    assert ceilings.exposure_tail(0.0) == 1.0


def test_a_perfect_guesser_without_delta_shows_the_epsilon_at_which_that_has_probability_beta():
    rate = 0.05 ** (1 / 10)
    shown = one_run_lower_bound(10, 10, 10, 0.0)
    assert math.log(rate / (1 - rate)) - 3e-6 <= shown <= math.log(rate / (1 - rate))
    assert one_run_lower_bound(10, 10, 5, 0.0) == 0.0


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta"), [(40, 30, 22, 1e-3), (40, 30, 30, 1e-4), (40, 30, 1, 1e-3)]
)
def test_the_p_value_is_the_binomial_tail_and_the_worst_use_of_delta(canaries, guesses, right, delta):
    """Steinke et al. 2023, sum by sum: a failure may turn up to i wrong guesses right, with probability 2mδ/i."""
    rate = math.exp(0.5) / (1 + math.exp(0.5))
    law = [math.comb(guesses, j) * rate**j * (1 - rate) ** (guesses - j) for j in range(guesses + 1)]
    slack = max(sum(law[right - i : right]) / i for i in range(1, right + 1))
    expected = min(1.0, sum(law[right:]) + 2 * canaries * delta * slack)
    assert one_run_p_value(canaries, guesses, right, 0.5, delta) == pytest.approx(expected, rel=1e-9)
    assert one_run_p_value(canaries, guesses, right, 0.5, 0.0) == pytest.approx(
        stats.binom.sf(right - 1, guesses, rate)
    )


def test_no_right_guess_and_no_epsilon_reject_nothing():
    assert one_run_p_value(10, 10, 0, 0.0, 1e-3) == 1.0
    assert one_run_p_value(10, 10, 10, 0.0, 0.0) == pytest.approx(2**-10)
    with pytest.raises(BadInput, match="epsilon"):
        one_run_p_value(10, 10, 10, -0.1, 0.0)


def test_the_reach_of_an_audit_is_that_of_its_guesses_or_of_the_best_number_of_them():
    assert one_run_reach(200, 1e-4, guesses=50) == one_run_lower_bound(200, 50, 50, 1e-4) > 0
    best = max(one_run_lower_bound(30, n, n, 1e-3) for n in range(1, 31))
    assert one_run_reach(30, 1e-3) == best
    assert one_run_reach(10, 0.0) == one_run_lower_bound(10, 10, 10, 0.0)
    for impossible in (0, -1):
        with pytest.raises(BadInput, match="canaries"):
            one_run_reach(impossible, 1e-4)


@pytest.mark.parametrize("counts", [(100, 100, 100, 0), (1000, 990, 30, 20), (30, 12, 1000, 4), (20, 10, 20, 10)])
def test_many_runs_bound_both_ratios_of_the_rates(counts):
    present, found, absent, false = counts
    fnr, fpr = redraw_bound(present - found, present, 0.0125), redraw_bound(false, absent, 0.0125)
    ratios = [((1 - fnr) - 0.01) / fpr, ((1 - fpr) - 0.01) / fnr]
    expected = max(0.0, *(math.log(ratio) for ratio in ratios if ratio > 0))
    assert many_run_lower_bound(*counts, delta=0.01) == pytest.approx(expected, rel=1e-12)
    assert many_run_lower_bound(present, 0, absent, absent, delta=0.01) == 0.0


@pytest.mark.parametrize(("delta", "beta"), [(-0.1, 0.05), (1.1, 0.05), (0.1, 0.0), (0.1, 0.6)])
def test_impossible_deltas_and_confidences_of_an_audit_are_refused(delta, beta):
    for audit in (one_run_lower_bound, lambda *numbers: many_run_lower_bound(10, 9, *numbers)):
        with pytest.raises(BadInput, match=r"delta|confidence"):
            audit(10, 5, 3, delta, beta) if audit is one_run_lower_bound else audit(10, 1, delta, beta)


@pytest.mark.parametrize("mu", [0.3, 1.5])
def test_the_ceiling_of_a_gaussian_mechanism_is_its_trade_off_curve(mu):
    ceilings = Ceilings(curve([Gaussian(2 / mu)]))
    fprs = np.array([1e-6, 1e-3, 0.01, 0.2])
    exact = ndtr(ndtri(fprs) + mu)
    assert np.all(ceilings.tpr(fprs) >= exact)
    assert ceilings.tpr(fprs) == pytest.approx(exact, rel=2e-3)
    assert ceilings.accuracy() == pytest.approx(ndtr(mu / 2), abs=1e-4)


def test_the_whole_line_of_false_positive_rates_has_a_ceiling_and_nothing_beyond_it_has():
    ceilings = Ceilings(curve([Gaussian(1.0)]))
    assert ceilings.tpr(np.array([0.0, 1.0])) == pytest.approx([0.0, 1.0], abs=1e-7)
    for beyond in (-1e-9, 1.0001, math.nan):
        with pytest.raises(BadInput, match="between 0 and 1"):
            ceilings.tpr(beyond)


def test_exposure_ceilings_follow_from_the_true_positive_rates():
    ceilings = Ceilings(curve([PoissonGaussian(0.03125, 2.0, 320)]))
    assert ceilings.exposure_tail(10, 3) == pytest.approx(3 * float(ceilings.tpr(2**-10)[0]), rel=1e-12)
    assert ceilings.exposure_tail(10, 10**6) == 1.0
    bits = np.linspace(0, 6, 6_001)
    for canaries in (1, 5):
        tail = np.minimum(1.0, canaries * ceilings.tpr(2.0**-bits))
        mean = float(np.trapezoid(tail, bits))
        assert mean <= ceilings.exposure_mean(64, canaries) <= mean * 1.002
    summary = ceilings.summary(64)
    assert (summary["exposure_space"], summary["mean_exposure"]) == (64, ceilings.exposure_mean(64))
    assert summary["tpr_at_fpr_0.01"] == float(ceilings.tpr(0.01)[0])
    assert summary["tpr_at_fpr_0.001"] == float(ceilings.tpr(0.001)[0])


def test_without_noise_nothing_stays_hidden():
    ceilings = Ceilings(curve([Noiseless()]))
    assert ceilings.summary(1024)["mean_exposure"] == ceilings.exposure_mean(1024) == pytest.approx(10)
    assert ceilings.accuracy() == 1.0


@pytest.mark.parametrize(
    "ask",
    [
        lambda ceilings: ceilings.exposure_tail(-1.0),
        lambda ceilings: ceilings.exposure_tail(1.0, 0),
        lambda ceilings: ceilings.exposure_mean(1),
        lambda ceilings: ceilings.exposure_mean(10, 0),
    ],
)
def test_exposures_that_make_no_sense_are_refused(ask):
    with pytest.raises(BadInput, match=r"bits|canaries|space"):
        ask(Ceilings(curve([Gaussian(5.0)])))


def test_chance_exposure_is_the_mean_over_all_ranks():
    assert chance_exposure(2) == pytest.approx(0.5)
    assert chance_exposure(4) == pytest.approx((2 + 1 + math.log2(4 / 3)) / 4)
    assert chance_exposure(4, 2) == pytest.approx((7 * 2 + 5 * 1 + 3 * math.log2(4 / 3)) / 16)
    for canaries in (1, 10):
        assert chance_exposure(EXACT, canaries) == pytest.approx(chance_exposure(EXACT + 1, canaries), abs=1e-3)
