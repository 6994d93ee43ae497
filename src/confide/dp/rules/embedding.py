"""Embeddings: row id_t of the table receives g_t, so that positions with equal ids add up."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import Refused
from .base import Layers, Measured, Rule, Sums, Use, register, squared
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
        if module.sparse:
            raise Refused(
                f"{name}: noise reaches every row of an embedding, so that sparse=True gains nothing; switch it off"
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
        """The record's gradient for each id, kept at the id's first position: Σ_s [id_s = id_t] g_s.

        *Formal guarantees.* These rows are themselves what is added to the table, so that no rounding stands between them
        and their norm. Padding ids (-1 here) count for nothing: the table's padding row is never trained.
        """
        if use.kept is None:
            (ids,), gradient = use.activations, use.gradient
            assert gradient is not None
            equal = torch.eq(ids[:, :, None], ids[:, None, :])
            first = torch.logical_not(equal.tril(-1).any(2)) & torch.ge(ids, 0)
            use.kept = torch.bmm(torch.logical_and(equal, first[:, :, None]).to(gradient.dtype), gradient)
            use.gradient = None
        square = squared(use.kept)
        return Measured(square, square)

    def inner(self, use: Use, other: Use, names: frozenset[str]) -> Tensor:
        """The cross term with another embedding, or with the head that is tied to this table (guarantees §1).

        With the head's Σ_t g_t a_tᵀ and this table's rows d_s at id_s, the term is Σ_s d_s·(Σ_t g_t[id_s] a_t). In double precision:
        what two uses have in common may cancel all but a little of both.
        """
        (ids,), rows = use.activations, use.kept.double()
        if isinstance(other.rule, Embedding):
            equal = torch.eq(ids[:, :, None], other.activations[0][:, None, :])
            result: Tensor = (torch.bmm(rows, other.kept.double().transpose(1, 2)) * equal).sum((1, 2))
            return result
        if not isinstance(other.rule, Linear) or other.rule.transposed:
            return super().inner(use, other, names)
        chosen = ids.clamp_min(0)
        if other.kept is not None:
            kept = other.kept[0]
            picked = kept.gather(1, chosen[:, :, None].expand(-1, -1, kept.shape[2]))
            head: Tensor = (picked * rows).sum((1, 2))
            return head
        assert other.gradient is not None
        picked = other.gradient.gather(2, chosen[:, None, :].expand(-1, other.gradient.shape[1], -1))
        return torch.bmm(other.activations[0].double(), rows.transpose(1, 2)).mul_(picked).sum((1, 2))

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        rows = (use.kept * weights[:, None, None]).flatten(0, 1)
        sums(use.parameter("weight")).index_add_(0, use.activations[0].clamp_min(0).reshape(-1), rows)


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
