"""A certificate states what is proven and nothing else; where nothing is, it is refused with the reason."""

import json
import math
from dataclasses import replace
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
from scipy.special import ndtr

from confide.accounting import (
    FixedSizeGaussian,
    Gaussian,
    Noiseless,
    PoissonGaussian,
    Redraws,
    Review,
    Selection,
    SelectiveGaussian,
    ShuffledGaussian,
    corpus_epsilon,
    curve,
    issue,
    slot_epsilon,
    write,
)
from confide.accounting.certificate import evidence_from_plain, evidence_hash
from confide.accounting.curves import gaussian_delta
from confide.accounting.guarantees import Accounts, down, many, percent, up
from confide.accounting.setting import Setting
from confide.errors import BadInput, ConfideError, Refused

DELTA = 8e-5
STEPS = PoissonGaussian(0.03125, 2.0, 320)
SCHEMA = json.loads((files("confide.accounting") / "certificate.schema.json").read_text())


def guarantee(certificate, name, k=None):
    found = [g for g in certificate["guarantees"] if g["name"] == name and (k is None or g["k"] == k)]
    assert len(found) == 1, (name, k)
    return found[0]


def epsilon(certificate, name, k=None):
    return guarantee(certificate, name, k)["epsilon"]


def assumption(certificate, name):
    return next(one["text"] for one in certificate["assumptions"] if one["id"] == name)


def test_the_published_schema_describes_every_kind_of_certificate(ledger):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    noiseless = ("phase1", Noiseless(10))
    review = Review(((2, 0, 0), (0, 0, 0), "skipped", (1, 1, 0)), cap=3)
    certificates = [
        issue(ledger(name="a"), DELTA),
        issue(ledger(name="b"), DELTA, Redraws(200, 20)),
        issue(ledger(name="c", conservative="scores"), DELTA, review),
        issue(ledger(("phase2", STEPS), noiseless, name="d", method="jft"), DELTA, Redraws(200, 20)),
        issue(ledger(name="e", method="sdp"), DELTA),
        issue(ledger(name="f", mask_records="drop"), DELTA),
        issue(ledger(("train", Selection((STEPS,), mean_runs=4.0)), name="g"), DELTA),
        issue(ledger(("train", FixedSizeGaussian(0.03, 3.0, 100)), name="h", sampler="fixed-size"), DELTA),
    ]
    for certificate in certificates:
        jsonschema.validate(json.loads(json.dumps(certificate, allow_nan=False)), SCHEMA)


def test_per_secret_and_group_guarantees_are_those_of_the_curves(ledger):
    certificate = issue(ledger(), DELTA)
    assert epsilon(certificate, "per-secret") == curve([STEPS]).epsilon(DELTA)
    for k in range(1, 11):
        assert epsilon(certificate, "group", k) == curve([STEPS], k=k).epsilon(DELTA)


def test_a_group_is_never_k_epsilon_at_the_same_delta(ledger):
    certificate = issue(ledger(), DELTA)
    one = epsilon(certificate, "group", 1)
    for k in range(2, 11):
        assert epsilon(certificate, "group", k) > 1.05 * k * one


def test_detected_secrets_are_free_only_with_mask_consistency_and_redact_before_dedup(ledger):
    free = guarantee(issue(ledger(name="a"), DELTA), "detected-secret")
    assert (free["epsilon"], free["delta"], free["k"]) == (0, 0, 0)
    without = [
        ledger(name="b", mask_consistent=False),
        ledger(name="c", dedup="exact", order="dedup-redact"),
        ledger(name="d", method="dpsgd"),
    ]
    for one in without:
        names = {g["name"] for g in issue(one, DELTA)["guarantees"]}
        assert "detected-secret" not in names


@pytest.mark.parametrize(
    ("changes", "missed", "detected"),
    [
        ({"dedup": "off", "units_per_record": "several"}, 1, 0),
        ({"dedup": "exact"}, 1, 0),
        ({"dedup": "exact", "order": "dedup-redact"}, 1, 1),
        ({"dedup": "exact", "units_per_record": "several"}, 3, 0),
        ({"dedup": "exact", "units_per_record": "several", "changed_units": 2}, 5, 0),
        ({"dedup": "exact", "units_per_record": "several", "order": "dedup-redact"}, 2, 1),
        ({"mask_consistent": False}, 1, 1),
    ],
)
def test_k_follows_the_dedup_table_and_sets_the_curve(ledger, changes, missed, detected):
    certificate = issue(ledger(**changes), DELTA)
    assert (certificate["k"]["missed"], certificate["k"]["detected"]) == (missed, detected)
    assert epsilon(certificate, "per-secret") == curve([STEPS], k=missed).epsilon(DELTA)


def test_all_secrets_at_once_have_no_useful_bound_in_a_large_corpus(ledger):
    assert epsilon(issue(ledger(name="a"), DELTA), "uniform") is None
    small = issue(ledger(name="b", private_records=7), DELTA)
    assert epsilon(small, "uniform") == curve([STEPS], k=7).epsilon(DELTA)


