"""Norms of sums of outer products from Gram matrices, without forming the sums."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Measured

BLOCK = 32  # positions of a row of blocks; blocks above the diagonal are never formed
MOST_BLOCKS = 4
LONGEST, FEW = 8192, 512  # features summed in single precision (the second below 32 positions); parts add in double
TINY = 1e-30  # a squared length below may have underflowed


def gram_square(activation: Tensor, gradient: Tensor, bias: float | Tensor | None = None) -> Measured:
    """‖Σ_t g_t a_tᵀ‖² + ‖Σ_t b_t g_t‖² per example, as Σ_ts (a_t·a_s + b_t b_s)(g_t·g_s).

    `bias` gives b: a tensor [examples, positions], or the number by which b_t b_s counts (1: a bias, 2: two of them).
    Both matrices are symmetric, so that blocks below the diagonal count twice and those above are never formed.
    *Formal guarantees.* With exact inner products this is an identity. In floating point each inner product is off by
    at most κ'·u·‖·‖‖·‖, hence the result by at most 2κ'·u·(Σ_t √(‖a_t‖²+b_t²)‖g_t‖)² to first order: the squared spread.
    Where a length may have underflowed the spread is infinite, so that the norm is taken again in double precision.
    """
    positions = activation.shape[1]
    blocks = min(MOST_BLOCKS, max(1, positions // BLOCK))
    square = torch.zeros(len(activation), dtype=torch.float64, device=activation.device)
    spread = torch.zeros_like(square)
    for block in range(blocks):
        first, last = positions * block // blocks, positions * (block + 1) // blocks
        rows, before = slice(first, last), slice(0, last)
        a, g = _products(activation, bias, rows, before), _products(gradient, None, rows, before)
        lengths = a.diagonal(first, 1, 2) * g.diagonal(first, 1, 2)
        spread += lengths.clamp_min(0).sqrt().double().sum(1)
        spread += _underflow(a.diagonal(first, 1, 2), activation[:, rows]) + _underflow(
            g.diagonal(first, 1, 2), gradient[:, rows]
        )
        both = a * g
        square += 2 * both.sum(2).double().sum(1) - both[:, :, first:].sum(2).double().sum(1)
    return Measured(square, spread.square())


def _products(rows: Tensor, bias: float | Tensor | None, left: slice, right: slice) -> Tensor:
    parts = torch.split(rows, LONGEST if rows.shape[1] >= BLOCK else FEW, dim=2)
    products = torch.bmm(parts[0][:, left], parts[0][:, right].transpose(1, 2))
    for part in parts[1:]:
        products = products.double() + torch.bmm(part[:, left], part[:, right].transpose(1, 2))
    if isinstance(bias, Tensor):
        products += bias[:, left, None] * bias[:, None, right]
    elif bias:
        products += bias
    return products


def _underflow(lengths: Tensor, rows: Tensor) -> Tensor:
    """Infinity for the examples with a row that is not zero but whose squared length nearly is; else 0."""
    result = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    tiny = lengths < TINY
    if rows.dtype == torch.float32 and bool(tiny.any()):
        lost = torch.zeros_like(tiny)
        lost[tiny] = (rows[tiny] != 0).any(1)
        result[lost.any(1)] = float("inf")
    return result
