"""Hostile input: coins in, a case for each reader and parser out; a case gives a result or a refusal in words, nothing else.

Each target is a plain function of its coins and a scratch folder. `test_fuzz.py` drives them by hypothesis; a long run is

    python tests/hostile/fuzz.py --cases 100000 --seed 1 --log fuzz.jsonl

which prints a line for each target, and one for each failure with the seed that makes it again (`--only TARGET --case N`).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import copy
import faulthandler
import functools
import gzip
import hashlib
import importlib.util
import io
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rich.console import Console

from confide import accounting, cli, config, readers, records, terminal
from confide.accounting.ledger import GENESIS, _link, canonical
from confide.accounting.missrate import states_its_counts
from confide.accounting.verification import Verified
from confide.errors import BadInput, ConfideError, Contradiction, printable
from confide.policies import load
from confide.records import MARK, MASK
from confide.screening.canaries import parse_canaries
from confide.screening.treatment import treat
from confide.sources import sources
from confide.splitting import UNITS, split

SECONDS = 10  # a case may take; most take a thousandth of one
MEMORY = 3 << 30  # bytes of address space beyond what a worker has at its start
SECRET = "Xq7SecretXq7"  # stands in the texts of a corpus; no message may hold it
NASTY = (
    "<MASK>", "<mask>", "<<MASK>>", "<MA<MASK>SK>", MARK, "\0", "\u202e", "\u200f", "אבג", "🏳️‍🌈", "é", "\u2028", "\x85", "\ufeff", "\x9b31m",
    "555-010-1234", "a@b.co", "4111 1111 1111 1111", "192.168.0.1", "::1", "-----BEGIN PRIVATE KEY", "http://u:p@h/", "Hello.",
    "my order number is ABCDEFGH", "12 Main St", "\n", "\r\n", "\r", " ", "\t", "USR: ", "'", '"', "(" * 50, "." * 50, "a" * 3000, "1" * 300,
    "\\ud800", "\x1b[31m", "\x1b]8;;http://x\x07", "<script>", "</script>", "{{", "%s", "日本語", "Ⅷ", "ß", "İ", "[red]", "[/]", "[link=x]y", "\\",
    "password=", "a:", "../", "/etc/passwd", "javascript:alert(1)",
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 1, 2, 10**30, -(10**400), 0.5, -0.0, 1e308, math.inf, -math.inf, math.nan, "", "\0", "1", "nan", [], {}, [[]],
    {"": ""}, "x" * 5000, *NASTY,
)  # fmt: skip
BYTES = (b"\xff", b"\xed\xa0\x80", b"\0", b"\n", b'"', b"{", b"[" * 2000, b"9" * 5000, b"\xef\xbb\xbf", b",")


def words(coins, most=8):
    return "".join(coins.choices(NASTY, k=coins.randrange(most)))


def as_bytes(text):
    return text.encode("utf-8", "surrogatepass")


def bent(coins, data):
    """Bytes with a few of them flipped, cut, doubled, or other ones put in; sometimes as they are."""
    data = bytearray(data)
    for _ in range(coins.choice((0, 1, 1, 2, 5, 20))):
        at = coins.randrange(len(data) + 1)
        kind = coins.randrange(7)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << coins.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = as_bytes(coins.choice(NASTY))
        elif kind == 3:
            data[at:at] = coins.choice(BYTES)
        elif kind == 4:
            data[at:at] = data[at : at + coins.randrange(200)]
        elif kind == 5 and len(data) >= 4:
            at %= len(data) - 3
            data[at : at + 4] = struct.pack("<i", coins.choice((0, -1, 2**31 - 1, -(2**31), 255)))
        else:
            del data[at : at + coins.randrange(50)]
    return bytes(data)


def twisted(coins, tree):
    """A tree of plain data with a few of its leaves changed, taken out, doubled or nested."""
    tree = copy.deepcopy(tree)
    for _ in range(coins.choice((1, 1, 2, 4))):
        node, way = tree, []
        while isinstance(node, (dict, list)) and node and (not way or coins.random() < 0.8):
            key = coins.choice(list(node) if isinstance(node, dict) else range(len(node)))
            way.append((node, key))
            node = node[key]
        if not way:
            return coins.choice(VALUES)
        home, key = way[-1]
        kind = coins.randrange(6)
        if kind == 0 and isinstance(home, dict):
            home[coins.choice(("x", "", "hash", "__class__", words(coins, 3)))] = home.pop(key)
        elif kind == 1:
            del home[key]
        elif kind == 2 and isinstance(home, list):
            home.insert(key, copy.deepcopy(node))
        elif kind == 3 and isinstance(node, (int, float)) and not isinstance(node, bool) and abs(node) < 1e18:
            home[key] = coins.choice((-node, node + 1, node * 2, node * (1 + 1e-5), float(node), str(node)))
        elif kind == 4 and isinstance(node, str):
            home[key] = node + coins.choice(NASTY)
        elif coins.random() < 0.9:
            home[key] = coins.choice(VALUES)
        else:
            home[key] = functools.reduce(lambda inner, _: [inner], range(300), 1)
    return tree


def refused(act, kinds=(BadInput, Contradiction)):
    """The result of an act; None if it is refused, in words that hold no text of a corpus."""
    try:
        return act()
    except kinds as error:
        said = str(error)
    assert SECRET not in said, "a message holds text of the corpus"
    assert said.strip(), "a refusal without words"
    return None


# -- corpora -----------------------------------------------------------------------------------------------------------


def corpus(coins, name):
    rows = [
        {"id": f"r{i}", "text": words(coins) + SECRET, "label": coins.choice("ab")} for i in range(coins.randrange(6))
    ]
    if name == "jsonl":
        chats = [{"messages": [{"role": "user", "content": row["text"]}]} for row in rows]
        lines = [coins.choice(pair) for pair in zip(rows, chats, strict=True)]
        return b"\n".join(as_bytes(json.dumps(one, ensure_ascii=coins.random() < 0.5)) for one in lines)
    if name in ("csv", "tsv"):
        table = [["id", "text", "label"], *(list(row.values()) for row in rows)]
        quoted = [['"' + value.replace('"', '""') + '"' for value in row] for row in table]
        return as_bytes("\n".join(("," if name == "csv" else "\t").join(row) for row in quoted))
    if name in ("parquet", "arrow"):
        schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("label", pa.string())])
        table = pa.Table.from_pylist(rows, schema)
        sink = pa.BufferOutputStream()
        if name == "parquet":
            pq.write_table(table, sink, compression=coins.choice(("none", "snappy", "zstd")))
        else:
            with coins.choice((pa.ipc.new_stream, pa.ipc.new_file))(sink, schema) as writer:
                writer.write_table(table)
        return sink.getvalue().to_pybytes()
    return as_bytes("\n\n".join(row["text"] for row in rows))


def read_corpus(coins, home):
    """A corpus file of any format, bent before or after it is compressed."""
    name = coins.choice(("jsonl", "jsonl", "csv", "tsv", "parquet", "arrow", "txt", "md", "json"))
    data = corpus(coins, {"md": "txt", "json": "jsonl"}.get(name, name))
    data = bent(coins, data) if coins.random() < 0.7 else data
    suffix = "" if name in ("parquet", "arrow") else coins.choice(("", "", ".gz", ".zst"))
    if suffix:
        data = gzip.compress(data, 1) if suffix == ".gz" else pa.compress(data, "zstd", asbytes=True)
        data = bent(coins, data) if coins.random() < 0.4 else data
    path = home / f"c.{name}{suffix}"
    path.write_bytes(data)
    fields = records.Fields(*(coins.choice((None, None, None, field)) for field in ("text", "id", "label", "label")))
    text_as, size = coins.choice(readers.TEXT_AS), coins.choice((64, 100, 1000, 1 << 20))

    def act():
        for chunk in readers.chunks(sources([str(path)]), fields, text_as, size):
            good, bad = records.parse(chunk)
            assert not any(SECRET in str(one) for one in bad)
            for row in good:
                assert MARK not in row.record.text
                assert MASK not in row.record.text
                row.record.text.encode()

    refused(act)


def saved_dataset(coins, home):
    """A folder as Hugging Face datasets write it: only files below it are read, whatever state.json says."""
    folder = home / "saved"
    folder.mkdir(exist_ok=True)
    (home / "outside.arrow").write_bytes(b"")
    (folder / "data.arrow").write_bytes(corpus(coins, "arrow"))
    (folder / "dataset_info.json").write_text("{}")
    names = (
        "data.arrow",
        "../outside.arrow",
        str(home / "outside.arrow"),
        "x/../../outside.arrow",
        words(coins, 3) + ".arrow",
    )
    tree = {"_data_files": [{"filename": coins.choice(names)}], "_indices_data_files": None, "_split": "train"}
    data = as_bytes(json.dumps(twisted(coins, tree) if coins.random() < 0.7 else tree))
    (folder / "state.json").write_bytes(bent(coins, data) if coins.random() < 0.4 else data)
    found = refused(lambda: sources([str(folder)]))
    assert all(Path(one.path).resolve().is_relative_to(folder.resolve()) for one in found or ())


policy_of = functools.cache(load)
SCREENS = (
    "patterns",
    "digits",
    "union(patterns, allowlist)",
    "customersim",
    "exclude(patterns, digits)",
    "miss(patterns, 0.5)",
)


def treatment(coins, home):
    """A hostile row through intake, splitting and treatment: never a crash, never a public record with a hit."""
    line = as_bytes(json.dumps({"text": words(coins, 12)}, ensure_ascii=coins.random() < 0.5))
    line = (bytes(coins.choices(range(256), k=60)) if coins.random() < 0.2 else line).replace(b"\n", b" ")
    chunk = records.Chunk(0, 0, "c.jsonl", "c", 1, "jsonl", records.Columns("text", None, None), line)
    policy, conservative = policy_of(coins.choice(SCREENS)), policy_of("allowlist")
    for row in records.parse(chunk)[0]:
        for record in split(row.record, coins.choice(UNITS), coins.choice([None, 3])):
            done = treat(record, policy, conservative)
            assert done.private or not (MASK in done.text or conservative.find(record.text))
            assert MARK not in done.text


# -- policies and configurations ---------------------------------------------------------------------------------------

PARTS = (
    "patterns", "digits", "allowlist", "everything", "nothing", "customersim", "known:", "known:list.txt", "patterns:EMAIL,PHONE", "union(",
    "exclude(", "miss(", ")", ",", ", 0.5", ", 1e999", ", -1", ", nan", "'", '"', "python:math:sqrt", "python::", "python:no.such:f", ":", "a.yaml",
    "(" * 60, "policy.yaml", "known:/dev/null", "known:" + "x" * 5000, "known:\0", "allowlist:\0", "python:\0:x", "python:.:x",
)  # fmt: skip
PATTERNS = (r"EMP-\d{6}", "(a+)+b", "a*b|a", "(" * 200, "x{1000}{1000}", r"\p{Greek}", "[", "(?P<n>a)", "")
USED = (
    "known:list.txt", "known:../up.txt", "known:/etc/passwd", "known:link.txt", "python:os:system", "other.yaml", "union(digits, python:os:system)",
    "pii:../x", "known:" + "x" * 5000,
)  # fmt: skip
TAILS = (
    "",
    "",
    "\n&a [1]",
    "\nx: *a",
    "\n--- 1",
    "\n!!python/object/apply:os.system [ls]",
    "\n? [1]\n: 2",
    "\nd: 2020-99-99",
    "\n0x: 0b2",
)


def policy_spec(coins, home):
    spec = coins.choice(PARTS)
    for _ in range(coins.randrange(6)):
        form = coins.choice(("union({}, {})", "exclude({}, {})", "miss({}, 0.5)", "{}{}", "{}"))
        spec = form.replace("{}", spec, 1).replace("{}", coins.choice(PARTS))
    spec = bent(coins, as_bytes(spec)).decode("utf-8", "replace") if coins.random() < 0.3 else spec
    policy = refused(lambda: load(spec))
    if policy is not None:
        refused(lambda: policy.find(words(coins)))


def written(coins, path, tree):
    """A YAML file of a tree, twisted and bent."""
    data = as_bytes(json.dumps(twisted(coins, tree) if coins.random() < 0.9 else tree) + coins.choice(TAILS))
    path.write_bytes(bent(coins, data) if coins.random() < 0.4 else data)


def policy_file(coins, home):
    """A policy file reads nothing outside of its folder, and runs nothing."""
    tree = {
        "union": [
            "digits", {"use": "patterns", "only": ["EMAIL", "PHONE"]}, {"use": "patterns", "without": ["DATE"]},
            {"pattern": coins.choice(PATTERNS), "type": "E"}, coins.choice(USED),
        ],
        "exclude": "digits", "miss": 0.1,
    }  # fmt: skip
    (home / "list.txt").write_bytes(bent(coins, b"Ada Byron\nJack Johnson\n"))
    if not (home / "link.txt").is_symlink():
        (home / "link.txt").symlink_to("/etc/hostname")
    written(coins, home / "policy.yaml", tree)
    policy = refused(lambda: load(str(home / "policy.yaml")))
    if policy is not None:
        assert all(Path(one).resolve().is_relative_to(home.resolve()) for one in policy.files)
        refused(lambda: policy.find(words(coins)))


def config_file(coins, home):
    train = {
        "model": "lstm",
        "method": "crt",
        "epsilon": 2.0,
        "delta": "1e-5",
        "epochs": 2,
        "learning_rate": 1e-3,
        "classes": ["a", "b"],
    }
    tree = {
        "out": "out", "corpus": ["c.jsonl"], "train": train | {"review": "r.json"}, "attack": {"only": ["exposure"], "samples": 10, "seed": 1},
        "screen": {"policy": "patterns", "unit": "turn", "text_field": "text", "max-words": 20, "canaries": "audit,number=20", "bloom_delta": "1e-9"},
    }  # fmt: skip
    written(coins, home / "run.yaml", tree)

    def act():
        found = config.read_config(home / "run.yaml")
        config.Options.from_plain(found["train"])
        if "attack" in found:
            config._attack_options(found["attack"])
        config._screening_options(found).checked()

    refused(act)


def canary_spec(coins, home):
    parts = ("crt", "sdp", "jft", "audit", "number=20", "copies=3", "policy=missed", "coins=yes", "secret=123456", "seed=1", "format=My {digits:6} x",
             "format={code:40}", "{letters:99}", "=", ",", "number=" + "9" * 30, "policy=", words(coins, 3))  # fmt: skip
    spec = as_bytes(",".join(coins.choices(parts, k=coins.randrange(1, 5))))
    refused(lambda: parse_canaries((bent(coins, spec) if coins.random() < 0.4 else spec).decode("utf-8", "replace")))


# -- ledgers, certificates, reviews ------------------------------------------------------------------------------------


@functools.cache
def small_run():
    """The files of a small run: a ledger and the certificate that it gives."""
    setting = accounting.Setting(
        method="crt", unit="turn", policy="patterns", conservative="everything", private_records=1000, clipping_norm=1.0,
        mask_consistent=True,
    )  # fmt: skip
    plan = accounting.PoissonGaussian(sampling_rate=1 / 32, noise_multiplier=2.0, count=3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        with accounting.LedgerWriter.create(path, setting.to_plain(), [("train", plan)]) as writer:
            for _ in range(3):
                writer.append(accounting.PoissonGaussian(1 / 32, 2.0))
        made = accounting.issue(
            accounting.read_ledger(path), delta=8e-5, evidence=accounting.Redraws(labels=200, missed=20)
        )
        return path.read_bytes(), json.dumps(made).encode()


def chained(bodies):
    """Lines whose chain is sound, whatever they say."""
    head, lines = GENESIS, []
    for body in bodies:
        body.pop("hash", None)
        head = _link(head, body)
        lines.append(canonical({**body, "hash": head}).encode() + b"\n")
    return b"".join(lines), head


NO_CHAIN = (
    ValueError,
    AttributeError,
    TypeError,
    LookupError,
)  # what a twisted ledger raises of which no chain can be made


def ledger(coins, home):
    data = small_run()[0]
    if coins.random() < 0.6:
        with contextlib.suppress(*NO_CHAIN):
            data = chained(twisted(coins, [json.loads(line) for line in data.splitlines()]))[0]
    (home / "ledger.jsonl").write_bytes(bent(coins, data) if coins.random() < 0.5 else data)
    found = refused(lambda: accounting.read_ledger(home / "ledger.jsonl"))
    if found is not None:
        refused(found.charged)


def same(one, other):
    """Whether two certificates say the same: numbers to one part in a million, which is what `verify` promises."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        numbers = {type(one), type(other)} <= {int, float}
        return numbers and math.isclose(one, other, rel_tol=1.0001e-6, abs_tol=1e-12)
    return type(one) is type(other) and one == other


