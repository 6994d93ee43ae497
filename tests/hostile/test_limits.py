"""What hostile files and names are made for: to hang, to swell, to reach outside, to run, and to paint. None of it works."""

import gc
import gzip
import io
import json
import math
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from confide import config, readers, records
from confide.accounting import read_ledger, verify
from confide.cli import main
from confide.commands.shell import reply
from confide.errors import BadInput, ConfideError, printable
from confide.plain_yaml import read_yaml, run_config
from confide.policies import compose, load
from confide.policies.base import Finding
from confide.screening import Options, screen
from confide.sources import sources
from confide.training import byhand
from confide.training.evidence import read_review
from confide.training.options import Options as TrainingOptions
from confide.training.provenance import refuse_own_weights

PAINT = "\x1b[2J\x1b]8;;http://x\x07\x9b31m\r\u202e[red][/][link=x]\0"


# --- to hang


UNITS = (
    "password=", "token: ", "secret-", "a:", ":a", "a=", "1 ", "12 A. ", "A-1 ", "A.", "a@", "a.a@", "://a:", "?key=a", "eyJ-", "-eyJ", "sk-a-", "xoxa-1-",
    "github_pat_", "-----BEGIN PRIVATE KEY-----A", "P O Box 1 A ", "order number is ", "is ", "01 ", "(12) 12 ", "+1 1", "AB12 CDEF ", "4111 ", "May 1 ",
    "AIza", "1-", "1.", "a1", "1a", "A", "_", "-", "\n", ", ", "PSC 1 Box 1 ", "USS A ", "my ID ", "12 Main ", "'", "#", "Ada ",
)  # fmt: skip


def seconds(policy, text):
    gc.disable()  # many findings set it off, and it walks over all that other tests have left
    try:
        began = time.process_time()
        policy.find(text)
        return time.process_time() - began
    finally:
        gc.enable()


def growth(policy, unit, size):
    """How much longer four times the text takes, in the best of some tries, since other work only adds time; 0 for nothing to be afraid of."""
    texts = [f"1 {(unit * (n // len(unit) + 1))[:n]} 1 a@b" for n in (size, 4 * size)]
    short, long = math.inf, math.inf
    for _ in range(8):
        short, long = (min(best, seconds(policy, text)) for best, text in zip((short, long), texts, strict=True))
        if long < 0.02 or long / short < 8:  # what is over so soon is no square
            return 0
    return long / short


@pytest.mark.parametrize(
    "spec", ["patterns", "customersim", "digits", "allowlist", "exclude(patterns, digits)", "miss(digits, 0.5)"]
)
def test_the_time_of_built_in_policies_grows_with_the_text_and_not_with_its_square(spec):
    policy = load(spec)
    slow = {unit: ratio for unit in UNITS if (ratio := growth(policy, unit, 12_000))}
    assert not slow


def test_a_square_would_be_seen():
    class Square:
        def find(self, text):
            return [text.count("\0", at) for at in range(0, len(text), 4)]

    assert growth(Square(), "a", 12_000) > 8


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*b", "a*b|a", "(x+x+)+y", "(.*)(.*)(.*)[0-9]"])
def test_a_users_pattern_cannot_hang_it(pattern, monkeypatch):
    monkeypatch.setattr(compose, "PATIENCE", 0.3)
    policy = compose.Expression(pattern, "MINE")
    began, said = time.process_time(), ""
    try:
        policy.find("a" * 30_000 + "x" * 30_000)
    except BadInput as error:
        said = str(error)
    assert not said or "the pattern of type MINE takes more than" in said
    assert "aaa" not in said
    assert time.process_time() - began < 5


def test_a_pattern_that_looks_at_all_the_rest_for_every_match_is_refused(monkeypatch):
    monkeypatch.setattr(compose, "PATIENCE", 0.2)
    with pytest.raises(
        BadInput, match=r"pattern of type A takes more than 0.2 seconds on one record of 200,000 characters"
    ):
        compose.Expression("a*b|a", "A").find("a" * 200_000)


