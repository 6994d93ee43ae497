"""The loop: a plan in; steps with and without noise, checkpoints and telemetry on the way; a model and its certificate out."""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..accounting import LedgerWriter
from ..accounting.events import Noiseless
from ..dp import PrivateGradients, Step, keep_memory
from ..errors import BadInput
from ..models import save
from . import checkpoints, evaluation, processes
from .beginning import prepare_run
from .optim import Annealing, Rate, make_optimizer, set_rate
from .phases import Phase, Slot, slots
from .planning import TrainingPlan
from .prepared import CHECKPOINTS, Prepared, Stream, spent_steps
from .run import Run, finish, put_in_place
from .selective import Selective
from .steps import PublicGradients, autocast, count_targets, seed_dropout
from .telemetry import Telemetry

Tick = Callable[[int, int], object]  # slots done, slots in all
# Model, tokenizer, phase, epoch, private steps so far
AfterEpoch = Callable[[Any, Any, str, int, Mapping[str, int]], object]
WINDOW = 32  # public batches whose records are sorted by length, for less padding
VALIDATED = 2000  # records at most
MORE = 3  # times as many records in a microbatch, if they are short
TICKS = 8  # private steps between two moves of the progress bar: single steps' times depend on the draw


def train(
    plan: TrainingPlan,
    out: str | Path,
    *,
    resume: bool = False,
    board: bool = False,
    tick: Tick = lambda done, total: None,
    reading: Callable[[int], object] = lambda records: None,
    say: Callable[[str], object] = lambda warning: None,
    after_epoch: AfterEpoch | None = None,
) -> Run:
    """Train as planned. Killed at any moment, it goes on with `resume=True`. `after_epoch` may look at the model, and nothing more.

    *Formal guarantees.* Private records influence the run through `PrivateGradients.release` alone; each of its steps is in
    the ledger before it is drawn. Everything else (the order of public batches, learning rates, when a step is taken,
    telemetry) is a function of the options, the public part and the released gradients. After a resume, steps that the
    ledger holds beyond the checkpoint are not taken again: they count as spent.
    """
    with processes.joined(), contextlib.closing(prepare_run(plan, Path(out), resume, reading)) as prepared:
        work = _begin(plan, prepared, board)
        for note in (*plan.notes, *work.warnings):
            say(note)
        every = plan.options.checkpoint_every or max(1, work.total // 20)
        for slot in islice(work.slots(), work.done, None):
            work.enter(slot.phase)
            if slot.kind == "public":
                work.public_step(slot)
            elif slot.kind == "private":
                work.private_step(slot)
            else:
                work.end_epoch(slot)
                if after_epoch is not None and processes.rank() == 0:
                    after_epoch(work.model, prepared.tokenizer, work.phase.name, slot.epoch, work.spent)
            work.done += 1
            if work.done % every == 0 or work.done == work.total:
                work.checkpoint()
            if slot.kind != "private" or slot.step % TICKS == 0:
                tick(work.done, work.total)
        work.close()
        return finish(prepared)


def _begin(plan: TrainingPlan, prepared: Prepared, board: bool) -> Work:
    """The work; a new run that is refused before its first step leaves no folder behind."""
    try:
        return Work(plan, prepared, board)
    except BadInput:
        prepared.close()
        if not prepared.resumed and processes.rank() == 0:
            shutil.rmtree(prepared.folder, ignore_errors=True)
        raise


class Work:
    """The state of a run between two slots."""

    def __init__(self, plan: TrainingPlan, prepared: Prepared, board: bool) -> None:
        self.plan, self.options, self.prepared = plan, plan.options, prepared
        self.model, self.ledger = prepared.model, prepared.ledger
        self.validation = prepared.validation()
        self.total = sum(1 for _ in self.slots())
        self.done, self.annealing, self.losses = 0, Annealing(), list[float]()
        self.norm: float | None = None
        self.best: float | None = None
        self.warnings: tuple[str, ...] = ()
        self._phase = -1
        self._private: Iterator[Step] = iter(())
        self._selective: Selective | None = None
        self._order: tuple[tuple[int, int], NDArray[np.int64]] | None = None
        self._restored = checkpoints.latest(prepared.folder / CHECKPOINTS) if prepared.resumed else None
        if self._restored is not None:
            self.warnings = self._restored.warnings
            self.done = self._restored.slots
            self.best = self._restored.state["best"] if (prepared.folder / "best").exists() else None
            self.annealing = Annealing.from_plain(self._restored.state["annealing"])
        self.spent: dict[str, int] = processes.shared(lambda: spent_steps(prepared))
        self._at_start = dict(self.spent)
        self.telemetry: Telemetry | None = None
        if processes.rank() == 0:
            self.telemetry = Telemetry(
                prepared.folder / "telemetry.jsonl", self.done, prepared.folder / "tensorboard" if board else None
            )
        keep_memory()
        self.enter(self._restored.state["phase"] if self._restored else 0)

    def slots(self) -> Iterator[Slot]:
        for number, phase in enumerate(self.plan.phases):
            public, private = self.plan.public_steps(phase), self.plan.private_steps(phase)
            yield from slots(number, phase.epochs, public, private, self.options.order)

    @property
    def phase(self) -> Phase:
        return self.plan.phases[self._phase]

    def enter(self, number: int) -> None:
        """Begin a phase: its optimizer, its private steps, its entry in the ledger if it trains without noise."""
        if number == self._phase:
            return
        self._leave()
        if self._phase >= 0:
            # Another text, another noise: an earlier phase's losses are no measure.
            self.annealing, self.best = Annealing(), None
        self._phase = number
        options, name = self.options, self.phase.name
        self.public, self.private = self.prepared.streams(self.phase)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(
            trained, options.optimizer, momentum=options.momentum, weight_decay=options.weight_decay
        )
        if self._restored is not None:
            checkpoints.load(self._restored, self.model, self.optimizer, ledger_path=self.prepared.ledger_path)
            self._restored = None
        self.plain = PublicGradients(self.model, options.task)
        if self.ledger is not None and self.phase.secrets_in_public:
            _enter_noiseless(self.ledger, self.plan, self.phase, self.spent.get(name, 0))
        if name not in self.plan.private:
            return
        if self.phase.whole_segments:
            spent = self.spent.get(name, 0)
            self._selective = Selective(self.plan, self.phase, self.prepared, self.private, self.optimizer, spent)
            self.gradients = self._selective.gradients
            return
        private = self.plan.private[name]
        self.gradients = PrivateGradients(
            self.model.train(), private, task=options.task, reduction=options.reduction, clipping=options.clipping
        )
        self._private = private.run(self.ledger, phase=name, reserve=options.reserve)

    def _leave(self) -> None:
        if self._phase >= 0 and self.phase.name in self.plan.private:
            self.gradients.detach()

    def public_step(self, slot: Slot) -> None:
        """A step on records without noise: the same in every process, whatever their number."""
        options, stream = self.options, self.public
        seed_dropout(self.prepared.device, options.seed, slot.phase, slot.step)  # so that no private step moves them
        steps = self.plan.public_steps(self.phase)
        size = -(-len(stream) // steps)
        if self._order is None or self._order[0] != (slot.phase, slot.epoch):
            self._order = (slot.phase, slot.epoch), order_of(stream.lengths, size, options.seed, slot)
        begin = slot.step % steps * size
        mine = self._order[1][begin : begin + size][processes.rank() :: processes.world()]
        batches = [
            stream.batch(rows) for rows in by_length(stream.lengths, mine, options.microbatch, self._longest(stream))
        ]
        count = torch.tensor(float(sum(count_targets(batch, options.task) for batch in batches)))
        count = processes.total(count).clamp_min(1.0)
        self._open()
        loss = 0.0
        with autocast(options.precision, self.prepared.device):
            for batch in batches:
                loss += self.plain.backward(batch, float(count))
        self._join_gradients()
        if options.public_clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.public_clip)
        self.losses.append(float(processes.total(torch.tensor(loss))))
        self._advance(self._rate(slot))
        self._log(slot)

    def _longest(self, stream: Stream) -> int:
        return self.options.max_length or int(stream.lengths.max(initial=1))

    def private_step(self, slot: Slot) -> None:
        """A step with noise on a Poisson batch; none if an earlier start of this run has already paid for it."""
        if self._selective is not None:
            losses = self._selective.step(slot, self._rate)
            self.spent[self.phase.name] = self._selective.epochs
            self.losses += losses
            if losses:
                self._log(slot)
            return
        if slot.step < self._at_start.get(self.phase.name, 0):
            return
        step = next(self._private)
        # Dropout's coins are secret here: known ones, dealt out by place in the batch, would show who else is in it.
        seed_dropout(self.prepared.device, secrets.randbits(63))
        self._open()
        with autocast(self.options.precision, self.prepared.device):
            longest = self._longest(self.private)
            for rows in by_length(self.private.lengths, step.indices, self.options.microbatch, longest):
                self.gradients.accumulate(self.private.batch(rows))
        self.gradients.release(step)
        self.spent[self.phase.name] = slot.step + 1
        if slot.step % self.options.log_every == 0:
            self.norm = _norm(self.model)
        self._advance(self._rate(slot))
        self._log(slot)

    def end_epoch(self, slot: Slot) -> None:
        """Validate on public records; learning rates may follow that, and nothing else."""
        found = processes.shared(self._validate)
        if self.validation is not None and self.options.schedule == "anneal":
            self.annealing = self.annealing.see(found.get("loss", math.inf))
        if self.telemetry is not None:
            values: dict[str, Any] = {f"validation_{name}": value for name, value in found.items()}
            epsilon = self.plan.epsilon(self.spent)
            if epsilon is not None:
                values |= {"epsilon": epsilon, "delta": self.options.delta, "epsilon_of": self.plan.claim}
            self._write(slot, **values)

    def _validate(self) -> dict[str, float]:
        if self.validation is None:
            return {}
        rows = np.arange(len(self.validation))[:VALIDATED]
        found = evaluation.quick(self.model, self.validation, rows, batch=self.options.microbatch)
        if (
            self.options.keep == "best"
            and math.isfinite(found["loss"])
            and (self.best is None or found["loss"] < self.best)
        ):
            self.best = found["loss"]
            put_in_place(self.prepared.folder / "best", lambda draft: save(self.model, self.prepared.tokenizer, draft))
        return {name: float(found[name]) for name in ("loss", "accuracy") if math.isfinite(found[name])}

    def checkpoint(self) -> None:
        """Write a checkpoint, with the ledger's length and head; rank 0 does."""
        if processes.rank() != 0:
            return
        state = {"phase": self._phase, "annealing": self.annealing.to_plain(), "best": self.best}
        ledger = None if self.ledger is None else {"length": self.ledger.length, "head": self.ledger.head}
        folder = self.prepared.folder / CHECKPOINTS
        if self.telemetry is not None:
            self.telemetry.sync()
        checkpoints.save(folder, self.model, self.optimizer, state, ledger, slots=self.done)

    def close(self) -> None:
        self._leave()
        if self.telemetry is not None:
            self.telemetry.close()
        if self.ledger is not None:
            self.ledger.close()

    def _rate(self, slot: Slot) -> float:
        options = self.options
        if slot.kind == "public":
            rate = Rate(options.learning_rate, options.schedule, options.warmup)
            total = self.plan.public_steps(self.phase) * self.phase.epochs or self.plan.private_steps(self.phase)
            return rate.at(slot.step, total) * self.annealing.scale
        base = options.learning_rate if options.private_learning_rate is None else options.private_learning_rate
        total = self.plan.private_steps(self.phase)
        return Rate(base, options.private_schedule, options.warmup).at(slot.step, total) * self.annealing.scale

    def _open(self) -> None:
        """Before a step: no gradient is left, and dropout is on."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        if not self.model.training:
            self.model.train()

    def _advance(self, rate: float) -> None:
        set_rate(self.optimizer, rate)
        self.optimizer.step()

    def _join_gradients(self) -> None:
        if processes.world() > 1:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    processes.total(parameter.grad)

    def _log(self, slot: Slot) -> None:
        if slot.step % self.options.log_every == 0:
            name = "learning_rate" if slot.kind == "public" else "private_learning_rate"
            self._write(slot, **{name: self._rate(slot)})

    def _loss_name(self) -> str | None:
        """As what the loss of steps without noise may be shown (guarantees §7): of public text, or by methods that promise nothing."""
        source = self.phase.public
        if source is not None and (source.parts == ("public",) or source.view == "segments"):
            return "public_loss"
        return None if self.options.private else "training_loss"

    def _write(self, slot: Slot, **values: Any) -> None:
        if self.telemetry is not None:
            name = self._loss_name()
            if name and self.losses and math.isfinite(mean := sum(self.losses) / len(self.losses)):
                values[name] = mean
            if self.norm is not None:
                values["noised_gradient_norm"] = self.norm
            at = {"phase": self.phase.name, "epoch": slot.epoch, "slot": self.done + 1}
            steps = {f"{slot.kind}_step": slot.step} if slot.kind != "epoch" else {}
            self.telemetry.write(**at, **steps, **values)
        self.losses, self.norm = [], None


def order_of(lengths: NDArray[np.int64], batch: int, seed: int, slot: Slot) -> NDArray[np.int64]:
    """The order of public records in an epoch: shuffled, alike in length within a batch."""
    coins = np.random.default_rng([seed, slot.phase, slot.epoch])
    order = coins.permutation(len(lengths))
    for begin in range(0, len(order), WINDOW * batch):
        window = order[begin : begin + WINDOW * batch]
        window = window[np.argsort(lengths[window], kind="stable")]
        whole = len(window) // batch * batch
        batches = window[:whole].reshape(-1, batch)
        order[begin : begin + len(window)] = np.concatenate([coins.permutation(batches).reshape(-1), window[whole:]])
    return order


def by_length(
    lengths: NDArray[np.int64], indices: NDArray[np.int64], size: int, longest: int
) -> Iterator[NDArray[np.int64]]:
    """The drawn records in microbatches of similar length; which is in which changes the sum by rounding only.

    A microbatch holds `size` records, or more short ones: as many as have the tokens of `size` records of length `longest`, up to
    MORE times as many.
    """
    ordered = indices[np.argsort(lengths[indices], kind="stable")]
    end = len(ordered)
    while end > 0:
        fitting = size * longest // max(1, int(lengths[ordered[end - 1]]))
        begin = max(0, end - min(MORE * size, max(size, fitting)))
        yield ordered[begin:end]
        end = begin


def _enter_noiseless(ledger: LedgerWriter, plan: TrainingPlan, phase: Phase, spent: int) -> None:
    planned = next(event for name, event in plan.planned if name == phase.name and isinstance(event, Noiseless))
    if not spent:
        ledger.append(planned, phase.name)


def _norm(model: torch.nn.Module) -> float:
    """The norm of a released gradient, noise included."""
    found = [p.grad.norm() for p in model.parameters() if p.requires_grad and p.grad is not None]
    return float(torch.stack(found).norm())
