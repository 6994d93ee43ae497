"""The beginning of a run: a plan and a folder in; everything that training needs out, on disk, whole or not at all; and the same when it is resumed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from .. import __version__
from ..accounting import Ledger, LedgerWriter, read_ledger
from ..errors import BadInput, ConfideError, Contradiction, Refused
from ..models import check_sums, prepare, save_tokenizer
from ..models.tokens import pretrained
from ..plain_yaml import CONFIG, run_config
from ..purging import PURGED
from ..rundir import LOCK, Lock, make_folder, sync_folder, sync_tree, write_private
from . import processes
from .building import new_model, new_tokenizer, placeholders_of
from .evidence import read_review
from .options import Options, listed, option
from .planning import TrainingPlan, plan
from .prepared import CHECKPOINTS, LEDGER, Prepared, Tick


def prepare_run(plan: TrainingPlan, folder: Path, resume: bool, tick: Tick) -> Prepared:
    """Everything that a run needs, in a new folder or in the one that is resumed."""
    processes.shared(lambda: _check_folder(folder, resume))  # one looks, before one of them makes it
    held: list[Lock] = []
    processes.shared(lambda: held.append(Lock(folder)) if resume else None)
    try:
        return _prepared(plan, folder, resume, tick, held[0] if held else None)
    except BaseException:
        for lock in held:
            lock.close()
        raise


def _prepared(plan: TrainingPlan, folder: Path, resume: bool, tick: Tick, lock: Lock | None) -> Prepared:
    if resume:
        check_sums(folder / CHECKPOINTS / "tokenizer", "start a new run")
        tokenizer, kind = prepare(pretrained(str(folder / CHECKPOINTS / "tokenizer"))), ""
        placeholders = placeholders_of(plan, tokenizer)
    else:
        tokenizer, kind, placeholders = new_tokenizer(plan)
    model, device = new_model(plan, tokenizer)
    prepared = Prepared(plan, folder, model, tokenizer, placeholders, device, lock=lock, resumed=resume, tick=tick)
    _refuse_turns(prepared)
    processes.shared(lambda: _start(prepared, kind, resume))
    return prepared


def _refuse_turns(prepared: Prepared) -> None:
    """Raise where the roles of a chat's raw text can be known only from its screened text, which other records have a say in."""
    plan = prepared.plan
    raw = any(
        source is not None and source.view == "raw" for phase in plan.phases for source in (phase.public, phase.private)
    )
    others = plan.screened.manifest["dedup"] != "off" or plan.screened.manifest["context"] == "group"
    chats = plan.options.private and raw and others and prepared.encoder(None).reads_turns
    # Whether there are chats at all is no secret's to decide: of records that are the same, roles included, dedup leaves one.
    if chats and (plan.screened.manifest["dedup_unit"] != "record" or plan.screened.has_turns()):
        raise Refused(
            f"{plan.options.method} reads chats as they were, with their roles, but dedup (or a policy that reads whole documents) let other "
            "records decide where the roles are; screen again with --dedup off and --context record"
        )


def _check_folder(folder: Path, resume: bool) -> None:
    if resume and not (folder / CONFIG).exists():
        raise BadInput(f"there is nothing to resume: {folder} holds no {CONFIG}; start the run without --resume")
    if not resume and folder.exists():
        raise BadInput(
            f"{folder} exists and is never overwritten; go on with it by --resume, or name a new folder with -o"
        )


def _start(prepared: Prepared, kind: str, resume: bool) -> None:
    """Make the folder, its configuration and its ledger, all of it or nothing; or open them again."""
    plan, folder = prepared.plan, prepared.folder
    if not resume:
        prepared.lock = _draft(prepared, kind)
    if resume:
        _refuse_another_run(prepared)
    prepared.ledger = LedgerWriter.resume(folder / LEDGER) if plan.planned else None


def _draft(prepared: Prepared, kind: str) -> Lock:
    """Make a new run under another name, and give it its own when everything is on disk. Out: its lock, which goes with it."""
    folder = prepared.folder
    draft = folder.with_name(f".{folder.name}.partial")
    if draft.is_symlink() or (draft.exists() and not _left_by_a_start(draft)):
        raise BadInput(
            f"{draft} is nothing that a start of a run left, and is in the way; move it, or name another folder with -o"
        )
    lock = None
    try:
        make_folder(draft, 0o700)
        lock = Lock(draft)
        for path in [path for path in draft.iterdir() if path.name != LOCK]:
            # of a start that was killed, before anything was spent
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        _begin(prepared, draft, kind)
        sync_tree(draft)
        _check_folder(folder, resume=False)  # another process may have been faster
        os.rename(draft, folder)
        sync_folder(folder.parent)
    except BaseException as error:
        if lock is not None:
            shutil.rmtree(draft, ignore_errors=True)
            lock.close()
        if not isinstance(error, OSError):
            raise
        raise ConfideError(
            f"cannot write {folder}: {error.strerror or error}; nothing was trained. Make room or name another folder with -o"
        ) from None
    return lock


