"""Every table and number of the specification (q=0.03125, T=320, δ=8e-5 unless said otherwise), to 1 % or 2e-3."""

import dataclasses
import math

import numpy as np
import pytest

from confide.accounting import (
    Ceilings,
    FixedSizeGaussian,
    PoissonGaussian,
    Selection,
    SelectiveGaussian,
    ShuffledGaussian,
    corpus_epsilon,
    curve,
    labels_needed,
    many_run_lower_bound,
    one_run_lower_bound,
    one_run_reach,
    redraw_bound,
    slot_epsilon,
    smallest_noise,
)
from confide.accounting.bayesian import jft_epsilon
from confide.accounting.ceilings import chance_exposure
from confide.accounting.papers import (
    crt_bayesian_epsilon,
    crt_group_epsilon,
    generic_group_epsilon,
    jft_heuristic_epsilon,
    rdp_epsilon,
    sdp_epsilon,
    two_hop_epsilon,
)
from confide.errors import BadInput

RATE, STEPS, DELTA = 0.03125, 320, 8e-5


def close(expected, share=0.01):
    return pytest.approx(expected, rel=share, abs=2e-3)


def steps(noise, count=STEPS):
    return [PoissonGaussian(RATE, noise, count)]


@pytest.mark.parametrize(
    ("noise", "add_remove", "substitution", "delta_at_papers_epsilon", "two_hop", "fixed_size", "shuffled"),
    [
        (0.6, 10.79, 13.21, 9.8e-4, 31.6, 84.0, 94.5),
        (0.8, 5.09, 7.01, 2.9e-3, 13.0, 37.9, 60.3),
        (1.0, 3.08, 4.78, 6.6e-3, 7.34, 20.2, 43.1),
        (2.0, 1.01, 1.97, 1.3e-2, 2.24, 3.62, 16.3),
    ],
)
def test_adjacencies_and_samplers(
    noise, add_remove, substitution, delta_at_papers_epsilon, two_hop, fixed_size, shuffled
):
    sound, naive = curve(steps(noise)), curve(steps(noise), "add-remove")
    assert naive.epsilon(DELTA) == close(add_remove)
    assert sound.epsilon(DELTA) == close(substitution)
    # The specification prints δ with two digits: 1.3e-2 stands for 1.268e-2.
    assert sound.delta(add_remove) == pytest.approx(delta_at_papers_epsilon, rel=0.03)
    assert two_hop_epsilon(naive, DELTA) == close(two_hop)
    assert curve([FixedSizeGaussian(RATE, noise, STEPS)]).epsilon(DELTA) == close(fixed_size)
    assert curve([ShuffledGaussian(noise, 10)]).epsilon(DELTA) == close(shuffled)


@pytest.mark.parametrize(("noise", "expected"), [(0.6, 78.0), (0.8, 34.3), (1.0, 18.0), (2.0, 3.08)])
def test_fixed_size_lower_bound_by_a_realisable_pair(noise, expected):
    """The slot's other record may have the opposite gradient: a real mechanism pair, composed, bounds ε from below."""
    from confide.accounting import curves, pairs

    spliced = pairs.fixed_size_pair(RATE, noise)
    one_way = dataclasses.replace(spliced, spliced=False)
    other_way = pairs.Pair(
        one_way.lower_means, one_way.lower_weights, -one_way.upper_means, one_way.upper_weights, noise
    )
    epsilons = []
    for pair in (one_way, other_way):
        law = curves.discretise(pair, 2**-8, 1e-18)
        epsilons.append(curves._compose([(law, STEPS)])[0].get_epsilon_for_delta(DELTA))
    assert max(epsilons) == close(expected)


@pytest.mark.parametrize(
    ("epsilon", "substitution", "add_remove"), [(1, 3.63, 2.02), (2, 1.97, 1.26), (3, 1.41, 1.01), (8, 0.75, 0.67)]
)
def test_smallest_noise(epsilon, substitution, add_remove):
    assert smallest_noise(RATE, STEPS, epsilon, DELTA).noise_multiplier == close(substitution)
    assert smallest_noise(RATE, STEPS, epsilon, DELTA, adjacency="add-remove").noise_multiplier == close(add_remove)


GROUPS = {
    (1.0, "substitution"): {1: 4.78, 2: 11.0, 3: 18.5, 5: 36.4, 10: 96.5, 20: 270},
    (2.0, "substitution"): {1: 1.97, 2: 4.41, 3: 7.18, 5: 13.6, 10: 34.6, 20: 95.0},
    (2.0, "zero-out"): {1: 1.01, 2: 2.23, 3: 3.57, 5: 6.61, 10: 16.0, 20: 42.0},
}


