"""The plan couples what must agree: a rate, steps, a clipping norm and noise in; paid-for steps with fresh coins out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ..accounting import FixedSizeGaussian, LedgerWriter, PoissonGaussian, curve, read_ledger, smallest_noise
from ..accounting.events import check_count, check_number, flatten, short, with_count
from ..errors import BadInput, ConfideError, Refused
from .keystream import Secretive, check_part
from .sampling import MOST_RECORDS, FixedSizeSampler, Indices, PoissonSampler, sampler_for

SAMPLERS: dict[str, type[PoissonGaussian] | type[FixedSizeGaussian]] = {
    "poisson": PoissonGaussian,
    "fixed-size": FixedSizeGaussian,
}


@dataclass(frozen=True)
class Plan:
    """A run of DP-SGD, fixed before it sees a record. All fields are public; the coins are not among them.

    *Formal guarantees.* `event` is what `run` does, if each step's clipped sum (every record's share at most
    `clip_norm`) is released once, with noise of `noise_std` added: `run` draws the batches at the accounted rate, pays
    before it draws, and hands out at most `steps` steps over all resumptions of a ledger. `expected_batch` is a constant
    of the plan; the realised size of a batch is private and divides nothing (guarantees §1).

    >>> plan = Plan(records=1000, sampling_rate=0.03125, steps=320, noise_multiplier=1.0)
    >>> plan.expected_batch
    31.25
    >>> round(plan.epsilon(8e-5), 2)
    4.78
    """

    records: int
    sampling_rate: float
    steps: int
    noise_multiplier: float
    clip_norm: float = 1.0
    sampler: str = "poisson"

    def __post_init__(self) -> None:
        check_count("records", self.records, high=MOST_RECORDS)
        check_number("clipping norm", self.clip_norm, 1e-9, 1e6, low_open=False)
        if self.sampler not in SAMPLERS:
            raise BadInput(f"sampler must be one of {', '.join(SAMPLERS)}, got {short(self.sampler)}")
        _ = self.event
        whole = round(self.expected_batch)
        if self.sampler == "fixed-size" and (not whole or abs(self.expected_batch - whole) > 1e-9 * whole):
            raise BadInput(
                f"batches of fixed size need a rate that is a whole number of records: {self.sampling_rate:g} of "
                f"{self.records:,} is {self.expected_batch:g}; use the rate {max(1, whole)}/{self.records}"
            )

    @classmethod
    def for_epsilon(
        cls,
        *,
        records: int,
        batch: float,
        steps: int,
        epsilon: float,
        delta: float,
        clip_norm: float = 1.0,
        adjacency: str = "substitution",
        k: int = 1,
    ) -> Plan:
        """The Poisson plan with the smallest noise that keeps ε(δ) for k records, at `batch` records a step on average.

        *Formal guarantees.* The plan's own `epsilon(delta, adjacency=adjacency, k=k)` is at most `epsilon`.
        """
        check_count("records", records, high=MOST_RECORDS)
        check_number("batch", batch, 0, records)
        rate = batch / records
        noise = smallest_noise(rate, steps, epsilon, delta, adjacency=adjacency, k=k).noise_multiplier
        return cls(records, rate, steps, noise, clip_norm)

    @property
    def expected_batch(self) -> float:
        """The public constant that a noised sum is divided by."""
        return self.sampling_rate * self.records

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on a step's sum of clipped gradients: σ·C."""
        return self.noise_multiplier * self.clip_norm

    @property
    def event(self) -> PoissonGaussian | FixedSizeGaussian:
        """All steps of the plan, for the ledger's plan and the accountant."""
        return SAMPLERS[self.sampler](self.sampling_rate, self.noise_multiplier, self.steps)

    def epsilon(self, delta: float, *, adjacency: str = "substitution", k: int = 1) -> float:
        """The ε of the whole run at this δ, for k changed records: a record is one row of the corpus the plan draws from.

        *Formal guarantees.* By default under substitution (the k records' content becomes any other, their rows stay); for
        the plan's own sampler, whose coins nobody knows; all steps and every gradient released; by the privacy loss
        distribution, pessimistic, both directions. What a secret is, and how many records hold it, the plan does not know.
        """
        return curve([self.event], adjacency, k).epsilon(delta)

    def refuse_foreign(self, batches: Any) -> None:
        """Refuse anything that is not a step of this plan: a data loader, a list of indices, another plan's step."""
        if isinstance(batches, Step):
            if batches.plan == self:
                return
            raise Refused("this step belongs to another plan, whose rate and noise it was paid for; use its own plan")
        raise Refused(
            f"a {type(batches).__name__} does not choose the batches: only coins that nobody knows amplify privacy, and "
            f"shuffled or other batches carry none of the amplification that this plan counts on; iterate over plan.run() "
            "and take each step's records by its indices"
        )

    def run(
        self,
        ledger: LedgerWriter | None = None,
        *,
        phase: str = "train",
        reserve: int = 1,
        part: tuple[int, int] | None = None,
    ) -> Iterator[Step]:
        """The steps that are left, each paid for before it is drawn.

        Steps are entered in blocks of `reserve` (a crash forfeits the rest of a block; one entry costs a disk flush).
        `part=(rank, world)` is taken from torch.distributed where that runs; rank 0 alone has the ledger. Without a
        ledger nothing is recorded, and no certificate can be issued.

        *Formal guarantees.* An entry is on disk before any of its steps is yielded. Steps that the ledger already holds
        for this phase count, whoever took them and whether or not they were released, so that the ledger never exceeds
        the plan. A ledger that plans anything else for this phase, that holds anything else, or that another run writes
        to in the meantime, is refused. Other ranks learn the number of steps from rank 0 after it has read the ledger;
        what they draw is released only together with rank 0's share, hence after the entry. A step that was drawn and
        not released, be it empty, ends the run with an error: skipping it would depend on the private draw. Coins are
        fresh in every call.
        """
        check_count("reserve", reserve)
        part = own_part(part)
        if part[0] > 0 and ledger is not None:
            raise BadInput(f"rank {part[0]} was given a ledger: only rank 0 writes it; pass None on the other ranks")
        left: int = agreed(part, lambda: self.steps if ledger is None else self._left(ledger, phase))
        draws = sampler_for(self.sampler, self.records, self.sampling_rate, part)
        return self._run(ledger, phase, reserve, part, left, draws)

    def _run(
        self,
        ledger: LedgerWriter | None,
        phase: str,
        reserve: int,
        part: tuple[int, int],
        left: int,
        draws: PoissonSampler | FixedSizeSampler,
    ) -> Iterator[Step]:
        length = None
        while left:
            block = min(reserve, left)
            if ledger is not None:
                if ledger.length != length and self._left(ledger, phase) != left:
                    raise Refused(
                        f"another run took steps of phase {phase!r} from the ledger {ledger.path}; start anew"
                    )
                ledger.append(with_count(self.event, block), phase)
                length = ledger.length
            left -= block
            for _ in range(block):
                step = Step(self, draws.draw(), part)
                yield step
                if not step.released:
                    raise Refused(
                        "the last step was drawn but never released: an empty batch too must be noised and stepped, "
                        "since leaving it out shows that it was empty"
                    )

    def _left(self, ledger: LedgerWriter, phase: str) -> int:
        """How many of the plan's steps the ledger does not hold yet."""
        found = read_ledger(ledger.path)
        planned = flatten(event for name, event in found.planned if name == phase)
        if planned != [self.event]:
            wrong = "nothing" if not planned else "something else"
            raise Refused(
                f"the ledger {ledger.path} plans {wrong} for phase {phase!r}: its certificate would not be about this plan; "
                "resume with the plan it was started with, or start a new ledger with (phase, plan.event)"
            )
        for name, value in (("clipping_norm", self.clip_norm), ("private_records", self.records)):
            if name in found.setting and found.setting[name] != value:
                raise Refused(
                    f"the ledger {ledger.path} states another {name.replace('_', ' ')} than the plan: its certificate would not be "
                    "about this run; start it with the plan's own"
                )
        spent = flatten(event for name, event in found.spent if name == phase)
        taken = sum(step.count for step in spent)
        if any(with_count(step, 1) != with_count(self.event, 1) for step in spent) or taken > self.steps:
            raise Refused(f"the ledger {ledger.path} has gone beyond its plan in phase {phase!r}; no step may be added")
        return self.steps - taken


