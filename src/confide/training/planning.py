"""The plan of a run: a screened corpus and options in; sizes, rates, steps, noise and every guarantee out, before training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..accounting import (
    Ledger,
    Noiseless,
    PoissonGaussian,
    Review,
    SelectiveGaussian,
    Setting,
    curve,
    issue,
    most_steps,
    smallest_noise,
    smallest_noise_of,
)
from ..accounting.calibration import MAX_NOISE
from ..accounting.certificate import evidence_hash, refuse_evidence
from ..accounting.events import Event, with_count
from ..accounting.guarantees import up
from ..accounting.ledger import GENESIS, Entry
from ..accounting.papers import sdp_epsilon
from ..dp import Plan
from ..errors import BadInput, Refused
from ..models.tokens import BUILT_IN
from ..screening import Screened
from ..sources import sources
from . import byhand
from .corpus import Source
from .evidence import read_review
from .holdout import split_rows
from .methods import METHODS
from .options import Options
from .phases import Phase
from .provenance import refuse_own_text, refuse_own_weights

DEFAULT_SHARE, MOST_DEFAULT = 16, 1024  # of the private records, in an expected batch


@dataclass(frozen=True)
class TrainingPlan:
    """Everything about a run that is fixed before it sees a record; public but for the folder it reads."""

    screened: Screened
    options: Options
    phases: tuple[Phase, ...]
    private: dict[str, Plan]  # by phase
    setting: Setting
    planned: tuple[Entry, ...]  # for the ledger
    sizes: dict[str, int]
    notes: tuple[str, ...]
    evidence: Review | None = None  # of a person's review, for the certificate

    def records(self, source: Source | None) -> int:
        return 0 if source is None else sum(self.sizes[part] for part in source.parts)

    def rows(self, source: Source) -> NDArray[np.int64]:
        """The rows of a source that are trained on: those of dialogues that are not held out for validation."""
        share = 0.0 if self.options.validation else self.options.validation_share
        offset, found = 0, []
        for part in source.parts:
            found.append(split_rows(self.screened, part, share)[0] + offset)
            offset += self.screened.manifest[part]
        return np.concatenate(found)

    @property
    def public_is_public(self) -> bool:
        """Whether the guarantees leave the public part as it is: not where every record counts as private."""
        # What people screened by hand is not what the policies flagged: the public part may hold secrets that they caught.
        return not (
            self.options.method == "dpsgd" or (self.options.method == "jft" and self.options.phase1 != "direct")
        )

    def public_steps(self, phase: Phase) -> int:
        """Steps of an epoch on text without noise."""
        records = self.sizes["by hand"] if phase.by_hand else self.records(phase.public)
        return math.ceil(records / self.options.batch_size)

    def private_steps(self, phase: Phase) -> int:
        return self.private[phase.name].steps if phase.name in self.private else 0

    @property
    def certifiable(self) -> bool:
        """Whether something is trained with noise."""
        return any(isinstance(event, PoissonGaussian | SelectiveGaussian) for _, event in self.planned)

    def certificate(self) -> dict[str, Any] | None:
        """The certificate that the finished run will have; None for methods that cannot have one."""
        if not self.certifiable:
            return None
        assert self.options.delta is not None
        return issue(
            Ledger(self.setting.to_plain(), self.planned, self.planned, 1, GENESIS), self.options.delta, self.evidence
        )

    def summary(self, measured: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The plan in public numbers, with what two steps of each kind cost if they were measured."""
        certificate = self.certificate()
        found: dict[str, Any] = {
            "method": self.options.method,
            "model": self.options.model,
            "unit": self.setting.unit,
            "records": self.sizes["public"] + self.sizes["private"],
            "public": self.sizes["public"] if self.public_is_public else 0,
            "private": self.sizes["private"] + (0 if self.public_is_public else self.sizes["public"]),
            "validation": self.sizes["validation"],
            "phases": [self._phase(phase) for phase in self.phases],
            "notes": list(self.notes),
            "cost": None if measured is None else dict(measured),
        }
        if certificate is not None:
            main = certificate["guarantees"][0]
            found |= {name: main[name] for name in ("epsilon", "delta", "k")}
            found |= {name: certificate[name] for name in ("sampler", "accountant", "guarantees", "assumptions")}
            found |= {"adjacency": certificate["adjacency"]["name"], "certificate": certificate}
        if any(phase.whole_segments for phase in self.phases):
            found["published_epsilon"] = self._published()
        return found

    def _published(self) -> dict[str, Any]:
        """The ε that the S-DP paper would state for this run, under its own accounting; never in a certificate."""
        own = next(iter(self.private.values()))
        assert self.options.delta is not None
        return {
            "epsilon": sdp_epsilon(own.sampling_rate, own.noise_multiplier, own.steps, self.options.delta),
            "delta": self.options.delta,
            "accounting": "add/remove, RDP, Poisson claimed, states not counted; not a bound",
        }

    def _phase(self, phase: Phase) -> dict[str, Any]:
        found = {"name": phase.name, "epochs": phase.epochs, "public_steps": self.public_steps(phase) * phase.epochs}
        if phase.name in self.private:
            plan = self.private[phase.name]
            found |= {
                "private_records": plan.records,
                "steps": plan.steps,
                "sampling_rate": plan.sampling_rate,
                "expected_batch": plan.expected_batch,
                "noise_multiplier": plan.noise_multiplier,
                "clip_norm": plan.clip_norm,
            }
        return found

    def epsilon(self, steps: dict[str, int]) -> float | None:
        """ε of the main guarantee after so many private steps of each phase; for telemetry, of public numbers only."""
        if not self.options.private or self.options.delta is None:
            return None
        if self.options.method == "jft" and self.options.phase1 != "noised":
            return None  # a secret that phase 1 was shown without noise has no epsilon
        noisy = {
            phase: event for phase, event in self.planned if isinstance(event, PoissonGaussian | SelectiveGaussian)
        }
        spent: list[Event] = [
            with_count(event, steps[phase]) for phase, event in noisy.items() if phase != "tuning" and steps.get(phase)
        ]
        spent += [event for phase, event in noisy.items() if phase == "tuning"]
        if not spent:
            return 0.0
        delta = self.options.delta - self.setting.bloom_cost(self.setting.k_missed)
        return curve(spent, self.setting.adjacency, self.setting.k_missed).epsilon(delta)

    @property
    def claim(self) -> str:
        """What the ε of telemetry is about."""
        setting = self.setting
        return f"{setting.relation}, k={setting.k_missed}, unit {setting.unit}, {setting.sampler} sampling"


