"""The certificate: a ledger, a δ and labelled evidence in; every guarantee with its assumptions out, or a refusal.

A certificate is a pure function of those three, which is what makes `verification` possible without data. Where it
would be false it is not made.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

from ..errors import BadInput, ConfideError, Refused
from ..rundir import write_private
from .assumptions import assumptions, not_promised
from .ceilings import Ceilings, chance_exposure
from .curves import ACCOUNTANT, check_delta, gaussian_delta
from .events import FixedSizeGaussian, Noiseless, Selection, SelectiveGaussian, to_plain
from .guarantees import Accounts, AnyCurve, Evidence, guarantees, miss_bounds, one_run_steps, short_up, up
from .ledger import Ledger, canonical
from .missrate import Redraws, Review, public_misses
from .selection import SELECTION_ACCOUNTANT, SelectionCurve
from .setting import Setting, refuse_unsound

VERSION = 1
MOST_KINDS = 100  # of steps in one ledger: a run has one or two, a search one for each of its noises
TRADE_OFF = (1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
EXPOSURE_SPACE = 10**6


def issue(ledger: Ledger, delta: float, evidence: Evidence | None = None) -> dict[str, Any]:
    """The certificate of a run.

    *Formal guarantees.* Every number is an upper bound under the certificate's `assumptions`, for the adjacency,
    sampler and unit that it names. Settings for which no proof exists raise `Refused`, each with its reason.
    """
    check_delta(delta)
    setting = Setting.from_plain(ledger.setting)
    refuse_unsound(setting, delta)
    accounts = Accounts(setting, ledger)
    _refuse_ledger(accounts)
    refuse_evidence(setting, evidence)
    main = accounts.main
    return {
        "confide_certificate": VERSION,
        "subject": setting.subject,
        "method": setting.method,
        "delta": delta,
        "adjacency": {"name": setting.relation, "meaning": setting.neighbours},
        "unit": setting.unit,
        "sampler": setting.sampler,
        "accountant": SELECTION_ACCOUNTANT if isinstance(main, SelectionCurve) else ACCOUNTANT,
        "setting": setting.to_plain(),
        "ledger": {
            "length": ledger.length,
            "head": ledger.head,
            "steps": sum(step.count for step in one_run_steps(tuple(event for _, event in ledger.spent))),
            "charged": [to_plain(event) for event in ledger.charged()],
            **({"model": dict(ledger.model)} if ledger.model else {}),
        },
        "k": {
            "missed": setting.k_missed,
            "detected": setting.k_detected,
            "meaning": "training records that change when one occurrence of a secret is masked",
            "repeats": setting.repeats,
        },
        "order": setting.order,
        "policies": {"policy": setting.policy, "conservative": setting.conservative},
        "evidence": _plain_evidence(evidence),
        "bounds": _bounds(setting, evidence),
        "guarantees": guarantees(accounts, delta, evidence),
        "gdp": _gdp(main, delta),
        "trade_off": _trade_off(main),
        "ceilings": _ceilings(accounts),
        "assumptions": assumptions(setting, evidence, isinstance(main, SelectionCurve)),
        "not_promised": not_promised(setting),
    }


def write(certificate: Mapping[str, Any], path: str | Path) -> None:
    """Write a certificate so that a crash leaves the old file or the new one, never half of one."""
    path = Path(path)
    try:
        write_private(path, json.dumps(certificate, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise ConfideError(
            f"cannot write the certificate {path}: {error.strerror}; make room or make it writable, and run the command again"
        ) from None


def _refuse_ledger(accounts: Accounts) -> None:
    """Raise `Refused` where the ledger's events cannot belong to a run with this setting."""
    setting, ledger = accounts.setting, accounts.ledger
    steps = accounts.steps()
    if not steps:
        raise Refused(
            "no certificate: the ledger holds no step, so that nothing was trained; let the run take its steps first"
        )
    if len(steps) > MOST_KINDS:
        raise Refused(
            f"no certificate: the ledger holds {len(steps):,} kinds of steps, and each takes a curve of its own; at most {MOST_KINDS} are computed"
        )
    if setting.method == "jft" and not set(ledger.phases) <= {"phase1", "phase2"}:
        raise Refused("no certificate: a jft ledger has the phases 'phase1' and 'phase2' only")
    selected = any(isinstance(event, Selection) and event.mean_runs is not None for event in ledger.charged())
    if selected and setting.method not in ("crt", "dpsgd"):
        raise Refused("no certificate: a selection over a random number of runs is proven for crt and dpsgd only")
    for phase in ledger.phases:
        plain = sum(step.count for step in accounts.steps(phase) if isinstance(step, Noiseless))
        if plain and not (accounts.conditional and phase == "phase1"):
            raise Refused(
                f"no certificate: phase {phase!r} took {plain:,} steps without noise on text that may hold secrets; no "
                "finite epsilon holds"
            )
    selective = setting.method == "sdp" and setting.sdp_variant == "paper"
    for step in steps:
        if isinstance(step, Noiseless):
            continue
        if step.sampler != "none" and step.sampler != setting.sampler:
            raise Refused(
                f"no certificate: the data were sampled as {setting.sampler!r}, but the ledger accounts for "
                f"{step.sampler!r} steps; a shuffled or fixed-size loader must not be counted as Poisson sampling"
            )
        if isinstance(step, SelectiveGaussian) != selective:
            raise Refused(
                "no certificate: the paper's variant of sdp updates public tokens on the same batch without noise, "
                "which shows who takes part; its steps, and only its, must be selective ones without amplification"
            )
        if isinstance(step, FixedSizeGaussian) and setting.k_missed > 1:
            raise Refused("no certificate: fixed-size batches are proven for k=1 only; sample with Poisson")
        if isinstance(step, SelectiveGaussian) and step.participation < 1 and setting.k_missed > 1:
            raise Refused("no certificate: public participation at random is proven for k=1 only")
    if setting.method == "jft" and setting.jft_phase1 == "noised" and not accounts.steps("phase1"):
        raise Refused("no certificate: phase 1 is said to be noised, but the ledger holds no step of it")
    if setting.method == "jft" and all(isinstance(step, Noiseless) for step in accounts.steps("phase2")):
        raise Refused("no certificate: the jft ledger holds no noised step of phase 2")


