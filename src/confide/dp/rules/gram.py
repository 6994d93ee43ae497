"""Norms of sums of outer products from Gram matrices, without forming the sums."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Measured

SPLIT_FROM = 32  # positions from which the symmetry of the Gram matrices pays
LONGEST = 8192  # features summed in single precision; longer inner products add their parts in double


def gram_square(activation: Tensor, gradient: Tensor, bias: float | Tensor | None = None) -> Measured:
    """‖Σ_t g_t a_tᵀ‖² + ‖Σ_t b_t g_t‖² per example, as Σ_ts (a_t·a_s + b_t b_s)(g_t·g_s).

    `bias` gives b: a tensor [examples, positions], or the number by which b_t b_s counts (1: a bias, 2: two of them).
    Both matrices are symmetric, so of the four blocks one off the diagonal counts twice and its mirror is never formed.
    *Formal guarantees.* With exact inner products this is an identity. In floating point each inner product is off by
    at most κ'·u·‖·‖‖·‖, hence the result by at most 2κ'·u·(Σ_t √(‖a_t‖²+b_t²)‖g_t‖)² to first order: the squared spread.
    """
    positions = activation.shape[1]
    half = positions // 2 if positions >= SPLIT_FROM else positions
    parts = [slice(0, half)] + ([slice(half, positions)] if half < positions else [])
    square = torch.zeros(len(activation), dtype=torch.float64, device=activation.device)
    spread = torch.zeros_like(square)
    for part in parts:
        a, g = _products(activation, bias, part, part), _products(gradient, None, part, part)
        lengths = a.diagonal(dim1=1, dim2=2) * g.diagonal(dim1=1, dim2=2)
        spread += lengths.clamp_min(0).sqrt().double().sum(1)
        square += (a * g).sum(2).double().sum(1)
    if len(parts) == 2:
        a, g = _products(activation, bias, parts[1], parts[0]), _products(gradient, None, parts[1], parts[0])
        square += 2 * (a * g).sum(2).double().sum(1)
    return Measured(square, spread.square())


def _products(rows: Tensor, bias: float | Tensor | None, left: slice, right: slice) -> Tensor:
    parts = rows.split(LONGEST, dim=2)
    products = torch.bmm(parts[0][:, left], parts[0][:, right].transpose(1, 2))
    for part in parts[1:]:
        products = products.double() + torch.bmm(part[:, left], part[:, right].transpose(1, 2))
    if isinstance(bias, Tensor):
        products += bias[:, left, None] * bias[:, None, right]
    elif bias:
        products += bias
    return products
