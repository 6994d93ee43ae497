"""A black-box score for each canary: a model, a format and its secrets in; how much better each is known than it should be out.

The coins do not come in: what is scored here is guessed afterwards (`audit`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..accounting.events import check_count
from ..errors import BadInput
from ..models.tokens import encode, first_id
from ..records import escape
from ..screening.canaries import _SLOT, ALPHABETS
from .likelihood import Row, log_likelihoods

SHRINKAGE = (0.1, 1.0, 10.0, 100.0, 1000.0, math.inf)  # of the calibration's weights; inf: the mean alone

Floats = NDArray[np.float64]
Tick = Callable[[int], object]


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
    alphabet, length = _slot(format)
    if not secrets or any(len(secret) != length or set(secret) - set(alphabet) for secret in secrets):
        raise BadInput(
            "the canaries do not fit their format's slot in signs and length; take both from one canaries.json"
        )
    check_count("others", others, low=0, high=10**7)
    values = [*secrets, *_others(alphabet, length, set(secrets), others, seed)]
    rows = [secret_row(tokenizer, format, value) for value in values]
    known = log_likelihoods(model, rows, tick=tick)
    if reference is not None:
        known = known - log_likelihoods(reference, rows, tick=tick)
    tokens = np.array([sum(row.target or ()) for row in rows], dtype=np.float64)
    return _uncommon(known, _features(values, alphabet, tokens), len(secrets))


def secret_row(tokenizer: Any, form: str, secret: str) -> Row:
    """The canary's text, of which those tokens count that hold a part of the secret."""
    before, after = (escape(part) for part in _SLOT.sub("\0", form, count=1).split("\0"))
    ids = encode(tokenizer, before + secret + after)
    begin = _common(ids, encode(tokenizer, before))
    end = len(ids) - _common(ids[:begin:-1], encode(tokenizer, after)[::-1])
    return Row([first_id(tokenizer), *ids], [False, *(begin <= n < end for n in range(len(ids)))])


def _slot(form: str) -> tuple[str, int]:
    slots = _SLOT.findall(form)
    if len(slots) != 1:
        raise BadInput("the canaries' format has one slot, such as {digits:6}; take it from canaries.json")
    kind, length = slots[0]
    return ALPHABETS[kind], int(length)


def _others(alphabet: str, length: int, taken: set[str], number: int, seed: int | None) -> list[str]:
    """Random values that were not planted; as many as there are, if they are few."""
    number = min(number, (len(alphabet) ** length - len(taken)) // 2)
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < number:
        value = "".join(alphabet[n] for n in rng.integers(len(alphabet), size=length))
        if value not in taken:
            found[value] = None
    return list(found)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences begin with together."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _features(values: Sequence[str], alphabet: str, tokens: Floats) -> Floats:
    signs = np.array([[alphabet.index(sign) for sign in value] for value in values])
    places = (signs[:, :, None] == np.arange(len(alphabet))).reshape(len(values), -1)
    return np.column_stack([places, tokens]).astype(np.float64)


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
