"""Every command is run once, with unique marks in its corpus as secrets, under a umask that hides nothing; crashes are forced on the
way. Afterwards no byte outside the sensitive places may tell of a mark, no file may be open to others, and no connection may have
been tried. One pass serves all three questions."""

import base64
import hashlib
import html
import itertools
import json
import os
import random
import resource
import shutil
import stat
import subprocess
import sys
import traceback
import urllib.parse
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import re2
import yaml

import confide
from confide.cli import app, main
from confide.errors import BadInput
from confide.models.tokens import encode, pretrained
from confide.review import counting, export, open_store
from confide.rundir import owner_only, write_private
from confide.screening import Screened

pytestmark = pytest.mark.long  # every command, once
HERE = Path(__file__).parent
PLAIN_WORDS = [
    "the parcel was sent to you last week",
    "thank you for the kind words",
    "we hope that all of it was fine",
    "can you help me",
]
MODEL = ["--model", "lstm:hidden_size=16,embedding_size=16", "--max-length", "40", "--epochs", "1", "--vocabulary-size", "300",
         "--private-batch-size", "30", "--checkpoint-every", "3"]  # fmt: skip
NOISE = ["--noise", "1", "--delta", "1e-3"]
SENSITIVE = ("in", "private", "public", "work", "key", "checkpoints", "screened")


def marks():
    """Secrets that nothing else could hold by chance, and what a policy makes of them."""
    draw = random.Random(11)
    word = [
        "".join(draw.choices("bcdfghjkmnpqrstvwxz", k=9)).capitalize() + f"{draw.randrange(10**4):04d}"
        for _ in range(10)
    ]
    return {
        "missed": [*word[:3], f'{word[3]}ö&"<ß\u4e2d'],  # nothing finds them; the allowlist keeps them private
        "listed": word[4:6],  # in the list of known secrets
        "found": [f"{word[6].lower()}@example.org"],
        "elsewhere": word[7:],  # an id, a column that nobody reads, a row that is broken
    }


def records(mark):
    """Dialogues, a third of them with a secret at the beginning and at the end of a turn; a number makes each a text of its own."""
    secrets = itertools.cycle([*mark["missed"], *mark["listed"], *mark["found"]])
    for number in range(90):
        turns = [f"{who}: {PLAIN_WORDS[(number + n) % 4]}" for n, who in enumerate(("USR", "SYS"))]
        turns.append(f"USR: my number is {7919 * number}")
        if number % 3 == 0:
            one = next(secrets)
            turns[0] = f"USR: {one} is what I told you, and again {one}"
        identity = mark["elsewhere"][0] if number == 3 else f"d{number}"
        yield {"id": identity, "text": "\n".join(turns), "note": mark["elsewhere"][1]}


@pytest.fixture(scope="module")
def mark():
    return marks()


@pytest.fixture(scope="module")
def home(tmp_path_factory, mark):
    """A folder with all that comes in, and places for what goes out: to the terminal, to temporary folders and to caches."""
    home = Path(os.path.realpath(tmp_path_factory.mktemp("everything")))
    for name in ("in", "out", "temporary", "cache", "home", "runs"):
        (home / name).mkdir(mode=0o700)
    rows = [json.dumps(row, ensure_ascii=False) for row in records(mark)]
    (home / "in" / "chats.jsonl").write_text(
        "\n".join([*rows, f'{{"id": "bad", "text": ["{mark["elsewhere"][2]}"']) + "\n"
    )
    (home / "in" / "whole.jsonl").write_text("\n".join(rows) + "\n")
    (home / "in" / "known.txt").write_text("\n".join(mark["listed"]) + "\n")
    (home / "in" / "outside.txt").write_text("\n".join(PLAIN_WORDS * 5) + "\n")
    config = {
        "out": "../runs/all",
        "corpus": "whole.jsonl",
        "screen": {"policy": "digits", "conservative": "allowlist", "unit": "turn"},
        "train": {"model": "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2", "method": "redacted", "epochs": 1,
                  "max_length": 40, "vocabulary_size": 300, "validation_share": 0.4},
        "attack": {"only": ["extraction"], "samples": 50, "seed": 1},
    }  # fmt: skip
    (home / "in" / "all.yaml").write_text(yaml.safe_dump(config))
    return home


