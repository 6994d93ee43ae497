"""Gaussian noise from secret coins: a tensor and a standard deviation in, the tensor overwritten with noise."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from ..accounting.events import check_number
from ..errors import BadInput
from .keystream import Keystream, Secretive, check_part, process

PAIRS = 2**18  # a block of draws: 5 MB, so that it stays in cache and calls are few enough not to fight for the GIL
SMALL = 2**16  # elements below which threads do not pay
STAGED = 2**22  # elements on their way to another device
MOST_LANES = 16
STD = (1e-15, 1e15)
RARE_LOW, RARE_HIGH = 2.0**-19, 1 - 2.0**-20  # outside, a radius gets 64 more bits
_WORDS = {torch.float32: (torch.int32, 31), torch.float64: (torch.int64, 63)}


class _Lane:
    """One thread's keystream and scratch: Box–Muller in place."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.word, self.bits = _WORDS[dtype]
        self.stream = Keystream(2 * PAIRS * self.word.itemsize)
        self.radius, self.angle, self.part = torch.empty(3, PAIRS, dtype=dtype, device="cpu")
        self.half_cell = torch.tensor(2.0 ** -(self.bits + 1), dtype=dtype, device="cpu")
        self.half_turn = torch.tensor(math.pi * 2.0 ** -(self.bits + 1), dtype=dtype, device="cpu")

    def run(self, blocks: Iterator[torch.Tensor], std: float) -> None:
        for block in blocks:
            self.fill(block, std)

    def fill(self, out: torch.Tensor, std: float) -> None:
        pairs = (len(out) + 1) // 2
        coins = torch.from_numpy(self.stream.take(2 * pairs * self.word.itemsize)).view(self.word)
        radius, angle, part = self.radius[:pairs], self.angle[:pairs], self.part[:pairs]
        radius.copy_(coins[:pairs])
        angle.copy_(coins[pairs:])
        torch.add(self.half_cell, radius, alpha=2.0**-self.bits, out=radius).abs_()
        torch.add(self.half_turn, angle, alpha=math.pi * 2.0**-self.bits, out=angle)
        low, high = torch.aminmax(radius)
        u = radius.numpy()
        rare: NDArray[np.int64] = np.empty(0, np.int64)
        if float(low) < RARE_LOW or float(high) > RARE_HIGH:
            rare = np.flatnonzero((u < RARE_LOW) | (u > RARE_HIGH))
            words = coins.numpy()[rare].astype(np.int64)
        radius.log_().mul_(-2 * std * std).sqrt_()
        if len(rare):
            u[rare] = self._refined(words) * std
        torch.mul(torch.cos(angle, out=part), radius, out=out[:pairs])
        rest = len(out) - pairs
        torch.mul(torch.sin(angle, out=part)[:rest], radius[:rest], out=out[pairs:])

    def _refined(self, words: NDArray[np.int64]) -> NDArray[np.float64]:
        """sqrt(-2 log u) for u = (cell + w)·2^-bits with 64 fresh bits for w, exact to float64 near both 0 and 1."""
        cell = np.where(words < 0, ~words, words)
        fresh = self.stream.take(8 * len(cell)).view(np.uint64)
        within = (fresh.astype(np.float64) + 0.5) * 2.0**-64
        upper = cell >= 2 ** (self.bits - 1)
        cell[upper] = (2**self.bits - 1) - cell[upper]
        u = (cell + within) * 2.0**-self.bits
        root: NDArray[np.float64] = np.sqrt(-2 * np.where(upper, np.log1p(-u), np.log(u)))
        return root


