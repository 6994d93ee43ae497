"""What screening writes is whole, in order and as it was; what was lost or damaged is noticed."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from confide.errors import BadInput, ConfideError
from confide.screening import Screened, output, pipeline, screen
from confide.screening.batches import SCHEMA
from confide.screening.manifest import checksum
from confide.screening.output import PARTS, Parts, finish, footer_digest, partial_folder, read_table, write_table

KEY = b"k" * 32


def table(*ids):
    rows = [{field.name: None for field in SCHEMA} | {"id": name, "text": f"text of {name}"} for name in ids]
    return pa.Table.from_pylist(rows, SCHEMA)


def ids(path):
    return pq.read_table(path).column("id").to_pylist()


def test_a_part_of_many_rows_lies_in_several_files_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "FILE_ROWS", 2)
    part = Parts(tmp_path, "private")
    for names in ("a", "", "bc", "d", "e", "f"):
        part.write(table(*names))
    part.finish()
    files = sorted((tmp_path / "private").iterdir())
    assert [path.name for path in files] == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert [ids(path) for path in files] == [["a", "b", "c"], ["d", "e"], ["f"]]
    assert part.records == 6
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {tuple(pq.read_schema(path).names) for path in files} == {PARTS["private"]}


def test_an_empty_part_has_one_file_with_its_columns(tmp_path):
    part = Parts(tmp_path, "public", labels=True)
    part.write(table())
    part.finish()
    (file,) = (tmp_path / "public").iterdir()
    assert file.name == "00000.parquet"
    assert (pq.read_table(file).num_rows, part.records) == (0, 0)
    assert tuple(pq.read_schema(file).names) == (*PARTS["public"], "label")


def test_what_an_earlier_run_left_of_a_part_is_gone(tmp_path):
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "00007.parquet").write_text("old")
    Parts(tmp_path, "public").finish()
    assert [path.name for path in (tmp_path / "public").iterdir()] == ["00000.parquet"]


def test_an_abandoned_part_is_left_as_it_is(tmp_path):
    part = Parts(tmp_path, "public")
    part.abandon()  # nothing is open yet
    part.write(table("a"))
    file = part._file
    part.abandon()
    assert file.closed
    size = (tmp_path / "public" / "00000.parquet").stat().st_size
    part.close()
    part.abandon()
    assert (tmp_path / "public" / "00000.parquet").stat().st_size == size
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(tmp_path / "public" / "00000.parquet")


def test_a_chunks_result_is_read_back_or_not_at_all(tmp_path):
    path = tmp_path / "work.arrow"
    assert read_table(path, KEY) is None
    write_table(path, table("a", "b"), KEY)
    assert read_table(path, KEY).equals(read_table(path, None))
    assert read_table(path, KEY).column("id").to_pylist() == ["a", "b"]
    assert read_table(path, b"other key") is None
    content = bytearray(path.read_bytes())
    for at in (0, len(content) // 2, len(content) - 64, len(content) - 1):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert read_table(path, KEY) is None


def test_a_footers_digest_is_of_the_footer_alone_and_needs_the_key(tmp_path):
    paths = [tmp_path / name for name in "abcd"]
    for path, texts in zip(paths, (["x", "y"], ["x", "z"]), strict=False):
        pq.write_table(
            pa.table({"text": texts}), path, compression="none", use_dictionary=False, write_statistics=False
        )
    whole = paths[0].read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    assert footer_digest(paths[0], KEY) == footer_digest(paths[1], KEY) != footer_digest(paths[0], b"other")
    for at in (len(whole) - 8 - length, len(whole) - 9):
        paths[2].write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert footer_digest(paths[2], KEY) not in ("", footer_digest(paths[0], KEY))
    for content in (b"", b"PAR1", whole[:-1] + b"2", whole[-8 - length : -8] + b"\xff\xff\xff\x7f" + b"PAR1"):
        paths[3].write_bytes(content)
        assert footer_digest(paths[3], KEY) == ""
    paths[3].write_bytes(whole[-8 - length :])  # nothing before the footer
    assert footer_digest(paths[3], KEY) == footer_digest(paths[0], KEY)


def test_the_folder_of_a_screening_goes_after_bad_input_and_stays_after_anything_else(tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"

    def work(error, resume=False, plan="p"):
        with partial_folder(out, {"plan": plan}, resume) as folder:
            assert folder == partial
            assert (folder / "work").is_dir()
            raise error

    with pytest.raises(BadInput, match="row 2"):
        work(BadInput("row 2"))
    assert not partial.exists()
    with pytest.raises(KeyboardInterrupt):
        work(KeyboardInterrupt())
    assert json.loads((partial / "plan.json").read_text()) == {"plan": "p"}
    with pytest.raises(BadInput, match="begun with another plan; resume with the same"):
        work(AssertionError(), resume=True, plan="q")
    with (
        pytest.raises(BadInput, match="begun with another newer; resume with the same"),
        partial_folder(out, {"plan": "p", "newer": 1}, True),
    ):
        raise AssertionError
    with pytest.raises(BadInput, match="row 2"):
        work(BadInput("row 2"), resume=True)
    assert partial.exists()


@pytest.mark.parametrize("content", ["{", "3", "[1]", ""])
def test_a_damaged_plan_is_named(tmp_path, content):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "plan.json").write_text(content)
    with pytest.raises(BadInput, match=r"plan\.json is damaged; remove"), partial_folder(tmp_path / "out", {}, True):
        pass


def test_a_folder_without_a_name_is_refused():
    with pytest.raises(BadInput, match="name a new folder"), partial_folder(output.Path("."), {}, False):
        pass


def test_a_finished_folder_holds_nothing_that_was_only_for_the_work(tmp_path):
    with partial_folder(tmp_path / "out", {}, False) as folder:
        for part in PARTS:
            Parts(folder, part).finish()
        (folder / "work" / "00000000.arrow").touch()
        finish(folder, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(PARTS)


# -- a screened corpus -------------------------------------------------------------------------------------------------


@pytest.fixture
def done(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "no 5"}\n{"text": "no 6 and 7"}\n{"text": "hello"}\n')
    return screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out", conservative="digits", dedup="off", workers=1)


def test_columns_rows_and_turns_of_a_screened_corpus(done, tmp_path):
    assert [batch.num_rows for batch in done.batches("private", ["id"], rows=1)] == [1, 1]
    assert [batch.schema.names for batch in done.batches("public")] == [["id", "text", "group"]]
    assert not done.has_turns()
    with pytest.raises(BadInput, match=r"00000\.parquet has no column colour; screen the corpus again"):
        list(done.batches("private", ["id", "colour"]))
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    assert screen(str(tmp_path / "chat.jsonl"), "digits", tmp_path / "chats", workers=1).has_turns()


def test_a_manifest_that_was_changed_is_damaged(done):
    path = done.folder / "manifest.json"
    whole = json.loads(path.read_text())
    assert whole["checksum"] == checksum(whole) == checksum({**whole, "checksum": ""})
    path.write_text(json.dumps({**whole, "private": 1}))
    with pytest.raises(BadInput, match=r"manifest\.json is damaged"):
        Screened.open(done.folder)
    path.unlink()
    with pytest.raises(BadInput, match="is no screened corpus"):
        Screened.open(done.folder)


@pytest.mark.parametrize("content", [None, "no key\n"])
def test_a_corpus_whose_key_is_gone_cannot_be_read(done, content):
    (done.folder / "key").unlink()
    if content:
        (done.folder / "key").write_text(content)
    with pytest.raises(BadInput, match=r"cannot be read \((FileNotFound|Value)Error\); screen the corpus again"):
        done.files("private")


def test_a_corpus_that_was_screened_before_there_were_footers_is_read(done):
    older = {name: value for name, value in done.manifest.items() if name != "footers"}
    (done.folder / "key").unlink()
    assert [path.name for path in Screened(done.folder, older).files("private")] == ["00000.parquet"]


def test_a_manifest_counts_what_was_screened(tmp_path):
    lines = ["call 5", "call 6", "hello world", "hello world", "7", "{"]
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join((json.dumps({"text": t}) if t != "{" else t) + "\n" for t in lines))
    told = screen(
        str(corpus), "digits", tmp_path / "out", conservative="digits", public_dedup="exact", skip_bad=True, workers=1
    ).manifest
    counted = {name: told[name] for name in ("records", "public", "private", "documents", "characters", "bad_rows")}
    assert counted == {"records": 4, "public": 1, "private": 3, "documents": 5, "characters": 35, "bad_rows": 1}
    assert (told["mask_only"], told["private_duplicates"], told["public_duplicates"]) == (2, 1, 1)
    assert sum(told["findings"].values()) == 3
    assert told["k"] == {"missed": 1, "detected": 0, "repeats": told["k"]["repeats"]}
    assert told["canaries"] is None
    assert told["warnings"] == [
        "2 of 3 private records are nothing but a mask: redaction makes short records alike, and dedup blanks them; consider "
        "--dedup off, or --max-copies"
    ]


# -- a screening that was interrupted ----------------------------------------------------------------------------------


def interrupted(corpus, out, monkeypatch, **options):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline._Work, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            screen(str(corpus), "digits", out, workers=1, **options)
    return out.with_name("out.partial")


@pytest.mark.parametrize("name", ["key", "canaries.json", "coins.json"])
def test_a_damaged_file_of_an_interrupted_screening_is_named(corpus, tmp_path, monkeypatch, name):
    options = {"canaries": "crt,number=1,copies=1"}
    partial = interrupted(corpus, tmp_path / "out", monkeypatch, **options)
    (partial / name).write_text("[1")
    with pytest.raises(BadInput, match=r"damaged; remove .*out\.partial and screen again"):
        screen(str(corpus), "digits", tmp_path / "out", workers=1, resume=True, **options)
    assert partial.exists()


def test_a_resumed_screening_has_the_canaries_that_were_drawn(corpus, tmp_path, monkeypatch):
    options = {"canaries": "number=3"}
    partial = interrupted(corpus, tmp_path / "out", monkeypatch, **options)
    before = (partial / "canaries.json").read_bytes()
    screen(str(corpus), "digits", tmp_path / "out", workers=1, resume=True, **options)
    assert (tmp_path / "out" / "canaries.json").read_bytes() == before


def test_a_work_file_that_is_damaged_before_it_is_used_stops_the_screening_and_is_made_again(
    corpus, tmp_path, monkeypatch
):
    def damaging(path, table, key):
        write_table(path, table, key)
        os.truncate(path, path.stat().st_size - 1)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_table", damaging)
        with pytest.raises(ConfideError, match=r"the work file 00000000\.arrow was damaged; run again with --resume"):
            screen(str(corpus), "digits", tmp_path / "out", workers=1)
    assert screen(str(corpus), "digits", tmp_path / "out", workers=1, resume=True).manifest["records"] == 120


def test_a_corpus_has_the_size_of_its_files_unless_one_is_compressed(corpus, tmp_path):
    from confide.sources import sources

    shutil.copy(corpus, tmp_path / "a.jsonl")
    size = corpus.stat().st_size
    assert pipeline.corpus_size(sources([str(tmp_path)])) == size
    (tmp_path / "b.jsonl.gz").write_bytes(b"")
    assert pipeline.corpus_size(sources([str(tmp_path)])) == 0


def test_small_corpora_have_one_process(corpus, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    for size, workers in ((0, 7), (1, 1), (2 * pipeline.CHUNK, 1), (2 * pipeline.CHUNK + 1, 7)):
        monkeypatch.setattr(pipeline, "corpus_size", lambda files, size=size: size)
        assert pipeline._workers([]) == workers


def test_a_screening_needs_a_policy(corpus, tmp_path):
    with pytest.raises(BadInput, match="name a policy: what counts as a secret"):
        screen(str(corpus), out=tmp_path / "out")


def test_a_policy_of_whole_dialogues_sees_whole_dialogues(corpus, tmp_path, policy):
    spec = policy(lambda text: [], whole_group=True)
    for name, more in (("policy", {"policy": spec}), ("conservative", {"policy": "digits", "conservative": spec})):
        done = screen(str(corpus), out=tmp_path / name, unit="turn", workers=1, **more)
        assert done.manifest["context"] == "group"
    assert screen(str(corpus), "digits", tmp_path / "neither", unit="turn", workers=1).manifest["context"] == "record"


@pytest.mark.parametrize("length", [16, 64])
def test_a_key_of_the_digests_has_sixteen_to_sixty_four_bytes(tmp_path, length):
    (tmp_path / "c.jsonl").write_text('{"text": "no 5"}\n')
    key = bytes(range(length))
    screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out", key=key, workers=1)
    assert (tmp_path / "out" / "key").read_text() == key.hex() + "\n"
    for wrong in (bytes(15), bytes(65)):
        with pytest.raises(BadInput, match="16 to 64 bytes"):
            screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "other", key=wrong, workers=1)
