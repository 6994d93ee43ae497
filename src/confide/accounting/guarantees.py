"""The guarantees of a certificate: curves and evidence in, (ε, δ) with one plain sentence each out."""

from __future__ import annotations

import math
from typing import Any

from .bayesian import corpus_epsilon, jft_epsilon, slot_epsilon
from .curves import Curve
from .ledger import Ledger
from .missrate import Redraws, Review
from .selection import SelectionCurve, any_curve
from .setting import Setting

GROUPS = tuple(range(1, 11))
LARGEST_GROUP = 20

AnyCurve = Curve | SelectionCurve
Evidence = Redraws | Review


def up(value: float) -> str:
    """A number for people: three significant digits, rounded upwards."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:.3g}"


def _guarantee(name: str, epsilon: float, delta: float, k: int, sentence: str, **more: Any) -> dict[str, Any]:
    finite = math.isfinite(epsilon)
    return {
        "name": name,
        "epsilon": epsilon if finite else None,
        "delta": delta,
        "k": k,
        "sentence": sentence,
        **more,
    }


def _odds(epsilon: float, delta: float) -> str:
    factor = f"e^{up(epsilon)}" + (f" = {up(math.exp(epsilon))}" if epsilon < 12 else "")
    return (
        f"no conclusion is more than {factor} times as likely as if <MASK> had stood there, except with probability "
        f"{up(delta)}"
    )


def guarantees(
    setting: Setting,
    ledger: Ledger,
    main: AnyCurve,
    curves: dict[int, AnyCurve],
    delta: float,
    training_delta: float,
    evidence: Evidence | None,
) -> list[dict[str, Any]]:
    if setting.method == "sdp":
        return [_selective(setting, main, delta, training_delta)]
    found = [_per_secret(setting, main, delta, training_delta)]
    if setting.k_detected == 0:
        sentence = (
            "A secret that the policy detects leaves no trace: the screened corpus is the same whether the record held "
            "the secret or <MASK>."
        )
        found.append(_guarantee("detected-secret", 0.0, 0.0, 0, sentence))
    found += _groups(setting, curves, delta, training_delta)
    found.append(_uniform(setting, curves, delta, training_delta))
    if evidence is not None:
        found.append(_bayesian(setting, ledger, main, delta, training_delta, evidence))
    return found


def _whose(setting: Setting) -> str:
    if setting.method == "jft":
        return "every secret"
    if setting.conservative == "everything":
        return "every secret of the private part, which is the whole corpus,"
    if setting.recall_class is not None:
        return f"every secret that a policy flags, which includes by construction: {setting.recall_class}"
    return "every secret that the policy or the conservative policy flags"


def condition(setting: Setting) -> str:
    if setting.method != "jft" or setting.jft_phase1 == "noised":
        return ""
    return (
        " This holds if phase 1's redaction caught the secret and treated the record alike with and without it; for a "
        "secret that phase 1 missed there is no bound, since it was trained on without noise."
    )


def _per_secret(setting: Setting, main: AnyCurve, delta: float, training_delta: float) -> dict[str, Any]:
    epsilon = main.epsilon(training_delta)
    seen = "the selected model" if isinstance(main, SelectionCurve) else "the model and all its intermediate states"
    sentence = (
        f"For {_whose(setting)}, and for whoever sees {seen} and knows everything else in the corpus: "
        f"{_odds(epsilon, delta)}.{condition(setting)}"
    )
    return _guarantee("per-secret", epsilon, delta, setting.k_missed, sentence)


def _groups(setting: Setting, curves: dict[int, AnyCurve], delta: float, training_delta: float) -> list[dict[str, Any]]:
    found = []
    for k in GROUPS:
        if k not in curves:
            continue
        epsilon = curves[k].epsilon(training_delta)
        records = "one record changes" if k == 1 else f"up to {k} records change"
        sentence = f"Where {records} when secrets are masked (repeated or related ones): {_odds(epsilon, delta)}."
        sentence += condition(setting)
        found.append(_guarantee("group", epsilon, delta, k, sentence))
    return found


def _uniform(setting: Setting, curves: dict[int, AnyCurve], delta: float, training_delta: float) -> dict[str, Any]:
    """All secrets at once (Definition 3's special case): only where the group is small enough to say anything."""
    k = setting.private_records
    if k in curves:
        epsilon = curves[k].epsilon(training_delta)
        sentence = f"For all secrets of all {k} private records at once: {_odds(epsilon, delta)}.{condition(setting)}"
        return _guarantee("uniform", epsilon, delta, k, sentence)
    largest = max(curves)
    sentence = (
        f"For all secrets of all {k} private records at once there is no useful bound; the largest group computed is "
        f"{largest}, with epsilon {up(curves[largest].epsilon(training_delta))}."
    )
    return _guarantee("uniform", math.inf, delta, k, sentence)


def _bayesian(
    setting: Setting, ledger: Ledger, main: AnyCurve, delta: float, training_delta: float, evidence: Evidence
) -> dict[str, Any]:
    gamma, delta2 = evidence.bounds(setting.all_flagged)
    more = {"confidence": evidence.confidence}
    sure = f"With confidence {evidence.confidence:.0%} over the labelled sample"
    if setting.order == "dedup-redact" and setting.dedup != "off":
        sentence = (
            "No miss-rate amplification is claimed: in the order dedup before redact a detected secret can still decide "
            "what counts as a duplicate."
        )
        return _guarantee("bayesian", math.inf, delta, setting.k_missed, sentence, **more)
    if setting.method == "jft":
        both = (
            any_curve(ledger.charged(), setting.adjacency, setting.k_missed) if setting.jft_phase1 == "noised" else None
        )
        phase2 = any_curve(ledger.charged("phase2"), setting.adjacency, setting.k_missed)
        total = delta if both is not None else min(delta + gamma, 0.999)
        epsilon = jft_epsilon(phase2, gamma, total - (delta - training_delta), both)
        sentence = (
            f"{sure}, for a secret drawn at random, which phase 1 missed with probability at most {up(gamma)}: "
            f"{_odds(epsilon, total)}. Phase 2 trains on the original text, so that epsilon is never below its own."
        )
        return _guarantee("bayesian", epsilon, total, setting.k_missed, sentence, **more)
    total = delta + delta2  # what both policies miss is public: it is in δ, never in ε
    inner = training_delta + delta2
    if total >= 1:
        return _guarantee("bayesian", math.inf, 1.0, setting.k_missed, f"{sure}, nothing can be said.", **more)
    if isinstance(evidence, Redraws):
        epsilon = slot_epsilon(main, gamma, inner, delta2)
        sentence = (
            f"{sure}, for a secret drawn at random into the labelled slot, which the policy misses there with "
            f"probability at most {up(gamma)}: {_odds(epsilon, total)}."
        )
    else:
        epsilon = corpus_epsilon(main, gamma, inner, delta2)
        sentence = (
            f"{sure}, for a secret occurrence drawn uniformly from the corpus (at most {evidence.cap} a record), whose "
            f"context the attacker may know, and of which the policy misses at most {up(gamma)}: {_odds(epsilon, total)}."
        )
    return _guarantee("bayesian", epsilon, total, setting.k_missed, sentence, **more)


def _selective(setting: Setting, main: AnyCurve, delta: float, training_delta: float) -> dict[str, Any]:
    epsilon = main.epsilon(training_delta)
    sentence = (
        f"(F, epsilon, delta)-selective privacy for two corpora with equal mask pattern and lengths: "
        f"{_odds(epsilon, delta)}. There is no guarantee for tokens that the policy misses. Its neighbours differ from "
        "those of confidentiality: this epsilon must not be compared with a confidentiality epsilon."
    )
    return _guarantee("selective", epsilon, delta, setting.k_missed, sentence)
