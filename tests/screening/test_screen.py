"""`screen` from end to end: counts, files, errors, partitions, interruption, and what must never be written."""

import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from confide.accounting.setting import refuse_unsound
from confide.errors import BadInput, ConfideError, Refused
from confide.experiments.customersim import dialogues, people
from confide.records import MASK, Fields
from confide.screening import Screened, screen
from confide.screening.canaries import write_canaries
from confide.screening.output import PARTS

KEY = b"k" * 32


def rows(screened, part, *columns):
    return [row for batch in screened.batches(part, columns) for row in batch.to_pylist()]


def files(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def test_documents_turns_and_sentences(corpus, tmp_path):
    counts = {}
    for unit in ("document", "turn", "sentence"):
        screened = screen(str(corpus), "patterns", tmp_path / unit, unit=unit, conservative="allowlist")
        public = rows(screened, "public", "id", "text", "group")
        private = rows(screened, "private", "id", "text", "group", "raw", "spans")
        counts[unit] = (len(public), len(private))
        assert (len(public), len(private)) == (screened.manifest["public"], screened.manifest["private"])
        assert not any(MASK in row["text"] for row in public)
        for row in private:
            assert row["spans"] == [] or MASK in row["text"]
        assert len({row["id"] for row in public + private}) == len(public + private)
        assert {row["group"] for row in public + private} == {f"train-{i}" for i in range(120)}
    assert counts["document"] == (0, 120)
    assert counts["turn"][0] > counts["turn"][1] > 120


def test_every_word_of_the_corpus_is_in_exactly_one_record(corpus, tmp_path):
    screened = screen(str(corpus), "nothing", tmp_path / "out", unit="sentence", conservative="digits")
    pieces = {row["id"]: row["text"] for part in ("public", "private") for row in rows(screened, part, "id", "text")}
    for line in corpus.read_text().splitlines():
        document = json.loads(line)
        mine = sorted(
            (int(name.rsplit("/", 1)[1]), text)
            for name, text in pieces.items()
            if name.rsplit("/", 1)[0] == document["id"]
        )
        assert "".join("".join(text.split()) for _, text in mine) == "".join(document["text"].split())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unit": "turn", "conservative": "allowlist", "dedup": "exact", "public_dedup": "near"},
        {"order": "dedup-redact", "dedup": "exact", "dedup_unit": "sentence"},
        {"unit": "sentence", "canaries": "crt,seed=1", "dedup": "exact", "max_copies": 2},
    ],
)
def test_the_result_does_not_depend_on_how_the_work_is_cut_up(corpus, tmp_path, options):
    size = os.path.getsize(corpus)
    digests = {
        screen(
            str(corpus), "digits", tmp_path / str(parts), key=KEY, workers=1, chunk=size // parts + 1, **options
        ).manifest["digest"]
        for parts in (1, 2, 8)
    }
    assert len(digests) == 1
    assert screen(str(corpus), "nothing", tmp_path / "other", key=KEY, **options).manifest["digest"] not in digests


def test_a_pool_of_processes_writes_the_same(corpus, tmp_path):
    alone = screen(str(corpus), "patterns", tmp_path / "one", key=KEY, workers=1)
    pool = screen(str(corpus), "patterns", tmp_path / "two", key=KEY, workers=2, chunk=10_000)
    of_files = ("footers", "checksum")  # how rows are grouped in a file is not part of a corpus
    assert alone.manifest.keys() == pool.manifest.keys()
    assert all(alone.manifest[name] == pool.manifest[name] for name in alone.manifest if name not in of_files)
    assert rows(alone, "private", "id", "text", "raw", "spans") == rows(pool, "private", "id", "text", "raw", "spans")


def test_files_are_for_their_owner_only(corpus, tmp_path):
    before = os.umask(0)
    try:
        screen(
            str(corpus),
            "digits",
            tmp_path / "deep" / "out",
            canaries="audit,number=4",
            unit="turn",
            conservative="allowlist",
        )
    finally:
        os.umask(before)
    out = tmp_path / "deep" / "out"
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(out)} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in [out, out / "public", out / "private"]} == {0o700}
    assert {path.name for path in out.iterdir()} == {
        "SENSITIVE", "canaries.json", "coins.json", "key", "manifest.json", "private", "public",
    }  # fmt: skip


