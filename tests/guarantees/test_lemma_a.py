"""A search for violations of Lemma A: real mechanisms in several dimensions against the dominating pair."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.accounting.pairs import null_pair, substitution_pair


def mixture(gradients, rate, others=None):
    """Means and weights of a Poisson-sampled sum of the gradients (and of other records, the same in D and D')."""
    rows = [(g, rate) for g in gradients] + [(g, rate) for g in (others if others is not None else [])]
    means, weights = [], []
    for chosen in itertools.product([0, 1], repeat=len(rows)):
        means.append(sum((g for c, (g, _) in zip(chosen, rows, strict=True) if c), np.zeros(gradients.shape[1])))
        weights.append(np.prod([p if c else 1 - p for c, (_, p) in zip(chosen, rows, strict=True)]))
    return np.array(means), np.array(weights)


def log_density(x, means, weights, noise):
    squares = ((x[:, None, :] - means[None]) ** 2).sum(axis=2)
    exponent = -squares / (2 * noise**2) + np.log(weights)
    top = exponent.max(axis=1, keepdims=True)
    return top[:, 0] + np.log(np.exp(exponent - top).sum(axis=1))


def unit_vectors(rng, count, dimension):
    vectors = rng.normal(size=(count, dimension))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.integers(1, 6),
    st.floats(0.01, 1.0),
    st.floats(0.4, 3.0),
    st.integers(0, 2),
)
def test_no_mechanism_exceeds_the_pair_by_monte_carlo(seed, k, dimension, rate, noise, others):
    """Random gradients of any length up to C, in up to six dimensions, with other records in the batch."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([0.0, 0.5, 1.0, 1.0, 1.0], size=(2, k, 1))
    secret, masked = lengths * np.array([unit_vectors(rng, k, dimension) for _ in range(2)])
    rest = unit_vectors(rng, others, dimension)
    draws = 20_000
    p_means, p_weights = mixture(secret, rate, rest)
    q_means, q_weights = mixture(masked, rate, rest)
    picks = rng.choice(len(p_means), size=draws, p=p_weights / p_weights.sum())
    x = p_means[picks] + noise * rng.normal(size=(draws, dimension))
    loss = log_density(x, p_means, p_weights + 1e-300, noise) - log_density(x, q_means, q_weights + 1e-300, noise)
    pair = substitution_pair(k, rate, noise)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        values = np.maximum(0, -np.expm1(np.minimum(epsilon - loss, 0)))
        error = 5 * values.std() / np.sqrt(draws) + 20 / draws
        assert values.mean() <= pair.profile(np.array([epsilon]))[0] + error


GRID = np.linspace(-8, 8, 321)
POINTS = np.stack(np.meshgrid(GRID, GRID), axis=-1).reshape(-1, 2)


def hockey_stick(secret, masked, rate, noise, epsilon):
    """By integration over the plane: accurate to about 5e-5, because of the kink."""
    p = np.exp(log_density(POINTS, *mixture(secret, rate), noise))
    q = np.exp(log_density(POINTS, *mixture(masked, rate), noise))
    cell = (GRID[1] - GRID[0]) ** 2 / (2 * np.pi * noise**2)
    return float(np.maximum(0, p - np.exp(epsilon) * q).sum() * cell)


@pytest.mark.parametrize("seed", range(2))
def test_a_hill_climb_in_the_plane_reaches_the_pair_and_never_passes_it(seed):
    """The search climbs towards the worst gradients: it must come close to the bound (so it searches well), not above."""
    rng = np.random.default_rng(seed)
    k, rate, noise, epsilon = (
        2,
        float(rng.uniform(0.1, 0.6)),
        float(rng.uniform(0.8, 1.2)),
        float(rng.uniform(0.2, 1.5)),
    )
    bound = substitution_pair(k, rate, noise).profile(np.array([epsilon]))[0]
    secret, masked = unit_vectors(rng, k, 2), unit_vectors(rng, k, 2)
    best = hockey_stick(secret, masked, rate, noise, epsilon)
    width = 1.0
    for _ in range(120):
        tried = [v + width * rng.normal(size=v.shape) for v in (secret, masked)]
        tried = [v / np.maximum(1, np.linalg.norm(v, axis=1, keepdims=True)) for v in tried]
        value = hockey_stick(*tried, rate, noise, epsilon)
        assert value <= bound + 1e-4
        if value > best:
            best, (secret, masked) = value, tried
        else:
            width = max(0.02, width * 0.96)
    assert best >= 0.9 * bound


def test_the_pair_is_attained_by_opposite_gradients():
    for k, rate, noise, epsilon in ((1, 0.1, 1.0, 0.5), (2, 0.3, 1.0, 1.0), (3, 0.2, 0.9, 2.0)):
        ahead = np.tile([[1.0, 0.0]], (k, 1))
        bound = substitution_pair(k, rate, noise).profile(np.array([epsilon]))[0]
        assert hockey_stick(ahead, -ahead, rate, noise, epsilon) == pytest.approx(bound, abs=1e-4)


def test_null_records_attain_the_null_pair_in_both_directions():
    ahead, nothing = np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]])
    forward, backward = null_pair(1, 0.3, 1.0)
    assert hockey_stick(ahead, nothing, 0.3, 1.0, 0.4) == pytest.approx(forward.profile(np.array([0.4]))[0], abs=1e-4)
    assert hockey_stick(nothing, ahead, 0.3, 1.0, 0.4) == pytest.approx(backward.profile(np.array([0.4]))[0], abs=1e-4)
