"""The papers' data sets become JSONL with exact secrets, or a refusal that names file and line and shows no text."""

import collections
import dataclasses
import gzip
import hashlib
import importlib.util
import itertools
import json
import os
import stat
from pathlib import Path

import pytest

from confide.errors import BadInput
from confide.experiments import corpora, published
from confide.experiments.corpora import CORPORA, write
from confide.records import Fields
from confide.screening import screen

_spec = importlib.util.spec_from_file_location("papers_data", Path(__file__).with_name("papers_data.py"))
papers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(papers)


@pytest.fixture
def read(tmp_path):
    """A function from a corpus's name to its rows by split, made from the invented files."""

    def made(name, prepare=lambda data: None):
        papers.WRITERS[name](tmp_path / "data")
        prepare(tmp_path / "data")
        write(name, tmp_path / "data", tmp_path / "out")
        return {split: rows(tmp_path / "out" / f"{split}.jsonl") for split in CORPORA[name].splits}

    return made


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def secrets(row):
    return [(row["text"][one["start"] : one["end"]], one["type"]) for one in row["secrets"]]


def edit(data, pattern, change):
    """Change the text of the one file of that name."""
    (path,) = data.rglob(pattern)
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    papers.dump(path, change(text.decode()))


# -- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", papers.WRITERS)
def test_every_corpus_has_its_splits_and_disjoint_secrets_inside_the_text(read, name):
    found = read(name)
    assert list(found) == ["train", "valid", "test"]
    ids = [row["id"] for split in found.values() for row in split]
    assert len(set(ids)) == len(ids)
    for row in (row for split in found.values() for row in split):
        assert row["text"].strip()
        assert row.get("secrets") != []
        spans = [(one["start"], one["end"]) for one in row.get("secrets", ())]
        assert all(0 <= start < end <= len(row["text"]) for start, end in spans)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_our_customersim_needs_no_data(tmp_path, monkeypatch):
    few = dataclasses.replace(CORPORA["customersim"], options={"count": 20, "seed": 1, "crowd": 48})
    monkeypatch.setitem(CORPORA, "customersim", few)
    done = write("customersim", None, tmp_path / "out")
    assert {split: one["records"] for split, one in done["splits"].items()} == {"train": 20, "valid": 2, "test": 2}
    kinds = {kind for row in rows(tmp_path / "out" / "train.jsonl") for _, kind in secrets(row)}
    assert kinds == {"name", "phone", "order", "address", "tracking"}


def test_the_original_customersim_loses_its_canaries_and_has_the_simulators_secrets(read):
    found = read("customersim-original")
    assert [len(split) for split in found.values()] == [60, 10, 10]
    crowd = papers.people(3, 48)
    for split, size in (("train", 60), ("test", 10)):
        for row, known in zip(found[split], papers.dialogues(size, 3, split, crowd), strict=True):
            assert "341752" not in row["text"]
            assert [(one["start"], one["end"], one["type"]) for one in row["secrets"]] == list(known.secrets)


def test_the_table_of_people_is_found_or_asked_for(tmp_path):
    with pytest.raises(BadInput, match="lm_privacy"):
        corpora.people_file(tmp_path)
    papers.write_customersim_original(tmp_path)
    assert corpora.people_file(tmp_path) == tmp_path / "customersim" / "database_20000.csv"


def test_multiwoz22_takes_its_secrets_from_acts_and_frames(read):
    found = read("multiwoz22")
    assert [len(split) for split in found.values()] == [8, 2, 2]
    reference, phone, postcode, address = papers.booking(3)
    row = found["train"][3]
    assert row["id"] == "TRAIN0003.json"
    assert row["text"].splitlines()[:2] == [
        "USR: I need a room. Can you book one?",
        f"SYS: Booked! Your reference number is {reference} .",
    ]
    # The customer repeats the number, which nobody labelled.
    assert secrets(row) == [
        (reference, "reference"), (reference, "reference"), (address, "address"), (postcode, "postcode"), (phone, "phone"),
    ]  # fmt: skip


