"""Nothing is shown as promised that the ledger, the attacks and the review do not bear out."""

import json

import pytest

from confide.accounting import PoissonGaussian, issue, read_ledger, verify, write
from confide.accounting.ledger import LedgerWriter
from confide.errors import BadInput
from confide.reporting import report
from confide.reporting.card import card
from confide.reporting.gather import gather, siblings
from confide.reporting.sharing import shareable as shared
from confide.wording import share_up

HOLDS = "The certificate holds"
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def run(make, tmp_path):
    return make(tmp_path / "here" / "run")


def review(run):
    return run.parent / "screened" / "review.json"


def forge(run, value=0.011):
    """A certificate that says what its ledger does not."""
    path = run / "certificate.json"
    certificate = json.loads(path.read_text())
    for one in certificate["guarantees"]:
        one["epsilon"] = value
    path.write_text(json.dumps(certificate))


def test_a_certificate_that_does_not_hold_is_red_and_comes_first(run, words):
    forge(run, 0.5)
    (run / "attacks.json").unlink()
    shown = report(run)
    source = shown.read_text(encoding="utf-8")
    assert source.index('class="verdict broken" role="alert"') < source.index('class="tile"')
    assert "recomputed 1.2" in source
    assert HOLDS not in source
    assert "Promised for one secret nothing" in words(shown)
    assert "ε ≤" not in words(shown)


def test_the_epsilon_of_a_forged_certificate_is_no_result_anywhere(run, make, words):
    forge(run)
    found = gather(run)
    assert found.main is None
    assert found.certificate is None
    assert all(one["epsilon"] is None for one in found.validations)
    text = card(shared(found))
    assert "**Nothing: The certificate does not hold.**" in text
    assert "differential-privacy" not in text
    other = make(run.parent / "other")
    compared = words(report([run, other], run.parent / "compared.html"))
    assert "crt The certificate does not hold none –" in compared
    assert "ε = 0.011" not in compared


def test_an_attack_that_contradicts_the_certificate_is_red_and_comes_first(run, change):
    change(run / "attacks.json", contradictions=["That contradicts it: epsilon 9."])
    for shareable in (False, True):
        source = report(run, shareable=shareable).read_text(encoding="utf-8")
        assert source.index("That contradicts it: epsilon 9.") < source.index('class="tile"')
        assert "verdict broken" in source


def test_a_secret_of_the_class_in_a_public_record_refutes_the_certificate(run, change, words):
    rows = [[1, 1, 1]] * 50
    change(review(run), records=rows)
    text = words(report(run))
    assert "A reviewer found a secret that the conservative policy is said to flag" in text
    assert "Reviewers found 50 missed secrets in public records" in text
    for said in (HOLDS, "Train again", "ε ≤"):
        assert said not in text
    public = words(report(run, shareable=True)) + (run / "model" / "README.md").read_text()
    assert public.count("An assumption of the certificate was refuted") == 2
    for said in ("eviewer", "ε =", "e^1.22"):
        assert said not in public.split("Glossary")[0]
        assert said not in (run / "model" / "README.md").read_text()
    assert not (run / "certificate-shareable.json").exists()


def test_every_public_miss_is_on_the_first_screen(make, tmp_path, change, words):
    run = make(tmp_path / "r" / "run", conservative="digits")
    assert "Warning." not in words(report(run))
    change(review(run), records=lambda rows: [*rows, [1, 1, 1]])
    text = words(report(run))
    assert text.index("Reviewers found 1 missed secret in public records") < text.index("Promised for one secret")
    covered = make(tmp_path / "r" / "dpsgd", "dpsgd", parts=("model", "certificate"))
    assert "in public records" not in words(report(covered)).split("What the policy misses With")[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "rests on this review as it stands"),
        ({"records": lambda rows: [*rows, [1, 0, 0]]}, "its first 178 draws, of 179 now"),
        ({"records": lambda rows: [[1, 0, 0], *rows[1:]]}, "other answers than those of this review"),
        ({"nonce": "another"}, "other answers than those of this review"),
    ],
)
def test_the_report_says_how_the_certificate_and_the_review_differ(run, change, words, changes, said):
    change(review(run), **changes)
    assert said in words(report(run))


