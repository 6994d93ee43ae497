"""Per-example clipped and noised gradients for an unwrapped model: one forward, one backward, then one weighted product.

In: batches of records that a plan drew. Out: `p.grad`, ready for any torch optimizer. docs/engine.md tells how it works.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter

import torch
from torch import Tensor, nn

from ..errors import BadInput, Refused
from . import losses
from .attach import find_layers, group_layers
from .capture import Capture, Seen, explained
from .clipping import CANCELLING, PAID, Clipping
from .head import differentiate, evaluating, hidden_states, parts, ways, without_last
from .memory import give_back, keep_memory
from .noise import GaussianNoise, room
from .plan import Plan, Step, own_part
from .rules import Use
from .rules.base import Sums, exactly, single
from .sums import StepSums
from .tally import Tally

_ATTACHED: weakref.WeakKeyDictionary[nn.Module, weakref.ref[PrivateGradients]] = weakref.WeakKeyDictionary()
CANDIDATES = 4  # examples of a batch that are looked at to prove the rules
HALF = "float16 needs a dynamic loss scale, which depends on private records and is not part of the guarantee; use bfloat16 autocast"
SPOILT = "a batch of this step failed and its sum is lost: make new PrivateGradients and start the run again"
MIXED = (
    "the examples of a batch are not independent: what one record gives depends on the others. Something in the model mixes the "
    "records of a batch, or the first dimension of a layer is not the batch"
)
SMALLEST = 2.0**-100  # weight; a gradient so large that it needs a smaller one contributes nothing
DOUBLE_ROWS = 4  # examples whose norms are taken in double precision at a time


def _full_precision() -> bool:
    """Whether float32 products are what they are called; torch refuses to say where its two ways to choose were mixed."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        return False


def _empty(parameters: list[nn.Parameter], dtype: torch.dtype) -> dict[int, Tensor]:
    """A buffer for each parameter, row by row whatever the parameter's own layout."""
    return {id(p): torch.empty_like(p, dtype=dtype, memory_format=torch.contiguous_format) for p in parameters}


class Doubts:
    """What the first batches have not yet proven; looked at in batches 1, 2, 4, 8, … until nothing is left.

    Whether records are independent is looked at in the first batch that can show it, whichever that is.
    """

    def __init__(self, parameters: set[int]) -> None:
        self.parameters, self.independence, self.compared, self._batches = parameters, True, False, 0

    def due(self, records: int) -> bool:
        self._batches += 1
        if self.independence and not self.compared and records > 1:
            return True
        return bool(self.parameters or self.independence) and self._batches & (self._batches - 1) == 0