def refuse_evidence(setting: Setting, evidence: Evidence | None) -> None:
    """Raise `Refused` where evidence contradicts the setting or says nothing about the method."""
    if evidence is None:
        return
    if setting.evidence and setting.evidence != evidence_hash(evidence):
        raise Refused(
            "no certificate: the evidence is not the one that the ledger names, which was fixed before training; bring that "
            "one back, or leave the evidence out"
        )
    if setting.weights != "outside":
        raise Refused(
            "no certificate: the evidence counts what becomes public by records, but the initial weights know the unflagged lines of private "
            "ones; leave the evidence out, or start from outside weights"
        )
    if setting.method not in ("crt", "jft"):
        raise Refused(
            f"no certificate: a miss rate says nothing about {setting.method}, which trains on the text unredacted; "
            "leave the evidence out"
        )
    if setting.method != "crt":
        return  # jft's bound uses no δ₂: whether a miss was public is the same to it
    if isinstance(evidence, Redraws) and evidence.missed_public is None and not setting.all_flagged:
        raise Refused(
            "no certificate: the evidence does not say how many missed secrets became public; count them "
            "(missed_public), since the conservative policy does not flag everything by construction"
        )
    if public_misses(evidence) and setting.all_flagged:
        raise Refused(
            "no certificate: the evidence counts secrets that became public, but the setting says that every one is "
            "flagged by construction; one of the two is wrong"
        )


def _bounds(setting: Setting, evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    gamma, delta2 = miss_bounds(setting, evidence)
    scope = "slot" if isinstance(evidence, Redraws) else "corpus"
    method = "Clopper-Pearson" if isinstance(evidence, Redraws) else "always-valid e-process"
    return {"gamma": gamma, "delta2": delta2, "confidence": evidence.confidence, "scope": scope, "method": method}


def _plain_evidence(evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    kind = "redraws" if isinstance(evidence, Redraws) else "review"
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(evidence)))  # tuples as they will be read back
    return {"kind": kind, **plain}


