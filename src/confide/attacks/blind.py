"""The blind baseline: texts of members and others come in, scores that never saw the model go out.

What it finds is a difference between the two sets of texts, such as dates, topics or lengths. An attack that does no
better than this has shown nothing about the model.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .statistics import Flags, Floats, Split

FEATURES = 2048  # of words and of characters, each
MOST = 2000  # texts that the classifier learns from, of each half
LETTERS = 400  # characters of a text of which the n-grams are taken
_WORD = re.compile(r"\w+|[^\w\s]+")


def blind_scores(members: Sequence[str], others: Sequence[str], halves: Split) -> tuple[Floats, Floats]:
    """A score for every text by a ridge classifier that learned from the other half: hashed words, characters, lengths.

    The scores of a half are its ranks, from 0 to 1, so that the two classifiers' scores compare.
    """
    texts = features([*members, *others])
    second = np.concatenate([halves.members, halves.others])
    goals = np.concatenate([np.ones(len(members)), -np.ones(len(others))])
    scores = np.zeros(len(goals))
    for half in (False, True):
        mine = np.flatnonzero(second == half)
        scores[mine] = _ranks(_ridge(texts, goals, second != half, mine))
    return scores[: len(members)], scores[len(members) :]


def features(texts: Sequence[str]) -> NDArray[np.float32]:
    """One row per text: words, runs of one to three characters, each block of length 1, and how long the text is."""
    table = np.zeros((len(texts), 2 * FEATURES + 4), dtype=np.float32)
    for row, text in enumerate(texts):
        words = _WORD.findall(text.lower())
        for block, found in enumerate((Counter(words), Counter(_runs(text[:LETTERS])))):
            for piece, count in found.items():
                # crc32, since Python's own hash differs from process to process
                table[row, block * FEATURES + zlib.crc32(piece.encode("utf-8", "replace")) % FEATURES] += count
        for block in range(2):
            part = np.sqrt(table[row, block * FEATURES : (block + 1) * FEATURES])
            table[row, block * FEATURES : (block + 1) * FEATURES] = part / max(float(np.linalg.norm(part)), 1.0)
        squeezed = len(zlib.compress(text.encode("utf-8", "replace")))
        table[row, -4:] = np.log1p([len(text), len(words), squeezed, sum(c.isdigit() for c in text)])
    numbers = table[:, -4:]
    table[:, -4:] = (numbers - numbers.mean(0)) / np.maximum(numbers.std(0), 1e-6) / 4
    return table


def _runs(text: str) -> Iterator[str]:
    return (text[at : at + size] for size in (1, 2, 3) for at in range(len(text) - size + 1))


def _ridge(texts: NDArray[np.float32], goals: Floats, learn: Flags, wanted: NDArray[np.int64]) -> Floats:
    """Scores of the texts `wanted` from those to learn from, which are many features and few texts: the dual form."""
    chosen = np.flatnonzero(learn)
    if len(chosen) > MOST:  # evenly over both sides
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST).astype(int)]
    centre = texts[chosen].mean(0)
    known = texts[chosen] - centre
    kernel = (known @ known.T).astype(np.float64)
    weights = np.linalg.solve(kernel + 0.1 * np.eye(len(chosen)), goals[chosen] - goals[chosen].mean())
    return np.asarray((texts[wanted] - centre) @ (known.T @ weights.astype(np.float32)), dtype=np.float64)


def _ranks(scores: Floats) -> Floats:
    """Middle ranks, so that equal scores stay equal."""
    ordered = np.sort(scores)
    return (np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")) / (2 * len(scores))
