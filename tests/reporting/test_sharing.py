"""What may leave the house holds no private number, no folder, and no number of a model that nothing covers."""

import json

import pytest

from confide.accounting import verify
from confide.policies import policy_name
from confide.reporting import report
from confide.reporting.card import card
from confide.reporting.gather import gather, siblings
from confide.reporting.sharing import shareable, without_paths

pytestmark = pytest.mark.usefixtures("undrawn")


def test_the_card_comes_with_a_certificate_without_evidence(make, tmp_path):
    run = make(tmp_path / "run")
    report(run)
    assert json.loads((run / "certificate.json").read_text())["evidence"] is not None
    assert verify(run / "certificate-shareable.json").certificate["evidence"] is None
    text = (run / "model" / "README.md").read_text()
    assert "confide verify certificate-shareable.json" in text
    assert "`certificate.json`" not in text


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("list:data/hospital/patients.txt", "list:patients.txt"),
        ("known:alice smith/st mary clinic/patients.txt", "known:patients.txt"),
        ("known:/home/alice smith/st mary clinic/patients.txt", "known:patients.txt"),
        ("known:s3://clinic-bucket/hiv/patients.txt", "known:patients.txt"),
        ("union(pii, known:hiv ward/p.txt)", "union(pii, known:p.txt)"),
        ("miss(customersim, 0.1)", "miss(customersim, 0.1)"),
        ("python:clinic:find", "python:clinic:find"),
    ],
)
def test_a_policy_keeps_the_last_component_of_its_argument(make, tmp_path, words, spec, name):
    assert policy_name(spec) == without_paths(spec) == name
    run = make(tmp_path / "run", policy=spec, parts=("certificate", "model"))
    text = words(report(run, shareable=True)) + (run / "model" / "README.md").read_text()
    for folder in ("hospital", "alice", "st mary", "hiv", "bucket"):
        assert folder not in text
    assert name in text


def test_a_policy_in_a_folder_keeps_its_name_alone(make, tmp_path):
    run = make(tmp_path / "run", policy="ward 7, left/policy.yaml", parts=("certificate", "model"))
    text = report(run, shareable=True).read_text() + (run / "model" / "README.md").read_text()
    assert "policy.yaml" in text
    assert "ward" not in text


def test_options_that_may_be_shared_name_no_file_and_no_class(make, tmp_path, words):
    run = make(tmp_path / "run", validation="/home/u/hiv_patients.jsonl", review="/s/ward.json", classes=["cancer", "hiv"],
               screened_by_hand="/h/clinic 7/by hand.jsonl", tokenizer="clinic/tokens", vocabulary_from="wards.txt",
               special_tokens=["CANCER:"], tuning_runs=3, model="data/oncology/m")  # fmt: skip
    text = words(report(run, shareable=True)) + (run / "model" / "README.md").read_text()
    for word in ("hiv", "clinic", "by hand.jsonl", "cancer", "CANCER", "ward", "oncology", "181920"):
        assert word not in text
    assert "tuning_runs 3" in text


def test_the_report_says_which_folders_the_chain_of_hashes_keeps(make, tmp_path, words):
    run = make(tmp_path / "run", parts=("certificate", "model"))
    assert "Before you pass the certificate and the ledger on: they name patterns of /home/alice/models/m" in words(
        report(run)
    )
    assert "/home/alice" not in words(report(run, shareable=True))


def test_numbers_of_a_model_without_a_certificate_are_withheld_everywhere(make, tmp_path, words):
    crt = make(tmp_path / "crt")
    plain = make(tmp_path / "plain", "plain", parts=("model", "attacks"))
    line = plain / "telemetry.jsonl"
    line.write_text(line.read_text().replace("1.2", "2.7"))  # a perplexity of 14.88
    assert "perplexity 14.88" in words(report(crt))
    pages = (
        report(plain, shareable=True),
        report(crt, shareable=True),
        report([crt, plain], tmp_path / "c.html", shareable=True),
    )
    for page in (*map(words, pages), card(shareable(gather(plain)))):
        assert "14.88" not in page
    assert "Numbers of plain are withheld" in words(pages[2])
    assert words(pages[2]).count("0.23") == 2  # the audit of crt, in both tables; not that of plain


def test_what_does_not_compare_is_said_in_what_may_be_shared_too(make, tmp_path, words):
    one, other = make(tmp_path / "a" / "one"), make(tmp_path / "b" / "other")
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("d" * 64, "e" * 64))
    for shared in (False, True):
        text = words(report([one, other], tmp_path / "c.html", shareable=shared))
        assert "not trained on the same screened records" in text
        assert "Utilities do not compare" not in text


@pytest.mark.parametrize(
    "choice", [{"validation": "/x/easy.jsonl"}, {"validate_on": "all"}, {"validation_share": 0.5}, {"task": "classify"},
               {"model": "gpt2-tiny"}, {"tokenizer": "t"}, {"vocabulary_from": "v"}, {"vocabulary_size": 9}]
)  # fmt: skip
def test_perplexities_stand_side_by_side_only_if_they_compare(make, tmp_path, words, choice):
    parts = ("model",)
    one, other = make(tmp_path / "one", "plain", parts=parts), make(tmp_path / "other", "plain", parts=parts, **choice)
    name = next(iter(choice)).replace("_", " ")
    assert siblings(gather(one)) == ([], [("other", [name])])
    assert f"Left out, since their utility does not compare: other (other {name})." in words(report(one))
    for shared in (False, True):
        text = words(report([one, other], tmp_path / "c.html", shareable=shared))
        assert f"Utilities do not compare. other differs from one in: {name}." in text
        assert "easy" not in text
