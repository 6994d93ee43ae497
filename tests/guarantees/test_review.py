"""What a review counts as missed is the miss event of guarantees §3: the record is screened again with the secret masked."""

import re
import sys
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.policies import load
from confide.records import MARK, Record, Turn
from confide.review.policies import Policies
from confide.review.records import Shown, joined
from confide.screening.treatment import treat

FACTS = {"conservative": "everything", "recall_class": None, "mask_consistent": False, "order": "redact-dedup"}


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
    manifest = {
        "policy": {"spec": spec},
        "conservative": {"spec": "everything"},
        "certificate": {**FACTS, "dedup": "off"},
    }
    manifest |= {"public_duplicates": 0, "context": "record", "unit": "document", "max_words": None}
    yield Policies(manifest), load(spec)
    del sys.modules["toy_contextual"]


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
