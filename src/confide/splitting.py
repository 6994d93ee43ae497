"""Splitting: documents come in; training records go out. It happens before everything else and never again.

A record's pieces depend on that record alone (CRT A.6). Pieces are slices of the text: nothing is dropped but white
space between them, nothing is altered. A piece of a chat carries the role of its speaker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import sentencex

from .errors import BadInput
from .records import Record, Turn

UNITS = ("document", "turn", "sentence")
WINDOW = 20_000  # characters

_TAG = re.compile(r"[A-Z][A-Za-z .'-]{0,30}:(?!//)")
_NEXT_TAG = re.compile(rf"\n(?=[^\S\n]*{_TAG.pattern})")
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")


def split(record: Record, unit: str, max_words: int | None = None) -> list[Record]:
    """The training records of one document, in order.

    `turn`: the messages of a chat. In plain text each line that is not blank; but if the first one begins with a
    speaker's tag such as `USR:`, a turn begins at each tagged line and goes on until the next.
    `sentence`: the sentences of each turn. `max_words` cuts documents or turns after sentences so that a record has
    at most so many words (between white space, roles included), unless a single sentence has more. A sentence has at most 20,000 characters.

    Pieces have the ids `<id>/0`, `<id>/1`...; a document that may not be cut keeps its own.

    >>> [piece.text for piece in split(Record("a", "USR: Hi. Is Dr. Ray in?\\nSYS: Yes.", "a"), "sentence")]
    ['USR: Hi.', 'Is Dr. Ray in?', 'SYS: Yes.']

    *Formal guarantees.* The result is a function of this record. Every character that is not white space is in
    exactly one piece, in order (of a chat: every character of its messages). No sentence lies in two turns.
    """
    if unit not in UNITS:
        raise BadInput(f"a unit is {', '.join(UNITS)}; not {unit!r}")
    if max_words is not None and max_words < 1:
        raise BadInput(f"a record must be allowed at least one word, not {max_words}")
    if unit == "document":
        return [record] if max_words is None else _packed(record, [_spans(record)], max_words)
    if unit == "turn" and max_words is not None:
        return _packed(record, [[span] for span in _spans(record)], max_words)
    if record.turns:
        said = [(turn.role, record.text[turn.start : turn.end].strip()) for turn in record.turns]
        if unit == "sentence":
            said = [(role, sentence) for role, words in said for sentence in _sentences(words)]
        return [_made(record, number, *one) for number, one in enumerate(one for one in said if one[1])]
    texts = [words for part in _parts(record.text) if (words := part.strip())]
    if unit == "sentence":
        texts = [sentence for words in texts for sentence in _sentences(words)]
    start, group = f"{record.id}/", record.group
    return [Record(f"{start}{number}", words, group) for number, words in enumerate(texts)]


def sentence_ends(text: str) -> list[int]:
    """Where sentences end, white space after them included; the last end is that of the text.

    Long texts are looked at through windows, the next from the last end that was found, since the time grows with the square of what is
    looked at. What has no end within a window is cut before its last word.
    """
    # sentencex panics on white space of several bytes, and a panic would print text
    plain = text if text.isascii() else _WIDE_SPACE.sub(" ", text)
    ends: list[int] = []
    start = 0
    while len(plain) - start > WINDOW:
        seen = plain[start : start + WINDOW]
        ends += [start + end for end in _ends(seen)[:-1] or [seen.rstrip().rfind(" ") + 1 or WINDOW]]
        start = ends[-1]
    return ends + [start + end for end in _ends(plain[start:])]


def _ends(text: str) -> list[int]:
    ends = list(accumulate(map(len, sentencex.segment("en", text))))
    return ends if ends and ends[-1] == len(text) else [len(text)]


def _parts(text: str) -> list[str]:
    """Plain text cut at the line ends between turns; some parts may be blank."""
    return _NEXT_TAG.split(text) if _TAG.match(text.lstrip()) else text.split("\n")


def _sentences(text: str) -> list[str]:
    ends = sentence_ends(text)
    if len(ends) == 1:
        return [text]
    parts = [text[start:end].strip() for start, end in pairwise([0, *ends])]
    return [part for part in parts if part]


def _made(record: Record, number: int, role: str, words: str) -> Record:
    name = f"{record.id}/{number}"
    if not role:
        return Record(name, words, record.group)
    start = len(role) + 2
    return Record(name, f"{role}: {words}", record.group, (Turn(role, start, start + len(words)),))


# -- at most so many words --------------------------------------------------------------------------------------------


class _Span(NamedTuple):
    """A part of the text inside one turn; the role is empty in plain text."""

    role: str
    start: int
    end: int


def _packed(record: Record, units: list[list[_Span]], max_words: int) -> list[Record]:
    """Each unit, a list of turns, as one record if it has room, else as one for as many sentences as have room."""
    pieces = [piece for turns in units if turns for piece in _filled(record.text, turns, max_words)]
    return [_joined(record, number, spans) for number, spans in enumerate(pieces)]


def _filled(text: str, turns: list[_Span], max_words: int) -> Iterator[list[_Span]]:
    if sum(_words(text, turn) + bool(turn.role) for turn in turns) <= max_words:
        yield turns
        return
    piece: list[_Span] = []
    room = max_words
    for turn in turns:
        within = False  # whether the piece holds the turn's beginning, and with it the role, which is a word too
        ends = [turn.start + end for end in sentence_ends(text[turn.start : turn.end])]
        for start, end in pairwise([turn.start, *ends]):
            sentence = _trimmed(text, turn.role, start, end)
            words = _words(text, sentence)
            if piece and words + (not within and bool(turn.role)) > room:
                yield piece
                piece, room, within = [], max_words, False
            if within:
                piece[-1] = piece[-1]._replace(end=sentence.end)
            else:
                piece.append(sentence)
                room -= bool(turn.role)
            room, within = room - words, True
    yield piece


def _spans(record: Record) -> list[_Span]:
    """Where the turns are, blank ones left out."""
    if record.turns:
        spans = [_trimmed(record.text, turn.role, turn.start, turn.end) for turn in record.turns]
    else:
        ends = list(accumulate(len(part) + 1 for part in _parts(record.text)))
        spans = [_trimmed(record.text, "", start, end) for start, end in pairwise([0, *ends])]
    return [span for span in spans if span.start < span.end]


def _joined(record: Record, number: int, spans: list[_Span]) -> Record:
    if len(spans) == 1 or not spans[0].role:
        return _made(record, number, spans[0].role, record.text[spans[0].start : spans[-1].end])
    parts: list[str] = []
    turns: list[Turn] = []
    at = 0
    for role, start, end in spans:
        at += len(role) + 2
        turns.append(Turn(role, at, at + end - start))
        parts.append(f"{role}: {record.text[start:end]}")
        at += end - start + 1
    return Record(f"{record.id}/{number}", "\n".join(parts), record.group, tuple(turns))


def _trimmed(text: str, role: str, start: int, end: int) -> _Span:
    """The span without white space at its ends."""
    part = text[start:end]
    kept = part.lstrip()
    start += len(part) - len(kept)
    return _Span(role, start, start + len(kept.rstrip()))


def _words(text: str, span: _Span) -> int:
    return len(text[span.start : span.end].split())