def certificate(coins, home):
    """A run folder of which something was changed verifies only if its certificate still says the same."""
    chain, stated = small_run()
    true = json.loads(stated)
    if coins.random() < 0.4:  # a ledger made anew: its certificate may hold only if it says what this ledger gives
        with contextlib.suppress(*NO_CHAIN):
            bodies = twisted(coins, [json.loads(line) for line in chain.splitlines()])
            chain, head = chained(bodies)
            true["ledger"] |= {"head": head, "length": len(bodies)}
            stated = json.dumps(true).encode()
    elif coins.random() < 0.7:
        stated = as_bytes(json.dumps(twisted(coins, true)))
    else:
        stated = bent(coins, stated)
    (home / "ledger.jsonl").write_bytes(chain)
    (home / "certificate.json").write_bytes(stated)
    found = refused(lambda: accounting.verify(home))
    assert found is None or same(json.loads(stated), true), "a changed certificate holds"


def review(coins, home):
    from confide.training.evidence import _read

    tree = {
        "confide_review": 1, "begun": 1, "cap": 5, "confidence": 0.95, "nonce": "00" * 16, "digest": "d", "draws": 3, "unfit": None,
        "bound": 0.5, "bound_public": 0.5, "contradicted": False, "records": [[2, 1, 0], [0, 0, 0], "skipped"],
    }  # fmt: skip
    data = as_bytes(json.dumps(twisted(coins, tree) if coins.random() < 0.9 else tree))
    (home / "review.json").write_bytes(bent(coins, data) if coins.random() < 0.4 else data)

    def act():
        evidence, found = _read(home / "review.json")
        states_its_counts(
            found, evidence, {"conservative": coins.choice(("everything", "allowlist")), "recall_class": None}
        )

    refused(act)


