"""Audits: a score for each coin-flipped canary in; the ε that the training cannot be below, beside its certificate, out.

A canary's coin decided whether its record held the secret or `<MASK>`. Whoever guesses the coins of a confidential model
well has refuted it (Steinke et al. 2023). A score may be anything that is computed from the model and the canaries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ..accounting.audit import one_run_lower_bound, one_run_p_value, one_run_reach
from ..accounting.events import check_count, check_number
from ..accounting.guarantees import down, many, up
from ..accounting.missrate import check_beta
from ..accounting.setting import Setting
from ..errors import BadInput, Refused
from .statistics import Floats, auc, clopper_pearson

FEWEST = 10  # canaries: with fewer, no guesser can show an ε worth the name
UNFAIR = 1e-9  # coins that fall like this are none

Coins = Sequence[bool] | NDArray[np.bool_]
Scores = tuple[ArrayLike, Coins]


class _Run(NamedTuple):
    scores: Floats
    present: NDArray[np.bool_]


def default_guesses(canaries: int) -> int:
    """How many coins are guessed, by the number of canaries alone: about a tenth, plus 2√m, an even number.

    Few guesses are surer ones, and are all that shows a leak of a few canaries; but even if all are right, r guesses show no
    more than about log(r/3). Simulated over canaries that all leak (d′ from 0.25 to 6) or of which 5 to 40 % leak at all,
    m from 20 to 10,000 and δ of 1e-5 and 8e-5, this gives on average three quarters of the bound that the best number in
    hindsight would; all m guesses give 40 %.
    """
    check_count("canaries", canaries)
    return max(2, 2 * min(canaries // 2, round(0.05 * canaries + math.sqrt(canaries))))


def enough_guesses(canaries: int, delta: float, epsilon: float, beta: float = 0.05) -> int:
    """The smallest even number of guesses, no fewer than the default, that could show `epsilon` and a half more.

    If none could, the number with the largest reach; at most m−3√m, since half of the guesses say "present", and the coins
    rarely fall half and half. It depends on nothing but public numbers, and is thus fixed beforehand.
    """
    first = default_guesses(canaries)
    most = max(first, 2 * int((canaries - 3 * math.sqrt(canaries)) / 2))
    choices = sorted({2 * round(float(n) / 2) for n in np.geomspace(first, most, 12)})
    reaches = {n: _reach(canaries, delta, beta, n) for n in choices}
    return next((n for n in choices if reaches[n] >= epsilon + 0.5), max(choices, key=lambda n: reaches[n]))


def one_run(
    scores: ArrayLike,
    present: Coins,
    delta: float,
    *,
    guesses: int | None = None,
    beta: float = 0.05,
    seed: int | None = None,
) -> dict[str, Any]:
    """The lower bound on ε from one score per canary: the higher, the more likely its secret was present.

    The half of the guesses says "present" of the highest scores, the other half "masked" of the lowest; ties are broken at
    random. Beside the bound stand the largest bounds that a perfect guesser could have shown: an audit that cannot reach the
    certificate cannot contradict it either.

    *Formal guarantees.* If the scores are a function of the model, the canaries and independent coins of their own, and the
    training is (ε, δ)-confidential for a changed canary, then `lower_bound` exceeds ε with probability at most β. The
    number of guesses must not depend on the scores or on `present`; the default depends on the number of canaries alone.
    """
    return pooled([(scores, present)], delta, guesses=guesses, beta=beta, seed=seed)


def pooled(
    runs: Sequence[Scores],
    delta: float,
    *,
    guesses: int | None = None,
    beta: float = 0.05,
    seed: int | None = None,
) -> dict[str, Any]:
    """The same from several training runs whose canaries had independent coins; `guesses` counts those of all runs.

    Scores of different models do not compare: each run's canaries are ranked among themselves, and its share of the
    guesses goes by its number of canaries.

    *Formal guarantees.* All runs together are one mechanism of Σm coins. A coin changes a record of its own run only, and
    the other runs' outputs do not depend on it; so if each run is (ε, δ)-confidential, the joint output is (ε, δ)-
    indistinguishable under a flip of any one coin, which is all that the bound of one run asks for. ε does not grow with the
    number of runs, since no record is in two of them with the same coin. The runs must not have seen each other's models.
    """
    check_beta(beta)
    check_number("delta", delta, 0, 1, low_open=False)
    if not runs:
        raise BadInput("an audit needs the scores of at least one run")
    checked = [_check(scores, present) for scores, present in runs]
    sizes = [len(run.scores) for run in checked]
    total = sum(sizes)
    made = default_guesses(total) if guesses is None else guesses
    check_count("guesses", made, high=total)
    rng = np.random.default_rng(seed)
    shares = _shares(made, sizes)
    right = sum(_right(run, share, rng) for run, share in zip(checked, shares, strict=True))
    return {
        "runs": len(checked),
        "canaries": total,
        "present": int(sum(int(run.present.sum()) for run in checked)),
        "guesses": made,
        "right": right,
        "accuracy": right / made,
        "accuracy_interval": list(clopper_pearson(right, made, 1 - beta)),
        "auc": float(
            np.average([auc(run.scores[run.present], run.scores[~run.present]) for run in checked], weights=sizes)
        ),
        "chance": 0.5,
        "delta": delta,
        "confidence": 1 - beta,
        "lower_bound": _lower_bound(total, made, right, delta, beta),
        "reach": _reach(total, delta, beta, made),
        "reach_of_any": _reach(total, delta, beta, None),
        "p_value_of_chance": _p_value(total, made, right, 0.0, delta),
    }


def against(
    found: Mapping[str, Any], certificate: Mapping[str, Any] | None, *, policy: str = "missed", copies: int = 1
) -> dict[str, Any]:
    """An audit's result beside the certificate's ε: `certified`, `contradicts`, and a sentence that says what that means.

    `policy` is what the policy was made to do with the canaries, `copies` how often each is among the records. Where the
    certificate promises nothing for such canaries, `certified` is None, and the sentence says why.

    *Formal guarantees.* The ε is the one for as many records as one coin changes (`Setting.k_repeated`). A sound run is
    contradicted with probability at most β of the audit. The audit's δ may be larger than the certificate's, never smaller,
    since (ε, δ) implies (ε, δ′) only for δ′ ≥ δ.
    """
    adjacency = "" if certificate is None else Setting.from_plain(certificate["setting"]).relation
    return _held(found, *_promise(certificate, policy, copies), "the certificate promises", adjacency)


def against_claim(
    found: Mapping[str, Any], claim: tuple[float, float] | None, *, adjacency: str = "substitution", copies: int = 1
) -> dict[str, Any]:
    """The same beside an (ε, δ) that somebody claims for one record, of a model that confide did not train.

    *Formal guarantees.* A coin substitutes a record. Under a claim for an added or removed record a substitution is two steps,
    hence (2ε, (1+e^ε)δ) is all that the claim says about it.
    """
    check_count("copies", copies)
    if claim is None:
        return _held(found, None, "no epsilon is claimed for this model", "")
    epsilon, delta = claim
    check_number("the claimed epsilon", epsilon, 0, math.inf, low_open=False)
    check_number("the claimed delta", delta, 0, 1, low_open=False)
    if copies > 1:
        return _held(found, None, f"the claim is about one record, and each canary stands in {copies}", "")
    if adjacency == "substitution":
        return _held(found, {"epsilon": epsilon, "delta": delta, "k": 1}, "", "the claim is")
    whole = substituted(epsilon, delta)
    return _held(found, {"epsilon": whole[0], "delta": whole[1], "k": 1}, "", "for a substituted record the claim is")


def substituted(epsilon: float, delta: float) -> tuple[float, float]:
    """What (ε, δ) for an added or removed record says about a substituted one."""
    return 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)


def promised(certificate: Mapping[str, Any] | None, *, policy: str = "missed", copies: int = 1) -> float:
    """The ε that `against` would take from a certificate; infinite where it promises nothing."""
    promise, _ = _promise(certificate, policy, copies)
    return math.inf if promise is None else float(promise["epsilon"])


def _held(
    found: Mapping[str, Any], promise: Mapping[str, Any] | None, why: str, words: str, adjacency: str = "substitution"
) -> dict[str, Any]:
    bound = found["lower_bound"]
    shown = f"With confidence {100 * found['confidence']:.10g}%, the audit shows an epsilon of at least {down(bound)}"
    if promise is None:
        says = f"{shown}. There is nothing to hold it against: {why}."
        return {**found, "certified": None, "contradicts": False, "says": says}
    certified, delta = float(promise["epsilon"]), float(promise["delta"])
    if found["delta"] < delta:
        raise BadInput(
            f"the audit was made at delta {found['delta']:g}, below the promised {delta:g}, where the epsilon means nothing; "
            f"audit at delta {delta:g}"
        )
    return {
        **found,
        "certified": certified,
        "records": int(promise["k"]),
        "adjacency": adjacency,
        "p_value_of_certificate": _p_value(
            found["canaries"], found["guesses"], found["right"], min(certified, 700.0), found["delta"]
        ),
        "contradicts": bool(bound > certified),
        "says": f"{shown}. {verdict(bound, certified, found['reach'], scope(promise['k'], adjacency, delta) + words)}",
    }


def scope(records: int, adjacency: str, delta: float) -> str:
    """What a promised ε is about, as the beginning of a sentence."""
    return f"for {many(records, 'changed record')} ({adjacency}) at delta {delta:.3g} "


def verdict(bound: float, certified: float, reach: float, promise: str) -> str:
    """What a lower bound says about a promised ε, and what it could have said."""
    if bound > certified:
        return (
            f"That contradicts it: {promise} at most {up(certified)}. The training did not do what it was accounted for, or the "
            "coins were known to the guesser."
        )
    if reach <= certified:
        return (
            f"It agrees with it, but could not have done otherwise: {promise} at most {up(certified)}, and a perfect guesser "
            f"shows {down(reach)} with so many guesses; audit with more canaries, or a run with a smaller epsilon."
        )
    return f"It agrees with it: {promise} at most {up(certified)}; a perfect guesser would have shown {down(reach)}."


def _check(scores: ArrayLike, present: Coins | None) -> _Run:
    try:
        found = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput("the scores of an audit are numbers, one for each canary") from None
    if present is None:
        raise BadInput("these canaries had no coins, so that there is nothing to guess; plant some with coins=yes")
    coins = np.asarray(present)
    if found.ndim != 1 or coins.ndim != 1 or len(found) != len(coins):
        raise BadInput("an audit needs one score and one coin for each canary, in the same order")
    if not np.isin(coins, (False, True)).all():
        raise BadInput("a canary's coin says whether its secret was present: true or false")
    if len(found) < FEWEST:
        raise BadInput(f"{len(found)} canaries show next to nothing: plant at least {FEWEST}, better 1,000")
    if not np.isfinite(found).all():
        raise BadInput("a canary's score is not a finite number: the model gives it no probability, or is broken")
    heads = int(coins.sum())
    # Coins that all fell alike are possible, but giving such an audit up costs 2^(1-m) of its power and none of its validity.
    if heads in (0, len(coins)) or 2 * stats.binom.cdf(min(heads, len(coins) - heads), len(coins), 0.5) < UNFAIR:
        raise Refused(
            f"{heads} of {len(coins)} canaries are present: these were no fair coins, on which the bound rests; plant canaries "
            "with coins=yes"
        )
    return _Run(found, coins.astype(np.bool_))


def _shares(guesses: int, sizes: Sequence[int]) -> list[int]:
    """Guesses for each run, by size; what rounding leaves goes to the first runs."""
    total = sum(sizes)
    shares = [guesses * size // total for size in sizes]
    for n in range(guesses - sum(shares)):
        shares[n] += 1  # there is room, since a share is below its run's size unless everything is guessed
    return shares


def _right(run: _Run, guesses: int, rng: np.random.Generator) -> int:
    order = np.lexsort((rng.random(len(run.scores)), run.scores))
    high = (guesses + 1) // 2
    low = guesses - high
    return int(run.present[order[len(order) - high :]].sum()) + int((~run.present[order[:low]]).sum())


@lru_cache(maxsize=4096)
def _p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    return one_run_p_value(canaries, guesses, right, epsilon, delta)


@lru_cache(maxsize=4096)
def _lower_bound(canaries: int, guesses: int, right: int, delta: float, beta: float) -> float:
    return one_run_lower_bound(canaries, guesses, right, delta, beta)


@lru_cache(maxsize=1024)
def _reach(canaries: int, delta: float, beta: float, guesses: int | None) -> float:
    return one_run_reach(canaries, delta, beta, guesses)


def _promise(certificate: Mapping[str, Any] | None, policy: str, copies: int) -> tuple[Mapping[str, Any] | None, str]:
    """The guarantee that covers a canary's coin, or why there is none."""
    check_count("copies", copies)
    if certificate is None:
        return None, "the run has no certificate"
    setting = certificate.get("setting", {})
    method = certificate.get("method")
    if method == "sdp":
        return None, (
            "selective privacy compares records of equal mask pattern, and promises nothing for tokens that the policy "
            "misses; a canary's coin changes the pattern, or a token that was missed"
        )
    if method == "jft" and setting.get("jft_phase1") != "noised" and policy != "found":
        return None, (
            "phase 1 trains without noise on what its redaction misses, and these canaries were missed or may have been; "
            "its certificate covers caught secrets only"
        )
    if method == "crt" and policy == "as-is" and setting.get("conservative") != "everything":
        return None, (
            "a canary that both policies miss is public, where the certificate promises nothing; plant with policy=missed"
        )
    guarantees = certificate["guarantees"]
    if policy == "found":
        detected = next((g for g in guarantees if g["name"] == "detected-secret"), None)
        if detected is not None:
            return detected, ""
    records = Setting.from_plain(setting).k_repeated(copies)
    promise = next((g for g in guarantees if g["name"] == "group" and g["k"] == records), None)
    if promise is None or promise["epsilon"] is None:
        changed = "one changed record" if records == 1 else f"{records} changed records"
        return None, f"the certificate holds no finite epsilon for {changed}, which is what one coin changes"
    return promise, ""
