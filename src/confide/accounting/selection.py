"""The best of a random number of runs (Papernot & Steinke 2022): one run's events in, a curve for the winner out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon
from scipy import special

from ..errors import BadInput
from .curves import Array, Curve, check_delta, curve
from .events import Event, Noiseless, Selection, check_number, flatten
from .pairs import Pair, dominating_pairs

ORDERS = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(11, 64), [80, 96, 128, 256, 512]])


@dataclass(frozen=True)
class SelectionCurve:
    """δ(ε) of the winner, from its Rényi divergences; only the winner is covered, not its intermediate iterates."""

    adjacency: str
    k: int
    orders: Array = field(repr=False)
    divergences: Array = field(repr=False)
    rounding: float = 0.0

    def delta(self, epsilon: float) -> float:
        check_number("epsilon", epsilon, 0, math.inf, low_open=False)
        return float(compute_delta(self.orders, self.divergences, epsilon)[0])

    def deltas(self, epsilons: Array) -> Array:
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons])

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return float(compute_epsilon(self.orders, self.divergences, delta)[0])


def renyi(pair: Pair, order: float) -> float:
    """The Rényi divergence of a pair, by the trapezoid rule on a grid that covers the tilted density.

    *Formal guarantees.* For analytic densities the rule converges geometrically; at scale/64 its error is below the
    rounding of the result. Unlike dp_accounting's RdpAccountant(REPLACE_ONE), which keeps the sensitivity at 1 and is
    therefore never used here, the pair carries the full distance between the neighbours.
    """
    if pair.spliced:
        raise BadInput(
            "selection over a random number of runs is not proven for fixed-size batches; sample with Poisson"
        )
    shift = order * float(pair.upper_means.max() - pair.lower_means.min())
    low = float(pair.lower_means.min()) - shift - 40 * pair.scale
    high = float(pair.upper_means.max()) + shift + 40 * pair.scale
    x = np.linspace(low, high, math.ceil((high - low) / pair.scale * 64))
    upper = pair._log_ratio(x, pair.upper_means, pair.upper_weights)[0] - x * x / (2 * pair.scale**2)
    upper -= math.log(pair.scale * math.sqrt(2 * math.pi))
    seen = float(special.logsumexp(upper + (order - 1) * pair.loss(x))) + math.log(x[1] - x[0])
    if pair.participation < 1:
        seen = float(np.logaddexp(math.log1p(-pair.participation), math.log(pair.participation) + seen))
    return max(0.0, seen / (order - 1))


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
    divergences = np.zeros(len(ORDERS))
    for i, order in enumerate(ORDERS):
        forward = sum(count * renyi(pair, order) for pair, _, count in pairs)
        backward = sum(count * renyi(pair, order) for _, pair, count in pairs)
        slack = mean * one_run.delta(math.log1p(1 / (order - 1))) + math.log(mean) / (order - 1)
        divergences[i] = max(forward, backward) + slack
    return SelectionCurve(adjacency, k, ORDERS, divergences)


def any_curve(events: tuple[Event, ...], adjacency: str = "substitution", k: int = 1) -> Curve | SelectionCurve:
    """The curve of a ledger's events, whether they compose or are one selection over a random number of runs."""
    if len(events) == 1 and isinstance(events[0], Selection) and events[0].mean_runs is not None:
        return selection_curve(events[0], adjacency, k)
    return curve(events, adjacency, k)
