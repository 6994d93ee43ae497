"""Curves are upper bounds, monotone where they must be, and equal to independent computations where those exist."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, stats

from confide.accounting import (
    Composed,
    Curve,
    FixedSizeGaussian,
    Gaussian,
    Noiseless,
    PoissonGaussian,
    Selection,
    SelectionCurve,
    SelectiveGaussian,
    ShuffledGaussian,
    any_curve,
    curve,
    selection_curve,
)
from confide.accounting import curves as curves_module
from confide.accounting.curves import discretise, gaussian_delta
from confide.accounting.pairs import Pair, dominating_pairs, fixed_size_pair, null_pair, shift_pair, substitution_pair
from confide.accounting.selection import ORDERS, renyi
from confide.errors import BadInput

DELTA = 8e-5
rates = st.floats(0.001, 1.0)
noises = st.floats(0.5, 8.0)
step_counts = st.integers(1, 2000)


def epsilon(rate=0.03125, noise=1.5, steps=320, k=1, adjacency="substitution", delta=DELTA):
    return curve([PoissonGaussian(rate, noise, steps)], adjacency, k).epsilon(delta)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.001, 0.2), st.floats(1.5, 8.0), st.integers(1, 1000))
def test_k_one_lies_between_dp_accountings_optimistic_and_pessimistic_curves(rate, noise, steps):
    def theirs(pessimistic):
        step = from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=1e-3,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
        return step.self_compose(steps).get_epsilon_for_delta(DELTA)

    ours = epsilon(rate, noise, steps)
    assert theirs(pessimistic=False) <= ours <= theirs(pessimistic=True) + 1e-3 * max(1, ours)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.03125, 1.0, 320), (0.03125, 2.0, 320), (0.01, 4.0, 10_000)])
def test_k_one_equals_dp_accountings_replace_one_on_a_fine_grid(rate, noise, steps):
    theirs = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    gaussian = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    theirs.compose(dp_event.SelfComposedDpEvent(gaussian, steps))
    assert epsilon(rate, noise, steps) == pytest.approx(theirs.get_epsilon(DELTA), abs=1e-3)


@settings(max_examples=20, deadline=None)
@given(rates, noises, step_counts)
def test_substitution_costs_at_least_add_remove(rate, noise, steps):
    assert epsilon(rate, noise, steps) >= epsilon(rate, noise, steps, adjacency="add-remove") - 1e-3


@settings(max_examples=20, deadline=None)
@given(rates, st.floats(1.0, 8.0), step_counts, st.integers(1, 6), st.sampled_from(["substitution", "zero-out"]))
def test_epsilon_rises_with_k_rate_steps_and_falls_with_noise(rate, noise, steps, k, adjacency):
    def capped(*arguments):
        return min(epsilon(*arguments, adjacency), 600.0)  # beyond, the answer is "no finite bound"

    base = capped(rate, noise, steps, k)
    slack = 1e-3 + 1e-3 * base  # grids differ between two curves
    assert capped(rate, noise, steps, k + 1) >= base - slack
    assert capped(min(1.0, rate * 1.3), noise, steps, k) >= base - slack
    assert capped(rate, noise, steps + 1 + steps // 4, k) >= base - slack
    assert capped(rate, noise * 1.2, steps, k) <= base + slack


@settings(max_examples=12, deadline=None)
@given(st.floats(0.0005, 0.5), noises, st.integers(1, 50_000), st.integers(1, 4), st.sampled_from([1e-6, 1e-8]))
def test_a_finer_grid_never_raises_epsilon(rate, noise, steps, k, delta):
    event = [PoissonGaussian(rate, noise, steps)]
    coarse, fine = curve(event, k=k).epsilon(delta), curve(event, k=k, refine=3).epsilon(delta)
    assert fine <= coarse + 1e-3
    assert fine >= coarse * 0.995 - 1e-3  # and the default grid is not needlessly loose


def test_a_million_steps_stay_exact():
    """dp_accounting's second differences give 11.03 on its 1e-4 grid and 11.11 on a ten times finer one."""
    event = [PoissonGaussian(0.001, 1.0, 10**6)]
    coarse, fine = curve(event).epsilon(1e-5), curve(event, refine=3).epsilon(1e-5)
    assert coarse == pytest.approx(11.028, abs=2e-3)
    assert fine <= coarse + 1e-3


