"""Verification accepts what was issued and nothing else."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.accounting import LedgerWriter, PoissonGaussian, Redraws, Setting, issue, read_ledger, verify, write
from confide.accounting.verification import differences
from confide.errors import BadInput, ConfideError, Contradiction


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    setting = Setting("crt", "turn", "patterns", "everything", 1000, 1.0, mask_consistent=True, subject="a run")
    step = PoissonGaussian(0.05, 2.0, 40)
    with LedgerWriter.create(folder / "ledger.jsonl", setting.to_plain(), [("train", step)]) as writer:
        for _ in range(4):
            writer.append(PoissonGaussian(0.05, 2.0, 10))
    write(issue(read_ledger(folder / "ledger.jsonl"), 1e-5, Redraws(100, 5)), folder / "certificate.json")
    return folder


@pytest.fixture
def run(original, tmp_path):
    for name in ("ledger.jsonl", "certificate.json"):
        (tmp_path / name).write_bytes((original / name).read_bytes())
    return tmp_path


def edit(run, change):
    path = run / "certificate.json"
    certificate = json.loads(path.read_text())
    change(certificate)
    path.write_text(json.dumps(certificate))


def test_a_fresh_certificate_holds(run):
    assert verify(run).ledger_length == 5
    assert verify(run / "certificate.json").numbers > 50


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from leaves(inner, (*path, i))
    else:
        yield path


def changed(value):
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 1.01 + 1e-4
    return value + "x"


def test_a_folder_without_a_certificate_is_told_why_there_is_none(tmp_path):
    with pytest.raises(BadInput, match="baselines, which add no noise, never have one"):
        verify(tmp_path)


def test_any_changed_leaf_is_caught(original):
    """All of them: what is compared is everything that `verify` rebuilds."""
    rebuilt = verify(original).certificate
    for path in leaves(rebuilt):
        certificate = json.loads(json.dumps(rebuilt))
        holder = certificate
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = changed(holder[path[-1]])
        assert list(differences(certificate, rebuilt)), path


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_changed_leaf_of_the_file_is_caught(original, data):
    folder = original / "edited"
    folder.mkdir(exist_ok=True)
    (folder / "ledger.jsonl").write_bytes((original / "ledger.jsonl").read_bytes())
    certificate = json.loads((original / "certificate.json").read_text())
    path = data.draw(st.sampled_from(list(leaves(certificate))))
    holder = certificate
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = changed(holder[path[-1]])
    (folder / "certificate.json").write_text(json.dumps(certificate))
    with pytest.raises(ConfideError):
        verify(folder)


def test_a_number_that_is_one_percent_too_small_is_named(run):
    def shrink(certificate):
        certificate["guarantees"][0]["epsilon"] *= 0.99

    edit(run, shrink)
    with pytest.raises(Contradiction, match=r"guarantees\[per-secret k=1\].epsilon says"):
        verify(run)


def test_a_missing_assumption_is_named(run):
    edit(run, lambda c: c["assumptions"].pop(3))
    with pytest.raises(Contradiction, match="assumption 'coins' is missing"):
        verify(run)


def test_a_missing_gap_and_an_added_promise_are_caught(run):
    edit(run, lambda c: c["not_promised"].pop())
    with pytest.raises(Contradiction, match="not_promised"):
        verify(run)


def test_a_cut_off_ledger_is_caught(run):
    path = run / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(Contradiction, match="cut off"):
        verify(run)


def test_a_ledger_that_went_on_is_caught(run):
    with LedgerWriter.resume(run / "ledger.jsonl") as writer:
        writer.append(PoissonGaussian(0.05, 2.0, 10))
    with pytest.raises(Contradiction, match="added later"):
        verify(run)


def test_a_rewritten_ledger_is_caught(run):
    old = read_ledger(run / "ledger.jsonl")
    (run / "ledger.jsonl").unlink()
    with LedgerWriter.create(run / "ledger.jsonl", old.setting, old.planned) as writer:
        for _ in range(4):
            writer.append(PoissonGaussian(0.05, 2.5, 10))
    with pytest.raises(Contradiction, match="rewritten"):
        verify(run)


def test_another_setting_than_the_ledgers_is_caught(run):
    def loosen(certificate):
        certificate["setting"]["mask_records"] = "drop"

    edit(run, loosen)
    with pytest.raises(Contradiction, match=r"setting\.mask_records"):
        verify(run)


def test_whole_numbers_are_compared_exactly(run):
    edit(run, lambda c: c["ledger"].update(steps=40.00001))
    with pytest.raises(Contradiction, match=r"ledger\.steps"):
        verify(run)


@pytest.mark.parametrize("version", [2, 0, "1", None, 1.5])
def test_another_schema_is_refused(run, version):
    edit(run, lambda c: c.update(confide_certificate=version))
    with pytest.raises(BadInput, match="schema"):
        verify(run)


@pytest.mark.parametrize("place", ["guarantees", "delta", "length"])
def test_absurd_numbers_are_refused_without_being_echoed(run, place):
    def absurd(certificate):
        if place == "guarantees":
            certificate["guarantees"][0]["epsilon"] = 10**400
        elif place == "delta":
            certificate["delta"] = 10**400
        else:
            certificate["ledger"]["length"] = 10**400

    edit(run, absurd)
    with pytest.raises(ConfideError) as caught:
        verify(run)
    assert len(str(caught.value)) < 400


def test_a_field_named_twice_is_caught(run):
    path = run / "certificate.json"
    path.write_text(path.read_text().replace('"epsilon":', '"epsilon": 0.01, "epsilon":', 1))
    with pytest.raises(Contradiction, match="twice"):
        verify(run)


def test_a_ledger_line_spelled_otherwise_is_caught(run):
    path = run / "ledger.jsonl"
    raw = path.read_bytes()
    for changed_bytes in (
        raw.replace(b'"noise_multiplier":2.0', b'"noise_multiplier":9.0,"noise_multiplier":2.0', 1),
        raw.replace(b"\n", b"\r\n"),
    ):
        path.write_bytes(changed_bytes)
        with pytest.raises(Contradiction, match="not written by confide"):
            verify(run)


def test_an_emptied_ledger_is_a_contradiction_and_a_ledger_is_no_certificate(run):
    with pytest.raises(BadInput, match="is a ledger"):
        verify(run / "ledger.jsonl")
    (run / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(Contradiction, match="cut off"):
        verify(run)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '"certificate"', "[" * 100_000])
def test_files_that_are_no_certificates_are_explained(run, text):
    (run / "certificate.json").write_text(text)
    with pytest.raises(BadInput, match="not a certificate"):
        verify(run)


def test_truncated_json_is_explained(run):
    path = run / "certificate.json"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(BadInput, match="cut off"):
        verify(run)


def test_missing_files_are_explained(run, tmp_path):
    (run / "ledger.jsonl").unlink()
    with pytest.raises(BadInput, match="ledger"):
        verify(run)
    with pytest.raises(BadInput, match="certificate"):
        verify(tmp_path / "nowhere")


@pytest.mark.parametrize("key", ["delta", "ledger", "evidence", "guarantees", "setting", "k"])
@pytest.mark.parametrize("value", ["text", 7, [], {}])
def test_parts_of_the_wrong_kind_never_crash(run, key, value):
    edit(run, lambda c: c.update({key: value}))
    with pytest.raises(ConfideError):
        verify(run)


def test_the_ledger_may_lie_elsewhere(run, tmp_path):
    elsewhere = tmp_path / "elsewhere.jsonl"
    (run / "ledger.jsonl").rename(elsewhere)
    assert verify(run / "certificate.json", elsewhere).ledger_length == 5


# -- the run's configuration -------------------------------------------------------------------------------------------

OPTIONS = {
    "method": "crt",
    "delta": 1e-5,
    "clip_norm": 1.0,
    "epochs": 2,
    "noise": 2.0,
    "private_batch_size": 50,
    "seed": 3,
}


def configure(run, **changed):
    config = {"noise": {"train": 2.0}, "options": {**OPTIONS, **changed}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def test_the_configuration_of_a_run_must_not_contradict_its_certificate(run, capsys):
    configure(run)
    assert verify(run).ledger_length == 5
    configure(run, seed=4)  # of which the certificate says nothing
    assert verify(run).ledger_length == 5
    for option, value in (("delta", 1e-3), ("noise", 3.0), ("method", "dpsgd"), ("epochs", 3)):
        configure(run, **{option: value})
        with pytest.raises(Contradiction, match=f"config.yaml is not what .* for: --{option}") as found:
            verify(run)
        assert found.value.exit_code == 3
        assert verify(run / "certificate.json").ledger_length == 5  # which holds by itself


def test_a_configuration_without_an_option_is_that_of_an_older_confide(run):
    for left_out in OPTIONS:
        config = {"options": {name: value for name, value in OPTIONS.items() if name != left_out}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        assert verify(run).ledger_length == 5


@pytest.mark.parametrize(
    "content", ["{", "3", "options: 1", "options: {epochs: a}", "{noise: 1, options: {}}", "options: {epochs: 1.0e400}"]
)
def test_a_damaged_configuration_is_bad_input(run, content):
    (run / "config.yaml").write_text(content)
    with pytest.raises((BadInput, Contradiction), match=r"config\.yaml"):
        verify(run)
