"""Miss-rate bounds cover the truth as often as they say, under the conditions that they name."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from confide.accounting import (
    SKIPPED,
    Redraws,
    Review,
    Reviewed,
    labels_needed,
    redraw_bound,
    review_bound,
)
from confide.accounting.missrate import public_misses, share_of_error, states_its_counts
from confide.errors import BadInput

BETA = 0.05


@pytest.mark.parametrize("gamma", [0.002, 0.05, 0.3, 0.8])
@pytest.mark.parametrize("labels", [20, 200])
def test_redraw_bound_covers(gamma, labels):
    """Exactly, by summing over all outcomes."""
    outcomes = np.arange(labels + 1)
    covered = [redraw_bound(int(m), labels, BETA) >= gamma for m in outcomes]
    assert stats.binom.pmf(outcomes, labels, gamma) @ covered >= 1 - BETA


@pytest.mark.parametrize(
    ("rate", "beta"),
    [(rate, BETA) for rate in (0.3, 0.01, 8e-5)]
    + [(rate, (1 - rate) ** n) for rate in (0.1, 0.25, 0.4) for n in range(8, 40)],
)
def test_labels_needed_is_the_smallest_number(rate, beta):
    """Also where beta is a power of what is left, and a logarithm may fall on either side of a whole number."""
    needed = labels_needed(rate, beta)
    assert redraw_bound(0, needed, beta) <= rate < redraw_bound(0, needed - 1, beta)


def clustered(rng, count):
    """Records with 0 to 4 secrets, missed all together or not at all."""
    secrets = rng.integers(0, 5, count)
    return secrets, np.where(rng.random(count) < 0.1, secrets, 0)


def by_context(rng, count):
    """One kind of record is long and always missed, the rest is short and never missed."""
    hard = rng.random(count) < 0.05
    secrets = np.where(hard, 4, rng.integers(0, 2, count))
    return secrets, np.where(hard, secrets, 0)


def independent(rng, count):
    secrets = rng.integers(0, 5, count)
    return secrets, rng.binomial(secrets, 0.1)


RATES = {clustered: 0.1, by_context: 0.05 * 4 / (0.05 * 4 + 0.95 * 0.5), independent: 0.1}


LOOKS = (20, 35, 50, 75, 100, 150, 200, 250)


def failures(draw, bound, runs, looks):
    """How often a bound was ever below the truth at one of the looks: what someone who stops when happy would show."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(runs):
        secrets, missed = (values.tolist() for values in draw(rng, max(looks)))
        wrong += any(bound(secrets[:n], missed[:n]) < RATES[draw] for n in looks)
    return wrong


def review(secrets, missed):
    return review_bound([Reviewed(n, m) for n, m in zip(secrets, missed, strict=True)], cap=4, beta=BETA)


def pooled(secrets, missed):
    return redraw_bound(sum(missed), sum(secrets), BETA)


@pytest.mark.parametrize("draw", RATES, ids=lambda f: f.__name__)
def test_review_bound_covers_for_whoever_stops_when_happy(draw):
    """150 runs at 5 % would give more than 16 failures with probability 0.001."""
    assert failures(draw, review, runs=150, looks=LOOKS) <= 16


@pytest.mark.parametrize("draw", [clustered, by_context], ids=lambda f: f.__name__)
def test_pooled_counts_do_not_cover_under_clustering(draw):
    """The same simulation breaks the textbook interval even at a single look, so that it is a test worth passing."""
    assert failures(draw, pooled, runs=150, looks=(100,)) > 16


def test_pooled_counts_do_not_cover_for_whoever_stops_when_happy():
    """Independent misses, so that only the stopping is to blame."""
    assert failures(independent, pooled, runs=150, looks=range(10, 250, 5)) > 16


def test_late_misses_count_as_much_as_early_ones():
    clean, dirty = [Reviewed(1, 0)] * 180, [Reviewed(1, 1)] * 20
    assert review_bound(clean + dirty, 1, BETA) == pytest.approx(review_bound(dirty + clean, 1, BETA))
    assert review_bound(clean + dirty, 1, BETA) > 0.1


def test_without_records_nothing_is_known():
    assert review_bound([], 2, BETA) == 1.0


def test_a_skipped_record_counts_as_all_missed():
    clean = [Reviewed(3, 0)] * 80
    skipped = review_bound([*clean[:40], SKIPPED, *clean[40:]], 3, BETA)
    assert skipped == pytest.approx(review_bound([*clean[:40], Reviewed(3, 3), *clean[40:]], 3, BETA))
    assert skipped > review_bound(clean, 3, BETA)


def test_records_without_secrets_change_nothing():
    some = [Reviewed(1, 0)] * 50
    assert review_bound(some + [Reviewed(0, 0)] * 500, 1, BETA) == pytest.approx(review_bound(some, 1, BETA))


def test_two_hundred_clean_records_give_two_to_four_percent():
    assert 0.02 <= review_bound([Reviewed(1, 0)] * 200, 1, BETA) <= 0.04


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.data())
def test_more_misses_never_lower_a_bound(labels, data):
    missed = data.draw(st.integers(0, labels - 1))
    assert redraw_bound(missed, labels, BETA) < redraw_bound(missed + 1, labels, BETA) <= 1
    beta = data.draw(st.floats(0.001, 0.2))
    assert redraw_bound(missed, labels, beta) >= missed / labels


