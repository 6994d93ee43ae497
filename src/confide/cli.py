"""The command line: each command is a thin shell around one function of the package."""

from __future__ import annotations

import difflib
import functools
import inspect
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from .errors import BadInput, ConfideError, Contradiction, printable
from .rundir import owner_only

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

LONGEST = 2000  # characters of a message
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
    from .accounting.events import short

    top, _, bottom = text.partition("/")
    if not (text.isascii() and top.isdecimal() and bottom.isdecimal() and len(text) <= 40):
        raise BadInput(f"{option} must be two counts such as 20/200 (missed/labelled), got {short(text)}")
    return int(top), int(bottom)


def _answer(found: dict[str, Any]) -> None:
    """One JSON object; signs that could steer a terminal are written as JSON escapes."""
    text = json.dumps(found, allow_nan=False, ensure_ascii=False)
    typer.echo(text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def _echo(text: str = "", **more: Any) -> None:
    """A line for people; what is in it of names and texts cannot steer the terminal."""
    typer.echo(printable(text), **more)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and stop.")] = False,
) -> None:
    if version:
        from . import __version__

        typer.echo(f"confide {__version__}")
        raise typer.Exit


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
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
    from .calculator import Question, answer

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
        _answer(found)
        return
    from .terminal import show_epsilon

    show_epsilon(Console(), found)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def verify(
    path: Annotated[Path, typer.Argument(help="A run directory, or a certificate.json with its ledger beside it.")],
    ledger: Annotated[Path | None, typer.Option(help="The ledger, if it is not beside the certificate.")] = None,
    as_json: Json = False,
) -> None:
    """Recompute a certificate from its ledger, without data. Exit code 3 if it does not hold.

    Example:

    confide verify run
    """
    from .accounting import verify as check
    from .terminal import show_verified

    verified = check(path, ledger)
    certificate = verified.certificate
    if not as_json:
        show_verified(Console(), certificate, verified.ledger_length)
        return
    headline = certificate["guarantees"][0]
    _answer(
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
            "guarantees": certificate["guarantees"],
        }
    )


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
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
        _answer(found)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
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
        _answer({**sizes, "seed": seed, "folder": str(out)})
    else:
        _echo(
            f"{sizes['train']:,} training, {sizes['valid']:,} validation and {sizes['test']:,} test dialogues in {out}"
        )


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def screen(
    corpus: Annotated[list[str], typer.Argument(help="Files, folders, globs or URIs: JSONL, CSV, Parquet, text, …")],
    policy: Annotated[
        str, typer.Option(help="What is redacted: pii, patterns, known:FILE, … (see `confide policies`).")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the public and the private part.")] = Path(
        "screened"
    ),
    conservative: Annotated[
        str, typer.Option(help="What makes a record private besides: everything, allowlist, or another policy.")
    ] = "everything",
    unit: Annotated[str, typer.Option(help="A record is a document, a turn or a sentence.")] = "document",
    max_words: Annotated[int | None, typer.Option(help="Cut longer records, at sentence ends only.")] = None,
    context: Annotated[
        str,
        typer.Option(
            hidden=True,
            help="record, or group: policies read whole documents, which become public or private as a whole.",
        ),
    ] = "record",
    dedup: Annotated[
        str | None,
        typer.Option(
            help="In the private part: off, exact, bloom or bloom-verified (default: exact for documents, else off)."
        ),
    ] = None,
    max_copies: Annotated[int, typer.Option(hidden=True, help="Copies of a private record that dedup leaves.")] = 1,
    dedup_unit: Annotated[
        str | None, typer.Option(hidden=True, help="Compare turns or sentences inside larger records.")
    ] = None,
    order: Annotated[
        str, typer.Option(hidden=True, help="redact-dedup, or the CRT paper's dedup-redact (a weaker certificate).")
    ] = "redact-dedup",
    public_dedup: Annotated[str, typer.Option(help="In the public part: off, exact or near.")] = "off",
    bloom_delta: Annotated[float, typer.Option(hidden=True, help="What a Bloom filter may cost of delta.")] = 1e-9,
    canaries: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Plant invented secrets: crt, sdp, jft, audit, or audit,number=200,…"),
    ] = None,
    text_field: Annotated[str | None, typer.Option(help="The column of the text (or of chat messages).")] = None,
    id_field: Annotated[str | None, typer.Option(help="The column of the ids.")] = None,
    group_field: Annotated[str | None, typer.Option(help="The column that names the dialogue or person.")] = None,
    label_field: Annotated[str | None, typer.Option(help="The column of the class, for training a classifier.")] = None,
    text_as: Annotated[str, typer.Option(help="What a document is in a text file: file, line or paragraph.")] = "file",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count rows that cannot be used, and go on.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes on this machine (default: one a core).")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="auto|ray://HOST", help="Run on a Ray cluster.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a screening that was interrupted.")] = False,
    show: Annotated[int, typer.Option(help="Print this many private records, raw beside screened. SENSITIVE.")] = 0,
    as_json: Json = False,
    help_all: HelpAll = False,
) -> None:
    """Split a corpus into records, redact what a policy finds, and part public from private records.

    Example:

    confide screen chats.jsonl --policy patterns --unit turn -o screened
    """
    from .accounting.events import check_count
    from .readers import sources
    from .records import Fields
    from .screening import Options, corpus_size
    from .screening import screen as run

    if workers is not None:
        check_count("--workers", workers, high=1024)
    check_count("--show", show, low=0)
    options = Options(
        policy=policy,
        conservative=conservative,
        unit=unit,
        max_words=max_words,
        context=context,
        dedup=dedup,
        max_copies=max_copies,
        order=order,
        dedup_unit=dedup_unit,
        public_dedup=public_dedup,
        bloom_delta=bloom_delta,
        canaries=canaries,
        fields=Fields(text_field, id_field, group_field, label_field),
        text_as=text_as,
        skip_bad=skip_bad,
    )
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("screening", total=corpus_size(sources(corpus)) or None)
        screened = run(
            corpus, out=out, options=options, workers=workers, cluster=cluster, resume=resume,
            tick=lambda size: progress.advance(task, size),
        )  # fmt: skip
    if as_json:
        _answer({**screened.manifest, "folder": str(out)})
        return
    from .terminal import show_records, show_screened

    show_screened(Console(), screened.manifest, out)
    if show:
        show_records(Console(), screened, show)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all training options, which it receives as `choices`: those that the user named."""
    from .training.options import CHOICES, COMMON, HELP, Options

    kinds: dict[str, Any] = get_type_hints(Options)
    own = inspect.signature(command, eval_str=True)
    parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, help_ in HELP.items():
        listed = kinds[name] == tuple[str, ...]
        kind: Any = bool if kinds[name] is bool else (str if listed else _optional(kinds[name])) | None
        flag = f"--{name.replace('_', '-')}"
        default = next(f.default for f in fields(Options) if f.name == name)
        shown = default not in (MISSING, None, (), False)
        info = typer.Option(
            flag, help=help_ + (f" [{default}]" if shown else ""), show_default=False, hidden=name not in COMMON,
            autocompletion=_one_of(CHOICES[name]) if name in CHOICES else None,
        )  # fmt: skip
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info])
            if kind is not bool
            else inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info]
            )
        )

    @functools.wraps(command)
    def run(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in HELP}
        choices = {name: value for name, value in chosen.items() if value is not None and value is not False}
        command(**given, **choices)

    parameters.sort(key=lambda p: p.kind)
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


def _one_of(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """What the shell offers for an option."""

    def matching(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return matching


def _optional(kind: Any) -> Any:
    """The type of an option that may be left out."""
    return next((part for part in get_args(kind) if part is not type(None)), kind)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@_with_options
def plan(
    screened: Annotated[Path, typer.Argument(help="A folder that `confide screen` has written.")],
    probe: Annotated[bool, typer.Option(help="Measure time and memory with two steps of each kind.")] = True,
    as_json: Json = False,
    help_all: HelpAll = False,
    **choices: Any,
) -> None:
    """Noise, steps, time, memory and every guarantee of a run, before any training.

    Example:

    confide plan screened --model gpt2-tiny --epsilon 2 --delta 1e-5
    """
    from .training import make_plan, probe_plan

    made = make_plan(screened, **choices)
    with Console(stderr=True, quiet=as_json or not sys.stderr.isatty()).status("measuring two steps of each kind"):
        measured = probe_plan(made) if probe else None
    if as_json:
        _answer(made.summary(measured))
        return
    from .terminal import show_plan

    show_plan(Console(), made.summary(measured))


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@_with_options
def train(
    screened: Annotated[
        Path | None, typer.Argument(help="A folder that `confide screen` has written; not needed with --resume.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the run.")] = Path("run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write public telemetry for TensorBoard, too.")
    ] = False,
    as_json: Json = False,
    help_all: HelpAll = False,
    **choices: Any,
) -> None:
    """Train a model and write its certificate. Shows and stores public quantities only.

    Example:

    confide train screened --model gpt2-tiny --epsilon 2 --delta 1e-5 -o run
    """
    from .training import make_plan, plan_of, train_plan

    if resume:
        made = plan_of(out, screened, choices)
    elif screened is None:
        raise BadInput("name the screened corpus to train on, or go on with an interrupted run by --resume")
    else:
        made = make_plan(screened, **choices)
    leads = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True)
    with _training_progress(console, leads and sys.stderr.isatty()) as progress:
        reading = progress.add_task("reading", total=made.sizes["public"] + made.sizes["private"])
        steps = progress.add_task("training", total=None)
        run = train_plan(
            made, out, resume=resume, board=tensorboard,
            tick=lambda done, total: progress.update(steps, completed=done, total=total),
            reading=lambda records: progress.advance(reading, records),
            say=lambda warning: console.print(f"note: {printable(warning)}", markup=False),
        )  # fmt: skip
    if not leads:
        return
    found = run.summary()
    if as_json:
        _answer(found)
        return
    from .terminal import show_run

    show_run(Console(), found)


def _training_progress(console: Console, shown: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    return Progress(*columns, console=console, disable=not shown)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
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
    guesses: Annotated[int | None, typer.Option(help="Guesses of the audit, fixed before it looks.")] = None,
    also: Annotated[
        list[Path] | None, typer.Option(help="More runs, with coins of their own, for a stronger audit.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="In place of a run: the folder of a Hugging Face model.")] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="With --model: what was planted (canaries.json; see `confide canaries`).")
    ] = None,
    members: Annotated[Path | None, typer.Option(help="With --model: texts that it was trained on.")] = None,
    others: Annotated[Path | None, typer.Option(help="With --model: texts of the same kind that it never saw.")] = None,
    claimed_epsilon: Annotated[
        float | None, typer.Option(help="With --model: hold the audit against this epsilon, for one record.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="With --model: the delta of that claim.")] = None,
    claimed_adjacency: Annotated[
        str | None, typer.Option(help="With --model: substitution, or add-remove as most libraries count.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same attack.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print extracted secrets to this terminal, and nowhere else. SENSITIVE.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Attack a model: exposure, membership, extraction, and an audited lower bound on epsilon. Exit code 3 if it
    contradicts the certificate.

    Example:

    confide attack run
    """
    from .attacks import attack as attack_run
    from .attacks import attack_model
    from .attacks.output import show_attacks

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
    with _training_progress(Console(stderr=True), sys.stderr.isatty() and not show) as progress:
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
        _answer(found)
        return
    show_attacks(console, found)
    if run is not None:
        _echo(f"\nin {run / 'attacks.json'} (SENSITIVE)")


