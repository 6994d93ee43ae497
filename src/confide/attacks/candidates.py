"""Candidates of membership inference: records that the model was trained on, and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import BadInput
from .likelihood import Row

FEWEST = 20  # candidates on a side
NO_MEMBERS = "there is no record that the model was trained on; name the records of its training"
NO_OTHERS = (
    "there is no held-out record to compare with: train with --validation-share 0.1, or name records of the same kind that "
    "the model never saw"
)


class Candidate(NamedTuple):
    """A record as the model reads it, and its text, for what never sees the model."""

    row: Row
    text: str
    group: str = ""  # what it was drawn with, such as the dialogue of a turn; empty: drawn by itself


def check_candidates(members: Sequence[Candidate], others: Sequence[Candidate]) -> None:
    """Refuse what no attack can be measured on."""
    if not members:
        raise BadInput(NO_MEMBERS)
    if not others:
        raise BadInput(NO_OTHERS)
    if min(len(members), len(others)) < FEWEST:
        raise BadInput(
            f"{len(members)} members and {len(others)} others are too few to measure an attack; give at least {FEWEST} of each"
        )


def groups_of(members: Sequence[Candidate], others: Sequence[Candidate]) -> tuple[list[str], list[str]]:
    """The group of each candidate; one that was drawn by itself is a group of its own."""
    mine, theirs = ([one.group or f"\x00{n}" for n, one in enumerate(side)] for side in (members, others))
    return mine, theirs


def overlap(members: Sequence[Candidate], others: Sequence[Candidate]) -> int:
    """How many others read like a member, which makes them members in all but name."""
    known = {one.text for one in members}
    return sum(one.text in known for one in others)