class GaussianNoise(Secretive):
    """Draws independent N(0, std²) from coins of the operating system. There is no seed, here or anywhere.

    *Formal guarantees.* Taking AES-256 as pseudorandom (`Keystream`), every pair of draws is the Box–Muller image of a
    radius and an angle that are uniform on grids and independent of all others: across elements, calls, threads, forked
    processes and instances.

    *Tail.* A radius comes from a 31-bit uniform u, to which 64 more bits are given where u is below 2^-19 or above
    1-2^-20; so u is at least 2^-96 and never 0 or 1. The largest reachable |z| is sqrt(2·96·ln 2) = 11.5 (float64: 63
    bits, 13.3), and no draw is infinite. An ideal Gaussian pair leaves that disc with probability 2^-96 = 1.3e-29. Cutting
    it off is a change of total variation d/2·2^-96 a step for d parameters, whatever the shift between neighbours: with a
    shift of 2C, the outputs that only one of two neighbours can reach lie where the other's draw has left the disc, and
    what they add to δ is at most (1+e^ε)·T·d/2·2^-96: 1e-15 at d=1e9, T=1e5, ε=0, and below 1e-9 up to ε=14. (A 40-bit u
    would leave 9e-13 a pair: 82e6 parameters would add 4e-5 to δ in a single step.)

    *Not proven.* Draws are floating-point numbers and therefore lie on a grid (relative spacing of u at most 2^-12, of
    the angle 2^-24), as do those of every library in use. The proof of the Gaussian mechanism is for real numbers; an
    attacker who reads the last bits of an unrounded release is outside it (Mironov 2012).
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = process()
        self._lock = threading.Lock()
        self._lanes: dict[torch.dtype, list[_Lane]] = {}
        self._threads = max(1, min(torch.get_num_threads(), MOST_LANES))
        self._pool: ThreadPoolExecutor | None = None

    def fill_(self, out: torch.Tensor, std: float, part: tuple[int, int] = (0, 1)) -> None:
        """Overwrite `out` with noise of standard deviation `std`; with `part=(rank, world)` only this rank's share.

        *Formal guarantees.* Every element gets one fresh draw. With `part`, ranks 0 to world-1 own contiguous shares
        that partition the flattened tensor; the rest becomes 0, so that the sum over ranks has noise exactly once. An
        empty tensor draws nothing. A std outside (1e-15, 1e15] is refused: its square must neither vanish nor overflow.
        """
        check_number("the noise's standard deviation", std, *STD)
        rank, world = check_part(part)
        if out.dtype not in _WORDS or not out.is_contiguous():
            raise BadInput(
                f"noise is written into contiguous float32 or float64 tensors, not into {out.dtype} with strides "
                f"{tuple(out.stride())}; accumulate gradients in a buffer of that kind"
            )
        flat = out.detach().view(-1)
        begin, end = len(flat) * rank // world, len(flat) * (rank + 1) // world
        flat[:begin].zero_()
        flat[end:].zero_()
        if self._process != process():
            self._start()
        with self._lock:
            if flat.device.type == "cpu":
                self._fill(flat[begin:end], float(std))
                return
            staged = torch.empty(min(STAGED, end - begin), dtype=out.dtype, device="cpu")
            for block in torch.split(flat[begin:end], STAGED):
                self._fill(staged[: len(block)], float(std))
                block.copy_(staged[: len(block)])

    def _fill(self, flat: torch.Tensor, std: float) -> None:
        if not len(flat):
            return
        if flat.dtype not in self._lanes:
            with torch.inference_mode(False):  # else scratch made in inference mode could not be used outside
                self._lanes[flat.dtype] = [_Lane(flat.dtype) for _ in range(self._threads)]
        lanes = self._lanes[flat.dtype]
        if len(flat) <= SMALL or len(lanes) == 1:
            lanes[0].run(iter(torch.split(flat, 2 * PAIRS)), std)
            return
        if self._pool is None:
            self._pool = _pool(self._threads)
        # The lanes share one iterator: whoever is free takes the next block.
        blocks = iter(torch.split(flat, min(2 * PAIRS, -(-len(flat) // len(lanes)))))
        try:
            for done in [self._pool.submit(lane.run, blocks, std) for lane in lanes]:
                done.result()
        except BaseException:  # an interrupt: threads may still be at work on these lanes, which nobody may share
            self._lanes, self._pool = {}, None
            raise


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch does not split an operation further: each has its own block to work on.

    The limit is a property of the thread that sets it, but threads started later inherit it; hence it is put back.
    """
    started = threading.Barrier(threads + 1)

    def start() -> None:
        torch.get_num_threads()  # else torch would set the thread's own number later
        torch.set_num_threads(1)
        started.wait()

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "confide-noise")
    for _ in range(threads):
        pool.submit(start)
    started.wait()
    torch.set_num_threads(before)
    return pool
