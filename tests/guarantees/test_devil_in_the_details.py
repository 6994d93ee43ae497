"""The six rules of the CRT paper's appendix A.6, each as a test; the sixth as far as screening can keep it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from confide.policies import load
from confide.records import MARK, MASK, Record, Turn
from confide.screening import screen
from confide.screening.treatment import treat
from confide.splitting import split


def treated(text, policy="digits", conservative="allowlist"):
    return treat(Record("r", text, "r"), load(policy), load(conservative))


def test_secrets_are_compared_with_their_mask_and_not_with_other_secrets():
    """Rule 1: another secret, which the policy misses, would give away that it stands there; the mask does not."""
    assert treated("call 555").text == treated(f"call {MARK}").text
    assert treated("call 555").text != treated("call five").text


texts = st.lists(
    st.sampled_from(["Call 555.", "Dr. Pine came", "It is 3.5 miles!", "Why?", "\nUSR: hello", "12. x", " "]),
    min_size=1,
    max_size=8,
)


@given(texts.map(" ".join), st.sampled_from(["turn", "sentence"]))
def test_records_are_split_before_anything_is_masked(text, unit):
    """Rule 2: whatever the policy finds, the records are the same, one for one."""
    records = split(Record("r", text, "r"), unit)
    for name in ("nothing", "digits", "everything", "allowlist"):
        policy = load(name)
        assert [treat(record, policy).findings == policy.find(record.text) for record in records] == [True] * len(
            records
        )
    assert "".join("".join(record.text.split()) for record in records) == "".join(text.split())


def test_a_record_holds_whole_sentences_only():
    """Rule 3, with a maximum length: cuts are at sentence ends, and an endless sentence stays whole."""
    text = "My code is red fox blue fox. Yes. " + "word " * 40 + "end. Bye now."
    pieces = [record.text for record in split(Record("r", text, "r"), "document", max_words=8)]
    assert all(piece.rstrip().endswith(".") for piece in pieces)
    assert any(len(piece.split()) > 40 for piece in pieces)
    assert " ".join(" ".join(pieces).split()) == " ".join(text.split())


def test_one_mask_for_duplicates_and_secrets_alike(screened):
    """Rule 4: otherwise a caught secret would leave a trace where it made a duplicate; runs of masks are one."""
    _, private, _ = screened(["555", "call 1 2  3", "call 7", "call 8"], "digits", dedup="exact")
    assert [row["text"] for row in private] == [MASK, f"call {MASK}", MASK, MASK]
    _, masked, _ = screened([MARK, f"call {MARK} {MARK}  {MARK}", "call 7", f"call {MARK}"], "digits", dedup="exact")
    assert [row["text"] for row in masked] == [row["text"] for row in private]


def test_whatever_holds_a_mask_is_private(screened):
    """Rule 5."""
    public, private, _ = screened(["hello", f"hello {MARK}", "hello there"], "nothing", conservative="allowlist")
    assert [row["text"] for row in public] == ["hello", "hello there"]
    assert [row["text"] for row in private] == [f"hello {MASK}"]


def test_public_and_private_records_lie_in_files_of_their_own(tmp_path):
    """Rule 6: a batch is public or private as a whole; no file mixes them, so that no reader can."""
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"text": t}) + "\n" for t in ["hello", "call 5", "bye", "call 6"])
    )
    done = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out", conservative="allowlist", dedup="off")
    names = {part: {row["id"] for b in done.batches(part) for row in b.to_pylist()} for part in ("public", "private")}
    assert names == {"public": {"c-1", "c-3"}, "private": {"c-2", "c-4"}}


def test_a_finding_never_reaches_across_the_turns_of_a_chat(tmp_path):
    """A mask-consistent policy sees each turn alone: masking one side of a finding cannot change the other."""
    (tmp_path / "known.txt").write_text("pine user: oak\n")
    policy = load(f"known:{tmp_path / 'known.txt'}")
    text = "user: I am Pine\nuser: oak"
    record = Record("r", text, "r", (Turn("user", 6, 15), Turn("user", 22, 25)))
    assert text[22:25] == "oak"
    assert treat(record, policy).text == text