def jobs(home):
    """Every command, those that read the corpus with `crashes` forced in it. `{n}` becomes a folder of its own for each crash."""
    read, runs = home / "in", home / "runs"
    screened, run = str(runs / "screened"), str(runs / "run")
    policy = f"union(known:{read / 'known.txt'}, patterns)"
    screen = ["--policy", policy, "--conservative", "allowlist", "--unit", "turn"]
    canaries = ["--canaries", "audit,number=20,format=My ID is: {{digits:3}}".replace("{{", "{").replace("}}", "}")]
    train = ["train", screened, *MODEL]
    rows = [
        ("screen-bad", ["screen", str(read / "chats.jsonl"), *screen, "-o", f"{screened}-bad"]),
        ("screen-workers", ["screen", str(read / "chats.jsonl"), *screen, *canaries, "--skip-bad", "--workers", "2", "-o", screened]),
        ("screen", ["screen", str(read / "whole.jsonl"), *screen, "--workers", "1", "--dedup", "exact", "-o", f"{screened}-crash{{n}}"], 8),
        ("policies", ["policies"]),
        ("plan", ["plan", screened, *MODEL, *NOISE, "--method", "crt"], 3),
        ("train", [*train, *NOISE, "--method", "crt", "--validation-share", "0.4", "--tensorboard", "-o", f"{run}{{n}}"], 9),
        ("train-sdp", [*train, *NOISE, "--method", "sdp", "-o", f"{run}-sdp{{n}}"], 2),
        ("train-plain", [*train, "--method", "plain", "--validation-share", "0.4", "-o", f"{run}-plain{{n}}"]),
        ("verify", ["verify", run]),
        ("generate", ["generate", run, "USR:", "--max-new-tokens", "20"]),
        ("attack", ["attack", run, "--samples", "60", "--seed", "1"], 2),
        ("attack-plain", ["attack", f"{run}-plain", "--only", "membership,extraction", "--papers", "--samples", "60"]),
        ("review", ["review", screened, "--sample", "25", "--port", "0", "--no-browser"]),
        ("report", ["report", run], 1),
        ("report-shareable", ["report", run, "--shareable"]),
        ("report-compared", ["report", run, f"{run}-plain", "-o", str(runs / "compared.html")]),
        ("canaries", ["canaries", "audit,number=20,format=My ID is: {digits:3}", "-o", str(runs / "canaries")]),
        ("attack-model", ["attack", "--model", f"{run}/model", "--canaries", str(runs / "canaries")]),
        ("run", ["run", str(read / "all.yaml")]),
        ("train-from-folder", [*train, *NOISE, "--method", "jft", "--model", str(runs / "all" / "run" / "model"), "-o", f"{run}-jft"]),
        ("simulate", ["simulate", "--dialogues", "20", "--people", "24", "-o", str(runs / "simulated")]),
        ("epsilon", ["epsilon", "--sampling-rate", "1/32", "--noise", "2", "--steps", "320", "--delta", "8e-5"]),
        ("demo", ["demo", "--dialogues", "20", "--epochs", "1", "--json", "-o", str(runs / "demo")]),
        ("reproduce", ["reproduce", "fig3", "--scale", "smoke", "--workers", "1", "--seeds", "1", "--only", "redacted lstm, CustomerSim", "-o", str(runs / "papers")]),
        ("purge", ["purge", f"{run}-sdp", "--yes"]),
    ]  # fmt: skip
    return [{"name": name, "argv": argv, "crashes": crashes[0] if crashes else 0} for name, argv, *crashes in rows]


def namespace():
    """A network namespace in which every way leads nowhere and is counted, where the system grants one."""
    own = ["unshare", "--map-root-user", "--net"]
    granted = shutil.which("unshare") and subprocess.run([*own, "true"], capture_output=True).returncode == 0
    return own if granted else []


@pytest.fixture(scope="module")
def done(home, mark):
    """What became of every command."""
    alone = namespace()
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "PYTHONPATH": os.pathsep.join([str(HERE / "watch"), str(Path(confide.__file__).parents[1])]),
        "WATCH_HOME": str(home), "WATCH_LOG": str(home / "watched.jsonl"), **({"WATCH_NAMESPACE": "1"} if alone else {}),
        "CONFIDE_DEBUG": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "2000", "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home / "home"), "TMPDIR": str(home / "temporary"), "XDG_CACHE_HOME": str(home / "cache"),
        "HF_HOME": str(home / "cache" / "hf"), "MPLCONFIGDIR": str(home / "cache" / "matplotlib"), "BROWSER": "true",
    }  # fmt: skip
    text = " ".join(itertools.chain.from_iterable(mark.values()))
    given = {"jobs": jobs(home), "out": str(home / "out"), "text": text}
    ended = subprocess.run(
        [*alone, sys.executable, str(HERE / "driver.py")], input=json.dumps(given), env=environment, capture_output=True, text=True, cwd=home / "runs",
        timeout=900,
    )  # fmt: skip
    for name, told in (("out", ended.stdout), ("err", ended.stderr)):
        write_private(home / "out" / f"driver.{name}", told)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return {**json.loads(ended.stdout), "alone": bool(alone)}


