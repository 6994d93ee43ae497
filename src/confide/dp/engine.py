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
from .capture import Capture
from .clipping import TOLERATED, Clipping, rounding
from .head import differentiate
from .memory import keep_memory
from .noise import GaussianNoise
from .plan import Plan, Step
from .rules import Use
from .rules.base import Sums, exactly, single

_ATTACHED: weakref.WeakKeyDictionary[nn.Module, weakref.ref[PrivateGradients]] = weakref.WeakKeyDictionary()
ALIGNED = 16  # numbers: each parameter's part of a buffer starts at a multiple
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

    def rounding(self, dtype: torch.dtype) -> Tensor:
        return rounding(self.square, self._spread.square(), dtype)

    def again(self, rows: Tensor) -> Tally:
        """The same for some examples, in double precision."""
        tally = Tally(self._groups, len(rows))
        for use in self.uses:
            tally.see(use.select(rows))
        return tally


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
        norms: str = "float32",
        generic: bool = False,
        checked: bool = True,
    ) -> None:
        if norms not in ("float32", "float64"):
            raise BadInput(f"norms must be float32 or float64, got {norms!r}")
        other = _ATTACHED.get(model) if isinstance(model, nn.Module) else None
        if other is not None and other() is not None:
            raise BadInput("this model already has PrivateGradients: call detach() on the first one")
        self.model, self.plan = model, plan
        self.clipping = Clipping(plan.clip_norm, clipping)
        self._layers = find_layers(model, generic=generic)
        self._groups = group_layers(self._layers)
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._trained = list({id(p): p for p in model.parameters() if p.requires_grad}.values())
        self._loss = None if task is None else losses.built_in(task, reduction)
        self._task, self._reduction, self._double = task, reduction, norms == "float64"
        self._fused: bool | None = None if task == "causal" else False  # None: not yet known
        self._unproven = {"alone", "together"} if checked else set()
        self._noise = GaussianNoise()
        self._buffers: list[Tensor] = []
        self._sums: dict[int, Tensor] = {}
        self._clear()
        self._capture = Capture(self._layers)
        _ATTACHED[model] = weakref.ref(self)
        if all(p.device.type == "cpu" for p in self._trained):
            keep_memory()

    def detach(self) -> None:
        """Take the hooks off the model."""
        self._capture.remove()
        _ATTACHED.pop(self.model, None)

    def _clear(self, *, spoilt: bool = False) -> None:
        """Forget the sums of a step; a spoilt one cannot be released."""
        self._started = False
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
        sum by rounding only. A record whose gradient is not finite, or that has no target, contributes zero.
        """
        try:
            self._accumulate(inputs, loss or self._loss, real)
        except BaseException:
            self._clear(spoilt=True)
            raise

    def release(self, step: Step) -> None:
        """Set `p.grad` of every trainable parameter to the step's noised sum over the expected batch size.

        *Formal guarantees.* Noise is added to every trainable parameter, also in a step without records and in
        embedding rows that no record touched. A step can be released once, and only with all the records that the plan
        drew for it. Over several processes noise is drawn once in total, in shares.
        """
        rows = self._rows
        try:
            self.plan.refuse_foreign(step)
            if step.part != _part():
                raise Refused("the step was drawn for another process: draw and release it in the same one")
            step.spend(self.plan, rows)
            gradients = [self._sum(p) for p in self._trained]
            if step.part[1] > 1:
                for buffer in self._buffers:
                    torch.distributed.all_reduce(buffer)
        finally:
            self._clear()
        for parameter, gradient in zip(self._trained, gradients, strict=True):
            parameter.grad = gradient

    def _accumulate(self, inputs: losses.Inputs, loss: losses.Loss | None, real: Tensor | None) -> None:
        examples = losses.count(inputs)
        loss = self._check_state(loss)
        if real is None:
            real = torch.ones(examples, dtype=torch.bool)
        elif real.shape != (examples,) or real.dtype != torch.bool:
            raise BadInput(f"real must be {examples} booleans, one per example")
        if self._unproven:
            self._prove(inputs, loss)
        tally = self._record(inputs, loss, fused=bool(self._fused) and loss is self._loss)
        with exactly(self._trained[0]):
            self._add(tally, self._weights(tally, real) / self.plan.expected_batch, self._sum)
        self._rows += int(real.sum())

    def _check_state(self, loss: losses.Loss | None) -> losses.Loss:
        if self._rows < 0:
            raise Refused(
                "an earlier batch of this step failed: its sum is lost; draw no more from it and start the run again"
            )
        if loss is None:
            raise BadInput("no loss: name a task (causal, masked, classify) or give accumulate() a loss function")
        if _ATTACHED.get(self.model, lambda: None)() is not self:
            raise BadInput("these PrivateGradients were detached from the model; make new ones")
        if not self.model.training:
            raise BadInput(
                "the model is in evaluation mode: call model.train() (and set dropout to 0 if you want none)"
            )
        if not torch.is_grad_enabled():
            raise BadInput("accumulate() was called under torch.no_grad(): no gradient can be computed")
        if any(not p.requires_grad for p in self._trained) or sum(
            p.requires_grad for p in self.model.parameters()
        ) != len(self._trained):
            raise BadInput(
                "requires_grad of a parameter changed after PrivateGradients was made: detach() it and make it anew"
            )
        device = self._trained[0].device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16:
            raise Refused(
                "float16 autocast needs a dynamic loss scale, which depends on private records and is not part of the guarantee; "
                "use bfloat16"
            )
        return loss

    def _record(self, inputs: losses.Inputs, loss: losses.Loss, *, fused: bool) -> Tally:
        """One forward and one backward pass."""
        examples = losses.count(inputs)
        tally = Tally(self._groups, examples)
        with self._capture.recording(self._trained, examples, tally.see):
            if not fused:
                each = losses.check_losses(loss(self.model, inputs), examples)
                self._capture.backward(each, torch.ones_like(each))
                return tally
            hidden, head = _hidden(self.model, inputs), _parts(self.model)[1]
            goals = losses.targets(inputs, "causal")
            layer = next((layer for layer in self._layers if layer.module is head), None)
            trained = layer.trained if layer else frozenset[str]()
            weights = losses.token_weights(goals, self._reduction)
            with exactly(hidden):
                use, gradient = differentiate(single(hidden), head, goals, weights, trained)
                if layer:
                    tally.see(use)
                del use
            self._capture.backward(hidden, gradient.to(hidden.dtype))
        return tally

    def _weights(self, tally: Tally, real: Tensor) -> Tensor:
        """The weight of each example in each group, after taking doubtful norms again in double precision."""
        square, room = tally.square, tally.rounding(self._trained[0].dtype)
        if self.clipping.kind == "per-layer":
            doubtful = (room > TOLERATED * square).any(0)
        else:
            doubtful = room.sum(0) > TOLERATED * square.sum(0)
        doubtful = (doubtful | self._double) & square.isfinite().all(0) & real
        for rows in torch.split(doubtful.nonzero()[:, 0], DOUBLE_ROWS):
            if len(rows):
                again = tally.again(rows)
                square[:, rows], room[:, rows] = again.square, again.rounding(torch.float64)
        weights = self.clipping.weights(square, room, real, self._trained[0].dtype)
        nothing = (weights == 0).all(0)
        if bool(nothing.any()):
            for use in tally.uses:
                use.drop(nothing)
        return weights

    def _add(self, tally: Tally, weights: Tensor, sums: Sums) -> None:
        like = self._trained[0]
        while tally.uses:
            use = tally.uses.pop()
            use.rule.add(use, weights[self._groups[use.module]].to(like), sums)

    def _sum(self, parameter: nn.Parameter) -> Tensor:
        """The buffer of a parameter's sum; the first call of a step fills them all with this process's noise."""
        if not self._started:
            if not self._buffers:
                self._allocate()
            for buffer in self._buffers:
                self._noise.fill_(buffer, self.plan.noise_std / self.plan.expected_batch, part=_part())
            self._started = True
        return self._sums[id(parameter)]

    def _allocate(self) -> None:
        """One buffer for all parameters of a device and precision, used again in every step, so that noise is drawn in one go."""
        alike: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
        for parameter in self._trained:
            alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        for (device, dtype), parameters in alike.items():
            sizes = [-(-p.numel() // ALIGNED) * ALIGNED for p in parameters]
            buffer = torch.empty(sum(sizes), dtype=dtype, device=device)
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

    def _prove(self, inputs: losses.Inputs, loss: losses.Loss) -> None:
        """Hold the first two examples against plain autograd and against each other, without dropout.

        *Formal guarantees.* Returns only if the rules gave the first example the gradient that autograd gives it (so that no
        use of a parameter went unseen) and both examples the norms together that they have alone (so that no layer
        mixes them up). It finds a layer that mixes examples at all shapes, not one that does so now and then.
        """
        examples = losses.count(inputs)
        tolerance = 5e-2 if torch.is_autocast_enabled(self._trained[0].device.type) else 1e-3
        pair = [losses.rows(inputs, slice(i, i + 1), examples) for i in range(min(2, examples))]
        with self._evaluating():
            if self._fused is None:
                self._fused = _can_fuse(self.model, pair[0])
            fused = self._fused and loss is self._loss
            alone = [self._record(row, loss, fused=fused) for row in pair]
            norms = torch.cat([tally.square.sum(0).clamp_min(0).sqrt() for tally in alone])
            if not norms.isfinite().all():
                return
            if "alone" in self._unproven:
                self._compare(pair[0], loss, alone[0], tolerance)
                self._unproven.discard("alone")
            if len(pair) == 2:
                both = self._record(losses.rows(inputs, slice(0, 2), examples), loss, fused=fused)
                together = both.square.sum(0).clamp_min(0).sqrt()
                if not torch.allclose(
                    together, norms, rtol=tolerance, atol=1e-9 + tolerance * float(norms.max()) * 1e-3
                ):
                    raise Refused(
                        "the examples of a batch are not independent: two records give other gradient norms together than alone. "
                        "Something in the model mixes the records of a batch, or its first dimension is not the batch"
                    )
                self._unproven.discard("together")

    def _compare(self, row: losses.Inputs, loss: losses.Loss, tally: Tally, tolerance: float) -> None:
        sums = {id(p): torch.zeros_like(p) for p in self._trained}
        self._add(tally, torch.ones_like(tally.square), lambda p: sums[id(p)])
        true = torch.autograd.grad(loss(self.model, row).sum(), self._trained, allow_unused=True)
        whole = math.sqrt(sum(float(g.double().square().sum()) for g in true if g is not None))
        for parameter, gradient in zip(self._trained, true, strict=True):
            difference = sums[id(parameter)] - (0.0 if gradient is None else gradient)
            size = 0.0 if gradient is None else float(torch.linalg.vector_norm(gradient))
            if float(torch.linalg.vector_norm(difference)) > tolerance * (size + 1e-2 * whole) + 1e-9:
                raise Refused(
                    f"{self._names[id(parameter)]}: the per-example rule does not give the gradient that autograd gives; a use of "
                    "the parameter outside its module's forward is not seen, or the module has a rule that is wrong for it"
                )
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


def _part() -> tuple[int, int]:
    """This process's rank and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
