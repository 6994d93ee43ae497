"""`known:FILE`: a list of known secrets, one a line, found whatever their case and spacing.

Words of a text are looked up by their first letters in a hash table, so that the cost of a megabyte hardly depends on
the length of the list (an Aho-Corasick automaton of a million entries no longer fits into a processor's cache).
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from ..errors import BadInput
from ..records import MARK, UNSPACED
from .base import Finding, Policy, register

PREFIX = 6  # letters of an entry that its index is made of
LONGEST = 1000
_UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED)
# The mark counts as a letter, so that a word beside a secret does not become a word of its own when that is masked.
_LETTER = re.compile(rf"(?![{_UNSPACED}_])[\w{MARK}]")
_INNER = re.compile(rf"(?<![^\W_])(?<!{MARK})[^\W_]|[^\w\s{MARK}]|_|[{_UNSPACED}]|(?<=[{_UNSPACED}])\w")
_INVISIBLE = dict.fromkeys(
    map(ord, "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"), " "
)  # between letters of a secret


def _words(text: str) -> list[str]:
    """The words in lower case; signs that nobody sees count as spaces."""
    return (text if text.isascii() else text.translate(_INVISIBLE)).casefold().split()


@register("known", "a list of known secrets, one a line; case and spaces do not matter", argument=":FILE")
class Known(Policy):
    """*Formal guarantees.* An entry is found wherever its characters occur in order, in any case and with any white
    space between them, unless a letter or digit continues it on either side. Nothing else about the text matters.
    """

    name = "known"
    consistency = "local"

    def __init__(self, path: str | None) -> None:
        if not path:
            raise BadInput("the policy known needs a file: known:FILE, one secret a line")
        self._entries = _read(Path(path))
        self._lengths: dict[str, int] = {}  # first letters of entries → a bit for each of their lengths
        for entry in self._entries:
            key = entry[:PREFIX]
            self._lengths[key] = self._lengths.get(key, 0) | 1 << len(entry)
        self._probes = sorted({min(PREFIX, len(entry)) for entry in self._entries})
        self.recall_class = "secrets that hold an entry of the list of known ones, in any case and spacing, that no other letter or digit continues"
        self.files = (path,)

    def find(self, text: str) -> list[Finding]:
        words = _words(text)
        squeezed = "".join(words)
        lengths, probes = self._lengths, self._probes
        starts: list[tuple[int, int]] = []
        place = 0
        for word in words:
            for n in probes:
                if squeezed[place : place + n] in lengths:
                    starts.append((place, n))  # noqa: PERF401  (a list for each word would take longer)
            if not (word.isalnum() and word.isascii()):
                for inner in _INNER.finditer(word):
                    if inner.start():
                        at = place + inner.start()
                        for n in probes:
                            if squeezed[at : at + n] in lengths:
                                starts.append((at, n))  # noqa: PERF401
            place += len(word)
        return self._findings(text, squeezed, starts) if starts else []

    def _findings(self, text: str, squeezed: str, starts: list[tuple[int, int]]) -> list[Finding]:
        """The longest entry at each place: the shorter ones there lie within it."""
        places = [
            i for i, letter in enumerate(text.translate(_INVISIBLE)) if not letter.isspace() for _ in letter.casefold()
        ]
        found = []
        for start, n in starts:
            first, left = places[start], self._lengths[squeezed[start : start + n]]
            if _goes_on(text, first - 1):
                continue
            while left:
                length = left.bit_length() - 1
                left ^= 1 << length
                end = start + length
                if end > len(squeezed) or squeezed[start:end] not in self._entries:
                    continue
                if not _goes_on(text, places[end - 1]):
                    found.append(Finding(first, places[end - 1] + 1, "KNOWN", self.name))
                    break
        return found


def _goes_on(text: str, place: int) -> bool:
    """Whether a word goes on from this place to the next."""
    return bool(place >= 0 and _LETTER.match(text, place) and _LETTER.match(text, place + 1))


def _read(path: Path) -> frozenset[str]:
    entries: set[str] = set()
    try:
        if path.exists() and not path.is_file():  # a device or a pipe may have no end
            raise BadInput(f"{path}: the list of known secrets is a file, and this is none")
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                entry = "".join(_words(line))
                if not entry:
                    continue
                if len(entry) < 2 or len(entry) > LONGEST:
                    raise BadInput(
                        f"{path}, line {number}: a known secret has 2 to {LONGEST} characters besides spaces"
                    )
                if MARK not in entry:
                    entries.update("".join(_words(unicodedata.normalize(form, line))) for form in ("NFC", "NFD"))
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not UTF-8 text; convert the list of known secrets first") from None
    except OSError as error:
        raise BadInput(
            f"cannot read the list of known secrets {path}: {error.strerror}; name a text file with one secret a line"
        ) from None
    except ValueError as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput("known:… is not followed by the name of a file") from None
    if not entries:
        raise BadInput(f"{path}: holds no secret; the list has one a line")
    return frozenset(entries)