def test_confidence_is_split_between_both_rates_unless_one_is_zero_by_construction():
    evidence = Redraws(200, 20, 0)
    assert evidence.bounds(all_flagged=True) == (redraw_bound(20, 200, BETA), 0.0)
    gamma, delta2 = evidence.bounds(all_flagged=False)
    assert gamma == pytest.approx(redraw_bound(20, 200, BETA / 2))
    assert delta2 == pytest.approx(redraw_bound(0, 200, BETA / 2))


def test_the_shares_of_all_reviews_ever_begun_are_the_whole_error():
    assert 0.9 == share_of_error(1) > share_of_error(2) > share_of_error(3)
    assert sum(map(share_of_error, range(1, 100_000))) == pytest.approx(1, abs=1e-5)


def test_starting_over_until_the_number_pleases_gains_nothing():
    """Up to 100 reviews of 54 records each, until the bound is below the truth: that works for at most 5 % of people.

    Without the shares it would for more than a quarter: 54 clean records bring the bound below 10 %.
    """
    size, rate = 54, 0.1
    stay = 1.0  # unhappy, with exact probabilities
    for begun in range(1, 101):
        pleasing = 0.0
        for missed in range(size):
            rows = ((1, 0, 0),) * (size - missed) + ((1, 1, 0),) * missed
            if Review(rows, 1, begun=begun).bounds(True)[0] >= rate:
                break  # more misses raise the bound
            pleasing += stats.binom.pmf(missed, size, rate)
        stay *= 1 - pleasing
    assert 0 < 1 - stay <= BETA
    assert review_bound([Reviewed(1, 0)] * size, 1, 0.9 * BETA) < rate
    assert 1 - (1 - 0.9**size) ** 100 > 0.25


@pytest.mark.parametrize(
    "make",
    [
        lambda: redraw_bound(3, 2, BETA),
        lambda: redraw_bound(0, 0, BETA),
        lambda: redraw_bound(0, 10, 0.0),
        lambda: redraw_bound(0, 10, 0.6),
        lambda: redraw_bound(-1, 10, BETA),
        lambda: Reviewed(1, 2),
        lambda: review_bound([Reviewed(5, 0)], 4, BETA),
        lambda: review_bound(["forgotten"], 4, BETA),
        lambda: labels_needed(0.0, BETA),
        lambda: labels_needed(1.0, 0.6),
        lambda: labels_needed(9e-7, 0.5),
        lambda: labels_needed(1.1, BETA),
        lambda: review_bound([Reviewed(1, 0)], 0, BETA),
        lambda: review_bound([Reviewed(1, 0)], 1, 0.6),
        lambda: share_of_error(0),
        lambda: Reviewed(1.5, 1),
        lambda: Reviewed(1, -1),
        lambda: Redraws(10, 11),
        lambda: Redraws(10, 5, -1),
        lambda: Redraws(10, 5, 6),
        lambda: Redraws(10, 5, confidence=0.49),
        lambda: Redraws(10, 5, confidence=1 - 1e-13),
        lambda: Review(((1, 0, 0),), cap=1, confidence=1 - 1e-13),
        lambda: Redraws(10, 5, confidence=1.0),
        lambda: Review(((1, 0, 1),), cap=1),
        lambda: Review(((1, 1, -1),), cap=1),
        lambda: Review((5,), cap=1),
        lambda: Review(((1, 0),), cap=1),
        lambda: Review(("forgotten",), cap=1),
        lambda: Review(((1, 2, 0),), cap=1),
        lambda: Review([(1, 0, 0)], cap=1),
        lambda: Review(((1, 0, 0),), cap=0),
        lambda: Review(((1, 0, 0),), cap=1, confidence=0.49),
        lambda: Review(((1, 0, 0),), cap=1, begun=0),
        lambda: Review(((1, 0, 0),), cap=1, nonce=7),
        lambda: review_bound([None], 4, BETA),
    ],
)
def test_impossible_counts_are_refused(make):
    with pytest.raises(BadInput):
        make()


def test_evidence_at_the_edge_of_what_is_possible_is_taken():
    assert redraw_bound(5, 5, 0.5) == 1.0
    assert redraw_bound(0, 1, BETA) == pytest.approx(0.95)
    assert labels_needed(1e-6, 0.5) == pytest.approx(math.log(2) * 1e6, rel=1e-5)
    assert Redraws(10, 5, 5, confidence=0.5).missed_public == 5
    assert Redraws(10, 0, 0, confidence=1 - 2e-12).labels == 10
    assert Review(("skipped", (0, 0, 0), (1, 1, 1)), cap=1, confidence=0.5).begun == 1
    assert Reviewed(2, 2).missed == 2