def _left_by_a_start(draft: Path) -> bool:
    """Whether a folder holds nothing but what `_begin` writes: only then may it be emptied."""
    if not draft.is_dir() or draft.stat().st_uid != os.getuid():
        return False
    found = {path.name for path in draft.iterdir()}
    return not found or (
        LOCK in found and found <= {LOCK, CONFIG, CHECKPOINTS, LEDGER, "review.json", "review.json.new"}
    )


def _refuse_another_run(prepared: Prepared) -> None:
    """Raise unless the ledger was begun for this very plan: its first line is what the certificate will be about."""
    path, plan = prepared.folder / LEDGER, prepared.plan
    if not path.exists() and not plan.planned:
        return
    ledger = read_ledger(path)
    if (ledger.planned, ledger.setting) != (plan.planned, plan.setting.to_plain()):
        raise Refused(
            f"the ledger {path} was begun for another plan or setting than {prepared.folder / CONFIG} now says: its certificate would be "
            "about something else than what is trained; bring back the configuration, or start a new run"
        )
    certified = prepared.folder / "certificate.json"
    if certified.exists():
        _refuse_shorter(certified, ledger)


def _refuse_shorter(certified: Path, ledger: Ledger) -> None:
    """Raise if an earlier end of this run was certified with more steps than its ledger now holds: they would be taken twice."""
    try:
        length = json.loads(certified.read_text(encoding="utf-8"))["ledger"]["length"]
        shorter = not isinstance(length, int) or length > ledger.length
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        shorter = True
    if shorter:
        raise Contradiction(
            f"{certified} counts more steps than the ledger beside it, or is damaged: entries were cut off, and what they paid for would be "
            "taken again uncounted; bring the ledger back from a backup, or start a new run"
        )


def _begin(prepared: Prepared, folder: Path, kind: str) -> None:
    plan = prepared.plan
    folder.chmod(0o700)
    (folder / CHECKPOINTS).mkdir(mode=0o700)
    save_tokenizer(prepared.tokenizer, folder / CHECKPOINTS / "tokenizer")
    config = {
        "confide": __version__,
        "screened": str(plan.screened.folder.resolve()),
        "digest": plan.screened.manifest["digest"],
        "corpus": plan.screened.manifest.get("corpus", []),
        "noise": {name: private.noise_multiplier for name, private in plan.private.items()},
        "options": plan.options.to_plain(),
    }
    (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    if plan.options.review is not None:  # as it is now: the review may go on, and the ledger names this one
        write_private(folder / "review.json", Path(plan.options.review).read_text(encoding="utf-8"))
        if read_review(folder / "review.json", plan.screened) != plan.evidence:
            raise BadInput(f"{plan.options.review} was changed while the run began; start it again")
    if plan.planned:
        assert kind == plan.setting.vocabulary
        with LedgerWriter.create(folder / LEDGER, plan.setting.to_plain(), plan.planned) as ledger:
            for phase, event in plan.planned:
                if phase == "tuning":
                    ledger.append(event, phase)


def plan_of(
    folder: str | Path, screened: str | Path | None = None, choices: Mapping[str, Any] | None = None
) -> TrainingPlan:
    """The plan that a run was started with, from its configuration; what is given besides must agree with it."""
    folder = Path(folder)
    if (folder / PURGED).exists():
        raise BadInput(
            f"{folder} was purged: its records and checkpoints are gone. It can be verified, reported and used, and attacked by `confide "
            f"attack --model {folder / 'model'}`; to train, start a new run"
        )
    if not (folder / CONFIG).is_file():
        raise BadInput(f"there is nothing to resume: {folder} holds no {CONFIG}")
    try:
        config = run_config(folder)
        options = _options(folder, config["options"])
        for name, value in (choices or {}).items():
            if getattr(options, name) != (listed(value) if isinstance(getattr(options, name), tuple) else value):
                raise BadInput(
                    f"{folder} was started with another {option(name)}; go on with that one, or start a new run elsewhere"
                )
        if (folder / "review.json").exists():
            options = replace(options, review=str(folder / "review.json"))
        made = plan(screened or config["screened"], options, noises=config["noise"])
    except BadInput:
        raise
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadInput(f"{folder / CONFIG} is damaged; bring it back from a backup") from None
    if made.screened.manifest["digest"] != config["digest"]:
        raise BadInput(
            f"{made.screened.folder} was screened anew since this run began: its ledger is about other records; start a new run"
        )
    return made


def _options(folder: Path, plain: Any) -> Options:
    try:
        return Options.from_plain(plain)
    except BadInput as error:
        raise BadInput(f"{folder / CONFIG} is damaged ({error}); bring it back from a backup") from None