# -- what a run and a review leave behind --------------------------------------------------------------------------------


@functools.cache
def whole_run():
    """The files of a run with every part, and of its screening, by their places."""
    spec = importlib.util.spec_from_file_location(
        "confide_runs", Path(__file__).parents[1] / "reporting" / "conftest.py"
    )
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    with tempfile.TemporaryDirectory() as folder:
        made.make_run(Path(folder) / "run")
        return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def run_folder(coins, home):
    """Reports, and attacks in the terminal, of a run of which one file says something else, or is damaged."""
    from confide.attacks import output
    from confide.reporting import gather, page

    shutil.rmtree(home / "side", ignore_errors=True)
    files = dict(whole_run())
    name = coins.choice(["run/attacks.json"] * 3 + sorted(files))
    if coins.random() < 0.8 and name.endswith(".json"):
        files[name] = as_bytes(json.dumps(twisted(coins, json.loads(files[name]))))
    else:
        files[name] = bent(coins, files[name])
    for place, content in files.items():
        path = home / "side" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    config = home / "side" / "run" / "config.yaml"
    if name != "run/config.yaml":
        tree = yaml.safe_load(config.read_text())
        config.write_text(yaml.safe_dump({**tree, "screened": str(home / "side" / "screened")}))

    def show():
        console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
        output.show_attacks(console, output.read_attacks(home / "side" / "run" / "attacks.json"))
        assert "\x1b" not in console.file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").replace(
            "\x1b[2m", ""
        )

    refused(show)
    drawn, page.charts = page.charts, lambda *_: {}
    try:
        refused(lambda: page.report(home / "side" / "run", shareable=coins.random() < 0.3))
    finally:
        page.charts = drawn
    refused(lambda: gather.gather(home / "side" / "run", curves=False))


