"""Calibration: a target ε and δ come in; out come the smallest noise, the most steps or the batch size that meet it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from ..errors import BadInput
from .bayesian import inner_delta, slot_epsilon
from .curves import check_delta, curve, gaussian_delta
from .events import Event, PoissonGaussian, check_count, check_number
from .pairs import null_pair, substitution_pair

MAX_NOISE = 1e4
MAX_TARGET = 500.0
MIN_NOISE = 0.05
MAX_SEARCHED_STEPS = 10**7


@dataclass(frozen=True)
class Calibrated:
    """A solution: the noise, the ε it gives (at most the target), and how many curves it took to find."""

    noise_multiplier: float
    epsilon: float
    evaluations: int


def _central_limit_noise(rate: float, steps: int, epsilon: float, delta: float, adjacency: str, k: int) -> float:
    """A first guess: the noise whose composed loss, taken as Gaussian, meets the target."""

    def gaussian_epsilon(mu: float) -> float:
        high = mu * mu / 2 + mu * abs(float(special.ndtri(delta))) + 1
        if gaussian_delta(np.zeros(1), mu)[0] <= delta:
            return 0.0
        return float(optimize.brentq(lambda e: gaussian_delta(np.array([e]), mu)[0] - delta, 0.0, high))

    mu = float(optimize.brentq(lambda mu: gaussian_epsilon(mu) - epsilon, 1e-9, 2 * epsilon + 20))

    def spread(log_noise: float) -> float:
        noise = math.exp(log_noise)
        pair = substitution_pair(k, rate, noise) if adjacency == "substitution" else null_pair(k, rate, noise)[0]
        x = np.linspace(-8 * noise, 8 * noise + k, 400)
        loss, density = pair.loss_and_upper_density(x)
        mass = density * (x[1] - x[0])
        return math.log(steps * float(mass @ (loss - mass @ loss) ** 2)) - 2 * math.log(mu)

    low, high = math.log(MIN_NOISE), math.log(MAX_NOISE)
    if spread(low) < 0:
        return MIN_NOISE
    if spread(high) > 0:
        return MAX_NOISE
    return math.exp(optimize.brentq(spread, low, high, xtol=1e-3))


def smallest_noise(
    sampling_rate: float,
    steps: int,
    epsilon: float,
    delta: float,
    *,
    adjacency: str = "substitution",
    k: int = 1,
    gamma: float | None = None,
    delta2: float = 0.0,
) -> Calibrated:
    """The smallest noise multiplier whose ε (for k records; Bayesian for the slot if γ is given) meets the target.

    *Formal guarantees.* The returned noise was evaluated and its ε is at most the target. Unless it is the floor of
    0.05, or ten curves did not suffice to close the bracket, a noise smaller by one part in a thousand was evaluated
    and fails.
    """
    check_number("epsilon", epsilon, 0, MAX_TARGET)
    check_delta(delta)
    check_count("k", k)
    PoissonGaussian(sampling_rate, 1.0, steps)

    def achieved(noise: float) -> float:
        found = curve([PoissonGaussian(sampling_rate, noise, steps)], adjacency, k)
        return found.epsilon(delta) if gamma is None else slot_epsilon(found, gamma, delta, delta2)

    if gamma is None:
        guess = _central_limit_noise(sampling_rate, steps, epsilon, delta, adjacency, k)
    else:
        inner = inner_delta(gamma, delta, delta2)
        if delta <= delta2 or not 0 < inner < 1:
            raise BadInput(
                f"no noise reaches this target: delta={delta:g} must lie between delta2={delta2:g} and gamma={gamma:g}"
            )
        base = min(math.log1p(math.expm1(epsilon) / gamma), MAX_TARGET)
        guess = _central_limit_noise(sampling_rate, steps, base, inner, adjacency, k)
    return _falling_root(achieved, epsilon, guess)


def smallest_noise_of(
    events: Callable[[float], list[Event]],
    epsilon: float,
    delta: float,
    *,
    adjacency: str = "substitution",
    k: int = 1,
    guess: float = 1.0,
) -> Calibrated:
    """The smallest noise multiplier σ for which the composition of `events(σ)` meets the target.

    *Formal guarantees.* As for `smallest_noise`. ε must fall as σ rises, which it does where σ is the noise of some events and
    leaves the others as they are.
    """
    check_number("epsilon", epsilon, 0, MAX_TARGET)
    check_delta(delta)
    return _falling_root(lambda noise: curve(events(noise), adjacency, k).epsilon(delta), epsilon, guess)


def _falling_root(achieved: Callable[[float], float], target: float, guess: float) -> Calibrated:
    """The smallest argument in (MIN_NOISE, MAX_NOISE) whose value is at most the target: secant steps in logarithms."""
    good, bad = math.inf, 0.0  # smallest noise known to meet the target, largest known to fail
    values: dict[float, float] = {}
    noise = min(max(guess, MIN_NOISE), MAX_NOISE)
    for _ in range(10):
        values[noise] = achieved(noise)
        if values[noise] <= target:
            good = min(good, noise)
        else:
            bad = max(bad, noise)
        if good <= bad * 1.001:
            break
        if bad >= MAX_NOISE:
            raise BadInput(
                f"no noise multiplier up to {MAX_NOISE:g} reaches epsilon {target:g}: at {MAX_NOISE:g} it is still "
                f"{values[noise]:.3g}; allow a larger epsilon or delta, fewer steps or a smaller sampling rate"
            )
        if good <= MIN_NOISE:
            break
        noise = _next(values, target, good, bad)
    if math.isinf(good):
        raise BadInput(f"no noise multiplier found for epsilon {target:g}; is the target out of reach?")
    return Calibrated(good, values[good], len(values))


def _next(values: dict[float, float], target: float, good: float, bad: float) -> float:
    finite = [noise for noise in values if math.isfinite(values[noise])]
    if not finite:  # every noise so far is too small for any bound
        return min(max(values) * math.exp(1.5), math.sqrt(bad * good) if math.isfinite(good) else MAX_NOISE)
    near = sorted(finite, key=lambda noise: abs(math.log(max(values[noise], 1e-300) / target)))[:2]
    slope = -1.3
    if len(near) == 2 and values[near[0]] != values[near[1]] and min(values[n] for n in near) > 0:
        slope = math.log(values[near[0]] / values[near[1]]) / math.log(near[0] / near[1])
        slope = min(slope, -0.2)
    step = math.log(target / max(values[near[0]], 1e-300)) / slope
    # Aim a little to the safe side, so that the bracket closes from both ends.
    noise = near[0] * math.exp(min(max(step, -1.5), 1.5)) * (1.0004 if values[near[0]] > target else 0.9996)
    if math.isfinite(good) and (not bad < noise < good or noise in values):
        noise = math.sqrt(max(bad, MIN_NOISE) * good)
    return min(max(noise, MIN_NOISE), MAX_NOISE)


def most_steps(
    sampling_rate: float,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    *,
    adjacency: str = "substitution",
    k: int = 1,
) -> int:
    """The largest number of steps whose ε stays within the target; 0 if not even one does.

    *Formal guarantees.* The returned number was evaluated and fits; one more was evaluated and does not, or is beyond
    the 10⁷ steps that are looked at.
    """
    check_number("epsilon", epsilon, 0, MAX_TARGET)
    PoissonGaussian(sampling_rate, noise_multiplier)

    def fits(steps: int) -> bool:
        try:
            found = curve([PoissonGaussian(sampling_rate, noise_multiplier, steps)], adjacency, k)
            return found.epsilon(delta) <= epsilon
        except BadInput:
            if steps == 1:
                raise
            return False  # beyond what floating point can account for at this δ

    if not fits(1):
        return 0
    good, bad = 1, 2
    while fits(bad):
        good, bad = bad, bad * 8
        if good >= MAX_SEARCHED_STEPS:
            raise BadInput(f"more than {MAX_SEARCHED_STEPS:,} steps fit: this target does not limit the run")
        bad = min(bad, MAX_SEARCHED_STEPS)
    while bad - good > 1:
        middle = max(good + 1, min(bad - 1, round(math.sqrt(good * bad)))) if bad > 2 * good else (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


@dataclass(frozen=True)
class BatchChoice:
    """One batch size: its rate, steps and noise, and the noise on a step's and on the whole run's mean gradient."""

    batch_size: int
    sampling_rate: float
    steps: int
    noise_multiplier: float
    noise_per_step: float
    noise_per_run: float


def batch_choices(
    records: int, epochs: float, epsilon: float, delta: float, *, adjacency: str = "substitution", k: int = 1
) -> list[BatchChoice]:
    """What each batch size costs at equal epochs and ε, smallest first: powers of two up to a quarter of the corpus.

    The noise on a step's mean gradient is σ·C/B and falls throughout; averaged over the run's T steps it is σ·C/(B√T),
    which levels off where amplification is used up.
    """
    check_count("records", records, low=16)
    check_number("epochs", epochs, 0, 1e5)
    choices = []
    top = math.floor(math.log2(records / 4))
    for exponent in range(max(0, top - 7), top + 1):
        batch = 2**exponent
        rate = batch / records
        steps = max(1, math.ceil(epochs / rate))
        noise = smallest_noise(rate, steps, epsilon, delta, adjacency=adjacency, k=k).noise_multiplier
        choices.append(BatchChoice(batch, rate, steps, noise, noise / batch, noise / batch / math.sqrt(steps)))
    return choices


def enough(choices: list[BatchChoice]) -> BatchChoice:
    """The smallest batch size whose run is within a tenth of the least noisy one: larger ones cost more than they bring."""
    least = min(choice.noise_per_run for choice in choices)
    return next(choice for choice in choices if choice.noise_per_run <= 1.1 * least)