def own_part(part: tuple[int, int] | None = None) -> tuple[int, int]:
    """This process's share; two processes with the same share would sum one record twice."""
    running = dist.is_available() and dist.is_initialized()
    own = (dist.get_rank(), dist.get_world_size()) if running else (0, 1)
    if part is None:
        return own
    if running and check_part(part) != own:
        raise Refused(
            f"part={part} in process {own[0]} of {own[1]}: shares must not overlap, else a record counts more than once "
            "and the noise is too small; leave part out"
        )
    return check_part(part)


def agreed(part: tuple[int, int], make: Callable[[], Any]) -> Any:
    """What rank 0 makes, or its refusal, on every rank."""
    if part[1] == 1 or not (dist.is_available() and dist.is_initialized()):
        return make()
    said: list[Any] = [None, None]
    if part[0] == 0:
        try:
            said = [make(), None]
        except ConfideError as error:
            said = [None, error]
    dist.broadcast_object_list(said, src=0)
    if said[1] is not None:
        raise said[1]
    return said[0]


class Step(Secretive):
    """One draw of a plan: which of this rank's records take part. Its indices and their number are private.

    *Formal guarantees.* A step is released at most once (`spend`), by its own plan, and only if as many real examples were
    accumulated as it drew. No message and no repr says how many that is.
    """

    __slots__ = ("indices", "part", "plan", "released")

    def __init__(self, plan: Plan, indices: Indices, part: tuple[int, int]) -> None:
        self.plan, self.indices, self.part, self.released = plan, indices, part, False
        indices.flags.writeable = False

    def __repr__(self) -> str:
        return f"Step(part={self.part}, {'released' if self.released else 'not yet released'})"

    def microbatches(self, size: int) -> Iterator[Indices]:
        """The indices in pieces of at most `size`; none at all for an empty draw, which is released all the same."""
        check_count("microbatch size", size)
        return (self.indices[begin : begin + size].copy() for begin in range(0, len(self.indices), size))

    def spend(self, plan: Plan, rows: int) -> None:
        """Mark the step as released; called once, before its noise is added.

        *Formal guarantees.* Raises unless the step is this plan's, was not released before, and `rows` examples (this
        rank's, without padding) were accumulated for exactly the records drawn; after a refusal it is still unreleased.
        """
        plan.refuse_foreign(self)
        if self.released:
            raise Refused("this step was already released: one draw pays for one release; ask plan.run() for the next")
        if rows != len(self.indices):
            raise Refused(
                "the examples accumulated are not the records drawn: accumulate each record of step.indices once, no more "
                "and no fewer, without padding rows (the numbers are private and not shown)"
            )
        self.released = True
