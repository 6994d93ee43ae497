"""Every format gives the same records; whatever is wrong is said with file and row, never with text of the corpus."""

import contextlib
import csv
import gzip
import io
import json
import pickle

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from confide import records
from confide.errors import BadInput
from confide.readers import chunks
from confide.records import MARK, Chunk, Columns, Fields, Turn, escape, parse
from confide.sources import sources

SECRET = "hunter2"
WORDS = [
    "plain",
    'with "quotes", and commas',
    "two\nlines\r\nand\ttabs",
    "<MASK> and <mask>",
    MARK,
    "ünïcødé 漢字 \U0001f600",
    "NUL \x00",
]
ROWS = [{"id": f"r{i}", "text": f"{i}: {WORDS[i % len(WORDS)]}", "who": f"g{i // 5}"} for i in range(50)]
FIELDS = Fields(group="who")


def jsonl(rows=ROWS):
    return b"".join(json.dumps(row, ensure_ascii=i % 2 == 0).encode() + b"\n" for i, row in enumerate(rows))


def table(delimiter, rows=ROWS):
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ["id", "text", "who"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def zst(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def parquet(folder):
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "a.parquet", row_group_size=7)


def saved(folder, shards=3):
    """A folder as Hugging Face datasets save it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{i:05}-of-{shards:05}.arrow" for i in range(shards)]
    step = -(-len(ROWS) // shards)
    for i, name in enumerate(names):
        part = pa.Table.from_pylist(ROWS[i * step : (i + 1) * step])
        with pa.ipc.new_stream(str(folder / name), part.schema) as writer:
            writer.write_table(part, 6)
    (folder / "cache-123.arrow").write_bytes(b"stale")
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def nested(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "b.jsonl").write_bytes(jsonl(ROWS[20:]))
    (folder / "deep" / "er" / "a.csv").write_bytes(b"\xef\xbb\xbf" + table(",", ROWS[:20]))
    (folder / ".hidden").write_bytes(b"?")


WRITERS = {
    "jsonl": lambda f: (f / "a.jsonl").write_bytes(jsonl()),
    "jsonl with BOM and CRLF": lambda f: (f / "a.jsonl").write_bytes(
        b"\xef\xbb\xbf" + jsonl().replace(b"}\n", b"}\r\n\n")
    ),
    "jsonl without last line end": lambda f: (f / "a.json").write_bytes(jsonl().rstrip()),
    "gz": lambda f: (f / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(ROWS[:9])) + gzip.compress(jsonl(ROWS[9:]))),
    "zst": lambda f: (f / "a.jsonl.zst").write_bytes(zst(jsonl(ROWS[:9])) + zst(jsonl(ROWS[9:]))),
    "csv": lambda f: (f / "a.csv").write_bytes(table(",")),
    "tsv.gz": lambda f: (f / "a.tsv.gz").write_bytes(gzip.compress(table("\t"))),
    "parquet": parquet,
    "save_to_disk": saved,
    "nested folder": nested,
}


def load(corpus, fields=FIELDS, text_as="file", size=1 << 20):
    good, bad = [], []
    for number, chunk in enumerate(chunks(sources([str(item) for item in corpus]), fields, text_as, size)):
        assert chunk.number == number
        some, wrong = parse(pickle.loads(pickle.dumps(chunk)))
        good += some
        bad += wrong
    return good, bad


def one(folder, data, name="a.jsonl", **how):
    (folder / name).write_bytes(data)
    how.setdefault("fields", Fields())
    good, bad = load([folder / name], **how)
    return [row.record for row in good], [str(each) for each in bad]


@pytest.mark.parametrize("size", [64, 1000, 1 << 20])
@pytest.mark.parametrize("form", WRITERS)
def test_every_format_and_chunk_size_gives_the_same_records(form, size, tmp_path):
    WRITERS[form](tmp_path)
    good, bad = load([tmp_path], size=size)
    assert bad == []
    found = sorted((row.record for row in good), key=lambda record: int(record.id[1:]))
    assert [(r.id, r.text, r.group, r.turns) for r in found] == [
        (r["id"], escape(r["text"]), r["who"], ()) for r in ROWS
    ]


def test_globs_uris_and_repeated_items(tmp_path):
    for name, rows in (("a1.jsonl", ROWS[:20]), ("a2.jsonl", ROWS[20:])):
        (tmp_path / name).write_bytes(jsonl(rows))
    (tmp_path / "b.bin").write_bytes(b"?")
    expected = load([tmp_path / "a1.jsonl", tmp_path / "a2.jsonl"])
    assert len(expected[0]) == 50
    assert load([tmp_path / "a*.jsonl"]) == expected
    assert load([f"file://{tmp_path}/a?.jsonl", tmp_path / "a1.jsonl"]) == expected
    memory = fsspec.filesystem("memory")
    memory.pipe({"/records/a1.jsonl": jsonl(ROWS[:20]), "/records/a2.jsonl": jsonl(ROWS[20:])})
    assert load(["memory://records"]) == load(["memory://records/*.jsonl"]) == expected


def test_made_ids_are_stable_and_differ_between_files(tmp_path):
    for name in ("x/a.jsonl", "y/a.jsonl", "y/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(
            b'{"text": "one"}\n\n{"text": "two"}\n' if "json" in name else b"text\none\ntwo\n"
        )
    good, _ = load([tmp_path], Fields())
    ids = ["x/a.jsonl-1", "x/a.jsonl-3", "y/a.csv-1", "y/a.csv-2", "y/a.jsonl-1", "y/a.jsonl-3"]
    assert [row.record.id for row in good] == [row.record.group for row in good] == ids
    assert not any(chunk.ids_given for chunk in chunks(sources([str(tmp_path)]), Fields()))


def test_text_files(tmp_path):
    data = "\ufeffone\ntwo\r\n\r\nthree\n  \nfour\n\n\n".encode()
    for size in (64, 1 << 20):
        assert [r.text for r in one(tmp_path, data, "a.txt", size=size)[0]] == [data.decode("utf-8-sig")]
        lines, _ = one(tmp_path, data, "a.txt", text_as="line", size=size)
        assert [(r.id, r.text) for r in lines] == [("a-1", "one"), ("a-2", "two"), ("a-4", "three"), ("a-6", "four")]
        parts, _ = one(tmp_path, data, "a.txt", text_as="paragraph", size=size)
        assert [(r.id, r.text) for r in parts] == [("a-1", "one\ntwo"), ("a-4", "three"), ("a-6", "four")]


@given(st.text("a \n\r", max_size=400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_paragraphs_do_not_depend_on_the_chunk_size(tmp_path, text):
    results = [one(tmp_path, text.encode(), "p.txt", text_as="paragraph", size=size) for size in (64, 65, 1 << 20)]
    assert results[0] == results[1] == results[2]


def test_chats_keep_their_roles_and_places(tmp_path):
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "a <mask>"}]},
                {"role": "assistant", "content": "b", "tool_calls": None}]  # fmt: skip
    sharegpt = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    (first,), _ = one(tmp_path, json.dumps({"messages": messages}).encode())
    (second,), _ = one(tmp_path, json.dumps({"conversations": sharegpt}).encode())
    assert first.text == "system: \nuser: a ‹mask›\nassistant: b"
    assert first.turns == (Turn("system", 8, 8), Turn("user", 15, 23), Turn("assistant", 35, 36))
    assert second.text == "user: a\nassistant: b"
    pq.write_table(pa.Table.from_pylist([{"messages": sharegpt}]), tmp_path / "c.parquet")
    assert load([tmp_path / "c.parquet"], Fields())[0][0].record.text == second.text


def message(**what):
    return json.dumps({"text": [what]}).encode()


BAD_ROWS = {
    b'{"text": null}': "text is null", b'{"text": ""}': "text is empty", b'{"text": " \\n"}': "text is empty",
    b'{"text": 5}': "text is a number", b'{"text": true}': "text is true or false", b'{"text": {}}': "text is an object",
    b'{"no": "text"}': "has no text", b'{"text": "\\ud800"}': "half of a surrogate pair", b"[1]": "not a JSON object",
    b'"hunter2"': "not a JSON object", b"{hunter2": "not JSON from column 2 on", b'{"text": "a"} {}': "column 14",
    b'{"text": NaN}': "NaN", b'{"text": ' + b"9" * 5000 + b"}": "too long",
    b'{"text": ' + b"[" * 200_000 + b"]" * 200_000 + b"}": "nested too deeply", b'{"text": "\xff"}': "not UTF-8 at byte 41",
    b'{"text": []}': "holds no words", b'{"text": ["hunter2"]}': "message 1 of text is text, not an object",
    message(role="hunter2", content="a"): "has a role other than", message(role="user"): "content of message 1 of text is null",
    message(role="assistant", content=None, tool_calls=[{"x": 1}]): "calls a tool",
    message(role="user", content=[{"type": "image"}]): "part that is not text",
    message(role="user", content=" "): "holds no words", message(role="user", content=7): "is a number",
}  # fmt: skip


@pytest.mark.parametrize("line", BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_a_bad_row_is_named_and_the_others_are_read(line, tmp_path):
    head = b'{"text": "first hunter2 row"}\n'
    good, bad = one(tmp_path, head + b"\n" + line + b"\n" + head)
    assert [record.id for record in good] == ["a-1", "a-4"]
    assert len(bad) == 1
    assert bad[0].startswith("a.jsonl, row 3: ")
    assert BAD_ROWS[line].replace("41", str(len(head) + 11)) in bad[0]
    assert SECRET not in bad[0]


@pytest.mark.parametrize(("value", "reason"), [("null", "id is null"), ('""', "id is empty"), ("[1]", "id is a list"),
                                               ("1.5", "id is a number"), ("true", "id is true or false")])  # fmt: skip
def test_bad_ids(value, reason, tmp_path):
    data = b'{"text": "a", "id": 7}\n' + b'{"text": "a", "id": %s}\n' % value.encode()
    good, bad = one(tmp_path, data)
    assert [record.id for record in good] == ["7"]
    assert bad == [f"a.jsonl, row 2: {reason}"]


@pytest.mark.parametrize("size", [64, 1000])
@pytest.mark.parametrize(("name", "text_as"), [("a.jsonl", "file"), ("a.txt", "line"), ("a.txt", "paragraph")])
def test_a_line_that_is_too_long_is_passed_over(name, text_as, size, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_LINE", 500)
    make = (lambda text: json.dumps({"text": text})) if name == "a.jsonl" else str
    end = "\n\n" if text_as == "paragraph" else "\n"
    short, long = make("short"), make("x" * 700)
    good, bad = one(
        tmp_path, end.join([short, long, short, long, long, short, long]).encode(), name, text_as=text_as, size=size
    )
    step = len(end)
    assert [record.id for record in good] == [f"a-{1 + step * i}" for i in (0, 2, 5)]
    assert [line.split(":")[0] for line in bad] == [f"{name}, row {1 + step * i}" for i in (1, 3, 4, 6)]
    assert all("more than the" in line for line in bad)


def test_fifty_megabytes_in_one_line(tmp_path):
    good, bad = one(tmp_path, b'{"text": "a"}\n{"text": "%s"}\n{"text": "b"}\n' % (b"x" * int(50.1 * (1 << 20))))
    assert [record.text for record in good] == ["a", "b"]
    assert bad == ["a.jsonl, row 2: 50.1 MB, more than the 32 MB a line may have"]


def test_bad_rows_of_tables(tmp_path):
    data = b'text,id\na,1\n"b\xff",2\nc\nd,4,5\n,6\nhunter2,7\n'
    good, bad = one(tmp_path, data, "a.csv")
    assert [record.id for record in good] == ["1", "7"]
    assert bad == ["a.csv, row 2: not UTF-8 at byte 14", "a.csv, row 3: has 1 columns, the header has 2",
                   "a.csv, row 4: has 3 columns, the header has 2", "a.csv, row 5: text is empty"]  # fmt: skip


BAD_FILES = {
    "a.csv": [(b'text\n"hunter2', "row 1: quotes or line ends"), (b'text\n"a"hunter2\n', "quotes or line ends"),
              (b"hunter2 is my password,x\n", "some of whose names look like text"), (b"text,text\na,b\n", "two columns")],
    "a.jsonl": [(b'{"a": "hunter2", "b": 1}', "has the columns a, b; say which one holds the text with --text-field"),
                (b'{"text": "a", "body": "b"}', r"\(text, body\)"), (b'[{"text": "a"}]', "JSON list"),
                ("hunter2".encode("utf-16"), "UTF-16")],
    "a.jsonl.gz": [(gzip.compress(jsonl())[:-9], "truncated or damaged"), (b"hunter2", "truncated or damaged"),
                   (gzip.compress(jsonl())[:60] + b"xxxx" + gzip.compress(jsonl())[64:], "truncated or damaged")],
    "a.jsonl.zst": [(zst(jsonl())[:-3], "truncated or damaged"), (b"hunter2", "truncated or damaged")],
    "a.parquet": [(b"hunter2", "truncated or damaged"), (b"PAR1hunter2PAR1", "truncated or damaged")],
    "a.arrow": [(b"hunter2 hunter2", "truncated or damaged"), (b"ARROW1hunter2", "truncated or damaged")],
    "a.exe": [(b"hunter2", "unknown format")], "a.parquet.gz": [(b"", "unknown format")],
}  # fmt: skip


@pytest.mark.parametrize(("name", "data", "words"), [(n, *case) for n, cases in BAD_FILES.items() for case in cases])
def test_a_file_that_cannot_be_read_is_named(name, data, words, tmp_path):
    with pytest.raises(BadInput, match=words) as caught:
        one(tmp_path, data, name)
    assert name in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "a.jsonl.gz"])
def test_an_empty_file_is_a_bad_row(name, tmp_path):
    assert one(tmp_path, gzip.compress(b"") if name.endswith("gz") else b"", name) == (
        [],
        [f"{name}, row 1: the file holds no rows"],
    )


def test_missing_columns_and_files(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl())
    with pytest.raises(BadInput, match=r"a.jsonl has no column 'x' for --text-field; it has the columns id, text, who"):
        load([tmp_path], Fields(text="x"))
    with pytest.raises(BadInput, match="for --group-field"):
        load([tmp_path], Fields(group="x"))
    for item in (tmp_path / "none.jsonl", tmp_path / "*.csv", "memory://nothing/here"):
        with pytest.raises(BadInput, match="names no file"):
            load([item])
    with pytest.raises(BadInput, match="names no file"):
        load([])
    with pytest.raises(BadInput, match="nosuch://host/x cannot be read") as caught:
        load(["nosuch://user:hunter2@host/x"])
    assert SECRET not in str(caught.value)


def test_a_protocol_without_its_package_says_what_to_install(monkeypatch):
    def missing(item):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(BadInput, match=r"not installed .*s3fs"):
        sources(["s3://bucket/a.jsonl"])


def test_a_data_set_with_splits_asks_for_one(tmp_path):
    saved(tmp_path / "train")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(BadInput, match=f"name the one to read: {tmp_path}/train or {tmp_path}/test"):
        load([tmp_path])
    assert len(load([tmp_path / "train"])[0]) == 50
    state = tmp_path / "train" / "state.json"
    state.write_text('{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}')
    with pytest.raises(BadInput, match="flatten_indices"):
        load([tmp_path / "train"])


@given(st.binary(max_size=200), st.sampled_from(["jsonl", "line", "paragraph", "file"]))
def test_random_bytes_become_records_or_bad_rows(data, kind):
    good, bad = parse(Chunk(0, 0, "f", "f", 1, kind, Columns("text", None, None), data))
    assert all(row.record.text.strip() for row in good)
    assert all("\n" not in str(each) for each in bad)


@given(
    st.sampled_from(["a.jsonl", "a.csv", "a.tsv", "a.txt", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow"]),
    st.data(),
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_files_never_end_in_a_traceback(tmp_path, name, data):
    bits = st.sampled_from(
        [b'{"text": "', b'"}', b"\n", b",", b'"', b"text", b"\t", b"\xff", b"\x00", b"PAR1", b"ARROW1"]
    )
    content = data.draw(st.lists(bits | st.binary(max_size=9), max_size=30).map(b"".join))
    with contextlib.suppress(BadInput):
        one(tmp_path, content, name, size=64)


def test_escaping_happens_once_and_for_all():
    assert escape(f"<MASK> <Mask> {MARK}") == "‹MASK› ‹Mask› \ufffd"
