"""Texts by their letters and digits: a text in; its plain letters, where they stand and where words end, out."""

from __future__ import annotations

import itertools
import unicodedata
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..models.tokens import encode
from ..records import UNSPACED


@lru_cache(maxsize=1 << 14)
def fold(sign: str) -> str:
    """A sign as letters in lower case and their plainest form; nothing for a sign that is neither letter nor digit."""
    return "".join(one for one in unicodedata.normalize("NFKC", sign).casefold() if one.isalnum())


def letters(text: str) -> str:
    """A text's letters and digits alone, in lower case and the plainest form of each.

    >>> letters("(０30) Straße-5") == letters("030strasse 5")
    True
    """
    return "".join(map(fold, unicodedata.normalize("NFC", text)))


@lru_cache(maxsize=1 << 14)
def _in_word(sign: str) -> bool:
    """Whether a sign joins its neighbours to one word."""
    joins = sign.isalnum() or unicodedata.category(sign).startswith("M")
    return joins and not any(low <= ord(sign) <= high for low, high in UNSPACED)


class Read(NamedTuple):
    """A text by its letters: where in the text each is, and between which of them a word may begin or end."""

    text: str
    letters: str
    places: list[int]
    border: list[bool]  # border[i]: no word goes on from letter i−1 to letter i

    def first(self, place: int) -> int:
        """The first letter at or after a place of the text."""
        return int(np.searchsorted(self.places, place))


def read(text: str) -> Read:
    """A text as its letters, composed first, so that a letter and its marks are one sign."""
    text = unicodedata.normalize("NFC", text)
    pairs = [(one, place) for place, sign in enumerate(text) for one in fold(sign)]
    places = [place for _, place in pairs]
    around = [places[0] - 1, *places, places[-1] + 1] if places else []
    border = [
        low < 0 or high == len(text) or not all(map(_in_word, text[low : high + 1]))
        for low, high in itertools.pairwise(around)
    ]
    return Read(text, "".join(one for one, _ in pairs), places, border)


def can_write(tokenizer: Any, value: str) -> bool:
    """Whether the tokenizer has tokens for all letters and digits of a value; else no model over it can say the value."""
    made = tokenizer.decode(encode(tokenizer, value), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return letters(made) == letters(value)
