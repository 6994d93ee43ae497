"""What a run works with: its plan, folder, model and tokenizer in; the records of each phase as streams of tokens out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..accounting import LedgerWriter, read_ledger
from ..errors import BadInput
from ..models import longest
from ..rundir import Lock
from . import byhand, processes, sdp
from .building import DEFAULT_LENGTH
from .corpus import Source, TokenFile, fingerprint, tokenise
from .encoding import Encoder, Example
from .fillings import invented
from .holdout import split_rows
from .phases import Phase
from .planning import TrainingPlan
from .validation import outside

LEDGER, CHECKPOINTS, TOKENS = "ledger.jsonl", "checkpoints", "screened"
Tick = Callable[[int], object]


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

    def batch(self, indices: Any) -> dict[str, Tensor]:
        found = self.tokens.batch(self.rows[indices], self.pad)
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
            return self.stream(self._tokenised(source, encoder), rows)
        held = outside(screened, options.validation, everything=options.validate_on == "all")
        name = fingerprint(screened, Source(("public",), "screened"), encoder)[:16]
        folder = self.folder / TOKENS / f"validation-{name}"
        examples = [Example(one.text, "raw", one.turns, (), one.label, "a validation record") for one in held]
        return self.stream(_made(folder, lambda: iter(encoder.encode(examples))))

    def encoder(self, phase: Phase | None) -> Encoder:
        options = self.plan.options
        return Encoder(
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            task=options.task,  # type: ignore[arg-type]
            ignore_mask=phase is not None and phase.ignore_mask,
            fillings=invented() if phase is not None and phase.fill_masks else (),
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
            return self.stream(tokens, rows)
        folder = tokens.folder.with_name(f"{tokens.folder.name}-{derive.__name__}")
        return self.stream(_made(folder, lambda: derive(tokens[int(row)] for row in rows)))

    def _by_hand(self, phase: Phase) -> Stream:
        encoder = self.encoder(phase)
        file = str(self.plan.options.screened_by_hand)
        folder = self.folder / TOKENS / "screened-by-hand"
        return self.stream(_made(folder, lambda: iter(encoder.encode(byhand.read(file)))))

    def _tokenised(self, source: Source, encoder: Encoder) -> TokenFile:
        """Tokens of a source; rank 0 makes them, the others wait for it."""
        folder = self.folder / TOKENS / fingerprint(self.plan.screened, source, encoder)
        if encoder.fillings and self.resumed and not folder.exists() and self._begun:
            raise BadInput(
                f"{folder} is gone: what stands for the masks while {self.folder} is trained was drawn when it began; bring it back from a backup, "
                "or start a new run"
            )
        there = folder.exists()
        try:
            processes.shared(lambda: tokenise(self.plan.screened, source, encoder, folder, self.tick).folder)
            return TokenFile.open(folder)
        except BadInput:
            if not (there and encoder.fillings and self.resumed and self._begun):
                raise
            raise BadInput(
                f"the tokens in {folder} are damaged or truncated, and cannot be made again: what stands for the masks in them was drawn when "
                f"{self.folder} began; bring the folder back from a backup, or start a new run"
            ) from None

    @property
    def _begun(self) -> bool:
        """Whether any step is known to have been taken."""
        return bool(spent_steps(self)) or any((self.folder / CHECKPOINTS).glob("[0-9]*"))

    def stream(self, tokens: TokenFile, rows: NDArray[np.int64] | None = None) -> Stream:
        """Some rows of a file of tokens, or all of it, as batches on the model's device."""
        rows = np.arange(len(tokens)) if rows is None else rows
        return Stream(tokens, rows, tokens.lengths[rows], self.tokenizer.pad_token_id, self.device)

    def _nothing(self) -> Stream:
        return self.stream(_made(self.folder / TOKENS / "nothing", lambda: iter(())))


def _made(folder: Path, records: Callable[[], Iterator[Any]]) -> TokenFile:
    def make() -> None:
        TokenFile.open(folder, checked=True) if folder.exists() else TokenFile.write(folder, records())

    processes.shared(make)
    return TokenFile.open(folder)


def spent_steps(prepared: Prepared) -> dict[str, int]:
    """How many steps of each phase the ledger holds."""
    found: dict[str, int] = {}
    if prepared.ledger_path is not None:
        for phase, event in read_ledger(prepared.ledger_path).spent:
            found[phase] = found.get(phase, 0) + event.count  # type: ignore[union-attr]
    return found
