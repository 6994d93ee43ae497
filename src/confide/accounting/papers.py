"""The papers' own accountings, to reproduce their numbers. Nothing here may reach a certificate.

Each function names the adjacency, the accountant and the conversion that the paper used, and says why its number is
not a guarantee for a masked secret. The sound counterparts are in `curves` and `bayesian`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import optimize

from ..errors import Refused
from .curves import Array, Curve, check_delta, curve
from .events import PoissonGaussian


def rdp_epsilon(step: PoissonGaussian, delta: float, conversion: str = "new", adjacency: str = "add-remove") -> float:
    """ε by Rényi DP under add/remove adjacency; `conversion` "old" is rdp+log(1/δ)/(α−1), "new" dp_accounting's.

    Banned under substitution: dp_accounting's RdpAccountant(REPLACE_ONE) does not double the sensitivity and answers
    1.91 for a Gaussian with σ=2 at δ=8e-5, where the truth is 3.86.
    """
    check_delta(delta)
    if adjacency != "add-remove":
        raise Refused(
            f"Rényi accounting under {adjacency} is refused: dp_accounting's RDP keeps the sensitivity at 1 there "
            "and understates epsilon about twofold; use the PLD curve"
        )
    # α < 2 is never optimal in this use, and its series do not converge at small σ.
    accountant = RdpAccountant(np.concatenate([np.arange(2, 11, 0.1), np.arange(11, 64), [80, 96, 128, 256, 512]]))
    sampled = dp_event.PoissonSampledDpEvent(step.sampling_rate, dp_event.GaussianDpEvent(step.noise_multiplier))
    accountant.compose(dp_event.SelfComposedDpEvent(sampled, step.count))
    if conversion == "old":
        return float(np.min(accountant.rdp + math.log(1 / delta) / (accountant.orders - 1)))
    return float(accountant.get_epsilon(delta))


def crt_bayesian_epsilon(sampling_rate: float, steps: int, epsilon: float, delta: float, gamma: float) -> float:
    """CRT's Figure 6: noise for (ε′, δ) by RDP under add/remove, then log(1+γ(e^{ε₀}−1)) with ε₀ read at δ/γ.

    The optimisation over δ is right, the adjacency is not: masking a secret is a substitution.
    """

    return crt_bayesian_at(
        PoissonGaussian(sampling_rate, crt_noise(sampling_rate, steps, epsilon, delta), steps), delta, gamma
    )


def crt_noise(sampling_rate: float, steps: int, epsilon: float, delta: float) -> float:
    """The noise multiplier that CRT's count takes for (ε′, δ)."""

    def excess(noise: float) -> float:
        return rdp_epsilon(PoissonGaussian(sampling_rate, noise, steps), delta) - epsilon

    return float(optimize.brentq(excess, 0.6, 50, xtol=1e-6))


def crt_bayesian_at(steps: PoissonGaussian, delta: float, gamma: float) -> float:
    """CRT's Bayesian ε of steps that were taken, by the same count."""
    return math.log1p(gamma * math.expm1(rdp_epsilon(steps, delta / gamma)))


def crt_group_epsilon(one: Curve, k: int, delta: float) -> float:
    """CRT's Theorem 8.2: (kε, k·e^{kε}·δ(ε)); valid for a sound δ(ε), but far from tight."""
    return _hops(one, k, delta, lambda epsilons: math.log(k) + k * epsilons)


def generic_group_epsilon(one: Curve, k: int, delta: float) -> float:
    """The textbook group bound (kε, δ(ε)·(e^{kε}−1)/(e^ε−1)); infinite where numerical error hides any answer."""
    return _hops(one, k, delta, lambda epsilons: np.log(np.expm1(k * epsilons) / np.expm1(epsilons)))


def two_hop_epsilon(add_remove: Curve, delta: float) -> float:
    """Substitution as a removal and an addition: the best ε₁+ε₂ with δ(ε₁)+e^{ε₁}δ(ε₂) ≤ δ. Valid, but loose."""
    check_delta(delta)
    epsilons = np.arange(0, 60, 5e-3)
    deltas = replace(add_remove, rounding=0.0).deltas(epsilons)
    rest = (delta - deltas) * np.exp(-epsilons)
    second = np.searchsorted(-deltas, -rest)  # the first ε₂ whose δ fits into the rest
    fits = (rest > 0) & (second < len(epsilons))
    sums = np.where(fits, epsilons + epsilons[np.minimum(second, len(epsilons) - 1)], np.inf)
    return float(sums.min())


def _hops(one: Curve, k: int, delta: float, log_factor: Callable[[Array], Array]) -> float:
    check_delta(delta)
    epsilons = np.arange(1e-3, min(60.0, 600 / k), 1e-3)
    with np.errstate(divide="ignore"):
        deltas = np.log(replace(one, rounding=0.0).deltas(epsilons))  # the allowance would drown values this small
    fits = np.flatnonzero(deltas + log_factor(epsilons) <= math.log(delta))
    return k * float(epsilons[fits[0]]) if len(fits) else math.inf


def sdp_epsilon(sampling_rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """S-DP's published ε: RDP under add/remove with the old conversion, on gradients alone.

    It counts no hidden-state releases, takes shuffled batches for Poisson samples and one C for a distance of two.
    """
    return rdp_epsilon(PoissonGaussian(sampling_rate, noise_multiplier, steps), delta, conversion="old")


def jft_heuristic_epsilon(
    sampling_rate: float, noise_multiplier: float, steps: int, delta: float, missing_rate: float
) -> float:
    """JFT's estimate for a lightly noised phase 1: sampling rate times missing rate. A heuristic, not a guarantee.

    Misses are fixed properties of the corpus, not fresh secret coins, so they amplify nothing.
    """
    step = PoissonGaussian(sampling_rate * missing_rate, noise_multiplier, steps)
    return curve([step], "add-remove").epsilon(delta)
