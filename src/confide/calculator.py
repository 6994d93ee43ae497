"""The calculator behind `confide epsilon`: options in, one plain answer out (a dictionary, ready for JSON).

Give all but one of noise, steps and batch size beside a target ε, and the missing one is found. An option that the
question does not use is refused, never ignored.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from .accounting import (
    Ceilings,
    Curve,
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
from .accounting.calibration import MAX_TARGET, enough
from .accounting.curves import ACCOUNTANT, check_delta
from .accounting.events import MAX_STEPS, MIN_RATE, NOISE, check_count, check_number
from .accounting.guarantees import finite
from .accounting.pairs import ADJACENCIES
from .errors import BadInput

SAMPLERS = ("poisson", "fixed-size", "shuffled")
GROUPS = (1, 2, 3, 5, 10)


@dataclass(frozen=True)
class Question:
    """What the user asks; None is what they leave out. The names are those of the options."""

    delta: float | None = None
    sampling_rate: float | None = None
    noise: float | None = None
    steps: int | None = None
    records: int | None = None
    batch_size: int | None = None
    epochs: float | None = None
    epsilon: float | None = None
    bayesian_epsilon: float | None = None
    misses: tuple[int, int] | None = None
    public_misses: tuple[int, int] | None = None
    labels_for: float | None = None
    confidence: float = 0.95
    group: int = 1
    adjacency: str = "substitution"
    sampler: str = "poisson"

    def __post_init__(self) -> None:
        if self.adjacency not in ADJACENCIES:
            raise BadInput(f"--adjacency must be one of {', '.join(ADJACENCIES)}, got {self.adjacency!r}")
        if self.sampler not in SAMPLERS:
            raise BadInput(f"--sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}")
        check_number("--confidence", self.confidence, 0.5, 0.999999, low_open=False)
        check_count("--group", self.group, high=200)
        for name, low, high in (("epochs", 0, 1e7), ("epsilon", 0, MAX_TARGET), ("bayesian_epsilon", 0, MAX_TARGET)):
            if getattr(self, name) is not None:
                check_number(_option(name), getattr(self, name), low, high)
        if self.sampling_rate is not None:
            check_number("--sampling-rate", self.sampling_rate, MIN_RATE, 1, low_open=False)
        if self.noise is not None:
            check_number("--noise", self.noise, *NOISE, low_open=False)
        if self.labels_for is not None:
            check_number("--labels-for", self.labels_for, 1e-6, 1, low_open=False)
        for name, most in (("steps", MAX_STEPS), ("records", MAX_STEPS), ("batch_size", self.records or MAX_STEPS)):
            if getattr(self, name) is not None:
                check_count(_option(name), getattr(self, name), high=most)

    def forbid(self, why: str, *names: str) -> None:
        """Refuse options that this question does not use."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise BadInput(f"{_option(name)} has no use here: {why}")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def answer(question: Question) -> dict[str, Any]:
    """The answer to a question, with the adjacency, sampler, unit and accountant under which it holds."""
    if question.labels_for is not None:
        names = [f.name for f in dataclasses.fields(question) if f.name not in ("labels_for", "confidence")]
        question.forbid("--labels-for takes --confidence only", *names)
        labels = labels_needed(question.labels_for, 1 - question.confidence)
        return {"delta2": question.labels_for, "confidence": question.confidence, "labels": labels}
    if question.delta is None:
        raise BadInput("--delta is missing: what is added to every probability, such as 1e-5")
    check_delta(question.delta)
    if question.misses is None:
        question.forbid("it needs --misses", "public_misses", "bayesian_epsilon")
    elif question.adjacency == "add-remove":
        raise BadInput("--misses is about masked secrets, which add-remove does not cover; leave out --adjacency")
    if question.epsilon is not None and question.bayesian_epsilon is not None:
        raise BadInput("give --epsilon or --bayesian-epsilon, not both")
    if question.sampler != "poisson":
        question.forbid("targets are met for Poisson sampling only", "epsilon", "bayesian_epsilon")
    if question.epsilon is None and question.bayesian_epsilon is None:
        return _forward(question, question.delta)
    return _solve(question, question.delta)


def _evidence(question: Question) -> Redraws | None:
    if question.misses is None:
        return None
    missed, labels = question.misses
    check_count("--misses (labelled)", labels)
    check_count("--misses (missed)", missed, low=0, high=labels)
    public: int | None = None
    if question.public_misses is not None:
        public, public_labels = question.public_misses
        if public_labels != labels:
            raise BadInput("--misses and --public-misses must count the same labels: both are M/N with one N")
        check_count("--public-misses (missed)", public, low=0, high=missed)
    return Redraws(labels, missed, public, question.confidence)


def _rate(question: Question) -> float:
    if question.sampling_rate is not None:
        question.forbid("the sampling rate is given", "batch_size", "records")
        return question.sampling_rate
    if question.batch_size is None or question.records is None:
        raise BadInput("the sampling rate is missing: give --sampling-rate, or --batch-size and --records")
    return question.batch_size / question.records


def _steps(question: Question, rate: float) -> int:
    if question.steps is not None:
        question.forbid("the steps are given", "epochs")
        return question.steps
    if question.epochs is None:
        raise BadInput("the number of steps is missing: give --steps or --epochs (or --epsilon to find the most steps)")
    return max(1, math.ceil(question.epochs / rate - 1e-9))