def test_every_command_was_run(done, home):
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {job["argv"][0] for job in jobs(home)} == commands
    expected = {"screen-bad": 2}
    for name, one in done["jobs"].items():
        if "crash" not in one:
            told = (home / "out" / f"{name}.err").read_text()
            assert one["code"] == expected.get(name, 0), (name, told)


def test_forced_crashes_end_in_one_clear_line_or_a_traceback_without_messages(done, home):
    crashed = {name: one for name, one in done["jobs"].items() if "crash" in one}
    ended = {name: one for name, one in crashed.items() if one["code"]}
    assert len(ended) >= 0.6 * len(crashed) >= 12, "some functions are called once only, since what they find is kept"
    assert {one["crash"][2] for one in ended.values()} == {
        "RuntimeError",
        "KeyError",
        "UnicodeDecodeError",
        "ValueError",
        "kill",
    }
    for name, one in ended.items():
        told = (home / "out" / f"{name}.err").read_text()
        assert one["code"] in ((137,) if one["crash"][2] == "kill" else (1, 2)), name
        assert one["code"] == 137 or told.splitlines()[-1].startswith("confide: "), (name, told)
        assert "Traceback" not in told
    shown = [name for name in ended if "its message is withheld" in (home / "out" / f"{name}.err").read_text()]
    assert len(shown) >= 8


def forms(text, tokenizers):
    """The ways in which bytes could tell of a text: itself, as it stands in files of many kinds, as tokens, and as plain digests."""
    yield from (
        one.encode(kind, "replace")
        for one in (text, text.lower())
        for kind in ("utf-8", "utf-16-le", "utf-16-be", "latin-1")
    )
    yield from (
        one.encode()
        for one in (json.dumps(text)[1:-1], html.escape(text), urllib.parse.quote(text), urllib.parse.quote_plus(text))
    )
    raw = text.encode()
    for skip in range(3):  # wherever it begins in what was encoded; without the ends, which its neighbours decide
        yield base64.b64encode(b"\0" * skip + raw)[4 if skip else 0 : -4]
    for tokenizer in tokenizers:
        ids = encode(tokenizer, text)
        if len(ids) > 4:
            yield from (np.array(ids, kind).tobytes() for kind in ("<i2", "<i4", "<i8"))
            yield from (sign.join(map(str, ids)).encode() for sign in (",", ", ", " "))
    for digest in digests(raw):
        yield from (digest, digest.hex().encode(), digest.hex().upper().encode())
        yield from (way(digest).rstrip(b"=")[:-1] for way in (base64.b64encode, base64.urlsafe_b64encode))


def digests(raw):
    yield from (
        getattr(hashlib, name)(raw).digest()
        for name in ("md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b", "blake2s")
    )
    yield from (hashlib.blake2b(raw, digest_size=size).digest() for size in (8, 16, 20, 32))


def finder(texts, tokenizers=()):
    """A function from bytes to the forms of texts that stand in them."""
    options = re2.Options()
    options.encoding, options.max_mem = re2.Options.Encoding.LATIN1, 1 << 28
    wanted = {form for text in texts for form in forms(text, tokenizers) if len(form) > 7}
    found = re2.compile(b"|".join(map(re2.escape, sorted(wanted))), options)
    return lambda content: [match.group() for match in found.finditer(content)]


def everything(home):
    """Every file below the home, with its path, but for places that hold text by design."""
    for folder, folders, names in os.walk(home):
        folders[:] = [
            name for name in folders if name not in SENSITIVE or (Path(folder) / name / "manifest.json").exists()
        ]
        yield from (Path(folder) / name for name in names if name != "key")


COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"PAR1", b"BZh", b"\xfd7zXZ", b"\x04\x22\x4d\x18")


def leaks(home, find):
    """What can be found in a folder, and where. Bytes that this search cannot see into are a leak, too."""
    found = []
    for path in everything(home):
        content = path.read_bytes()
        hits = find(content) + find("".join(content.decode("utf-8", "replace").split()).encode())
        found += [(str(path.relative_to(home)), one) for one in hits]
        found += [(str(path.relative_to(home)), b"compressed")] if content.startswith(COMPRESSED) else []
        found += [(str(path.relative_to(home)), b"its name")] if find(str(path).encode()) else []
    return found


