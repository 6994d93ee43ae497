"""Selective-DPSGD as in the S-DP paper: batches of whole records in; noiseless steps on their public segments, noised ones on the rest.

Nothing is amplified here: the noiseless steps show who takes part, so that every epoch is paid for in full (guarantees §5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ..accounting import SelectiveGaussian, read_ledger
from ..accounting.events import with_count
from ..dp import Plan, PrivateGradients, Step
from ..dp.clipping import PAID, ROOM
from ..dp.losses import IGNORED, Inputs, Loss, token_weights
from ..dp.noise import GaussianNoise, room
from ..dp.rules.base import single
from ..errors import BadInput, Refused
from ..models import LstmForCausalLM, LstmState
from . import processes
from .encoding import Tokens
from .optim import set_rate
from .options import Options
from .phases import Phase, Slot
from .steps import seed_dropout

if TYPE_CHECKING:
    from .planning import TrainingPlan
    from .prepared import Prepared, Stream

Batch = dict[str, Tensor]


def check(options: Options, model: nn.Module) -> None:
    """Refuse a model, or a number of processes, that the paper's variant cannot train."""
    if options.method != "sdp" or options.variant != "paper":
        return
    if not isinstance(model, LstmForCausalLM):
        raise BadInput(
            "sdp as in the paper carries noised hidden and cell states from segment to segment, which only an LSTM has; take "
            "--model lstm without --lora, or --variant sound, which trains any causal model"
        )
    if options.precision != "fp32":
        raise BadInput("sdp as in the paper carries its states in single precision; leave --precision out")
    if processes.world() > 1:
        raise Refused("sdp as in the paper runs in one process; start it without torchrun, or take --variant sound")


def segments(record: Tokens, most: int) -> list[slice]:
    """Where a record is cut, by the places of its inputs: a public segment, a private one, a public one, and so on.

    The input at place t predicts the token at t+1. That is private if either of the two tokens is: the target is a secret,
    or the state has just read one. So the token before a private one is read together with it, and two private pieces with
    a single public token between them are one segment. A record that begins with private text has an empty first one.

    *Formal guarantees.* At most `most` private segments; what comes from the next one on is cut off. No public segment holds
    a private token, as input or as target. The cuts depend on the pattern of private tokens alone, which neighbours share.
    """
    private = record.private[:-1] | record.private[1:]
    changes = np.flatnonzero(np.diff(private, prepend=False))
    return [slice(int(begin), int(end)) for begin, end in pairwise([0, *changes, len(private)])][: 2 * most + 1]


def noised(states: Tensor, clip: float, multiplier: float, noise: GaussianNoise) -> Tensor:
    """States [records, …], each clipped to norm `clip` and with fresh noise of `multiplier` times that.

    *Formal guarantees.* A record's state, all layers together, enters with norm at most `clip`, so that other tokens move it
    by at most twice that; a state that is not finite enters as 0. Noise is drawn once for every number.
    """
    flat = states.detach().flatten(1).double()
    norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    kept = flat * (clip * (1 - ROOM[torch.float32]) / norms).clamp_max(1.0)
    clipped = torch.where(norms.isfinite(), kept, torch.zeros_like(kept)).to(states.dtype).view(states.shape)
    found = clipped.contiguous()
    noise.add_(found, PAID * room(multiplier, flat.shape[1]) * multiplier * clip)
    return found