def evidence_hash(evidence: Evidence) -> str:
    """What the setting names evidence by. A review's nonce keeps it from confirming a guess of the counts (guarantees §7)."""
    return hashlib.sha256(canonical(_plain_evidence(evidence)).encode()).hexdigest()


def evidence_from_plain(plain: Mapping[str, Any] | None) -> Evidence | None:
    """The evidence that a certificate carries."""
    if plain is None:
        return None
    values = {name: value for name, value in plain.items() if name != "kind"}
    if plain.get("kind") == "review" and not {"begun", "nonce"} <= values.keys():
        raise BadInput(
            "an older confide wrote this certificate, whose review it counted otherwise; count the review again with `confide "
            "review`, and issue the certificate again"
        )
    try:
        if plain.get("kind") == "redraws":
            return Redraws(**values)
        if plain.get("kind") == "review":
            records = tuple(r if isinstance(r, str) else tuple(r) for r in values.pop("records"))
            return Review(records=records, **values)
    except (TypeError, KeyError):
        raise BadInput(
            "the certificate's evidence cannot be read: it lacks a field or has an unknown one; bring it back from a backup"
        ) from None
    raise BadInput(
        "the certificate's evidence is of an unknown kind; bring it back from a backup, or install a newer confide"
    )


def _gdp(main: AnyCurve, delta: float) -> dict[str, Any]:
    """The smallest μ with δ(ε) ≤ max(δ_μ(ε), δ) for every ε ≥ 0.

    *Formal guarantees.* Both sides fall in ε, so comparing δ at a cell's left end with δ_μ at its right end proves the
    inequality inside the cell too; beyond ε(δ) it holds because δ(ε) ≤ δ.
    """
    top = main.epsilon(delta)
    if not math.isfinite(top) or top > 500:
        return {"mu": None, "delta": delta, "sentence": "No useful Gaussian summary exists at this epsilon."}
    epsilons = np.linspace(0, top, 1025)
    deltas = main.deltas(epsilons)[:-1]

    def excess(mu: float) -> float:
        return float(np.max(deltas - np.maximum(gaussian_delta(epsilons[1:], mu), delta)))

    high = 1.0
    while excess(high) > 0:
        high *= 2
    mu = float(optimize.bisect(excess, 0.0, high, xtol=1e-6)) + 1e-6 if excess(0.0) > 0 else 0.0
    sentence = (
        f"Telling the neighbouring corpora of the main guarantee apart is at most as easy as telling N(0,1) from "
        f"N({up(mu)},1) by one draw, plus {short_up(delta)}."
    )
    return {"mu": mu, "delta": delta, "sentence": sentence}


def _trade_off(main: AnyCurve) -> list[dict[str, float]]:
    tprs = Ceilings(main).tpr(np.array(TRADE_OFF))
    return [{"fpr": fpr, "tpr_at_most": float(tpr)} for fpr, tpr in zip(TRADE_OFF, tprs, strict=True)]


def _ceilings(accounts: Accounts) -> dict[str, Any]:
    ceilings = Ceilings(accounts.main)
    applies_to = "private records whose masking was decided by a fair coin; not to public records or other games"
    if accounts.setting.method == "sdp":
        applies_to = "private tokens of equal mask pattern, chosen by a fair coin; not to tokens that the policy misses"
    elif accounts.conditional:
        applies_to += "; only to secrets that phase 1's redaction caught"
    return {
        "applies_to": applies_to,
        **ceilings.summary(EXPOSURE_SPACE),
        "mean_exposure_chance": chance_exposure(EXPOSURE_SPACE),
        "mean_largest_exposure_of_10": ceilings.exposure_mean(EXPOSURE_SPACE, 10),
        "mean_largest_exposure_of_10_chance": chance_exposure(EXPOSURE_SPACE, 10),
    }
