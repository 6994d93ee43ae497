"""Linear layers: out_t = W a_t + b, so that an example's gradient is Σ_t g_t a_tᵀ for W and Σ_t g_t for b."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .. import compiled
from .base import Layers, Measured, Rule, Sums, Use, register, squared
from .gram import gram_square

# A product kept for every example costs memory traffic where the Gram matrices cost arithmetic: so many operations are
# done in the time of moving one byte (7 on a server's core; tens on a GPU, where the choice matters less).
OPERATIONS_PER_BYTE = 7.0
ROOM = 1.75  # numbers of a kept product for each number of activations and gradients that it replaces
LARGEST = 2**19  # numbers of one example's product: larger ones leave the cache before they are read again
PASSES = 3.0  # writing the kept products, reading them for the norm and for the sum


def prefers_direct(positions: int, inputs: int, outputs: int) -> bool:
    """Whether per-example products are cheaper than Gram matrices for this shape, and do not take much more room.

    Gram matrices take 3/2·T²(p+d) operations, fewer by compiled loops; products take no more arithmetic than the weighted sum itself, which
    they replace, but 4·p·d bytes an example that are moved three times.
    """
    gram = (1.2 if compiled.COMPILED else 1.5) * positions**2 * (inputs + outputs)
    moved = 4.0 * inputs * outputs * PASSES * OPERATIONS_PER_BYTE
    room = inputs * outputs <= min(LARGEST, ROOM * positions * (inputs + outputs))
    return room and moved < gram


@register
class Linear(Rule):
    """`torch.nn.Linear`: weight [out, in]."""

    layers: ClassVar[Layers] = (nn.Linear,)
    transposed: ClassVar[bool] = False  # whether the weight is [in, out]

    def product(self, gradient: Tensor, activation: Tensor) -> Tensor:
        """Per-example gradients of the weight, in the weight's own layout."""
        return torch.bmm(gradient.transpose(1, 2), activation)

    def as_outputs_by_inputs(self, kept: Tensor) -> Tensor:
        return kept

    def bias_scale(self, use: Use) -> Tensor | None:
        """By what the output gradients count for the bias [examples, positions]; None for 1."""
        return None

    def measure(self, use: Use) -> Measured:
        """Squared norm by the cheaper of Gram matrices and kept products.

        *Formal guarantees.* Let a_t, g_t be the tensors as saved. Gram: the square is Σ_ts (a_t·a_s+1)(g_t·g_s), computed
        in their precision; its error is at most κ·u·(Σ_t √(‖a_t‖²+1)‖g_t‖)², the spread, with κ the constant of
        clipping.py. Direct: the kept product is itself what is summed, and its square is a sum of squares.
        """
        gradient = use.gradient
        if use.kept is None:
            assert gradient is not None
            activation = use.activations[0]
            if "weight" in use.trained and not (
                gradient.dtype == torch.float32
                and prefers_direct(gradient.shape[1], activation.shape[2], gradient.shape[2])
            ):
                scale = self.bias_scale(use)
                return gram_square(
                    activation, gradient, (1.0 if scale is None else scale) if "bias" in use.trained else None
                )
            weight = self.product(gradient, activation) if "weight" in use.trained else None
            use.kept = (weight, self.bias(use) if "bias" in use.trained else None)
            use.activations, use.gradient = (), None
        square = sum((squared(part) for part in use.kept if part is not None), torch.zeros((), dtype=torch.float64))
        return Measured(square, square)

    def inner(self, use: Use, other: Use, names: frozenset[str]) -> Tensor:
        """⟨Σ_t g_t a_tᵀ, Σ_s g'_s a'_sᵀ⟩ = Σ_ts (a_t·a'_s)(g_t·g'_s), or with kept products in place of either; in double precision."""
        if not isinstance(other.rule, Linear):
            return other.rule.inner(other, use, names)
        result = torch.zeros(use.examples, dtype=torch.float64)
        if "weight" in names:
            result += self._weights(use, other)
        if "bias" in names:
            result += (self.bias(use).double() * other.rule.bias(other)).sum(1)
        return result

    def _weights(self, use: Use, other: Use) -> Tensor:
        assert isinstance(other.rule, Linear)
        if self.transposed != other.rule.transposed:
            return Rule.inner(self, use, other, frozenset({"weight"}))
        if use.kept is not None and other.kept is not None:
            mine, theirs = self.as_outputs_by_inputs(use.kept[0]), other.rule.as_outputs_by_inputs(other.kept[0])
            return (mine.double() * theirs).sum((1, 2))
        if use.kept is not None:
            return other.rule._weights(other, use)
        assert use.gradient is not None
        activation, gradient = use.activations[0].double(), use.gradient.double()
        if other.kept is not None:
            kept = other.rule.as_outputs_by_inputs(other.kept[0]).double()
            return (torch.bmm(gradient, kept) * activation).sum((1, 2))
        assert other.gradient is not None
        products = torch.bmm(activation, other.activations[0].double().transpose(1, 2))
        return (products * torch.bmm(gradient, other.gradient.double().transpose(1, 2))).sum((1, 2))

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        if use.kept is not None:
            weight, bias = use.kept
            if weight is not None:
                sums(use.parameter("weight")).view(-1).addmv_(weight.flatten(1).t(), weights)
            if bias is not None:
                sums(use.parameter("bias")).addmv_(bias.t(), weights)
            return
        activation, gradient = use.activations[0], use.gradient
        assert gradient is not None
        if "bias" in use.trained:
            scale = self.bias_scale(use)
            each = weights[:, None].expand(gradient.shape[:2]) if scale is None else weights[:, None] * scale
            sums(use.parameter("bias")).addmv_(gradient.flatten(0, 1).t(), each.reshape(-1))
        if "weight" in use.trained:
            if activation.shape[2] <= gradient.shape[2]:
                activation = activation * weights[:, None, None]
            else:
                gradient = gradient * weights[:, None, None]
            left, right = gradient.flatten(0, 1), activation.flatten(0, 1)
            left, right = (right, left) if self.transposed else (left, right)
            sums.add_product(use.parameter("weight"), left.t(), right)

    def bias(self, use: Use) -> Tensor:
        """Per-example gradients of the bias."""
        if use.kept is not None:
            bias: Tensor = use.kept[1]
            return bias
        scale = self.bias_scale(use)
        assert use.gradient is not None
        return use.gradient.sum(1) if scale is None else torch.bmm(scale[:, None], use.gradient)[:, 0]