def test_the_manifest_holds_no_text_and_its_digests_need_the_key(corpus, tmp_path):
    first = screen(str(corpus), "patterns", tmp_path / "first")
    second = screen(str(corpus), "patterns", tmp_path / "second")
    assert first.manifest["digest"] != second.manifest["digest"]  # keys are drawn afresh
    written = (tmp_path / "first" / "manifest.json").read_text()
    for dialogue in dialogues(120, crowd=people(0, 60)):
        for start, end, _ in dialogue.secrets:
            assert dialogue.text[start:end] not in written


def test_no_connection_is_opened(corpus, tmp_path, monkeypatch):
    def connect(*_):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    for policy in ("patterns", "low-entity"):
        screen(
            str(corpus),
            policy,
            tmp_path / policy,
            workers=1,
            dedup="exact",
            public_dedup="near",
            conservative="allowlist",
        )


def test_parquet_footers_hold_no_text(corpus, tmp_path):
    screen(str(corpus), "digits", tmp_path / "out")
    metadata = pq.read_metadata(tmp_path / "out" / "private" / "00000.parquet")
    assert not any(metadata.row_group(0).column(i).is_stats_set for i in range(metadata.num_columns))


def test_what_a_certificate_needs_is_in_the_manifest(corpus, tmp_path):
    screened = screen(str(corpus), "digits", tmp_path / "out", unit="turn", conservative="allowlist")
    setting = screened.setting(method="crt", clipping_norm=1.0)
    assert (setting.unit, setting.k_missed, setting.k_detected, setting.private_records) == (
        "turn",
        1,
        0,
        screened.manifest["private"],
    )
    assert "outside the built-in English word list" in setting.recall_class
    assert Screened.open(tmp_path / "out").manifest == screened.manifest


def test_chats_keep_their_roles(tmp_path):
    messages = [
        {"role": "user", "content": "My number is 555 123."},
        {"role": "assistant", "content": "Thanks. Is 555 right?"},
    ]
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    screened = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out")
    (row,) = rows(screened, "private", "text", "turns")
    assert row["text"] == f"user: My number is {MASK}.\nassistant: Thanks. Is {MASK} right?"
    assert [(t["role"], row["text"][t["start"] : t["end"]]) for t in row["turns"]] == [
        ("user", f"My number is {MASK}."),
        ("assistant", f"Thanks. Is {MASK} right?"),
    ]


def test_literal_masks_are_escaped(tmp_path):
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "a <MASK> and a <mask> walk in"}) + "\n")
    screened = screen(str(tmp_path / "c.jsonl"), "nothing", tmp_path / "out")
    assert rows(screened, "private", "text") == [{"text": "a ‹MASK› and a ‹mask› walk in"}]


def test_duplicates_keep_their_slots(tmp_path):
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": f"call {n}"}) + "\n" for n in (1, 2, 3)))
    screened = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out")
    assert [row["text"] for row in rows(screened, "private", "text")] == [f"call {MASK}", MASK, MASK]
    assert screened.manifest["warnings"]  # most records are masks
    kept = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "kept", max_copies=2)
    assert [row["text"] for row in rows(kept, "private", "text")] == [f"call {MASK}", f"call {MASK}", MASK]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dedup_unit": "turn"},
        {"dedup_unit": "turn", "order": "dedup-redact"},
        {"unit": "turn"},
        {"unit": "turn", "context": "group"},
    ],
)
def test_spans_are_those_of_the_raw_text(tmp_path, options):
    texts = ["hello there\ncall 555 and 7", "hello there\nor 31", "us 12\nbye\nus 12"]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    canaries = "number=6,coins=yes,seed=3,format=ID {digits:6} ref 77" if "order" not in options else "sdp"
    screened = screen(
        str(tmp_path / "c.jsonl"), "digits", tmp_path / "out", dedup="exact", canaries=canaries, **options
    )
    spans = [
        row["raw"][span["start"] : span["end"]]
        for row in rows(screened, "private", "raw", "spans")
        for span in row["spans"]
    ]
    assert len(spans) > 4
    assert all(span.isdecimal() for span in spans)


