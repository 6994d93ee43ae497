"""Norms of sums of outer products from Gram matrices, without forming the sums."""

from __future__ import annotations

from ctypes import CDLL

import torch
from torch import Tensor

from ...errors import Refused
from ..compiled import done, loops_for, rows_together, threads
from .base import MISMATCH, Measured

BLOCK, WIDE_BLOCK = 128, 64  # positions of a row of blocks, also where features are many; none above the diagonal
MOST_BLOCKS = 4
WIDE = 2048  # features from which a product an example is faster on a CPU than one batched product
SHORT = 32  # positions below which products add up one by one
LONGEST, FEW = 8192, 512  # features summed in single precision (the second below 32 positions); parts add in double
COVERED, LOST = 256, 400  # terms of an inner product that may vanish beside the first: `rounding` covers; the most
TINY = 1e-30  # a squared length below may have underflowed


def gram_square(activation: Tensor, gradient: Tensor, bias: float | Tensor | None = None) -> Measured:
    """‖Σ_t g_t a_tᵀ‖² + ‖Σ_t b_t g_t‖² per example, as Σ_ts (a_t·a_s + b_t b_s)(g_t·g_s).

    `bias` gives b: a tensor [examples, positions], or the number by which b_t b_s counts (1: a bias, 2: two of them).
    Both matrices are symmetric, so that blocks below the diagonal count twice and those above are never formed.
    *Formal guarantees.* With exact inner products this is an identity. In floating point each inner product is off by
    at most κ'·u·‖·‖‖·‖, hence the result by at most 2κ'·u·(Σ_t √(‖a_t‖²+b_t²)‖g_t‖)² to first order: the squared spread.
    By the compiled loops κ' is 19, whatever the number of features. Elsewhere an inner product of n same-signed terms can
    lose n·u of itself (its small terms, one by one), up to the LOST terms that a matrix product adds up at a time: what
    that is beyond COVERED terms is put on top of the square.
    Where a length may have underflowed the spread is infinite, so that the norm is taken again in double precision.
    """
    if activation.shape[:2] != gradient.shape[:2]:
        raise Refused(MISMATCH)
    if loops := loops_for(activation, gradient):
        return _compiled(loops, activation, gradient, bias)
    positions = activation.shape[1]
    widest = max(activation.shape[2], gradient.shape[2])
    blocks = min(MOST_BLOCKS, max(1, positions // (WIDE_BLOCK if widest >= WIDE else BLOCK)))
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
    if activation.dtype == torch.float32:
        square *= 1 + max(0, min(widest, LOST) - COVERED) * 2.0**-24
    return Measured(square, spread.square())


def _compiled(loops: CDLL, activation: Tensor, gradient: Tensor, bias: float | Tensor | None) -> Measured:
    examples, positions, _ = activation.shape
    square, spread = torch.empty(2, examples, dtype=torch.float64, device="cpu")
    scale = bias.float().expand(examples, positions).contiguous() if isinstance(bias, Tensor) else None
    extra = 0.0 if bias is None or scale is not None else float(bias)
    sides = [rows_together(side) for side in (activation, gradient)]
    places = [number for side in sides for number in (side.data_ptr(), *side.stride()[:2], side.shape[2])]
    about = (None if scale is None else scale.data_ptr(), extra, TINY, examples, positions, threads())
    done(loops.confide_gram(*places, *about, square.data_ptr(), spread.data_ptr()))
    return Measured(square, spread.square())


def _products(rows: Tensor, bias: float | Tensor | None, left: slice, right: slice) -> Tensor:
    parts = torch.split(rows, LONGEST if rows.shape[1] >= SHORT else FEW, dim=2)
    products = _batched(parts[0][:, left], parts[0][:, right])
    for part in parts[1:]:
        products = products.double() + _batched(part[:, left], part[:, right])
    if isinstance(bias, Tensor):
        products += bias[:, left, None] * bias[:, None, right]
    elif bias:
        products += bias
    return products


def _batched(left: Tensor, right: Tensor) -> Tensor:
    """left·rightᵀ for every example."""
    if left.device.type != "cpu" or left.shape[2] < WIDE:
        return torch.bmm(left, right.transpose(1, 2))
    products = left.new_empty(len(left), left.shape[1], right.shape[1])
    for product, one, other in zip(products, left, right, strict=True):
        torch.mm(one, other.t(), out=product)
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
