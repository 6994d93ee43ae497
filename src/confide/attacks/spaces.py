"""The space of a canary's values: a format in; its candidates as tokens, framed as in training, out.

What is scored of a candidate are the tokens from the first that differs between candidates up to the one that holds the
secret's last sign; what stands behind it in the format decides how these are cut, and is not scored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..models.tokens import encode, first_id, own_vocabulary
from ..screening.canaries import Planting
from .likelihood import Row

TEXTS = 8192  # tokenised at a time

Signs = NDArray[np.uint8]


@dataclass(frozen=True)
class Space:
    """All values that a secret could have: `length` signs of `alphabet`, between a prefix and a suffix."""

    prefix: str
    suffix: str
    alphabet: str
    length: int

    @classmethod
    def of(cls, written: str) -> Space:
        """The space of a canary's format.

        >>> space = Space.of("My ID is: {digits:6}")
        >>> space.size, space.candidate(42)
        (1000000, '000042')
        """
        form = Planting(format=written, number=1)
        return cls(*form.around, *form.slot)

    @property
    def size(self) -> int:
        return int(len(self.alphabet) ** self.length)

    def candidate(self, number: int) -> str:
        """The value of that number, in the alphabet's order."""
        if not 0 <= number < self.size:
            raise BadInput(f"there are {self.size} candidates, numbered from 0: no candidate {number}")
        signs = []
        for _ in range(self.length):
            number, sign = divmod(number, len(self.alphabet))
            signs.append(self.alphabet[sign])
        return "".join(reversed(signs))

    def signs(self, secrets: Sequence[str]) -> Signs:
        """Places in the alphabet, a row for each secret."""
        if not secrets:
            raise BadInput("there is no canary; plant some with --canaries")
        for position, secret in enumerate(secrets):
            if len(secret) != self.length or set(secret) - set(self.alphabet):
                raise BadInput(
                    f"canary {position} does not fit its format, in signs or length; take both from one canaries.json"
                )
        return np.array([[self.alphabet.index(sign) for sign in secret] for secret in secrets], dtype=np.uint8)

    def all_signs(self) -> Signs:
        """Every candidate, in order."""
        number = np.arange(self.size)
        signs = np.empty((self.size, self.length), dtype=np.uint8)
        for place in reversed(range(self.length)):
            number, signs[:, place] = np.divmod(number, len(self.alphabet))
        return signs


class Tokenised(NamedTuple):
    """What all candidates begin with, bos first, and the tokens after it up to the secret's end; −1 behind them."""

    stem: list[int]
    paths: NDArray[np.int32]
    lengths: NDArray[np.int64]


def tokenise(tokenizer: Any, space: Space, signs: Signs) -> Tokenised:
    """The tokens of candidates, framed as in training: [bos] + the tokens of the text."""
    table = _apart(tokenizer, space)
    if table is not None:
        return Tokenised(
            table[0], table[1][np.arange(space.length), signs], np.full(len(signs), space.length, dtype=np.int64)
        )
    found = _encode(tokenizer, space, signs)
    lengths = np.array([len(ids) for ids in found], dtype=np.int64)
    paths = np.full((len(found), int(lengths.max())), -1, dtype=np.int32)
    for row, ids in zip(paths, found, strict=True):
        row[: len(ids)] = ids
    same = (paths == paths[:1]).all(0)
    same[int(lengths.min()) - 1 :] = False  # every candidate keeps a token of its own
    shared = int(same.argmin()) if not same.all() else 0
    return Tokenised([first_id(tokenizer), *paths[0, :shared].tolist()], paths[:, shared:], lengths - shared)


@lru_cache(maxsize=1)
def tokenise_all(tokenizer: Any, space: Space) -> Tokenised:
    """The tokens of every candidate, in order; kept, since two ways of ranking a million of them need the same."""
    return tokenise(tokenizer, space, space.all_signs())


def _encode(tokenizer: Any, space: Space, signs: Signs) -> list[list[int]]:
    """The ids of each candidate's text, up to the token that holds the secret's last sign."""
    letters = np.array(list(space.alphabet))
    end = len(space.prefix) + space.length
    found: list[list[int]] = []
    if not getattr(tokenizer, "is_fast", False) and space.suffix:
        raise BadInput(
            "where the secret ends among its tokens is known to fast tokenizers (tokenizer.json) only; name one"
        )
    for low in range(0, len(signs), TEXTS):
        secrets = ["".join(row) for row in letters[signs[low : low + TEXTS]]]
        texts = [space.prefix + secret + space.suffix for secret in secrets]
        encode(tokenizer, texts[0])  # leaves the backend without truncation, and special tokens as letters
        if not getattr(tokenizer, "is_fast", False):
            found += [encode(tokenizer, text) for text in texts]
        elif not space.suffix:
            backend = tokenizer.backend_tokenizer
            batch = getattr(backend, "encode_batch_fast", backend.encode_batch)
            found += [one.ids for one in batch(texts, add_special_tokens=False)]
        else:
            batch = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
            found += [one.ids[: sum(start < end for start, _ in one.offsets)] for one in batch]
    if not all(found):
        raise BadInput(
            "the tokenizer makes no token of some candidate, so that it cannot be ranked; take another tokenizer"
        )
    return found


def _apart(tokenizer: Any, space: Space) -> tuple[list[int], NDArray[np.int32]] | None:
    """Where every sign is a token of its own: the stem, and the token of each sign at each place; None elsewhere.

    If no token of the vocabulary holds two signs, tokens cannot depend on more than the place and, at most, a neighbour:
    all signs, all pairs of neighbours and some random candidates are tokenised to see that they do not. A million
    candidates then need no tokenizer.
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    two = re.compile(f"[{re.escape(space.alphabet)}]{{2}}")
    if any(two.search(token) for token in own_vocabulary(tokenizer) if not re.fullmatch("<0x[0-9A-F]{2}>", token)):
        return None
    number, rng = len(space.alphabet), np.random.default_rng(0)
    base = np.zeros((space.length, number, number, space.length), dtype=np.uint8)
    for place in range(space.length):
        base[place, :, :, place] = np.arange(number)[:, None]
        base[place, :, :, (place + 1) % space.length] = np.arange(number)
    tried = np.concatenate(
        [base.reshape(-1, space.length), rng.integers(0, number, (2000, space.length), dtype=np.uint8)]
    )
    if len(tried) > 2 * space.size:
        return None
    found = _encode(tokenizer, space, tried)
    if len(set(map(len, found))) > 1 or len(found[0]) < space.length:
        return None
    ids = np.array(found, dtype=np.int32)
    stem, paths = ids[:, : -space.length], ids[:, -space.length :]
    table = np.zeros((space.length, number), dtype=np.int32)
    for place in range(space.length):
        table[place, tried[:, place]] = paths[:, place]
    same = (stem == stem[:1]).all() and (table[np.arange(space.length), tried] == paths).all()
    return ([first_id(tokenizer), *stem[0].tolist()], table) if same else None


def rows(tokens: Tokenised) -> list[Row]:
    """Candidates as rows, of which the tokens count that may differ."""
    stem = list(tokens.stem)
    return [
        Row([*stem, *path[:length].tolist()], [False] * len(stem) + [True] * int(length))
        for path, length in zip(tokens.paths, tokens.lengths, strict=True)
    ]