@functools.cache
def small_model():
    import torch

    from confide.training import checkpoints

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.jsonl"
        ledger.write_bytes(small_run()[0])
        known = accounting.read_ledger(ledger)
        path = checkpoints.save(
            Path(folder) / "c", model, optimizer, {"epoch": 1}, {"length": known.length, "head": known.head}, slots=3
        )
        return model, optimizer, {file.name: file.read_bytes() for file in path.iterdir()}


def checkpoint(coins, home):
    """A checkpoint of which something was changed, its hashes made right or not."""
    from confide.training import checkpoints

    model, optimizer, files = small_model()
    files = dict(files)
    if coins.random() < 0.6:
        body = json.loads(files["state.json"])
        body.pop("hash")
        body = twisted(coins, body)
        with contextlib.suppress(ValueError, TypeError):
            files["state.json"] = as_bytes(canonical({**body, "hash": checkpoints._hash(body)}))
    else:
        name = coins.choice(sorted(files))
        files[name] = bent(coins, files[name])
        if name != "state.json" and coins.random() < 0.7:  # a hostile folder states the digests of its own files
            body = json.loads(files["state.json"])
            body.pop("hash")
            body["files"][name] = hashlib.sha256(files[name]).hexdigest()
            files["state.json"] = canonical({**body, "hash": checkpoints._hash(body)}).encode()
    folder = home / "checkpoints" / "00000003"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (home / "ledger.jsonl").write_bytes(small_run()[0])
    found = refused(lambda: checkpoints.latest(home / "checkpoints"))
    if found is not None:
        refused(lambda: checkpoints.load(found, model, optimizer, ledger_path=home / "ledger.jsonl"))