class Selective:
    """The steps of the paper's variant: one batch of whole records at a time, segment by segment.

    *Formal guarantees.* Who is in a batch is public: each epoch takes every record once, in an order of the public seed.
    Private tokens reach the model's weights and anything else through noised gradients and noised states alone: of a
    record in an epoch, at most `segments` gradients (clipped, noise σ·C) and as many hidden and cell states (`noised`).
    The ledger holds an epoch before its first step. An epoch that it already holds when the run is resumed is not gone
    on with: its records' participation is paid for once, and whoever was left out stays out.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        phase: Phase,
        prepared: Prepared,
        stream: Stream,
        optimizer: torch.optim.Optimizer,
        paid: int = 0,
    ) -> None:
        check(plan.options, prepared.model)
        self._options, self._name = plan.options, phase.name
        self._model, self._device = prepared.model, prepared.device
        self._stream, self._optimizer, self._ledger = stream, optimizer, prepared.ledger
        self._event = selective_event(plan, phase)
        if prepared.ledger is not None and read_ledger(prepared.ledger.path).planned != plan.planned:
            raise Refused(f"the ledger {prepared.ledger.path} plans something else than this run; start a new run")
        self._held, self._paid = paid, paid
        own = plan.private[phase.name]
        self._size = max(1, round(own.expected_batch))
        self._per_epoch = -(-len(stream) // self._size)
        # Only mechanics: clipping norm, noise and the constant to divide by, for as many releases as there can be. Its
        # Poisson event is not what happens here and is entered nowhere: the ledger gets `self._event`.
        releases = phase.epochs * self._per_epoch * self._options.segments
        self._mechanics = Plan(
            len(stream), self._size / len(stream), releases, own.noise_multiplier, own.clip_norm
        )  # fmt: skip
        self.gradients = PrivateGradients(self._model.train(), self._mechanics, clipping=self._options.clipping)
        self._loss = segment_loss(self._options.reduction)
        self._noise = GaussianNoise()
        self._order: tuple[int, NDArray[np.int64]] | None = None

    @property
    def epochs(self) -> int:
        """How many epochs the ledger holds."""
        return self._paid

    def step(self, slot: Slot, rate: Callable[[Slot], float]) -> list[float]:
        """Train on one batch; the mean losses of its public segments come back, which depend on no private token unnoised."""
        if slot.epoch < self._held:
            return []
        if slot.epoch >= self._paid:
            if self._ledger is not None:
                self._ledger.append(with_count(self._event, 1), self._name)
            self._paid = slot.epoch + 1
        self._model.train()
        numbers = self._batch_of(slot)
        records = [self._stream.tokens[int(row)] for row in self._stream.rows[numbers]]
        cuts = [segments(record, self._options.segments) for record in records]
        config = self._model.config
        shape = len(records), config.num_hidden_layers, config.hidden_size
        state = torch.zeros(shape, device=self._device), torch.zeros(shape, device=self._device)
        losses: list[float] = []
        for at in range(max(map(len, cuts))):
            rows = np.array(
                [row for row, cut in enumerate(cuts) if at < len(cut) and cut[at].stop > cut[at].start], int
            )
            if not len(rows):
                continue
            # Dropout's coins may be known: the batch is public, and clipping bounds a record's gradient whatever they are. But
            # they are set anew for each segment: how many coins a private one used must not move those of the next.
            seed_dropout(self._device, self._options.seed, slot.phase, slot.step, at)
            chosen = [(records[row], cuts[row][at]) for row in rows]
            if at % 2:
                self._private(numbers[rows], rows, chosen, state, rate(slot))
            else:
                losses.append(self._public(rows, chosen, state, rate(slot._replace(kind="public"))))
        return losses

    def _batch_of(self, slot: Slot) -> NDArray[np.int64]:
        """The numbers of a step's records: every record is in one batch of an epoch."""
        if self._order is None or self._order[0] != slot.epoch:
            coins = np.random.default_rng([self._options.seed, slot.phase, slot.epoch])
            self._order = slot.epoch, coins.permutation(len(self._stream))
        begin = slot.step % self._per_epoch * self._size
        return self._order[1][begin : begin + self._size]

    def _public(
        self, rows: NDArray[np.int64], chosen: list[tuple[Tokens, slice]], state: tuple[Tensor, Tensor], rate: float
    ) -> float:
        """A step without noise on public segments, whose context is the carried state."""
        count = max(1, sum(int(record.target[_ahead(piece)].sum()) for record, piece in chosen))
        self._optimizer.zero_grad()
        total = 0.0
        for some, batch in self._batches(rows, chosen, state):
            output = self._model(
                batch["input_ids"], batch["attention_mask"], past_key_values=_state(batch), use_cache=True
            )
            loss = _cross_entropy(output.logits, batch["goals"]).sum() / count
            loss.backward()  # type: ignore[no-untyped-call]
            _keep(state, some, output.past_key_values)
            total += float(loss.detach())
        if self._options.public_clip is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._options.public_clip)
        self._advance(rate)
        return total

    def _private(
        self,
        numbers: NDArray[np.int64],
        rows: NDArray[np.int64],
        chosen: list[tuple[Tokens, slice]],
        state: tuple[Tensor, Tensor],
        rate: float,
    ) -> None:
        """A noised step on private segments; afterwards their records' states are noised."""
        options = self._options
        ends = state[0].clone(), state[1].clone()  # by the same weights as the gradient, as in the paper's one pass
        self._optimizer.zero_grad()
        for some, batch in self._batches(rows, chosen, state):
            with torch.no_grad():
                read = self._model.model(
                    batch["input_ids"], batch["attention_mask"], past_key_values=_state(batch), use_cache=True
                )
            _keep(ends, some, read.past_key_values)
            self.gradients.accumulate(batch, self._loss)
        self.gradients.release(Step(self._mechanics, numbers, (0, 1)))
        self._advance(rate)
        multiplier = self._event.state_noise_multiplier
        assert multiplier is not None
        at = torch.from_numpy(rows).to(self._device)
        for kept, end in zip(state, ends, strict=True):
            kept[at] = noised(end[at], options.state_clip, multiplier, self._noise)

    def _batches(
        self, rows: NDArray[np.int64], chosen: Sequence[tuple[Tokens, slice]], state: tuple[Tensor, Tensor]
    ) -> Iterator[tuple[Tensor, Batch]]:
        """Segments in microbatches, with the states of their records."""
        size = self._options.microbatch
        for begin in range(0, len(rows), size):
            some = torch.from_numpy(rows[begin : begin + size]).to(self._device)
            batch = padded(chosen[begin : begin + size], self._stream.pad)
            batch = {name: value.to(self._device) for name, value in batch.items()}
            yield some, {**batch, "h": state[0][some], "c": state[1][some]}

    def _advance(self, rate: float) -> None:
        set_rate(self._optimizer, rate)
        self._optimizer.step()