def test_redraws_amplify_the_slot_and_a_review_amplifies_delta_only(ledger):
    main = curve([STEPS])
    slot = issue(ledger(name="a"), DELTA, Redraws(200, 20))
    gamma = slot["bounds"]["gamma"]
    assert epsilon(slot, "bayesian") == slot_epsilon(main, gamma, DELTA)
    review = Review(((1, 0, 0),) * 180 + ((1, 1, 0),) * 20, cap=1)
    corpus = issue(ledger(name="b"), DELTA, review)
    assert corpus["bounds"]["scope"] == "corpus"
    assert epsilon(corpus, "bayesian") == corpus_epsilon(main, corpus["bounds"]["gamma"], DELTA)
    assert epsilon(slot, "bayesian") < 0.5 < 1.5 < epsilon(corpus, "bayesian")


def test_what_both_policies_miss_is_in_delta(ledger):
    certificate = issue(ledger(conservative="scores"), DELTA, Redraws(200, 20, 0))
    found = guarantee(certificate, "bayesian")
    assert found["delta"] == pytest.approx(0.0184, abs=1e-4)
    assert found["epsilon"] == pytest.approx(0.485, abs=2e-3)
    assert certificate["bounds"]["delta2"] == pytest.approx(0.0183, abs=1e-4)


def test_no_amplification_in_the_papers_order(ledger):
    certificate = issue(ledger(dedup="exact", order="dedup-redact"), DELTA, Redraws(200, 20))
    assert "bayesian" not in {g["name"] for g in certificate["guarantees"]}


def test_drop_mode_uses_the_null_curve_in_both_directions(ledger):
    certificate = issue(ledger(mask_records="drop"), DELTA)
    assert certificate["adjacency"]["name"] == "zero-out"
    assert "contribute no gradient" in certificate["adjacency"]["meaning"]
    assert epsilon(certificate, "per-secret") == curve([STEPS], "zero-out").epsilon(DELTA)
    assert epsilon(certificate, "per-secret") == pytest.approx(1.01, abs=5e-3)


def test_early_stopping_is_charged_to_the_end(ledger):
    stopped = ledger(("train", PoissonGaussian(0.03125, 2.0, 50)), planned=[("train", STEPS)])
    certificate = issue(stopped, DELTA)
    assert certificate["ledger"]["steps"] == 50
    assert epsilon(certificate, "per-secret") == curve([STEPS]).epsilon(DELTA)


def test_tuning_runs_are_in_the_price(ledger):
    tuned = issue(ledger(("train", Selection((STEPS,), runs=10))), DELTA)
    assert tuned["ledger"]["steps"] == 3200
    assert epsilon(tuned, "per-secret") == pytest.approx(7.71, rel=0.01)


def test_a_random_selection_covers_the_winner_only(ledger):
    certificate = issue(ledger(("train", Selection((STEPS,), mean_runs=10.0))), DELTA)
    assert "the selected model" in guarantee(certificate, "per-secret")["sentence"]
    assert certificate["ledger"]["steps"] == STEPS.count  # one run's: the number of runs stays secret
    assert "Rényi" in certificate["accountant"]


def test_selective_privacy_is_never_comparable(ledger):
    paper = SelectiveGaussian(20.0, 3, 2, 20.0, participation=0.03125, count=320)
    certificate = issue(ledger(("train", paper), method="sdp", sampler="public", sdp_variant="paper"), DELTA)
    found = guarantee(certificate, "selective")
    assert found["epsilon"] == pytest.approx(4.17, rel=0.01)
    assert "must not be compared" in found["sentence"]
    assert "no guarantee for tokens that the policy misses" in found["sentence"]
    assert len(certificate["guarantees"]) == 1


def test_shared_batches_never_claim_amplification(ledger):
    """S-DP's own algorithm updates public tokens of the same batch without noise: its sampling probability is 1."""
    with pytest.raises(Refused, match="who takes part"):
        issue(ledger(name="a", method="sdp", sdp_variant="paper"), DELTA)
    every_step = SelectiveGaussian(20.0, 3, 2, 20.0, count=10)
    with pytest.raises(Refused, match="sampled as"):
        issue(ledger(("train", every_step), name="b", method="sdp", sdp_variant="paper"), DELTA)
    paper = issue(ledger(("train", every_step), name="c", method="sdp", sdp_variant="paper", sampler="public"), DELTA)
    sound = issue(ledger(name="d", method="sdp"), DELTA)
    assert "selective-passes" in {a["id"] for a in sound["assumptions"]} - {a["id"] for a in paper["assumptions"]}
    for certificate in (paper, sound):
        assert "MASK" not in certificate["adjacency"]["meaning"] + certificate["guarantees"][0]["sentence"]


def test_missed_secrets_that_became_public_must_be_counted(ledger):
    with pytest.raises(Refused, match="became public; count them"):
        issue(ledger(conservative="scores"), DELTA, Redraws(200, 20))