def test_multiwoz21_takes_token_spans_and_values_that_have_none(read):
    found = read("multiwoz21")
    assert [len(split) for split in found.values()] == [16, 2, 2]
    reference, phone, postcode, address = papers.booking(5)
    row = found["train"][5]
    assert row["text"].count("\n") == 3
    assert secrets(row) == [(reference, "reference"), (address, "address"), (postcode, "postcode"), (phone, "phone")]


def test_labels_that_are_mistakes_are_no_secrets(read):
    found = read(
        "multiwoz21",
        lambda data: edit(data, "*convlab2*", lambda text: text.replace("6, 6", "0, 0").replace('"Area"', '"Phone"')),
    )
    assert ("I", "phone") not in secrets(found["train"][0])
    assert ("east", "phone") not in secrets(found["train"][0])


def test_turns_are_records_of_which_nobody_knows_the_secrets(read):
    found = read("multiwoz-turns")
    assert [len(split) for split in found.values()] == [16, 2, 2]
    assert found["train"][0] == {"id": "turn-1", "text": 'USR: i need a "room for 0 people'}
    assert found["test"][-1]["text"].startswith("SYS: Your room")


def test_wikitext_keeps_headings_and_drops_blank_lines(read):
    found = read("wikitext2")
    assert [len(split) for split in found.values()] == [18, 6, 6]
    assert [row["text"].strip()[:10] for row in found["train"][:3]] == ["= Invented", "The lake ,", "It is deep"]


def test_wikitext_as_it_was_published_is_read_too(read):
    def rename(data):
        for path in list((data / "wikitext2").iterdir()):
            papers.dump(
                data / "wikitext-2-raw" / f"wiki.{path.name.split('.')[0]}.raw",
                gzip.decompress(path.read_bytes()).decode(),
            )
            path.unlink()

    assert len(read("wikitext2", rename)["train"]) == 18


def test_abcd_finds_what_the_customers_card_says_however_it_is_written(read):
    found = read("abcd")
    assert [len(split) for split in found.values()] == [6, 2, 2]
    row = found["train"][0]
    assert row["text"].startswith("SYS:Hi! May I have your name?\n\nUSR:Mira Quill\n\nACT:Account")
    assert row["text"].count("\n\n") == row["text"].count("\n") / 2 == 6
    assert secrets(row) == [
        ("Mira Quill", "name"), ("Mira Quill", "name"), ("Mira", "name"), ("999-555-0100", "phone"),
        ("12 Nowhere Ave, Dreamton, ZQ 99900", "address"), ("MQUILL0", "username"), ("mquill0@email.com", "email"),
        ("7700000000", "order"),
    ]  # fmt: skip


def test_abcd_as_text_is_cut_between_conversations(read):
    found = read("abcd-text")
    assert [len(split) for split in found.values()] == [16, 2, 2]
    assert all(row["text"].startswith("SYS:Hello") and row["text"].endswith(".") for row in found["train"])
    assert "endoftext" not in json.dumps(found)


@pytest.mark.parametrize(
    ("name", "text", "label"),
    [
        ("sst2", 'a " charming film no. 0', "0"),
        ("mnli", 'Lake 0 is deep.\n"Lake 0 is wet.', "neutral"),
        ("qqp", "Is lake 0 deep?\nHow deep is lake 0?", "0"),
        ("qnli", "Is lake 0 deep?\nLake 0 is deep.", "not_entailment"),
    ],
)
def test_glue_tests_on_dev_and_validates_on_the_end_of_train(read, name, text, label):
    found = read(name)
    assert [len(split) for split in found.values()] == [27, 3, 6]
    assert found["train"][0] == {"id": "train-1", "text": text, "label": label}
    assert found["valid"][0]["id"] == "train-28"
    assert found["test"][0]["id"].startswith("dev")


def test_glue_holds_out_a_fixed_number_of_many_rows(read, monkeypatch):
    monkeypatch.setattr(published, "HELD_OUT", 2)
    assert len(read("sst2")["valid"]) == 2


