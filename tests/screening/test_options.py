"""Choices that go together are taken; of those that do not, the refusal says which option and why."""

import pytest

from confide.errors import BadInput
from confide.records import Fields
from confide.screening.options import Options

PAPER = {"order": "dedup-redact", "dedup": "exact"}


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"unit": "word"}, "--unit must be one of document, turn, sentence"),
        ({"context": "corpus"}, "--context must be one of record, group"),
        ({"order": "dedup"}, "--order must be one of redact-dedup, dedup-redact"),
        ({"dedup": "near"}, "--dedup must be one of off, exact, bloom, bloom-verified"),
        ({"dedup_unit": "document"}, "--dedup-unit must be one of turn, sentence"),
        ({"public_dedup": "bloom"}, "--public-dedup must be one of off, exact, near"),
        ({"text_as": "page"}, "--text-as must be one of"),
        ({"max_words": 0}, "--max-words must be at least 1"),
        ({"max_words": "5"}, "--max-words must be a whole number"),
        ({"max_words": True}, "--max-words must be a whole number"),
        ({"max_copies": None}, "--max-copies must be a whole number"),
        ({"max_copies": 0}, "--max-copies must lie between 1 and 1,000,000"),
        ({"max_copies": 10**6 + 1}, "--max-copies must lie between 1 and 1,000,000"),
        ({"max_copies": 2, "dedup": "off"}, "--max-copies needs --dedup exact"),
        ({"chunk": 1.5}, "--chunk must be a whole number"),
        ({"bloom_delta": "1"}, "--bloom-delta must be a number"),
        ({"bloom_delta": 0}, "--bloom-delta must lie between 0 and 1"),
        ({"bloom_delta": 1.0}, "--bloom-delta must lie between 0 and 1"),
        ({"policy": None}, "--policy must be text"),
        ({"conservative": 3}, "--conservative must be text"),
        ({"canaries": 3}, "--canaries must be text"),
        ({"dedup_unit": "turn", "dedup": "off"}, "--dedup-unit names a unit smaller"),
        ({"dedup_unit": "turn", "unit": "turn", "dedup": "exact"}, "--dedup-unit names a unit smaller"),
        ({"dedup_unit": "turn", "unit": "sentence", "dedup": "exact"}, "--dedup-unit names a unit smaller"),
        ({"order": "dedup-redact", "dedup": "off"}, "--order dedup-redact needs dedup"),
        ({**PAPER, "public_dedup": "exact"}, "--public-dedup goes with the default order only"),
        ({**PAPER, "dedup_unit": "turn", "conservative": "digits"}, "needs --conservative everything"),
        ({**PAPER, "context": "group", "unit": "turn"}, "--context group goes with the default order only"),
        ({**PAPER, "canaries": "audit"}, "canaries with coins go with the default order only"),
        ({"context": "group", "fields": Fields(group="chat")}, "without --group-field"),
    ],
)
def test_choices_that_do_not_go_together_are_refused_by_name(choices, reason):
    with pytest.raises(BadInput, match=reason):
        Options(**{"policy": "digits", **choices}).checked()


@pytest.mark.parametrize(
    "choices",
    [
        {"max_words": 1},
        {"max_copies": 10**6, "dedup": "exact"},
        {"dedup_unit": "sentence", "unit": "turn", "dedup": "bloom"},
        {"bloom_delta": 0.999},
        {**PAPER, "unit": "turn", "conservative": "digits"},
        {**PAPER, "dedup_unit": "turn"},
        {**PAPER, "context": "group"},
        {**PAPER, "canaries": "crt"},
        {"canaries": "audit", "dedup": "exact"},
        {"fields": Fields(group="chat")},
    ],
)
def test_choices_that_go_together_stay_as_they_are(choices):
    chosen = Options(policy="digits", **choices).checked()
    assert {name: getattr(chosen, name) for name in choices} == choices
    assert chosen.checked() == chosen


@pytest.mark.parametrize(("unit", "dedup"), [("document", "exact"), ("turn", "off"), ("sentence", "off")])
def test_whole_documents_are_deduplicated_unless_told_otherwise(unit, dedup):
    assert Options("digits", unit=unit).checked().dedup == dedup
    assert Options("digits", unit=unit, dedup="bloom").checked().dedup == "bloom"


@pytest.mark.parametrize(
    ("choices", "reads"),
    [
        ({"context": "group", "unit": "turn"}, True),
        ({"context": "group", "max_words": 5}, True),
        ({"context": "group"}, False),
        ({"unit": "turn"}, False),
        ({"max_words": 5}, False),
    ],
)
def test_policies_read_beyond_a_record_only_where_documents_are_split(choices, reads):
    assert Options("digits", **choices).reads_groups == reads


def test_what_is_not_chosen_is_what_the_documentation_says():
    assert Options("digits").checked() == Options(
        policy="digits",
        conservative="everything",
        unit="document",
        max_words=None,
        context="record",
        dedup="exact",
        max_copies=1,
        order="redact-dedup",
        dedup_unit=None,
        public_dedup="off",
        bloom_delta=1e-9,
        canaries=None,
        text_as="file",
        skip_bad=False,
        chunk=1_048_576,
    )
