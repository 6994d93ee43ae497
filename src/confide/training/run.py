"""A run's folder: a plan in; model, tokenizer, records and ledger ready to train, and at the end a model and a certificate out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from .. import __version__
from ..accounting import Ledger, LedgerWriter, issue, read_ledger, write
from ..errors import BadInput, ConfideError, Contradiction, Refused
from ..models import (
    Lora,
    add_placeholders,
    build,
    check_sums,
    load_tokenizer,
    load_trained,
    longest,
    prepare,
    save,
    save_tokenizer,
)
from ..models.tokens import BUILT_IN, pretrained
from ..plain_yaml import CONFIG, run_config
from ..purging import PURGED
from ..rundir import LOCK, Lock, make_folder, sync_folder, sync_tree
from ..screening.output import write_private
from . import byhand, processes, sdp, selective
from .corpus import Encoder, Example, Source, TokenFile, fingerprint, tokenise
from .evidence import read_review
from .holdout import split_rows
from .options import Options, listed, option
from .phases import Phase
from .planning import TrainingPlan, plan
from .telemetry import read_telemetry
from .validation import outside

LEDGER, CHECKPOINTS, TOKENS = "ledger.jsonl", "checkpoints", "screened"
DEFAULT_LENGTH = 256
Tick = Callable[[int], object]


@dataclass(frozen=True)
class Run:
    """A finished run on disk."""

    folder: Path

    def model(self) -> Any:
        """The trained model: an ordinary Hugging Face model."""
        return load_trained(self.folder / "model")[0]

    def tokenizer(self) -> Any:
        return load_trained(self.folder / "model")[1]

    @property
    def certificate(self) -> dict[str, Any] | None:
        path = self.folder / "certificate.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def telemetry(self) -> list[dict[str, Any]]:
        return read_telemetry(self.folder / "telemetry.jsonl")

    def summary(self) -> dict[str, Any]:
        """What became of the run, in public numbers."""
        config = run_config(self.folder)
        certificate, lines = self.certificate, self.telemetry()
        validated = [line for line in lines if line.get("validation_loss") is not None]
        if config["options"]["keep"] == "best" and validated:
            phase = [line for line in validated if line["phase"] == validated[-1]["phase"]]
            validated = sorted(phase, key=lambda line: -float(line["validation_loss"]))
        found: dict[str, Any] = {
            "run": str(self.folder),
            "model": str(self.folder / "model"),
            "method": config["options"]["method"],
            "task": config["options"]["task"],
            "validated_on": "all records" if config["options"]["validate_on"] == "all" else "public records",
            "validation_loss": validated[-1]["validation_loss"] if validated else None,
            "validation_accuracy": validated[-1].get("validation_accuracy") if validated else None,
            "certificate": None if certificate is None else str(self.folder / "certificate.json"),
        }
        if certificate is not None:
            main = certificate["guarantees"][0]
            found |= {
                "epsilon": main["epsilon"],
                "delta": main["delta"],
                "k": main["k"],
                "adjacency": certificate["adjacency"]["name"],
                "unit": certificate["unit"],
                "sampler": certificate["sampler"],
                "steps": certificate["ledger"]["steps"],
                "guarantees": certificate["guarantees"],
            }
        return found


@dataclass(frozen=True)
class Stream:
    """Records to train or validate on, by number."""

    tokens: TokenFile
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    pad: int
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Any, pad_id: int | None = None, with_private: bool = False) -> dict[str, Tensor]:
        found = self.tokens.batch(self.rows[indices], self.pad, with_private=with_private)
        return {name: value.to(self.device) for name, value in found.items()}


@dataclass
class Prepared:
    """What a run works with."""

    plan: TrainingPlan
    folder: Path
    model: Any
    tokenizer: Any
    placeholders: dict[str, int]
    device: torch.device
    ledger: LedgerWriter | None = None  # rank 0 alone has it
    lock: Lock | None = None  # so does it this
    resumed: bool = False
    tick: Tick = lambda records: None

    @property
    def ledger_path(self) -> Path | None:
        path = self.folder / LEDGER
        return path if path.exists() else None

    def close(self) -> None:
        """Let go of the ledger and the folder, so that the run can be resumed in this very process."""
        for held in (self.ledger, self.lock):
            if held is not None:
                held.close()

    @property
    def max_length(self) -> int:
        """Tokens of a record: as many as asked for, or as the model sees, at most 256."""
        return self.plan.options.max_length or min(DEFAULT_LENGTH, longest(self.model) or DEFAULT_LENGTH)

    def streams(self, phase: Phase) -> tuple[Stream, Stream]:
        """The records of a phase that are trained on without noise, and those with noise."""
        public = self._by_hand(phase) if phase.by_hand else self._read(phase, phase.public, sdp.public_pieces)
        return public, self._read(phase, phase.private, sdp.private_targets)

    def validation(self) -> Stream | None:
        """Held-out public records, or outside ones that neither policy flags; None if there are none."""
        options, screened = self.plan.options, self.plan.screened
        encoder = self.encoder(None)
        if options.validation is None:
            rows = split_rows(screened, "public", options.validation_share)[1]
            if not len(rows):
                return None
            source = Source(("public",), "screened")
            return self._stream(self._tokenised(source, encoder), rows)
        held = outside(screened, options.validation, everything=options.validate_on == "all")
        name = fingerprint(screened, Source(("public",), "screened"), encoder)[:16]
        folder = self.folder / TOKENS / f"validation-{name}"
        examples = [Example(one.text, "raw", one.turns, (), one.label, "a validation record") for one in held]
        return self._stream(_made(folder, lambda: iter(encoder.encode(examples))))

    def encoder(self, phase: Phase | None) -> Encoder:
        options = self.plan.options
        return Encoder(
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            task=options.task,  # type: ignore[arg-type]
            ignore_mask=phase is not None and phase.ignore_mask,
            drop_masked=phase is not None and phase.drop_masked,
            assistant_only=options.assistant_only,
            placeholders=self.placeholders,
            classes=options.classes,
        )

    def _read(self, phase: Phase, source: Source | None, derive: Callable[[Any], Iterator[Any]]) -> Stream:
        if source is None or not self.plan.records(source):
            return self._nothing()
        tokens = self._tokenised(source, self.encoder(phase))
        rows = self.plan.rows(source)
        if source.view != "segments" or phase.whole_segments:
            return self._stream(tokens, rows)
        folder = tokens.folder.with_name(f"{tokens.folder.name}-{derive.__name__}")
        return self._stream(_made(folder, lambda: derive(tokens[int(row)] for row in rows)))

    def _by_hand(self, phase: Phase) -> Stream:
        encoder = self.encoder(phase)
        file = str(self.plan.options.screened_by_hand)
        folder = self.folder / TOKENS / "screened-by-hand"
        return self._stream(_made(folder, lambda: iter(encoder.encode(byhand.read(file)))))

    def _tokenised(self, source: Source, encoder: Encoder) -> TokenFile:
        """Tokens of a source; rank 0 makes them, the others wait for it."""
        folder = self.folder / TOKENS / fingerprint(self.plan.screened, source, encoder)
        processes.shared(lambda: tokenise(self.plan.screened, source, encoder, folder, self.tick).folder)
        return TokenFile.open(folder)

    def _stream(self, tokens: TokenFile, rows: NDArray[np.int64] | None = None) -> Stream:
        rows = np.arange(len(tokens)) if rows is None else rows
        return Stream(tokens, rows, tokens.lengths[rows], self.tokenizer.pad_token_id, self.device)

    def _nothing(self) -> Stream:
        return self._stream(_made(self.folder / TOKENS / "nothing", lambda: iter(())))


def _made(folder: Path, records: Callable[[], Iterator[Any]]) -> TokenFile:
    def make() -> None:
        TokenFile.open(folder, checked=True) if folder.exists() else TokenFile.write(folder, records())

    processes.shared(make)
    return TokenFile.open(folder)


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


def new_model(plan: TrainingPlan, tokenizer: Any) -> tuple[Any, torch.device]:
    options = plan.options
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(
        options.model,
        tokenizer,
        task=options.task,
        classes=options.classes or None,
        lora=None if options.lora is None else Lora(rank=options.lora, alpha=2 * options.lora),
        from_scratch=options.from_scratch,
        seed=options.seed,
        max_length=options.max_length or (DEFAULT_LENGTH if options.model.partition(":")[0] in BUILT_IN else None),
        dropout=options.dropout,
    )
    if (
        options.precision == "bf16"
        and device.type == "cpu"
        and any(isinstance(m, torch.nn.LSTM) for m in model.modules())
    ):
        raise BadInput("--precision bf16 does not run for an LSTM on a CPU; leave it out")
    selective.check(options, model)
    return model.to(device), device


def new_tokenizer(plan: TrainingPlan) -> tuple[Any, str, dict[str, int]]:
    """The tokenizer, where its vocabulary comes from, and the placeholders' ids."""
    options = plan.options
    tokenizer, kind = load_tokenizer(
        options.tokenizer,
        options.model,
        public_texts=lambda: _public_texts(plan),
        vocabulary_size=options.vocabulary_size,
        external=None if options.vocabulary_from is None else Path(options.vocabulary_from),
    )
    if kind == "public" and not plan.public_is_public:
        raise Refused(
            f"{options.method} counts every record as private, so that no vocabulary may be made from any of them; give "
            "--tokenizer NAME|DIR, or --vocabulary-from FILE with outside text"
        )
    if options.special_tokens:
        tokenizer.add_tokens(list(options.special_tokens))
    return tokenizer, kind, placeholders_of(plan, tokenizer)


