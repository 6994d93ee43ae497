"""What becomes of one record, span by span."""

import pytest

from confide.policies import Finding, load
from confide.records import MARK, MASK, Record, Turn
from confide.screening.treatment import blank, find, locate, redact, treat, units_of

DIGITS = load("digits")


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([], "ab cd  ef"),
        ([(0, 2)], "_ cd  ef"),
        ([(0, 2), (3, 5)], "_  ef"),
        ([(0, 2), (3, 5), (7, 9)], "_"),
        ([(0, 2), (7, 9)], "_ cd  _"),
        ([(0, 1), (1, 2)], "_ cd  ef"),
        ([(0, 1), (3, 4)], "_b _d  ef"),
        ([(0, 9)], "_"),
    ],
)
def test_a_run_of_spans_is_one_mask(spans, text):
    assert redact("ab cd  ef", spans, [(0, 9)], "_") == (text, [(0, len(text))])


def test_only_blanks_inside_a_line_join_two_masks():
    assert redact("a\tb\nc", [(0, 1), (2, 3), (4, 5)], [(0, 5)], "_")[0] == "_\n_"


def test_pieces_are_masked_apart_and_what_lies_between_them_stays():
    text, moved = redact("u: abc; v: def.", [(2, 4), (5, 12), (14, 20)], [(3, 6), (11, 14)], "_")
    assert text == "u: _b_; v: _ef."
    assert [text[low:high] for low, high in moved] == ["_b_", "_ef"]
    assert redact("abc", [(0, 1), (2, 3)], [(1, 2)], "_") == ("abc", [(1, 2)])  # spans that end or begin at its border


@pytest.mark.parametrize(
    ("text", "conservative", "redacted", "private"),
    [
        ("no 5", None, f"no {MASK}", True),
        ("hello", None, "hello", True),
        ("hello", "nothing", "hello", False),
        ("hello", "everything", "hello", True),
        (f"a {MARK} here", "nothing", f"a {MASK} here", True),
        (f"{MARK} 5", "nothing", MASK, True),
    ],
)
def test_a_record_with_a_mask_or_a_finding_is_private(text, conservative, redacted, private):
    treated = treat(Record("a", text, "g"), DIGITS, conservative and load(conservative))
    assert (treated.text, treated.private) == (redacted, private)
    assert list(treated.units) == [(0, len(redacted))]


def test_given_findings_take_the_place_of_the_policys():
    record = Record("a", "no 5 or x", "g")
    assert treat(record, DIGITS, load("nothing"), []).text == "no 5 or x"
    assert not treat(record, DIGITS, load("nothing"), []).private
    assert treat(record, DIGITS, load("nothing"), [Finding(8, 9, "X", "p")]).text == f"no 5 or {MASK}"


CHAT = Record("a", "user: no 5\nbot: 6 it is", "g", (Turn("user", 6, 10), Turn("bot", 16, 23)))


def test_turns_move_with_their_words():
    treated = treat(CHAT, DIGITS)
    assert treated.text == f"user: no {MASK}\nbot: {MASK} it is"
    assert [(turn.role, treated.text[turn.start : turn.end]) for turn in treated.turns] == [
        ("user", f"no {MASK}"),
        ("bot", f"{MASK} it is"),
    ]
    assert list(treated.units) == [(0, len(treated.text))]


@pytest.mark.parametrize("policy", ["digits", "low-entity"])
def test_findings_are_places_in_the_whole_record(policy):
    found = find(load(policy), CHAT.text, [(6, 10), (16, 23)])
    assert all(CHAT.text[one.start : one.end] in ("5", "6") for one in found)
    if policy == "digits":
        assert [(one.start, one.end) for one in found] == [(9, 10), (16, 17)]


def test_duplicate_units_become_masks_and_a_record_of_nothing_else_is_one():
    units = [(6, 10), (16, 23)]
    record, moved = blank(CHAT, units, {1}, MASK)
    assert record.text == f"user: no 5\nbot: {MASK}"
    assert [record.text[low:high] for low, high in moved] == ["no 5", MASK]
    assert [record.text[turn.start : turn.end] for turn in record.turns] == ["no 5", MASK]
    assert blank(CHAT, units, {0, 1}, MASK) == (Record("a", MASK, "g"), [(0, len(MASK))])


def test_units_lie_where_their_words_are():
    record = Record("a", "One. Two. One.", "g")
    assert [record.text[low:high] for low, high in units_of(record, "sentence")] == ["One.", "Two.", "One."]
    assert units_of(record, "sentence")[2] == (10, 14)
    parts = [Record("p", words, "g") for words in ("user", "o")]
    assert locate(
        CHAT._replace(text="user: a user\nbot: o", turns=(Turn("user", 6, 12), Turn("bot", 18, 19))), parts
    ) == [(8, 12), (18, 19)]