@functools.cache
def small_review():
    """A screened folder, kept for the process, and the bytes of a review of it with some answers."""
    from confide.review.store import open_store
    from confide.screening import screen

    home = Path(tempfile.mkdtemp(prefix="confide-fuzz-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "in.jsonl").write_text(
        "".join(json.dumps({"text": f"USR: Call 555-010-{n:04d}.\nSYS: Fine."}) + "\n" for n in range(20))
    )
    screen(str(home / "in.jsonl"), "patterns", home / "screened", unit="turn")
    store = open_store(home / "screened", sample=12)
    for place in range(4):
        store.act(place, "answer", 0)
    store.close()
    return home / "screened", (home / "screened" / "review.sqlite").read_bytes()


FACTS = ("cap", "confidence", "begun", "nonce", "types", "digest")


def review_file(coins, home):
    """A review's SQLite file, bent or with other facts, draws and actions in it; opened, read and counted."""
    from confide.review import counting, store

    screened, data = small_review()
    path = screened / "review.sqlite"
    for name in ("review.sqlite", "review.sqlite-wal", "review.sqlite-shm", "review.json"):
        (screened / name).unlink(missing_ok=True)
    path.write_bytes(bent(coins, data) if coins.random() < 0.4 else data)
    with (
        contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError),
        contextlib.closing(sqlite3.connect(path)) as file,
        file,
    ):
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            file.execute(f"DROP TRIGGER {name}")
        for _ in range(coins.randrange(3)):
            value = coins.choice([one for one in VALUES if not isinstance(one, list | dict)])
            table, column = coins.choice(
                [("facts", "value"), ("draws", "record"), ("draws", "coin")]
                + [("actions", name) for name in ("reviewer", "record", "kind", "start", "stop", "type", "undoes")]
            )
            if table == "facts" and coins.random() < 0.7:
                value = json.dumps(value)
            where = " WHERE name = ?" if table == "facts" else ""
            asked = (value, coins.choice(FACTS)) if where else (value,)
            file.execute(f"UPDATE {table} SET {column} = ?{where}", asked)

    def act():
        opened = store.open_store(screened)
        try:
            counting.bound(opened)
        finally:
            opened.close()

    refused(act, (ConfideError,))  # a file that SQLite cannot read is a failure, not bad use