def test_a_review_that_came_after_the_certificate_is_said_to_be_unused(run, words):
    write(issue(read_ledger(run / "ledger.jsonl"), 1e-5), run / "certificate.json")
    assert "The certificate was issued without this review. Train again" in words(report(run))


def test_the_epsilon_of_a_neighbour_is_verified_too(make, run, words):
    forged = make(run.parent / "forged")
    forge(forged)
    for shareable in (False, True):
        text = words(report(run, shareable=shareable))
        assert HOLDS in text
        assert "0.011" not in text
    assert [one.main for one in siblings(gather(run))[0]] == [None]


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"confide_certificate": 1, "ledger": {"length": 5}}', "\x00"])
def test_a_damaged_certificate_is_one_that_does_not_hold(run, make, content, words):
    (make(run.parent / "neighbour") / "certificate.json").write_text(content)
    assert HOLDS in words(report(run))
    (run / "certificate.json").write_text(content)
    for shareable in (False, True):
        assert "The certificate does not hold" in words(report(run, shareable=shareable))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("attacks", {"audit": None}),
        ("attacks", {"audit": {"black_box": 3}}),
        ("attacks", {"contradictions": [3]}),
        ("attacks", {"exposure": []}),
        ("review", {"records": 3}),
        ("review", {"records": [[1, 2, 3]]}),
        ("review", {"types": []}),
        ("review", {"types": {"NAME": {}}}),
        ("review", {"reviewers": 2}),
        ("review", {"agreement": [3]}),
        ("manifest", {"private": "many"}),
        ("manifest", {"policy": None}),
    ],
)
def test_what_is_damaged_is_said_to_be_and_hurts_no_neighbour(run, make, change, name, changes):
    path = run / "attacks.json" if name == "attacks" else run.parent / "screened" / f"{name}.json"
    change(path, **changes)
    for shareable in (False, True):
        with pytest.raises(BadInput, match=rf"{name}\.json is damaged; "):
            report(run, shareable=shareable)
    if name == "attacks":
        assert siblings(gather(make(run.parent / "other"))) == ([], [])


def test_damaged_telemetry_is_left_out(run, words):
    path = run / "telemetry.jsonl"
    bad = [
        '{"slot": "x", "validation_loss": 1}',
        '{"slot": 1, "validation_loss": "NaN"}',
        "3",
        '{"slot": 1, "epsilon": NaN}',
    ]
    path.write_text("\n".join(bad) + "\n" + path.read_text())
    assert len(gather(run).validations) == 2


def test_an_audit_is_held_against_the_certificate_and_not_against_what_it_says_of_it(run, change, words):
    def worse(audit):
        return {"black_box": {**audit["black_box"], "lower_bound": 9.0, "reach": 9.5, "certified": 99.0}}

    change(run / "attacks.json", audit=worse)
    for shareable in (False, True):
        text = words(report(run, shareable=shareable))
        assert "An attack contradicts the certificate" in text
        assert "at least 9.00, but the certificate promises at most 1.22 for 1 changed record" in text
        assert "99" not in text.split("What is promised")[0]


def test_an_audit_of_several_records_is_held_against_their_epsilon(run, change):
    def grouped(audit):
        return {"black_box": {**audit["black_box"], "records": 3, "certified": 0.1, "lower_bound": 2.0}}

    change(run / "attacks.json", audit=grouped)
    found = gather(run)
    three = next(one for one in found.certificate["guarantees"] if one["name"] == "group" and one["k"] == 3)
    assert found.attacks["audit"]["black_box"]["certified"] == three["epsilon"] > 2
    assert found.holds


def test_attacks_on_another_certificate_are_said_to_be_and_lose_their_ceilings(run, change, words):
    change(run / "attacks.json", certificate=lambda stated: {**stated, "epsilon": 2.0})
    text = words(report(run))
    assert "The attacks below do not belong to this certificate." in text
    assert "another certificate (epsilon 2.00)" in text
    assert "61.0 %" not in text


