"""Audits: lower bounds on ε from attacks on coin-flipped canaries, to be held against the certificate.

In: how many guesses were made and how many were right. Out: the ε that the run cannot be below, at a confidence, and
the largest value an audit of that size could ever show.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, stats

from ..errors import BadInput
from .events import check_count, check_number
from .missrate import check_beta, redraw_bound


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The probability that an (ε, δ)-confidential run lets `right` of `guesses` be right (Steinke et al. 2023).

    *Formal guarantees.* Valid for `canaries` independent fair coins, each deciding whether its canary is present or
    masked, and a number of guesses fixed beforehand; flipping one coin is our adjacency at k=1.
    """
    check_number("epsilon", epsilon, 0, 700, low_open=False)
    rate = 1 / (1 + math.exp(-epsilon))
    slack = 0.0
    if right and delta > 0:
        i = np.arange(1, right + 1)
        slack = float(np.max(np.cumsum(stats.binom.pmf(right - i, guesses, rate)) / i))
    return min(1.0, float(stats.binom.sf(right - 1, guesses, rate)) + 2 * canaries * delta * slack)


def one_run_lower_bound(canaries: int, guesses: int, right: int, delta: float, beta: float = 0.05) -> float:
    """The largest ε that the audit rejects at confidence 1−β; 0 if it rejects none.

    *Formal guarantees.* If the run is (ε, δ)-confidential, the returned value exceeds ε with probability at most β.
    """
    check_beta(beta)
    check_number("delta", delta, 0, 1, low_open=False)
    check_count("canaries", canaries)
    check_count("guesses", guesses)
    check_count("right", right, low=0)
    if guesses > canaries or right > guesses:
        raise BadInput(f"{right} right of {guesses} guesses on {canaries} canaries: each must be at most the next")

    def excess(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) - beta

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:  # the p-value rises with ε, towards 1
        high *= 2
    return max(0.0, float(optimize.bisect(excess, 0.0, high, xtol=1e-6)) - 1e-6)


def one_run_reach(canaries: int, delta: float, beta: float = 0.05, guesses: int | None = None) -> float:
    """The largest bound that a perfect guesser could show; over all numbers of guesses unless one is given."""
    check_count("canaries", canaries)
    if guesses is not None:
        return one_run_lower_bound(canaries, guesses, guesses, delta, beta)
    counts = {round(n) for n in np.geomspace(1, canaries, 60)} | {canaries}
    return max(one_run_lower_bound(canaries, n, n, delta, beta) for n in counts)


def many_run_lower_bound(
    present: int, found: int, absent: int, false_alarms: int, delta: float, beta: float = 0.05
) -> float:
    """A lower bound from independent runs with and without the canary: Clopper–Pearson at β/4 on each rate.

    *Formal guarantees.* If each run is (ε, δ)-confidential, TPR ≤ e^ε·FPR+δ and TNR ≤ e^ε·FNR+δ; the returned value
    exceeds ε with probability at most β. `present` and `absent` are fixed beforehand.
    """
    check_beta(beta)
    check_number("delta", delta, 0, 1, low_open=False)
    missed = present - found
    fnr_high = redraw_bound(missed, present, beta / 4)
    tpr_low = 1 - fnr_high
    fpr_high = redraw_bound(false_alarms, absent, beta / 4)
    tnr_low = 1 - fpr_high
    bounds = [0.0]
    for good, bad in ((tpr_low, fpr_high), (tnr_low, fnr_high)):
        if good > delta and bad > 0:
            bounds.append(math.log((good - delta) / bad))
    return max(bounds)