@pytest.mark.parametrize(("noise", "adjacency"), GROUPS)
def test_tight_group_curves(noise, adjacency):
    for k, expected in GROUPS[noise, adjacency].items():
        assert curve(steps(noise), adjacency, k).epsilon(DELTA) == close(expected)


def test_generic_group_bounds():
    one, two = curve(steps(1.0)), curve(steps(2.0))
    assert [generic_group_epsilon(one, k, DELTA) for k in (1, 2, 3)] == [close(4.78), close(13.5), close(29.5)]
    assert [generic_group_epsilon(two, k, DELTA) for k in (1, 2, 3, 5)] == [
        close(1.97),
        close(4.64),
        close(8.10),
        close(18.0),
    ]
    # The specification says 20.5; dp_accounting's own curve on a 1e-4 grid gives 20.16, and so do we.
    assert crt_group_epsilon(one, 2, DELTA) == close(20.16)
    assert 2 * one.epsilon(DELTA) == close(9.56)


@pytest.mark.parametrize(
    ("gamma", "expected"), [(0.01, 0.021), (0.05, 0.153), (0.1, 0.329), (0.2, 0.646), (0.5, 1.313)]
)
def test_bayesian_for_the_slot(gamma, expected):
    assert slot_epsilon(curve(steps(2.0)), gamma, DELTA) == close(expected)


def test_bayesian_variants():
    assert slot_epsilon(curve(steps(2.0), k=2), 0.1, DELTA) == close(1.58)
    assert corpus_epsilon(curve(steps(2.0)), 0.1, DELTA) == close(1.59)
    assert slot_epsilon(curve(steps(2.01)), 0.1, DELTA) == close(0.325)
    assert slot_epsilon(curve(steps(3.62)), 0.1, DELTA) == close(0.112)


def test_a_corpus_average_does_not_bound_the_slot():
    """π misses always in 10 % of contexts: there the printed 0.329 is false, its true δ is 0.111."""
    assert curve(steps(2.0)).delta(0.329) == close(0.111)


def test_estimated_miss_rates():
    two = curve(steps(2.0))
    gamma, delta2 = redraw_bound(20, 200, 0.025), redraw_bound(0, 200, 0.025)
    assert gamma == close(0.150)
    assert delta2 == close(0.0183)
    assert redraw_bound(0, 200, 0.05) == pytest.approx(0.01487, abs=1e-5)
    assert slot_epsilon(two, gamma, delta2 + DELTA, delta2) == close(0.485)
    assert delta2 + DELTA == close(0.0184)
    assert slot_epsilon(two, redraw_bound(20, 200, 0.05), DELTA) == close(0.469)
    assert labels_needed(8e-5, 0.05) == 37_446


def test_papers_accountings():
    assert crt_bayesian_epsilon(0.1, 100, 2.0, 1e-5, 0.1) == pytest.approx(0.3742, abs=2e-4)
    assert crt_bayesian_epsilon(RATE, STEPS, 1.0, DELTA, 0.1) == pytest.approx(0.1156, abs=2e-4)
    assert sdp_epsilon(1 / 10010, 0.6, 1_001_000, DELTA) == pytest.approx(2.508, abs=1e-3)
    assert rdp_epsilon(PoissonGaussian(1 / 10010, 0.6, 1_001_000), DELTA) == pytest.approx(1.945, abs=1e-3)


def test_long_run():
    event = [PoissonGaussian(0.01, 4.0, 10_000)]
    assert curve(event, "add-remove").delta(1.0) == pytest.approx(4.2435e-6, rel=0.01)
    assert curve(event).delta(1.0) == pytest.approx(6.83e-3, rel=0.01)
    assert curve(event).epsilon(1e-5) == pytest.approx(1.9931, abs=2e-3)
    peers = [PoissonGaussian(0.01, 1.0, 1000)]
    assert curve(peers, "add-remove").epsilon(1e-5) == close(1.828)
    assert curve(peers).epsilon(1e-5) == close(2.843)


def test_selective_privacy():
    def published(**more):
        return SelectiveGaussian(noise_multiplier=0.7, state_noise_multiplier=0.7, states=2, **more)

    assert curve([published(segments=1)]).epsilon(DELTA) == close(30.2)
    assert curve([published(segments=3, count=10)]).epsilon(DELTA) == close(469)
    wide = SelectiveGaussian(20.0, 3, 2, 20.0, participation=RATE, count=STEPS)
    assert curve([wide]).epsilon(DELTA) == close(4.17)
    assert curve(steps(0.7)).epsilon(DELTA) == close(9.23)