def test_words_that_are_also_a_role_are_found_in_the_message(tmp_path):
    messages = [{"role": "user", "content": "us"}, {"role": "assistant", "content": "a"}]
    (tmp_path / "c.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 2)
    (tmp_path / "known.txt").write_text("us\n")
    known = f"known:{tmp_path / 'known.txt'}"
    group = screen(str(tmp_path / "c.jsonl"), known, tmp_path / "group", unit="turn", context="group", dedup="off")
    assert [row["text"] for row in rows(group, "private", "text")][:2] == [f"user: {MASK}", "assistant: a"]
    units = screen(str(tmp_path / "c.jsonl"), "nothing", tmp_path / "units", dedup="exact", dedup_unit="turn")
    assert [row["text"] for row in rows(units, "private", "text")] == ["user: us\nassistant: a", MASK]


def test_a_skipped_row_does_not_make_others_duplicates(tmp_path):
    lines = [{"id": 1, "text": "one"}, {"id": 1, "text": "the only real text"}, {"id": 2, "text": "the only real text"}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    screened = screen(str(tmp_path / "c.jsonl"), "nothing", tmp_path / "out", skip_bad=True)
    assert [row["text"] for row in rows(screened, "private", "text")] == ["one", "the only real text"]
    assert (screened.manifest["documents"], screened.manifest["bad_rows"]) == (2, 1)


def test_the_coin_of_a_canary_never_changes_the_records(corpus, tmp_path):
    spec = "number=8,coins=yes,seed=1,policy=missed,format=My initial is {letters:1}. Thanks a lot."
    screened = screen(str(corpus), "digits", tmp_path / "out", canaries=spec, unit="sentence")
    names = [row["id"].split("/")[0] for row in rows(screened, "private", "id") if row["id"].startswith("canary-")]
    assert len({names.count(name) for name in names}) == 1


def test_documents_of_many_records_are_screened_and_refused_a_certificate(tmp_path):
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "\n".join(f"line {i}" for i in range(60))}) + "\n")
    screened = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out", unit="turn", context="group")
    assert screened.manifest["k"]["missed"] == 60
    with pytest.raises(Refused, match="more than 50 records"):
        refuse_unsound(screened.setting(method="crt", clipping_norm=1.0), 1e-5)


@pytest.mark.parametrize(
    ("skip_bad", "reason"), [(False, "the file holds no rows"), (True, "no row of it could be used")]
)
def test_a_corpus_without_a_row_is_refused(tmp_path, skip_bad, reason):
    (tmp_path / "c.jsonl").write_text("\n")
    with pytest.raises(BadInput, match=reason):
        screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out", skip_bad=skip_bad)
    assert not list(tmp_path.glob("out*"))


def test_a_given_key_is_not_taken_for_a_secret_one(corpus, tmp_path):
    assert (
        screen(str(corpus), "digits", tmp_path / "a", dedup="bloom", key=KEY).manifest["certificate"]["bloom_keyed"]
        is False
    )
    assert screen(str(corpus), "digits", tmp_path / "b", dedup="bloom").manifest["certificate"]["bloom_keyed"] is True
    with pytest.raises(BadInput, match="16 to 64 bytes"):
        screen(str(corpus), "digits", tmp_path / "c", key=b"short")


def test_a_folder_may_hold_its_own_output(tmp_path):
    """Screened folders are SENSITIVE, and never read as a corpus by chance."""
    (tmp_path / "a.jsonl").write_text('{"text": "hello"}\n')
    for name in ("one", "two"):
        assert screen(str(tmp_path), "digits", tmp_path / name).manifest["records"] == 1


def test_whole_documents_go_one_way_with_group_context(tmp_path):
    texts = ["USR: Hello there.\nUSR: 555", "USR: Hello there.\nUSR: bye"]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = {"unit": "turn", "conservative": "allowlist"}
    alone = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "alone", **options)
    group = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "group", context="group", **options)
    assert (alone.manifest["public"], group.manifest["public"]) == (3, 2)
    assert [row["text"] for row in rows(group, "private", "text")] == ["USR: Hello there.", f"USR: {MASK}"]
    assert (alone.manifest["k"]["missed"], group.manifest["k"]["missed"]) == (1, 2)