@pytest.fixture(scope="module")
def find(home, mark, done):
    """The search for all marks, and for whole records that hold one, with the vocabularies of the runs."""
    tokenizers = [pretrained(str(home / "runs" / run / "model")) for run in ("run", "run-plain", "all/run")]
    records = [
        row["raw"]
        for batch in Screened.open(home / "runs" / "screened").batches("private", ("raw",))
        for row in batch.to_pylist()
    ]
    texts = list(itertools.chain.from_iterable(mark.values()))
    whole = {record for record in records if any(one in record for one in texts)}
    assert len(whole) >= 7
    return finder([*texts, *whole], tokenizers)


def test_no_byte_outside_the_sensitive_places_tells_of_a_secret(home, find):
    assert leaks(home, find) == []


def test_everything_is_searched(home, done):
    """The folders and files of every kind that commands make, the terminal's, temporary ones and caches among them."""
    searched = {path.relative_to(home).as_posix() for path in everything(home)}
    run = ("config.yaml", "ledger.jsonl", "certificate.json", "telemetry.jsonl", "attacks.json", "report.html", "report-shareable.html",
           "certificate-shareable.json", "model/README.md", "model/tokenizer.json", "model/model.safetensors")  # fmt: skip
    assert {f"runs/run/{name}" for name in run} <= searched
    assert {
        f"runs/screened/{name}"
        for name in ("manifest.json", "review.sqlite", "review.json", "canaries.json", "coins.json")
    } <= searched
    assert {"runs/compared.html", "runs/run-sdp/purged.json", "out/train.out", "out/train.err"} <= searched
    for kind in (
        "runs/run/figures/*.svg",
        "runs/run/figures/*.png",
        "runs/demo/*/report.html",
        "runs/papers/results/*.csv",
        "cache/**/*",
    ):
        assert any(path.is_file() for path in home.glob(kind)), kind
    assert any(name.startswith("runs/screened-crash") and name.endswith("plan.json") for name in searched), (
        "a killed screening"
    )
    assert not [name for name in searched if "/private/" in name or "/checkpoints/" in name]


@pytest.mark.parametrize("where", ["telemetry.jsonl", "temporary/left", "manifest.json", "page.html", "array.bin"])
def test_the_search_finds_what_is_planted(tmp_path, where):
    """Each form of a text, in any kind of file; so that finding nothing means something."""
    text = marks()["missed"][3]
    search = finder([text])
    (tmp_path / where).parent.mkdir(exist_ok=True)
    for form in forms(text, ()):
        (tmp_path / where).write_bytes(b"some bytes \xff before, " + form + b" and after")
        assert leaks(tmp_path, search), form
    (tmp_path / where).write_bytes(b"some bytes \xff before, and after")
    assert leaks(tmp_path, search) == []
    (tmp_path / where).write_bytes(b"\x1f\x8b" + bytes(9))
    assert leaks(tmp_path, search) == [(where, b"compressed")]


def test_tokens_of_a_secret_are_found(tmp_path, home, done, mark):
    tokenizer = pretrained(str(home / "runs" / "run" / "model"))
    search = finder(mark["missed"], [tokenizer])
    ids = encode(tokenizer, "USR: " + mark["missed"][0] + " is what I told you")
    for content in (
        json.dumps({"ids": ids}).encode(),
        np.array(ids, np.int32).tobytes(),
        np.array(ids, np.int64).tobytes(),
    ):
        (tmp_path / "some.bin").write_bytes(content)
        assert leaks(tmp_path, search)
    assert leaks(home / "runs" / "run" / "screened", search), "the run's own tokens, which are sensitive by design"


def test_a_leak_in_an_error_message_is_caught(home, done, find, monkeypatch, capfd):
    """The same crash with a traceback as Python prints it, or with the record's text in an error of ours."""
    text = marks()["missed"][0]

    def fail(*_):
        raise RuntimeError(f"cannot read {text}")

    monkeypatch.setenv("CONFIDE_DEBUG", "1")
    monkeypatch.setattr("confide.accounting.verify", fail)
    for frames, leaking in ((None, False), (lambda error: "".join(traceback.format_exception(error)), True)):
        if frames is not None:
            monkeypatch.setattr("confide.cli._frames", frames)
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(home / "runs" / "run")])
        assert ended.value.code == 1
        told = capfd.readouterr().err
        assert "RuntimeError" in told
        assert bool(find(told.encode())) == leaking
    monkeypatch.setattr(
        "confide.accounting.verify", lambda *_: (_ for _ in ()).throw(BadInput(f"record {text} is bad"))
    )
    with pytest.raises(SystemExit):
        main(["verify", str(home / "runs" / "run")])
    assert find(capfd.readouterr().err.encode())


