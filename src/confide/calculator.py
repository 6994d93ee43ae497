"""The calculator behind `confide epsilon`: options in, one plain answer out (a dictionary, ready for JSON).

Give all but one of noise, steps and ε, and the missing one is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .accounting import (
    Ceilings,
    Curve,
    Event,
    FixedSizeGaussian,
    PoissonGaussian,
    Redraws,
    ShuffledGaussian,
    batch_choices,
    corpus_epsilon,
    curve,
    labels_needed,
    most_steps,
    slot_epsilon,
    smallest_noise,
)
from .accounting.curves import check_delta
from .accounting.events import check_count, check_number
from .accounting.pairs import ADJACENCIES
from .errors import BadInput

SAMPLERS = ("poisson", "fixed-size", "shuffled")
ACCOUNTANT = "privacy loss distribution of the dominating pair, pessimistic, both directions (dp_accounting)"


@dataclass(frozen=True)
class Question:
    """What the user asks; None is what they leave out."""

    delta: float
    sampling_rate: float | None = None
    noise: float | None = None
    steps: int | None = None
    records: int | None = None
    batch_size: int | None = None
    epochs: float | None = None
    epsilon: float | None = None
    group: int = 1
    adjacency: str = "substitution"
    sampler: str = "poisson"
    misses: tuple[int, int] | None = None
    public_misses: tuple[int, int] | None = None
    confidence: float = 0.95


def labels_answer(rate: float, confidence: float) -> dict[str, Any]:
    """How many labels without a miss bound the miss rate."""
    return {"delta2": rate, "confidence": confidence, "labels": labels_needed(rate, 1 - confidence)}


def answer(question: Question) -> dict[str, Any]:
    """The answer to a question, with the adjacency, sampler, unit and accountant under which it holds."""
    check_delta(question.delta)
    if question.adjacency not in ADJACENCIES:
        raise BadInput(f"--adjacency must be one of {', '.join(ADJACENCIES)}, got {question.adjacency!r}")
    if question.sampler not in SAMPLERS:
        raise BadInput(f"--sampler must be one of {', '.join(SAMPLERS)}, got {question.sampler!r}")
    check_count("--group", question.group, high=200)
    evidence = _evidence(question)
    if question.epsilon is None:
        return _forward(question, _events(question), evidence)
    return _solve(question, evidence)


def _evidence(question: Question) -> Redraws | None:
    if question.misses is None:
        if question.public_misses is not None:
            raise BadInput("--public-misses needs --misses as well")
        return None
    missed, labels = question.misses
    public = 0
    if question.public_misses is not None:
        public, public_labels = question.public_misses
        if public_labels != labels:
            raise BadInput("--misses and --public-misses must count the same labels: both are M/N with one N")
    return Redraws(labels, missed, public, question.confidence)


def _rate(question: Question) -> float:
    if question.sampling_rate is not None:
        if question.batch_size is not None:
            raise BadInput("give --sampling-rate, or --batch-size and --records, not both")
        return question.sampling_rate
    if question.batch_size is None or question.records is None:
        raise BadInput("the sampling rate is missing: give --sampling-rate, or --batch-size and --records")
    check_count("--records", question.records, high=10**15)
    check_count("--batch-size", question.batch_size, high=question.records)
    return question.batch_size / question.records


def _steps(question: Question, rate: float) -> int:
    if question.steps is not None:
        if question.epochs is not None:
            raise BadInput("give --steps or --epochs, not both")
        return question.steps
    if question.epochs is None:
        raise BadInput("the number of steps is missing: give --steps or --epochs (or --epsilon to find the most steps)")
    check_number("--epochs", question.epochs, 0, 1e7)
    check_number("sampling_rate", rate, 0, 1)
    return math.ceil(question.epochs / rate - 1e-9)


def _events(question: Question) -> Event:
    if question.noise is None:
        raise BadInput("the noise is missing: give --noise, or --epsilon to find the smallest one")
    if question.sampler == "shuffled":
        if question.epochs is None or question.epochs != int(question.epochs):
            raise BadInput("shuffled epochs need --epochs, a whole number: each record takes part once an epoch")
        return ShuffledGaussian(question.noise, int(question.epochs))
    rate = _rate(question)
    kind = PoissonGaussian if question.sampler == "poisson" else FixedSizeGaussian
    return kind(rate, question.noise, _steps(question, rate))


def _forward(question: Question, event: Event, evidence: Redraws | None) -> dict[str, Any]:
    main = curve([event], question.adjacency, question.group)
    epsilon = main.epsilon(question.delta)
    found: dict[str, Any] = {
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": question.delta,
        "adjacency": question.adjacency,
        "adjacency_meaning": ADJACENCIES[question.adjacency],
        "sampler": question.sampler,
        "accountant": ACCOUNTANT,
        "unit": "record",
        "k": question.group,
        "noise_multiplier": question.noise,
    }
    if isinstance(event, PoissonGaussian | FixedSizeGaussian):
        found |= {
            "sampling_rate": event.sampling_rate,
            "steps": event.count,
            "epochs": event.count * event.sampling_rate,
        }
    else:
        found["epochs"] = question.epochs
    if question.sampler == "poisson" and question.adjacency != "add-remove":
        ks = sorted({1, 2, 3, 5, 10, question.group})
        found["groups"] = [{"k": k, "epsilon": _at(event, question, k)} for k in ks]
    found["ceilings"] = _ceilings(main)
    if question.adjacency == "substitution" and question.sampler == "poisson" and question.group == 1:
        naive = curve([event], "add-remove").epsilon(question.delta)
        found["add_remove_epsilon"] = naive
    if evidence is not None:
        found["bayesian"] = _bayesian(question, main, evidence)
    return found


def _at(event: Event, question: Question, k: int) -> float | None:
    epsilon = curve([event], question.adjacency, k).epsilon(question.delta)
    return epsilon if math.isfinite(epsilon) else None


def _ceilings(main: Curve) -> dict[str, float]:
    ceilings = Ceilings(main)
    return {
        "balanced_accuracy": ceilings.accuracy(),
        "tpr_at_fpr_0.01": float(ceilings.tpr(0.01)[0]),
        "mean_exposure_of_a_million": ceilings.exposure_mean(10**6),
    }


def _bayesian(question: Question, main: Curve, evidence: Redraws) -> dict[str, Any]:
    gamma, delta2 = evidence.bounds(question.public_misses is None)
    delta = question.delta + delta2
    slot, corpus = slot_epsilon(main, gamma, delta, delta2), corpus_epsilon(main, gamma, delta, delta2)
    return {
        "gamma": gamma,
        "delta2": delta2,
        "confidence": evidence.confidence,
        "delta": delta,
        "slot_epsilon": slot if math.isfinite(slot) else None,
        "corpus_epsilon": corpus if math.isfinite(corpus) else None,
    }


def _solve(question: Question, evidence: Redraws | None) -> dict[str, Any]:
    """Find what was left out: the noise, the steps or the batch size."""
    assert question.epsilon is not None
    if question.sampler != "poisson":
        raise BadInput("--epsilon finds noise or steps for Poisson sampling only")
    if question.noise is not None and (question.steps is not None or question.epochs is not None):
        raise BadInput("nothing is left to find: give --epsilon with all but one of --noise, --steps and batch size")
    if question.noise is None and question.sampling_rate is None and question.batch_size is None:
        return _batch_sizes(question)
    rate = _rate(question)
    if question.noise is None:
        steps = _steps(question, rate)
        bayesian: dict[str, float] = {}
        delta = question.delta
        if evidence is not None:
            gamma, delta2 = evidence.bounds(question.public_misses is None)
            bayesian, delta = {"gamma": gamma, "delta2": delta2}, question.delta + delta2
        found = smallest_noise(
            rate, steps, question.epsilon, delta, adjacency=question.adjacency, k=question.group, **bayesian
        )
        noise = found.noise_multiplier
        more: dict[str, Any] = {"curve_evaluations": found.evaluations}
    else:
        noise = question.noise
        steps = most_steps(
            rate, noise, question.epsilon, question.delta, adjacency=question.adjacency, k=question.group
        )
        if steps == 0:
            raise BadInput(
                f"not a single step fits: with noise {noise:g} one step already costs more than epsilon {question.epsilon:g}"
            )
        more = {}
    solved = Question(
        delta=question.delta,
        sampling_rate=rate,
        noise=noise,
        steps=steps,
        group=question.group,
        adjacency=question.adjacency,
        misses=question.misses,
        public_misses=question.public_misses,
        confidence=question.confidence,
    )
    return _forward(solved, _events(solved), evidence) | {"target_epsilon": question.epsilon} | more


def _batch_sizes(question: Question) -> dict[str, Any]:
    if question.records is None or question.epochs is None:
        raise BadInput("to choose a batch size give --records, --epochs and --epsilon")
    choices = batch_choices(
        question.records, question.epochs, question.epsilon or 0.0, question.delta, k=question.group
    )
    best = min(choices, key=lambda choice: choice.noise_per_step)
    return {
        "target_epsilon": question.epsilon,
        "delta": question.delta,
        "adjacency": "substitution",
        "sampler": "poisson",
        "unit": "record",
        "accountant": ACCOUNTANT,
        "k": question.group,
        "batch_size": best.batch_size,
        "choices": [vars(choice) for choice in choices],
    }
