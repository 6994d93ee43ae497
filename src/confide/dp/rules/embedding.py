"""Embeddings: row id_t of the table receives g_t, so that positions with equal ids add up."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import Refused
from .base import Layers, Measured, Rule, Sums, Use, register
from .linear import Linear


@register
class Embedding(Rule):
    """`torch.nn.Embedding`, also for position ids of shape [1, T] that stand for every example."""

    layers: ClassVar[Layers] = (nn.Embedding,)

    def check(self, module: nn.Module, name: str) -> None:
        assert isinstance(module, nn.Embedding)
        if module.max_norm is not None or module.scale_grad_by_freq:
            raise Refused(
                f"{name}: an embedding with max_norm or scale_grad_by_freq mixes the records of a batch; switch it off"
            )

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        (ids,) = super().inputs(module, args, kwargs)
        if ids.dim() < 2:
            raise Refused(
                "an embedding was called with ids of one dimension: it cannot be told whether they are positions or examples; "
                "give them a batch dimension (ids[None] for positions)"
            )
        assert isinstance(module, nn.Embedding)
        padding = module.padding_idx
        return (ids if padding is None else torch.where(ids == padding, -1, ids),)

    def arrange(self, value: Tensor, examples: int) -> Tensor:
        if value.is_floating_point():
            return super().arrange(value, examples)
        return super().arrange(value[..., None], examples)[..., 0]

    def measure(self, use: Use) -> Measured:
        """Σ_ts [id_t = id_s] g_t·g_s.

        *Formal guarantees.* The square is exact but for rounding; its error is at most κ·u·Σ_ts [id_t = id_s]‖g_t‖‖g_s‖, the
        squared spread. Padding ids (-1 here) count for nothing: the table's padding row is never trained.
        """
        gradient = use.gradient
        assert gradient is not None
        return Measured(_matching(use, use, gradient, gradient), _spread(use, gradient))

    def inner(self, use: Use, other: Use, names: frozenset[str]) -> Tensor:
        """The cross term with another embedding, or with the head that is tied to this table (guarantees §1).

        With the head's Σ_t g_t a_tᵀ and this table's rows d_s at id_s, the term is Σ_s d_s·(Σ_t g_t[id_s] a_t).
        """
        gradient = use.gradient
        assert gradient is not None
        if isinstance(other.rule, Embedding):
            assert other.gradient is not None
            return _matching(use, other, gradient, other.gradient)
        if not isinstance(other.rule, Linear):
            return super().inner(use, other, names)
        (ids,) = use.activations
        known, rows = (ids >= 0), ids.clamp_min(0)
        if other.kept is not None:
            kept = other.rule.as_outputs_by_inputs(other.kept[0])
            picked = kept.gather(1, rows[:, :, None].expand(-1, -1, kept.shape[2]))
            return ((picked * gradient).sum(2).double() * known).sum(1)
        assert other.gradient is not None
        picked = other.gradient.gather(2, rows[:, None, :].expand(-1, other.gradient.shape[1], -1))
        products = torch.bmm(other.activations[0], gradient.transpose(1, 2))
        return (products.mul_(picked).sum(1).double() * known).sum(1)

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        gradient, (ids,) = use.gradient, use.activations
        assert gradient is not None
        known = (ids >= 0)[:, :, None]
        rows = gradient * (weights[:, None, None] * known)
        sums(use.parameter("weight")).index_add_(0, ids.clamp_min(0).reshape(-1), rows.flatten(0, 1))


def _matching(use: Use, other: Use, gradient: Tensor, others: Tensor) -> Tensor:
    products = torch.bmm(gradient, others.transpose(1, 2))
    return products.mul_(_equal(use, other)).sum(2).double().sum(1)


def _equal(use: Use, other: Use) -> Tensor:
    mine, theirs = use.activations[0], other.activations[0]
    return torch.logical_and(torch.eq(mine[:, :, None], theirs[:, None, :]), torch.ge(mine, 0)[:, :, None])


def _spread(use: Use, gradient: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(gradient, dim=2)
    reached = torch.bmm(_equal(use, use).to(lengths.dtype), lengths[:, :, None])[:, :, 0]
    squared: Tensor = (reached * lengths).double().sum(1)
    return squared


@register
class OptPositions(Embedding):
    """OPT's position table, which is called with the attention mask and adds an offset of two."""

    layers = ("transformers.models.opt.modeling_opt.OPTLearnedPositionalEmbedding",)

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        given = dict(zip(("attention_mask", "past_key_values_length", "position_ids"), args, strict=False)) | kwargs
        positions = given.get("position_ids")
        if positions is None:
            mask = given["attention_mask"]
            positions = (torch.cumsum(mask, dim=1) * mask - 1).long()[:, given.get("past_key_values_length", 0) :]
        return super().inputs(module, (positions + module.offset,), {})
