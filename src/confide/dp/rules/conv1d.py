"""Hugging Face's Conv1D, the linear layer of GPT-2: weight [in, out]."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import register
from .linear import Linear


@register
class Conv1D(Linear):
    """The rule of `Linear` with the weight transposed."""

    layers = ("transformers.pytorch_utils.Conv1D",)
    transposed = True

    def product(self, gradient: Tensor, activation: Tensor) -> Tensor:
        return torch.bmm(activation.transpose(1, 2), gradient)

    def as_outputs_by_inputs(self, kept: Tensor) -> Tensor:
        return kept.transpose(1, 2)
