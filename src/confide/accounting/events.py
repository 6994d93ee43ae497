"""DP events as plain data: what a training run did to the private records, and nothing about the records.

An event says what was released and how often. It says nothing about the neighbours that are compared: that is the
adjacency, an argument of the curve. Noise multipliers are relative to the clipping norm C of one record's
contribution, so that substituting one record moves a release by up to 2C and nulling it by up to C.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import BadInput

MAX_STEPS = 10**8
MIN_RATE = 1e-9
NOISE = (0.01, 1e6)  # below, nothing is promised; above, nothing is learned


def check_number(name: str, value: Any, low: float, high: float, *, low_open: bool = True) -> None:
    """Refuse a value that is not a finite number in (low, high] (or [low, high])."""
    try:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        number = False
    if not number or value > high or value < low or (low_open and value == low):
        bracket = "(" if low_open else "["
        end = ")" if math.isinf(high) else "]"
        raise BadInput(f"{name} must be a number in {bracket}{low:g}, {high:g}{end}, got {short(value)}")


def check_count(name: str, value: Any, low: int = 1, high: int = MAX_STEPS) -> None:
    """Refuse a value that is not a whole number in [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput(f"{name} must be a whole number from {low} to {high}, got {short(value)}")


def short(value: Any) -> str:
    """A value in an error message: at most forty characters of it."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than thirty digits"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


@dataclass(frozen=True)
class _Sampled:
    """Steps on a batch that is drawn at a rate."""

    sampling_rate: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        check_number("sampling rate", self.sampling_rate, MIN_RATE, 1, low_open=False)
        check_number("noise multiplier", self.noise_multiplier, *NOISE, low_open=False)
        check_count("steps", self.count)


@dataclass(frozen=True)
class PoissonGaussian(_Sampled):
    """Steps that each include every record independently with probability `sampling_rate`, clip and add noise."""

    kind: ClassVar[str] = "poisson-gaussian"
    sampler: ClassVar[str] = "poisson"


@dataclass(frozen=True)
class FixedSizeGaussian(_Sampled):
    """Steps that each draw a batch of fixed size without replacement; `sampling_rate` is batch size / records."""

    kind: ClassVar[str] = "fixed-size-gaussian"
    sampler: ClassVar[str] = "fixed-size"


@dataclass(frozen=True)
class ShuffledGaussian:
    """Epochs over a shuffled corpus: every record takes part once per epoch. No amplification is claimed."""

    kind: ClassVar[str] = "shuffled-gaussian"
    sampler: ClassVar[str] = "shuffled"
    noise_multiplier: float
    epochs: int = 1

    def __post_init__(self) -> None:
        check_number("noise multiplier", self.noise_multiplier, *NOISE, low_open=False)
        check_count("epochs", self.epochs)

    @property
    def count(self) -> int:
        return self.epochs


@dataclass(frozen=True)
class Gaussian:
    """Releases in which every record takes part: noised sums over all records."""

    kind: ClassVar[str] = "gaussian"
    sampler: ClassVar[str] = "none"
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        check_number("noise multiplier", self.noise_multiplier, *NOISE, low_open=False)
        check_count("count", self.count)


@dataclass(frozen=True)
class SelectiveGaussian:
    """Selective-DPSGD as the S-DP paper runs it (guarantees §5): noised segment gradients and noised states.

    A participation of a record releases, for each of its at most `segments` private segments, one gradient and
    `states` hidden states (LSTM h and c: 2; clipped jointly: 1; reset instead: 0). Noiseless updates on the same
    batch show who takes part, so `participation` < 1 is a public coin: it thins the releases, it never amplifies.
    """

    kind: ClassVar[str] = "selective-gaussian"
    sampler: ClassVar[str] = "public"
    noise_multiplier: float
    segments: int
    states: int
    state_noise_multiplier: float | None = None
    participation: float = 1.0
    count: int = 1

    def __post_init__(self) -> None:
        check_number("noise multiplier", self.noise_multiplier, *NOISE, low_open=False)
        check_count("segments", self.segments)
        check_count("states", self.states, low=0)
        if self.states and self.state_noise_multiplier is None:
            raise BadInput("state_noise_multiplier is missing: states that are released must be noised")
        if self.state_noise_multiplier is not None:
            check_number("state noise multiplier", self.state_noise_multiplier, *NOISE, low_open=False)
        check_number("participation", self.participation, MIN_RATE, 1, low_open=False)
        check_count("count", self.count)

    @property
    def releases(self) -> int:
        """How many noised tensors one record can touch: N·R·(1+n_h)."""
        return self.count * self.segments * (1 + self.states)


@dataclass(frozen=True)
class Noiseless:
    """Training steps without noise on text that may hold the secret: no finite ε whatever comes before or after."""

    kind: ClassVar[str] = "noiseless"
    sampler: ClassVar[str] = "none"
    count: int = 1

    def __post_init__(self) -> None:
        check_count("count", self.count)


@dataclass(frozen=True)
class Composed:
    """Several events one after the other, the whole `count` times over."""

    kind: ClassVar[str] = "composed"
    events: tuple[Event, ...]
    count: int = 1

    def __post_init__(self) -> None:
        _check_inner(self.events)
        check_count("count", self.count)


@dataclass(frozen=True)
class Selection:
    """The best of several runs on the same private records (guarantees §7).

    With `mean_runs` None, exactly `runs` runs were made: they compose, however the winner was chosen. With
    `mean_runs`, the number of runs was itself drawn from a Poisson distribution with that mean before the first run
    (Papernot & Steinke 2022) and only the winner was released; `runs` is then ignored by the accounting.
    """

    kind: ClassVar[str] = "selection"
    events: tuple[Event, ...]
    runs: int = 1
    mean_runs: float | None = None

    def __post_init__(self) -> None:
        _check_inner(self.events)
        check_count("runs", self.runs)
        if self.mean_runs is not None:
            check_number("mean_runs", self.mean_runs, 0, 1e6)


Event = (
    PoissonGaussian
    | FixedSizeGaussian
    | ShuffledGaussian
    | Gaussian
    | SelectiveGaussian
    | Noiseless
    | Composed
    | Selection
)
Step = PoissonGaussian | FixedSizeGaussian | ShuffledGaussian | Gaussian | SelectiveGaussian | Noiseless

KINDS: dict[str, Any] = {
    cls.kind: cls
    for cls in (
        PoissonGaussian,
        FixedSizeGaussian,
        ShuffledGaussian,
        Gaussian,
        SelectiveGaussian,
        Noiseless,
        Composed,
        Selection,
    )
}


def _check_inner(events: tuple[Event, ...]) -> None:
    if not isinstance(events, tuple) or not events or not all(isinstance(e, tuple(KINDS.values())) for e in events):
        raise BadInput("a composed event or a selection holds a tuple of at least one event")


def to_plain(event: Event) -> dict[str, Any]:
    """The event as JSON-ready data."""
    plain: dict[str, Any] = {"kind": event.kind}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        plain[field.name] = [to_plain(inner) for inner in value] if field.name == "events" else value
    return plain


def from_plain(plain: Any) -> Event:
    """The event that `to_plain` wrote; anything else is refused by name."""
    if not isinstance(plain, Mapping):
        raise BadInput(f"an event must be an object, got {type(plain).__name__}")
    cls = KINDS.get(str(plain.get("kind")))
    if cls is None:
        raise BadInput(f"unknown kind of event {short(plain.get('kind'))}; known are {', '.join(KINDS)}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {name: value for name, value in plain.items() if name != "kind"}
    unknown = values.keys() - fields.keys()
    required = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    missing = required - values.keys()
    if unknown or missing:
        wrong = [f"unknown field {name!r}" for name in sorted(unknown)]
        wrong += [f"missing field {name!r}" for name in sorted(missing)]
        raise BadInput(f"event {plain['kind']}: {', '.join(wrong)}")
    if "events" in values:
        if not isinstance(values["events"], list):
            raise BadInput(f"event {plain['kind']}: 'events' must be a list")
        values["events"] = tuple(from_plain(inner) for inner in values["events"])
    event: Event = cls(**values)
    return event


def with_count(step: Step, count: int) -> Step:
    """The same step, repeated `count` times."""
    if isinstance(step, ShuffledGaussian):
        return dataclasses.replace(step, epochs=count)
    return dataclasses.replace(step, count=count)


def flatten(events: Iterable[Event]) -> list[Step]:
    """The steps of a ledger with equal ones added up; composed events and fixed selections are unrolled.

    *Formal guarantees.* Privacy loss under adaptive composition does not depend on the order of the events, so that
    adding up equal ones changes no curve. A selection with a random number of runs is not a composition: it raises.
    """
    counts: dict[Step, int] = {}

    def add(event: Event, times: int) -> None:
        if not isinstance(event, tuple(KINDS.values())):
            raise BadInput(f"{short(event)} is not an event")
        if isinstance(event, Selection):
            if event.mean_runs is not None:
                raise BadInput(
                    "a selection over a random number of runs does not compose with other events; "
                    "it must be the only event of its ledger"
                )
            for inner in event.events:
                add(inner, times * event.runs)
        elif isinstance(event, Composed):
            for inner in event.events:
                add(inner, times * event.count)
        else:
            key = with_count(event, 1)
            counts[key] = counts.get(key, 0) + times * event.count

    for event in events:
        add(event, 1)
    return [with_count(step, count) for step, count in counts.items()]
