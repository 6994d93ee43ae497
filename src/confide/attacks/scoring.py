"""A black-box score for each canary: a model, a format and its secrets in; how much better each is known than it should be out.

The coins do not come in: what is scored here is guessed afterwards (`audit`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..accounting.events import check_count
from .likelihood import Tick, log_likelihoods
from .spaces import Signs, Space, tokenise
from .spaces import rows as rows_of
from .statistics import Floats

SHRINKAGE = (0.1, 1.0, 10.0, 100.0, 1000.0, math.inf)  # of the calibration's weights; inf: the mean alone


def canary_scores(
    model: Any,
    tokenizer: Any,
    format: str,  # noqa: A002
    secrets: Sequence[str],
    *,
    reference: Any | None = None,
    others: int = 256,
    seed: int | None = None,
    tick: Tick = lambda done: None,
) -> Floats:
    """One score a canary, for a guesser who can ask the model for probabilities: how much better it knows the secret than it should.

    That is the log-likelihood of the secret in its place, minus the `reference` model's if there is one, minus what a value of
    its kind has by habit: the log-likelihoods of `others` random values of the format, fitted by which sign stands where and
    the number of tokens (ridge regression, shrunk as far as cross-validation likes; 0 leaves the step out).

    *Formal guarantees.* The coins are no argument. The audit's bound holds for scores that are any function of model,
    canaries and fresh randomness: calibration makes guesses better or worse, never invalid. A reference must not have seen
    these coins either: the pretrained or the public-only model, not one that trained on the same canaries.
    """
    space = Space.of(format)
    check_count("others", others, low=0, high=10**7)
    values = space.signs(secrets)
    values = np.concatenate([values, _others(space, values, others, seed)])
    tokens = tokenise(tokenizer, space, values)
    rows = rows_of(tokens)
    known = log_likelihoods(model, rows, tick=tick)
    if reference is not None:
        known = known - log_likelihoods(reference, rows, tick=tick)
    places = (values[:, :, None] == np.arange(len(space.alphabet))).reshape(len(values), -1)
    features = np.column_stack([places, tokens.lengths]).astype(np.float64)
    return _uncommon(known, features, len(secrets))


def _others(space: Space, taken: Signs, number: int, seed: int | None) -> Signs:
    """Random values that were not planted; half of what is left, if that is less."""
    planted = {tuple(one) for one in taken.tolist()}
    number = min(number, (space.size - len(planted)) // 2)
    rng = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < number:
        value = tuple(rng.integers(len(space.alphabet), size=space.length).tolist())
        if value not in planted:
            found[value] = None
    return np.array(list(found), dtype=np.uint8).reshape(-1, space.length)


def _uncommon(known: Floats, features: Floats, own: int) -> Floats:
    """What the first `own` values have beyond a ridge regression of all the others, at its best shrinkage."""
    target, train = known[own:], features[own:]
    if len(target) < 2 or not np.isfinite(target).all():
        return known[:own]
    mean, centre = target.mean(), train.mean(0)
    left, spectrum, right = np.linalg.svd(train - centre, full_matrices=False)
    along = left.T @ (target - mean)
    best = (math.inf, np.zeros(len(spectrum)))
    for shrinkage in SHRINKAGE:
        kept = np.zeros(len(spectrum)) if math.isinf(shrinkage) else spectrum**2 / (spectrum**2 + shrinkage)
        left_over = float(np.sum((target - mean - left @ (kept * along)) ** 2))
        error = left_over / (1 - (1 + kept.sum()) / (len(target) + 1)) ** 2  # generalised cross-validation
        if error < best[0]:
            best = (error, np.divide(kept, spectrum, out=np.zeros(len(spectrum)), where=spectrum > 1e-9))
    weights = right.T @ (best[1] * along)
    result: Floats = known[:own] - mean - (features[:own] - centre) @ weights
    return result
