"""`epsilon` and `verify`: what noise gives, and whether a certificate holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import BadInput
from .shell import Json, command, reply


@command()
def epsilon(
    delta: Annotated[float | None, typer.Option(help="What is added to every probability, such as 1e-5.")] = None,
    sampling_rate: Annotated[
        float | None,
        typer.Option(parser=_fraction, metavar="RATE", help="Probability of a record a step: 0.03125 or 1/32."),
    ] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier, relative to the clipping norm.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of noised steps.")] = None,
    records: Annotated[
        int | None, typer.Option(help="Private records, with --batch-size or to choose a batch size.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected batch size, with --records.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Expected epochs, in place of --steps.")] = None,
    target: Annotated[
        float | None,
        typer.Option("--epsilon", help="A target: whichever of noise, steps or batch size is left out is found."),
    ] = None,
    bayesian_target: Annotated[
        float | None, typer.Option("--bayesian-epsilon", help="A target for a secret drawn into a slot, with --misses.")
    ] = None,
    group: Annotated[int, typer.Option(help="How many records change together (k).")] = 1,
    misses: Annotated[
        str | None, typer.Option(metavar="M/N", help="Missed secrets of N independently drawn labels, e.g. 20/200.")
    ] = None,
    public_misses: Annotated[
        str | None,
        typer.Option(metavar="M/N", help="Those that both policies missed; leave out if all records are private."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the miss-rate bounds.")] = 0.95,
    adjacency: Annotated[str, typer.Option(help="substitution, zero-out or add-remove.")] = "substitution",
    sampler: Annotated[str, typer.Option(help="poisson, fixed-size or shuffled.")] = "poisson",
    labels_for: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="How many clean labels bound the miss rate by this; stands alone."),
    ] = None,
    as_json: Json = False,
) -> None:
    """The privacy calculator: epsilon for a masked secret, or the noise, steps or batch size for a target.

    Example:

    confide epsilon --sampling-rate 1/32 --noise 2 --steps 320 --delta 8e-5
    """
    from ..calculator import Question, answer

    found = answer(
        Question(
            delta=delta,
            sampling_rate=sampling_rate,
            noise=noise,
            steps=steps,
            records=records,
            batch_size=batch_size,
            epochs=epochs,
            epsilon=target,
            bayesian_epsilon=bayesian_target,
            misses=_count_of("--misses", misses),
            public_misses=_count_of("--public-misses", public_misses),
            labels_for=labels_for,
            confidence=confidence,
            group=group,
            adjacency=adjacency,
            sampler=sampler,
        )
    )
    if as_json:
        reply(found)
        return
    from ..terminal import show_epsilon

    show_epsilon(Console(), found)


def _fraction(text: str) -> float:
    """A number such as 0.03125 or 1/32."""
    try:
        top, _, bottom = text.partition("/")
        return float(top) / float(bottom) if bottom else float(top)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text[:40]!r} is not a number") from None


def _count_of(option: str, text: str | None) -> tuple[int, int] | None:
    """Counts such as 20/200."""
    if text is None:
        return None
    from ..accounting.events import short

    top, _, bottom = text.partition("/")
    if not (text.isascii() and top.isdecimal() and bottom.isdecimal() and len(text) <= 40):
        raise BadInput(f"{option} must be two counts such as 20/200 (missed/labelled), got {short(text)}")
    return int(top), int(bottom)


@command()
def verify(
    path: Annotated[Path, typer.Argument(help="A run directory, or a certificate.json with its ledger beside it.")],
    ledger: Annotated[Path | None, typer.Option(help="The ledger, if it is not beside the certificate.")] = None,
    as_json: Json = False,
) -> None:
    """Recompute a certificate from its ledger, without data. Exit code 3 if it does not hold.

    Example:

    confide verify run
    """
    from ..accounting import verify as check
    from ..terminal import show_verified

    verified = check(path, ledger)
    certificate = verified.certificate
    if not as_json:
        show_verified(Console(), verified)
        return
    headline = certificate["guarantees"][0]
    reply(
        {
            "holds": True,
            "epsilon": headline["epsilon"],
            "delta": headline["delta"],
            "k": headline["k"],
            "adjacency": certificate["adjacency"]["name"],
            "unit": certificate["unit"],
            "sampler": certificate["sampler"],
            "accountant": certificate["accountant"],
            "method": certificate["method"],
            "steps": certificate["ledger"]["steps"],
            "ledger_length": verified.ledger_length,
            "model": verified.model,
            "guarantees": certificate["guarantees"],
        }
    )