def test_weights_from_unflagged_lines_limit_whose_secrets_and_take_no_evidence(ledger):
    """A secret that both policies miss in its line is in the weights without noise, even where every record is private; and where they find it
    in its line alone, they may miss it beside the line before: then its record is public to crt."""
    flagged = {"weights": "unflagged-lines", "conservative": "digits"}
    certificate = issue(ledger(**flagged), DELTA)
    sentence = guarantee(certificate, "per-secret")["sentence"]
    assert (
        "inside a line that, looked at alone, the policy or the conservative policy flags, of a record that one of them flags as a whole"
        in sentence
    )
    private = guarantee(issue(ledger(name="e", method="dpsgd", **flagged), DELTA), "per-secret")["sentence"]
    assert "policy flags: for each" in private  # every record is private to dpsgd, whatever is flagged
    assert "the lines that neither the policy nor the conservative policy" in assumption(certificate, "start")
    assert any("A secret in a line that no policy flags" in text for text in certificate["not_promised"])
    with pytest.raises(Refused, match="counts what becomes public by records"):
        issue(ledger(name="b", **flagged), DELTA, Redraws(200, 20, 0))
    with pytest.raises(Refused, match="proven for crt and dpsgd"):
        issue(ledger(name="c", method="sdp", **flagged), DELTA)
    with pytest.raises(Refused, match="leaves no line unflagged"):
        issue(ledger(name="d", weights="unflagged-lines", conservative="everything"), DELTA)


@pytest.mark.parametrize(("weights", "nothing_is_left"), [("outside", True), ("unflagged-lines", False)])
def test_a_detected_secret_leaves_a_trace_in_weights_from_its_line_alone(ledger, weights, nothing_is_left):
    """What a policy finds with the help of the line before, it may miss in the line alone, which the weights have seen."""
    certificate = issue(ledger(weights=weights, conservative="digits", mask_consistent=True), DELTA)
    assert ("detected-secret" in {one["name"] for one in certificate["guarantees"]}) == nothing_is_left
    assert (certificate["k"]["detected"] == 0) == nothing_is_left


def test_a_noised_phase_one_must_have_steps(ledger):
    with pytest.raises(Refused, match="no step of it"):
        issue(ledger(("phase2", STEPS), method="jft", jft_phase1="noised"), DELTA)


def test_jft_without_noise_in_phase_one(ledger):
    """The worst case has no bound, the conditional one says its condition, the random secret pays γ in δ."""
    jft = ledger(("phase1", Noiseless(100)), ("phase2", STEPS), method="jft")
    certificate = issue(jft, DELTA, Redraws(200, 20))
    assert epsilon(certificate, "per-secret") is None
    assert epsilon(certificate, "caught-secret") == curve([STEPS]).epsilon(DELTA)
    assert "phase 1's redaction caught" in guarantee(certificate, "caught-secret")["sentence"]
    assert "phase 1's redaction caught" in guarantee(certificate, "group", 3)["sentence"]
    assert "phase 1's redaction caught" in certificate["ceilings"]["applies_to"]
    assert "phase1-screening" in {a["id"] for a in certificate["assumptions"]}
    found = guarantee(certificate, "bayesian")
    assert found["delta"] == pytest.approx(DELTA + certificate["bounds"]["gamma"])
    assert found["epsilon"] >= curve([STEPS]).epsilon(DELTA * 1.2) - 1e-3


def test_jft_with_noise_in_phase_one_composes_both(ledger):
    light = PoissonGaussian(0.03125, 1.0, 100)
    jft = ledger(("phase1", light), ("phase2", STEPS), method="jft", jft_phase1="noised")
    certificate = issue(jft, DELTA, Redraws(200, 20))
    both = curve([light, STEPS]).epsilon(DELTA)
    assert epsilon(certificate, "per-secret") == both
    assert curve([STEPS]).epsilon(DELTA) < epsilon(certificate, "bayesian") < both


def test_the_missing_rate_never_reaches_the_accountant(ledger):
    """JFT's heuristic multiplies the sampling rate by the missing rate: no evidence may lower the per-secret ε."""
    plain = issue(ledger(name="a"), DELTA)
    evident = issue(ledger(name="b"), DELTA, Redraws(100_000, 10))
    assert epsilon(plain, "per-secret") == epsilon(evident, "per-secret")
    assert [g for g in plain["guarantees"] if g["name"] == "group"] == [
        g for g in evident["guarantees"] if g["name"] == "group"
    ]


def test_a_keyed_bloom_filter_costs_its_false_positives(ledger):
    certificate = issue(ledger(dedup="bloom", bloom_delta=2e-5), DELTA)
    found = guarantee(certificate, "per-secret")
    assert found["delta"] == DELTA
    assert found["epsilon"] == pytest.approx(curve([STEPS]).epsilon(DELTA - 2e-5), abs=1e-6)
    exact = issue(ledger(name="exact"), DELTA)
    assert certificate["ceilings"]["balanced_accuracy"] == pytest.approx(exact["ceilings"]["balanced_accuracy"] + 1e-5)
    assert certificate["gdp"]["mu"] > exact["gdp"]["mu"]


