"""Coins: a key from the operating system in, a stream of bytes out. Never stored, never shared, never seeded."""

from __future__ import annotations

import os
from os import urandom
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ..errors import BadInput, Refused

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

    *Formal guarantees.* Key and nonce are drawn by `os.urandom`, handed to the cipher and not kept; there is no seed.
    A forked child draws a new key before its first byte, so that no two processes share a coin. A key gives at most
    2^36 bytes, so that telling them from coins by the birthday bound of a 128-bit block succeeds with probability at
    most 2^-65 a key; what remains is the assumption that AES-256 is a pseudorandom permutation. Bytes of one `take`
    are never given again. Not safe for use from two threads at once: each thread has its own.
    """

    __slots__ = ("_buffer", "_bytes", "_cipher", "_left", "_process", "_zeros")

    def __init__(self, most: int) -> None:
        self._zeros = bytes(most)
        self._buffer = bytearray(most + 15)  # the cipher asks for one block more, less a byte
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        self._rekey()

    def _rekey(self) -> None:
        self._process = process()
        self._cipher = Cipher(algorithms.AES(urandom(32)), modes.CTR(urandom(16))).encryptor()
        self._left = PER_KEY

    def take(self, count: int) -> NDArray[np.uint8]:
        """The next `count` bytes (at most `most`), in a buffer that the next call overwrites."""
        if self._process != process() or self._left < count:
            self._rekey()
        self._left -= count
        self._cipher.update_into(memoryview(self._zeros)[:count], self._buffer)
        return self._bytes[:count]