def test_jft():
    # The specification says 0.034, the value on dp_accounting's 1e-3 grid; it converges to 0.0303 on finer ones.
    assert jft_heuristic_epsilon(RATE, 0.8, STEPS, DELTA, 0.01) == close(0.0303)
    assert curve(steps(0.8)).epsilon(DELTA) == close(7.01)
    assert jft_epsilon(curve(steps(2.0)), 0.0, DELTA) == close(1.97)


def test_tuning_runs_compose():
    assert curve([Selection(tuple(steps(2.0)), runs=10)]).epsilon(DELTA) == close(7.71)


@pytest.mark.parametrize(
    ("noise", "accuracy", "generic", "tpr", "tail", "mean", "largest"),
    [(1.0, 0.720, 0.992, 0.124, 0.027, 3.68, 9.32), (2.0, 0.610, 0.878, 0.039, 0.0056, 2.36, 6.71)],
)
def test_ceilings(noise, accuracy, generic, tpr, tail, mean, largest):
    """The whole curve gives less than a single (ε, δ) of it, the looser ceilings of which stand here for comparison."""
    main = curve(steps(noise))
    ceilings, epsilon = Ceilings(main), main.epsilon(DELTA)
    assert ceilings.accuracy() == close(accuracy)
    assert (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon)) == close(generic)
    assert float(ceilings.tpr(0.01)[0]) == close(tpr)
    assert ceilings.exposure_tail(10) == close(tail)
    assert ceilings.exposure_mean(10**6) == close(mean)
    assert ceilings.exposure_mean(10**6, canaries=10) == close(largest)
    assert ceilings.exposure_mean(10**6) <= (1 + epsilon) / math.log(2) + DELTA * math.log2(10**6)


def test_chance_levels():
    assert chance_exposure(10**6) == close(1.44)
    assert chance_exposure(10**6, 10) == close(4.23)


def test_audits():
    assert one_run_lower_bound(1000, 1000, 700, DELTA) == close(0.73)
    assert one_run_lower_bound(1000, 100, 95, DELTA) == close(2.11)
    assert one_run_lower_bound(1000, 100, 100, DELTA) == close(3.26)
    assert many_run_lower_bound(100, 100, 100, 0, DELTA) == close(3.11)
    assert one_run_reach(1000, DELTA) == close(5.55)
    assert one_run_reach(10_000, DELTA) == close(6.05)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_group_bounds_are_the_first_step_at_which_the_papers_inequality_holds(k):
    """Steps of a thousandth: the δ at ε, times what the paper says, fits into δ at the printed ε and at no smaller one."""
    one = curve(steps(2.0))
    bare = dataclasses.replace(one, rounding=0.0)
    for bound, factor in (
        (crt_group_epsilon, lambda e: k * math.exp(k * e)),
        (generic_group_epsilon, lambda e: math.expm1(k * e) / math.expm1(e)),
    ):
        found = bound(one, k, DELTA) / k
        assert round(found, 3) == pytest.approx(found, abs=1e-9)
        assert factor(found) * bare.delta(found) <= DELTA < factor(found - 1e-3) * bare.delta(found - 1e-3)


def test_group_bounds_that_numbers_cannot_show_are_infinite():
    assert crt_group_epsilon(curve(steps(0.6)), 50, DELTA) == math.inf


def test_group_bounds_begin_at_a_thousandth_and_refuse_impossible_deltas():
    little = curve([PoissonGaussian(1e-5, 50.0)])
    assert generic_group_epsilon(little, 2, DELTA) == pytest.approx(0.002)
    assert crt_group_epsilon(little, 1, DELTA) == pytest.approx(0.001)
    for ask in (generic_group_epsilon, crt_group_epsilon, lambda one, k, delta: two_hop_epsilon(one, delta)):
        with pytest.raises(BadInput, match="delta"):
            ask(little, 2, 1.0)


def test_two_hops_are_the_cheapest_pair_of_curves():
    naive = dataclasses.replace(curve(steps(1.0), "add-remove"), rounding=0.0)
    found = two_hop_epsilon(naive, DELTA)
    fits = []
    for first in np.arange(0.05, found, 0.05):
        left = (DELTA - naive.delta(first)) * math.exp(-first)
        if left > 1e-9:
            fits.append(first + naive.epsilon(left))
    assert found == pytest.approx(min(fits), abs=0.006)
