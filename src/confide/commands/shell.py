"""What all commands share: the group they register with, options, answers, and progress."""

from __future__ import annotations

import functools
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from ..errors import printable

SUMMARIES = {  # every command, in the order in which a newcomer meets them
    "demo": "the whole chain on simulated customers, in minutes",
    "screen": "redact what is found, keep apart what may hold more",
    "review": "a page on which a person marks what the policy missed",
    "plan": "noise, time, memory and every guarantee, before training",
    "train": "train a model, and write its certificate",
    "attack": "attack the model, beside what is proven",
    "report": "a page for the one who signs, and a model card",
    "verify": "recompute a certificate from its ledger, without data",
    "generate": "text from a trained model",
    "run": "all stages, as a file describes them",
    "epsilon": "the calculator alone",
    "purge": "remove the sensitive parts of a run, keep what verify needs",
    "policies": "what can count as a secret",
    "canaries": "invented secrets, to audit models of other libraries",
    "simulate": "a corpus whose secrets are known",
    "reproduce": "the papers' figures and tables",
}


class Commands(TyperGroup):
    """The commands in the order of `SUMMARIES`, each with a line that is not cut off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Train language models on text that holds secrets, and prove what the model cannot leak.

    Example:

    confide demo -o demo""",
    epilog="Each command explains itself: confide screen --help",
)


command = functools.partial(app.command, context_settings={"help_option_names": ["-h", "--help"]})
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _help_all(ctx: typer.Context, wanted: bool) -> None:
    """The help of a command with the options that fill more than a screen."""
    if wanted and not ctx.resilient_parsing:
        for parameter in ctx.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        is_eager=True,
        expose_value=False,
        callback=_help_all,
        help="Show every option, also the rare ones.",
    ),
]


def reply(found: dict[str, Any]) -> None:
    """One JSON object; signs that could steer a terminal are written as JSON escapes."""
    text = json.dumps(found, allow_nan=False, ensure_ascii=False)
    typer.echo(text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def echo(text: str = "", **more: Any) -> None:
    """A line for people; what is in it of names and texts cannot steer the terminal."""
    typer.echo(printable(text), **more)


def progress_bar(console: Console, shown: bool) -> Progress:
    """A bar with the time that is left, or nothing."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    return Progress(*columns, console=console, disable=not shown)