@pytest.mark.parametrize(("words", "k"), [(None, 1), (2, 3)])
def test_a_document_that_is_cut_by_its_words_counts_all_its_parts_with_group_context(tmp_path, words, k):
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "One two. Three four. Five six."}) + "\n")
    found = screen(
        str(tmp_path / "c.jsonl"), "digits", tmp_path / "out", unit="document", context="group", max_words=words
    )
    assert found.manifest["k"]["missed"] == k


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (['{"text": "fine"}', '{"text": null}'], "c.jsonl, row 2: text is null"),
        (['{"id": 1, "text": "a"}', '{"id": 1, "text": "b"}'], "c.jsonl, row 2: an earlier row has the same id"),
        (['{"text": "fine"}', "{SECRET"], "c.jsonl, row 2"),
    ],
)
def test_bad_rows_stop_everything_or_are_counted(tmp_path, lines, reason):
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    with pytest.raises(BadInput, match=reason) as caught:
        screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out")
    assert "SECRET" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()
    skipped = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out", skip_bad=True)
    assert (skipped.manifest["bad_rows"], skipped.manifest["records"]) == (1, 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"unit": "word"}, "--unit must be one of document, turn, sentence"),
        ({"max_copies": 2, "dedup": "bloom"}, "--max-copies needs --dedup exact"),
        ({"order": "dedup-redact", "unit": "turn"}, "needs dedup"),
        ({"dedup_unit": "sentence", "unit": "sentence"}, "--dedup-unit names a unit smaller"),
        ({"canaries": "none"}, "neither a preset"),
        ({"canaries": "number=x"}, "number is a whole number"),
        ({"canaries": "format=no slot"}, "one slot"),
        ({"canaries": "format={digits:41}"}, "1 to 40 signs"),
        ({"canaries": "number=10000,copies=10000"}, "ten million together"),
        ({"bloom_delta": 0.0}, "--bloom-delta"),
        ({"canaries": ","}, "name a preset"),
        ({"canaries": "number=1,secret=<MASK>"}, "fits the slot"),
    ],
)
def test_options_that_make_no_sense_are_refused(corpus, tmp_path, options, reason):
    with pytest.raises(BadInput, match=reason):
        screen(str(corpus), "digits", tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_many_records_that_are_nothing_but_a_mask_earn_a_warning(tmp_path):
    def warned(numbers, words):
        corpus = tmp_path / f"{numbers} {words}.txt"
        corpus.write_text(
            "".join(f"{i}\n" for i in range(numbers)) + "".join(f"call {i} {'a' * (i + 1)}\n" for i in range(words))
        )
        done = screen(str(corpus), "digits", tmp_path / f"out {numbers}", text_as="line", dedup="exact", workers=1)
        return any("nothing but a mask" in warning for warning in done.manifest["warnings"])

    assert warned(5, 10)
    assert not warned(2, 10)


def test_in_the_papers_order_the_right_turn_of_a_dialogue_is_blanked(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"{word}\ncall bob\n{word} too"}) + "\n" for word in ("one", "two")))
    options = {"unit": "turn", "order": "dedup-redact", "dedup": "exact", "workers": 1}
    texts = [row["text"] for row in rows(screen(str(corpus), "digits", tmp_path / "out", **options), "private", "text")]
    assert texts == ["one", "call bob", "one too", "two", MASK, "two too"]


def test_a_conservative_policy_without_a_class_earns_a_warning(corpus, tmp_path):
    for conservative, warned in (("patterns", True), ("digits", False)):
        done = screen(str(corpus), "digits", tmp_path / conservative, conservative=conservative, workers=1)
        assert any("no class of secrets" in one for one in done.manifest["warnings"]) == warned
        assert done.manifest["dedup_unit"] == "record"


def test_the_manifest_names_the_files_of_a_policy_with_digests_that_need_the_key(corpus, tmp_path):
    listed = tmp_path / "names.txt"
    listed.write_text("Zebedee\n")
    found = [
        screen(str(corpus), f"known:{listed}", tmp_path / name, workers=1).manifest["policy"]["files"] for name in "ab"
    ]
    assert [[one["path"] for one in files] for files in found] == [[str(listed)]] * 2
    assert Screened.open(tmp_path / "a").manifest["certificate"]["policy"] == "known:names.txt"
    assert found[0][0]["digest"]
    assert found[0][0]["digest"] != found[1][0]["digest"]


