"""Privacy curves δ(ε): dominating pairs in, a composed privacy-loss distribution out.

Composition and the conversion between ε and δ are dp_accounting's. Ours is the discretisation of a pair: the same
pessimistic "connect the dots" law, but computed by quadrature instead of by second differences of δ(ε). The
differences lose digits, and 10⁶ steps magnify the loss: at q=0.001, σ=1, T=10⁶ a ten times finer grid makes
dp_accounting's own REPLACE_ONE *raise* ε from 11.03 to 11.11.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from dp_accounting.pld import common, pld_pmf
from scipy import fft, special

from ..errors import BadInput
from .events import Event, Noiseless, Step, check_count, check_number, flatten
from .pairs import Array as Array
from .pairs import Pair, dominating_pairs

ACCOUNTANT = "privacy loss distribution of the dominating pairs, pessimistic, both directions (dp_accounting)"
MIN_DELTA = 1e-9
TAIL = 1e-15  # cut off in all steps together: far below δ/100 for every admissible δ, hence below δ/(100T) a step
# Cells a step at the most, and the share by which the grid may widen the composed loss's variance. Groups have a
# coarser grid, for speed: a certificate holds a dozen of them.
ONE_GRID = (2**18, 2e-4)
GROUP_GRID = (2**15, 1e-3)
MAX_POINTS = 2**23
MAX_GROUP = 200
MAX_REACH = 300  # standard deviations between the neighbours, beyond which nothing is left to promise
MAX_EPSILON = 600.0  # beyond, likelihood ratios leave floating point and a guarantee means nothing

_RULE = np.polynomial.legendre.leggauss(4)
_FINE_RULE = np.polynomial.legendre.leggauss(2)  # for panels so narrow that two points are exact to 1e-15


class PrivacyCurve(Protocol):
    """What guarantees and ceilings need of a curve."""

    @property
    def slack(self) -> float: ...

    def delta(self, epsilon: float) -> float: ...

    def deltas(self, epsilons: Array) -> Array: ...

    def epsilon(self, delta: float) -> float: ...


@dataclass(frozen=True)
class Law:
    """The privacy loss of one pair on the grid {h·i}: masses from `first` upwards, and the mass at infinity."""

    first: int
    masses: Array
    infinity: float
    h: float


@dataclass(frozen=True)
class Curve:
    """δ(ε) of a ledger under one adjacency for k changed records: the larger of both directions.

    *Formal guarantees.* For every ε ≥ 0, `delta(ε)` is an upper bound of the hockey-stick divergence of the released
    iterates on any two neighbours, in both directions; `epsilon(δ)` inverts that bound. Discretisation and cut-off
    tails err upwards. `slack` is added to every δ: an allowance for the floating-point error of the composition (an
    estimate with a margin, checked against extended precision, not a worst-case bound), and whatever else may fail.
    δ outside [1e-9, 1) is refused, and so is a δ of less than twenty times that allowance.
    """

    adjacency: str
    k: int
    forward: pld_pmf.PLDPmf = field(repr=False)
    backward: pld_pmf.PLDPmf = field(repr=False)
    rounding: float = 0.0
    failure: float = 0.0  # the probability that something outside the training fails, such as a Bloom filter

    @property
    def slack(self) -> float:
        return self.rounding + self.failure

    @property
    def directions(self) -> tuple[pld_pmf.PLDPmf, ...]:
        return (self.forward,) if self.forward is self.backward else (self.forward, self.backward)

    def delta(self, epsilon: float) -> float:
        """The smallest proven δ at this ε ≥ 0."""
        check_number("epsilon", epsilon, 0, math.inf, low_open=False)
        return min(1.0, max(0.0, self._bare_delta(epsilon)) + self.slack)

    def _bare_delta(self, epsilon: float) -> float:
        return max(float(pmf.get_delta_for_epsilon(float(epsilon))) for pmf in self.directions)

    def deltas(self, epsilons: Array) -> Array:
        """`delta` for many values in ascending order."""
        epsilons = np.asarray(epsilons, dtype=float)
        if np.any(np.diff(epsilons) < 0) or not np.all(np.isfinite(epsilons)) or np.any(epsilons < 0):
            raise BadInput("epsilons must be finite, not negative and in ascending order")
        small, large = epsilons[epsilons <= MAX_EPSILON], epsilons[epsilons > MAX_EPSILON]  # e^ε must stay finite
        worst = np.zeros(len(small))
        if len(small):
            worst = np.max([pmf.get_delta_for_epsilon(list(small)) for pmf in self.directions], axis=0)
        found: Array = np.clip(np.maximum(worst, 0.0) + self.slack, 0.0, 1.0)
        return np.concatenate([found, [self.delta(float(epsilon)) for epsilon in large]])

    def epsilon(self, delta: float) -> float:
        """The smallest proven ε at this δ; infinite where none is finite."""
        check_delta(delta)
        if delta <= 20 * self.rounding:
            raise BadInput(
                f"delta={delta:g} is too small for this many steps: floating-point error may reach "
                f"{self.rounding:.2g}; use a delta above {20.2 * self.rounding:.2g} or fewer steps"
            )
        if delta <= self.slack:
            return math.inf
        target = delta - self.slack
        if self._bare_delta(0.0) <= target:
            return 0.0
        with np.errstate(over="ignore"):
            found = max(float(pmf.get_epsilon_for_delta(target)) for pmf in self.directions)
        return found if found <= MAX_EPSILON else math.inf


def check_delta(delta: float) -> None:
    """Refuse a δ outside [1e-9, 1)."""
    check_number("delta", delta, 0, 1)
    if delta >= 1:
        raise BadInput(f"delta must be below 1, got {delta:g}: a guarantee that may always fail promises nothing")
    if delta < MIN_DELTA:
        raise BadInput(
            f"delta={delta:g} is below {MIN_DELTA:g}, where the accounting is no longer numerically safe; "
            "choose a larger delta"
        )


def gaussian_delta(epsilon: Array, mu: float) -> Array:
    """δ(ε) of a μ-Gaussian-DP mechanism, exactly."""
    epsilon = np.asarray(epsilon, dtype=float)
    if mu <= 0:
        return np.maximum(0.0, -np.expm1(epsilon))
    upper: Array = np.exp(special.log_ndtr(-epsilon / mu + mu / 2))
    lower: Array = np.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
    return np.maximum(0.0, upper - lower)


def curve(events: Iterable[Event], adjacency: str = "substitution", k: int = 1, *, refine: int = 1) -> Curve:
    """The privacy curve of a ledger's events under an adjacency, for k changed records.

    *Formal guarantees.* An upper bound for adaptive composition of the events in any order (Zhu, Dong & Wang 2022),
    by the dominating pairs of `pairs.dominating_pairs`. Events without a proven pair raise. A noiseless event gives
    δ = 1 everywhere. `refine` divides the grid's width: it changes the tightness, never the validity.

    >>> from confide.accounting.events import PoissonGaussian
    >>> round(curve([PoissonGaussian(0.03125, 1.0, 320)]).epsilon(8e-5), 2)
    4.78
    """
    check_count("k", k, high=MAX_GROUP)
    check_count("refine", refine, high=1000)
    return _curve(tuple(flatten(events)), adjacency, k, refine)


@functools.lru_cache(maxsize=64)
def _curve(steps: tuple[Step, ...], adjacency: str, k: int, refine: int) -> Curve:
    noisy = [step for step in steps if not isinstance(step, Noiseless)]
    pairs = [dominating_pairs(step, adjacency, k) for step in noisy]
    if len(noisy) < len(steps) or any(one.reach > MAX_REACH for pair in pairs for one in pair[:2]):
        nothing = pld_pmf.create_pmf({0: 0.0}, 1.0, infinity_mass=1.0, pessimistic_estimate=True)
        return Curve(adjacency, k, nothing, nothing)
    if not pairs:
        identity = pld_pmf.create_pmf({0: 1.0}, 1.0, infinity_mass=0.0, pessimistic_estimate=True)
        return Curve(adjacency, k, identity, identity)
    cut = TAIL / sum(count for _, _, count in pairs)
    width = _grid_width(pairs, cut, *(ONE_GRID if k == 1 else GROUP_GRID)) / refine
    forward, rounding = _compose([(discretise(pair, width, cut), count) for pair, _, count in pairs])
    if all(pair is reverse for pair, reverse, _ in pairs):
        return Curve(adjacency, k, forward, forward, rounding)
    backward, more = _compose([(discretise(pair, width, cut), count) for _, pair, count in pairs])
    return Curve(adjacency, k, forward, backward, max(rounding, more))


def _support(pair: Pair, cut: float) -> tuple[float, float, float]:
    """The interval outside which the upper mixture has at most `cut` mass, and that mass."""
    share = cut / (2 * len(pair.upper_means))
    reach = special.ndtri(np.minimum(share / pair.upper_weights, 0.5)) * pair.scale  # ≤ 0
    low, high = float((pair.upper_means + reach).min()), float((pair.upper_means - reach).max())
    if pair.spliced:
        low = 1.0
        return low, high, pair.upper_tail(high) + pair.lower_tail(high)
    below = float(pair.upper_weights @ special.ndtr((low - pair.upper_means) / pair.scale))
    return low, high, pair.upper_tail(high) + below


def _panels(pair: Pair, low: float, high: float) -> Array:
    """Points from low to high at most scale/16 apart."""
    return np.linspace(low, high, max(2, math.ceil((high - low) / pair.scale * 16) + 1))


def _grid_width(pairs: list[tuple[Pair, Pair, int]], cut: float, cells: int, inflation: float) -> float:
    """The widest grid 2^-j that widens the composed loss's variance by at most a share, within a number of cells."""
    variance = 0.0
    samples: list[tuple[Array, Array, int]] = []
    span = 0.0
    for pair, reverse, count in pairs:
        for one in (pair,) if pair is reverse else (pair, reverse):
            low, high, _ = _support(one, cut)
            x = _panels(one, low, high)
            loss, density = one.loss_and_upper_density(x)
            mass = density * (x[1] - x[0]) * one.participation
            mean = float(mass @ loss)
            variance += count * float(mass @ (loss - mean) ** 2)
            samples.append((loss, mass, count))
            span = max(span, float(loss[-1] - loss[0]))
    floor = span / cells
    exponent = max(-4, math.ceil(math.log2(floor)))  # coarser than 1/16 would be loose in e^ε whatever the variance
    while True:
        width = 2.0**exponent
        widened = 0.0
        for loss, mass, count in samples:
            place = np.mod(loss / width, 1.0)
            widened += count * float(mass @ (place * (1 - place))) * width**2
        if widened <= inflation * variance or width / 2 < floor:
            return width
        exponent -= 1


