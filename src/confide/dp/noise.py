"""Gaussian noise from secret coins: a sum and a standard deviation in, the noised sum out, on one lattice."""

from __future__ import annotations

import math
import os
import threading

import numpy as np
import torch
from numpy.typing import NDArray

from ..accounting.events import check_number
from ..errors import BadInput
from .compiled import COMPILED, threads
from .keystream import Keystream, Secretive, process

PAIRS = 2**16  # a block of draws: in the cache, and large enough that starting threads costs little
MOST = 2**30  # numbers that take their coins from one reservation
CELLS = 2.0**32  # of the lattice in a standard deviation: each holds about 2^20 doubles, and √d cells are little
STD = (1e-15, 1e15)
BITS = 63
RARE_LOW, RARE_HIGH = 2.0**-19, 1 - 2.0**-20  # outside, a radius gets 64 more bits


class Lane:
    """What noise.c does, by torch: a keystream, Box–Muller and the lattice, in place, a block at a time."""

    def __init__(self) -> None:
        self.stream = Keystream(16 * PAIRS)
        self.radius, self.angle = torch.empty(2, PAIRS, dtype=torch.float64, device="cpu")
        self.drawn, self.sums = torch.empty(2, 2 * PAIRS, dtype=torch.float64, device="cpu")
        self.half_cell = torch.tensor(2.0 ** -(BITS + 1), dtype=torch.float64, device="cpu")
        self.half_turn = math.pi * self.half_cell

    def add(self, block: torch.Tensor, std: float) -> None:
        """What `GaussianNoise.add_` does, for at most 2·PAIRS numbers: draw in units of the lattice, round, add, scale back."""
        step, drawn = cell(std), self.drawn[: len(block)]
        self.draw(drawn, std / step)
        sums = self.sums[: len(block)].copy_(block).mul_(1 / step).round_()
        block.copy_(drawn.round_().add_(sums).mul_(step))

    def draw(self, out: torch.Tensor, std: float) -> None:
        """Overwrite `out` with fresh draws of N(0, std²) in double precision."""
        words = 2 * ((len(out) + 1) // 2)
        self.turn(torch.from_numpy(self.stream.take(8 * words)).view(torch.int64), out, std)

    def turn(self, coins: torch.Tensor, out: torch.Tensor, std: float) -> None:
        """Box–Muller: the first half of the coins are for radii, the second for angles."""
        pairs, rest = len(coins) // 2, len(out) - len(coins) // 2
        radius, angle = self.radius[:pairs], self.angle[:pairs]
        radius.copy_(coins[:pairs])
        angle.copy_(coins[pairs:])
        torch.add(self.half_cell, radius, alpha=2.0**-BITS, out=radius).abs_()
        torch.add(self.half_turn, angle, alpha=math.pi * 2.0**-BITS, out=angle)
        low, high = torch.aminmax(radius)
        u = radius.numpy()
        rare: NDArray[np.int64] = np.empty(0, np.int64)
        if float(low) < RARE_LOW or float(high) > RARE_HIGH:
            rare = np.flatnonzero((u < RARE_LOW) | (u > RARE_HIGH))
            words = coins.numpy()[rare]
        radius.log_().mul_(-2 * std * std).sqrt_()
        if len(rare):
            u[rare] = self._refined(words) * std
        torch.cos(angle, out=out[:pairs]).mul_(radius)
        torch.sin(angle[:rest], out=out[pairs:]).mul_(radius[:rest])

    def _refined(self, words: NDArray[np.int64]) -> NDArray[np.float64]:
        """sqrt(-2 log u) for u = (cell + w)·2^-63 with 64 fresh bits for w, exact to double precision near both 0 and 1."""
        place = np.where(words < 0, ~words, words)
        fresh = self.stream.take(8 * len(place)).view(np.uint64)
        within = (fresh.astype(np.float64) + 0.5) * 2.0**-64
        upper = place >= 2 ** (BITS - 1)
        place[upper] = (2**BITS - 1) - place[upper]
        u = (place + within) * 2.0**-BITS
        root: NDArray[np.float64] = np.sqrt(-2 * np.where(upper, np.log1p(-u), np.log(u)))
        return root


_ONE = threading.Lock()  # noise is drawn by one thread at a time; a forked process has a lock of its own


def _unlocked() -> None:
    global _ONE
    _ONE = threading.Lock()


os.register_at_fork(after_in_child=_unlocked)


class GaussianNoise(Secretive):
    """Adds independent N(0, std²) from coins of the operating system. There is no seed, here or anywhere.

    *Formal guarantees.* Taking AES-256 as pseudorandom (`Keystream`), every pair of draws is the Box–Muller image of a
    radius and an angle that are uniform on grids and independent of all others: across elements, calls, threads, forked
    processes and instances.

    *Tail.* A radius comes from a 63-bit uniform u, to which 64 more bits are given where u is below 2^-19 or above
    1-2^-20; so u is at least 2^-128 and never 0 or 1. The largest reachable |z| is sqrt(2·128·ln 2) = 13.3, and no draw is
    infinite. An ideal Gaussian pair leaves that disc with probability 2^-128 = 2.9e-39. Cutting it off is a change of total
    variation d/2·2^-128 a step for d parameters, whatever the shift between neighbours: with a shift of 2C, the outputs
    that only one of two neighbours can reach lie where the other's draw has left the disc, and what they add to δ is at most
    (1+e^ε)·T·d/2·2^-128: below 1e-9 at d=1e9, T=1e5 up to ε=36. (A 40-bit u would leave 9e-13 a pair: 82e6 parameters would
    add 4e-5 to δ in a single step.)

    *Lattice.* Numbers that were drawn in floating point and added to a sum tell by their last bits what they were added to
    (Mironov 2012); hence there is `add_` alone, and no way to have the draws themselves.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = process()
        self._stream = Keystream(16)
        self._lane: Lane | None = None

    def add_(self, sums: torch.Tensor, std: float) -> None:
        """Round `sums` to a lattice and add noise of standard deviation `std` on the same lattice, in place.

        *Formal guarantees.* Every number gets one fresh draw. The lattice is g·ℤ with g = `cell(std)`, a public power of two.
        Each number x becomes fl(g·(round(x/g) + round(z/g))), z a fresh draw in double precision: both roundings are to
        whole numbers, which double precision adds exactly (or, beyond 2^53, correctly rounded), and fl is one rounding to
        the tensor's type. So the outcome is a function of round(x/g)·g + z, the Gaussian mechanism on the rounded sum, and
        of nothing else of x: which outcomes are possible, and how finely they are spaced, does not depend on x, and the last
        bits say no more than the mechanism does. Rounding moves each of d numbers by at most g/2: two sums a distance Δ
        apart become sums at most Δ + g·√d apart, for which the caller pays (`room`). A std outside (1e-15, 1e15] is
        refused: its square must neither vanish nor overflow.

        *Not proven.* z is drawn on a finite grid by the double-precision logarithm, sine and cosine of the platform. A cell
        of the lattice holds about 2^70 pairs of coins, so that its mass is within about 2^-35 of a Gaussian's, if those
        functions are right to a few units in the last place (those of noise.c are series of their own, held against the
        platform's to 1e-14 of a draw); that is an estimate, not a theorem. Time is not covered.
        """
        if sums.dtype not in (torch.float32, torch.float64) or not sums.is_contiguous():
            raise BadInput(
                f"noise is added to contiguous float32 or float64 tensors, not to {sums.dtype} with strides "
                f"{tuple(sums.stride())}; accumulate gradients in a buffer of that kind"
            )
        check_number("the noise's standard deviation", std, *STD)
        flat = sums.detach().view(-1)
        here = flat.cpu()
        with _ONE:
            if self._process != process():
                self._start()
            self._add(here, float(std))
        if here is not flat:
            flat.copy_(here)

    def _add(self, flat: torch.Tensor, std: float) -> None:
        if COMPILED:
            step, wide = cell(std), flat.dtype == torch.float64
            for part in torch.split(flat, MOST) if len(flat) else ():
                coins = self._stream.reserve(2 * ((len(part) + 1) // 2))
                law = (std / step, step, RARE_LOW, RARE_HIGH)
                COMPILED.confide_noise(part.data_ptr(), wide, len(part), *coins, *law, threads())
            return
        if self._lane is None:
            with torch.inference_mode(False):  # else scratch made in inference mode could not be used outside
                self._lane = Lane()
        for block in torch.split(flat, 2 * PAIRS) if len(flat) else ():
            self._lane.add(block, std)


def cell(std: float) -> float:
    """The lattice of noise with this standard deviation: the largest power of two that is at most std·2^-32."""
    check_number("the noise's standard deviation", std, *STD)
    return 2.0 ** (math.frexp(std)[1] - 1) / CELLS


def room(multiplier: float, numbers: int) -> float:
    """By which factor noise must grow so that the lattice costs nothing.

    *Formal guarantees.* Let x = 2^-30·σ·√d, at most 2. Noise of at most (1 + 2^-10)(1 + x)·σ·C has g ≤ 2^-32·(1 + 2^-10)(1 + x)·σ·C,
    so that a sum of sensitivity C has at most C + g·√d ≤ C·(1 + x(1 + x)(1 + 2^-10)/4) ≤ C·(1 + x) after rounding. Noise of
    (1 + x)·σ·C is therefore at least σ times the sensitivity: under zero-out and add-remove, where it is C, and all the
    more for k substituted records, where it is 2kC and rounding adds no more. At d = 10^9 and σ = 1, x is 3e-5.
    """
    more = 2.0**-30 * multiplier * math.sqrt(numbers)
    if more > 2:
        raise BadInput(
            f"a noise multiplier of {multiplier:g} is too large for {numbers:,} parameters: the lattice that sums are rounded to "
            "would be coarser than one record's contribution; train fewer parameters or take less noise"
        )
    return 1 + more