def test_a_record_with_as_many_secrets_as_the_cap_is_counted_and_one_more_is_named():
    assert review_bound([Reviewed(4, 0)], 4, BETA) == 1.0
    with pytest.raises(BadInput, match=r"review 2 counts 5 secrets, .* the cap of 4 .*; count 4 of them"):
        review_bound([Reviewed(4, 0), Reviewed(5, 0)], 4, BETA)


def test_a_record_that_makes_no_sense_is_named_by_its_place():
    for number, records in ((1, ("lost", (1, 0, 0))), (2, ("skipped", (1, 0)))):
        with pytest.raises(BadInput, match=f"review {number} must be"):
            Review(records, cap=1)
    with pytest.raises(BadInput, match="review 2 must be a Reviewed record"):
        review_bound([SKIPPED, "lost"], 1, BETA)


@pytest.mark.parametrize("rate", [1.0, 0.999])
def test_one_label_or_two_bound_a_rate_near_one(rate):
    assert labels_needed(rate, BETA) == 1


def test_labels_needed_bound_the_rate_where_rounding_leaves_one_label_too_few():
    needed = labels_needed(0.2, 0.8**12)
    assert redraw_bound(0, needed, 0.8**12) <= 0.2 < redraw_bound(0, needed - 2, 0.8**12)
    assert needed == 13


def test_the_clopper_pearson_bound_is_the_rate_at_which_so_few_misses_have_probability_beta():
    bound = redraw_bound(20, 200, BETA)
    assert stats.binom.cdf(20, 200, bound) == pytest.approx(BETA, rel=1e-9)


def test_the_review_bound_is_where_the_mixed_wealth_reaches_one_over_beta():
    """By the definition, bet by bet: forty log-spaced stakes and forty linear ones, all equally likely."""
    stakes = [*np.geomspace(1e-3, 1, 40), *np.linspace(0.025, 1, 40)]
    records = [(3, 0)] * 60 + [(2, 1)] * 5 + [(3, 3)]
    bound = review_bound([Reviewed(*record) for record in records[:-1]] + [SKIPPED], 3, BETA)

    def wealth(rate):
        return np.mean([np.prod([1 + stake / 3 * (rate * n - m) for n, m in records]) for stake in stakes])

    assert wealth(bound - 1.2e-9) < 1 / BETA < wealth(bound - 0.8e-9)


def test_a_skipped_or_unnamed_count_is_the_worst_one():
    assert Redraws(200, 20).bounds(all_flagged=False) == (redraw_bound(20, 200, BETA / 2),) * 2
    rows = ((2, 1, 0),) * 3 + ((2, 0, 0),) * 300 + ("skipped",)
    gamma, delta2 = Review(rows, cap=2, begun=2).bounds(all_flagged=False)
    clean = [Reviewed(2, 0)] * 300 + [SKIPPED]
    assert gamma == pytest.approx(review_bound([Reviewed(2, 1)] * 3 + clean, 2, BETA * 0.05 / 2), rel=1e-9)
    assert delta2 == pytest.approx(review_bound([Reviewed(2, 0)] * 3 + clean, 2, BETA * 0.05 / 2), rel=1e-9)
    whole = review_bound([Reviewed(2, 1)] * 3 + clean, 2, 0.9 * BETA)
    assert Review(rows, cap=2).bounds(all_flagged=True) == (pytest.approx(whole, rel=1e-9), 0.0)


def test_the_shares_of_the_first_reviews():
    assert [share_of_error(n) for n in (1, 2, 3, 11)] == pytest.approx([0.9, 0.05, 0.1 / 6, 0.1 / 110])


def test_public_misses_are_those_that_were_counted():
    assert public_misses(Review(((3, 2, 1), "skipped", (2, 2, 2)), cap=3)) == 3
    assert [public_misses(Redraws(10, 5, public)) for public in (None, 0, 4)] == [0, 0, 4]


REVIEW = Review(((1, 0, 0),) * 200 + ((1, 1, 1),), cap=1)
NOTHING, ALL = ({"conservative": name, "recall_class": None} for name in ("scores", "everything"))


def stated(**changed):
    bound, public = REVIEW.bounds(all_flagged=False)
    return {"bound": bound, "bound_public": public, "contradicted": False, **changed}


def test_a_review_states_what_its_records_give():
    assert states_its_counts(stated(), REVIEW, NOTHING)
    assert states_its_counts(stated(bound=stated()["bound"] * (1 + 5e-7)), REVIEW, NOTHING)
    assert states_its_counts(stated(contradicted=True), REVIEW, ALL)  # a public miss where none could be
    clean = Review(REVIEW.records[:200], cap=1)
    assert states_its_counts({"bound": clean.bounds(True)[0], "bound_public": 0, "contradicted": False}, clean, ALL)


@pytest.mark.parametrize(
    "changed",
    [
        {"bound": stated()["bound"] * (1 + 3e-6)},
        {"bound_public": stated()["bound_public"] * (1 - 3e-6)},
        {"bound_public": None},
        {"bound": "0.1"},
        {"bound": 10**400},
        {"contradicted": True},
        {"contradicted": 0},
    ],
)
def test_a_review_that_states_something_else_than_its_records_is_told_apart(changed):
    assert not states_its_counts(stated(**changed), REVIEW, NOTHING)
