"""Dominating pairs: for one step, the two distributions that are at least as far apart as any two neighbours.

In: a step, an adjacency, a number k of changed records. Out: a pair of Gaussian mixtures on the line, one for each
direction (secret against mask, mask against secret). Everything else in this package is bookkeeping on these pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from ..errors import BadInput
from .events import (
    FixedSizeGaussian,
    Gaussian,
    Noiseless,
    PoissonGaussian,
    SelectiveGaussian,
    ShuffledGaussian,
    Step,
)

Array = npt.NDArray[np.float64]

ADJACENCIES = {
    "substitution": "one record's secret becomes <MASK>; the record stays, with an arbitrary other gradient",
    "zero-out": "one record becomes null: records that hold <MASK> contribute no gradient (mask_records=drop)",
    "add-remove": "one record is added or removed (the adjacency of most tools; not what a secret needs)",
}


@dataclass(frozen=True, eq=False)
class Pair:
    """Upper and lower Gaussian mixtures with common scale; the upper means lie at or above 0, the lower at or below.

    *Formal guarantees.* Both mixtures divided by N(0, scale²) are monotone, one upwards and one downwards, so the
    privacy loss log(upper/lower) increases in x and every hockey-stick divergence is attained on a half-line.
    `participation` < 1: a public coin decides whether the pair is seen at all (otherwise nothing is released).
    `spliced`: the profile for ε < 0 is the mirror image of the one for ε > 0 (see `fixed_size_pair`).
    """

    upper_means: Array
    upper_weights: Array
    lower_means: Array
    lower_weights: Array
    scale: float
    participation: float = 1.0
    spliced: bool = False

    @property
    def reach(self) -> float:
        """The largest distance between the mixtures' means, in standard deviations."""
        return float(self.upper_means.max() - self.lower_means.min()) / self.scale

    def loss(self, x: Array) -> Array:
        """The privacy loss log(upper(x)/lower(x))."""
        return self.loss_and_slope(x)[0]

    def loss_and_slope(self, x: Array) -> tuple[Array, Array]:
        """The privacy loss and its derivative, the difference of the posterior mean shifts over scale²."""
        upper, upper_shift = self._log_ratio(x, self.upper_means, self.upper_weights)
        lower, lower_shift = self._log_ratio(x, self.lower_means, self.lower_weights)
        return upper - lower, (upper_shift - lower_shift) / self.scale**2

    def log_upper_density(self, x: Array) -> Array:
        return self._log_ratio(x, self.upper_means, self.upper_weights)[0] + self._log_normal(x)

    def loss_and_upper_density(self, x: Array) -> tuple[Array, Array]:
        """The privacy loss and the upper mixture's density, from one pass over its components."""
        upper = self._log_ratio(x, self.upper_means, self.upper_weights)[0]
        lower = self._log_ratio(x, self.lower_means, self.lower_weights)[0]
        return upper - lower, np.exp(upper + self._log_normal(x))

    def lower_density(self, x: Array) -> Array:
        density: Array = np.exp(self._log_ratio(x, self.lower_means, self.lower_weights)[0] + self._log_normal(x))
        return density

    def upper_tail(self, x: float) -> float:
        """The upper mixture's mass above x."""
        return float(self.upper_weights @ special.ndtr((self.upper_means - x) / self.scale))

    def lower_tail(self, x: float) -> float:
        """The lower mixture's mass above x."""
        return float(self.lower_weights @ special.ndtr((self.lower_means - x) / self.scale))

    def _log_normal(self, x: Array) -> Array:
        return -x * x / (2 * self.scale**2) - math.log(self.scale * math.sqrt(2 * math.pi))

    def _log_ratio(self, x: Array, means: Array, weights: Array) -> tuple[Array, Array]:
        """log(mixture(x)/N(x; 0, scale²)) and the posterior mean of the component's mean."""
        exponent = (x[:, None] - means / 2) * (means / self.scale**2) + np.log(weights)
        top = exponent.max(axis=1, keepdims=True)
        parts = np.exp(exponent - top)
        total = parts.sum(axis=1)
        return top[:, 0] + np.log(total), parts @ means / total

    def profile(self, epsilon: Array) -> Array:
        """Hockey-stick divergences H_{e^ε}(upper‖lower), by bisection: an oracle for tests, not the working path."""
        epsilon = np.asarray(epsilon, dtype=float)
        if self.spliced:
            plain = Pair(self.upper_means, self.upper_weights, self.lower_means, self.lower_weights, self.scale)
            up = plain.profile(np.abs(epsilon))
            return np.where(epsilon >= 0, up, -np.expm1(epsilon) + np.exp(epsilon) * up)
        bound = 60 * self.scale + 50 + np.abs(self.upper_means).max() + np.abs(self.lower_means).max()
        low, high = np.full(epsilon.shape, -bound), np.full(epsilon.shape, bound)
        for _ in range(100):
            middle = (low + high) / 2
            below = self.loss(middle) < epsilon
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        upper = special.ndtr((self.upper_means - high[:, None]) / self.scale) @ self.upper_weights
        lower = special.ndtr((self.lower_means - high[:, None]) / self.scale) @ self.lower_weights
        seen = np.clip(np.maximum(upper - np.exp(epsilon) * lower, -np.expm1(epsilon)), 0, 1)
        unseen = np.maximum(-np.expm1(epsilon), 0)
        mixed: Array = self.participation * seen + (1 - self.participation) * unseen
        return mixed


