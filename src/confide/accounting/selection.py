"""The best of a random number of runs (Papernot & Steinke 2022): one run's events in, a curve for the winner out."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon
from scipy import special

from ..errors import BadInput
from .curves import MAX_EPSILON, MAX_REACH, Array, Curve, check_delta, curve
from .events import Event, Noiseless, Selection, check_number, flatten
from .pairs import Pair, dominating_pairs

SELECTION_ACCOUNTANT = (
    "Rényi divergences of the dominating pairs, both directions, for the best of a random number of runs"
)
ORDERS = 1 + np.geomspace(0.05, 255, 80)


@dataclass(frozen=True)
class SelectionCurve:
    """δ(ε) of the winner, from its Rényi divergences; only the winner is covered, not its intermediate iterates."""

    adjacency: str
    k: int
    orders: Array = field(repr=False)
    divergences: Array = field(repr=False)
    failure: float = 0.0

    @property
    def slack(self) -> float:
        return self.failure

    def delta(self, epsilon: float) -> float:
        check_number("epsilon", epsilon, 0, math.inf, low_open=False)
        return min(1.0, float(compute_delta(self.orders, self.divergences, epsilon)[0]) + self.slack)

    def deltas(self, epsilons: Array) -> Array:
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons])

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        if delta <= self.slack:
            return math.inf
        found = float(compute_epsilon(self.orders, self.divergences, delta - self.slack)[0])
        return found if found <= MAX_EPSILON else math.inf


def renyi(pair: Pair, orders: Array) -> Array:
    """The Rényi divergences of a pair, by the trapezoid rule on one grid that covers every tilted density.

    *Formal guarantees.* For analytic densities the rule converges geometrically: at a quarter of the scale its error
    is far below rounding. Unlike dp_accounting's RdpAccountant(REPLACE_ONE), which keeps the sensitivity at 1 and is
    therefore never used here, the pair carries the full distance between the neighbours.
    """
    if pair.spliced:
        raise BadInput(
            "selection over a random number of runs is not proven for fixed-size batches; sample with Poisson"
        )
    shift = float(orders.max()) * float(pair.upper_means.max() - pair.lower_means.min())
    low = float(pair.lower_means.min()) - shift - 20 * pair.scale
    high = float(pair.upper_means.max()) + shift + 20 * pair.scale
    x = np.linspace(low, high, math.ceil((high - low) / pair.scale * 4))
    upper, loss = pair.log_upper_density(x) + math.log(x[1] - x[0]), pair.loss(x)
    seen = np.array([special.logsumexp(upper + (order - 1) * loss) for order in orders])
    if pair.participation < 1:
        seen = np.logaddexp(math.log1p(-pair.participation), math.log(pair.participation) + seen)
    return np.maximum(0.0, seen / (orders - 1))


@functools.lru_cache(maxsize=64)
def selection_curve(selection: Selection, adjacency: str = "substitution", k: int = 1) -> SelectionCurve:
    """The curve of the winner when the number of runs was drawn from Poisson(`mean_runs`) before the first run.

    *Formal guarantees.* If one run has Rényi divergence r(λ) and profile δ̂, both over both directions, the winner's
    is at most r(λ) + μ·δ̂(log(1+1/(λ−1))) + log(μ)/(λ−1) (Papernot & Steinke 2022, Theorem 6). The runs' other outputs,
    their number and all intermediate iterates stay secret, and the choice uses public data or the runs' outputs only.
    """
    mean = selection.mean_runs
    if mean is None or mean < 1:
        raise BadInput(f"a random number of runs needs a mean of at least 1, got {mean!r}")
    one_run = curve(selection.events, adjacency, k)
    steps = flatten(selection.events)
    if any(isinstance(step, Noiseless) for step in steps):
        return SelectionCurve(adjacency, k, ORDERS, np.full(len(ORDERS), np.inf))
    pairs = [dominating_pairs(step, adjacency, k) for step in steps]
    if any(pair.reach > MAX_REACH for both in pairs for pair in both[:2]):
        return SelectionCurve(adjacency, k, ORDERS, np.full(len(ORDERS), np.inf))
    forward = sum((count * renyi(pair, ORDERS) for pair, _, count in pairs), np.zeros(len(ORDERS)))
    backward = forward
    if not all(pair is reverse for pair, reverse, _ in pairs):
        backward = sum((count * renyi(pair, ORDERS) for _, pair, count in pairs), np.zeros(len(ORDERS)))
    slack = [mean * one_run.delta(math.log1p(1 / (order - 1))) + math.log(mean) / (order - 1) for order in ORDERS]
    return SelectionCurve(adjacency, k, ORDERS, np.maximum(forward, backward) + slack)


def any_curve(events: tuple[Event, ...], adjacency: str = "substitution", k: int = 1) -> Curve | SelectionCurve:
    """The curve of a ledger's events, whether they compose or are one selection over a random number of runs."""
    if len(events) == 1 and isinstance(events[0], Selection) and events[0].mean_runs is not None:
        return selection_curve(events[0], adjacency, k)
    return curve(events, adjacency, k)
