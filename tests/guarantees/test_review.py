"""What a review counts as missed is the miss event of guarantees §3: the record is screened again with the secret masked."""

import re
import sys
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.policies import load
from confide.records import MARK, Record, Turn
from confide.review.counting import judged
from confide.review.policies import Policies
from confide.review.records import Secret, Shown, joined
from confide.review.store import State
from confide.screening.treatment import find, treat

FACTS = {"conservative": "everything", "recall_class": None, "mask_consistent": False, "order": "redact-dedup"}
FACTS |= {"dedup": "off", "units_per_record": "one"}


def contextual(text):
    """Finds a and b; c only where both are; d only before the last mark or finding; runs of e across lines."""
    found = [(*match.span(), "X") for match in re.finditer(r"[ab]+|e\n?\w*: e|e\ne", text)]
    if "a" in text and "b" in text:
        found += [(*match.span(), "X") for match in re.finditer("c", text)]
    last = max([end for _, end, _ in found] + [text.rfind(MARK)])
    return found + [(*match.span(), "X") for match in re.finditer("d", text[: max(0, last)])]


@pytest.fixture(scope="module")
def policies():
    """The contextual policy as a review makes it again, and as screening has it."""
    module = ModuleType("toy_contextual")
    module.find = contextual
    sys.modules["toy_contextual"] = module
    spec = "python:toy_contextual:find"
    yield policies_of(spec), load(spec)
    del sys.modules["toy_contextual"]


def policies_of(spec, **facts):
    manifest = {"policy": {"spec": spec}, "conservative": {"spec": "everything"}, "certificate": {**FACTS, **facts}}
    return Policies(manifest | {"public_duplicates": 0, "context": "record", "unit": "document", "max_words": None})


def masked(record, one):
    """The record with a mark in the place of a secret; None if the secret lies in no single turn."""
    less = one.end - one.start - 1
    turns = []
    for turn in record.turns:
        if turn.start < one.end and one.start < turn.end and not turn.start <= one.start <= one.end <= turn.end:
            return None
        low, high = (place - less * (place >= one.end) for place in (turn.start, turn.end))
        turns.append(Turn(turn.role, low, high))
    if record.turns and not any(turn.start <= one.start and one.end <= turn.end for turn in record.turns):
        return None
    return record._replace(text=record.text[: one.start] + MARK + record.text[one.end :], turns=tuple(turns))


def as_chat(words):
    text, turns = "", []
    for number, one in enumerate(words):
        text += ("\n" if number else "") + "USR: "
        turns.append(Turn("USR", len(text), len(text) + len(one)))
        text += one
    return Record("r", text, "r", tuple(turns))


WORDS = st.text(alphabet="abcde z\n", min_size=1, max_size=8)


@settings(max_examples=400, deadline=None)
@given(st.one_of(WORDS.map(lambda text: Record("r", text, "r")), st.lists(WORDS, min_size=1, max_size=3).map(as_chat)))
def test_every_found_secret_that_masking_would_show_counts_as_missed(policies, record):
    """And in plain text no other one does."""
    again, policy = policies
    again._showing.clear()
    secrets = joined(policy.find(record.text), record.text)
    shown = Shown(record.text, True, secrets, None, bool(record.turns))
    counted = again.showing(0, shown)
    for one in secrets:
        neighbour = masked(record, one)
        differs = neighbour is None or treat(record, policy).text != treat(neighbour, policy).text
        assert one in counted or not differs
        if not record.turns and one in counted:
            # Equal texts with masks at other places, as in "a a" and "a", are the only excess.
            spans = joined(policy.find(neighbour.text), neighbour.text)
            assert differs or spans != secrets
    assert again.unfit is None


RECORDS = st.one_of(
    WORDS.map(lambda text: Record("r", text, "r")), st.lists(WORDS, min_size=1, max_size=3).map(as_chat)
)
PIECES = st.lists(
    st.sampled_from(["ann", "@", "gmail.com", ".", "+49 30 ", "1234567", "4111 ", "-", " ", "pw: ", "x7", "\n"]),
    max_size=7,
).map("".join)
NUMBERS = st.one_of(
    PIECES.map(lambda text: Record("r", text, "r")), st.lists(PIECES, min_size=1, max_size=2).map(as_chat)
)


def check_parts(again, policy, record):
    """Every part of a finding that a review refuses to have marked leaves the screened record as it is when it is masked."""
    pieces = [(turn.start, turn.end) for turn in record.turns] or [(0, len(record.text))]
    secrets = joined(find(policy, record.text, pieces), record.text)
    shown = Shown(record.text, True, secrets, None, bool(record.turns))
    hidden = 0
    for one in secrets:
        for start in range(one.start, one.end):
            for end in range(start + 1, one.end + 1):
                if again.hides(shown, start, end):
                    neighbour = masked(record, Secret(start, end, ""))
                    assert neighbour is not None
                    assert treat(record, policy).text == treat(neighbour, policy).text
                    hidden += 1
    assert again.unfit is None
    return hidden


@settings(max_examples=150, deadline=None)
@given(RECORDS)
def test_a_part_of_a_finding_that_cannot_be_marked_leaves_no_trace(policies, record):
    check_parts(*policies, record)


@settings(max_examples=60, deadline=None)
@given(NUMBERS)
def test_nor_does_a_part_of_a_finding_of_the_shipped_policies(record):
    for spec in ("patterns", "digits", "allowlist"):
        check_parts(policies_of(spec, mask_consistent=True), load(spec), record)


def test_parts_of_findings_are_told_apart():
    """An address without its name is none; a number without some of its digits is one."""
    digits, patterns = (policies_of(spec, mask_consistent=True) for spec in ("digits", "patterns"))
    assert check_parts(digits, load("digits"), Record("r", "pin 123", "r")) == 6
    text = "mail ann.smith@gmail.com now"
    shown = Shown(text, True, joined(load("patterns").find(text), text), None, False)
    assert not patterns.hides(shown, 5, 14)
    assert patterns.hides(shown, 5, 24)


SPANS = st.tuples(st.integers(0, 20), st.integers(1, 6)).map(lambda at: (at[0], at[0] + at[1]))
FOUND = [Secret(0, 3, "A"), Secret(5, 9, "A"), Secret(12, 14, "A"), Secret(17, 22, "A")]


def disjoint(spans):
    kept = []
    for start, end in sorted(spans):
        if not kept or kept[-1].end <= start:
            kept.append(Secret(start, end, "B"))
    return tuple(kept)


STATES = st.builds(
    lambda marks, alarms: State("answered", disjoint(marks), frozenset((one.start, one.end) for one in alarms)),
    st.lists(SPANS, max_size=5), st.sets(st.sampled_from(FOUND)),
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(STATES, min_size=1, max_size=3), st.sets(st.sampled_from(FOUND)), st.sets(st.integers(0, 25)))
def test_another_reviewer_can_only_raise_the_bound(states, showing, letters):
    """More missed and fewer found than for anyone alone, of all secrets and of any class (here: those that hold such a place)."""

    def in_class(one, missed):
        return any(one.start <= at < one.end for at in letters)

    for members in (False, True):
        together, *alone = (
            [one.missed for one in judged(FOUND, some, showing, in_class, members)]
            for some in (states, *([state] for state in states))
        )
        assert all(sum(together) >= sum(one) for one in alone)
        assert all(together.count(False) <= one.count(False) for one in alone)
    everyone = judged(FOUND, states, showing, in_class)
    assert sum(one.missed and one.in_class for one in everyone) <= sum(
        one.missed for one in judged(FOUND, states, showing, in_class, members=True)
    )