PAIRS = {
    "substitution": lambda: substitution_pair(3, 0.1, 0.9),
    "null": lambda: null_pair(2, 0.05, 1.3)[0],
    "null reversed": lambda: null_pair(2, 0.05, 1.3)[1],
    "fixed size": lambda: fixed_size_pair(0.1, 1.1),
    "gaussian": lambda: shift_pair(1.7),
    "public participation": lambda: shift_pair(2.5, 0.2),
    "public participation, all losses above 0": lambda: shift_pair(20.0, 0.2),
    "public participation, losses from one cell above 0": lambda: shift_pair(2.5758 + math.sqrt(2.5758**2 + 0.16), 0.2),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("cut", [1e-2, 1e-15])
def test_the_discretised_law_dominates_the_pair_everywhere(name, cut):
    """Pessimism, tails included: a dropped tail or an optimistic rounding would dip below the exact profile."""
    pair = PAIRS[name]()
    law = discretise(pair, 2**-5, cut)
    losses = (law.first + np.arange(len(law.masses))) * law.h
    epsilons = np.linspace(-6, 8, 301)
    approximate = law.infinity + np.array([law.masses @ np.maximum(0, -np.expm1(e - losses)) for e in epsilons])
    exact = pair.profile(epsilons)
    assert np.all(approximate >= exact - 1e-12)
    assert np.all(approximate <= exact + 0.01 + 2 * cut)
    assert law.masses.sum() + law.infinity == pytest.approx(1, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.2, 12.0), st.integers(1, 400), st.integers(1, 3))
def test_a_gaussian_ledger_matches_the_closed_form(noise, count, k):
    mu = 2 * k * math.sqrt(count) / noise
    if mu > 100:
        return
    found = curve([Gaussian(noise, count)], k=k)
    for point in (0.0, mu, mu * mu / 2 + mu):
        exact = float(gaussian_delta(np.array([point]), mu)[0])
        assert exact <= found.delta(point) + 1e-15
        assert found.delta(point) <= exact * 1.01 + 1e-10


def test_phases_compose_like_one_long_run():
    whole = curve([PoissonGaussian(0.03, 1.5, 300)]).epsilon(DELTA)
    parts = [PoissonGaussian(0.03, 1.5, 100), Composed((PoissonGaussian(0.03, 1.5, 50),), 4)]
    assert curve(parts).epsilon(DELTA) == whole


def test_different_phases_cost_more_than_each_and_less_than_their_sum():
    first, second = PoissonGaussian(0.03, 1.5, 300), Gaussian(4.0, 2)
    both = curve([first, second]).epsilon(DELTA)
    alone = [curve([first]).epsilon(DELTA), curve([second]).epsilon(DELTA)]
    assert max(alone) < both < sum(alone) + 1e-3


def test_both_directions_are_composed_and_the_worse_one_counts():
    found = curve([PoissonGaussian(0.03125, 1.0, 320)], "zero-out")
    one, other = (float(pmf.get_epsilon_for_delta(DELTA)) for pmf in found.directions)
    assert abs(one - other) > 0.1
    assert found.epsilon(DELTA) == pytest.approx(max(one, other), abs=1e-6)


def test_the_rounding_allowance_covers_the_true_error():
    """Against the same composition in extended precision."""
    pair = substitution_pair(1, 0.01, 1.0)
    law = discretise(pair, 2**-11, 1e-20)
    steps = 20_000
    pmf, allowance = curves_module._compose([(law, steps)])
    spectrum = fft.fft(law.masses.astype(np.longdouble), fft.next_fast_len(pmf.size))
    exact = fft.ifft(spectrum**steps).real
    exact = np.roll(exact, -(pmf._lower_loss - law.first * steps))[: pmf.size]
    error = float(np.abs(pmf._probs - exact.astype(float)).sum())
    assert error <= allowance
    assert allowance < 1e-8


def test_rounding_allowances_of_different_steps_add_up():
    laws = [(discretise(substitution_pair(1, 0.01, noise), 2**-11, 1e-20), 2000) for noise in (1.0, 2.0)]
    alone = [curves_module._compose([law])[1] for law in laws]
    assert curves_module._compose(laws)[1] > sum(alone) > max(alone)


def test_the_tail_cut_off_is_far_below_delta_over_a_hundred_steps(monkeypatch):
    """Observed, not re-derived: what each curve really cuts off a step."""
    cuts = []
    real = curves_module.discretise
    monkeypatch.setattr(curves_module, "discretise", lambda pair, h, cut: cuts.append(cut) or real(pair, h, cut))
    curves_module._curve.cache_clear()
    for steps in (1, 320, 10**5):
        found = curve([PoissonGaussian(0.01, 1.0, steps)])
        assert cuts[-1] <= curves_module.MIN_DELTA / (100 * steps)
        assert found.forward.get_delta_for_epsilon(1e4) <= curves_module.MIN_DELTA / 100  # all that went to infinity