def test_the_gaussian_summary_dominates_the_curve(ledger):
    mu = issue(ledger(), DELTA)["gdp"]["mu"]
    epsilons = np.linspace(0, 3, 777)
    deltas = curve([STEPS]).deltas(epsilons)
    assert np.all(deltas <= np.maximum(gaussian_delta(epsilons, mu), DELTA) + 1e-12)
    assert not np.all(deltas <= np.maximum(gaussian_delta(epsilons, mu * 0.98), DELTA))


def test_the_trade_off_curve_bounds_every_test(ledger):
    """Every threshold test on the dominating pair itself, here of a single step, lies below the printed ceiling."""
    single = issue(ledger(("train", PoissonGaussian(0.5, 1.0, 1)), name="single"), DELTA)
    thresholds = np.linspace(-6, 6, 2001)
    false = 0.5 * (ndtr(-thresholds) + ndtr(-thresholds - 1))  # N(0,1) and N(-1,1) in equal parts
    true = 0.5 * (ndtr(-thresholds) + ndtr(-thresholds + 1))
    for point in single["trade_off"]:
        reached = float(np.interp(point["fpr"], false[::-1], true[::-1]))
        assert reached <= point["tpr_at_most"] + 1e-6
        assert point["tpr_at_most"] <= reached + 0.1
    certificate = issue(ledger(), DELTA)
    fprs = [point["fpr"] for point in certificate["trade_off"]]
    tprs = [point["tpr_at_most"] for point in certificate["trade_off"]]
    assert tprs == sorted(tprs)
    assert {1e-4, 0.001, 0.01, 0.05, 0.1, 0.5} <= set(fprs)
    main = curve([STEPS])
    for fpr, tpr in zip(fprs, tprs, strict=True):
        for point in (0.0, 0.3, 1.0, 1.97):
            assert tpr <= math.exp(point) * fpr + main.delta(point) + 1e-3
        assert tpr >= fpr


