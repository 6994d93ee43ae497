"""Attacks on planted secrets: a model and its canaries in; exposure and audits out, beside what the certificate allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..accounting.ceilings import Ceilings
from ..errors import BadInput
from . import audit
from .exposure import exposure, summary
from .gradients import engine_audit
from .options import Options
from .scoring import canary_scores
from .spaces import Space
from .statistics import measure, split
from .subject import Canaries, Subject

CONTRADICTS = 0.01  # an exposure that is less likely than this under the certificate contradicts it


def exposures(subject: Subject, options: Options) -> dict[str, Any]:
    """Exposure of the planted canaries, and what the certificate allows."""
    subject.must_write_text()
    canaries = subject.trained_canaries()
    found = exposure_of(subject.model, subject.tokenizer, canaries, options)
    ceilings, about = subject.ceilings(canaries)
    if ceilings is None:
        return {**found, "ceiling": None, "no_ceiling": about}
    return {**found, **_under(found, canaries, ceilings, about)}


def exposure_of(model: Any, tokenizer: Any, canaries: Canaries, options: Options) -> dict[str, Any]:
    """Exposure of the canaries that are in the training text; of those that a coin took out, as a control."""
    space, tick = Space.of(canaries.format), options.progress("exposure", None)
    present = canaries.present or (True,) * len(canaries.secrets)
    if not any(present):
        raise BadInput("every coin masked its canary, so that none is in the training text; plant more of them")
    found = exposure(model, tokenizer, space, canaries.secrets, seed=options.seed, tick=tick)
    control = [one for one, there in zip(found["canaries"], present, strict=True) if not there]
    if control:
        mine = [one for one, there in zip(found["canaries"], present, strict=True) if there]
        found |= {**summary(mine, space.size), "control": summary(control, space.size)}
    if options.papers:
        own = exposure(model, tokenizer, space, canaries.secrets, normalised=True, seed=options.seed, tick=tick)
        found["papers"] = {name: own[name] for name in ("ranking", "mean", "max", "chance", "canaries")}
    found["copies"] = max(canaries.copies)
    return found


def _under(found: dict[str, Any], canaries: Canaries, ceilings: Ceilings, about: str) -> dict[str, Any]:
    """The ceilings of exposure, and whether what was found could have happened under the certificate.

    *Formal guarantees.* Given all other canaries, one that was drawn at random is uniform over the values that they leave: under
    its mask, its rank is at most 2^-b of the space with probability at most 2^-b·|R|/(|R|−c+1). The certificate's trade-off
    turns that into the largest probability under the secret, and a union bound covers c canaries.
    """
    space, number = found["space"], len(found["canaries"])
    if not canaries.drawn:
        return {"ceiling": None, "no_ceiling": "the canaries were not drawn at random (a fixed secret, or a seed)"}
    largest = max(one.get("interval", [one["exposure"]])[0] for one in found["canaries"])
    share = min(1.0, 2.0**-largest * space / (space - number + 1))
    tail = min(1.0, number * float(ceilings.tpr(share)[0]))
    ceiling = {
        "mean": min(found["bits"], ceilings.exposure_mean(space)),
        "max": min(found["bits"], ceilings.exposure_mean(space, number)),
        "chance_of_max": tail,
        "about": about,
    }
    says = f"the certificate allows an exposure of {largest:.1f} bits with probability {tail:.2g} at most"
    return {"ceiling": ceiling, "contradicts": tail < CONTRADICTS, "says": f"{says}, and it was measured"}


def refuse_shared_coins(subjects: Sequence[Subject]) -> None:
    """Raise unless the runs' canaries were drawn apart: what is pooled must rest on coins of its own."""
    planted = [one.planted for one in subjects]
    if len(subjects) > 1 and any(one is None or not one.drawn for one in planted):
        raise BadInput(
            "--also wants runs whose canaries were drawn at random: without canaries, or with a seed, coins may be shared"
        )
    if len({one.secrets for one in planted if one is not None}) < len(subjects) and len(subjects) > 1:
        raise BadInput("--also wants runs on other screenings: these share their coins, and coins must be independent")


