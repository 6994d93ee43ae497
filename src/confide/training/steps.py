"""Steps without noise: batches of public records in, the gradient of their mean loss out."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from ..dp.head import can_fuse, differentiate, hidden_states, parts
from ..dp.losses import IGNORED, built_in, rows, targets
from ..dp.rules.base import exactly, single

Batch = dict[str, Tensor]


class PublicGradients:
    """Adds the gradient of a batch's loss to `p.grad`; a language model's head runs outside autograd where it can.

    The head's logits become their own gradient in place, as in the private engine: autograd would hold them three times.
    """

    def __init__(self, model: nn.Module, task: str) -> None:
        self._model, self._task = model, task
        self._loss = built_in(task, "sum")
        self._fused: bool | None = None if task == "causal" else False  # None: not yet known

    def backward(self, batch: Batch, count: float) -> float:
        """Add the gradient of Σ loss / count; returns that loss."""
        if self._fused is None:
            self._fused = _fits(self._model, batch)
        if not self._fused:
            loss = self._loss(self._model, batch).sum() / count
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())
        hidden, head = hidden_states(self._model, batch), parts(self._model)[1]
        goals = targets(batch, "causal")
        trained = frozenset(name for name, p in head.named_parameters(recurse=False) if p.requires_grad)
        with exactly(hidden):
            use, gradient, loss = differentiate(
                single(hidden), head, goals, (goals != IGNORED).double() / count, trained
            )
        hidden.backward(gradient.to(hidden.dtype))  # type: ignore[no-untyped-call]
        use.rule.add(use, gradient.new_ones(len(goals)), _gradient)
        return float(loss)


def _fits(model: nn.Module, batch: Batch) -> bool:
    training = model.training
    model.eval()
    try:
        return can_fuse(model, rows(batch, slice(0, 1), len(batch["labels"])))
    finally:
        model.train(training)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def count_targets(batch: Batch, task: str) -> int:
    """How many labels of a batch enter the loss."""
    return int((targets(batch, task) != IGNORED).sum())


def autocast(precision: str, device: torch.device) -> Any:
    """Half precision for forward passes, if asked for; norms, sums and noise stay in single precision."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