REFUSALS = {
    "near-duplicate": {"dedup": "near"},
    "fixed hash seeds": {"dedup": "bloom", "bloom_delta": 1e-6, "bloom_keyed": False},
    "false positives alone": {"dedup": "bloom", "bloom_delta": 7e-5},
    "state bloom_delta": {"dedup": "bloom"},
    "a caught secret still decides": {"method": "jft", "dedup": "exact", "order": "dedup-redact"},
    "looks beyond the record": {"record_local": False},
    "not escaped": {"masks_escaped": False},
    "vocabulary": {"vocabulary": "private"},
    "stored seed": {"coins": "seeded"},
    "realised batch size": {"normaliser": "realised"},
    "Rényi": {"accountant": "rdp"},
    "without noise": {"method": "redacted"},
    "equal mask pattern": {"method": "sdp", "mask_records": "drop"},
    "may lose its gradient and another gain one": {
        "mask_records": "drop",
        "dedup": "exact",
        "units_per_record": "several",
    },
    "policies that look at whole documents": {
        "dedup": "exact",
        "order": "dedup-redact",
        "group_records": 2,
        "conservative": "everything",
    },
    "sampled as 'shuffled'": {"sampler": "shuffled"},
    "sampled as 'fixed-size'": {"sampler": "fixed-size"},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_each_unsound_setting_is_refused_with_its_own_reason(ledger, reason):
    with pytest.raises(Refused, match=reason):
        issue(ledger(**REFUSALS[reason]), DELTA)


def test_a_ledger_of_endless_kinds_of_steps_is_refused_before_they_are_computed(ledger):
    """Each kind takes a curve of its own: thousands of them would keep whoever verifies for hours."""
    many = [("train", PoissonGaussian(0.01, 1 + n / 1000, 1)) for n in range(101)]
    with pytest.raises(Refused, match="101 kinds of steps"):
        issue(ledger(*many), DELTA)


def test_noiseless_steps_are_refused_outside_jft(ledger):
    with pytest.raises(Refused, match="without noise"):
        issue(ledger(("train", STEPS), ("train", Noiseless(3))), DELTA)


def test_jft_with_noiseless_phase_two_is_refused(ledger):
    with pytest.raises(Refused, match="phase"):
        issue(ledger(("phase1", Noiseless(3)), ("phase2", Noiseless(3)), method="jft"), DELTA)


def test_an_empty_ledger_is_refused(tmp_path, setting):
    from confide.accounting import LedgerWriter, read_ledger

    LedgerWriter.create(tmp_path / "ledger.jsonl", setting().to_plain(), []).close()
    with pytest.raises(Refused, match="nothing was trained"):
        issue(read_ledger(tmp_path / "ledger.jsonl"), DELTA)


def test_a_million_steps_are_accounted_for():
    assert curve([PoissonGaussian(0.001, 1.0, 10**6)]).epsilon(1e-5) == pytest.approx(11.03, abs=0.01)


@pytest.mark.parametrize("phase", ["phase1", "phase2"])
@pytest.mark.parametrize("way", ["direct", "noised"])
def test_a_random_selection_does_not_pass_for_a_phase_of_jft(ledger, phase, way):
    with pytest.raises(Refused, match=r"phase|selection"):
        issue(ledger((phase, Selection((STEPS,), mean_runs=5.0)), method="jft", jft_phase1=way), DELTA)


def test_shuffled_steps_get_their_own_unamplified_number(ledger):
    certificate = issue(ledger(("train", ShuffledGaussian(2.0, 10)), sampler="shuffled"), DELTA)
    assert epsilon(certificate, "per-secret") == pytest.approx(16.3, rel=0.01)


def test_miss_rates_say_nothing_about_unredacted_training(ledger):
    with pytest.raises(Refused, match="unredacted"):
        issue(ledger(method="dpsgd"), DELTA, Redraws(200, 20))


@pytest.mark.parametrize("changes", [{}, {"conservative": "allowlist", "recall_class": "secrets with a digit"}])
def test_evidence_that_contradicts_the_setting_is_refused(ledger, changes):
    with pytest.raises(Refused, match="one of the two is wrong"):
        issue(ledger(**changes), DELTA, Redraws(200, 20, 1))


REVIEWED = Review(((1, 0, 0),) * 180 + ((1, 1, 0),) * 20, cap=3, nonce="drawn")


def test_jft_takes_evidence_with_public_misses_since_it_uses_no_delta2(ledger):
    events = ("phase2", STEPS), ("phase1", Noiseless(10))
    changes = {"method": "jft", "conservative": "allowlist", "recall_class": "secrets with a digit"}
    review = Review(((1, 0, 0),) * 180 + ((1, 1, 1),) * 20, cap=1)
    certificate = issue(ledger(*events, **changes), DELTA, review)
    bounds = certificate["bounds"]["gamma"], certificate["bounds"]["delta2"]
    assert bounds == pytest.approx(review.bounds(all_flagged=False))  # what was public is not said to be impossible
    assert guarantee(certificate, "bayesian")["delta"] == pytest.approx(DELTA + bounds[0])


@pytest.mark.parametrize("method", ["crt", "jft"])
def test_a_reviews_sentence_names_its_cap_and_its_class(ledger, method):
    events = [("phase2", STEPS), ("phase1", Noiseless(10))] if method == "jft" else []
    changes = {"method": method, "conservative": "allowlist", "recall_class": "secrets with a digit"}
    sentence = guarantee(issue(ledger(*events, **changes), DELTA, REVIEWED), "bayesian")["sentence"]
    assert "counting at most 3 a record" in sentence
    assert "secrets with a digit" in sentence


def test_the_ledger_names_the_evidence_and_no_other_is_taken(ledger):
    named = ledger(evidence=evidence_hash(REVIEWED))
    certificate = issue(named, DELTA, REVIEWED)
    assert "the ledger named them before training" in assumption(certificate, "evidence")
    assert issue(named, DELTA)["evidence"] is None  # claiming less is always allowed
    for other in (replace(REVIEWED, nonce="other"), replace(REVIEWED, records=REVIEWED.records[:180])):
        with pytest.raises(Refused, match="not the one that the ledger names"):
            issue(named, DELTA, other)


def test_a_ledger_without_evidence_looks_as_it_always_did(ledger):
    assert "evidence" not in issue(ledger(name="a"), DELTA)["setting"]
    certificate = issue(ledger(name="b"), DELTA, REVIEWED)
    assert "the ledger named" not in assumption(certificate, "evidence")


def test_a_review_says_what_it_takes_on_trust(ledger):
    text = assumption(issue(ledger(), DELTA, REVIEWED), "evidence")
    for words in (
        "flagged every finding that is no secret",
        "the only review of this corpus under these policies, in any copy or screening, or all of them are counted",
        "taken as stated",
    ):
        assert words in text


@pytest.mark.parametrize("name", ["begun", "nonce"])
def test_a_review_of_an_older_confide_is_named_as_such(ledger, name):
    plain = issue(ledger(), DELTA, REVIEWED)["evidence"]
    assert evidence_from_plain(plain) == REVIEWED
    del plain[name]
    with pytest.raises(BadInput, match=r"an older confide wrote this certificate.*issue the certificate again"):
        evidence_from_plain(plain)


def test_only_what_a_whole_mask_hides_leaves_no_trace(ledger):
    """Of `ann.smith@gmail.com` the name alone is no finding: without it the address is not found (guarantees §3)."""
    certificate = issue(ledger(mask_consistent=True), DELTA)
    whole = "is all that one mask of the policy hides (one whole finding, or several)"
    assert whole in guarantee(certificate, "detected-secret")["sentence"]
    assert whole in assumption(certificate, "mask-consistency")


def test_a_recall_class_is_named_wherever_it_is_used(ledger):
    certificate = issue(ledger(conservative="allowlist", recall_class="secrets with a digit"), DELTA, Redraws(200, 20))
    assert certificate["bounds"]["delta2"] == 0
    for name in ("per-secret", "bayesian", "uniform"):
        assert "secrets with a digit" in guarantee(certificate, name)["sentence"]


def test_sentences_say_whom_they_cover(ledger):
    certificate = issue(ledger(conservative="scores"), DELTA)
    for found in certificate["guarantees"]:
        if found["name"] != "detected-secret":
            assert "that the policy or the conservative policy flags" in found["sentence"]


@pytest.mark.parametrize("confidence", [0.95, 0.975, 0.999])
def test_confidence_is_never_rounded_up(ledger, confidence):
    certificate = issue(ledger(), DELTA, Redraws(200, 20, confidence=confidence))
    assert f"confidence {100 * confidence:.6g}%" in guarantee(certificate, "bayesian")["sentence"]


def test_a_policy_that_catches_nothing_gives_no_number_in_jft(ledger):
    jft = ledger(("phase1", Noiseless(100)), ("phase2", STEPS), method="jft")
    found = guarantee(issue(jft, DELTA, Redraws(200, 200)), "bayesian")
    assert found["epsilon"] is None
    assert "no finite bound" in found["sentence"]


def test_copies_of_a_value_count_as_dedup_leaves_them(setting):
    assert "every copy counts" in setting().repeats
    assert "k=r," in setting(dedup="exact").repeats
    assert "k=4r" in setting(dedup="exact", max_copies=2, units_per_record="several").repeats


def test_huge_epsilons_are_said_to_be_none(ledger):
    certificate = issue(ledger(("train", PoissonGaussian(0.5, 0.05, 20))), DELTA)
    json.dumps(certificate, allow_nan=False)
    assert epsilon(certificate, "group", 10) is None


@pytest.mark.parametrize("delta", [1e-10, 0.0, 1.0, math.nan])
def test_impossible_deltas_are_refused(ledger, delta):
    with pytest.raises(BadInput, match="delta"):
        issue(ledger(), delta)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "magic"},
        {"unit": "paragraph"},
        {"private_records": 0},
        {"clipping_norm": -1.0},
        {"record_local": "yes"},
        {"policy": ""},
        {"recall_class": " "},
        {"subject": 7},
        {"bloom_delta": 2.0},
    ],
)
def test_impossible_settings_are_refused(setting, changes):
    with pytest.raises(BadInput, match="setting"):
        setting(**changes)


