"""All stages from one file: a YAML file in; a screened corpus, a trained run and, if asked for, attacks on it out, each made once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import chdir
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.progress import Progress

from .errors import BadInput, ConfideError, meant, printable
from .plain_yaml import CONFIG, read_yaml
from .rundir import locked, make_folder, write_private
from .training.options import Options

SECTIONS = ("out", "corpus", "screen", "train", "attack")  # the last may be left out
FILES = ("screened_by_hand", "validation", "vocabulary_from", "review", "held_out")
FOLDERS = ("model", "tokenizer", "reference")  # or names that are not files: of a hub, or our own
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def read_config(path: str | Path) -> dict[str, Any]:
    """A configuration, checked: `corpus` and `out`, and the options of `screen`, `train` and `attack` under their own names.

    Relative paths are taken from the file's own folder.
    """
    path = Path(path)
    config = read_yaml(path, "the configuration")
    if not isinstance(config, dict):
        raise BadInput(f"{path}: the sections are {', '.join(SECTIONS)}")
    unknown = next((str(name) for name in config if name not in SECTIONS), None)
    if unknown is not None:
        raise BadInput(
            f"{path}: there is no section {unknown[:40]!r}{meant(unknown, SECTIONS)}; the sections are {', '.join(SECTIONS)}"
        )
    missing = [name for name in SECTIONS[:-1] if name not in config]
    if missing:
        raise BadInput(f"{path}: {missing[0]} is missing; the sections are {', '.join(SECTIONS)}")
    sections = [name for name in SECTIONS[2:] if name in config]
    for name in sections:
        if not isinstance(config[name], dict):
            raise BadInput(f"{path}: {name} must hold options, each with a value")
    corpus = config["corpus"] if isinstance(config["corpus"], list) else [config["corpus"]]
    if not corpus or not all(isinstance(one, str) and "\0" not in one for one in [*corpus, config["out"]]):
        raise BadInput(f"{path}: corpus names files, and out a folder")
    here = path.resolve().parent
    config["corpus"] = [one if "://" in one else str(here / one) for one in corpus]
    config["out"] = str(here / config["out"])
    for name in sections:
        config[name] = {str(key).replace("-", "_"): _value(key, value, here) for key, value in config[name].items()}
    return config


def _value(name: Any, value: Any, here: Path) -> Any:
    """An option's value: YAML takes 1e-5 for a text, and files are named from where the configuration lies."""
    if not isinstance(value, str):
        return value
    option = str(name).replace("-", "_")
    if (option in FILES and "://" not in value) or (option in FOLDERS and os.path.exists(here / value)):
        return str(here / value)
    return float(value) if NUMBER.fullmatch(value) else value


