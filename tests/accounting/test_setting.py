"""A setting says how many records a secret changes, what a filter costs, and when nothing can be certified."""

import pytest

from confide.accounting.setting import Setting, refuse_unsound
from confide.errors import BadInput, Refused

DELTA = 8e-5


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"policy": None}, "must name a policy"),
        ({"method": ...}, "'method'"),
    ],
)
def test_a_setting_that_cannot_be_read_is_told_apart(setting, plain, reason):
    values = {**setting().to_plain(), **plain}
    values = {name: value for name, value in values.items() if value is not ...}
    with pytest.raises(BadInput, match=f"setting: .*{reason}"):
        Setting.from_plain(values)


def test_a_setting_survives_its_way_into_the_ledger_and_back(setting):
    for changes in ({}, {"evidence": "ab"}, {"weights": "unflagged-lines"}):
        made = setting(**changes)
        assert Setting.from_plain(made.to_plain()) == made
        assert {"evidence", "weights"} & made.to_plain().keys() == set(changes)


def test_one_secret_may_change_fifty_records_and_no_more(setting):
    refuse_unsound(setting(group_records=50), DELTA)
    with pytest.raises(Refused, match="more than 50 records"):
        refuse_unsound(setting(group_records=51), DELTA)


def test_a_filter_may_cost_less_than_half_of_delta(setting):
    refuse_unsound(setting(dedup="bloom", bloom_delta=0.49 * DELTA), DELTA)
    with pytest.raises(Refused, match="false positives alone"):
        refuse_unsound(setting(dedup="bloom", bloom_delta=DELTA / 2), DELTA)
    made = setting(dedup="bloom", bloom_delta=1e-6, private_records=999)
    assert made.bloom_cost(3) == pytest.approx(1e-6 * 1002 / 1000, rel=1e-12)
    assert setting(bloom_delta=1e-6).bloom_cost(3) == 0.0


PAPERS_ORDER = {"dedup": "exact", "order": "dedup-redact", "conservative": "scores"}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"units_per_record": "several"}, True),
        ({"group_records": 2}, True),
        ({}, False),
        ({"units_per_record": "several", "conservative": "everything"}, False),
        ({"units_per_record": "several", "order": "redact-dedup"}, False),
        ({"units_per_record": "several", "dedup": "off"}, False),
    ],
)
def test_a_duplicate_that_moves_its_record_between_the_parts_is_refused(setting, changes, refused):
    made = setting(**{**PAPERS_ORDER, **changes})
    if not refused:
        refuse_unsound(made, DELTA)
        return
    with pytest.raises(Refused, match="moves other records between the parts"):
        refuse_unsound(made, DELTA)


@pytest.mark.parametrize(
    "changes", [{"jft_phase1": "noised"}, {"dedup": "off"}, {"order": "redact-dedup"}, {"method": "crt"}]
)
def test_jft_in_the_papers_order_is_refused_for_the_trace_of_caught_secrets_alone(setting, changes):
    base = {"method": "jft", "dedup": "exact", "order": "dedup-redact"}
    refuse_unsound(setting(**base | changes), DELTA)
    with pytest.raises(Refused, match="a caught secret still decides"):
        refuse_unsound(setting(**base, jft_phase1="hand-screened"), DELTA)


@pytest.mark.parametrize(
    ("changes", "words", "copies"),
    [
        ({}, "counts as k=r: every copy counts, since dedup is off", 5),
        ({"group_records": 3}, "counts as k=3r: every copy counts, since the policy may look", 15),
        ({"dedup": "exact", "units_per_record": "several", "changed_units": 2}, "counts as k=5r: every copy", 25),
        ({"dedup": "exact"}, "distinct units counts as k=r, however", 1),
        ({"dedup": "exact", "max_copies": 3}, "distinct units counts as k=3r, however", 3),
        ({"dedup": "exact", "units_per_record": "several"}, "distinct units counts as k=2r, however", 3),
        ({"dedup": "exact", "units_per_record": "several", "max_copies": 2}, "counts as k=4r, however", 4),
        ({"dedup": "exact", "units_per_record": "several", "order": "dedup-redact"}, "counts as k=r, however", 2),
    ],
)
def test_repeated_values_count_as_their_sentence_says(setting, changes, words, copies):
    made = setting(**changes)
    assert words in made.repeats
    assert made.k_repeated(5) == copies
    with pytest.raises(BadInput, match="copies"):
        made.k_repeated(0)
