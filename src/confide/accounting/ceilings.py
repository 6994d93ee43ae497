"""Ceilings: what no attack can exceed if the curve holds, for records whose masking was a coin flip.

In: a curve. Out: bounds on accuracy, true-positive rate and exposure. They do not apply to public records, to secrets
chosen by other means than a coin, or to comparisons between differently distributed strings (guarantees §8).
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import BadInput
from .curves import Array, PrivacyCurve
from .events import check_count, check_number

EXACT = 10**5  # candidates up to which chance is summed rank by rank; beyond, the sum is its integral to five digits


class Ceilings:
    """The trade-off ceilings under one curve."""

    def __init__(self, curve: PrivacyCurve) -> None:
        self.curve = curve
        negligible = 1e-8 + 2 * curve.slack
        low, top = 0.0, 1.0
        while curve.delta(top) > negligible and top < 500:  # e^ε must stay finite
            low, top = top, 2 * top
        for _ in range(6):
            middle = (low + top) / 2
            low, top = (middle, top) if curve.delta(middle) > negligible else (low, middle)
        self._epsilons = np.concatenate([np.linspace(0, top, 2000), [top * 1.1 + 1]])
        self._deltas = curve.deltas(self._epsilons)

    def tpr(self, fpr: float | Array) -> Array:
        """f(p) = min over ε ≥ 0 of e^ε·p+δ(ε): the largest true-positive rate at a false-positive rate.

        *Formal guarantees.* Each ε of the grid gives a valid bound; a coarse grid is looser, never wrong.
        """
        p = np.atleast_1d(np.asarray(fpr, dtype=float))
        if not np.all((p >= 0) & (p <= 1)):
            raise BadInput("a false-positive rate lies between 0 and 1")
        lines = np.exp(self._epsilons) * p[:, None] + self._deltas
        best: Array = np.minimum(1.0, lines.min(axis=1))
        return best

    def accuracy(self) -> float:
        """Balanced accuracy of telling secret from mask.

        *Formal guarantees.* (1+δ(0))/2: total variation bounds every test on a fair coin.
        """
        return (1 + self.curve.delta(0.0)) / 2

    def exposure_tail(self, bits: float, canaries: int = 1) -> float:
        """The largest probability that the most exposed of `canaries` uniform canaries shows at least `bits`.

        *Formal guarantees.* Under the mask a uniform canary has rank at most 2^-bits of the space with probability at
        most 2^-bits; f turns that into the probability under the secret, and a union bound covers several canaries.
        """
        check_number("bits", bits, 0, math.inf, low_open=False)
        check_count("canaries", canaries)
        return float(min(1.0, canaries * self.tpr(2.0**-bits)[0]))

    def exposure_mean(self, space: int, canaries: int = 1) -> float:
        """The largest expected exposure (of the most exposed of `canaries`) over a space of that many candidates.

        *Formal guarantees.* ∫ min(1, c·f(2^-b)) db over [0, log₂ space], summed from the left: the integrand falls in
        b, so that the sum is an upper bound.
        """
        check_count("space", space, low=2, high=10**18)
        check_count("canaries", canaries)
        bits = np.linspace(0, math.log2(space), 4001)
        tail = np.minimum(1.0, canaries * self.tpr(2.0**-bits))
        return float(np.sum(tail[:-1] * np.diff(bits)))

    def summary(self, space: int) -> dict[str, float]:
        """The ceilings that people ask for first."""
        return {
            "balanced_accuracy": self.accuracy(),
            "tpr_at_fpr_0.01": float(self.tpr(0.01)[0]),
            "tpr_at_fpr_0.001": float(self.tpr(0.001)[0]),
            "exposure_space": space,
            "mean_exposure": min(self.exposure_mean(space), math.log2(space)),
        }


def chance_exposure(space: int, canaries: int = 1) -> float:
    """The expected exposure (of the most exposed of `canaries`) when the model knows nothing."""
    if space <= EXACT:  # ranks are whole numbers, which shows in small spaces
        ranks = np.arange(space + 1)
        share = np.diff(1 - (1 - ranks / space) ** canaries)
        return float(share @ (math.log2(space) - np.log2(ranks[1:])))
    bits = np.linspace(0, math.log2(space), 4001)
    tail = 1 - (1 - 2.0**-bits) ** canaries
    return float(np.trapezoid(tail, bits))