def _event(question: Question) -> PoissonGaussian | FixedSizeGaussian | ShuffledGaussian:
    if question.noise is None:
        raise BadInput("the noise is missing: give --noise, or --epsilon to find the smallest one")
    if question.sampler == "shuffled":
        why = "each record takes part once an epoch, whatever the batch size"
        question.forbid(why, "sampling_rate", "steps", "records", "batch_size")
        if question.epochs is None or question.epochs != int(question.epochs):
            raise BadInput("shuffled epochs need --epochs, a whole number: each record takes part once an epoch")
        return ShuffledGaussian(question.noise, int(question.epochs))
    rate = _rate(question)
    kind = PoissonGaussian if question.sampler == "poisson" else FixedSizeGaussian
    return kind(rate, question.noise, _steps(question, rate))


def _facts(question: Question) -> dict[str, Any]:
    return {
        "delta": question.delta,
        "adjacency": question.adjacency,
        "adjacency_meaning": ADJACENCIES[question.adjacency],
        "sampler": question.sampler,
        "accountant": ACCOUNTANT,
        "unit": "record",
        "k": question.group,
    }


def _forward(question: Question, delta: float) -> dict[str, Any]:
    event, evidence = _event(question), _evidence(question)
    main = curve([event], question.adjacency, question.group)
    found = {"epsilon": finite(main.epsilon(delta)), **_facts(question), "noise_multiplier": question.noise}
    if isinstance(event, ShuffledGaussian):
        found["epochs"] = event.epochs
    else:
        found |= {"sampling_rate": event.sampling_rate, "steps": event.count}
        found["epochs"] = event.count * event.sampling_rate
    if question.sampler != "fixed-size" and question.adjacency != "add-remove":
        ks = sorted({*GROUPS, question.group})
        curves = [(k, curve([event], question.adjacency, k)) for k in ks]
        found["groups"] = [{"k": k, "epsilon": finite(c.epsilon(delta))} for k, c in curves]
    found["ceilings"] = Ceilings(main).summary(10**6)
    if question.adjacency == "substitution" and question.sampler == "poisson" and question.group == 1:
        found["add_remove_epsilon"] = finite(curve([event], "add-remove").epsilon(delta))
    if evidence is not None:
        found["bayesian"] = _bayesian(question, delta, main, evidence)
    return found


def _bayesian(question: Question, delta: float, main: Curve, evidence: Redraws) -> dict[str, Any]:
    gamma, delta2 = evidence.bounds(question.public_misses is None)
    total = delta + delta2
    if total >= 1:
        raise BadInput(f"--public-misses bound what becomes public by {delta2:.3g} only: no delta below 1 remains")
    return {
        "gamma": gamma,
        "delta2": delta2,
        "confidence": evidence.confidence,
        "delta": total,
        "slot_epsilon": finite(slot_epsilon(main, gamma, total, delta2)),
        "corpus_epsilon": finite(corpus_epsilon(main, gamma, total, delta2)),
    }


def _solve(question: Question, delta: float) -> dict[str, Any]:
    """Find what was left out: the noise, the steps or the batch size."""
    timed = question.steps is not None or question.epochs is not None
    if question.noise is not None and timed:
        raise BadInput("nothing is left to find: give a target with all but one of --noise, --steps and --batch-size")
    if question.noise is None and question.sampling_rate is None and question.batch_size is None:
        return _batch_sizes(question, delta)
    rate = _rate(question)
    same = {"adjacency": question.adjacency, "k": question.group}
    more: dict[str, Any] = {"target_epsilon": question.epsilon or question.bayesian_epsilon}
    more["target"] = "epsilon" if question.epsilon is not None else "bayesian slot epsilon"
    if question.noise is not None:
        question.forbid("steps are found for a plain target only", "bayesian_epsilon")
        assert question.epsilon is not None
        steps = most_steps(rate, question.noise, question.epsilon, delta, **same)  # type: ignore[arg-type]
        if steps == 0:
            raise BadInput(
                f"not a single step fits: with noise {question.noise:g} one step already costs more than epsilon "
                f"{question.epsilon:g}; allow a larger --epsilon or --delta, or take more --noise"
            )
        solved = dataclasses.replace(question, steps=steps)
    else:
        steps = _steps(question, rate)
        if question.epsilon is not None:
            found = smallest_noise(rate, steps, question.epsilon, delta, **same)  # type: ignore[arg-type]
        else:
            evidence = _evidence(question)
            assert evidence is not None
            assert question.bayesian_epsilon is not None
            gamma, delta2 = evidence.bounds(question.public_misses is None)
            found = smallest_noise(
                rate,
                steps,
                question.bayesian_epsilon,
                delta + delta2,
                gamma=gamma,
                delta2=delta2,
                **same,  # type: ignore[arg-type]
            )
        solved = dataclasses.replace(question, noise=found.noise_multiplier)
        more["curve_evaluations"] = found.evaluations
    return _forward(solved, delta) | more


def _batch_sizes(question: Question, delta: float) -> dict[str, Any]:
    if question.records is None or question.epochs is None or question.epsilon is None:
        raise BadInput("to find the noise give --sampling-rate (or --batch-size and --records) and --steps or --epochs; "
                       "to choose a batch size give --records, --epochs and --epsilon")  # fmt: skip
    question.forbid("batch sizes are compared at equal --epochs", "steps", "misses", "public_misses")
    choices = batch_choices(
        question.records, question.epochs, question.epsilon, delta, adjacency=question.adjacency, k=question.group
    )
    return {
        **_facts(question),
        "target_epsilon": question.epsilon,
        "batch_size": enough(choices).batch_size,
        "least_noise_per_step": min(choices, key=lambda choice: choice.noise_per_step).batch_size,
        "choices": [dataclasses.asdict(choice) for choice in choices],
    }
