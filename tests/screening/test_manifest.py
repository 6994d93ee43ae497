"""A manifest claims for a certificate no more than was done, and warns of what its reader should know."""

from collections import Counter

import pytest

from confide.accounting import Setting
from confide.policies import load
from confide.screening.manifest import Filter, certificate_facts, manifest, policy_files
from confide.screening.options import Options

COUNTS = Counter({"largest group": 7, "most units": 4})
NO_FILTER = Filter(0.0, True)


def facts(private=9, bloom=NO_FILTER, **choices):
    options = Options(**{"policy": "digits", **choices}).checked()
    return certificate_facts(options, load(options.policy), load(options.conservative), COUNTS, bloom, private)


def test_the_facts_of_a_plain_screening():
    assert facts() == {
        "unit": "document",
        "policy": "digits",
        "conservative": "everything",
        "private_records": 9,
        "order": "redact-dedup",
        "dedup": "exact",
        "max_copies": 1,
        "units_per_record": "one",
        "changed_units": 1,
        "group_records": 1,
        "bloom_delta": 0.0,
        "bloom_keyed": True,
        "record_local": True,
        "mask_consistent": True,
        "masks_escaped": True,
        "recall_class": None,
    }


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        ({"private": 0}, {"private_records": 1}),
        ({"unit": "turn", "dedup": "exact", "max_copies": 3}, {"unit": "turn", "max_copies": 3}),
        ({"dedup": "bloom-verified"}, {"dedup": "exact", "bloom_delta": 0.0}),
        (
            {"dedup": "bloom", "bloom": Filter(1e-6, False)},
            {"dedup": "bloom", "bloom_delta": 1e-6, "bloom_keyed": False},
        ),
        ({"dedup_unit": "turn"}, {"units_per_record": "several", "changed_units": 1, "mask_consistent": True}),
        ({"dedup_unit": "turn", "policy": "low-entity"}, {"changed_units": 4, "mask_consistent": False}),
        ({"policy": "low-entity"}, {"changed_units": 1, "mask_consistent": False, "group_records": 1}),
        ({"unit": "turn", "context": "group"}, {"group_records": 7, "mask_consistent": False, "changed_units": 1}),
        ({"context": "group"}, {"group_records": 1, "mask_consistent": True}),
        ({"conservative": "digits"}, {"recall_class": "secrets that hold a decimal digit"}),
        ({"conservative": "patterns"}, {"conservative": "patterns", "recall_class": None}),
    ],
)
def test_facts_are_no_better_than_what_was_done(choices, found):
    made = facts(**choices)
    assert {name: made[name] for name in found} == found
    Setting(method="crt", clipping_norm=1.0, **made)


def warned(counts=COUNTS, private=10, **choices):
    options = Options(**{"policy": "digits", **choices}).checked()
    of = (load(options.policy), load(options.conservative))
    return manifest(options, *of, counts, NO_FILTER, 0, private, "", None)["warnings"]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({}, []),
        ({"counts": COUNTS | {"mask-only": 3}}, ["3 of 10 private records are nothing but a mask"]),
        ({"counts": COUNTS | {"mask-only": 2}}, []),
        ({"counts": COUNTS | {"mask-only": 3}, "dedup": "off"}, []),
        ({"dedup_unit": "turn"}, ["dedup compares units inside records"]),
        ({"order": "dedup-redact"}, ["in the order dedup-redact a secret that the policy detects"]),
        ({"conservative": "patterns"}, ["the conservative policy flags no class of secrets by construction"]),
        ({"conservative": "digits"}, []),
    ],
)
def test_each_warning_has_its_reason(choices, words):
    found = warned(**{name: Counter(value) if name == "counts" else value for name, value in choices.items()})
    assert len(found) == len(words)
    assert all(one.startswith(start) for one, start in zip(found, words, strict=True))


def test_canaries_are_counted_and_their_secrets_are_not_told():
    planted = {
        "canaries": [{"secret": "123"}] * 4,
        "copies": 2,
        "policy": "missed",
        "coins": True,
        "space": 10,
        "seed": 1,
    }
    options = Options("digits").checked()
    of = (load("digits"), load("everything"))
    told = manifest(options, *of, COUNTS, NO_FILTER, 3, 4, "d", planted)
    assert told["canaries"] == {"canaries": 4, "copies": 2, "policy": "missed", "coins": True, "space": 10}
    assert (told["records"], told["public"], told["private"], told["digest"]) == (7, 3, 4, "d")


def test_the_files_of_a_policy_are_told_apart_by_the_key(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("Ann\n")
    policy = load(f"known:{path}")
    (first,), (other,) = policy_files(policy, b"k" * 32), policy_files(policy, b"l" * 32)
    assert first["path"] == other["path"] == str(path)
    assert len(first["digest"]) == 64
    assert first["digest"] != other["digest"]
    path.write_text("Bob\n")
    assert policy_files(policy, b"k" * 32)[0]["digest"] not in ("", first["digest"])
    path.unlink()
    assert policy_files(policy, b"k" * 32) == [{"path": str(path), "digest": ""}]