def test_qqp_leaves_out_the_rows_that_its_publisher_tore(read):
    tear = lambda text: text.replace("Is lake 4 deep?", "Is lake 4\ndeep?")  # noqa: E731
    found = read("qqp", lambda data: edit(data, "train.tsv", tear))
    assert [len(split) for split in found.values()] == [27, 2, 6]
    assert "lake 4" not in json.dumps(found["train"])


def test_the_names_of_the_shared_files_are_read_too(read):
    def rename(data):
        for source in ("train", "dev"):
            papers.dump(data / "sst2" / f"sst2_{source}.tsv.gz", (data / "SST-2" / f"{source}.tsv").read_text())
            (data / "SST-2" / f"{source}.tsv").unlink()

    assert len(read("sst2", rename)["train"]) == 27


def test_screening_reads_what_was_written(read, tmp_path):
    read("sst2")
    corpus = str(tmp_path / "out" / "train.jsonl")
    screened = screen(corpus, "nothing", tmp_path / "screened", fields=Fields(label="label"), dedup="off")
    kept = [row for batch in screened.batches("private", ("id", "label")) for row in batch.to_pylist()]
    assert kept == [{"id": f"train-{n + 1}", "label": str(n % 2)} for n in range(27)]


# -- the folder -------------------------------------------------------------------------------------------------------


def test_files_are_the_owners_and_digests_are_those_of_the_files(read, tmp_path):
    read("multiwoz21")
    out = tmp_path / "out"
    done = json.loads((out / "corpus.json").read_text())
    assert done["corpus"] == "multiwoz21"
    assert sorted(path.name for path in out.iterdir()) == ["corpus.json", "test.jsonl", "train.jsonl", "valid.jsonl"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in out.iterdir())
    for split, one in done["splits"].items():
        content = (out / f"{split}.jsonl").read_bytes()
        assert (one["records"], one["sha256"]) == (content.count(b"\n"), hashlib.sha256(content).hexdigest())


def test_a_whole_folder_is_only_read_back(read, tmp_path):
    read("sst2")
    before = (tmp_path / "out" / "train.jsonl").stat().st_mtime_ns
    assert write("sst2", None, tmp_path / "out") == json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert (tmp_path / "out" / "train.jsonl").stat().st_mtime_ns == before
    with pytest.raises(BadInput, match=r"corpus\.json is not that of qqp"):
        write("qqp", None, tmp_path / "out")


def test_other_data_have_other_digests(tmp_path):
    digests = collections.Counter()
    for n, size in enumerate((20, 20, 30)):
        papers.write_multiwoz21(tmp_path / f"data{n}", size)
        done = write("multiwoz21", tmp_path / f"data{n}", tmp_path / f"out{n}")
        digests[done["splits"]["train"]["sha256"]] += 1
    assert sorted(digests.values()) == [1, 2]