def placeholders_of(plan: TrainingPlan, tokenizer: Any) -> dict[str, int]:
    """A token for each type of finding; only a baseline that promises nothing may read the types off the corpus."""
    return (
        add_placeholders(tokenizer, plan.screened.manifest["findings"]) if plan.options.method == "anonymized" else {}
    )


def _public_texts(plan: TrainingPlan) -> Iterator[str]:
    for batch in plan.screened.batches("public", ("text",)):
        yield from batch["text"].to_pylist()


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


def spent_steps(prepared: Prepared) -> dict[str, int]:
    """How many steps of each phase the ledger holds."""
    found: dict[str, int] = {}
    if prepared.ledger_path is not None:
        for phase, event in read_ledger(prepared.ledger_path).spent:
            found[phase] = found.get(phase, 0) + event.count  # type: ignore[union-attr]
    return found


def finish(prepared: Prepared) -> Run:
    """Write the model and, for a private method, its certificate."""

    def write_all() -> None:
        folder, options = prepared.folder, prepared.plan.options
        best = folder / "best"
        if options.keep == "best" and best.exists():
            check_sums(best, "remove it, and `confide train --resume` keeps the last state of the model instead")
            put_in_place(folder / "model", lambda draft: shutil.copytree(best, draft))
        else:
            put_in_place(folder / "model", lambda draft: save(prepared.model, prepared.tokenizer, draft))
        if options.private and prepared.plan.private and prepared.ledger_path is not None:
            assert options.delta is not None
            write(
                issue(read_ledger(prepared.ledger_path), options.delta, prepared.plan.evidence),
                folder / "certificate.json",
            )

    processes.shared(write_all)
    return Run(prepared.folder)


def put_in_place(folder: Path, make: Callable[[Path], object]) -> None:
    """Make a folder anew; under its name it is never seen half made."""
    draft = folder.with_name(f"{folder.name}.partial")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        make(draft)
        sync_tree(draft)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
        sync_folder(folder.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfideError(f"cannot write {folder}: {reason}; make room, then go on with --resume") from None