# -- the command line and the terminal ---------------------------------------------------------------------------------

NUMBERS = (
    "0", "1", "-1", "0.5", "1/32", "1/0", "1e-5", "8e-5", "2", "320", "nan", "inf", "-inf", "1e999", "1e-999", "9" * 40, "1_0", "٣", "", "x",
    "20/200", "1/2/3", "0x10", " 1", "7" * 9000,
)  # fmt: skip
OPTIONS = (
    "--delta", "--sampling-rate", "--noise", "--steps", "--records", "--batch-size", "--epochs", "--epsilon", "--bayesian-epsilon", "--group",
    "--misses", "--public-misses", "--confidence", "--labels-for", "--adjacency", "--sampler",
)  # fmt: skip


def command_line(coins, home):
    """Numbers on the command line: an answer, or exit code 2 with one line that cannot steer a terminal."""
    given = {"--delta": "8e-5", "--sampling-rate": "1/32", "--noise": "2", "--steps": "20"}
    for _ in range(coins.choice((1, 1, 2, 3))):
        given[coins.choice(OPTIONS)] = coins.choice((*NUMBERS, words(coins, 2)))
    arguments = ["epsilon", *(word for pair in given.items() for word in pair), *coins.choice(([], ["--json"]))]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(arguments)
        except SystemExit as end:
            code = end.code
    assert len(err.getvalue()) < 3000, "a refusal that fills the screen"
    assert code in (0, 2), f"exit code {code}: {err.getvalue()[-300:]}"
    assert printable(out.getvalue() + err.getvalue()) == out.getvalue() + err.getvalue()