def test_what_is_not_promised_is_said(ledger):
    gaps = " ".join(issue(ledger(conservative="scores"), DELTA)["not_promised"])
    for words in ("validation and test", "Correlated secrets", "no policy flags", "side channels"):
        assert words in gaps


def test_a_certificate_says_what_it_is_about(ledger):
    changes = {"subject": "a run", "unit": "sentence", "order": "dedup-redact", "dedup": "exact"}
    spent = [("train", PoissonGaussian(0.03125, 2.0, 20)), ("train", PoissonGaussian(0.03125, 2.0, 30))]
    made = ledger(*spent, planned=[("train", STEPS)], **changes)
    certificate = issue(made, DELTA)
    stated = {
        name: certificate[name] for name in ("confide_certificate", "subject", "method", "delta", "unit", "sampler")
    }
    assert stated == {
        "confide_certificate": 1, "subject": "a run", "method": "crt", "delta": DELTA, "unit": "sentence", "sampler": "poisson",
    }  # fmt: skip
    charged = {"kind": "poisson-gaussian", "sampling_rate": 0.03125, "noise_multiplier": 2.0, "count": 320}
    assert certificate["ledger"] == {"length": 3, "head": made.head, "steps": 50, "charged": [charged]}
    assert certificate["order"] == "dedup-redact"
    assert certificate["policies"] == {"policy": "patterns", "conservative": "everything"}
    assert certificate["setting"] == made.setting
    assert (certificate["evidence"], certificate["bounds"]) == (None, None)


def test_bounds_say_whom_they_are_about_and_how_they_were_found(ledger):
    slot = issue(ledger(name="a"), DELTA, Redraws(200, 20, confidence=0.9))
    assert slot["bounds"] == {
        "gamma": Redraws(200, 20, confidence=0.9).bounds(True)[0], "delta2": 0.0, "confidence": 0.9, "scope": "slot", "method": "Clopper-Pearson",
    }  # fmt: skip
    assert slot["evidence"] == {
        "kind": "redraws",
        "labels": 200,
        "missed": 20,
        "missed_public": None,
        "confidence": 0.9,
    }
    corpus = issue(ledger(name="b"), DELTA, REVIEWED)
    assert (corpus["bounds"]["scope"], corpus["bounds"]["method"]) == ("corpus", "always-valid e-process")
    assert corpus["evidence"]["kind"] == "review"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (math.inf, "inf"), (1.0, "1.00"), (1.2301, "1.24"), (9.999, "10.00"), (12.34, "12.4"), (123.4, "124"),
     (1234.5, "1,240"), (0.012341, "0.0124"), (0.001, "0.00100"), (0.00012341, "0.000124")],
)  # fmt: skip
def test_upper_bounds_are_rounded_upwards_for_people(value, text):
    assert up(value) == text


