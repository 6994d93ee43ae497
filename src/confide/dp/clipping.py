"""From squared norms to weights: how much of each example's gradient enters the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadInput

# Rounding of a squared norm in single precision, in units of 2⁻²⁴ times the square and times the squared spread
OF_SQUARE, OF_SPREAD = 256.0, 0.5
IN_DOUBLE = 2.0**-37  # of the squared spread: more than n·2⁻⁵³ for inner products of n < 10⁵ terms
CANCELLING = 768.0  # squared spread over square from which norms and sums are taken in double precision
ROOM = {torch.float32: 2.0**-20, torch.float64: 2.0**-45}  # for rounding of the weights
PAID = 1 + 2.0**-10  # noise is larger by this much than σ·C, for what rounding may add to a contribution and to a sum
STABILIZER = 0.01  # of automatic clipping (Bu et al. 2206.07136)
KINDS = ("flat", "automatic", "per-layer")


@dataclass(frozen=True)
class Clipping:
    """How contributions are bounded; every kind has sensitivity `norm` (2·norm under substitution).

    `flat` scales a gradient of norm n by min(1, C/n); `automatic` by C/(n+0.01), which normalises instead of clipping;
    `per-layer` clips each of L layers to C/√L (layers that share a parameter are one layer).
    """

    norm: float
    kind: str = "flat"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"clipping must be one of {', '.join(KINDS)}, got {self.kind!r}")

    def weights(self, square: Tensor, rounding: Tensor, real: Tensor, dtype: torch.dtype) -> Tensor:
        """Weights [layers, examples] from squared norms and their rounding terms of the same shape.

        *Formal guarantees.* If each true squared norm is at most square + rounding, then each example's weighted gradient,
        all layers together, has norm at most `norm`. An example that is not real, or any of whose squares is not
        finite, gets weight 0 in every layer. A gradient of norm 0 keeps weight 1 (automatic: C/0.01) and adds nothing.
        """
        bound = (square + rounding).clamp_min(0)
        finite = bound.isfinite().all(0) & real
        if self.kind == "per-layer":
            limit, length = self.norm / math.sqrt(len(bound)), bound.sqrt()
        else:
            limit, length = self.norm, bound.sum(0, keepdim=True).sqrt().expand_as(bound)
        limit *= 1 - ROOM[dtype]
        weights = limit / (length + STABILIZER) if self.kind == "automatic" else (limit / length).clamp_max(1.0)
        return torch.where(finite, weights, torch.zeros((), dtype=weights.dtype, device=weights.device))


def rounding(square: Tensor, spread: Tensor, dtype: torch.dtype) -> Tensor:
    """What rounding may have taken from a squared norm computed in `dtype`; `spread` is the squared spread.

    *Formal guarantees.* In double precision the error of inner products of n terms, n·u·Σ|x_i y_i| in any order of summation,
    is below 2⁻³⁷ of the squared spread for n < 10⁵: nothing is assumed. In single precision the compiled loops are off by at
    most 19u a product, hence by 38u of the squared spread, u = 2⁻²⁴; half of u is added here. Where the squared spread is at
    most 768 squares, the rest is at most 37.5·768·u < 1.8e-3 of the square, 8.6e-4 of the norm, which is paid for by noise
    that is larger by 2⁻¹⁰ (`PAID`); beyond, norms *and* sums are taken in double precision. This holds for every input, and is about
    one contribution; what rounding does to the sum of many is another matter (docs/engine.md). Where torch does the work a model stands in its place: a
    matrix product sums in blocks of at most some four hundred terms (384 with AVX-512), so that a sum which loses all its
    small terms loses at most about 256·u, or what `gram_square` puts on top for wide layers, and errors of different signs
    leave about u of the squared spread; whoever knows how a product sums can find numbers for which that is not so, and
    `exact=True` is for them. tests/dp/test_rounding.py holds all this against sums that cancel and stagnate on purpose.
    """
    if dtype == torch.float64:
        return spread * IN_DOUBLE
    return (square.abs() * OF_SQUARE + spread * OF_SPREAD) * 2.0**-24
