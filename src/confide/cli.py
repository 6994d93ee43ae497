"""The command line: each command is a thin shell around one function of the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from .errors import BadInput, ConfideError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train language models on text that holds secrets, and prove what the model cannot leak.",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _fraction(text: str) -> float:
    """A number such as 0.03125 or 1/32."""
    try:
        top, _, bottom = text.partition("/")
        return float(top) / float(bottom) if bottom else float(top)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text!r} is not a number") from None


def _count_of(option: str, text: str | None) -> tuple[int, int] | None:
    """Counts such as 20/200."""
    if text is None:
        return None
    top, _, bottom = text.partition("/")
    if not (top.strip().isdecimal() and bottom.strip().isdecimal()):
        raise BadInput(f"{option} must be two counts such as 20/200 (missed/labelled), got {text!r}")
    return int(top), int(bottom)


def _answer(found: dict[str, Any]) -> None:
    typer.echo(json.dumps(found, allow_nan=False, ensure_ascii=False))


@app.command()
def epsilon(
    delta: Annotated[float | None, typer.Option(help="The probability with which the guarantee may fail.")] = None,
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
    group: Annotated[int, typer.Option(help="How many records change together (k).")] = 1,
    misses: Annotated[
        str | None, typer.Option(metavar="M/N", help="Missed secrets of labelled ones, e.g. 20/200.")
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
        typer.Option(metavar="RATE", help="How many clean labels bound the miss rate by this; needs no other option."),
    ] = None,
    as_json: Json = False,
) -> None:
    """The privacy calculator: epsilon for a masked secret, or the noise, steps or batch size for a target."""
    from .calculator import Question, answer, labels_answer

    if labels_for is not None:
        found = labels_answer(labels_for, confidence)
    elif delta is None:
        raise BadInput("--delta is missing: the probability with which the guarantee may fail, such as 1e-5")
    else:
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
                group=group,
                adjacency=adjacency,
                sampler=sampler,
                misses=_count_of("--misses", misses),
                public_misses=_count_of("--public-misses", public_misses),
                confidence=confidence,
            )
        )
    if as_json:
        _answer(found)
        return
    from .terminal import show_epsilon

    show_epsilon(Console(), found)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A run directory, or a certificate.json with its ledger beside it.")],
    ledger: Annotated[Path | None, typer.Option(help="The ledger, if it is not beside the certificate.")] = None,
    as_json: Json = False,
) -> None:
    """Recompute a certificate from its ledger, without data. Exit code 3 if it does not hold."""
    from .accounting import verify as check
    from .terminal import show_certificate

    verified = check(path, ledger)
    certificate = verified.certificate
    if as_json:
        headline = certificate["guarantees"][0]
        _answer(
            {
                "holds": True,
                "epsilon": headline["epsilon"],
                "delta": headline["delta"],
                "adjacency": certificate["adjacency"]["name"],
                "unit": certificate["unit"],
                "sampler": certificate["sampler"],
                "k": headline["k"],
                "steps": certificate["ledger"]["steps"],
                "ledger_length": verified.ledger_length,
                "numbers": verified.numbers,
            }
        )
        return
    console = Console()
    console.print(
        f"[bold green]holds[/]: the chain of {verified.ledger_length} ledger entries is unbroken and all "
        f"{verified.numbers} numbers follow from it\n",
        highlight=False,
    )
    show_certificate(console, certificate)
    console.print("\n[bold]under these assumptions[/], which no arithmetic can check:")
    for assumption in certificate["assumptions"]:
        console.print(f"  [dim]{assumption['id']}[/]: {escape(assumption['text'])}", highlight=False)
    console.print("\n[bold]not promised[/]:")
    for gap in certificate["not_promised"]:
        console.print(f"  {gap}", highlight=False, markup=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the demo's files.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """A worked certificate: ledger, guarantees, curve, verification, and an attempt to cheat."""
    from .demo import run

    found = run(out, Console(quiet=as_json))
    if as_json:
        _answer(found)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; every expected failure is one line on standard error and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    code, message = 0, ""
    try:
        result = app(arguments, prog_name="confide", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except ConfideError as error:
        code, message = error.exit_code, str(error)
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own usage errors
            raise
        code, message = getattr(error, "exit_code", 2), str(error.format_message())
    if code and message:
        line = " ".join(message.split())
        if "--json" in arguments:
            _answer({"error": line, "exit_code": code})
        typer.echo(f"confide: {line}", err=True)
    raise SystemExit(code)