def test_extreme_noise_and_rates_have_an_answer():
    for event in (
        PoissonGaussian(1 / 32, 0.05, 320),
        PoissonGaussian(0.5, 0.01, 3),
        PoissonGaussian(1e-7, 1e4, 10**6),
        PoissonGaussian(1e-9, 1e6, 1),
        PoissonGaussian(1.0, 0.05, 1),
        ShuffledGaussian(0.01, 10),
    ):
        for adjacency in ("substitution", "zero-out", "add-remove") if event.count <= 10 else ("substitution",):
            found = curve([event], adjacency)
            assert found.epsilon(1e-5) >= 0
            assert 0 <= found.delta(1.0) <= 1
            points = np.array([0.0, 1.0, 599.0, 720.0, 5000.0])
            assert found.deltas(points) == pytest.approx([found.delta(float(p)) for p in points], abs=1e-12)
    with pytest.raises(BadInput, match="grid of"):
        curve([PoissonGaussian(1.0, 1e4, 10**8)])
    with pytest.raises(BadInput, match="ascending"):
        curve([Gaussian(1.0)]).deltas(np.array([2.0, 1.0]))


@pytest.mark.parametrize("delta", [1e-10, 0.0, -1.0, 1.0, 1.5, math.nan, math.inf])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(BadInput, match="delta"):
        epsilon(delta=delta)


def test_a_delta_within_floating_point_error_is_refused():
    with pytest.raises(BadInput, match="floating-point"):
        curve([PoissonGaussian(0.001, 1.0, 10**6)]).epsilon(2e-9)


def test_a_noiseless_step_voids_everything():
    found = curve([PoissonGaussian(0.01, 5.0, 10), Noiseless()])
    assert found.epsilon(0.5) == math.inf
    assert found.delta(10.0) == 1.0


@pytest.mark.parametrize(
    ("event", "adjacency", "k"),
    [
        (FixedSizeGaussian(0.1, 1.0), "zero-out", 1),
        (FixedSizeGaussian(0.1, 1.0), "substitution", 2),
        (PoissonGaussian(0.1, 1.0), "add-remove", 2),
        (PoissonGaussian(0.1, 1.0), "replace", 1),
        (PoissonGaussian(0.1, 1.0), "substitution", 0),
        (PoissonGaussian(0.1, 1.0), "substitution", 201),
        (SelectiveGaussian(1.0, 1, 1, 1.0, participation=0.5), "substitution", 2),
        (Selection((PoissonGaussian(0.1, 1.0),), mean_runs=3.0), "substitution", 1),
    ],
)
def test_events_without_a_proof_raise(event, adjacency, k):
    with pytest.raises(BadInput):
        curve([event], adjacency, k)


def test_shuffling_is_never_amplified():
    """Ten epochs cost the same whatever the batch size: only the number of participations counts."""
    assert curve([ShuffledGaussian(2.0, 10)]).epsilon(DELTA) == curve([Gaussian(2.0, 10)]).epsilon(DELTA)
    assert curve([ShuffledGaussian(2.0, 10)]).epsilon(DELTA) > 8 * epsilon(0.03125, 2.0, 320)


def test_the_best_of_a_random_number_of_runs():
    one_run = PoissonGaussian(0.03125, 2.0, 320)
    selected = selection_curve(Selection((one_run,), mean_runs=10.0))
    one, composed = curve([one_run]).epsilon(DELTA), curve([Selection((one_run,), runs=10)]).epsilon(DELTA)
    assert one < selected.epsilon(DELTA) < composed
    assert selected.epsilon(DELTA) < selection_curve(Selection((one_run,), mean_runs=30.0)).epsilon(DELTA)


def test_the_renyi_divergence_of_a_gaussian_pair_is_exact():
    orders = np.array([1.1, 1.5, 2.0, 8.0, 64.0, 200.0])
    assert renyi(shift_pair(0.7), orders) == pytest.approx(orders * 0.7**2 / 2, rel=1e-9)


def test_the_renyi_divergence_of_a_sampled_pair_matches_dp_accountings_add_remove():
    accountant = RdpAccountant([2.0, 3.0, 8.0, 20.0])
    accountant.compose(dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(1.2)))
    assert renyi(null_pair(1, 0.05, 1.2)[0], accountant.orders) == pytest.approx(accountant.rdp, rel=1e-6)


