"""Upper bounds of the miss rate: labelled evidence in, γ̄ (missed by π) and δ̄₂ (missed by π and π_c) out.

Two kinds of evidence, two bounds. Independent redraws of the secret into one slot are coin flips: Clopper–Pearson.
Records that a person reviewed are clustered, and people stop when they like the number: an e-process, which is valid
at every moment and for every dependence inside a record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from ..errors import BadInput
from .events import check_count, check_number
from .setting import flags_all

SKIPPED = "skipped"


@dataclass(frozen=True)
class Reviewed:
    """One reviewed record: confirmed secrets, and how many of them were missed (spans that are no secrets count not)."""

    secrets: int
    missed: int

    def __post_init__(self) -> None:
        check_count("secrets", self.secrets, low=0)
        check_count("missed", self.missed, low=0)
        if self.missed > self.secrets:
            raise BadInput(f"{self.missed} missed of {self.secrets} secrets: misses cannot exceed the secrets")


def check_beta(beta: float) -> None:
    """Refuse an error probability outside (0, 0.5]."""
    check_number("one minus confidence", beta, 0, 0.5)


def redraw_bound(missed: int, labels: int, beta: float) -> float:
    """Clopper–Pearson upper bound of a miss rate from independent redraws.

    *Formal guarantees.* If `missed` is Binomial(`labels`, γ), the returned value is at least γ with probability at
    least 1−β. It is 1 when everything was missed. It does not hold for clustered labels or optional stopping.
    """
    check_beta(beta)
    check_count("labels", labels)
    check_count("missed", missed, low=0)
    if missed > labels:
        raise BadInput(f"{missed} missed of {labels} labels: misses cannot exceed the labels")
    return 1.0 if missed == labels else float(stats.beta.ppf(1 - beta, missed + 1, labels - missed))


def labels_needed(rate: float, beta: float) -> int:
    """How many labels without a single miss bound the miss rate by `rate` (independent redraws).

    *Formal guarantees.* The smallest n with `redraw_bound(0, n, beta)` ≤ rate.
    """
    check_beta(beta)
    check_number("miss rate", rate, 1e-6, 1, low_open=False)
    if rate == 1:
        return 1
    needed = math.ceil(math.log(beta) / math.log1p(-rate))
    while needed > 1 and redraw_bound(0, needed - 1, beta) <= rate:  # a logarithm that fell on the wrong side
        needed -= 1
    while redraw_bound(0, needed, beta) > rate:
        needed += 1
    return needed


def review_bound(records: Iterable[Reviewed | str], cap: int, beta: float) -> float:
    """Always-valid upper bound of the miss rate from records drawn uniformly *with replacement* and reviewed.

    *Formal guarantees.* Let γ = E[missed]/E[secrets] of one draw, counting at most `cap` secrets a record. For
    γ₀ ≤ γ, ∏(1+λ(γ₀·secrets − missed)) with 0 ≤ λ ≤ 1/cap is a non-negative supermartingale that starts at 1, and so
    is its mixture over λ. By Ville's inequality it ever exceeds 1/β with probability at most β, so that the smallest
    γ₀ it rejects is above γ with probability at least 1−β *whenever the reviewer stops*: review until the number
    looks good, stop when you like. Secrets may be missed in clusters and in any dependence on context. A skipped
    record counts as `cap` secrets, all missed. Records without secrets change nothing.

    >>> round(review_bound([Reviewed(1, 0)] * 200, cap=1, beta=0.05), 3) < 0.04
    True
    """
    check_beta(beta)
    check_count("cap", cap)
    rows = []
    for number, record in enumerate(records, start=1):
        if record == SKIPPED:
            record = Reviewed(cap, cap)
        if not isinstance(record, Reviewed):
            raise BadInput(f"review {number} must be a Reviewed record or 'skipped'")
        if record.secrets > cap:
            raise BadInput(
                f"review {number} counts {record.secrets} secrets, more than the cap of {cap} announced beforehand; "
                f"count {cap} of them, chosen at random"
            )
        rows.append((record.secrets, record.missed))
    return bound_of_kinds(Counter(rows), cap, beta)


def bound_of_kinds(kinds: Mapping[tuple[int, int], int], cap: int, beta: float) -> float:
    """`review_bound` from (secrets, missed) and how many records there are of each; skipped ones are (cap, cap).

    *Formal guarantees.* Those of `review_bound`: a product over records depends on how many there are of each kind alone.
    """
    if not kinds:
        return 1.0
    ordered = sorted(kinds)
    secrets, missed = np.array(ordered, dtype=float).T
    times = np.array([kinds[kind] for kind in ordered])
    # A fixed mixture over λ: half of it log-spaced for small rates, half linear for large ones.
    lambdas = np.concatenate([np.geomspace(1e-3, 1, 40), np.linspace(0.025, 1, 40)]) / cap

    def evidence(rate: float) -> float:
        with np.errstate(divide="ignore"):
            wealth = times @ np.log1p(lambdas * (rate * secrets - missed)[:, None])
        return float(np.logaddexp.reduce(wealth)) - math.log(len(lambdas) / beta)

    # The evidence against a rate rises with the rate, so that the rejected rates are an interval up to 1.
    if evidence(1.0) < 0:
        return 1.0
    return min(1.0, float(optimize.brentq(evidence, 0.0, 1.0, xtol=1e-12)) + 1e-9)


def share_of_error(begun: int) -> float:
    """The share of β that the n-th review of a corpus may spend: nine tenths for the first, the rest for all others.

    *Formal guarantees.* The shares of all reviews that are ever begun add up to 1. So whoever starts over as often as they
    like, and keeps the review that they like best, is misled with probability at most β. (Dividing β by the number of
    reviews would not do: when that number is decided on the way, 1 + 1/2 + 1/3 + … has no bound.)

    >>> share_of_error(1), round(sum(share_of_error(n) for n in range(1, 10_000)), 4)
    (0.9, 1.0)
    """
    check_count("reviews begun", begun)
    return 0.9 if begun == 1 else 0.1 / (begun * (begun - 1))


@dataclass(frozen=True)
class Redraws:
    """Evidence for one slot: the secret redrawn into the same record `labels` times and screened twice each time."""

    labels: int
    missed: int
    missed_public: int | None = None  # None: not counted, which only a structurally complete policy allows
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check_confidence(self.confidence)
        redraw_bound(self.missed, self.labels, 1 - self.confidence)
        if self.missed_public is not None:
            check_count("missed_public", self.missed_public, low=0)
            if self.missed_public > self.missed:
                raise BadInput("missed_public counts misses that became public: it cannot exceed missed")

    def bounds(self, all_flagged: bool) -> tuple[float, float]:
        """γ̄ and δ̄₂, jointly valid at the confidence.

        *Formal guarantees.* Each bound holds with probability 1−β/2, hence both with 1−β; where δ₂ is 0 by construction
        (`all_flagged`), γ̄ alone gets the whole β.
        """
        beta = 1 - self.confidence
        if all_flagged:
            return redraw_bound(self.missed, self.labels, beta), 0.0
        gamma = redraw_bound(self.missed, self.labels, beta / 2)
        if self.missed_public is None:
            return gamma, gamma
        return gamma, min(gamma, redraw_bound(self.missed_public, self.labels, beta / 2))


@dataclass(frozen=True)
class Review:
    """Evidence for the corpus: records drawn uniformly with replacement, as (secrets, missed, missed and public).

    A record that the reviewer skipped is "skipped". `cap` is the announced largest count of secrets a record. `begun`: the
    how-manieth review of the corpus this is. `nonce`: drawn at random, so that a hash of the evidence confirms no guess.
    """

    records: tuple[tuple[int, int, int] | str, ...]
    cap: int
    confidence: float = 0.95
    begun: int = 1
    nonce: str = ""

    def __post_init__(self) -> None:
        _check_confidence(self.confidence)
        check_count("cap", self.cap)
        check_count("reviews begun", self.begun)
        if not isinstance(self.nonce, str):
            raise BadInput("a review's nonce must be text")
        if not isinstance(self.records, tuple):
            raise BadInput("a review must be a tuple of records")
        for number, record in enumerate(self.records, start=1):
            if record == SKIPPED:
                continue
            if not isinstance(record, tuple) or len(record) != 3:
                raise BadInput(f"review {number} must be [secrets, missed, missed and public] or 'skipped'")
            Reviewed(record[0], record[1])
            check_count("missed and public", record[2], low=0, high=record[1])

    def bounds(self, all_flagged: bool) -> tuple[float, float]:
        """γ̄ and δ̄₂ for the corpus.

        *Formal guarantees.* As for `Redraws`, with β split in the same way, but under clustering and whenever the
        reviewer stops and however often reviews were begun anew; both e-processes run on the same records, and the split
        covers any dependence between them.
        """
        beta = (1 - self.confidence) * share_of_error(self.begun)
        missed = [r if isinstance(r, str) else Reviewed(r[0], r[1]) for r in self.records]
        if all_flagged:
            return review_bound(missed, self.cap, beta), 0.0
        public = [r if isinstance(r, str) else Reviewed(r[0], r[2]) for r in self.records]
        gamma = review_bound(missed, self.cap, beta / 2)
        return gamma, min(gamma, review_bound(public, self.cap, beta / 2))


def public_misses(evidence: Redraws | Review) -> int:
    """How many missed secrets the evidence counts that became public."""
    if isinstance(evidence, Redraws):
        return evidence.missed_public or 0
    return sum(int(record[2]) for record in evidence.records if record != SKIPPED)


def _check_confidence(confidence: float) -> None:
    check_number("confidence", confidence, 0.5, 1, low_open=False)
    if confidence > 1 - 1e-12:
        raise BadInput("confidence must be below 1: no finite sample gives certainty")


def states_its_counts(stated: Mapping[str, Any], evidence: Review, facts: Mapping[str, Any]) -> bool:
    """Whether what a review.json states (`bound`, `bound_public`, `contradicted`) is what its records give."""
    contradicted = flags_all(facts) and public_misses(evidence) > 0
    bounds = evidence.bounds(flags_all(facts) and not contradicted)
    for name, value in zip(("bound", "bound_public"), bounds, strict=True):
        said = stated.get(name)
        if not isinstance(said, int | float) or abs(said) > 1e300 or not math.isclose(said, value, rel_tol=1e-6):
            return False
    return stated.get("contradicted") is contradicted