def test_a_folder_that_cannot_be_made_is_named(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot create the folder"):
        screen(str(corpus), "digits", tmp_path / "file" / "out", workers=1)


def test_canaries_for_a_corpus_elsewhere_are_texts_with_the_secret_or_with_a_mask(tmp_path):
    told = write_canaries("number=8,format=My code is {digits:6}", tmp_path / "planted")
    texts = [json.loads(line)["text"] for line in (tmp_path / "planted" / "canaries.jsonl").read_text().splitlines()]
    assert told["texts"] == len(texts) == told["canaries"] == 8
    for name in ("canaries.json", "coins.json"):
        assert stat.S_IMODE((tmp_path / "planted" / name).stat().st_mode) == 0o600
        assert json.loads((tmp_path / "planted" / name).read_text())
    assert all(re.fullmatch(r"My code is (\d{6}|<MASK>)", text) for text in texts)


def test_nothing_is_overwritten(corpus, tmp_path):
    screen(str(corpus), "digits", tmp_path / "out")
    with pytest.raises(BadInput, match="never overwritten"):
        screen(str(corpus), "digits", tmp_path / "out")
    with pytest.raises(BadInput, match="nothing to resume"):
        screen(str(corpus), "digits", tmp_path / "new", resume=True)


def test_a_policy_of_yours_that_fails_is_named_without_the_text(corpus, tmp_path, policy):
    def fails(text):
        raise ValueError(text)

    with pytest.raises(BadInput, match="the function failed with ValueError on a record") as caught:
        screen(str(corpus), policy(fails), tmp_path / "out")
    assert "tracking" not in str(caught.value)


class TestCanaries:
    def test_they_pass_through_the_pipeline(self, corpus, tmp_path):
        screened = screen(str(corpus), "digits", tmp_path / "out", canaries="crt", dedup="off")
        mine = [row for row in rows(screened, "private", "id", "text", "raw") if row["id"].startswith("canary-")]
        assert len(mine) == 200
        assert {row["text"] for row in mine} == {f"My ID is: {MASK}"}
        planted = json.loads((tmp_path / "out" / "canaries.json").read_text())
        assert {row["raw"] for row in mine} == {f"My ID is: {canary['secret']}" for canary in planted["canaries"]}
        assert screened.manifest["documents"] == 120

    def test_dedup_leaves_one_copy(self, corpus, tmp_path):
        screened = screen(str(corpus), "nothing", tmp_path / "out", canaries="crt")
        texts = [row["text"] for row in rows(screened, "private", "id", "text") if row["id"].startswith("canary-")]
        assert sum(text != MASK for text in texts) == 10

    def test_an_audit_flips_coins_and_forces_misses(self, corpus, tmp_path):
        options = {"canaries": "audit,number=100", "conservative": "digits", "unit": "turn"}
        screened = screen(str(corpus), "digits", tmp_path / "out", **options)
        mine = {
            row["id"]: row["text"] for row in rows(screened, "private", "id", "text") if row["id"].startswith("canary-")
        }
        planted, coins = (json.loads((tmp_path / "out" / name).read_text()) for name in ("canaries.json", "coins.json"))
        assert "present" not in planted
        assert 20 < sum(coins["present"]) < 80
        for canary, present in zip(planted["canaries"], coins["present"], strict=True):
            assert mine[f"{canary['id']}-0/0"] == f"My ID is: {canary['secret'] if present else MASK}"

    def test_found_ones_are_masked_whatever_the_policy_says(self, corpus, tmp_path):
        screened = screen(str(corpus), "nothing", tmp_path / "out", canaries="sdp,policy=found", dedup="off")
        texts = {row["text"] for row in rows(screened, "private", "id", "text") if row["id"].startswith("canary-")}
        assert texts == {f"My ID is {MASK}."}


SCRIPT = "import sys; from confide.cli import main; main(sys.argv[1:])"


def test_a_killed_screening_leaves_nothing_that_looks_whole_and_can_be_resumed(corpus, tmp_path):
    """kill -9 at random moments: afterwards there is the whole folder, or one that --resume completes to the same digest."""
    big = tmp_path / "big.jsonl"
    lines = corpus.read_text().splitlines()
    with open(big, "w") as file:
        for copy in range(40):
            file.writelines(
                json.dumps({**json.loads(line), "id": f"{copy}-{i}"}) + "\n" for i, line in enumerate(lines)
            )
    coins, out = random.Random(5), tmp_path / "out"
    partial = tmp_path / "out.partial"
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        "screen",
        str(big),
        "--policy",
        "digits",
        "--unit",
        "turn",
        "-o",
        str(out),
        "--workers",
        "1",
    ]
    whole = screen(str(big), "digits", tmp_path / "whole", unit="turn", key=KEY)
    kills = 0
    for attempt in range(8):
        resume = ["--resume"] if partial.exists() else []
        process = subprocess.Popen([*command, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if attempt == 0:
            while not (partial / "plan.json").exists() and process.poll() is None:
                time.sleep(0.005)
            (partial / "key").exists() or (partial / "key").write_text(KEY.hex())
        time.sleep(coins.uniform(0.0, 1.2) if attempt else 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert not (out / "manifest.json").exists() or (out / "private").exists()
        if out.exists():
            break
    if not out.exists():
        subprocess.run([*command, "--resume"], check=True, stdout=subprocess.DEVNULL)
    assert kills
    assert not partial.exists()
    key = (out / "key").read_text().strip()
    same = screen(str(big), "digits", tmp_path / "same", unit="turn", key=bytes.fromhex(key))
    assert Screened.open(out).manifest["digest"] == same.manifest["digest"]
    assert Screened.open(out).manifest["records"] == whole.manifest["records"]


def test_a_resumed_screening_must_be_the_same_one(corpus, tmp_path, monkeypatch):
    from confide.screening import pipeline

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline._Work, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            screen(str(corpus), "digits", tmp_path / "out")
    with pytest.raises(BadInput, match="did not end; complete it with --resume"):
        screen(str(corpus), "digits", tmp_path / "out")
    with pytest.raises(BadInput, match="begun with another --policy"):
        screen(str(corpus), "nothing", tmp_path / "out", resume=True)
    os.utime(corpus, ns=(1, 1))
    with pytest.raises(BadInput, match="begun with another corpus"):
        screen(str(corpus), "digits", tmp_path / "out", resume=True)


def test_a_policy_file_must_not_change_before_resuming_and_damage_is_mended(corpus, tmp_path, monkeypatch):
    from confide.screening import pipeline

    def interrupt(*_):
        raise KeyboardInterrupt

    (tmp_path / "known.txt").write_text("tracking\n")
    known = f"known:{tmp_path / 'known.txt'}"
    whole = screen(str(corpus), known, tmp_path / "whole", key=KEY, chunk=8000)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline._Work, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            screen(str(corpus), known, tmp_path / "out", key=KEY, chunk=8000)
    work = tmp_path / "out.partial" / "work" / "00000000.arrow"
    content = bytearray(work.read_bytes())
    content[len(content) // 2] ^= 1
    work.write_bytes(bytes(content))
    os.utime(tmp_path / "known.txt", ns=(5, 5))
    with pytest.raises(BadInput, match="begun with another policy file"):
        screen(str(corpus), known, tmp_path / "out", key=KEY, chunk=8000, resume=True)
    (tmp_path / "out.partial" / "plan.json").unlink()
    resumed = screen(str(corpus), known, tmp_path / "out", key=KEY, chunk=8000, resume=True)
    assert resumed.manifest["digest"] == whole.manifest["digest"]


def test_an_interrupted_screening_goes_on(corpus, tmp_path, monkeypatch):
    from confide.screening import pipeline

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            screen(str(corpus), "digits", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert screen(str(corpus), "digits", tmp_path / "out", resume=True).manifest["records"] == 120


def test_a_full_disk_is_named_and_what_is_done_is_kept(corpus, tmp_path, monkeypatch):
    from confide.screening import pipeline

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_table", full)
        with pytest.raises(ConfideError, match="No space left on device; what is done is kept"):
            screen(str(corpus), "digits", tmp_path / "out")
    assert screen(str(corpus), "digits", tmp_path / "out", resume=True).manifest["records"] == 120


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=8),
    st.sampled_from(["document", "turn", "sentence"]),
)
def test_any_text_can_be_screened(tmp_path_factory, texts, unit):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    try:
        screened = screen(
            str(folder / "c.jsonl"), "patterns", folder / "out", unit=unit, conservative="allowlist", skip_bad=True
        )
    except BadInput:
        return
    assert screened.manifest["records"] >= 1


def labelled(tmp_path, suffix=".jsonl"):
    path = tmp_path / f"labelled{suffix}"
    if suffix == ".csv":
        path.write_text('id,text,kind\na,"one.\nno 5",good\nb,two,\n')
    else:
        documents = [{"id": "a", "text": "one.\nno 5", "kind": "good"}, {"id": "b", "text": "two", "kind": None}]
        path.write_text("".join(json.dumps(one) + "\n" for one in [*documents, {"id": "c", "text": "7", "kind": 3}]))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_every_record_carries_its_documents_label(tmp_path, suffix):
    options = {"unit": "turn", "conservative": "digits", "fields": Fields(label="kind")}
    screened = screen(str(labelled(tmp_path, suffix)), "digits", tmp_path / "out", **options)
    found = {part: {row["id"]: row["label"] for row in rows(screened, part, "id", "label")} for part in PARTS}
    assert found["public"] == {"a/0": "good", "b/0": None}
    assert found["private"] == ({"a/1": "good"} if suffix == ".csv" else {"a/1": "good", "c/0": "3"})


def test_without_a_label_field_the_columns_stay_as_they_were(tmp_path):
    screened = screen(str(labelled(tmp_path)), "digits", tmp_path / "out")
    for part, columns in PARTS.items():
        assert tuple(pq.read_schema(screened.folder / part / "00000.parquet").names) == columns


def test_a_label_that_is_neither_text_nor_a_whole_number_is_a_bad_row(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "hi", "kind": 0.5}\n')
    with pytest.raises(BadInput, match="row 1: kind is a number"):
        screen(str(path), "digits", tmp_path / "out", fields=Fields(label="kind"))
    with pytest.raises(BadInput, match="--label-field"):
        screen(str(path), "digits", tmp_path / "out", fields=Fields(label="class"))


def test_blanked_duplicates_keep_their_labels_and_labels_count_in_the_digest(tmp_path):
    digests = set()
    for kind in ("x", "y"):
        path = tmp_path / f"{kind}.jsonl"
        path.write_text(
            "".join(json.dumps({"id": i, "text": "same", "kind": k}) + "\n" for i, k in enumerate(("x", kind)))
        )
        screened = screen(str(path), "digits", tmp_path / kind, key=KEY, fields=Fields(label="kind"))
        second = MASK if kind == "x" else "same"  # another label is another example: the two are no duplicates
        assert [(row["text"], row["label"]) for row in rows(screened, "private", "text", "label")] == [
            ("same", "x"),
            (second, kind),
        ]
        digests.add(screened.manifest["digest"])
    assert len(digests) == 2


def test_one_column_of_a_table_may_serve_twice(tmp_path):
    (tmp_path / "c.csv").write_text("id,text,kind\n1,hi,x\n")
    screened = screen(str(tmp_path / "c.csv"), "digits", tmp_path / "out", fields=Fields(group="kind", label="kind"))
    assert rows(screened, "private", "group", "label") == [{"group": "x", "label": "x"}]


def test_a_flipped_bit_of_a_screened_file_changes_nothing_unnoticed(tmp_path):
    """Pages have checksums; names and types of columns stand in the footer: a lost column of findings would be secrets without a mark."""
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": f"no {n} of {n + 7}"}) + "\n" for n in range(40)))
    screened = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out")
    path = screened.folder / "private" / "00000.parquet"
    whole, before = path.read_bytes(), rows(screened, "private", *PARTS["private"])
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    coins = random.Random(0)
    noticed = 0
    for at in [*range(footer, len(whole)), *coins.choices(range(footer), k=200)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << coins.randrange(8)
        path.write_bytes(damaged)
        read, told = None, ""
        try:
            read = rows(screened, "private", *PARTS["private"])
        except BadInput as error:
            noticed, told = noticed + 1, str(error)
        assert read == before or "screen the corpus again" in told
        assert "no 3" not in told
    assert noticed >= len(whole) - footer  # every one in the footer


def test_files_that_are_lost_or_added_are_noticed(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "no 5"}\n')
    screened = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out")
    file = screened.folder / "private" / "00000.parquet"
    (screened.folder / "private" / "00001.parquet").write_bytes(file.read_bytes())
    with pytest.raises(BadInput, match="not of this corpus"):
        rows(screened, "private", "text")
    (screened.folder / "private" / "00001.parquet").unlink()
    file.unlink()
    with pytest.raises(BadInput, match="lost"):
        rows(screened, "private", "text")


@pytest.mark.parametrize("text", ["{}", "[]", "5", '{"digest": NaN}', "[" * 5000])
def test_a_damaged_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(BadInput, match="is damaged"):
        Screened.open(tmp_path)