def plan(
    screened: Screened | str | Path,
    options: Options | None = None,
    *,
    noises: Mapping[str, float] | None = None,
    **choices: Any,
) -> TrainingPlan:
    """Plan a run: find the noise for a target ε, or state the ε of a given noise. `noises`: as found before, by phase.

    *Formal guarantees.* Rates, steps and noise depend on the options and on the numbers of public and private records, which
    are the same for neighbouring corpora (guarantees §3), and on nothing else. The plan's ε is that of its certificate.
    """
    screened = screened if isinstance(screened, Screened) else Screened.open(screened)
    options = options or Options.from_plain(choices)
    phases = METHODS[options.method](options)
    refuse_own_text(screened, options)
    refuse_own_weights(screened, options)
    sizes, notes = _sizes(screened, options)
    _check_parts(screened, options, sizes)
    setting = _setting(screened, options, sizes, phases)
    evidence = None if options.review is None else read_review(options.review, screened)
    if evidence is not None:
        setting = replace(setting, evidence=evidence_hash(evidence))  # in the ledger before the first step
    made = TrainingPlan(screened, options, phases, {}, setting, (), sizes, tuple(notes), evidence)
    private = _private_plans(made, noises or {})
    made = replace(made, private=private, planned=_planned(made, private))
    if made.certifiable:
        refuse_evidence(setting, evidence)  # now, not when the ledger is spent
    return made


def _sizes(screened: Screened, options: Options) -> tuple[dict[str, int], list[str]]:
    """Records to train on by part, and what the user should know about them."""
    manifest = screened.manifest
    share = 0.0 if options.validation else options.validation_share
    train, held = split_rows(screened, "public", share)
    sizes = {"public": len(train), "private": len(split_rows(screened, "private", share)[0]), "validation": len(held)}
    sizes["by hand"] = len(byhand.read(options.screened_by_hand)) if options.screened_by_hand else 0
    notes = []
    if not manifest["private"] and options.method in ("crt", "sdp", "jft"):
        notes.append(
            "the policies flagged nothing: there is no private record, nothing is trained with noise and there is nothing to "
            "certify; is the policy the right one?"
        )
    if not manifest["public"] and options.method == "crt":
        notes.append(
            "every record is private (the policies flagged everything): crt is then DP-SGD on the redacted text; a conservative "
            "policy such as allowlist makes records public that cannot hold a secret"
        )
    if options.delta is not None and options.delta * (sizes["public"] + sizes["private"]) >= 1:
        notes.append(
            f"delta {options.delta:g} is not below one over the number of records: at such a delta even a model that publishes a record now and "
            "then keeps its epsilon; choose one well below"
        )
    if not len(held) and not options.validation:
        notes.append("no public record is left for validation: name validation text with --validation")
    return sizes, notes


