"""Validation sees what neither policy flags, leaves no dialogue half in and half out, and knows where secrets are."""

import json

import pytest

from confide.errors import BadInput
from confide.experiments.customersim import dialogues, people
from confide.records import Fields
from confide.screening import screen
from confide.training.holdout import split_rows
from confide.training.validation import outside


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def simulated(count, split="train"):
    for dialogue in dialogues(count, split=split, crowd=people(0, 60)):
        secrets = [{"start": start, "end": end, "type": kind} for start, end, kind in dialogue.secrets]
        yield {"id": dialogue.id, "text": dialogue.text, "secrets": secrets}


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """Simulated dialogues, screened turn by turn."""
    folder = tmp_path_factory.mktemp("turns")
    corpus = write(folder / "train.jsonl", simulated(100))
    return screen(corpus, "patterns", folder / "out", unit="turn", conservative="allowlist", workers=1)


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    return write(tmp_path_factory.mktemp("valid") / "valid.jsonl", simulated(30, "valid"))


def groups(screened, rows):
    found = [group for batch in screened.batches("public", ("group",)) for group in batch["group"].to_pylist()]
    return {found[row] for row in rows}


def test_a_share_of_the_public_part_is_held_out_by_whole_dialogues(turns):
    train, held = split_rows(turns, "public", 0.2)
    assert sorted([*train, *held]) == list(range(turns.manifest["public"]))
    assert not groups(turns, train) & groups(turns, held)
    assert 0.08 < len(held) / turns.manifest["public"] < 0.35


def test_a_larger_share_holds_out_more(turns):
    small, large = (set(split_rows(turns, "public", share)[1].tolist()) for share in (0.1, 0.4))
    assert small < large


def test_masking_any_record_moves_no_other_record_in_or_out(tmp_path):
    """Also if the masked one was public, as the neighbours of methods to which every record is private may be."""
    rows = [{"id": f"d{i}", "text": "hello 5" if i % 3 == 0 else "hello bob"} for i in range(60)]
    held = []
    for changed in (None, 0, 1):
        texts = [row | {"text": "hello 77"} if i == changed else row for i, row in enumerate(rows)]
        corpus = write(tmp_path / f"{changed}.jsonl", texts)
        screened = screen(corpus, "digits", tmp_path / str(changed), conservative="digits", workers=1)
        train, out = split_rows(screened, "public", 0.3)
        held.append((groups(screened, train) - {"d1"}, groups(screened, out) - {"d1"}))
    assert held[0] == held[1] == held[2]


def test_of_outside_documents_only_what_neither_policy_flags_is_kept(turns, valid):
    records = outside(turns, valid)
    assert records
    assert not any(character.isdigit() for record in records for character in record.text)
    assert all(record.spans == () for record in records)
    assert len(records) < len(outside(turns, valid, everything=True))
    assert len(outside(turns, valid, limit=3)) == 3


def test_ground_truth_follows_the_secrets_into_the_records(turns, valid):
    wanted, found = [], []
    with open(valid) as file:
        for line in file:
            row = json.loads(line)
            wanted += [row["text"][one["start"] : one["end"]] for one in row["secrets"]]
    for record in outside(turns, valid, everything=True):
        found += [record.text[start:end] for start, end in record.spans]
    assert found == wanted


def test_without_ground_truth_nobody_knows_where_the_secrets_are(turns, tmp_path):
    rows = [
        {"id": "a", "text": "good day", "kind": "x"},
        {"id": "b", "text": "good secrets", "kind": "y"},
    ]
    records = outside(turns, write(tmp_path / "v.jsonl", rows), fields=Fields(label="kind"))
    assert [(record.spans, record.label) for record in records] == [(None, "x"), (None, "y")]


@pytest.mark.parametrize("secrets", [[{"start": 3, "end": 99}], [{"start": 3}], "ab", 7, [{"start": 4, "end": 2}]])
def test_wrong_ground_truth_is_bad_input_without_its_text(turns, tmp_path, secrets):
    corpus = write(tmp_path / "v.jsonl", [{"id": "a", "text": "a hushed word", "secrets": secrets}])
    with pytest.raises(BadInput, match="row 1") as error:
        outside(turns, corpus)
    assert "hushed" not in str(error.value)


def test_if_every_record_is_flagged_the_way_out_is_said(turns, tmp_path):
    corpus = write(tmp_path / "v.jsonl", [{"id": "a", "text": "call 555-123-4567"}])
    with pytest.raises(BadInput, match="--validate-on all"):
        outside(turns, corpus)
    everything = screen(corpus, "digits", tmp_path / "all", workers=1)
    with pytest.raises(BadInput, match="no certificate covers"):
        outside(everything, corpus)
    assert len(outside(everything, corpus, everything=True)) == 1


def test_chats_keep_their_turns(turns, tmp_path):
    chat = [{"role": "user", "content": "good day"}, {"role": "assistant", "content": "hello"}]
    corpus = write(tmp_path / "v.jsonl", [{"id": "a", "messages": chat}])
    assert [record.turns[0].role for record in outside(turns, corpus)] == ["user", "assistant"]


def test_whole_dialogues_are_left_out_where_the_policy_reads_them(tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"id": "a", "text": "hi\ncall 5"}, {"id": "b", "text": "hi\ngood day"}])
    options = {"unit": "turn", "context": "group", "conservative": "digits", "workers": 1}
    screened = screen(corpus, "digits", tmp_path / "out", **options)
    assert [record.text for record in outside(screened, corpus)] == ["hi", "good day"]