def discretise(pair: Pair, h: float, cut: float) -> Law:
    """The pair's privacy loss on the grid h·Z, rounded pessimistically.

    *Formal guarantees.* Every point mass at loss ℓ in a cell [a, a+h] is split over the cell's ends so that its mass
    under the upper and under the lower distribution are both kept ("connect the dots", Doroshenko et al. 2022): the
    result dominates the pair. Mass outside the support (at most `cut`) goes to infinity. The cells' masses are
    Gauss–Legendre sums over panels of at most scale/16 that end on the cells' bounds to rounding, so that they are exact
    to about 1e-13: no differences of nearly equal numbers are taken.
    """
    low, high, infinity = _support(pair, cut)
    coarse = _panels(pair, low, high)
    loss = pair.loss(coarse)
    bounds = np.arange(math.ceil(loss[0] / h), math.floor(loss[-1] / h) + 1)
    x = np.interp(bounds * h, loss, coarse)
    for _ in range(2):  # Newton; bounds need not be exact, since nodes are assigned to cells by their own loss
        value, slope = _chunked(pair, x)
        step = np.divide(bounds * h - value, slope, out=np.zeros_like(x), where=slope > 0)
        x = np.clip(x + np.clip(step, -pair.scale / 16, pair.scale / 16), low, high)
    edges = np.unique(np.concatenate([coarse, x]))
    edges = edges[np.concatenate([[True], np.diff(edges) > 1e-13 * pair.scale])]
    edges[-1] = high
    first, last = math.floor(loss[0] / h) - 1, math.floor(loss[-1] / h) + 2
    if pair.spliced:
        first = -last
    masses = np.zeros(last - first + 1)
    for begin in range(0, len(edges) - 1, 2**14):
        left, right = edges[begin : begin + 2**14 + 1][:-1], edges[begin : begin + 2**14 + 1][1:]
        half = (right - left)[:, None] / 2
        rule, rule_weights = _FINE_RULE if half.max() <= pair.scale / 1000 else _RULE
        nodes = (left[:, None] + half * (1 + rule)).ravel()
        weight = (half * rule_weights).ravel()
        losses, density = pair.loss_and_upper_density(nodes)
        _split(masses, losses, weight * density, h, first)
        if pair.spliced:
            _split(masses, -losses, weight * pair.lower_density(nodes), h, first)
    if pair.spliced:  # what is neither above 1 under the upper nor under the lower law has loss 0
        masses[-first] += 1 - pair.upper_tail(1.0) - pair.lower_tail(1.0)
    if pair.participation < 1:
        if not first <= 0 <= last:
            padded = np.zeros(max(last, 0) - min(first, 0) + 1)
            padded[first - min(first, 0) :][: len(masses)] = masses
            first, masses = min(first, 0), padded
        masses *= pair.participation
        infinity *= pair.participation
        masses[-first] += 1 - pair.participation
    total = masses.sum() + infinity
    if abs(total - 1) > 1e-12 + 1e-15 * pair.reach**2:  # densities lose digits as their means move apart
        raise ArithmeticError(f"the discretised privacy loss has mass {total!r}")
    kept = np.flatnonzero(masses)
    masses = masses[kept[0] : kept[-1] + 1] * ((1 - infinity) / masses.sum())
    return Law(first + int(kept[0]), masses, infinity, h)