def test_lower_bounds_confidences_and_counts_for_people():
    assert (down(1.239), down(2.0)) == ("1.23", "2.00")
    assert (percent(0.95), percent(0.99999)) == ("95%", "99.999%")
    assert (many(0, "run"), many(1, "run"), many(2000, "run")) == ("0 runs", "1 run", "2,000 runs")


ODDS = "any conclusion is at most e^1.97 ≤ 7.18 times as likely as if <MASK> had stood there, plus 8e-05, and the other way round."
ALL_SECRETS = "For all secrets (every record is private)"


def test_sentences_are_those_of_their_numbers(ledger):
    certificate = issue(ledger(), DELTA)
    assert guarantee(certificate, "per-secret")["sentence"] == (
        f"{ALL_SECRETS}: for each one, whoever sees the model and all its intermediate states and knows everything else in the corpus, {ODDS}"
    )
    for k, words in ((1, "one record changes"), (4, "up to 4 records change")):
        sentence = guarantee(certificate, "group", k)["sentence"]
        assert sentence.startswith(f"{ALL_SECRETS}: where {words} when repeated or related ones are masked together, ")
    assert "e^10.3 ≤ 29,800 times" in guarantee(certificate, "group", 4)["sentence"]
    assert "e^13.7 times" in guarantee(certificate, "group", 5)["sentence"]  # no factor that nobody can picture


def test_all_secrets_at_once_are_counted_up_to_twenty_records(ledger):
    most = guarantee(issue(ledger(name="a", private_records=20), DELTA), "uniform")
    assert most["epsilon"] == curve([STEPS], k=20).epsilon(DELTA)
    assert "all of them in all 20 private records at once: any conclusion" in most["sentence"]
    more = guarantee(issue(ledger(name="b", private_records=21), DELTA), "uniform")
    assert (more["epsilon"], more["k"]) == (None, 21)
    assert "the largest group computed is 20, with epsilon 95." in more["sentence"]
    fixed = ledger(("train", FixedSizeGaussian(0.03, 3.0, 100)), name="c", sampler="fixed-size", private_records=7)
    assert "the largest group computed is 1, with" in guarantee(issue(fixed, DELTA), "uniform")["sentence"]
    little = ledger(("train", PoissonGaussian(0.5, 0.05, 20)), name="d", private_records=300)
    assert (
        "the largest group computed is 20, without a finite epsilon"
        in guarantee(issue(little, DELTA), "uniform")["sentence"]
    )


def test_the_paper_order_without_dedup_is_no_other_order(ledger):
    certificate = issue(ledger(order="dedup-redact"), DELTA, Redraws(200, 20))
    assert epsilon(certificate, "bayesian") == epsilon(issue(ledger(name="b"), DELTA, Redraws(200, 20)), "bayesian")


def test_a_policy_that_makes_everything_public_gives_no_number(ledger):
    found = guarantee(issue(ledger(conservative="scores"), DELTA, Redraws(10, 10, 10)), "bayesian")
    assert (found["epsilon"], found["delta"], found["k"]) == (None, 1.0, 1)
    assert "there is no finite bound" in found["sentence"]


@pytest.mark.parametrize(
    ("event", "groups"),
    [
        (STEPS, tuple(range(1, 11))),
        (FixedSizeGaussian(0.1, 2.0), (1,)),
        (SelectiveGaussian(2.0, 1, 0, participation=0.5), (1,)),
        (SelectiveGaussian(2.0, 1, 0), tuple(range(1, 11))),
    ],
)
def test_groups_have_the_sizes_that_are_proven_for_the_steps(ledger, event, groups):
    made = ledger(("train", event))
    assert Accounts(Setting.from_plain(made.setting), made).groups == groups


def test_the_gaussian_summary_of_a_gaussian_run_is_its_own_mu(ledger):
    assert 0.5 <= issue(ledger(("train", Gaussian(4.0))), DELTA)["gdp"]["mu"] <= 0.503


def test_a_run_without_any_effect_or_without_any_bound_says_so(ledger):
    nothing = issue(ledger(("train", PoissonGaussian(1e-5, 50.0)), name="a"), DELTA)["gdp"]
    assert (nothing["mu"], nothing["delta"]) == (0.0, DELTA)
    everything = issue(ledger(("train", PoissonGaussian(0.5, 0.05, 20)), name="b"), DELTA)["gdp"]
    assert everything["mu"] is None
    assert "No useful Gaussian summary" in everything["sentence"]


