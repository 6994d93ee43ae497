"""Coins: a key from the operating system in, a stream of bytes out. Never stored, never shared, never seeded."""

from __future__ import annotations

import os
from os import urandom
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ..errors import BadInput, Refused
from .compiled import COMPILED, threads

PER_KEY = 2**36  # bytes
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


def process() -> tuple[int, int]:
    """What tells this process from every process that forked it."""
    return os.getpid(), _forks


def check_part(part: tuple[int, int]) -> tuple[int, int]:
    """Refuse a share that is not (rank, world) with 0 <= rank < world."""
    whole = isinstance(part, tuple) and len(part) == 2 and all(type(number) is int for number in part)
    if not whole or not 0 <= part[0] < part[1]:
        raise BadInput(f"part must be (rank, world) with 0 <= rank < world, got {part!r:.40}")
    return part


class Secretive:
    """An object that holds coins or what they chose: it has no copy and no file form."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise Refused(
            f"a {type(self).__name__} is not copied, pickled or saved: coins that exist twice are no longer secret, and "
            "the guarantee rests on them; make a new one where it is needed"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"


class Keystream(Secretive):
    """Bytes that nobody can tell from fair coins: AES-256 in counter mode under a key of the operating system.

    The cipher is `cryptography`'s, or the same bytes by the processor's own instructions (keystream.c), which all threads
    and the loops of noise.c can use.

    *Formal guarantees.* Key and nonce are drawn by `os.urandom` and held in memory alone, for as long as they are used; there is no seed.
    A forked child draws a new key before its first byte, so that no two processes share a coin. A key gives at most
    2^36 bytes, so that telling them from coins by the birthday bound of a 128-bit block succeeds with probability at
    most 2^-65 a key; what remains is the assumption that AES-256 is a pseudorandom permutation. Bytes of one `take`
    are never given again. Not safe for use from two threads at once: each thread has its own.
    """

    __slots__ = ("_buffer", "_bytes", "_cipher", "_counter", "_keys", "_left", "_process", "_zeros")

    def __init__(self, most: int) -> None:
        self._zeros = bytes(most)
        self._buffer = bytearray(most + 15)  # a cipher asks for one block more, less a byte
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        self._rekey()

    def _rekey(self) -> None:
        self._process, self._left = process(), PER_KEY
        key, nonce = urandom(32), urandom(16)
        self._forget()
        if COMPILED:
            self._keys, self._counter = np.empty(240, np.uint8), int.from_bytes(nonce)
            COMPILED.confide_expand(key, self._keys.ctypes.data)
        else:
            self._cipher = Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()

    def _forget(self) -> None:
        if COMPILED and hasattr(self, "_keys"):
            self._keys.fill(0)

    __del__ = _forget

    def _pay(self, count: int) -> None:
        if not 0 <= count <= PER_KEY:
            raise BadInput(f"a keystream gives at most {PER_KEY:,} bytes at a time, not {count:,}")
        if self._process != process() or self._left < count:
            self._rekey()
        self._left -= count

    def take(self, count: int) -> NDArray[np.uint8]:
        """The next `count` bytes (at most `most`), in a buffer that the next call overwrites."""
        if not 0 <= count <= len(self._zeros):
            raise BadInput(f"this keystream gives at most {len(self._zeros):,} bytes at a time, not {count:,}")
        if COMPILED:
            blocks = -(-count // 16)
            COMPILED.confide_stream(*self.reserve(blocks), 0, blocks, self._bytes.ctypes.data, threads())
        else:
            self._pay(count)
            self._cipher.update_into(memoryview(self._zeros)[:count], self._buffer)
        return self._bytes[:count]

    def reserve(self, blocks: int) -> tuple[int, int, int]:
        """For compiled loops: where the round keys are, and the first counter (its high and low word) of so many blocks.

        *Formal guarantees.* No counter is given twice under one key, here or by `take`, whatever becomes of its block.
        """
        self._pay(16 * blocks)
        first = self._counter
        self._counter = (first + blocks) % 2**128
        return self._keys.ctypes.data, first >> 64, first % 2**64
