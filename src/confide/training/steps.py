"""Steps without noise: batches of public records in, the gradient of their mean loss out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..dp.head import differentiate, hidden_states, parts, ways, without_last
from ..dp.losses import IGNORED, built_in, targets
from ..dp.rules.base import Sums, Use, exactly, single
from ..dp.rules.lstm import LSTM

Batch = dict[str, Tensor]


class PublicGradients:
    """Adds the gradient of a batch's loss to `p.grad`, by the private engine's own means where they are faster.

    A language model's head runs outside autograd: its logits become their own gradient in place, where autograd would hold
    them three times. An LSTM runs in the engine's scan, whose way back takes a fraction of the vendor kernel's time on CPUs.
    """

    def __init__(self, model: nn.Module, task: str) -> None:
        self._model, self._task = model, task
        self._loss = built_in(task, "sum")
        self._scanned = {} if _on_gpu(model) else {m: _scan(m) for m in model.modules() if type(m) is nn.LSTM}
        self._fused: bool | None = None if task == "causal" else False  # None: not yet known
        self._shorter = False  # the last position, which predicts nothing, is left out

    def backward(self, batch: Batch, count: float) -> float:
        """Add the gradient of Σ loss / count; returns that loss."""
        if self._fused is None:
            self._fused, self._shorter = ways(self._model, batch)
        for module, scan in self._scanned.items():
            module.forward = scan  # type: ignore[method-assign]
        try:
            return self._backward(batch, count)
        finally:
            for module in self._scanned:
                del module.forward

    def _backward(self, batch: Batch, count: float) -> float:
        if not self._fused:
            loss = self._loss(self._model, batch).sum() / count
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())
        hidden = hidden_states(self._model, without_last(batch) if self._shorter else batch)
        goals, head = targets(batch, "causal")[:, : hidden.shape[1]], parts(self._model)[1]
        trained = frozenset(name for name, p in head.named_parameters(recurse=False) if p.requires_grad)
        with exactly(hidden):
            use, gradient, loss = differentiate(
                single(hidden), head, goals, (goals != IGNORED).double() / count, trained
            )
        hidden.backward(gradient.to(hidden.dtype))  # type: ignore[no-untyped-call]
        use.rule.add(use, gradient.new_ones(len(goals)), _gradients(use))
        return float(loss)


def _on_gpu(model: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in model.parameters())


def _scan(lstm: nn.LSTM) -> Callable[..., Any]:
    """A forward for an LSTM whose way back adds its parameters' gradients to `p.grad`."""
    rule = LSTM()

    def add(activations: tuple[Tensor, ...], gradient: Tensor, names: frozenset[str]) -> None:
        trained = frozenset(name for name in names if getattr(lstm, name).requires_grad)
        use = Use(rule, lstm, len(gradient), trained, activations, gradient)
        rule.add(use, gradient.new_ones(len(gradient)), _gradients(use))

    return rule.forward(lstm, add)


def _gradients(use: Use) -> Sums:
    """`p.grad` of the parameters of a use, to be added to."""
    parameters = [use.parameter(name) for name in use.trained]
    started = frozenset(id(p) for p in parameters if p.grad is not None)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
    return Sums({id(p): p.grad for p in parameters if p.grad is not None}, started)


def count_targets(batch: Batch, task: str) -> int:
    """How many labels of a batch enter the loss."""
    return int((targets(batch, task) != IGNORED).sum())


def autocast(precision: str, device: torch.device) -> Any:
    """Half precision for forward passes, if asked for; norms, sums and noise stay in single precision."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def seed_dropout(device: torch.device, *numbers: int) -> None:
    """Seed dropout's coins. torch.manual_seed also asks every kind of device that is not there, which takes long and keeps each call."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