@pytest.mark.parametrize("pattern", ["x{1000}{1000}{1000}", "(" * 2000, "[", "(?=a)", r"(a)\1", "\ud800"])
def test_a_pattern_that_is_none_or_too_large_is_refused(pattern):
    with pytest.raises(BadInput, match="pattern of type P"):
        compose.Expression(pattern, "P")


def test_findings_inside_spans_are_those_a_loop_finds():
    spans = [(2, 5), (7, 9), (20, 40)]
    for start in range(45):
        for end in range(start, 45):
            slow = any(low <= start and end <= high for low, high in spans)
            assert compose._inside(Finding(start, end, "A", "p"), spans) == slow


# --- to swell


def peak(act):
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def read(path):
    rows, bad = 0, []
    for chunk in readers.chunks(sources([str(path)]), records.Fields()):
        good, wrong = records.parse(chunk)
        rows, bad = rows + len(good), bad + wrong
    return rows, bad


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("filling", [b"a", b'[{"a":'])
def test_a_compression_bomb_takes_no_more_memory_than_a_line_may_have(tmp_path, monkeypatch, kind, filling):
    monkeypatch.setattr(records, "MAX_LINE", 1 << 20)
    block = filling * ((64 << 20) // len(filling))
    path = tmp_path / f"bomb.jsonl.{kind}"
    path.write_bytes(gzip.compress(block, 1) if kind == "gz" else pa.compress(block, "zstd", asbytes=True))
    assert path.stat().st_size < 1 << 20
    del block
    found = {}
    assert peak(lambda: found.update(read=read(path))) < 16 << 20
    rows, bad = found["read"]
    assert (rows, len(bad)) == (0, 1)
    assert "more than the 1 MB a line may have" in bad[0].reason


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_a_column_that_unpacks_to_hundreds_of_times_its_size_is_refused_before_that(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(records, "MAX_LINE", 1 << 20)
    table = pa.table({"text": ["a" * (32 << 20)]})
    path = tmp_path / f"bomb.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        pq.write_table(table, path, compression="zstd", use_dictionary=False)
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with new(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    assert path.stat().st_size < 1 << 18
    monkeypatch.setattr(readers, "_batches", lambda *arguments: pytest.fail("it was unpacked"))
    with pytest.raises(BadInput, match="unpacks to more than 200 times its size"):
        read(path)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("kind", ["stream", "file"])
def test_packed_arrow_is_read_like_any_other(tmp_path, compression, kind):
    table = pa.table({"text": pa.array(["one", "two"] * 50).dictionary_encode()})
    path = tmp_path / "some.arrow"
    new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with new(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    assert read(path) == (100, [])


@pytest.mark.parametrize(
    "line", [b"[" * 500_000, b'{"text":' * 100_000, b'{"text": ' + b"9" * 100_000 + b"}", b'{"text": "a", "text": 1}']
)
def test_deep_nesting_and_endless_numbers_are_bad_rows(tmp_path, line):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b"\n")
    rows, bad = read(path)
    assert rows + len(bad) == 2
    assert rows >= 1


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(ord('a') + i)}: &{chr(ord('a') + i)} [{', '.join('*' + chr(ord('a') + i - 1) for _ in range(9))}]\n"
    for i in range(1, 9)
)


@pytest.mark.parametrize("reads", [config.read_config, lambda path: load(str(path))], ids=["configuration", "policy"])
@pytest.mark.parametrize(
    "text", [BOMB, "a: !!python/object/apply:os.system [touch ran]", "!!python/name:os.system", "d: 2020-99-99", "[" * 5000, "? {a: 1}\n: 2", "x: \0", "=: <<", "miss: 1" + ":1" * 300 + ".5\n? [", "a: !!int 1" + ":1" * 500_000 + "\n? ["]
)  # fmt: skip
def test_yaml_makes_no_objects_and_does_not_unfold(tmp_path, monkeypatch, reads, text):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(BadInput):
        reads(path)
    assert not (tmp_path / "ran").exists()
    path.write_text("a: " + "x" * (2 << 20))
    with pytest.raises(BadInput, match="more than 1 MB"):
        reads(path)


@pytest.mark.parametrize(
    "wrong",
    [{"max_words": "9"}, {"max_copies": True}, {"bloom_delta": "x"}, {"policy": 5}, {"canaries": 1}, {"unit": None}],
)
def test_an_option_of_another_kind_is_refused(wrong):
    with pytest.raises(BadInput, match="must be"):
        Options(**{"policy": "digits", **wrong}).checked()


# --- to reach outside, and to run


@pytest.mark.parametrize(
    "use", ["known:../outside.txt", "known:{outside}", "known:link.txt", "customersim:../outside.txt", "allowlist:{outside}", "pii:{outside}"]
)  # fmt: skip
def test_a_policy_file_reads_nothing_outside_of_its_folder(tmp_path, use):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "outside.txt").write_text("Ada Byron\n")
    (home / "link.txt").symlink_to(tmp_path / "outside.txt")
    (home / "policy.yaml").write_text(yaml.safe_dump({"union": [use.format(outside=tmp_path / "outside.txt")]}))
    with pytest.raises(BadInput, match="outside of the policy file's folder"):
        load(str(home / "policy.yaml"))
    (home / "inside.txt").write_text("Ada Byron\n")
    (home / "policy.yaml").write_text("union: [known:inside.txt]")
    assert load(str(home / "policy.yaml")).find("Ada Byron")


