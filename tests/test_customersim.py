"""The simulated corpus has the published corpus's statistics, exact spans, and no person in two splits."""

import collections
import json
import re

import pytest

from confide.cli import main
from confide.experiments.customersim import Person, dialogues, people

FORMATS = {
    "phone": r"\d{3}([-.]?)\d{3}\1\d{4}",
    "order": r"\d{3}-\d{5}-\d{4}",
    "tracking": r"[A-Z0-9]{10}",
    "name": r"\S+ .+",
    "address": r".* [A-Z]{2} \d{5}",
}


@pytest.fixture(scope="module")
def crowd():
    return people(seed=1, count=2000)


@pytest.fixture(scope="module")
def corpus(crowd):
    return list(dialogues(3000, seed=1, crowd=crowd))


def test_statistics_are_within_ten_percent_of_the_published_ones(corpus):
    count = len(corpus)
    assert sum(len(d.text) for d in corpus) / count == pytest.approx(401, rel=0.1)
    assert sum(len(d.text.split()) for d in corpus) / count == pytest.approx(73, rel=0.1)
    turns = collections.Counter(d.text.count("\n") for d in corpus)
    assert turns[8] / count == pytest.approx(0.49, rel=0.1)
    assert turns[9] / count == pytest.approx(0.48, rel=0.1)
    assert all(6 <= number <= 13 for number in turns)
    asked = collections.Counter(kind for d in corpus for _, _, kind in d.secrets)
    assert asked["name"] >= count
    assert asked["tracking"] >= count
    for kind in ("phone", "order", "address"):
        assert asked[kind] / count == pytest.approx(1 / 3, rel=0.12)


def test_addresses_have_the_published_shares(crowd):
    kinds = collections.Counter(
        "suite" if " Suite " in p.address else "apt" if " Apt. " in p.address else "military"
        if re.search(r" [AFD]PO ", p.address) else "plain"
        for p in crowd
    )  # fmt: skip
    for kind, share in (("plain", 0.44), ("suite", 0.22), ("apt", 0.22), ("military", 0.11)):
        assert kinds[kind] / len(crowd) == pytest.approx(share, abs=0.03)


def test_every_span_is_exactly_a_secret(corpus, crowd):
    known = {getattr(p, field) for p in crowd for field in ("name", "phone", "order", "address")}
    for dialogue in corpus[:500]:
        for start, end, kind in dialogue.secrets:
            value = dialogue.text[start:end]
            assert re.fullmatch(FORMATS[kind], value), kind
            assert kind == "tracking" or value in known


def test_no_secret_stands_outside_the_spans(corpus, crowd):
    values = {getattr(p, field) for p in crowd for field in ("phone", "order", "address")}
    for dialogue in corpus[:300]:
        rest = list(dialogue.text)
        for start, end, _ in dialogue.secrets:
            rest[start:end] = "\0" * (end - start)
        assert not re.search(r"\d", "".join(rest))
        assert not any(value in "".join(rest) for value in values)


def test_tracking_numbers_are_fresh(corpus):
    numbers = [d.text[s:e] for d in corpus for s, e, kind in d.secrets[:3] if kind == "tracking"]
    assert len(set(numbers)) == len(corpus)


def test_splits_share_no_person(crowd):
    names = {}
    for split in ("train", "valid", "test"):
        found = {
            d.text[s:e]
            for d in dialogues(400, 1, split, crowd)
            for s, e, kind in d.secrets
            if kind in ("phone", "order")
        }
        names[split] = found
    assert not names["train"] & names["valid"]
    assert not names["train"] & names["test"]
    assert not names["valid"] & names["test"]


def test_the_seed_decides(crowd):
    assert list(dialogues(5, 3, crowd=crowd)) == list(dialogues(5, 3, crowd=crowd))
    assert list(dialogues(5, 3, crowd=crowd)) != list(dialogues(5, 4, crowd=crowd))
    assert people(7, 3) == people(7, 3)
    assert isinstance(people(7, 1)[0], Person)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    captured = capsys.readouterr()
    return done.value.code, captured.out, captured.err


def test_the_command_writes_three_splits(capsys, tmp_path):
    out = tmp_path / "sim"
    code, text, err = run(capsys, "simulate", "-o", str(out), "--dialogues", "40", "--people", "100", "--json")
    assert (code, err) == (0, "")
    assert json.loads(text)["train"] == 40
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 40
    for row in rows:
        for secret in row["secrets"]:
            assert row["text"][secret["start"] : secret["end"]] == secret["text"]
    assert len((out / "test.jsonl").read_text().splitlines()) == 4
    code, _, err = run(capsys, "simulate", "-o", str(out))
    assert code == 2
    assert "exists" in err


@pytest.mark.parametrize("option", [["--dialogues", "0"], ["--people", "2"], ["--seed", "x"]])
def test_bad_numbers_are_refused(capsys, tmp_path, option):
    code, _, err = run(capsys, "simulate", "-o", str(tmp_path / "s"), *option)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