class PrivateGradients:
    """Clips each record's gradient, sums, adds noise: `accumulate` batches of a step, then `release` it.

    >>> from confide.dp import Plan, PrivateGradients
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    >>> plan = Plan(records=100, sampling_rate=0.1, steps=2, noise_multiplier=1.0, clip_norm=1.0)
    >>> private = PrivateGradients(model, plan)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> def loss(model, batch):
    ...     return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
    >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
    >>> for step in plan.run():
    ...     for rows in step.microbatches(8):
    ...         private.accumulate({"x": x[rows], "y": y[rows]}, loss)
    ...     private.release(step)
    ...     optimizer.step()

    *Formal guarantees.* After `release`, each trainable parameter's gradient is (Σ_i w_i·g_i + σ·C·Z) / (q·n): w_i·g_i has
    norm at most C over all trainable parameters together, g_i depends on record i and the model only, Z is standard
    Gaussian, drawn once per step whatever the number of batches, and q·n is a public constant. Changing one record
    therefore moves the sum by at most 2C. It rests on `clipping.rounding` for each contribution, on `StepSums` and a model of
    how products of a single batch are rounded for their sum (`exact=True` needs no model), and on modules treating
    the examples of a batch apart, which the first batch is checked for: examples together must give the norms that
    they give alone, and the gradients that plain autograd gives.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        *,
        task: str | None = None,
        reduction: str = "mean",
        clipping: str = "flat",
        exact: bool = False,
        generic: bool = False,
        checked: bool = True,
    ) -> None:
        if not isinstance(plan, Plan):
            raise BadInput(f"PrivateGradients(model, plan) needs a confide.dp.Plan, got {type(plan).__name__}")
        self.model, self.plan = model, plan
        self.clipping = Clipping(plan.clip_norm, clipping)
        self._layers = find_layers(model, generic=generic)
        others = (_ATTACHED.get(layer.module) for layer in self._layers)
        if any(other is not None and other() is not None for other in others):
            raise BadInput("this model already has PrivateGradients: call detach() on the first one")
        self._groups = group_layers(self._layers)
        self._dtype = getattr(self._layers[0].module, next(iter(self._layers[0].trained))).dtype
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._trained = list({id(p): p for p in model.parameters() if p.requires_grad}.values())
        self._loss = None if task is None else losses.built_in(task, reduction)
        self._reduction, self._exact = reduction, exact
        self._fused: bool | None = None if task == "causal" else False  # None: not yet known
        self._shorter = False  # the last position, which predicts nothing, is left out
        self._doubts = Doubts({id(p) for p in self._trained}) if checked else None
        self._noise = GaussianNoise()
        self._numbers = sum(p.numel() for p in self._trained)
        room(plan.noise_multiplier, self._numbers)
        self._released = 0
        self._clear()
        self._capture = Capture(self._layers)
        for layer in self._layers:
            _ATTACHED[layer.module] = weakref.ref(self)
        if all(p.device.type == "cpu" for p in self._trained):
            keep_memory()

    def detach(self) -> None:
        """Take the hooks off the model."""
        self._capture.remove()
        for layer in self._layers:
            _ATTACHED.pop(layer.module, None)

    def _clear(self, *, spoilt: bool = False) -> None:
        """Let go of the sums of a step; a spoilt one cannot be released."""
        self._sums: StepSums | None = None
        self._rows = -1 if spoilt else 0

    def accumulate(self, inputs: losses.Inputs, loss: losses.Loss | None = None, *, real: Tensor | None = None) -> None:
        """Add the clipped gradients of a batch of records to the step's sum; any number of batches make one step.

        `inputs` maps names to tensors with the batch first. Without `loss` the task's own is used. `loss(model, inputs)`
        returns one loss per example. `real` marks the examples that are records; others are padding and count nothing.

        *Formal guarantees.* Splitting a step's records into batches, their order and the width of padding change the
        sum by rounding only. A record whose gradient is not finite, or that has no target, contributes zero. `p.grad` is
        None until `release`: nobody sees a sum before its noise is in.
        """
        try:
            self._accumulate(inputs, loss or self._loss, real)
        except BaseException:
            self._clear(spoilt=True)
            raise

    def release(self, step: Step) -> None:
        """Set `p.grad` of every trainable parameter to the step's noised sum over the expected batch size.

        *Formal guarantees.* Noise is added to every trainable parameter, also in a step without records and in
        embedding rows that no record touched. A step can be released once, by its own plan, and only if as many records
        were accumulated as it drew; that they are those records is up to the caller. Over several processes noise is drawn
        once in total, in shares. The gradient is handed over: the engine keeps no reference to it.
        """
        if self._rows < 0:
            raise Refused(SPOILT)
        if self._released == self.plan.steps:
            raise Refused("all steps of the plan are taken: its ε covers no more; a longer run needs a plan of its own")
        self.plan.refuse_foreign(step)
        if step.part != own_part():
            raise Refused("the step was drawn for another process: draw and release it in the same one")
        try:
            step.spend(self.plan, self._rows)
            sums = self._begin()
            if step.part[1] > 1:
                sums.widen()
                if not self._released:
                    self._check_ranks()
            sums.settle()
            for buffer in sums.flat:
                self._add_noise(buffer, *step.part)
            for parameter, gradient in zip(self._trained, sums.gradients(), strict=True):
                parameter.grad = gradient
            self._released += 1
        finally:
            self._clear()

    def _accumulate(self, inputs: losses.Inputs, loss: losses.Loss | None, real: Tensor | None) -> None:
        examples = losses.count(inputs)
        loss = self._check_state(loss)
        if real is None:
            real = torch.ones(examples, dtype=torch.bool)
        elif not isinstance(real, Tensor) or real.shape != (examples,) or real.dtype != torch.bool:
            raise BadInput("real must hold one boolean for each example")
        opened, sums = self._sums is not None, self._begin()
        if not examples:
            return
        if self._fused is None:
            self._fused, self._shorter = ways(self.model, inputs)
        if self._doubts and self._doubts.due(int(real.sum())):
            self._prove(inputs, loss, real)
            give_back()
        tally = self._record(inputs, loss)
        if torch.float16 in self._capture.precisions:
            raise Refused(HALF)
        with exactly(self._trained[0]):
            if opened:
                sums.widen()
            self._add_clipped(tally, real, sums, 1 / self.plan.expected_batch)
        self._rows += int(real.sum())

    def _check_state(self, loss: losses.Loss | None) -> losses.Loss:
        if self._rows < 0:
            raise Refused(SPOILT)
        if loss is None:
            raise BadInput("no loss: name a task (causal, masked, classify) or give accumulate() a loss function")
        if _ATTACHED.get(self._layers[0].module, lambda: None)() is not self:
            raise BadInput("these PrivateGradients were detached from the model; make new ones")
        if not self.model.training:
            raise BadInput(
                "the model is in evaluation mode: call model.train() (and set dropout to 0 if you want none)"
            )
        if not torch.is_grad_enabled():
            raise BadInput("accumulate() was called under torch.no_grad(): no gradient can be computed")
        now = {id(p): p for p in self.model.parameters() if p.requires_grad}
        if list(now) != [id(p) for p in self._trained] or {p.dtype for p in self._trained} != {self._dtype}:
            raise BadInput(
                "the model's trainable parameters, their requires_grad or their precision changed after PrivateGradients was "
                "made: detach() it and make it anew"
            )
        if not _full_precision():
            raise Refused(
                "float32 products run at reduced precision, of which the rounding terms know nothing; call "
                "torch.set_float32_matmul_precision('highest') and use bfloat16 autocast for speed"
            )
        device = self._trained[0].device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16:
            raise Refused(HALF)
        return loss

    def _add_noise(self, sums: Tensor, rank: int, world: int) -> None:
        """Sum over processes, then noise.

        *Formal guarantees.* The processes' shares partition the numbers. Each sums its own share over all processes, adds
        noise to it, once, and hands it round as it is: adding up what was noised before would put the last bits of
        the other processes' sums on top of the noise.
        """
        std = PAID * room(self.plan.noise_multiplier, self._numbers) * self.plan.noise_std / self.plan.expected_batch
        shares = [sums[len(sums) * r // world : len(sums) * (r + 1) // world] for r in range(world)]
        if world > 1:
            for r, share in enumerate(shares):
                torch.distributed.reduce(share, dst=r)
        self._noise.add_(shares[rank], std)
        if world > 1:
            for r, share in enumerate(shares):
                torch.distributed.broadcast(share, src=r)

    def _check_ranks(self) -> None:
        """Refuse processes whose models differ: their sums would be gradients of different models."""
        mine = torch.stack([p.detach().double().sum() for p in self._trained])
        low, high = mine.clone(), mine.clone()
        torch.distributed.all_reduce(low, torch.distributed.ReduceOp.MIN)
        torch.distributed.all_reduce(high, torch.distributed.ReduceOp.MAX)
        if not torch.equal(low, high):
            raise Refused(
                "the processes have different models; load or broadcast the same weights in all of them first"
            )

    def _record(
        self, inputs: losses.Inputs, loss: losses.Loss, seen: Seen | None = None, only: int | None = None
    ) -> Tally:
        """One forward and one backward pass: of the losses of all examples, or of one example's alone."""
        examples = losses.count(inputs)
        tally = Tally(self._groups, examples)
        chosen = torch.ones(examples, dtype=torch.bool) if only is None else torch.arange(examples) == only
        with self._capture.recording(self._trained, examples, seen or tally.see):
            if not self._fused or loss is not self._loss:
                each = losses.check_losses(loss(self.model, inputs), examples)
                self._capture.backward(each, chosen.to(each))
                return tally
            goals, head = losses.targets(inputs, "causal"), parts(self.model)[1]
            hidden = hidden_states(self.model, without_last(inputs) if self._shorter else inputs)
            goals = goals[:, : hidden.shape[1]]
            layer = next((layer for layer in self._layers if layer.module is head), None)
            trained = layer.trained if layer else frozenset[str]()
            weights = losses.token_weights(goals, self._reduction) * chosen.to(goals)[:, None]
            with exactly(hidden):
                use, gradient, _ = differentiate(single(hidden), head, goals, weights, trained)
                if layer and only is None:
                    tally.see(use)
                del use
            self._capture.backward(hidden, gradient.to(hidden.dtype))
        return tally

    def _add_clipped(self, tally: Tally, real: Tensor, sums: Sums, scale: float) -> None:
        """Add the tally's clipped gradients, times `scale`; those that cancel too much for single precision, in double.

        *Formal guarantees.* See `Clipping.weights` and `rounding`. In double precision an example's gradient is formed,
        measured and summed before it is rounded once, on its way into the sum.
        """
        square, spread = tally.square, tally.spread
        if self.clipping.kind != "per-layer":
            square, spread = square.sum(0, keepdim=True), spread.sum(0, keepdim=True)
        cancelling = (spread > CANCELLING * square.clamp_min(0)).any(0)
        double = (cancelling | self._exact) & tally.square.isfinite().all(0) & real & (self._dtype == torch.float32)
        weights = self.clipping.weights(tally.square, tally.rounding(self._dtype), real & ~double, self._dtype)
        weights = torch.where(weights * scale < SMALLEST, 0.0, weights)  # single precision would round it up
        for rows in torch.split(double.nonzero()[:, 0], DOUBLE_ROWS):
            if len(rows):
                sums.widen()
                again = tally.again(rows)
                every = torch.ones(len(rows), dtype=torch.bool)
                own = self.clipping.weights(again.square, again.rounding(torch.float64), every, self._dtype)
                exact = Sums(_empty(self._trained, torch.float64))
                self._add(again, own * scale, exact)
                for parameter in self._trained:
                    sums.add_exact(parameter, exact(parameter))
        nothing = (weights == 0).all(0)
        if bool(nothing.any()):
            for use in tally.uses:
                use.drop(nothing)
        self._add(tally, weights * scale, sums)

    def _add(self, tally: Tally, weights: Tensor, sums: Sums) -> None:
        left = Counter(id(use.parameter(name)) for use in tally.uses for name in use.trained)
        while tally.uses:
            use = tally.uses.pop(0)  # a tied head before its embedding: its product is then written, not added
            own = weights[self._groups[use.module]]
            use.rule.add(use, sums.alike(own, use.parameter(next(iter(use.trained)))) if use.trained else own, sums)
            for parameter in map(use.parameter, use.trained):
                left[id(parameter)] -= 1
                if not left[id(parameter)]:
                    sums.finish(parameter)

    def _begin(self) -> StepSums:
        """The sums of a step.

        They are made anew for every step, before anything else of it and after the last gradient is let go, so that
        no one outside holds them and they take the place of the last.
        """
        if self._sums is not None:
            if any(p.grad is not None for p in self._trained):
                raise Refused(
                    "something wrote into p.grad between accumulate() and release(): a backward pass, an optimizer or zero_grad() does "
                    "not belong into an open step"
                )
            return self._sums
        for parameter in self._trained:
            parameter.grad = None
        self._sums = StepSums(self._trained, self._dtype)
        return self._sums

    def _prove(self, inputs: losses.Inputs, loss: losses.Loss, real: Tensor) -> None:
        """Hold some examples against plain autograd and against each other.

        *Formal guarantees.* What is not yet proven stays in `_doubts`. A parameter leaves it when the rules gave it the
        gradient that autograd gives it, and that was not zero (so that no use of it went unseen). Independence leaves it
        when, in training mode, one example's loss had a gradient of exactly zero at every other example of the batch, and
        when, without dropout, two examples have the norms together that they have alone. A layer that mixes examples
        only now and then, or through statistics that carry no gradient and only in training, is not found.
        """
        assert self._doubts is not None
        examples = losses.count(inputs)
        candidates = real.nonzero()[:CANDIDATES, 0].tolist()
        norms: dict[int, float] = {}
        frozen = {parameter.dtype for parameter in self.model.parameters()}
        with evaluating(self.model):
            for i in candidates:
                row = losses.rows(inputs, slice(i, i + 1), examples)
                alone = self._record(row, loss)
                tolerance = 5e-2 if torch.bfloat16 in self._capture.precisions | frozen else 1e-3
                norms[i] = float(alone.square.sum().clamp_min(0).sqrt())
                if 0 < norms[i] < math.inf and self._doubts.parameters:
                    self._compare(row, loss, alone, tolerance)
                del alone  # its tensors, of every layer
            candidates = [i for i in candidates if math.isfinite(norms[i])]
            live = [i for i in candidates if norms[i] > 0]
            if not self._doubts.independence or len(candidates) < 2:
                return
            batch = losses.rows(inputs, torch.tensor(candidates), examples)
            together = self._record(batch, loss).square.sum(0).clamp_min(0).sqrt()
            for found, i in zip(together.tolist(), candidates, strict=True):
                if i in live and abs(found - norms[i]) > tolerance * norms[i]:
                    raise Refused(MIXED)
        for place in range(len(candidates)):

            def seen(use: Use, place: int = place) -> None:
                assert use.gradient is not None
                reached = (use.gradient != 0).flatten(1).any(1)
                if bool(reached[:place].any()) or bool(reached[place + 1 :].any()):
                    raise Refused(MIXED)

            self._record(batch, loss, seen, only=place)
        self._doubts.compared = True
        self._doubts.independence = len({round(math.log(norms[i]), 6) for i in live}) < 2

    def _compare(self, row: losses.Inputs, loss: losses.Loss, tally: Tally, tolerance: float) -> None:
        with explained():
            true = torch.autograd.grad(loss(self.model, row).sum(), self._trained, allow_unused=True)
        sums = Sums(_empty(self._trained, self._dtype))
        self._add(tally, torch.ones_like(tally.square), sums)
        whole = math.sqrt(sum(float(g.double().square().sum()) for g in true if g is not None))
        assert self._doubts is not None
        for parameter, gradient in zip(self._trained, true, strict=True):
            difference = sums(parameter).sub_(0.0 if gradient is None else gradient)
            size = 0.0 if gradient is None else float(torch.linalg.vector_norm(gradient))
            if float(torch.linalg.vector_norm(difference)) > tolerance * (size + 1e-2 * whole) + 1e-9:
                raise Refused(
                    f"{self._names[id(parameter)]}: the per-example rule does not give the gradient that autograd gives; a use of "
                    "the parameter outside its module's forward is not seen, or the module has a rule that is wrong for it"
                )
            if size > 0:
                self._doubts.parameters.discard(id(parameter))
        norm = float(tally.square.sum().clamp_min(0).sqrt())
        if abs(norm - whole) > tolerance * whole + 1e-9:
            raise Refused(
                "the norm that the per-example rules give is not the norm of the gradient that autograd gives"
            )
