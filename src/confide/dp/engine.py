"""Per-example clipped and noised gradients for an unwrapped model: one forward, one backward, then one weighted product.

In: batches of records that a plan drew. Out: `p.grad`, ready for any torch optimizer. docs/engine.md tells how it works.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput, Refused
from . import losses
from .attach import find_layers, group_layers
from .capture import Capture, Seen
from .clipping import CANCELLING, PAID, Clipping, rounding
from .head import differentiate
from .memory import keep_memory
from .noise import GaussianNoise
from .plan import Plan, Step
from .rules import Use
from .rules.base import Sums, exactly, single

_ATTACHED: weakref.WeakKeyDictionary[nn.Module, weakref.ref[PrivateGradients]] = weakref.WeakKeyDictionary()
ALIGNED = 16  # numbers: each parameter's part of a buffer starts at a multiple
CANDIDATES = 4  # examples of a batch that are looked at to prove the rules
SPOILT = "a batch of this step failed and its sum is lost: make new PrivateGradients and start the run again"
MIXED = (
    "the examples of a batch are not independent: what one record gives depends on the others. Something in the model mixes the "
    "records of a batch, or the first dimension of a layer is not the batch"
)
DOUBLE_ROWS = 4  # examples whose norms are taken in double precision at a time


class Tally:
    """The uses of one backward pass, and per group of layers and example their squared norms and spreads."""

    def __init__(self, groups: dict[nn.Module, int], examples: int) -> None:
        shape = (1 + max(groups.values()), examples)
        self.uses: list[Use] = []
        self.square = torch.zeros(shape, dtype=torch.float64)
        self._spread = torch.zeros(shape, dtype=torch.float64)
        self._groups = groups
        self._by_parameter: dict[int, list[Use]] = {}

    def see(self, use: Use) -> None:
        """Count a use: its own square, and twice its inner product with each earlier use of the same parameter.

        *Formal guarantees.* The squares of all uses of a parameter and all their cross terms make up ‖Σ_u g_u‖², exactly; this
        is what tied embeddings and modules called twice need. Spreads of such uses add up before they are squared.
        """
        measured = use.rule.measure(use)
        group = self._groups[use.module]
        self.square[group] += measured.square.cpu()
        self._spread[group] += measured.spread.sqrt().cpu()
        shared: dict[int, tuple[Use, set[str]]] = {}
        for name in use.trained:
            uses = self._by_parameter.setdefault(id(use.parameter(name)), [])
            for other in uses:
                shared.setdefault(id(other), (other, set()))[1].add(name)
            uses.append(use)
        for other, names in shared.values():
            self.square[group] += 2 * use.rule.inner(use, other, frozenset(names)).cpu()
        self.uses.append(use)

    @property
    def spread(self) -> Tensor:
        """The squared spreads."""
        return self._spread.square()

    def rounding(self, dtype: torch.dtype) -> Tensor:
        return rounding(self.square, self.spread, dtype)

    def again(self, rows: Tensor) -> Tally:
        """The same for some examples, in double precision."""
        tally = Tally(self._groups, len(rows))
        for use in self.uses:
            tally.see(use.select(rows))
        return tally


class Doubts:
    """What the first batches have not yet proven; looked at in batches 1, 2, 4, 8, … until nothing is left."""

    def __init__(self, parameters: set[int]) -> None:
        self.parameters, self.independence, self._batches = parameters, True, 0

    def due(self) -> bool:
        self._batches += 1
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
    therefore moves the sum by at most 2C. It rests on the rounding model of `clipping.rounding`, and on modules treating
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
        self._doubts = Doubts({id(p) for p in self._trained}) if checked else None
        self._noise = GaussianNoise()
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
        self._buffers: list[Tensor] = []
        self._sums: dict[int, Tensor] = {}
        self._rows = -1 if spoilt else 0

    @property
    def sensitivity(self) -> float:
        """The largest norm of one record's contribution to the sum; substitution moves the sum by twice that."""
        return self.clipping.norm

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
        self.plan.refuse_foreign(step)
        if step.part != _part():
            raise Refused("the step was drawn for another process: draw and release it in the same one")
        try:
            step.spend(self.plan, self._rows)
            self._begin()
            if step.part[1] > 1:
                for buffer in self._buffers:
                    torch.distributed.all_reduce(buffer)
            for parameter in self._trained:
                parameter.grad = self._sums[id(parameter)]
        finally:
            self._clear()

    def _accumulate(self, inputs: losses.Inputs, loss: losses.Loss | None, real: Tensor | None) -> None:
        examples = losses.count(inputs)
        loss = self._check_state(loss)
        if real is None:
            real = torch.ones(examples, dtype=torch.bool)
        elif real.shape != (examples,) or real.dtype != torch.bool:
            raise BadInput("real must hold one boolean for each example")
        self._begin()
        if self._fused is None:
            with self._evaluating():
                self._fused = _can_fuse(self.model, losses.rows(inputs, slice(0, 1), examples))
        if self._doubts and self._doubts.due():
            self._prove(inputs, loss, real)
        tally = self._record(inputs, loss)
        with exactly(self._trained[0]):
            self._add_clipped(tally, real, lambda p: self._sums[id(p)], 1 / self.plan.expected_batch)
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
        if torch.get_float32_matmul_precision() != "highest":
            raise Refused(
                "float32 products run at reduced precision, of which the rounding terms know nothing; call "
                "torch.set_float32_matmul_precision('highest') and use bfloat16 autocast for speed"
            )
        device = self._trained[0].device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16:
            raise Refused(
                "float16 autocast needs a dynamic loss scale, which depends on private records and is not part of the guarantee; "
                "use bfloat16"
            )
        return loss

    def _record(self, inputs: losses.Inputs, loss: losses.Loss, seen: Seen | None = None, only: int | None = None) -> Tally:
        """One forward and one backward pass: of the losses of all examples, or of one example's alone."""
        examples = losses.count(inputs)
        tally = Tally(self._groups, examples)
        chosen = torch.ones(examples, dtype=torch.bool) if only is None else torch.arange(examples) == only
        with self._capture.recording(self._trained, examples, seen or tally.see):
            if not self._fused or loss is not self._loss:
                each = losses.check_losses(loss(self.model, inputs), examples)
                self._capture.backward(each, chosen.to(each))
                return tally
            hidden, head = _hidden(self.model, inputs), _parts(self.model)[1]
            goals = losses.targets(inputs, "causal")
            layer = next((layer for layer in self._layers if layer.module is head), None)
            trained = layer.trained if layer else frozenset[str]()
            weights = losses.token_weights(goals, self._reduction) * chosen.to(goals)[:, None]
            with exactly(hidden):
                use, gradient = differentiate(single(hidden), head, goals, weights, trained)
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
        cancelling = tally.spread > CANCELLING * tally.square.clamp_min(0)
        cancelling = cancelling.any(0) if self.clipping.kind == "per-layer" else _flat(tally)
        double = (cancelling | self._exact) & tally.square.isfinite().all(0) & real & (self._dtype == torch.float32)
        weights = self.clipping.weights(tally.square, tally.rounding(self._dtype), real & ~double, self._dtype)
        for rows in torch.split(double.nonzero()[:, 0], DOUBLE_ROWS):
            if len(rows):
                again = tally.again(rows)
                every = torch.ones(len(rows), dtype=torch.bool)
                own = self.clipping.weights(again.square, again.rounding(torch.float64), every, self._dtype)
                exact: dict[int, Tensor] = {}
                for parameter in self._trained:
                    exact[id(parameter)] = torch.zeros_like(parameter, dtype=torch.float64)
                self._add(again, own * scale, lambda p, exact=exact: exact[id(p)])  # type: ignore[misc]
                for parameter in self._trained:
                    sums(parameter).add_(exact[id(parameter)])
        nothing = (weights == 0).all(0)
        if bool(nothing.any()):
            for use in tally.uses:
                use.drop(nothing)
        self._add(tally, weights * scale, sums)

    def _add(self, tally: Tally, weights: Tensor, sums: Sums) -> None:
        while tally.uses:
            use = tally.uses.pop()
            own = weights[self._groups[use.module]]
            use.rule.add(use, own.to(sums(use.parameter(next(iter(use.trained)))) if use.trained else own), sums)

    def _begin(self) -> None:
        """The buffers of a step's sums, filled with this process's noise; one for all parameters of a device, for speed.

        They are made anew for every step, before anything else of it and after the last gradient is let go, so that
        no one outside holds them and they take the place of the last.
        """
        if self._buffers:
            return
        alike: dict[torch.device, list[nn.Parameter]] = {}
        for parameter in self._trained:
            parameter.grad = None
            alike.setdefault(parameter.device, []).append(parameter)
        for device, parameters in alike.items():
            sizes = [-(-p.numel() // ALIGNED) * ALIGNED for p in parameters]
            buffer = torch.empty(sum(sizes), dtype=self._dtype, device=device)
            self._noise.fill_(buffer, PAID * self.plan.noise_std / self.plan.expected_batch, part=_part())
            self._buffers.append(buffer)
            for p, part in zip(parameters, torch.split(buffer, sizes), strict=True):
                self._sums[id(p)] = part[: p.numel()].view(p.shape)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training

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
        tolerance = 5e-2 if torch.is_autocast_enabled(self._trained[0].device.type) else 1e-3
        candidates = real.nonzero()[:CANDIDATES, 0].tolist()
        with self._evaluating():
            alone = {i: self._record(losses.rows(inputs, slice(i, i + 1), examples), loss) for i in candidates}
            norms = {i: float(tally.square.sum().clamp_min(0).sqrt()) for i, tally in alone.items()}
            live = [i for i in candidates if math.isfinite(norms[i]) and norms[i] > 0]
            for i in live:
                if self._doubts.parameters:
                    self._compare(losses.rows(inputs, slice(i, i + 1), examples), loss, alone[i], tolerance)
            if len(live) < 2 or not self._doubts.independence:
                return
            pair = losses.rows(inputs, torch.tensor(live[:2]), examples)
            together = self._record(pair, loss).square.sum(0).clamp_min(0).sqrt()
            for found, i in zip(together.tolist(), live[:2], strict=True):
                if abs(found - norms[i]) > tolerance * norms[i]:
                    raise Refused(MIXED)

        def seen(use: Use) -> None:
            assert use.gradient is not None
            if bool((use.gradient[1:] != 0).any()):
                raise Refused(MIXED)

        self._record(pair, loss, seen, only=0)
        self._doubts.independence = abs(norms[live[0]] - norms[live[1]]) <= 1e-6 * norms[live[0]]

    def _compare(self, row: losses.Inputs, loss: losses.Loss, tally: Tally, tolerance: float) -> None:
        sums = {id(p): torch.zeros_like(p) for p in self._trained}
        self._add(tally, torch.ones_like(tally.square), lambda p: sums[id(p)])
        true = torch.autograd.grad(loss(self.model, row).sum(), self._trained, allow_unused=True)
        whole = math.sqrt(sum(float(g.double().square().sum()) for g in true if g is not None))
        assert self._doubts is not None
        for parameter, gradient in zip(self._trained, true, strict=True):
            difference = sums[id(parameter)] - (0.0 if gradient is None else gradient)
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


def _parts(model: nn.Module) -> tuple[Any, Any]:
    """The body of a language model, which yields hidden states, and its head; (None, None) if it has no such parts."""
    unwrap = getattr(model, "get_base_model", None)  # of PEFT's wrapper
    inner: Any = unwrap() if callable(unwrap) else model
    body, head = getattr(inner, "base_model", None), getattr(inner, "get_output_embeddings", lambda: None)()
    return (None, None) if body is None or body is inner or type(head) is not nn.Linear else (body, head)


def _hidden(model: nn.Module, inputs: losses.Inputs) -> Tensor:
    body, _ = _parts(model)
    cache = {"use_cache": False} if "use_cache" in inspect.signature(body.forward).parameters else {}
    hidden: Tensor = body(**losses.without_labels(inputs), **cache)[0]
    return hidden


@torch.no_grad()
def _can_fuse(model: nn.Module, row: losses.Inputs) -> bool:
    """Whether the model's logits are just its head applied to its body's hidden states."""
    _, head = _parts(model)
    if head is None:
        return False
    config = getattr(model, "config", None)
    if any(
        getattr(config, name, None) not in (None, 1, 1.0)
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
    ):
        return False
    return torch.allclose(model(**losses.without_labels(row)).logits, head(_hidden(model, row)), rtol=1e-3, atol=1e-4)


def _flat(tally: Tally) -> Tensor:
    """Which examples cancel, all layers together."""
    return tally.spread.sum(0) > CANCELLING * tally.square.sum(0).clamp_min(0)


def _part() -> tuple[int, int]:
    """This process's rank and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
