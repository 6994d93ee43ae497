"""The language-model head without autograd: logits become, in place, their own gradient.

In: hidden states and targets. Out: the gradient of the hidden states, and the use of the head for norms and sums. The
largest tensor of a step exists once, where autograd keeps logits, log-probabilities and their gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .losses import IGNORED
from .rules.base import Use
from .rules.linear import Linear


class Head(Linear):
    """A linear layer whose output gradients are left unscaled: activations are (scaled hidden states, scales)."""

    def bias_scale(self, use: Use) -> Tensor | None:
        return use.activations[1]


def _even(length: int) -> int:
    """A multiple of eight: matrix products of 127 rows take nearly twice the time of 128."""
    return -(-length // 8) * 8


@torch.no_grad()
def differentiate(
    hidden: Tensor, head: nn.Linear, goals: Tensor, weights: Tensor, trained: frozenset[str]
) -> tuple[Use, Tensor]:
    """The use of the head under the loss Σ_t weights_t·cross-entropy_t, and the gradient of the hidden states [B, T, d].

    Row t of the logits' gradient is weights_t·(softmax − one-hot of the target); the weight is folded into the hidden
    state, so that the rows are never scaled. Positions before the first target and well after the last are left out.
    """
    examples, _, features = hidden.shape
    targeted = (goals != IGNORED).any(0).nonzero()
    window = (
        slice(int(targeted[0]), min(hidden.shape[1], _even(int(targeted[-1]) + 1))) if len(targeted) else slice(0, 1)
    )
    states, scale, goal = hidden[:, window].detach(), weights[:, window].to(hidden), goals[:, window].clamp_min(0)
    logits = nn.functional.linear(states.reshape(-1, features), head.weight, head.bias)
    torch.softmax(logits, 1, out=logits)
    logits.scatter_add_(1, goal.reshape(-1, 1), logits.new_full((goal.numel(), 1), -1.0))
    hidden_gradient = torch.zeros_like(hidden)
    by_head = torch.mm(logits, head.weight).view(states.shape)
    torch.mul(by_head, scale[:, :, None], out=hidden_gradient[:, window])
    activations = (states * scale[:, :, None], scale)
    return Use(
        Head(), head, examples, trained, activations, logits.view(examples, -1, logits.shape[1])
    ), hidden_gradient