def painting(coins, home):
    """Whatever a manifest or a certificate says: what is printed cannot steer a terminal, and rich's markup does nothing."""
    nasty = words(coins, 6) + "\x1b[2J[red]\r"
    manifest = {
        "records": 3, "documents": 2, "unit": nasty, "public": 1, "private": 2, "findings": {nasty: 3}, "bad_rows": 1, "dedup": nasty, "order": nasty,
        "private_duplicates": 0, "public_dedup": nasty, "public_duplicates": 0, "canaries": None, "k": {"missed": 1, "detected": 0, "repeats": nasty},
        "conservative": {"spec": nasty, "recall_class": nasty}, "warnings": [nasty],
    }  # fmt: skip
    stated = {
        "subject": nasty, "method": nasty, "unit": nasty, "sampler": nasty, "adjacency": {"name": nasty, "meaning": nasty}, "delta": 1e-5, "evidence": None,
        "guarantees": [{"name": nasty, "epsilon": 1.0, "delta": 1e-5, "sentence": nasty, "k": 1}], "k": {"repeats": nasty},
        "assumptions": [{"id": nasty, "text": nasty}], "not_promised": [nasty],
    }  # fmt: skip
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system=None)
    terminal.show_screened(console, manifest, nasty)
    terminal.show_verified(console, Verified(stated, 3, 3, model=True))
    terminal.show_policies(
        console, [{"name": nasty, "argument": nasty, "summary": nasty, "needs": nasty}], {nasty: nasty}
    )
    assert printable(out.getvalue()) == out.getvalue()
    assert "[red]" in out.getvalue().replace("\n", "")