def test_parquet_files_hold_no_statistics_or_metadata(home, done):
    files = [*home.glob("runs/screened*/*/*.parquet"), *home.glob("runs/all/screened/*/*.parquet")]
    assert files
    for path in files:
        about = pq.ParquetFile(path).metadata
        groups = [about.row_group(n) for n in range(about.num_row_groups)]
        columns = [group.column(n) for group in groups for n in range(group.num_columns)]
        assert not [one for one in columns if one.statistics is not None and one.statistics.has_min_max], path
        assert set(about.metadata or {}) <= {b"ARROW:schema"}, path


def test_a_review_keeps_places_of_secrets_not_their_text(home, done, find, mark, tmp_path):
    """A person marks every secret: neither the store nor the counts hold one; nor does what is exported for training by hand."""
    folder = shutil.copytree(home / "runs" / "screened", tmp_path / "screened")
    store = open_store(folder, sample=200)
    marked = 0
    begun = store.frontier()  # what the pass over all commands has answered before, unread
    for place in range(len(store.order)):
        text = store.show(place).text
        for one in mark["missed"]:
            starts = [n for n in range(len(text)) if text.startswith(one, n)]
            for start in starts:
                store.act(place, "mark", store.state(store.order[place]).version, start, start + len(one))
                marked += 1
        if place >= begun:
            store.act(place, "answer", store.state(store.order[place]).version)
    counting.save(store, counting.counted(store))
    store.close()
    assert marked > 5
    export(open_store(folder), tmp_path / "by-hand.jsonl", True)
    assert leaks(tmp_path, find) == []


def test_files_are_for_their_owner_only_whatever_the_umask(home, done):
    assert {one["umask"] for one in done["jobs"].values()} == {0}, "the umask that they ran under"
    wide = {
        path.relative_to(home).as_posix(): oct(path.lstat().st_mode)
        for path in home.rglob("*")
        if "in" not in path.relative_to(home).parts
        and stat.S_IMODE(path.lstat().st_mode) & 0o177 - (0o100 if path.is_dir() else 0)
    }
    assert wide == {}


def test_a_crash_dumps_no_memory():
    before = resource.getrlimit(resource.RLIMIT_CORE)
    with owner_only():
        assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
        inside = subprocess.run(["sh", "-c", "ulimit -c; umask"], capture_output=True, text=True)
    assert inside.stdout.split() == ["0", "0077"]
    assert resource.getrlimit(resource.RLIMIT_CORE) == before


def test_no_command_opens_a_connection_or_writes_elsewhere(home, done):
    seen = [json.loads(line) for line in (home / "watched.jsonl").read_text().splitlines()]
    assert ["socket.getaddrinfo", "127.0.0.1"] in seen, "the review's own page, by which the watch is seen to work"
    addresses = {(what[0] if isinstance(what, list) else what) for event, what in seen if event != "open"}
    assert addresses == {"127.0.0.1"}
    assert [what for event, what in seen if event == "open"] == [], "files outside the home"
    if not done["alone"]:
        pytest.skip("the system grants no network namespace: what code outside Python does was not watched")
    assert done["network"] == {"OutNoRoutes": 0, "Ip6OutNoRoutes": 0}


def test_the_watch_sees_connections(tmp_path):
    """By Python in a process of its own; and, where the system grants a namespace, by what knows nothing of Python's events."""
    call = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    connect = "import socket; s = socket.socket(); s.settimeout(1); s.connect_ex(('192.0.2.1', 9)); open('/tmp/confide-elsewhere', 'a').close()"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(HERE / "watch"),
        "WATCH_HOME": str(tmp_path),
        "WATCH_LOG": str(tmp_path / "watched.jsonl"),
    }
    alone = namespace()
    subprocess.run([*alone, sys.executable, "-c", call, connect], env=environment, check=True, timeout=60)
    Path("/tmp/confide-elsewhere").unlink()
    seen = [json.loads(line) for line in (tmp_path / "watched.jsonl").read_text().splitlines()]
    assert seen == [["socket.connect", ["192.0.2.1", 9]], ["open", "/tmp/confide-elsewhere"]]
    if alone:
        native = "exec 3<>/dev/udp/192.0.2.1/9; grep -c . /proc/net/snmp >/dev/null; grep ^Ip: /proc/net/snmp"
        told = subprocess.run(
            [*alone, "bash", "-c", native], capture_output=True, text=True, timeout=60
        ).stdout.splitlines()
        assert int(dict(zip(*(line.split() for line in told), strict=True))["OutNoRoutes"]) > 0
