"""Guarantees for a secret drawn at random: what a miss rate buys, and what it does not.

In: the curve δ(ε) of training for a missed secret, a bound γ̄ on the probability that the policy misses and a bound
δ̄₂ on the probability that the missed secret also lands in the public part. Out: (ε, δ) pairs.
"""

from __future__ import annotations

import math

from scipy import optimize

from ..errors import BadInput
from .curves import MIN_DELTA, PrivacyCurve, check_delta
from .events import check_number


def _check(gamma: float, delta2: float) -> None:
    check_number("gamma", gamma, 0, 1, low_open=False)
    check_number("delta2", delta2, 0, 1, low_open=False)
    if delta2 > gamma:
        raise BadInput(f"delta2={delta2:g} exceeds gamma={gamma:g}: what both policies miss, the first one misses too")


def inner_delta(gamma: float, delta: float, delta2: float) -> float:
    """The δ₀ at which the curve is read so that (γ−δ₂)δ₀+δ₂ = δ."""
    return (delta - delta2) / (gamma - delta2) if gamma > delta2 else 1.0


def slot_epsilon(curve: PrivacyCurve, gamma: float, delta: float, delta2: float = 0.0) -> float:
    """Bayesian confidentiality at δ where γ bounds the miss rate *of this very slot*.

    *Formal guarantees.* Let x ~ μ be redrawn into a fixed record, γ = Pr[t(s[x]) ≠ t(s[MASK])] and δ₂ the probability
    that it is missed and public. Then the run is (ε, δ)-Bayesian-confidential in both directions with
    ε = log(1+γ(e^{ε₀}−1)) and δ = (γ−δ₂)δ(ε₀)+δ₂, for every ε₀ (guarantees §4.3). ε₀ is the best one for this δ. The
    value rises with γ and δ₂, so plugging in upper bounds is valid; it is infinite when δ ≤ δ₂ > 0.
    A miss rate averaged over a corpus does not bound γ of a slot: use `corpus_epsilon` for that.
    """
    check_delta(delta)
    _check(gamma, delta2)
    if delta2 > 0 and delta <= delta2:
        return math.inf
    inner = inner_delta(gamma, delta, delta2)
    if gamma == 0 or inner >= 1:
        return 0.0
    base = curve.epsilon(inner)
    return math.log1p(gamma * math.expm1(base)) if base < 700 else base + math.log(gamma)


def corpus_epsilon(curve: PrivacyCurve, gamma: float, delta: float, delta2: float = 0.0) -> float:
    """The guarantee for a uniformly drawn secret occurrence where γ is only known on average over the corpus.

    *Formal guarantees.* For a uniformly drawn occurrence whose context the attacker knows, (ε, (γ̄−δ̄₂)δ(ε)+δ̄₂): the
    miss rate shrinks δ, never ε, because in some contexts the policy may miss always (guarantees §4.3).
    """
    check_delta(delta)
    _check(gamma, delta2)
    if delta2 > 0 and delta <= delta2:
        return math.inf
    inner = inner_delta(gamma, delta, delta2)
    return 0.0 if gamma == 0 or inner >= 1 else curve.epsilon(inner)


def jft_epsilon(phase2: PrivacyCurve, gamma: float, delta: float, both: PrivacyCurve | None = None) -> float:
    """JFT for a random secret: phase 1 saw it with probability at most γ, phase 2 always.

    *Formal guarantees.* δ(ε) ≤ (1−γ)δ₂(ε)+γδ₁∘₂(ε), where δ₁∘₂ is the curve of both phases together, or 1 when phase 1
    has no noise (`both` None). ε never falls below that of phase 2, which trains on the original text (guarantees §6).
    """
    check_delta(delta)
    _check(gamma, 0.0)
    if gamma == 0:
        return phase2.epsilon(delta)
    if both is None and delta - gamma < MIN_DELTA:
        return math.inf

    def excess(epsilon: float) -> float:
        leak = 1.0 if both is None else both.delta(epsilon)
        return (1 - gamma) * phase2.delta(epsilon) + gamma * leak - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > 1e5:
            return math.inf
    return float(optimize.bisect(excess, 0.0, high, xtol=1e-6)) + 1e-6