def selective_event(plan: TrainingPlan, phase: Phase) -> SelectiveGaussian:
    """What the ledger plans for the phase."""
    return next(e for name, e in plan.planned if name == phase.name and isinstance(e, SelectiveGaussian))


def segment_loss(reduction: str) -> Loss:
    """A record's loss over the terms of one segment, given the state that was carried to it."""

    def loss(model: nn.Module, inputs: Inputs) -> Tensor:
        logits = model(inputs["input_ids"], inputs["attention_mask"], past_key_values=_state(inputs)).logits
        each = _cross_entropy(logits, inputs["goals"])
        return (each * token_weights(inputs["goals"], reduction).to(each.dtype)).sum(1)

    return loss


def padded(chosen: Sequence[tuple[Tokens, slice]], pad: int) -> Batch:
    """Segments of records as one batch: inputs, what is real of them, and the token that each of them predicts."""
    shape = len(chosen), max(piece.stop - piece.start for _, piece in chosen)
    ids, mask, goals = np.full(shape, pad, np.int64), np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
    for row, (record, piece) in enumerate(chosen):
        size, ahead = piece.stop - piece.start, _ahead(piece)
        ids[row, :size], mask[row, :size] = record.ids[piece], 1
        goals[row, :size] = np.where(record.target[ahead], record.ids[ahead], IGNORED)
    return {name: torch.from_numpy(a) for name, a in (("input_ids", ids), ("attention_mask", mask), ("goals", goals))}


def _ahead(piece: slice) -> slice:
    return slice(piece.start + 1, piece.stop + 1)


def _cross_entropy(logits: Tensor, goals: Tensor) -> Tensor:
    each = functional.cross_entropy(
        single(logits).flatten(0, 1), goals.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return each.view(goals.shape)


def _state(batch: Inputs) -> LstmState:
    """The batch's states as the LSTM wants them: layers first."""
    h, c = (batch[name].transpose(0, 1).contiguous() for name in ("h", "c"))
    return LstmState(h, c, 0)


def _keep(state: tuple[Tensor, Tensor], rows: Tensor, found: Any) -> None:
    """Write the states after a segment, without their history, where their records are."""
    for kept, end in zip(state, (found.h, found.c), strict=True):
        kept[rows] = end.detach().transpose(0, 1).to(kept)
