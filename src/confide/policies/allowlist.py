"""`allowlist`: whatever is not on a public list of words is a finding, which makes it conservative by construction.

The list is fixed beforehand and must not come from the corpus that is screened.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from ..errors import BadInput
from ..rundir import read_file
from .base import Finding, Policy, register

_PIECE = re.compile(r"([^\W\d_]+)|[^\s.,;:!?'’\"“”()…–—-]")


@register(
    "allowlist",
    "every word outside a public list (one a line in FILE, or the built-in English one), every digit and unusual sign",
    argument="[:FILE]",
)
class Allowlist(Policy):
    """*Formal guarantees.* A text without a finding consists of listed words, white space and the signs
    . , ; : ! ? ' " ( ) … – — - only (a word is a run of letters; "don't" is two). So every secret with a whole word outside the list, a digit or another sign
    is flagged wherever it occurs (guarantees §3). A word that the record continues is not whole: the longer one may be on the list.
    """

    name = "allowlist"
    consistency = "local"

    def __init__(self, path: str | None = None) -> None:
        text = (
            resources.files(__package__).joinpath("words.txt").read_text("utf-8") if path is None else _text(Path(path))
        )
        lines = (line.strip().casefold() for line in text.splitlines())
        self._words = frozenset(line for line in lines if line and not line.startswith("#"))
        if not self._words or not all(word.isalpha() for word in self._words):
            raise BadInput(f"{path}: a public word list has one word a line, of letters alone (don't is don and t)")
        which = "the built-in English word list" if path is None else "the given public word list"
        self.recall_class = f"secrets that hold a whole word outside {which} (in any case), a digit, or a sign other than common punctuation"
        self.files = () if path is None else (path,)

    def find(self, text: str) -> list[Finding]:
        return [
            Finding(m.start(), m.end(), "WORD" if m[1] else "SIGN", self.name)
            for m in _PIECE.finditer(text)
            if not (m[1] and m[1].casefold() in self._words)
        ]


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError, too
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInput(f"cannot read the word list {path}: {reason}; name a text file with one word a line") from None