def test_ceilings_say_to_whom_they_apply(ledger):
    crt = issue(ledger(name="a"), DELTA)["ceilings"]
    assert (
        crt["applies_to"]
        == "private records whose masking was decided by a fair coin; not to public records or other games"
    )
    assert crt["exposure_space"] == 10**6
    assert crt["mean_exposure_chance"] < crt["mean_exposure"] < crt["mean_largest_exposure_of_10"]
    assert crt["mean_exposure_chance"] == pytest.approx(1.4427, abs=1e-4)
    assert crt["mean_largest_exposure_of_10_chance"] == pytest.approx(4.2256, abs=1e-4)
    sdp = issue(ledger(name="b", method="sdp"), DELTA)["ceilings"]
    assert "equal mask pattern" in sdp["applies_to"]
    noised = ledger(("phase1", STEPS), ("phase2", STEPS), name="c", method="jft", jft_phase1="noised")
    assert issue(noised, DELTA)["ceilings"]["applies_to"] == crt["applies_to"]


SEVERAL = {"dedup": "exact", "units_per_record": "several"}
PAPER = {"method": "sdp", "sdp_variant": "paper", "sampler": "public"}
LEDGER_REFUSALS = {
    "has the phases 'phase1' and 'phase2' only": ([("train", STEPS)], {"method": "jft"}),
    "for crt and dpsgd only": ([("train", Selection((STEPS,), mean_runs=5.0))], {"method": "sdp"}),
    "took 1,003 steps without noise": ([("train", STEPS), ("train", Noiseless(1003))], {}),
    "fixed-size batches are proven for k=1 only": (
        [("train", FixedSizeGaussian(0.1, 2.0))],
        {"sampler": "fixed-size", **SEVERAL},
    ),
    "public participation at random": (
        [("train", SelectiveGaussian(20.0, 1, 0, participation=0.5))],
        {**PAPER, **SEVERAL},
    ),
    "which shows who takes part": ([("train", SelectiveGaussian(20.0, 1, 0))], {"sampler": "public"}),
    "no noised step of phase 2": ([("phase1", STEPS)], {"method": "jft", "jft_phase1": "noised"}),
    "phase 'phase1' took 3 steps": (
        [("phase1", Noiseless(3)), ("phase2", STEPS)],
        {"method": "jft", "jft_phase1": "noised"},
    ),
}


@pytest.mark.parametrize("reason", LEDGER_REFUSALS)
def test_each_ledger_that_does_not_fit_its_setting_is_refused_with_its_own_reason(ledger, reason):
    entries, changes = LEDGER_REFUSALS[reason]
    with pytest.raises(Refused, match=reason):
        issue(ledger(*entries, **changes), DELTA)


def test_what_is_proven_for_one_record_alone_is_taken_for_one_record(ledger):
    fixed = issue(ledger(("train", FixedSizeGaussian(0.1, 20.0)), name="a", sampler="fixed-size"), DELTA)
    assert {one["k"] for one in fixed["guarantees"] if one["name"] == "group"} == {1}
    several = ledger(("train", SelectiveGaussian(20.0, 1, 0)), name="b", **PAPER, **SEVERAL)
    assert issue(several, DELTA)["k"]["missed"] == 3


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ({"kind": "redraws", "labels": 10}, "lacks a field"),
        ({"kind": "redraws", "labels": 10, "missed": 1, "colour": "red"}, "lacks a field or has an unknown one"),
        ({"kind": "review", "begun": 1, "nonce": "", "cap": 1}, "lacks a field"),
        ({"kind": "review", "begun": 1, "nonce": "", "cap": 1, "records": 5}, "lacks a field"),
        ({"kind": "survey"}, "of an unknown kind"),
        ({}, "of an unknown kind"),
    ],
)
def test_evidence_that_cannot_be_read_is_told_apart(plain, reason):
    with pytest.raises(BadInput, match=reason):
        evidence_from_plain(plain)


def test_evidence_survives_its_way_into_a_certificate_and_back(ledger):
    for name, evidence in (("a", Redraws(200, 20, confidence=0.9)), ("b", Review(("skipped", (1, 0, 0)), cap=2))):
        plain = json.loads(json.dumps(issue(ledger(name=name), DELTA, evidence)["evidence"]))
        assert evidence_from_plain(plain) == evidence
        assert evidence_hash(evidence_from_plain(plain)) == evidence_hash(evidence)
    assert evidence_from_plain(None) is None


def test_a_certificate_is_written_as_text_for_people_or_the_place_is_named(tmp_path, ledger):
    certificate = issue(ledger(subject="chats from Zürich"), DELTA)
    write(certificate, tmp_path / "certificate.json")
    text = (tmp_path / "certificate.json").read_text()
    assert json.loads(text) == certificate
    assert '\n  "subject": "chats from Zürich",\n' in text
    assert text.endswith("}\n")
    with pytest.raises(ConfideError, match="cannot write the certificate"):
        write(certificate, tmp_path / "nowhere" / "certificate.json")
