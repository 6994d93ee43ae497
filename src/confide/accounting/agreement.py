"""A run's configuration and its certificate in, the options in which they contradict each other out.

A configuration says more than a certificate, and where a folder lay when the run began. Only what must agree is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .events import Event, Noiseless, PoissonGaussian, SelectiveGaussian, short
from .ledger import Ledger
from .setting import Setting


def disagreements(config: Mapping[str, Any], certificate: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    """Each option of a configuration that says something else than the certificate and its ledger, as one phrase.

    *Formal guarantees.* Of a run as `confide train` wrote it there is none. An option that a configuration of an older confide does not
    have is passed over. Values that are of no kind that the option has raise as Python does.
    """
    options, setting = config["options"], Setting.from_plain(ledger.setting)
    noised = {phase: event for phase, event in ledger.planned if phase != "tuning" and not isinstance(event, Noiseless)}
    noises = {phase: getattr(event, "noise_multiplier", None) for phase, event in noised.items()}
    if config.get("noise", noises).keys() != noises.keys():
        yield f"noise is about other phases than {', '.join(noises)}"
    for phase, noise in noises.items():
        yield from _differs(f"noise of {phase}", config.get("noise", noises).get(phase, noise), noise)
        yield from _differs(*_option(options, "phase1_noise" if phase == "phase1" else "noise"), noise)
    for name, true in _stated(setting, certificate["delta"]).items():
        if name in options:
            yield from _differs(f"--{name.replace('_', '-')}", options[name], true)
    for name, given in (("review", bool(setting.evidence)), ("vocabulary_from", setting.vocabulary == "external")):
        if name in options and (options[name] is not None) != given:
            yield f"--{name.replace('_', '-')} is {'missing' if given else 'named'}, and certified {'with' if given else 'without'} it"
    for phase, event in noised.items():
        yield from _steps(options, setting, phase, event)
    runs, counts = options.get("tuning_runs"), [getattr(event, "count", 1) for event in noised.values()]
    tuned = sum(getattr(event, "count", 1) for phase, event in ledger.planned if phase == "tuning")
    if runs is not None and runs * sum(counts) != tuned:
        yield f"--tuning-runs says {short(runs)}, certified is another number"
    yield from _target(options, certificate)


def _stated(setting: Setting, delta: float) -> dict[str, Any]:
    """What the certificate says in the options' own words."""
    own = {
        "crt": {"mask_records": setting.mask_records},
        "sdp": {"variant": setting.sdp_variant},
        "jft": {"phase1": setting.jft_phase1},
    }
    return {
        "method": setting.method,
        "delta": delta,
        "clip_norm": setting.clipping_norm,
        "weights_from": setting.weights,
        **own.get(setting.method, {}),
    }


def _option(options: Mapping[str, Any], name: str) -> tuple[str, Any]:
    return f"--{name.replace('_', '-')}", options.get(name)


def _differs(name: str, said: Any, true: Any) -> Iterator[str]:
    """Nothing if an option was left out."""
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (said, true))
    if said is not None and not (math.isclose(said, true, rel_tol=1e-6) if numbers else said == true):
        yield f"{name} says {short(said)}, certified is {short(true)}"


def _steps(options: Mapping[str, Any], setting: Setting, phase: str, event: Event) -> Iterator[str]:
    """Batches and epochs, as far as a phase's event shows them."""
    epochs = (phase == "phase1" and options.get("phase1_epochs")) or options.get("epochs")
    if isinstance(event, SelectiveGaussian):
        yield from _differs("--epochs", epochs, event.count)
        yield from _differs(*_option(options, "segments"), event.segments)
        yield from _differs(*_option(options, "state_noise"), event.state_noise_multiplier)
    if not isinstance(event, PoissonGaussian):
        return
    batch = options.get("private_batch_size")
    if batch is not None:
        yield from _differs("--private-batch-size", batch, event.sampling_rate * setting.private_records)
    if epochs is not None:
        steps = epochs * options.get("ratio", 1.0) / event.sampling_rate
        if abs(event.count - max(1.0, steps)) > 1 + 1e-6 * steps:
            yield f"--epochs and --ratio make {math.ceil(steps):,} steps of {phase}, certified are {event.count:,}"


def _target(options: Mapping[str, Any], certificate: Mapping[str, Any]) -> Iterator[str]:
    """More than was asked for is a contradiction; less is not, however much less."""
    target = options.get("epsilon")
    if target is None:
        return
    stated = {one["name"]: one["epsilon"] for one in reversed(certificate["guarantees"])}
    reached = stated.get("caught-secret", certificate["guarantees"][0]["epsilon"])
    if reached is not None and reached > target * (1 + 1e-6):
        yield f"--epsilon says {short(target)}, certified is {reached:.4g}"