@pytest.mark.parametrize("use", ["python:evil:find", "union(digits, python:evil:find)", "policy.yaml", "other.yaml"])
def test_a_policy_file_runs_no_code_and_names_no_other(tmp_path, monkeypatch, use):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef find(text): return []")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump({"union": [use]}))
    with pytest.raises(BadInput, match="compose them on the command line"):
        load(str(tmp_path / "policy.yaml"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../outside.arrow", "{outside}", "a/../../outside.arrow"])
def test_a_saved_data_set_names_no_file_outside_of_its_folder(tmp_path, name):
    folder = tmp_path / "saved"
    folder.mkdir()
    (tmp_path / "outside.arrow").write_bytes(b"")
    (folder / "dataset_info.json").write_text("{}")
    state = {"_data_files": [{"filename": name.format(outside=tmp_path / "outside.arrow")}]}
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(BadInput, match="outside of the data set's folder"):
        sources([str(folder)])


# --- to paint


def command(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "confide", *map(str, words)], capture_output=True, timeout=120, env={**os.environ, "PYTHONUTF8": "1", "COLUMNS": "500"}, **more
    )  # fmt: skip


def test_a_corpus_and_its_names_cannot_paint_the_terminal(tmp_path):
    """Ids, texts, labels, a file's name and a policy's: through the real command, with every record shown."""
    corpus = tmp_path / "corpus\u202e[red].jsonl"
    rows = [{"id": f"{i}{PAINT}", "text": f"{PAINT} call 555-010-{1000 + i} {PAINT}", "label": PAINT} for i in range(3)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "p.yaml").write_text("union: [digits, {pattern: 'call', type: CALL}]")
    done = command(
        "screen", corpus, "--policy", tmp_path / "p.yaml", "--show", "3", "--label-field", "label", "--workers", "1", "-o", tmp_path / "out\u202e[bold]"
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    assert printable(said) == said
    assert "[red]" in said
    assert "555" in said


@pytest.mark.parametrize(
    "words",
    [("verify", "no\x1b[2J\u202esuch"), ("screen", "no\x1b[2Jsuch.jsonl", "--policy", "\x1b[31mx"), ("\x1b[2J",)],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_a_message_quotes_cannot_paint_either(capsys, words, form):
    with pytest.raises(SystemExit) as end:
        main([*words, *form])
    out, err = capsys.readouterr()
    assert end.value.code == 2
    assert printable(out + err) == out + err
    if form and out:
        assert json.loads(out)["exit_code"] == 2


def test_an_answer_in_json_says_the_same_with_escapes(capsys):
    reply({"a": PAINT, "b": "é日本"})
    out = capsys.readouterr().out
    assert printable(out) == out
    assert json.loads(out) == {"a": PAINT, "b": "é日本"}
    assert "é日本" in out


def test_a_page_shows_hostile_text_and_nothing_else():
    from confide.reporting.page import _environment

    made = (
        _environment().from_string("<p title='{{ x }}'>{{ x }}</p>").render(x=f"</p><script>alert(1)</script>'{PAINT}")
    )
    assert "<script" not in made
    assert printable(made) == made


def test_printable_keeps_text_of_all_scripts():
    text = "Zoë 日本語 עברית 🏳️‍🌈 a\u00a0b\tc\nd"
    assert printable(text) == text
    assert printable("a\x1b[31mb\r\u202e\x00\x9b\ud800") == "a\ufffd[31mb\ufffd\ufffd\ufffd\ufffd\ufffd"
    assert io.StringIO(printable("\x1b")).read() == "\ufffd"


# --- plain data


@pytest.mark.parametrize(
    "text",
    [
        "a: !!timestamp foo",
        "a: !!int ''",
        "a: 2001-01-01",
        "a: !!set {b}",
        "a: !!binary aGk=",
        "a: &x [*x]",
        "[" * 3000,
        "n: " + "9" * 5000,
    ],
)
def test_a_configuration_is_plain_data_or_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(f"{text}\noptions: {{}}\n" if not text.startswith("[") else text)
    with pytest.raises(BadInput):
        run_config(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["purge", str(tmp_path), "--dry-run"])
    assert ended.value.code == 2


def test_numbers_to_the_base_of_sixty_are_text(tmp_path):
    (tmp_path / "config.yaml").write_text("options: {a: 12:30, b: 1:30.5, c: !!int 1:1, d: 7, e: 1.5}")
    assert run_config(tmp_path)["options"] == {"a": "12:30", "b": "1:30.5", "c": "1:1", "d": 7, "e": 1.5}


def test_what_lies_above_a_model_is_no_concern(tmp_path):
    """A configuration of something else in a folder above is left alone."""
    (tmp_path / "config.yaml").write_text("when: 2024-13-45\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "c.jsonl").write_text('{"text": "no 5"}\n')
    screened = screen(str(tmp_path / "c.jsonl"), "digits", tmp_path / "out")
    refuse_own_weights(screened, TrainingOptions(str(tmp_path / "model"), epsilon=1.0, delta=1e-5))


def test_a_pipe_is_not_waited_for(tmp_path):
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "f.jsonl")
    with pytest.raises(BadInput, match=r"f\.jsonl is neither a file nor a folder"):
        sources([str(tmp_path / "d")])
    with pytest.raises(BadInput, match="is a file, and this is none"):
        load(f"known:{tmp_path / 'd' / 'f.jsonl'}")
    with pytest.raises(BadInput, match="neither a file nor a folder: what a pipe or a device holds"):
        sources([str(tmp_path / "d" / "f.jsonl")])
    with pytest.raises(BadInput, match="a corpus has no name"):
        sources([""])


@pytest.mark.parametrize("endless", ["pipe", "device"])
@pytest.mark.parametrize(
    "read",
    [
        lambda path: load(f"allowlist:{path}"), lambda path: read_yaml(path, "the configuration"), verify, read_ledger, byhand.read,
        lambda path: read_review(path, None),
    ],
    ids=["allowlist", "yaml", "certificate", "ledger", "by hand", "review"],
)  # fmt: skip
def test_what_has_no_end_is_not_read(tmp_path, read, endless):
    path = Path("/dev/zero")
    if endless == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    with pytest.raises(ConfideError, match="it is not a file"):
        read(path)
