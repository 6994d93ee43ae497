"""The command line: arguments in; an answer, or one line on standard error and an exit code, out."""

from __future__ import annotations

import difflib
import io
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from .commands import calculating, judging, screening, training  # noqa: F401  (they register their commands)
from .commands.shell import Json, app, command, echo, reply
from .errors import BadInput, ConfideError, Contradiction
from .rundir import owner_only

LONGEST = 2000  # characters of a message
OURS = Path(__file__).resolve().parent


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and stop.")] = False,
) -> None:
    if version:
        from . import __version__

        typer.echo(f"confide {__version__}")
        raise typer.Exit


@command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the demo's files.")] = Path("demo"),
    dialogues: Annotated[int, typer.Option(help="Simulated dialogues to train on.")] = 1_000,
    epochs: Annotated[int, typer.Option(help="Passes over them.")] = 4,
    as_json: Json = False,
) -> None:
    """The whole chain on a simulated corpus: screen, plan, train with and without privacy, certify, verify, try to cheat.

    Example:

    confide demo -o demo
    """
    from .accounting.events import check_count
    from .demo import run as show
    from .experiments.customersim import write_corpus

    check_count("--dialogues", dialogues, low=20, high=10**6)
    check_count("--epochs", epochs, high=1000)
    found = show(out, Console(quiet=as_json), write_corpus, dialogues, epochs)
    if as_json:
        reply(found)