def test_a_promise_for_flagged_secrets_only_says_so_first(make, tmp_path, words):
    only = "only for secrets that a policy flags"
    some = make(tmp_path / "a" / "some", conservative="digits", parts=("certificate", "model"))
    every = make(tmp_path / "a" / "every", parts=("certificate", "model"))
    first = words(report(some)).split("What is promised")[0]
    assert "O" + only[1:] in first
    assert gather(every).condition == ""
    compared = words(report([some, every], tmp_path / "compared.html"))
    assert compared.count(f"1.22 (conditional: {only})") == 1


def test_a_class_is_described_once_beside_the_guarantees(make, tmp_path, words):
    which = "secrets that hold a digit, of which this test has many words to say"
    run = make(tmp_path / "run", conservative="digits", recall_class=which, parts=("certificate", "model"))
    text = words(report(run))
    assert text.count(which) == 2  # in the box, and among the assumptions
    assert text.index(which) < text.index("What is promised")


def test_a_ledger_that_was_swapped_breaks_the_certificate_and_launders_nothing(run, words):
    report(run, shareable=True)
    assert verify(run / "certificate-shareable.json").certificate["evidence"] is None
    ledger = run / "ledger.jsonl"
    setting = read_ledger(ledger).setting
    ledger.unlink()
    with LedgerWriter.create(ledger, setting, [("train", PoissonGaussian(0.05, 20.0, 1))]) as writer:
        writer.append(PoissonGaussian(0.05, 20.0, 1), "train")
    for shareable in (True, False):
        assert "The certificate does not hold" in words(report(run, shareable=shareable))
        assert not (run / "certificate-shareable.json").exists()


def test_without_a_ledger_there_is_a_report_that_may_be_shared_too(run, words):
    (run / "ledger.jsonl").unlink()
    for shareable in (False, True):
        assert "The certificate does not hold" in words(report(run, shareable=shareable))


@pytest.mark.parametrize(
    "lie",
    [{"bound": 0.001}, {"bound_public": 0.01}, {"contradicted": True}, {"begun": None}],
    ids=lambda lie: next(iter(lie)),
)
def test_a_review_that_says_something_else_than_its_counts_is_left_out(run, change, words, lie):
    path = review(run)
    found = {**json.loads(path.read_text()), **lie}
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))
    text = words(report(run))
    assert ("an older confide wrote it" if "begun" in lie else "it was changed") in text.lower()
    assert "random draws of records counted" not in text


def test_a_review_that_was_only_opened_is_none(run, change, words):
    change(review(run), records=[], reviewers={}, agreement=[])
    text = words(report(run))
    assert "A review was begun, but nothing was answered." in text
    assert "misses at most 100" not in text


def test_a_review_names_its_reviewers_what_counts_and_all_secrets(run, change, words, nasty):
    outside = {"secrets": 12, "missed": 5, "public": 4}
    change(review(run), outside_class=outside, bound_all=0.4567, bound_public_all=0.3, begun=2)
    text = words(report(run))
    bound = json.loads(review(run).read_text())["bound"]
    for said in (
        f"at most {share_up(bound)} of the secrets of the class that the conservative policy flags by construction, counting at most 10 a record",
        "Of all secrets it misses at most 45.7 %", "Outside of the class 12 secrets were seen, 5 of them missed, 4 of those in public records",
        "178 random draws of records counted", f"Reviewers: alice (161,718 answered, 3 skipped), {nasty} (41 answered).",
        f"alice and {nasty} agree whether something was missed on 97.6 % of the 41 records that both answered, kappa 0.82.",
        "2 secrets beyond that number", "review number 2", "Reviewers found 4 missed secrets in public records",
    ):  # fmt: skip
        assert said in text


def test_a_review_as_confide_review_writes_it_can_be_read(tmp_path, make, words):
    from confide.review import open_store, save
    from confide.screening import screen

    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"call 555 0{n} please"}) + "\n" for n in range(30)))
    run = make(tmp_path / "run", parts=("certificate", "model"))
    (tmp_path / "screened").rmdir()
    screened = screen(str(corpus), "digits", tmp_path / "screened", workers=1)
    store = open_store(tmp_path / "screened", sample=20, reviewer="alice")
    for place in range(5):
        store.act(place, "skip" if place == 4 else "answer", 0)
    save(store)
    store.close()
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("d" * 64, screened.manifest["digest"]))
    text = words(report(run))
    assert "Reviewers: alice (4 answered, 1 skipped)." in text