@pytest.mark.parametrize("noise", [0.15, 20.0])
def test_the_renyi_divergence_is_exact_at_every_scale(noise):
    """A Gaussian pair in units of another size."""
    orders = np.array([1.5, 8.0, 64.0])
    pair = dataclasses.replace(
        shift_pair(0.7), scale=noise, upper_means=np.array([0.7 * noise]), lower_means=np.array([0.0])
    )
    assert pair.reach == pytest.approx(0.7)
    assert renyi(pair, orders) == pytest.approx(orders * 0.7**2 / 2, rel=1e-9)


def test_the_reach_of_a_pair_is_the_largest_distance_of_its_means():
    assert substitution_pair(1, 0.1, 2.0).reach == pytest.approx(2 / 2.0)
    assert substitution_pair(3, 0.1, 2.0).reach == pytest.approx(6 / 2.0)


def test_a_curve_does_not_depend_on_the_order_of_events():
    events = [PoissonGaussian(0.02, 1.0, 50), Gaussian(6.0, 3), PoissonGaussian(0.02, 1.0, 25)]
    assert curve(events).epsilon(DELTA) == pytest.approx(curve(events[::-1]).epsilon(DELTA), abs=1e-6)


def test_slack_is_added_to_delta():
    found = curve([PoissonGaussian(0.01, 1.0, 1000)])
    bare = dataclasses.replace(found, rounding=0.0)
    assert found.delta(1.0) > bare.delta(1.0)
    assert found.epsilon(1e-5) >= bare.epsilon(1e-5)
    assert found.delta(1.0) == pytest.approx(bare.delta(1.0) + found.rounding, rel=1e-12)
    assert found.deltas(np.array([0.0, 1.0]))[1] == pytest.approx(found.delta(1.0), rel=1e-12)


def test_a_delta_that_may_be_lost_anyway_promises_nothing():
    found = dataclasses.replace(curve([PoissonGaussian(0.01, 1.0, 100)]), failure=1e-3)
    selected = dataclasses.replace(
        selection_curve(Selection((PoissonGaussian(0.01, 1.0, 100),), mean_runs=2.0)), failure=1e-3
    )
    for one in (found, selected):
        assert one.epsilon(1e-3) == math.inf
        assert one.epsilon(1.1e-3) == pytest.approx(dataclasses.replace(one, failure=0.0).epsilon(1e-4), rel=1e-6)
        assert one.delta(500.0) == pytest.approx(1e-3, rel=1e-6)
        assert dataclasses.replace(one, failure=1.0).delta(0.0) == 1.0


def test_without_events_nothing_is_spent():
    nothing = curve([])
    assert (nothing.epsilon(1e-9), nothing.delta(0.0)) == (0.0, 0.0)


def test_a_law_has_all_its_mass():
    one = np.ones(1)
    with pytest.raises(ArithmeticError, match="has mass"):
        discretise(Pair(one, one * 0.9, np.zeros(1), one, 1.0), 2**-5, 1e-15)


@pytest.mark.parametrize("epsilons", [[2.0, 1.0], [-1.0, 0.0], [0.0, math.inf], [0.0, math.nan]])
def test_deltas_are_asked_for_in_order(epsilons):
    with pytest.raises(BadInput, match="finite, not negative and in ascending order"):
        curve([Gaussian(1.0)]).deltas(np.array(epsilons))
    for curves in (curve([Gaussian(1.0)]), selection_curve(Selection((Gaussian(5.0),), mean_runs=2.0))):
        with pytest.raises(BadInput, match="epsilon must be a number"):
            curves.delta(-1e-9)


def test_the_closed_form_of_a_gaussian_mechanism():
    assert gaussian_delta(np.array([0.0]), 1.0)[0] == pytest.approx(0.3829249225480262, rel=1e-12)
    assert gaussian_delta(np.array([1.0]), 2.0)[0] == pytest.approx(
        stats.norm.cdf(0.5) - math.e * stats.norm.cdf(-1.5), rel=1e-9
    )
    assert gaussian_delta(np.array([-1.0, 0.0, 1.0]), 0.0) == pytest.approx([1 - math.exp(-1), 0, 0])


def test_a_noiseless_step_has_no_dominating_pair():
    with pytest.raises(BadInput, match="no dominating pair"):
        dominating_pairs(Noiseless(), "substitution", 1)


STATED = SelectiveGaussian(4.0, segments=3, states=2, state_noise_multiplier=8.0, count=4)