def test_an_interrupted_write_leaves_nothing_that_looks_whole_and_can_be_repeated(tmp_path, monkeypatch):
    papers.write_sst2(tmp_path)
    real, calls = os.replace, []

    def fail(*paths):
        calls.append(paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write("sst2", tmp_path, tmp_path / "out")
    assert calls
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(os, "replace", real)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.jsonl.partial").write_text("left over by a killed process")
    assert write("sst2", tmp_path, tmp_path / "out")["splits"]["train"]["records"] == 27


def test_a_file_of_somebody_else_is_never_overwritten(tmp_path):
    papers.write_sst2(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.jsonl").write_text("mine")
    with pytest.raises(BadInput, match="exists"):
        write("sst2", tmp_path, tmp_path / "out")
    assert (tmp_path / "out" / "train.jsonl").read_text() == "mine"


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", papers.WRITERS)
def test_missing_files_are_named_with_where_to_get_them(tmp_path, name):
    for data in (None, tmp_path):
        with pytest.raises(BadInput) as refused:
            write(name, data, tmp_path / "out")
        assert CORPORA[name].where in str(refused.value)
        assert ("--data" if data is None else "no file ") in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(BadInput, match="multiwoz22"):
        write("mutliwoz", None, tmp_path / "out")


TORN = "SECRETWORD"
CASES = {
    "torn line": ("customersim-original", "simdial_test*", lambda text: text[:-9], r"simdial_test.*, line 10: not JSON"),
    "no text": ("customersim-original", "simdial_test*", lambda text: text.replace('"text"', '"words"'), "line 1: no field text"),
    "text is a number": ("customersim-original", "simdial_test*", lambda _: '{"id": "a", "text": 7}\n', "line 1: text is not text"),
    "no names": ("customersim-original", "*.csv", lambda text: text.replace("name", "who", 1), "no column called name"),
    "torn JSON": ("multiwoz22", "dialog_acts.json", lambda text: text[:-9] + TORN, "dialog_acts.json is not JSON"),
    "no list": ("abcd", "abcd_v1*", lambda text: text.replace('"test"', '"exam"'), "no field test"),
    "no such speaker": ("abcd", "abcd_v1*", lambda text: text.replace('"agent"', f'"{TORN}"'), "train conversation 1: a turn"),
    "act outside": ("multiwoz22", "dialog_acts.json", lambda text: text.replace(", 33, 41]", ", 33, 99]"), r"dialogue 1, turn 1: .* outside the text"),
    "frame outside": ("multiwoz22", "test/*2.json", lambda text: text.replace('"start": 3', '"start": -3'), r"dialogues_002.json, dialogue 1, turn 3: .* outside"),
    "token outside": ("multiwoz21", "*convlab2*", lambda text: text.replace(", 7, 7]", ", 7, 70]"), r"line 1, turn 4: .* outside the text"),
    "no places": ("multiwoz21", "*convlab2*", lambda text: text.replace(", 7, 7]", "]"), "line 1, turn 4: span_info is not"),
    "acts are no list": ("multiwoz22", "dialog_acts.json", lambda text: text.replace('"span_info": []', '"span_info": true'), "span_info is not a list"),
    "speaker is a list": ("abcd", "abcd_v1*", lambda text: text.replace('"agent"', f'["{TORN}"]'), "train conversation 1: a turn"),
    "header alone": ("sst2", "train.tsv", lambda text: text.splitlines()[0] + "\n", "has 0 rows, too few"),
    "two columns": ("multiwoz-turns", "*.tsv.gz", lambda text: text + f"USER\t{TORN}\n", "line 21: not three columns"),
    "no tag": ("abcd-text", "*.txt.gz", lambda text: text + TORN, r"line 121: begins with none of SYS:"),
    "three columns": ("sst2", "train.tsv", lambda text: text + f"{TORN}\t1\t1\n", "line 32: 3 columns, the header has 2"),
    "other label": ("sst2", "dev.tsv", lambda text: text + f"bad\t{TORN}\n", "line 8: label is none of 0, 1"),
    "other table": ("qnli", "dev.tsv", lambda text: text.replace("question", "query", 1), "line 1: no column question"),
    "too many torn rows": ("qqp", "train.tsv", lambda text: text + f"{TORN}\n" * 21, "line 52: 1 columns, the header has 6"),
    "half a character": ("multiwoz21", "*convlab2*", lambda text: text.replace("east .", "\\ud800"), "record 1 of train holds half a character"),
    "nothing in it": ("wikitext2", "valid*", lambda _: " \n", "no records for the split valid"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_files_are_refused_by_file_and_line_without_their_text(tmp_path, case):
    name, pattern, change, message = CASES[case]
    papers.WRITERS[name](tmp_path / "data")
    edit(tmp_path / "data", pattern, change)
    with pytest.raises(BadInput, match=message) as refused:
        write(name, tmp_path / "data", tmp_path / "out")
    assert CORPORA[name].where in str(refused.value)
    assert TORN not in str(refused.value)
    assert refused.value.__cause__ is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [b"\x1f\x8b\x08", gzip.compress(b"\xff\xfe\xfa", mtime=0), gzip.compress(b"a" * 999, mtime=0)[:-9], b"plain"],
)
def test_damaged_archives_and_encodings_are_refused(tmp_path, content):
    papers.write_wikitext2(tmp_path)
    (tmp_path / "wikitext2" / "train.txt.gz").write_bytes(content)
    with pytest.raises(BadInput, match=r"train\.txt\.gz"):
        write("wikitext2", tmp_path, tmp_path / "out")
