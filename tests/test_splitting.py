"""Splitting loses no character, never joins turns, cuts only after sentences, and looks at one record at a time."""

import time
from itertools import accumulate

import pytest
import sentencex
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.records import MARK, Columns, Record, Turn, make_record
from confide.splitting import UNITS, WINDOW, sentence_ends, split

BITS = ["Dr. ", "U.S. ", "a", "B", " ", ". ", "\n", "\n\n", "USR: ", "SYS:", "?!", '"', MARK, "é", "…", "\u2028", "\x85",
        "。", "\r\n", "1.5", "x@y.z ", "http://a.b ", "(", ") ", "\x00", "\U0001f600", "J. R. "]  # fmt: skip
TEXTS = st.lists(st.sampled_from(BITS), max_size=40).map("".join) | st.text(max_size=60)
LIMITS = st.none() | st.integers(1, 9)


def plain(text):
    return Record("d", text, "g")


def chat(*words):
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(words)]
    return make_record({"m": messages}, Columns("m", None, None), "d")


def texts(record, unit, max_words=None):
    return [piece.text for piece in split(record, unit, max_words)]


def squeezed(text):
    return "".join(text.split())


def contents(record):
    return "".join(record.text[turn.start : turn.end] for turn in record.turns)


@given(TEXTS, st.sampled_from(UNITS), LIMITS)
def test_every_character_of_plain_text_is_in_exactly_one_piece(text, unit, limit):
    assert squeezed("".join(texts(plain(text), unit, limit))) == squeezed(text)


@given(TEXTS, st.sampled_from(UNITS), LIMITS)
def test_every_piece_of_plain_text_is_a_slice(text, unit, limit):
    at = 0
    for piece in texts(plain(text), unit, limit):
        at = text.index(piece, at) + len(piece)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.sampled_from(UNITS), LIMITS)
def test_every_character_of_a_chat_is_in_exactly_one_piece_with_its_role(words, unit, limit):
    try:
        record = chat(*words)
    except ValueError:
        return  # nothing but white space
    pieces = split(record, unit, limit)
    assert squeezed("".join(map(contents, pieces))) == squeezed(contents(record))
    for piece in pieces:
        lines = [f"{turn.role}: {piece.text[turn.start : turn.end]}" for turn in piece.turns]
        assert piece.text == "\n".join(lines)
        assert unit == "document" or len(piece.turns) == 1


@given(TEXTS, st.sampled_from(("turn", "document")), st.integers(1, 9))
def test_pieces_keep_to_the_limit_unless_they_are_one_sentence(text, unit, limit):
    sentences = texts(plain(text), "sentence")
    for piece in texts(plain(text), unit, limit):
        assert len(piece.split()) <= limit or piece in sentences


@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(1, 9))
def test_roles_count_as_words(words, limit):
    try:
        record = chat(*words)
    except ValueError:
        return
    sentences = texts(record, "sentence")
    for piece in texts(record, "document", limit):
        assert len(piece.split()) <= limit or piece in sentences


@given(TEXTS, LIMITS)
def test_sentences_lie_inside_turns(text, limit):
    turns = texts(plain(text), "turn")
    at = 0
    for sentence in texts(plain(text), "sentence", limit):
        while sentence not in turns[at]:
            at += 1
    assert [t for turn in turns for t in texts(plain(turn), "sentence")] == texts(
        plain(text), "sentence"
    ) or "\n" in text


@given(TEXTS, st.sampled_from(UNITS), LIMITS)
def test_ids_are_numbered_and_the_group_stays(text, unit, limit):
    pieces = split(plain(text), unit, limit)
    whole = unit == "document" and limit is None
    assert [piece.id for piece in pieces] == (["d"] if whole else [f"d/{i}" for i in range(len(pieces))])
    assert {piece.group for piece in pieces} <= {"g"}
    assert pieces == split(plain(text), unit, limit)


def test_turns_of_tagged_text_keep_their_speaker_and_following_lines():
    text = "USR: Hello\nmy name is Ann\n\nSYS:Hi.\nsee https://x.y\nHttp://x: no tag\nMary O'Neil: Bye"
    assert texts(plain(text), "turn") == [
        "USR: Hello\nmy name is Ann", "SYS:Hi.\nsee https://x.y\nHttp://x: no tag", "Mary O'Neil: Bye",
    ]  # fmt: skip


