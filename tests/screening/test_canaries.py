"""Canaries are what their words say: so many values, so many copies, in one slot, with fair coins."""

import json
import math
import string

import pytest

from confide.errors import BadInput
from confide.records import MARK, Record
from confide.screening import screen
from confide.screening.canaries import PRESETS, Planting, canary_chunk, hide, parse_canaries, plant, write_canaries


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("policy=lost", "policy must be one of as-is, missed, found"),
        ("coins=maybe", "coins is yes or no"),
        ("number=6,format={digits:1}", "6 different values need a larger space than 10"),
        ("number=0", "number and copies are at least 1"),
        ("copies=0", "number and copies are at least 1"),
        ("number=1000001", "ten million together"),
        ("copies=1000001", "ten million together"),
        ("number=10,copies=1000000,format={code:9}", None),
        ("number=11,copies=1000000,format={code:9}", "ten million together"),
        ("format={digits:0}", "one slot of 1 to 40 signs"),
        ("format={digits:41}", "one slot of 1 to 40 signs"),
        ("format={digits:2} {digits:2}", "one slot"),
        ("number=1,secret=12345", "fits the slot"),
        ("number=1,secret=12345a", "fits the slot"),
        ("number=2,secret=123456", "fits the slot"),
        ("number=1,secret=123456", None),
        ("number=5,format={digits:1}", None),
        ("number=1,format={digits:40}", None),
        ("number=1,secret=7,format={digits:1}", None),
        ("copies=3,crt", "neither a preset"),
        ("colour=red", "neither a preset"),
        ("", "name a preset"),
        ("seed=-1", "seed is a whole number"),
        ("seed=1234567890123456789", "seed is a whole number"),
        ("seed=123456789012345678", None),
    ],
)
def test_a_planting_is_taken_or_refused_by_name(spec, reason):
    if reason is None:
        assert parse_canaries(spec)
        return
    with pytest.raises(BadInput, match=reason):
        parse_canaries(spec)


def test_presets_are_what_their_papers_planted():
    assert parse_canaries("crt") == PRESETS["crt"] == Planting("My ID is: {digits:6}", number=10, copies=20)
    assert parse_canaries("sdp").secret == "341752"
    assert (parse_canaries("sdp").number, parse_canaries("sdp").copies) == (1, 10)
    assert (parse_canaries("jft").number, parse_canaries("jft").copies) == (10, 1)
    audit = parse_canaries("audit,number=7, coins=no,seed=3,format=a, b {letters:3}")
    assert audit == Planting("a, b {letters:3}", number=7, policy="missed", coins=False, seed=3)
    assert parse_canaries("audit").coins


def test_values_are_different_and_fill_their_slot():
    planting = Planting("ID {code:2}", number=600, copies=2, coins=True, seed=1)
    planted, coins = plant(planting)
    values = [one["secret"] for one in planted["canaries"]]
    assert len(set(values)) == 600
    assert {len(value) for value in values} == {2}
    assert set("".join(values)) == set(string.ascii_uppercase + string.digits)
    assert (planted["space"], planted["bits"]) == (36**2, math.log2(36**2))
    assert [one["id"] for one in planted["canaries"]] == [f"canary-{i}" for i in range(600)]
    assert 200 < sum(coins["present"]) < 400
    assert plant(planting) == (planted, coins)
    assert plant(Planting("ID {code:2}", number=600, seed=2))[0]["canaries"] != planted["canaries"]
    assert plant(Planting(number=3))[1] == {"present": [True] * 3}


def test_a_fixed_secret_is_the_one_that_is_planted():
    assert [one["secret"] for one in plant(parse_canaries("sdp"))[0]["canaries"]] == ["341752"]


def test_each_copy_is_a_document_of_one_group_with_its_secret():
    planted, _ = plant(Planting("My <MASK> is {digits:3}!", number=2, copies=3, policy="found", seed=5))
    chunk = canary_chunk(4, planted, {"present": [True, False]})
    first, second = (one["secret"] for one in planted["canaries"])
    assert (chunk.number, chunk.name, chunk.ids_given) == (4, "canaries", False)
    assert [row.row for row in chunk.rows] == [1, 2, 3, 4, 5, 6]
    assert [row.record.id for row in chunk.rows] == [f"canary-{i}-{copy}" for i in (0, 1) for copy in (0, 1, 2)]
    assert [row.record.group for row in chunk.rows] == ["canary-0"] * 3 + ["canary-1"] * 3
    assert [row.record.text for row in chunk.rows] == [f"My ‹MASK› is {value}!" for value in [first] * 3 + [second] * 3]
    assert [chunk.planted[row.record.id] for row in chunk.rows] == [(first, "found", True)] * 3 + [
        (second, "found", False)
    ] * 3


def test_a_secret_at_the_beginning_of_its_text_is_found_like_any_other(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "nothing here"}\n')
    spec = "number=3,copies=2,policy=found,format={digits:6} is my code"
    made = screen(str(tmp_path / "c.jsonl"), "nothing", tmp_path / "out", canaries=spec, dedup="off", workers=1)
    texts = [row["text"] for batch in made.batches("private", ("text",)) for row in batch.to_pylist()]
    assert texts.count("<MASK> is my code") == 6


def test_a_hidden_secret_leaves_a_mark_and_everything_else():
    assert hide(Record("a", "no 12 or 12", "g"), "12") == Record("a", f"no {MARK} or {MARK}", "g")


def test_canaries_for_a_corpus_elsewhere_are_written_with_what_was_planted(tmp_path):
    told = write_canaries("number=20,copies=2,coins=yes,seed=4,format=é {digits:4}", tmp_path / "planted")
    folder = tmp_path / "planted"
    assert told == {"canaries": 20, "space": 10**4, "texts": 40, "add": str(folder / "canaries.jsonl")}
    planted, coins = (json.loads((folder / name).read_text()) for name in ("canaries.json", "coins.json"))
    texts = (folder / "canaries.jsonl").read_text()
    assert "é" in texts
    shown = [
        value["secret"] if present else "<MASK>"
        for value, present in zip(planted["canaries"], coins["present"], strict=True)
    ]
    expected = [{"id": f"canary-{i}-{copy}", "text": f"é {value}"} for i, value in enumerate(shown) for copy in (0, 1)]
    assert [json.loads(line) for line in texts.splitlines()] == expected
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "canaries.jsonl").stat().st_mode & 0o777 == 0o600