def black_box(subjects: Sequence[Subject], reference: Any, options: Options) -> dict[str, Any]:
    """The one-run audit on coin-flipped canaries; of several runs, if more are named."""
    delta = max((one.certificate["delta"] for one in subjects if one.certificate is not None), default=1e-5)
    runs, promises = [], []
    for one in subjects:
        one.must_write_text()
        canaries = one.trained_canaries()
        if canaries.present is None:
            raise BadInput("no coins were flipped for the canaries: screen with --canaries audit, and train again")
        known = reference if one is subjects[0] else None
        tick = options.progress("audit", None)
        scores = canary_scores(
            one.model, one.tokenizer, canaries.format, canaries.secrets, reference=known, seed=options.seed, tick=tick
        )
        runs.append((scores, canaries.present))
        open_ = canaries.public and one.prepared.plan.public_is_public
        promises.append((None if open_ else one.certificate, canaries.policy, max(canaries.copies)))
    found = audit.pooled(runs, delta, guesses=options.guesses, seed=options.seed)
    # Each run's own promise about its own canaries: together they promise no more than the weakest of them
    weakest = max(promises, key=lambda one: audit.promised(one[0], policy=one[1], copies=one[2]))
    held = audit.against(found, weakest[0], policy=weakest[1], copies=weakest[2])
    ceilings, about = subjects[0].ceilings(subjects[0].trained_canaries())
    chosen = "by the number of canaries" if options.guesses is None else "by the user"
    return {**held, "guesses_fixed": chosen, "coins": _coins(runs[0], ceilings, about, options)}


def _coins(
    run: tuple[NDArray[np.float64], Sequence[bool]], ceilings: Ceilings | None, about: str, options: Options
) -> dict[str, Any]:
    """Membership of coin-flipped canaries: the one game in which the certificate bounds every attack."""
    scores, present = run[0], np.array(run[1])
    mine, theirs = scores[present], scores[~present]
    rng = np.random.default_rng(options.seed)
    found = measure(mine, theirs, split(len(mine), len(theirs), rng), rng)
    if ceilings is None:
        return {**found, "ceiling": None, "no_ceiling": about}
    rates = np.geomspace(1e-3, 1, 61)
    curve = [{"fpr": float(p), "tpr_at_most": float(t)} for p, t in zip(rates, ceilings.tpr(rates), strict=True)]
    at = {f"tpr_at_{p}": float(ceilings.tpr(p)[0]) for p in (0.01, 0.001)}
    return {**found, "ceiling": {"accuracy": ceilings.accuracy(), **at, "curve": curve, "about": about}}


def claimed(
    model: Any,
    tokenizer: Any,
    canaries: Canaries,
    reference: Any,
    claim: tuple[float, float] | None,
    adjacency: str,
    options: Options,
) -> dict[str, Any]:
    """The one-run audit of a model that confide did not train, held against the (ε, δ) that is claimed for one record of it."""
    tick = options.progress("audit", None)
    scores = canary_scores(
        model, tokenizer, canaries.format, canaries.secrets, reference=reference, seed=options.seed, tick=tick
    )
    delta = 1e-5
    if claim is not None:
        delta = claim[1] if adjacency == "substitution" else audit.substituted(*claim)[1]
    found = audit.one_run(scores, canaries.present or (), delta, guesses=options.guesses, seed=options.seed)
    return audit.against_claim(found, claim, adjacency=adjacency, copies=max(canaries.copies))


def white_box(subject: Subject, options: Options) -> dict[str, Any]:
    """The engine itself, at the rate, the noise and the number of steps of this run's last phase with noise."""
    plan = subject.prepared.plan
    if subject.certificate is None or not plan.private:
        raise BadInput(
            "nothing was trained with noise, so that there is no engine to audit; leave --white-box out, or attack a run of crt, dpsgd or jft"
        )
    if any(phase.whole_segments for phase in plan.phases):
        raise BadInput("the paper's variant of sdp makes steps of its own, which gradient canaries do not cover")
    private = list(plan.private.values())[-1]
    tick = options.progress("audit of the engine", None)
    return engine_audit(private, subject.certificate["delta"], clipping=plan.options.clipping, tick=tick)