TARGETS = {  # each with its share of the cases, by what a case costs
    read_corpus: 34, saved_dataset: 5, treatment: 18, policy_spec: 8, policy_file: 6, config_file: 10, canary_spec: 6, ledger: 8, certificate: 1,
    review: 3, command_line: 1, painting: 1, run_folder: 1, checkpoint: 3, review_file: 1,
}  # fmt: skip


# -- one case, and many ------------------------------------------------------------------------------------------------


class Hang(BaseException):
    """A case that takes too long."""


@contextlib.contextmanager
def bounded(seconds):
    """Raise `Hang` in a case that takes longer."""

    def ring(*_):
        raise Hang(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # its own time: a busy machine is no hang
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run(target, coins, home):
    with bounded(SECONDS):
        target(coins, home)


def work(job):
    target, seed, first, last = job
    home = Path(tempfile.mkdtemp(prefix="confide-fuzz-"))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    failures, began = [], time.process_time()
    for case in range(first, last):
        faulthandler.dump_traceback_later(60 * SECONDS, exit=True)  # for what does not even listen to signals
        try:
            run(target, Random(f"{seed} {target.__name__} {case}"), home)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            where = [
                frame
                for frame in traceback.extract_tb(error.__traceback__)
                if "confide" in frame.filename or "fuzz" in frame.filename
            ][-1]
            said = f"{type(error).__name__}: {error}"[:300]
            place = f"{Path(where.filename).name}:{where.lineno}"
            failures.append({"target": target.__name__, "seed": seed, "case": case, "error": said, "at": place})
    faulthandler.cancel_dump_traceback_later()
    shutil.rmtree(home, ignore_errors=True)
    return target.__name__, last - first, time.process_time() - began, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument(
        "--log", type=Path, help="add a line of JSON for each block of cases and each failure to this file"
    )
    parser.add_argument("--only", metavar="TARGET", help="one of " + ", ".join(target.__name__ for target in TARGETS))
    parser.add_argument("--case", type=int, help="this one case of the target alone, with its traceback")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    chosen = {target: share for target, share in TARGETS.items() if asked.only in (None, target.__name__)}
    if asked.case is not None:
        for target in chosen:
            with tempfile.TemporaryDirectory() as home:
                run(target, Random(f"{asked.seed} {target.__name__} {asked.case}"), Path(home))
        return 0
    jobs = []
    for target, share in chosen.items():
        cases = -(-asked.cases * share // sum(chosen.values()))
        jobs += [(target, asked.seed, first, min(first + 250, cases)) for first in range(0, cases, 250)]
    totals = {}
    with multiprocessing.get_context("fork").Pool(asked.workers, maxtasksperchild=8) as pool:
        for name, cases, seconds, failures in pool.imap_unordered(work, jobs):
            before = totals.get(name, (0, 0.0, 0))
            totals[name] = before[0] + cases, before[1] + seconds, before[2] + len(failures)
            for one in failures:
                print(json.dumps(one), file=sys.stderr, flush=True)
            if asked.log:  # as it goes, so that a run that is stopped has said what it did
                block = {"target": name, "seed": asked.seed, "cases": cases, "cpu_seconds": round(seconds, 2)}
                with open(asked.log, "a") as log:
                    log.writelines(
                        json.dumps(line) + "\n" for line in [*failures, {**block, "failures": len(failures)}]
                    )
    for name, (cases, seconds, wrong) in sorted(totals.items()):
        print(json.dumps({"target": name, "cases": cases, "cpu_seconds": round(seconds, 1), "failures": wrong}))
    return int(any(wrong for _, _, wrong in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