def run_all(path: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """Screen, train and, if asked for, attack, in one folder; stages that are whole are not made again, interrupted ones go on."""
    config = read_config(path)
    try:
        Options.from_plain(config["train"])  # before hours of screening
    except BadInput as error:
        raise BadInput(f"{path}, train: {error}") from None
    out = Path(config["out"])
    try:
        make_folder(out)
    except OSError as error:
        raise BadInput(f"cannot create the folder {out}: {error.strerror}; name another with out") from None
    with locked(out), chdir(Path(path).resolve().parent):  # files that a policy names too lie beside the configuration
        return _run_all(config, out, progress or Progress(disable=True))


def _run_all(config: dict[str, Any], out: Path, progress: Progress) -> dict[str, Any]:
    chosen = None if "attack" not in config else _attack_options(config["attack"])
    screened = _screen(config, out / "screened", _task(progress, "screening"))
    found = _train(config, screened, out, progress)
    if chosen is not None:
        _attack(out / "run", chosen, progress)
    return found


def _attack_options(given: dict[str, Any]) -> dict[str, Any]:
    from .attacks.options import Options as Attack

    known = {field.name for field in fields(Attack)} - {"progress", "show"}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise BadInput(f"the section attack has an unknown option {unknown[0][:40]!r}; see `confide attack --help`")
    Attack(**given)
    return given


def _attack(run: Path, chosen: dict[str, Any], progress: Progress) -> None:
    """Attack a run once with these options; what an attack with them has contradicted stays contradicted."""
    from .attacks import attack
    from .attacks.options import Options as Attack
    from .attacks.output import FILE, read_attacks, refuse_contradicted

    wanted = json.loads(json.dumps(Attack(**chosen).to_plain()))
    if (run / FILE).exists() and (found := read_attacks(run / FILE)).get("options") == wanted:
        refuse_contradicted(found)
    else:
        attack(run, progress=lambda name, total: _task(progress, name, total), **chosen)


def _task(progress: Progress, name: str, total: int | None = None) -> Callable[[int], object]:
    task = progress.add_task(name, total=total)
    return lambda size: progress.advance(task, size)


def _screening_options(config: dict[str, Any]) -> Any:
    from .records import Fields
    from .screening import Options as Screening

    given = {name: value for name, value in config["screen"].items() if name != "workers"}
    columns = {
        name: given.pop(f"{name}_field") for name in ("text", "id", "group", "label") if f"{name}_field" in given
    }
    known = {field.name for field in fields(Screening)} - {"fields"}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise BadInput(f"the section screen has an unknown option {unknown[0][:40]!r}; see `confide screen --help`")
    if "policy" not in given:
        raise BadInput("the section screen names no policy: what counts as a secret? `confide policies` lists them")
    wrong = next((name for name, value in given.items() if isinstance(value, (list, dict))), None)
    if wrong:
        raise BadInput(f"the section screen: {wrong} is one value, not a list or a mapping")
    if columns:
        given["fields"] = Fields(**columns)
    return Screening(**given)


def _screen(config: dict[str, Any], folder: Path, tick: Callable[[int], object]) -> Any:
    from .screening import Screened, screen

    options = _screening_options(config)
    workers = config["screen"].get("workers")  # how many changes nothing but the time
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
        raise BadInput("the section screen: workers is a whole number, at least 1")
    stamp = folder.parent / "screen.json"
    lasting = {name: value for name, value in config["screen"].items() if name != "workers"}
    wanted = json.dumps([config["corpus"], lasting], sort_keys=True)
    if folder.exists():
        if stamp.exists() and stamp.read_bytes() != wanted.encode():
            raise BadInput(f"{folder} was screened with other options, as {stamp} says; name another folder with out")
        return Screened.open(folder)
    try:
        write_private(stamp, wanted)
    except OSError as error:
        raise ConfideError(f"cannot write {stamp}: {error.strerror}; make room, and run the command again") from None
    partial = folder.with_name(folder.name + ".partial")
    return screen(config["corpus"], out=folder, options=options, workers=workers, resume=partial.exists(), tick=tick)


def _train(config: dict[str, Any], screened: Any, out: Path, progress: Progress) -> dict[str, Any]:
    from .models import check_sums
    from .training import Run, make_plan, plan_of, train_plan

    options = Options.from_plain(config["train"])
    folder = out / "run"
    begun = (folder / CONFIG).exists()
    if begun:
        plan = plan_of(folder, screened.folder, {f.name: getattr(options, f.name) for f in fields(options)})
        if (folder / "model").exists() and ((folder / "certificate.json").exists() or plan.certificate() is None):
            check_sums(folder / "model")
            return dict(Run(folder).summary())
    else:
        plan = make_plan(screened, options)
    steps = progress.add_task("training", total=None)
    run = train_plan(
        plan, folder, resume=begun, tick=lambda done, total: progress.update(steps, completed=done, total=total),
        reading=_task(progress, "reading"), say=lambda note: progress.console.print(f"note: {printable(note)}", markup=False),
    )  # fmt: skip
    return dict(run.summary())