def _check_parts(screened: Screened, options: Options, sizes: dict[str, int]) -> None:
    if options.validation is not None:
        sources([options.validation])  # raises before a run is begun, if nothing is there
    for path in [*screened.files("public"), *screened.files("private")] if options.task == "classify" else ():
        if "label" not in pq.read_schema(path).names:
            raise BadInput(
                f"{screened.folder} holds no labels to classify by; screen the corpus again with --label-field"
            )
    if not sizes["public"] + sizes["private"]:
        raise BadInput(
            f"{screened.folder} holds no record to train on; screen a larger corpus, or hold out less with --validation-share"
        )
    if (options.keep == "best" or options.schedule == "anneal") and not (sizes["validation"] or options.validation):
        raise BadInput(
            "--keep best and --schedule anneal go by validation, and no public record is left for it; name outside text with --validation"
        )
    if options.method in ("dpsgd", "jft") and screened.manifest["public_dedup"] != "off":
        raise Refused(
            f"{options.method} counts every record as private, but duplicates were removed from the public part: masking one secret "
            "there may bring others back; screen again with --public-dedup off"
        )
    facts = screened.manifest["certificate"]
    if (
        options.method in ("sdp", "anonymized")
        and screened.manifest["order"] == "dedup-redact"
        and facts["dedup"] != "off"
    ):
        raise Refused(
            f"in the order dedup-redact the policy never saw the records that are duplicates: {options.method} would take all of their "
            "text for public; screen again with --order redact-dedup"
        )
    if options.method == "jft" and facts["units_per_record"] == "several" and facts["conservative"] != "everything":
        raise Refused(
            "jft counts every record as private, but masking a secret in a public record would bring all its units into the dedup of "
            "the private part; screen again without --dedup-unit, or with --conservative everything"
        )
    if options.method == "jft" and options.phase1 != "noised" and facts["group_records"] > 1:
        raise Refused(
            "the policy reads whole documents: a secret that it caught may decide how other records are redacted, which phase 1 "
            "trains on without noise; screen with --context record, or use --phase1 noised"
        )
    if options.method == "sdp" and not sizes["private"]:
        raise BadInput("sdp needs private tokens, but the policies flagged nothing; screen with another policy")


def _name(model: str) -> str:
    """A model as a certificate may name it: a folder by its last part, since certificates leave the house."""
    return Path(model).resolve().name if Path(model).exists() else model


def _setting(screened: Screened, options: Options, sizes: dict[str, int], phases: tuple[Phase, ...]) -> Setting:
    """What the certificate will assume."""
    parts = next((phase.private.parts for phase in reversed(phases) if phase.private), ("public", "private"))
    choices: dict[str, Any] = {
        "method": options.method,
        "clipping_norm": options.clip_norm,
        "private_records": max(1, sum(sizes[part] for part in parts)),
        "mask_records": options.mask_records if options.method == "crt" else "train",
        "sdp_variant": options.variant,
        "vocabulary": vocabulary_kind(options),
        "jft_phase1": options.phase1,
        "weights": options.weights_from,
        "subject": f"{options.method} of {_name(options.model)} on {screened.folder.name}",
    }
    if options.method == "sdp" and options.variant == "paper":
        choices["sampler"] = "public"
    if options.method in ("dpsgd", "sdp"):
        # These train on the text as it was read: neither dedup nor a policy that reads whole documents changes more records.
        choices |= {
            "dedup": "off",
            "units_per_record": "one",
            "changed_units": 1,
            "group_records": 1,
            "bloom_delta": 0.0,
        }
    return screened.setting(**choices)


def vocabulary_kind(options: Options) -> str:
    """Where the vocabulary will come from."""
    if options.vocabulary_from is not None:
        return "external"
    built_in = options.model.partition(":")[0] in BUILT_IN
    return "public" if built_in and options.tokenizer is None else "pretrained"


def _private_plans(made: TrainingPlan, noises: Mapping[str, float]) -> dict[str, Plan]:
    found: dict[str, Plan] = {}
    for phase in made.phases:
        records = made.records(phase.private)
        if not records:
            continue
        rate, steps = rate_and_steps(made, phase, records)
        noise = noises.get(phase.name) or phase.noise or made.options.noise
        if noise is None:
            earlier: list[Event] = [plan.event for plan in found.values()]
            noise = _noise(made, phase, rate, steps, earlier)
        found[phase.name] = Plan(records, rate, steps, noise, made.options.clip_norm)
    return found