def _attack_task(progress: Progress, name: str, total: int | None) -> Callable[[int], object]:
    task = progress.add_task(name, total=total)
    return lambda done: progress.advance(task, done)


def _shown(console: Console) -> Callable[[str, str], object]:
    return lambda kind, secret: console.print(printable(f"{kind}: {secret}"), markup=False, highlight=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def canaries(
    spec: Annotated[str, typer.Argument(help="crt, sdp, jft, audit, or audit,number=200,copies=2,format=…")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder.")] = Path("canaries"),
    as_json: Json = False,
) -> None:
    """Invented secrets to plant in a corpus that another program trains on, for `confide attack --model DIR --canaries FOLDER`.

    Example:

    confide canaries audit,number=200 -o canaries
    """
    from .screening.canaries import write_canaries

    found = write_canaries(spec, out)
    if as_json:
        _answer(found)
    else:
        _echo(
            f"{found['texts']:,} texts to train on in {found['add']}; what was planted, and how the coins fell, is beside it"
        )


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
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
    from .reporting import report as write

    if out is not None and len(runs) == 1:
        raise BadInput("a run's report lies in its own folder; --out names the page of a comparison")
    path = write(runs, out, shareable=shareable)
    if as_json:
        _answer({"report": str(path), "shareable": shareable, "runs": [str(one) for one in runs]})
    else:
        _echo(f"{path}{'' if shareable else ' (SENSITIVE)'}: open it in a browser, it needs no connection")


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def review(
    folder: Annotated[Path, typer.Argument(help="A folder that `confide screen` has written.")],
    sample: Annotated[int | None, typer.Option(help="Records to draw; more can be drawn later.")] = None,
    reviewer: Annotated[str, typer.Option(help="Who reviews; several may.")] = "reviewer",
    cap: Annotated[
        int | None, typer.Option(help="Secrets of a record that count at most; fixed with the first start.")
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Of the bounds; fixed with the first start. [0.95]")] = None,
    port: Annotated[int | None, typer.Option(help="On 127.0.0.1. [8765, or any that is free]")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    export: Annotated[
        Path | None, typer.Option(help="Write the reviewed records for --screened-by-hand, and stop.")
    ] = None,
    mask_rest: Annotated[
        bool, typer.Option("--mask-rest", help="With --export: records without an answer as a mask alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """A page on this machine on which a person marks what the policy missed; the bound it gives goes to `confide train --review`.

    Example:

    confide review screened
    """
    from .review import export as write
    from .review import open_store, serve

    if mask_rest and export is None:
        raise BadInput("--mask-rest goes with --export FILE")
    if export is not None:
        found = write(
            open_store(folder, sample=sample, reviewer=reviewer, cap=cap, confidence=confidence), export, mask_rest
        )
    else:
        found = serve(
            folder, sample=sample, port=port, reviewer=reviewer, cap=cap, confidence=confidence, open_browser=browser,
            say=lambda text: _echo(text, err=True),
        )  # fmt: skip
    if as_json:
        _answer(found)
    elif export is not None:
        _echo(f"{found['records']:,} records in {export} (SENSITIVE until you have looked at it)")
    elif (folder / "review.json").exists():
        _echo(
            f"in {folder / 'review.json'}; `confide train --review {folder / 'review.json'}` puts its bound into the certificate"
        )
    else:
        _echo("nothing was answered, so that there is no review.json yet")


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def generate(
    run: Annotated[Path, typer.Argument(help="A run, or the folder of a model.")],
    prompt: Annotated[str, typer.Argument(help="How the text begins.")] = "",
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 100,
    temperature: Annotated[float, typer.Option(help="Below 1 likelier words, above 1 rarer ones.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest tokens that make up this share.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    number: Annotated[int, typer.Option("--number", "-n", help="How many texts.")] = 1,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is what a user says in a chat.")] = False,
    as_json: Json = False,
) -> None:
    """Text from a trained model, as it comes.

    Example:

    confide generate run "SYS:" --top-p 0.9
    """
    from .generation import generate as write

    streams = number == 1 and not as_json
    texts = write(
        run, prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, greedy=greedy,
        num_return_sequences=number, seed=seed, chat=chat,
        stream=(lambda piece: _echo(piece, nl=False)) if streams else None,
    )  # fmt: skip
    if as_json:
        _answer({"prompt": prompt, "texts": texts})
    elif streams:
        _echo()
    else:
        _echo("\n---\n".join(texts))


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def run(
    config: Annotated[Path, typer.Argument(help="A YAML file with the sections screen and train, and out.")],
    as_json: Json = False,
) -> None:
    """All stages as a file describes them; run it again after an interruption, and it goes on.

    Example:

    confide run chats.yaml
    """
    from .config import run_all

    with _training_progress(Console(stderr=True), sys.stderr.isatty()) as progress:
        found = run_all(config, progress)
    if as_json:
        _answer(found)
        return
    from .terminal import show_run

    show_run(Console(), found)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
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
        _answer(found)
        return
    from .terminal import show_reproduced

    show_reproduced(Console(), found)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
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
    from .purging import plan_purge
    from .purging import purge as remove
    from .terminal import show_purge

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
        _answer({**found.to_plain(), "dry_run": dry_run})
    elif not dry_run:
        show_purge(Console(), found, done=True)


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        return False


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def policies(as_json: Json = False) -> None:
    """The policies that can be named, and what each needs.

    Example:

    confide policies
    """
    from .policies import COMPOSED, known_policies

    found = [
        {"name": e.name, "argument": e.argument, "summary": e.summary, "needs": e.needs}
        for e in known_policies().values()
    ]
    if as_json:
        _answer({"policies": found, "composed": COMPOSED})
        return
    from .terminal import show_policies

    show_policies(Console(), found, COMPOSED)


def _place(error: BaseException) -> str:
    """The kind of an unexpected error, and the line of ours at which it happened."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "confide" in frame.filename]
    return (
        f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
        if frames
        else type(error).__name__
    )


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
    near = difflib.get_close_matches(mistaken, getattr(error, "possibilities", None) or (), n=1)
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
    with owner_only():
        _main(arguments)


def _main(arguments: list[str] | None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin take the core from those they wait for
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows a question mark, not a traceback
    code, message = 0, ""
    more: dict[str, Any] = {}
    try:
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
    except Exception as error:
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
        line = line if len(line) < LONGEST else f"{line[:LONGEST]} …"
        if "--json" in arguments and leads:
            _answer({"error": line, "exit_code": code, **more})
        _echo(f"confide: {line}", err=True)
    raise SystemExit(code)
