"""The language-model head without autograd: logits become, in place, their own gradient.

In: hidden states and targets. Out: the gradient of the hidden states, and the use of the head for norms and sums. The
largest tensor of a step exists once, where autograd keeps logits, log-probabilities and their gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .losses import IGNORED
from .rules.base import Measured, Sums, Use
from .rules.gram import gram_square
from .rules.linear import Linear

CHUNK_BYTES = 16 << 20  # logits worked on at a time: they should stay in the cache between the products


class Head(Linear):
    """A linear layer whose gradient rows are kept unscaled: activations are (scaled hidden states, scales)."""

    def measure(self, use: Use) -> Measured:
        assert use.gradient is not None
        hidden, scale = use.activations
        return gram_square(hidden, use.gradient, scale if "bias" in use.trained else None)

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        hidden, scale = use.activations
        assert use.gradient is not None
        gradient = use.gradient.flatten(0, 1)
        if "bias" in use.trained:
            sums(use.parameter("bias")).addmv_(gradient.t(), (scale * weights[:, None]).reshape(-1))
        if "weight" in use.trained:
            self.add_product(sums(use.parameter("weight")), gradient, (hidden * weights[:, None, None]).flatten(0, 1))


class HeadResult(NamedTuple):
    use: Use
    measured: Measured
    hidden_gradient: Tensor


@torch.no_grad()
def differentiate(hidden: Tensor, head: nn.Linear, goals: Tensor, weights: Tensor, trained: frozenset[str]) -> HeadResult:
    """The gradient of Σ_t weights_t·cross-entropy_t with respect to hidden states [B, T, d] and head.

    Row t of the logits' gradient is weights_t·(softmax − one-hot of the target); the weight is folded into the hidden
    state, so that the rows are never scaled.
    """
    examples, positions, features = hidden.shape
    used = (goals != IGNORED).any(0).nonzero()
    first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    window = slice(first, last)
    scale = weights[:, window].to(hidden.dtype)
    states = hidden[:, window].detach()
    length = last - first
    vocabulary = len(head.weight)
    gradient = torch.empty(examples, length, vocabulary, dtype=states.dtype, device=states.device)
    hidden_gradient = torch.zeros_like(hidden)
    scaled = states * scale[:, :, None]
    goal = goals[:, window].clamp_min(0)[:, :, None]
    per_chunk = max(1, CHUNK_BYTES // (length * vocabulary * states.element_size()))
    whole = Use(Head(), head, examples, trained, (scaled, scale), gradient)
    squares, spreads = [], []
    for start in range(0, examples, per_chunk):
        part = slice(start, start + per_chunk)
        block = gradient[part]
        flat = block.view(-1, vocabulary)
        rows = states[part].reshape(-1, features)
        if head.bias is None:
            torch.mm(rows, head.weight.t(), out=flat)
        else:
            torch.addmm(head.bias, rows, head.weight.t(), out=flat)
        torch.softmax(flat, 1, out=flat)
        block.scatter_add_(2, goal[part], torch.full_like(goal[part], -1, dtype=block.dtype))
        torch.mul(torch.mm(flat, head.weight).view(len(block), length, features), scale[part, :, None], out=hidden_gradient[part, window])
        if trained:
            use = Use(whole.rule, head, len(block), trained, (scaled[part], scale[part]), block)
            measured = whole.rule.measure(use)
            squares.append(measured.square)
            spreads.append(measured.spread)
    none = torch.zeros(examples, dtype=torch.float64, device=hidden.device)
    measured = Measured(torch.cat(squares), torch.cat(spreads)) if trained else Measured(none, none)
    return HeadResult(whole, measured, hidden_gradient)