@pytest.mark.parametrize(
    ("step", "adjacency", "k", "mu"),
    [
        (Gaussian(4.0, 9), "substitution", 1, 2 * 3 / 4),
        (Gaussian(4.0, 9), "zero-out", 2, 2 * 3 / 4),
        (Gaussian(4.0, 9), "add-remove", 1, 3 / 4),
        (ShuffledGaussian(4.0, 9), "substitution", 3, 6 * 3 / 4),
        (STATED, "substitution", 1, math.sqrt(4 * 3 * ((2 / 4) ** 2 + 2 * (2 / 8) ** 2))),
        (STATED, "zero-out", 1, math.sqrt(4 * 3 * ((1 / 4) ** 2 + 2 * (1 / 8) ** 2))),
        (
            dataclasses.replace(STATED, states=0, state_noise_multiplier=None),
            "substitution",
            2,
            math.sqrt(4 * 3) * 4 / 4,
        ),
    ],
)
def test_releases_in_which_all_take_part_are_one_gaussian_shift(step, adjacency, k, mu):
    pair, reverse, count = dominating_pairs(step, adjacency, k)
    assert (pair.reach, pair.participation, count) == (pytest.approx(mu, rel=1e-12), 1.0, 1)
    assert pair is reverse


def test_public_participation_composes_step_by_step():
    pair, reverse, count = dominating_pairs(dataclasses.replace(STATED, participation=0.3), "substitution", 1)
    assert (pair.reach, pair.participation, count) == (pytest.approx(math.sqrt(3 * (0.25 + 0.125))), 0.3, 4)
    assert pair is reverse


# -- the best of a random number of runs -------------------------------------------------------------------------------


def theorem(divergences, one_run, mean):
    """Papernot & Steinke 2022, Theorem 6."""
    extra = [mean * one_run.delta(math.log(1 + 1 / (order - 1))) + math.log(mean) / (order - 1) for order in ORDERS]
    return divergences + np.array(extra)


def test_the_winner_of_gaussian_runs_has_the_divergences_of_the_theorem():
    runs = (Gaussian(4.0, 3), Gaussian(2.0))
    divergences = ORDERS / 2 * (3 * (2 / 4) ** 2 + (2 / 2) ** 2)
    found = selection_curve(Selection(runs, mean_runs=10.0))
    assert found.divergences == pytest.approx(theorem(divergences, curve(runs), 10.0), rel=1e-9)


def test_the_winner_is_covered_in_both_directions():
    run = PoissonGaussian(0.1, 1.0, 20)
    found = selection_curve(Selection((run,), mean_runs=1.0), "zero-out")
    forward, backward = (20 * renyi(pair, ORDERS) for pair in null_pair(1, 0.1, 1.0))
    assert not np.allclose(forward, backward, rtol=1e-3)
    expected = theorem(np.maximum(forward, backward), curve([run], "zero-out"), 1.0)
    assert found.divergences == pytest.approx(expected, rel=1e-12)
    assert (found.adjacency, found.k) == ("zero-out", 1)


def test_a_public_coin_thins_the_renyi_divergence():
    orders = np.array([1.5, 4.0, 32.0])
    moments = 0.3 * np.exp((orders - 1) * orders * 0.7**2 / 2) + 0.7
    assert renyi(shift_pair(0.7, 0.3), orders) == pytest.approx(np.log(moments) / (orders - 1), rel=1e-9)


@pytest.mark.parametrize("run", [Noiseless(), Gaussian(0.01), PoissonGaussian(0.1, 0.01)])
def test_the_best_of_runs_without_a_bound_has_none(run):
    for adjacency in ("substitution", "zero-out"):
        found = selection_curve(Selection((PoissonGaussian(0.1, 2.0), run), mean_runs=3.0), adjacency, k=4)
        assert (found.epsilon(0.5), found.delta(100.0)) == (math.inf, 1.0)
        assert not np.isfinite(found.divergences).any()


@pytest.mark.parametrize(
    ("selection", "reason"),
    [
        (Selection((PoissonGaussian(0.1, 1.0),), mean_runs=0.99), "a mean of at least 1, got 0.99"),
        (Selection((PoissonGaussian(0.1, 1.0),), runs=3), "a mean of at least 1, got None"),
        (Selection((FixedSizeGaussian(0.1, 1.0),), mean_runs=3.0), "not proven for fixed-size batches"),
    ],
)
def test_selections_without_a_proof_are_refused(selection, reason):
    with pytest.raises(BadInput, match=reason):
        selection_curve(selection)


def test_a_ledger_is_read_as_a_selection_only_if_it_is_one_over_a_random_number():
    run = PoissonGaussian(0.1, 1.0)
    assert isinstance(any_curve((Selection((run,), mean_runs=2.0),)), SelectionCurve)
    assert isinstance(any_curve((Selection((run,), runs=2),)), Curve)
    assert isinstance(any_curve((run,), "zero-out", 2), Curve)
    with pytest.raises(BadInput, match="does not compose"):
        any_curve((Selection((run,), mean_runs=2.0), run))
