"""Parameters that a module holds but does not use: they get noise and no gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import Measured, Rule, Sums, Use, register


@register
class Idle(Rule):
    """The bias beside BERT's and RoBERTa's decoder, which has a bias of its own when it is not tied.

    Should a version of these models use it after all, the check of the first batch refuses the model.
    """

    layers = (
        "transformers.models.bert.modeling_bert.BertLMPredictionHead",
        "transformers.models.roberta.modeling_roberta.RobertaLMHead",
    )

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        return ()

    def measure(self, use: Use) -> Measured:
        use.gradient = None
        nothing = torch.zeros(use.examples, dtype=torch.float64)
        return Measured(nothing, nothing)

    def inner(self, use: Use, other: Use, names: frozenset[str]) -> Tensor:
        return torch.zeros(use.examples, dtype=torch.float64)

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        pass
