"""A certificate names the assumptions that its setting rests on, all of them and no others, and what it does not promise."""

import pytest

from confide.accounting import Redraws, Review
from confide.accounting.assumptions import assumptions, not_promised

ALWAYS = {
    "adjacency",
    "sampler",
    "clipping",
    "coins",
    "ledger",
    "public-part",
    "start",
    "policies",
    "record-alignment",
}
REVIEW = Review(((1, 0, 0),), cap=1)


def texts(setting, evidence=None, **more):
    return {one["id"]: one["text"] for one in assumptions(setting, evidence, **more)}


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, set()),
        ({"mask_consistent": True}, {"mask-consistency"}),
        ({"recall_class": "secrets with a digit"}, {"recall-class"}),
        ({"dedup": "exact"}, {"dedup"}),
        ({"dedup": "near"}, set()),
        ({"dedup": "bloom", "bloom_delta": 1e-6}, {"dedup", "bloom"}),
        ({"dedup": "exact", "units_per_record": "several"}, {"dedup", "units"}),
        ({"dedup": "off", "units_per_record": "several"}, set()),
        ({"method": "dpsgd"}, set()),
        ({"method": "jft"}, {"phase1-screening"}),
        ({"method": "jft", "jft_phase1": "hand-screened"}, {"phase1-screening"}),
        ({"method": "jft", "jft_phase1": "noised"}, set()),
        ({"method": "crt", "jft_phase1": "hand-screened"}, set()),
        ({"method": "sdp"}, {"mask-pattern", "selective-passes"}),
        ({"method": "sdp", "sdp_variant": "paper"}, {"mask-pattern", "selective-releases"}),
        ({"method": "crt", "sdp_variant": "paper"}, set()),
    ],
)
def test_a_setting_has_the_assumptions_that_it_rests_on_and_no_others(setting, changes, more):
    assert texts(setting(**{"mask_consistent": False, **changes})).keys() == ALWAYS | more


def test_a_selection_and_evidence_add_one_assumption_each(setting):
    alone = texts(setting()).keys()
    assert texts(setting(), selected=True).keys() == alone | {"selection"}
    for evidence in (Redraws(10, 0), REVIEW):
        assert texts(setting(), evidence).keys() == alone | {"evidence"}


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"sampler": "shuffled"}, "sampler", "once an epoch"),
        ({"sampler": "fixed-size"}, "sampler", "fixed size without replacement"),
        ({"clipping_norm": 0.25}, "clipping", "norm at most 0.25,"),
        ({"recall_class": "secrets with a digit"}, "recall-class", "by construction: secrets with a digit."),
        ({"dedup": "bloom", "bloom_delta": 2e-6}, "bloom", "cost 2e-06 is inside delta"),
        ({"method": "jft"}, "phase1-screening", "redacts the record alike"),
        ({"method": "jft", "jft_phase1": "hand-screened"}, "phase1-screening", "chosen by index"),
    ],
)
def test_an_assumption_says_what_this_setting_chose(setting, changes, name, words):
    assert words in texts(setting(**changes))[name]


def test_only_the_class_flagged_by_construction_counts_in_a_review(setting):
    only = "Only secrets of the class that is flagged by construction count."
    flagged = setting(conservative="allowlist", recall_class="secrets with a digit")
    assert texts(flagged, REVIEW)["evidence"].endswith(only)
    assert only not in texts(flagged, Redraws(10, 0))["evidence"] + texts(setting(), REVIEW)["evidence"]


MISSED = "A secret that no policy flags is trained on without noise"
WHOLE = "A secret in a record that no policy flags as a whole is trained on without noise"
FIRST_PHASE = "A secret that phase 1's redaction misses is trained on without noise"
LINE = "A secret in a line that no policy flags was in the initial weights without noise"
TOKENS = "Tokens that the policy misses have no guarantee at all"


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, []),
        ({"conservative": "scores"}, [MISSED]),
        ({"method": "dpsgd", "conservative": "scores"}, []),
        ({"weights": "unflagged-lines", "conservative": "scores"}, [WHOLE, LINE]),
        ({"method": "jft"}, [FIRST_PHASE]),
        ({"method": "jft", "jft_phase1": "hand-screened"}, [FIRST_PHASE]),
        ({"method": "jft", "jft_phase1": "noised"}, []),
        ({"method": "sdp", "conservative": "scores"}, [TOKENS]),
    ],
)
def test_what_is_trained_on_without_noise_comes_first_among_the_gaps(setting, changes, more):
    always = not_promised(setting())
    found = not_promised(setting(**changes))
    assert found[len(more) :] == always
    assert all(text.startswith(words) for text, words in zip(found[: len(more)], more, strict=True))
