"""`plan`, `train`, `run` and `generate`: from a screened corpus to a model, its certificate and its text."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console

from ..errors import BadInput, printable
from .shell import HelpAll, Json, command, echo, progress_bar, reply


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all training options, which it receives as `choices`: those that the user named."""
    from ..training.options import CHOICES, COMMON, HELP, Options

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


@command()
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
    from ..training import make_plan, probe_plan

    made = make_plan(screened, **choices)
    with Console(stderr=True, quiet=as_json or not sys.stderr.isatty()).status("measuring two steps of each kind"):
        measured = probe_plan(made) if probe else None
    if as_json:
        reply(made.summary(measured))
        return
    from ..terminal import show_plan

    show_plan(Console(), made.summary(measured))


@command()
@_with_options
def train(
    screened: Annotated[
        Path | None, typer.Argument(help="A folder that `confide screen` has written; not needed with --resume.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the run.")] = Path("run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", hidden=True, help="Write public telemetry for TensorBoard, too.")
    ] = False,
    as_json: Json = False,
    help_all: HelpAll = False,
    **choices: Any,
) -> None:
    """Train a model and write its certificate. Shows and stores public quantities only.

    Example:

    confide train screened --model gpt2-tiny --epsilon 2 --delta 1e-5 -o run
    """
    from ..training import make_plan, plan_of, train_plan

    ended = resume and (out / "model").is_dir()
    if resume:
        made = plan_of(out, screened, choices)
    elif screened is None:
        raise BadInput("name the screened corpus to train on, or go on with an interrupted run by --resume")
    else:
        made = make_plan(screened, **choices)
    leads = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True)
    with progress_bar(console, leads and sys.stderr.isatty()) as progress:
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
        reply(found)
        return
    from ..terminal import show_run

    if ended:
        Console().print("it had ended before: nothing was trained now", markup=False)
    show_run(Console(), found)


@command()
def run(
    config: Annotated[Path, typer.Argument(help="A YAML file with the sections screen and train, and out.")],
    as_json: Json = False,
) -> None:
    """All stages as a file describes them; run it again after an interruption, and it goes on.

    Example:

    confide run chats.yaml
    """
    from ..config import run_all

    with progress_bar(Console(stderr=True), sys.stderr.isatty()) as progress:
        found = run_all(config, progress)
    if as_json:
        reply(found)
        return
    from ..terminal import show_run

    show_run(Console(), found)
    if (Path(found["run"]) / "attacks.json").is_file():
        Console().print(f"attacked: confide report {found['run']} shows what was found", markup=False)


@command()
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
    from ..generation import generate as write

    streams = number == 1 and not as_json
    texts = write(
        run, prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, greedy=greedy,
        num_return_sequences=number, seed=seed, chat=chat,
        stream=(lambda piece: echo(piece, nl=False)) if streams else None,
    )  # fmt: skip
    if as_json:
        reply({"prompt": prompt, "texts": texts})
    elif streams:
        echo()
    else:
        echo("\n---\n".join(texts))
