"""`attack`, `report` and `purge`: from a run to what is known of it, and what may stay."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from ..errors import BadInput, Contradiction, printable
from .shell import HelpAll, Json, command, echo, progress_bar, reply


@command()
def attack(
    run: Annotated[Path | None, typer.Argument(help="A finished run of `confide train`.")] = None,
    only: Annotated[
        str | None, typer.Option(help="Some of exposure, membership, extraction, audit; with commas.")
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Records, secrets and generated texts that are looked at, at most.")
    ] = 1000,
    secrets: Annotated[
        str | None, typer.Option(metavar="POLICY", help="What the secrets are, if not what screening found.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="A run or model with the same tokenizer that never saw the private part.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Non-members: a corpus that `confide screen` treated in the same way.")
    ] = None,
    papers: Annotated[bool, typer.Option("--papers", help="The papers' own protocols besides, labelled.")] = False,
    white_box: Annotated[
        bool, typer.Option("--white-box", help="Audit the engine, too: gradient canaries at the run's rate and noise.")
    ] = False,
    guesses: Annotated[
        int | None, typer.Option(hidden=True, help="Guesses of the audit, fixed before it looks.")
    ] = None,
    also: Annotated[
        list[Path] | None, typer.Option(hidden=True, help="More runs, with coins of their own, for a stronger audit.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="In place of a run: the folder of a Hugging Face model.")] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="With --model: what was planted (canaries.json; see `confide canaries`).")
    ] = None,
    members: Annotated[Path | None, typer.Option(help="With --model: texts that it was trained on.")] = None,
    others: Annotated[Path | None, typer.Option(help="With --model: texts of the same kind that it never saw.")] = None,
    claimed_epsilon: Annotated[
        float | None,
        typer.Option(hidden=True, help="With --model: hold the audit against this epsilon, for one record."),
    ] = None,
    delta: Annotated[float | None, typer.Option(hidden=True, help="With --model: the delta of that claim.")] = None,
    claimed_adjacency: Annotated[
        str | None, typer.Option(hidden=True, help="With --model: substitution, or add-remove as most libraries count.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same attack.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print extracted secrets to this terminal, and nowhere else. SENSITIVE.")
    ] = False,
    as_json: Json = False,
    help_all: HelpAll = False,
) -> None:
    """Attack a model: exposure, membership, extraction, and an audited lower bound on epsilon. Exit code 3 if it
    contradicts the certificate.

    Example:

    confide attack run
    """
    from ..attacks import attack as attack_run
    from ..attacks import attack_model
    from ..attacks.output import show_attacks

    console = Console()
    if show and as_json:
        raise BadInput("--show prints secrets to a terminal; leave it out with --json")
    if (run is None) == (model is None):
        raise BadInput("name a run to attack, or another model with --model DIR")
    foreign = {
        "--canaries": canaries,
        "--members": members,
        "--others": others,
        "--claimed-epsilon": claimed_epsilon,
        "--delta": delta,
        "--claimed-adjacency": claimed_adjacency,
    }
    own = {
        "--secrets": secrets,
        "--held-out": held_out,
        "--white-box": white_box or None,
        "--also": also or None,
        "--papers": papers or None,
    }
    for name, value in (foreign if model is None else own).items():
        if value is not None:
            raise BadInput(f"{name} goes with {'--model DIR' if model is None else 'a run'}")
    with progress_bar(Console(stderr=True), sys.stderr.isatty() and not show) as progress:
        common: dict[str, Any] = {
            "samples": samples, "guesses": guesses, "seed": seed,
            "reference": None if reference is None else str(reference),
            "progress": functools.partial(_attack_task, progress),
            **({} if only is None else {"only": tuple(part.strip() for part in only.split(",") if part.strip())}),
        }  # fmt: skip
        try:
            if run is not None:
                found = attack_run(
                    run, secrets=secrets, held_out=None if held_out is None else str(held_out), papers=papers, white_box=white_box,
                    also=tuple(map(str, also or ())), show=_shown(console) if show else None, **common,
                )  # fmt: skip
            else:
                assert model is not None
                found = attack_model(
                    model, canaries, members=members, others=others, epsilon=claimed_epsilon, delta=delta, adjacency=claimed_adjacency, **common
                )  # fmt: skip
        except Contradiction as error:
            if error.found is not None and not as_json:
                show_attacks(console, error.found)
            raise
    if as_json:
        reply(found)
        return
    show_attacks(console, found)
    if run is not None:
        echo(f"\nin {run / 'attacks.json'} (SENSITIVE)")


def _attack_task(progress: Progress, name: str, total: int | None) -> Callable[[int], object]:
    task = progress.add_task(name, total=total)
    return lambda done: progress.advance(task, done)


def _shown(console: Console) -> Callable[[str, str], object]:
    return lambda kind, secret: console.print(printable(f"{kind}: {secret}"), markup=False, highlight=False)


@command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="One run, or several to compare.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Of a comparison: the page to write.")] = None,
    shareable: Annotated[
        bool, typer.Option("--shareable", help="Only what may leave the house: no private counts, no review.")
    ] = False,
    as_json: Json = False,
) -> None:
    """A page that says what is promised, what is not, and how sure one may be; with figures and a model card.

    Example:

    confide report run
    """
    from ..reporting import report as write

    if out is not None and len(runs) == 1:
        raise BadInput("a run's report lies in its own folder; --out names the page of a comparison")
    path = write(runs, out, shareable=shareable)
    if as_json:
        reply({"report": str(path), "shareable": shareable, "runs": [str(one) for one in runs]})
    else:
        echo(f"{path}{'' if shareable else ' (SENSITIVE)'}: open it in a browser, it needs no connection")


@command()
def purge(
    folder: Annotated[Path, typer.Argument(help="A run, or a screened corpus.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing: say what would go, and what stays.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the sensitive parts of a run, so that enough stays for `confide verify`; or a whole screened corpus.

    Example:

    confide purge run --dry-run
    """
    from ..purging import plan_purge
    from ..purging import purge as remove
    from ..terminal import show_purge

    found, asks = plan_purge(folder), not (yes or dry_run) and sys.stdin.isatty()
    if not as_json:
        show_purge(Console(stderr=asks), found, done=False)
    if not (yes or dry_run or asks):
        raise BadInput("nothing was removed: there is no terminal to ask on; say --yes, or look first with --dry-run")
    if asks and not _agreed("Remove this for good?"):
        raise BadInput("nothing was removed")
    if not dry_run:
        found = remove(folder)
    if as_json:
        reply({**found.to_plain(), "dry_run": dry_run})
    elif not dry_run:
        show_purge(Console(), found, done=True)


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        return False
