"""The language-model head without autograd: logits become, in place, their own gradient.

In: hidden states and targets. Out: the gradient of the hidden states, and the use of the head for norms and sums. The
largest tensor of a step exists once, where autograd keeps logits, log-probabilities and their gradient.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .losses import IGNORED, Inputs, check_labels, model_logits, without_labels
from .rules.base import Use
from .rules.linear import Linear

TRIED = 4  # made-up tokens on which it is tried what a model allows


class Head(Linear):
    """A linear layer whose output gradients are left unscaled: activations are (scaled hidden states, scales)."""

    def bias_scale(self, use: Use) -> Tensor | None:
        return use.activations[1]


def _even(length: int) -> int:
    """A multiple of eight: matrix products of 127 rows take nearly twice the time of 128."""
    return -(-length // 8) * 8


def logits_of(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The head applied to states, by oneDNN on a CPU: over a large vocabulary it takes two thirds of the time of torch's own choice, MKL.

    Both compute in single precision throughout.
    """
    by_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None  # type: ignore[no-untyped-call]
    if by_onednn is None or states.device.type != "cpu" or states.dtype != torch.float32:
        return nn.functional.linear(states, weight, bias)
    logits: Tensor = by_onednn(states, weight, bias, "none", [], "")
    return logits


@torch.no_grad()
def differentiate(
    hidden: Tensor, head: nn.Linear, goals: Tensor, weights: Tensor, trained: frozenset[str]
) -> tuple[Use, Tensor, Tensor]:
    """Under the loss Σ_t weights_t·cross-entropy_t: the use of the head, the gradient of the hidden states [B, T, d], the loss.

    Row t of the logits' gradient is weights_t·(softmax − one-hot of the target); the weight is folded into the hidden
    state, so that the rows are never scaled. Positions before the first target and well after the last are left out.
    """
    examples, _, features = hidden.shape
    check_labels(goals, len(head.weight))
    targeted = (goals != IGNORED).any(0).nonzero()
    window = (
        slice(int(targeted[0]), min(hidden.shape[1], _even(int(targeted[-1]) + 1))) if len(targeted) else slice(0, 1)
    )
    states, scale, goal = hidden[:, window].detach(), weights[:, window].to(hidden), goals[:, window].clamp_min(0)
    # A frozen base may be in half precision; norms and sums are not
    weight, bias = (None if part is None else part.to(hidden.dtype) for part in (head.weight, head.bias))
    assert weight is not None
    logits = logits_of(states.reshape(-1, features), weight, bias)
    torch.softmax(logits, 1, out=logits)
    right = logits.gather(1, goal.reshape(-1, 1)).clamp_min_(torch.finfo(logits.dtype).tiny)
    loss = -(right.log_().view(scale.shape) * scale).sum()
    logits.scatter_add_(1, goal.reshape(-1, 1), logits.new_full((goal.numel(), 1), -1.0))
    hidden_gradient = torch.zeros_like(hidden)
    by_head = torch.mm(logits, weight).view(states.shape)
    torch.mul(by_head, scale[:, :, None], out=hidden_gradient[:, window])
    activations = (states * scale[:, :, None], scale)
    use = Use(Head(), head, examples, trained, activations, logits.view(examples, -1, logits.shape[1]))
    return use, hidden_gradient, loss


def parts(model: nn.Module) -> tuple[Any, Any]:
    """The body of a language model, which yields hidden states, and its head; (None, None) if it has no such parts."""
    unwrap = getattr(model, "get_base_model", None)  # of PEFT's wrapper
    inner: Any = unwrap() if callable(unwrap) else model
    body, head = getattr(inner, "base_model", None), getattr(inner, "get_output_embeddings", lambda: None)()
    return (None, None) if body is None or body is inner or type(head) is not nn.Linear else (body, head)


def hidden_states(model: nn.Module, inputs: Inputs) -> Tensor:
    """What the body of a model gives for a batch [B, T, d]; `parts` must have found one."""
    body, _ = parts(model)
    cache = {"use_cache": False} if "use_cache" in inspect.signature(body.forward).parameters else {}
    hidden: Tensor = body(**without_labels(inputs), **cache)[0]
    return hidden


def without_last(inputs: Inputs) -> Inputs:
    """The inputs without their last position, if all of them have positions and there is more than one."""
    known = without_labels(inputs)
    shapes = {tuple(value.shape) if isinstance(value, Tensor) else () for value in known.values()}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or shape[1] < 2:
        return inputs
    return {name: value[:, :-1] for name, value in known.items()}


def made_up(model: nn.Module, inputs: Inputs) -> Inputs | None:
    """A row of tokens that no record has a say in, with the names of a batch; None for names of which nothing is known.

    What is decided once for all records must not depend on the first of them.
    """
    head = parts(model)[1]
    if head is None:
        return None
    ids = torch.arange(TRIED, device=head.weight.device)[None]
    known = {
        "input_ids": ids % len(head.weight),
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "position_ids": ids,
    }
    names = without_labels(inputs).keys()
    return {name: known[name] for name in names} if names <= known.keys() else None


@torch.no_grad()
def looks_back(model: nn.Module, row: Inputs) -> bool:
    """Whether a position's hidden state is the same without the positions behind it: the last one, which predicts nothing, can be left out."""
    short = without_last(row)
    if short is row:
        return False
    whole, less = hidden_states(model, row), hidden_states(model, short)
    return less.shape[1] + 1 == whole.shape[1] and torch.allclose(whole[:, :-1], less, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def can_fuse(model: nn.Module, row: Inputs) -> bool:
    """Whether the model's logits are just its head applied to its body's hidden states."""
    _, head = parts(model)
    if head is None:
        return False
    config = getattr(model, "config", None)
    if any(
        getattr(config, name, None) not in (None, 1, 1.0)
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
    ):
        return False
    logits, fused = model_logits(model, row), head(hidden_states(model, row))
    return logits.shape == fused.shape and torch.allclose(logits, fused, rtol=1e-3, atol=1e-4)


def ways(model: nn.Module, inputs: Inputs) -> tuple[bool, bool]:
    """Whether the head can run by itself, and whether the last position can be left out: tried on made-up tokens."""
    row = made_up(model, inputs)
    if row is None:
        return False, False
    with evaluating(model):
        return (fused := can_fuse(model, row)), fused and looks_back(model, row)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, for a while."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
