"""Verification accepts what was issued and nothing else."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.accounting import (
    Ledger,
    LedgerWriter,
    PoissonGaussian,
    Redraws,
    SelectiveGaussian,
    Setting,
    issue,
    read_ledger,
    verify,
    write,
)
from confide.accounting.agreement import disagreements
from confide.accounting.verification import differences
from confide.errors import BadInput, ConfideError, Contradiction
from confide.rundir import model_files


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


@pytest.fixture
def released(run):
    """A run whose ledger names the files of the model beside it."""
    (run / "model").mkdir()
    for name, content in (("model.safetensors", "weights"), ("config.json", "{}"), ("notes.md", "anything")):
        (run / "model" / name).write_text(content)
    with LedgerWriter.resume(run / "ledger.jsonl") as writer:
        writer.name_model(model_files(run / "model"))
    write(issue(read_ledger(run / "ledger.jsonl"), 1e-5, Redraws(100, 5)), run / "certificate.json")
    return run


def test_the_model_of_a_run_is_the_one_that_its_ledger_names(released):
    assert verify(released).model
    assert verify(released).certificate["ledger"]["model"].keys() == {"model.safetensors", "config.json"}
    assert not verify(released / "certificate.json").model  # of which nothing lies beside it
    (released / "model" / "notes.md").write_text("something else")
    assert verify(released).model
    (released / "model").rename(released / "elsewhere")
    assert not verify(released).model


@pytest.mark.parametrize("change", ["changed", "lost", "added"])
def test_a_model_with_other_files_is_not_the_certified_one(released, change):
    path = released / "model" / ("tokenizer.json" if change == "added" else "model.safetensors")
    path.unlink() if change == "lost" else path.write_text("other")
    with pytest.raises(Contradiction, match=f"does not hold the model that this run made.*: '{path.name}'; "):
        verify(released)
    assert not verify(released / "certificate.json").model


# -- leaf by leaf ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "rebuilt", "found"),
    [
        ({"a": 1.0 + 9e-7}, {"a": 1.0}, []),
        ({"a": 1.0 + 2e-6}, {"a": 1.0}, ["a says 1.000002, recomputed 1"]),
        ({"a": 9e-13}, {"a": 0.0}, []),
        ({"a": 2e-12}, {"a": 0.0}, ["a says 2e-12, recomputed 0"]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1.0}, {"a": 1}, ["a says 1.0, recomputed 1"]),
        ({"a": True}, {"a": 1}, ["a says True, recomputed 1"]),
        ({"a": 1}, {"a": True}, ["a differs from what the ledger implies"]),
        ({"a": 0}, {"a": None}, ["a differs from what the ledger implies"]),
        ({"a": "x"}, {"a": "y"}, ["a differs from what the ledger implies"]),
        ({"a": [1]}, {"a": {}}, ["a differs from what the ledger implies"]),
        ({}, {"a": {"b": 1}}, ["a is missing"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, ["a.c does not belong there"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a has 1 entries, should have 2"]),
        ({"a": [1, 3]}, {"a": [1, 2]}, ["a[1] says 3, recomputed 2"]),
        ({"a": [{"id": "x", "v": 1}]}, {"a": [{"id": "x", "v": 2}]}, ["a[x].v says 1, recomputed 2"]),
        ({"a": [{"name": "x", "k": 3, "v": 1}]}, {"a": [{"name": "x", "k": 3, "v": 2}]}, ["a[x k=3].v says 1, recomputed 2"]),
        ({"assumptions": []}, {"assumptions": [{"id": "x"}]}, ["assumption 'x' is missing", "assumptions has 0 entries, should have 1"]),
    ],
)  # fmt: skip
def test_each_leaf_that_differs_is_named(stated, rebuilt, found):
    assert list(differences(stated, rebuilt)) == found


def test_three_contradictions_are_told_and_the_others_counted(run):
    def change(certificate, count):
        for name in ("subject", "method", "unit", "sampler", "order")[:count]:
            certificate[name] = "other"

    whole = (run / "certificate.json").read_bytes()
    for count, more in ((3, ""), (5, r" \(and 2 more\)")):
        (run / "certificate.json").write_bytes(whole)
        edit(run, lambda certificate, count=count: change(certificate, count))
        with pytest.raises(Contradiction, match=rf"subject differs[^;]*; method [^;]*; unit [^;]*implies{more} \("):
            verify(run)


def test_every_number_that_was_recomputed_is_counted(run):
    verified = verify(run)

    def numbers(value):
        if isinstance(value, dict | list):
            return sum(map(numbers, value.values() if isinstance(value, dict) else value))
        return type(value) in (int, float)

    assert verified.numbers == numbers(verified.certificate)


# -- option by option --------------------------------------------------------------------------------------------------


def signed(*planned, **changes):
    setting = Setting(**{"method": "crt", "unit": "turn", "policy": "patterns", "conservative": "everything",
                         "private_records": 1000, "clipping_norm": 1.0, **changes})  # fmt: skip
    stated = {"delta": 1e-5, "guarantees": [{"name": "per-secret", "epsilon": 2.0}]}
    return Ledger(setting.to_plain(), planned, (), 1, "0" * 64), stated


CRT = signed(("train", PoissonGaussian(0.05, 2.0, 40)))
TWO_RUNS = signed(("tuning", PoissonGaussian(0.05, 2.0, 80)), ("train", PoissonGaussian(0.05, 2.0, 40)))
JFT = signed(
    ("phase1", PoissonGaussian(0.05, 3.0, 20)),
    ("phase2", PoissonGaussian(0.05, 2.0, 40)),
    method="jft",
    jft_phase1="noised",
)
SDP = signed(
    ("train", SelectiveGaussian(20.0, 3, 2, 30.0, count=4)), method="sdp", sdp_variant="paper", sampler="public"
)
REVIEWED = signed(
    ("train", PoissonGaussian(0.05, 2.0, 40)), evidence="ab", vocabulary="external", weights="unflagged-lines"
)


@pytest.mark.parametrize(
    ("certified", "options", "noise"),
    [
        (CRT, {"method": "crt", "delta": 1e-5, "clip_norm": 1.0, "noise": 2.0, "epochs": 2, "private_batch_size": 50, "review": None,
               "vocabulary_from": None, "weights_from": "outside", "mask_records": "train", "variant": "any", "epsilon": 2.0}, {"train": 2.0}),
        (CRT, {"epochs": 1, "ratio": 2.0, "epsilon": 3.0, "noise": None}, {"train": 2.0 + 1e-7}),
        (CRT, {"epochs": 2.05}, {"train": 2.0}),
        (TWO_RUNS, {"tuning_runs": 2}, {"train": 2.0}),
        (JFT, {"method": "jft", "phase1": "noised", "phase1_noise": 3.0, "noise": 2.0, "epochs": 2, "phase1_epochs": 1},
         {"phase1": 3.0, "phase2": 2.0}),
        (SDP, {"method": "sdp", "variant": "paper", "segments": 3, "state_noise": 30.0, "epochs": 4, "noise": 20.0}, {"train": 20.0}),
        (REVIEWED, {"review": "review.json", "vocabulary_from": "words", "weights_from": "unflagged-lines"}, {"train": 2.0}),
    ],
)  # fmt: skip
def test_options_that_a_certificate_was_issued_for_agree_with_it(certified, options, noise):
    ledger, stated = certified
    assert list(disagreements({"options": options, "noise": noise}, stated, ledger)) == []


@pytest.mark.parametrize(
    ("certified", "options", "phrase"),
    [
        (CRT, {"private_batch_size": 51}, "--private-batch-size says 51, certified is 50.0"),
        (CRT, {"epochs": 3}, "--epochs and --ratio make 60 steps of train, certified are 40"),
        (CRT, {"epochs": 2, "ratio": 2.0}, "--epochs and --ratio make 80 steps of train, certified are 40"),
        (CRT, {"epochs": 1.9}, "--epochs and --ratio make 38 steps of train, certified are 40"),
        (CRT, {"epsilon": 1.9}, "--epsilon says 1.9, certified is 2"),
        (CRT, {"noise": 2.1}, "--noise says 2.1, certified is 2.0"),
        (CRT, {"noise": True}, "--noise says True, certified is 2.0"),
        (CRT, {"review": "review.json"}, "--review is named, and certified without it"),
        (CRT, {"vocabulary_from": "words"}, "--vocabulary-from is named, and certified without it"),
        (CRT, {"weights_from": "unflagged-lines"}, "--weights-from says 'unflagged-lines', certified is 'outside'"),
        (CRT, {"mask_records": "drop"}, "--mask-records says 'drop', certified is 'train'"),
        (CRT, {"tuning_runs": 1}, "--tuning-runs says 1, certified is another number"),
        (TWO_RUNS, {"tuning_runs": 3}, "--tuning-runs says 3, certified is another number"),
        (JFT, {"phase1_noise": 2.0}, "--phase1-noise says 2.0, certified is 3.0"),
        (JFT, {"phase1": "direct"}, "--phase1 says 'direct', certified is 'noised'"),
        (JFT, {"phase1_epochs": 3}, "--epochs and --ratio make 60 steps of phase1, certified are 20"),
        (SDP, {"variant": "sound"}, "--variant says 'sound', certified is 'paper'"),
        (SDP, {"segments": 2}, "--segments says 2, certified is 3"),
        (SDP, {"state_noise": 20.0}, "--state-noise says 20.0, certified is 30.0"),
        (SDP, {"epochs": 3}, "--epochs says 3, certified is 4"),
        (REVIEWED, {"review": None}, "--review is missing, and certified with it"),
    ],
)  # fmt: skip
def test_an_option_that_says_something_else_is_named_with_both_values(certified, options, phrase):
    ledger, stated = certified
    assert list(disagreements({"options": options}, stated, ledger)) == [phrase]


def test_a_target_is_about_the_secrets_that_were_caught_where_a_certificate_says_so():
    ledger, stated = JFT
    caught = {"name": "caught-secret", "epsilon": 1.5}
    nothing = {**stated, "guarantees": [{"name": "per-secret", "epsilon": None}]}
    conditional = {**stated, "guarantees": [*nothing["guarantees"], caught, {**caught, "epsilon": 9.0}]}
    for found, agrees in ((nothing, [True, True]), (conditional, [True, False])):
        assert [not list(disagreements({"options": {"epsilon": e}}, found, ledger)) for e in (1.5, 1.4)] == agrees


def test_the_noise_of_a_configuration_is_about_the_same_phases():
    ledger, stated = JFT
    assert list(disagreements({"options": {}, "noise": {"phase2": 2.0}}, stated, ledger)) == [
        "noise is about other phases than phase1, phase2"
    ]
    wrong = {"options": {}, "noise": {"phase1": 3.1, "phase2": 2.0}}
    assert list(disagreements(wrong, stated, ledger)) == ["noise of phase1 says 3.1, certified is 3.0"]