def _chunked(pair: Pair, x: Array) -> tuple[Array, Array]:
    parts = [pair.loss_and_slope(x[begin : begin + 2**14]) for begin in range(0, max(1, len(x)), 2**14)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _split(masses: Array, losses: Array, weights: Array, h: float, first: int) -> None:
    cells = np.floor(losses / h)
    up = np.expm1(cells * h - losses) / math.expm1(-h)
    index = cells.astype(np.int64) - first
    masses += np.bincount(index, weights * (1 - up), len(masses))
    masses += np.bincount(index + 1, weights * up, len(masses))


def _compose(laws: list[tuple[Law, int]]) -> tuple[pld_pmf.PLDPmf, float]:
    """The composed law and an allowance for the floating-point error of its Fourier transforms."""
    total, rounding = _self_compose(*laws[0])
    for law, count in laws[1:]:
        pmf, error = _self_compose(law, count)
        total = total.compose(pmf, tail_mass_truncation=TAIL)
        rounding += error + _rounding(1, total.size, 1.0)
    return total, rounding


def _self_compose(law: Law, count: int) -> tuple[pld_pmf.DensePLDPmf, float]:
    """The law convolved `count` times with itself, on the range that dp_accounting's Chernoff bound says is needed.

    *Formal guarantees.* Mass outside the range, at most TAIL, goes to infinity. Unlike dp_accounting's own
    `self_compose`, the bound's orders are scaled to the composed law instead of to the grid: the same bound, but a
    range that grows with √count and not with count.
    """
    if count == 1:
        return pld_pmf.DensePLDPmf(law.h, law.first, law.masses, law.infinity, True), 0.0
    places = np.arange(len(law.masses))
    mean = float(law.masses @ places)
    spread = math.sqrt(max(float(law.masses @ (places - mean) ** 2), 1e-12) * count)
    # From heavy tails (a share of the grid) to the central limit (a few standard deviations of the composed law).
    orders = np.geomspace(min(1 / len(places), 0.5 / spread), 60 / spread, 12)
    low, high = common.compute_self_convolve_bounds(law.masses, count, TAIL, np.concatenate([-orders, orders]))
    size = high - low + 1
    if size > MAX_POINTS:
        raise BadInput(
            f"{count:,} steps of this size need a grid of {size:,} points; account for fewer steps at a time"
        )
    length = fft.next_fast_len(max(size, len(law.masses)), real=True)
    spectrum = fft.rfft(law.masses, length)
    masses = np.roll(fft.irfft(spectrum**count, length), -low)[:size]
    norm = math.sqrt(float(np.mean(np.minimum(np.abs(spectrum), 1.0) ** (2 * count))))
    infinity = TAIL - math.expm1(count * math.log1p(-law.infinity))
    pmf = pld_pmf.DensePLDPmf(law.h, law.first * count + low, masses, infinity, True)
    return pmf, _rounding(count, size, norm)


def _rounding(count: int, size: int, norm: float) -> float:
    """An allowance for the L1 error of a `count`-fold convolution by Fourier transform on `size` points.

    Each frequency of a probability vector's transform has an error of about u, which the power magnifies `count`-fold
    where the transform is near 1; by Parseval the L1 error on the grid is about √size times the L2 norm of the composed
    law times that. Four times this is eight times and more of what extended precision shows.
    """
    return 4 * float(np.finfo(float).eps) * count * math.sqrt(size) * norm