def test_turns_of_untagged_text_are_its_lines():
    assert texts(plain("one\n\n  two \r\nNote: three"), "turn") == ["one", "two", "Note: three"]


def test_turns_of_a_chat_are_its_messages():
    pieces = split(chat("Hi. Where\nis it?", " ", "Lost"), "turn")
    assert [piece.text for piece in pieces] == ["user: Hi. Where\nis it?", "user: Lost"]
    assert pieces[0].turns == (Turn("user", 6, 22),)


def test_sentences_of_a_chat_carry_the_role():
    assert texts(chat("Hi. I am Ann.", "Good."), "sentence") == ["user: Hi.", "user: I am Ann.", "assistant: Good."]


def test_packing_is_greedy_and_keeps_what_lies_between():
    text = "One two. Three.  Four five six.\n\nSeven."
    assert texts(plain(text), "document", 3) == ["One two. Three.", "Four five six.", "Seven."]
    assert texts(plain(text), "document", 100) == [text]
    assert texts(chat("One two. Three.", "Four."), "document", 4) == ["user: One two. Three.", "assistant: Four."]
    assert texts(chat("One. Two.", "Three."), "document", 2) == ["user: One.", "user: Two.", "assistant: Three."]


def test_a_long_sentence_stays_one_record():
    assert texts(plain("word " * 3900), "turn", 10) == [("word " * 3900).strip()]


def test_an_endless_sentence_is_cut_between_words():
    found = texts(plain("word " * 9000), "sentence")
    assert len(found) == 3
    assert " ".join(found) == ("word " * 9000).strip()
    assert [len(piece) for piece in texts(plain("w" * 45_000), "sentence")] == [WINDOW, WINDOW, 5000]


def test_long_texts_have_the_sentences_that_they_have_as_a_whole():
    text = 'Dr. Smith paid $3.50 at 5 p.m. on Monday. He left. "It is late," she said. Why? ' * 1000
    assert sentence_ends(text) == list(accumulate(map(len, sentencex.segment("en", text))))


@given(
    st.lists(st.sampled_from(["'" * 30_000, "word. " * 50, '"', "a" * 25_000, "\u201c" * 9000]), max_size=6).map(
        "".join
    )
)
@settings(max_examples=20, deadline=None)
def test_hostile_quotes_are_looked_at_in_windows_that_go_on(text):
    looked: list[int] = []
    real = sentencex.segment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentencex, "segment", lambda language, part: looked.append(len(part)) or real(language, part))
        assert sentence_ends(text)[-1] == len(text)
    assert max(looked) <= WINDOW
    assert sum(looked) <= 3 * len(text) + WINDOW


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith paid $3.50 at 5 p.m. on Monday.| He left.",
        "Write to anna.b@mail.example.com, e.g. today.| Thanks!",
        "J. R. R. Tolkien lived in the U.S. for a year.| Really?| No.",
        "It runs 2.0.1 at 192.168.0.1 now.| Ping it.",
        f"My ID is {MARK}.| Keep it safe.",
        f"Mail {MARK} to Mr. {MARK} please.| He waits.",
        "Write\u00a0to\u2003Dr.\u00a0Ray.| Now.",
    ],
)
def test_sentences(text):
    assert texts(plain(text.replace("|", "")), "sentence") == [part.strip() for part in text.split("|")]


@given(TEXTS)
def test_ends_of_sentences_cover_the_text(text):
    ends = sentence_ends(text)
    assert ends == sorted(ends)
    assert ends[-1] == len(text)


@pytest.mark.parametrize("unit", [".", "a", '"', " ", "A.", "?!", "\n", "a. B ", "USR: ", "\nUSR:", "\u2028", "\n "])
def test_hostile_text_takes_linear_time(unit):
    record = plain((unit * 100_000)[:100_000])
    start = time.perf_counter()
    for how in (("turn", None), ("sentence", None), ("turn", 5), ("document", 5)):
        split(record, *how)
    assert time.perf_counter() - start < 5


def test_nonsense_is_refused():
    with pytest.raises(BadInput, match="a unit is document, turn, sentence"):
        split(plain("a"), "word")
    with pytest.raises(BadInput, match="at least one word"):
        split(plain("a"), "turn", 0)