def rate_and_steps(made: TrainingPlan, phase: Phase, records: int) -> tuple[float, int]:
    """The sampling rate and the number of private steps of a phase: `ratio` expected epochs for each epoch."""
    options = made.options
    batch = options.private_batch_size or min(MOST_DEFAULT, max(1, records // DEFAULT_SHARE))
    if batch > records:
        raise BadInput(f"--private-batch-size {batch:,} is more than the {records:,} private records; make it smaller")
    if phase.whole_segments:  # every record once in each epoch, in public batches
        return batch / records, phase.epochs * math.ceil(records / batch)
    ratio = options.ratio if phase.public is not None else 1.0
    return batch / records, max(1, math.ceil(phase.epochs * ratio * records / batch))


def _noise(made: TrainingPlan, phase: Phase, rate: float, steps: int, earlier: list[Event]) -> float:
    """The smallest noise that keeps the target over all phases and earlier runs; else the nearest possible targets."""
    options, setting = made.options, made.setting
    assert options.epsilon is not None
    assert options.delta is not None
    delta = options.delta - setting.bloom_cost(setting.k_missed)
    if delta <= 0:
        raise Refused(
            f"the Bloom filter's false positives alone may cost delta {setting.bloom_delta:g}, of {options.delta:g} in all; "
            "allow a larger --delta, or screen again with --dedup exact"
        )
    events = _events(made, phase, rate, steps)
    if made.setting.method == "jft" and made.setting.jft_phase1 != "noised":
        earlier = []
    try:
        if len(events(1.0)) == 1 and isinstance(events(1.0)[0], PoissonGaussian) and not earlier:
            total = events(1.0)[0].count  # type: ignore[union-attr]
            return smallest_noise(
                rate, total, options.epsilon, delta, adjacency=setting.adjacency, k=setting.k_missed
            ).noise_multiplier
        return smallest_noise_of(
            lambda noise: [*earlier, *events(noise)],
            options.epsilon, delta, adjacency=setting.adjacency, k=setting.k_missed, guess=4.0,
        ).noise_multiplier  # fmt: skip
    except BadInput as error:
        raise Refused(f"{error}. {_nearest(made, lambda noise: [*earlier, *events(noise)], delta, rate)}") from None


def _events(made: TrainingPlan, phase: Phase, rate: float, steps: int) -> Callable[[float], list[Event]]:
    """What a phase releases at a noise multiplier, the earlier runs of the same plan included."""
    options = made.options
    runs = 1 + options.tuning_runs
    if options.method == "sdp" and options.variant == "paper":
        state = options.state_noise
        return lambda noise: [SelectiveGaussian(noise, options.segments, 2, state or noise, 1.0, phase.epochs * runs)]
    return lambda noise: [PoissonGaussian(rate, noise, steps * runs)]


def _nearest(made: TrainingPlan, events: Callable[[float], list[Event]], delta: float, rate: float) -> str:
    """The closest targets that can be met."""
    setting, options = made.setting, made.options
    hints = []
    try:
        least = curve(events(MAX_NOISE), setting.adjacency, setting.k_missed).epsilon(delta)
        if math.isfinite(least):
            hints.append(f"with these steps the smallest possible epsilon is {up(least)}")
    except BadInput:
        pass
    try:
        assert options.epsilon is not None
        alone = events(20.0)
        fits = 0
        # Beside other phases, or releases of another kind, no number of steps may fit
        if len(alone) == 1 and isinstance(alone[0], PoissonGaussian):
            fits = most_steps(rate, 20.0, options.epsilon, delta, adjacency=setting.adjacency, k=setting.k_missed)
        if fits:
            hints.append(f"at noise 20 as many as {fits:,} steps fit into epsilon {options.epsilon:g}")
    except BadInput:
        pass
    return ("Possible are: " + "; ".join(hints) + ".") if hints else "Allow a larger --delta."


def _planned(made: TrainingPlan, private: dict[str, Plan]) -> tuple[Entry, ...]:
    """What the ledger's first line plans."""
    options = made.options
    planned: list[Entry] = []
    for phase in made.phases:
        if phase.secrets_in_public and made.public_steps(phase):
            planned.append((phase.name, Noiseless(phase.epochs * made.public_steps(phase))))
        if phase.name not in private:
            continue
        plan = private[phase.name]
        events = _events(made, phase, plan.sampling_rate, plan.steps)(plan.noise_multiplier)
        per_run = [with_count(event, event.count // (1 + options.tuning_runs)) for event in events]  # type: ignore
        planned += [(phase.name, event) for event in per_run]
        if options.tuning_runs:
            planned += [("tuning", with_count(event, event.count * options.tuning_runs)) for event in per_run]
    return tuple(planned)