@command()
def simulate(
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for train, valid and test.jsonl.")],
    dialogues: Annotated[
        int, typer.Option(help="Training dialogues; a tenth as many each for validation and test.")
    ] = 10_000,
    people: Annotated[int, typer.Option(help="Invented people to draw from; no one is in two splits.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same corpus.")] = 0,
    as_json: Json = False,
) -> None:
    """A simulated customer-service corpus whose secrets are known exactly. All people are invented.

    Example:

    confide simulate --dialogues 1000 -o sim
    """
    from .accounting.events import check_count
    from .experiments.customersim import write_corpus

    check_count("--dialogues", dialogues, high=10**8)
    check_count("--people", people, high=10**8)
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("simulating", total=people + dialogues + 2 * max(1, dialogues // 10))
        sizes = write_corpus(out, dialogues, seed, people, lambda: progress.advance(task))
    if as_json:
        reply({**sizes, "seed": seed, "folder": str(out)})
    else:
        echo(
            f"{sizes['train']:,} training, {sizes['valid']:,} validation and {sizes['test']:,} test dialogues in {out}"
        )


@command()
def reproduce(
    figure: Annotated[
        str | None, typer.Argument(help="A figure or table, a paper (crt, s-dp, jft), or all; none: what there is.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), cpu (two cores), or paper (the papers' models, GPUs).")
    ] = "cpu",
    data: Annotated[
        Path | None, typer.Option(help="The folder of the data sets; docs/data.md says where to get them.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where runs are kept; what is there is not done again.")
    ] = Path("reproduce"),
    only: Annotated[str | None, typer.Option(help="Only rows whose name holds this text.")] = None,
    seeds: Annotated[int | None, typer.Option(help="So many seeds, if fewer than the scale's.")] = None,
    workers: Annotated[int | None, typer.Option(help="Runs at a time. [the number of cores]")] = None,
    reference: Annotated[
        str | None, typer.Option(help="The tokenizer whose tokens perplexity is per. [GPT-2's]")
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Do nothing: show what is left, and how long it will take.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Write all results so far to this Markdown file.")] = None,
    as_json: Json = False,
) -> None:
    """The papers' figures and tables, by runs that are cached: stop it at any time, and it goes on.

    Example:

    confide reproduce fig6
    """
    from .experiments.reproduce import command

    found = command(
        figure, scale=scale, data=data, out=out, only=only, seeds=seeds, workers=workers, reference=reference, status=status, page=page,
        console=Console(stderr=True, quiet=as_json),
    )  # fmt: skip
    if as_json:
        reply(found)
        return
    from .terminal import show_reproduced

    show_reproduced(Console(), found)


def _place(error: BaseException) -> str:
    """The kind of an unexpected error, and the line of ours at which it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(OURS)]
    where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}{where}"


def _frames(error: BaseException) -> str:
    """The whole traceback, of what caused it too, without any message: a message may quote private text."""
    lines: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(lines) < 1000:
        lines = [
            *traceback.format_tb(seen.__traceback__),
            f"{type(seen).__name__} (its message is withheld: it may quote private text)\n",
            *lines,
        ]
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return "".join(lines)


def _usage(error: Any) -> str:
    """A mistake in a command's use, with the option that was probably meant."""
    mistaken = getattr(error, "option_name", "")
    near = difflib.get_close_matches(mistaken, getattr(error, "possibilities", None) or (), n=1, cutoff=0.7)
    if near:
        return f"No such option '{mistaken}'. Did you mean '{near[0]}'?"
    message, where = str(error.format_message()), getattr(error, "ctx", None)
    return (
        message
        if where is None or "Did you mean" in message
        else f"{message.rstrip('.')}; see `{where.command_path} --help`"
    )


def main(arguments: list[str] | None = None) -> None:
    """Run a command; every expected failure is one line on standard error and an exit code. What it makes is the owner's alone."""
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = threading.excepthook = _uncaught
    try:
        with owner_only():
            _main(arguments)
    finally:
        if arguments is not None:  # called from Python, which goes on; a command ends with what it set
            sys.unraisablehook, threading.excepthook = hooks


def _uncaught(what: Any) -> None:
    """An error of a thread, or of something that is being cleared away: told without its message, which may quote private text."""
    if what.exc_value is not None and not isinstance(what.exc_value, SystemExit):
        echo(f"confide: {_place(what.exc_value)}; this is a mistake in confide", err=True)


def _refuse_undecodable(arguments: list[str]) -> None:
    for place, one in enumerate(arguments, 1):
        try:
            one.encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"argument {place} is not UTF-8; write it anew, and if it names a file, rename that"
            ) from None


def _main(arguments: list[str] | None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin take the core from those they wait for
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows a question mark, not a traceback
    code, message = 0, ""
    more: dict[str, Any] = {}
    try:
        _refuse_undecodable(arguments)
        result = app(arguments or ["--help"], prog_name="confide", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        message = "interrupted; go on with --resume, if the command has it" if code == 130 else ""
        sys.stdout.flush()
    except ConfideError as error:
        code, message = error.exit_code, str(error)
        if isinstance(error, Contradiction):
            more |= {"holds": False, **(error.found or {})}
    except OSError as error:
        code, message = 1, f"cannot write the answer: {error.strerror}"
        if error.filename is not None:
            message = f"cannot use {error.filename}: {error.strerror}; mend that, and run the command again"
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (what is left in the buffer cannot be written either)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if hasattr(error, "format_message"):  # typer's own usage errors
            code, message = getattr(error, "exit_code", 2), _usage(error)
        else:  # the message may quote private text
            shown = os.environ.get("CONFIDE_DEBUG")
            if shown:
                typer.echo(_frames(error), err=True)
            more_of_it = "" if shown else " (CONFIDE_DEBUG=1 shows where)"
            code, message = 1, f"{_place(error)}; this is a mistake in confide{more_of_it}"
    leads = os.environ.get("RANK", "0") == "0"  # of several processes one speaks, if all have the same to say
    if code and message and (leads or code == 1):
        line = " ".join(message.split())
        if len(line) > LONGEST:  # a long name, most often: what to do about it stands at the end
            line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
        if "--json" in arguments and leads:
            reply({"error": line, "exit_code": code, **more})
        echo(f"confide: {line}", err=True)
    raise SystemExit(code)