def _binomial(k: int, rate: float) -> tuple[Array, Array]:
    """How many of k records are drawn, without the counts that never matter.

    *Formal guarantees.* Dropped counts have a total weight below 1e-40, far below every tail that is cut off; dropping
    them from a lower mixture only makes it smaller, which errs upwards.
    """
    counts = np.arange(k + 1.0)
    weights = stats.binom.pmf(counts, k, rate)
    keep = weights > 1e-42
    return counts[keep], weights[keep]


def substitution_pair(k: int, sampling_rate: float, noise_multiplier: float) -> Pair:
    """Lemma A: k substituted records under Poisson sampling.

    *Formal guarantees.* One Poisson step on D and on D', which differ in k substituted records, is dominated by
    Σ Bin(i; k, q) N(+i, σ²) against Σ Bin(j; k, q) N(−j, σ²) (guarantees §1). The pair is its own mirror image, so
    both directions have the same curve. For k = 1 it is tight, and equal to dp_accounting's REPLACE_ONE.
    """
    counts, weights = _binomial(k, sampling_rate)
    return Pair(counts, weights, -counts, weights, noise_multiplier)


def null_pair(k: int, sampling_rate: float, noise_multiplier: float) -> tuple[Pair, Pair]:
    """k records against k null records under Poisson sampling: the two directions differ.

    *Formal guarantees.* By the argument of Lemma A with every gradient of D' equal to 0: Σ Bin(i; k, q) N(i, σ²)
    against N(0, σ²). The second pair is the reverse direction, reflected so that its upper mean is the larger.
    """
    counts, weights = _binomial(k, sampling_rate)
    zero, one = np.zeros(1), np.ones(1)
    return Pair(counts, weights, zero, one, noise_multiplier), Pair(zero, one, -counts, weights, noise_multiplier)


def fixed_size_pair(sampling_rate: float, noise_multiplier: float) -> Pair:
    """One substituted record, batches of fixed size without replacement.

    *Formal guarantees.* A record that is not drawn leaves its place to another one, whose gradient may be the
    opposite: by advanced joint convexity (Balle et al. 2018) the profile for ε ≥ 0 is at most that of
    (1−q)N(0)+qN(2) against N(0), and for ε < 0 it is the mirror image H_α = 1−α+αH_{1/α}. `spliced` joins the two
    before composition; the joint profile is convex because upper and lower mass above x = 1 sum to at most 1.
    """
    means, weights = np.array([0.0, 2.0]), np.array([1 - sampling_rate, sampling_rate])
    keep = weights > 0
    return Pair(means[keep], weights[keep], np.zeros(1), np.ones(1), noise_multiplier, spliced=True)


def shift_pair(mu: float, participation: float = 1.0) -> Pair:
    """N(μ, 1) against N(0, 1).

    *Formal guarantees.* Dominates every Gaussian mechanism that moves by at most μ standard deviations; it is its own
    mirror image. With `participation` < 1 a public coin decides whether the mechanism runs at all.
    """
    one = np.ones(1)
    return Pair(np.array([mu]), one, np.zeros(1), one, 1.0, participation=participation)


def dominating_pairs(step: Step, adjacency: str, k: int) -> tuple[Pair, Pair, int]:
    """The pairs of both directions and how often they compose.

    *Formal guarantees.* `count`-fold composition of the returned pairs dominates the step's releases on any two
    neighbours at distance k, in the direction secret → mask and mask → secret respectively. A combination without a
    proof raises; nothing is approximated.
    """
    if adjacency not in ADJACENCIES:
        raise BadInput(f"unknown adjacency {adjacency!r}; known are {', '.join(ADJACENCIES)}")
    if adjacency == "add-remove" and k > 1:
        raise BadInput("group curves exist for substitution and zero-out; add-remove is for comparison at k=1 only")
    reach = 2 * k if adjacency == "substitution" else k  # how far k records can move a noiseless sum, in units of C
    if isinstance(step, PoissonGaussian):
        if adjacency == "substitution":
            pair = substitution_pair(k, step.sampling_rate, step.noise_multiplier)
            return pair, pair, step.count
        return *null_pair(k, step.sampling_rate, step.noise_multiplier), step.count
    if isinstance(step, FixedSizeGaussian):
        if adjacency != "substitution" or k > 1:
            raise BadInput("fixed-size batches have a proven curve for substitution with k=1 only; sample with Poisson")
        pair = fixed_size_pair(step.sampling_rate, step.noise_multiplier)
        return pair, pair, step.count
    if isinstance(step, ShuffledGaussian | Gaussian):
        # Σ over batches of (reach of its changed records)² is largest when all k fall into one batch.
        pair = shift_pair(reach * math.sqrt(step.count) / step.noise_multiplier)
        return pair, pair, 1
    if isinstance(step, SelectiveGaussian):
        square = (reach / step.noise_multiplier) ** 2
        if step.state_noise_multiplier is not None:
            square += step.states * (reach / step.state_noise_multiplier) ** 2
        mu = math.sqrt(step.segments * square)
        if step.participation == 1:
            pair = shift_pair(mu * math.sqrt(step.count))
            return pair, pair, 1
        if k > 1:
            raise BadInput("public participation at random has a curve for k=1 only; use participation=1 for groups")
        pair = shift_pair(mu, step.participation)
        return pair, pair, step.count
    assert isinstance(step, Noiseless), step
    raise BadInput("a noiseless step has no dominating pair")
