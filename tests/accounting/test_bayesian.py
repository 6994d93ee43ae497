"""What a miss rate buys: properties of the Bayesian guarantees, and a brute-force check of the formula."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.accounting import Noiseless, PoissonGaussian, corpus_epsilon, curve, jft_epsilon, slot_epsilon
from confide.accounting.curves import gaussian_delta
from confide.errors import BadInput

DELTA = 8e-5
TWO = curve([PoissonGaussian(0.03125, 2.0, 320)])
ONE = curve([PoissonGaussian(0.03125, 1.0, 320)])


def test_a_policy_that_always_misses_gives_the_plain_epsilon():
    assert slot_epsilon(TWO, 1.0, DELTA) == pytest.approx(TWO.epsilon(DELTA), rel=1e-9)
    assert corpus_epsilon(TWO, 1.0, DELTA) == pytest.approx(TWO.epsilon(DELTA), rel=1e-9)


def test_a_policy_that_never_misses_gives_zero():
    assert slot_epsilon(TWO, 0.0, DELTA) == corpus_epsilon(TWO, 0.0, DELTA) == 0.0
    assert slot_epsilon(TWO, 1e-6, DELTA) < 1e-3


def test_delta_within_delta2_gives_infinity():
    assert slot_epsilon(TWO, 0.1, 0.01, 0.01) == corpus_epsilon(TWO, 0.1, 0.01, 0.02) == math.inf


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-4, 0.9), st.floats(0, 0.5), st.floats(1.0, 2.0))
def test_both_statements_rise_with_gamma_and_delta2(gamma, share, factor):
    delta = 0.05
    delta2 = min(gamma, 0.045) * share
    for statement in (slot_epsilon, corpus_epsilon):
        base = statement(ONE, gamma, delta, delta2)
        assert statement(ONE, min(1.0, gamma * factor), delta, delta2) >= base - 1e-9
        assert statement(ONE, gamma, delta, min(gamma, delta2 * factor, 0.049)) >= base - 1e-9
    assert slot_epsilon(ONE, gamma, delta, delta2) <= corpus_epsilon(ONE, gamma, delta, delta2) + 1e-9


@pytest.mark.parametrize("gamma", [0.05, 0.3])
@pytest.mark.parametrize("delta2", [0.0, 0.02])
def test_the_mixture_obeys_the_slot_statement_in_both_directions(gamma, delta2):
    """Brute force: with probability 1−γ the output is that of the mask, with γ−δ₂ shifted by a Gaussian mechanism, with
    δ₂ it shows the secret (an outcome the mask never gives)."""
    mu = 1.5
    x = np.linspace(-14, 16, 60_001)
    cell = x[1] - x[0]
    mask = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    missed = np.exp(-0.5 * (x - mu) ** 2) / math.sqrt(2 * math.pi)

    class Gaussian:
        slack = 0.0

        def delta(self, epsilon):
            return float(gaussian_delta(np.array([epsilon]), mu)[0])

        def epsilon(self, delta):
            low, high = 0.0, 60.0
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
            return high

    secret = (1 - gamma) * mask + (gamma - delta2) * missed
    for delta in (delta2 + 1e-4, delta2 + 1e-2):
        epsilon = slot_epsilon(Gaussian(), gamma, delta, delta2)
        forward = np.maximum(0, secret - math.exp(epsilon) * mask).sum() * cell + delta2
        backward = np.maximum(0, mask - math.exp(epsilon) * secret).sum() * cell
        assert forward <= delta + 1e-7
        assert backward <= delta + 1e-7
        if epsilon > 0 and delta2 == 0:  # and it is not loose
            assert forward >= 0.99 * delta


@pytest.mark.parametrize(("gamma", "delta2"), [(-0.1, 0.0), (1.1, 0.0), (0.1, 0.2), (math.nan, 0.0)])
def test_impossible_rates_are_refused(gamma, delta2):
    with pytest.raises(BadInput):
        slot_epsilon(TWO, gamma, DELTA, delta2)


def test_jft_never_falls_below_phase_two():
    both = curve([PoissonGaussian(0.03125, 2.0, 320), PoissonGaussian(0.03125, 3.0, 320)])
    for gamma in (0.001, 0.1, 1.0):
        found = jft_epsilon(TWO, gamma, DELTA, both)
        assert TWO.epsilon(DELTA) - 1e-5 <= found <= both.epsilon(DELTA) + 1e-5
    assert jft_epsilon(TWO, 1.0, DELTA, both) == pytest.approx(both.epsilon(DELTA), abs=1e-4)


def test_jft_without_noise_in_phase_one_needs_delta_above_gamma():
    assert jft_epsilon(TWO, 0.1, DELTA) == math.inf
    assert jft_epsilon(TWO, 0.1, 0.1 + 0.9 * DELTA) == pytest.approx(TWO.epsilon(DELTA), abs=1e-4)


@pytest.mark.parametrize("statement", [slot_epsilon, corpus_epsilon])
def test_at_the_borders_of_delta_nothing_or_everything_is_promised(statement):
    assert statement(TWO, 0.1, 0.01, 0.01) == math.inf
    assert statement(TWO, 0.01, 0.01) == 0.0  # a secret that is missed may be shown outright
    assert statement(TWO, 0.01, 0.02, 0.01) == 0.0
    assert statement(curve([Noiseless()]), 0.1, 0.05) == math.inf
    assert statement(TWO, 0.0, DELTA) == 0.0


def test_the_curve_is_read_at_the_delta_that_is_left():
    base = ONE.epsilon((0.05 - 0.01) / (0.3 - 0.01))
    assert corpus_epsilon(ONE, 0.3, 0.05, 0.01) == pytest.approx(base, rel=1e-12)
    assert slot_epsilon(ONE, 0.3, 0.05, 0.01) == pytest.approx(math.log(1 + 0.3 * (math.exp(base) - 1)), rel=1e-12)


@pytest.mark.parametrize("statement", [slot_epsilon, corpus_epsilon, jft_epsilon])
@pytest.mark.parametrize(("gamma", "delta"), [(1.1, DELTA), (-0.1, DELTA), (0.1, 0.0), (0.1, 1.0)])
def test_each_statement_refuses_impossible_rates_and_deltas(statement, gamma, delta):
    with pytest.raises(BadInput, match=r"gamma|delta"):
        statement(TWO, gamma, delta)


def test_what_both_policies_miss_the_first_one_misses_too():
    for statement in (slot_epsilon, corpus_epsilon):
        assert statement(TWO, 0.1, 0.2, 0.1) == 0.0
        with pytest.raises(BadInput, match=r"delta2=0\.11 exceeds gamma=0\.1"):
            statement(TWO, 0.1, 0.2, 0.11)


def test_jft_is_where_the_mixture_of_both_curves_meets_delta():
    both = curve([PoissonGaussian(0.03125, 2.0, 320), PoissonGaussian(0.03125, 3.0, 320)])
    for gamma, leak in ((0.1, both), (0.3, None)):
        delta = DELTA if leak else gamma + DELTA

        def mixed(epsilon, gamma=gamma, leak=leak):
            return (1 - gamma) * TWO.delta(epsilon) + gamma * (leak.delta(epsilon) if leak else 1)

        found = jft_epsilon(TWO, gamma, delta, leak)
        assert mixed(found) <= delta < mixed(found - 4e-6)


def test_jft_at_its_borders():
    both = curve([PoissonGaussian(0.03125, 2.0, 320), PoissonGaussian(0.03125, 3.0, 320)])
    assert jft_epsilon(TWO, 0.0, DELTA, both) == TWO.epsilon(DELTA)
    assert jft_epsilon(TWO, 0.5, DELTA, curve([Noiseless()])) == math.inf
    assert jft_epsilon(curve([PoissonGaussian(0.001, 50.0)]), 1e-6, 0.01) == 0.0
    assert jft_epsilon(TWO, 0.1, 0.1 + 5e-10) == math.inf
    assert math.isfinite(jft_epsilon(TWO, 0.1, 0.1 + 2e-9))
