"""Killed at any moment, a run goes on: every step that was taken is paid for, none beyond the plan, and the model is whole."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from confide.accounting import read_ledger, verify
from confide.dp import PrivateGradients
from confide.errors import BadInput, ConfideError, Contradiction
from confide.training import Run, make_plan, plan_of, train_plan
from confide.training.loop import Work

FORK = multiprocessing.get_context("fork")  # a child that need not import torch again


def child(made, out, diary, resume, kill_at):
    """Train in a process that dies at its n-th touch of the run's folder; released steps are noted in a diary."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    release = PrivateGradients.release

    def noted(self, step):
        release(self, step)
        with open(diary, "a") as file:
            file.write("step\n")

    PrivateGradients.release = noted
    touched = 0

    def hook(event, arguments):
        nonlocal touched
        if event not in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"):
            return
        if str(out) in str(arguments[0]):
            touched += 1
            if touched == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    train_plan(plan_of(out) if resume else made, out, resume=resume)
    (out.parent / "touched").write_text(str(touched))


def attempt(made, out, diary, resume, kill_at=0):
    process = FORK.Process(target=child, args=(made, out, diary, resume, kill_at))
    process.start()
    process.join(60)
    assert not process.is_alive()
    return process.exitcode


@pytest.fixture(scope="module")
def made(screened, small):
    return make_plan(screened, **small(checkpoint_every=3, reserve=2, epochs=2, tuning_runs=1, keep="best"))


@pytest.fixture(scope="module")
def touches(made, tmp_path_factory):
    """How often an uninterrupted run touches its folder."""
    home = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    assert attempt(made, home / "run", home / "diary", False) == 0
    return int((home / "touched").read_text())


def check_whole(out, made, diary):
    run, plan = Run(out), made.private["train"]
    run.model()
    ledger = read_ledger(out / "ledger.jsonl")
    paid = sum(event.count for phase, event in ledger.spent if phase == "train")
    earlier = sum(event.count for phase, event in ledger.spent if phase == "tuning")
    taken = len(diary.read_text().split()) if diary.exists() else 0
    assert taken <= paid <= plan.steps
    assert earlier == made.options.tuning_runs * plan.steps
    assert verify(out).certificate["guarantees"] == made.certificate()["guarantees"]
    for line in run.telemetry():
        assert line["slot"] <= 1000
    assert not list(out.rglob("*.partial"))


@pytest.mark.parametrize("point", range(6))
def test_killed_at_any_touch_of_its_folder_a_run_goes_on_and_counts_every_step(made, touches, tmp_path, point):
    coins = random.Random(point)
    out, diary = tmp_path / "run", tmp_path / "diary"
    early = point < 3  # where a folder is being made
    kill_at = coins.randint(1, 30) if early else coins.randint(1, touches)
    assert attempt(made, out, diary, False, kill_at) == -signal.SIGKILL
    if coins.random() < 0.7:
        attempt(made, out, diary, out.exists(), coins.randint(1, touches))
    assert attempt(made, out, diary, out.exists()) == 0, "what was left behind can neither be resumed nor begun anew"
    check_whole(out, made, diary)


def test_to_resume_what_has_ended_changes_nothing(made, tmp_path):
    run = train_plan(made, tmp_path / "run").folder
    (run / "model" / "README.md").write_text("a card")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    train_plan(plan_of(run), run, resume=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_ends_of_a_run_too(made, touches, tmp_path):
    for back in (1, 6):
        out, diary = tmp_path / f"run{back}", tmp_path / f"diary{back}"
        assert attempt(made, out, diary, False, touches - back) == -signal.SIGKILL
        assert attempt(made, out, diary, True) == 0
        check_whole(out, made, diary)


# -- what a resumed run restores --------------------------------------------------------------------------------------


def stop_before(monkeypatch, name, number):
    """Make the n-th call of a step of the loop fail."""
    calls, step = iter(range(1, 1000)), getattr(Work, name)

    def stops(work, *arguments):
        if next(calls) == number:
            raise KeyboardInterrupt
        return step(work, *arguments)

    monkeypatch.setattr(Work, name, stops)


def test_an_interrupted_public_run_ends_as_if_nothing_had_happened(screened, small, tmp_path, monkeypatch, weights):
    made = make_plan(screened, **small(method="plain", dropout=0.1, checkpoint_every=4, schedule="linear"))
    whole = train_plan(made, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_before(patch, "public_step", 11)
        with pytest.raises(KeyboardInterrupt):
            train_plan(made, tmp_path / "run")
    resumed = train_plan(plan_of(tmp_path / "run"), tmp_path / "run", resume=True)  # in the same process, too
    one, other = weights(whole), weights(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)
    lines = [line for line in whole.telemetry() if line["slot"] > 11]
    assert lines
    assert lines == [line for line in resumed.telemetry() if line["slot"] > 11]


def test_steps_that_were_paid_for_and_lost_are_not_taken_again(screened, small, tmp_path, monkeypatch):
    made = make_plan(
        screened, **small(checkpoint_every=100, reserve=1, order="private-first", epochs=1, private_batch_size=20)
    )
    assert made.private["train"].steps == 6
    with monkeypatch.context() as patch:
        stop_before(patch, "private_step", 4)
        with pytest.raises(KeyboardInterrupt):
            train_plan(made, tmp_path / "run")
    released, release = [], PrivateGradients.release
    monkeypatch.setattr(PrivateGradients, "release", lambda self, step: (released.append(1), release(self, step)))
    run = train_plan(plan_of(tmp_path / "run"), tmp_path / "run", resume=True)
    assert len(released) == 3
    assert sum(event.count for _, event in read_ledger(run.folder / "ledger.jsonl").spent) == 6


def test_coins_are_fresh_after_a_resume(screened, small, tmp_path, monkeypatch):
    made = make_plan(screened, **small(checkpoint_every=1, reserve=1, order="private-first", epochs=1))
    stopped = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_before(patch, "private_step", 2)
        with pytest.raises(KeyboardInterrupt):
            train_plan(made, stopped)
    shutil.copytree(stopped, tmp_path / "twin")
    ends = [train_plan(plan_of(folder), folder, resume=True) for folder in (stopped, tmp_path / "twin")]
    one, other = (load_file(run.folder / "model" / "model.safetensors") for run in ends)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_killed_after_the_last_step_the_trained_weights_are_written(copied, finished):
    for name in ("model", "certificate.json"):
        path = copied / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run = train_plan(plan_of(copied), copied, resume=True)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (finished.folder, run.folder))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert run.certificate == finished.certificate
    assert run.telemetry() == finished.telemetry()


def test_a_finished_run_that_is_resumed_stays_as_it_is(copied, finished):
    ledger = (copied / "ledger.jsonl").read_bytes()
    run = train_plan(plan_of(copied), copied, resume=True)
    assert (copied / "ledger.jsonl").read_bytes() == ledger
    assert run.certificate == finished.certificate


def test_tokens_with_filled_masks_cannot_be_made_again_and_nobody_is_told_to_remove_them(
    screened, small, tmp_path, monkeypatch
):
    made = make_plan(screened, **small(epochs=2, checkpoint_every=1, fill_masks=True))
    with monkeypatch.context() as patch:
        stop_before(patch, "private_step", 3)
        with pytest.raises(KeyboardInterrupt):
            train_plan(made, tmp_path / "run")
    told = {}
    for tokens in (tmp_path / "run" / "screened").glob("*/ids.bin"):
        whole = tokens.read_bytes()
        tokens.write_bytes(whole[:-1])
        with pytest.raises(BadInput) as refused:
            train_plan(plan_of(tmp_path / "run"), tmp_path / "run", resume=True)
        told[tokens.parent.name] = str(refused.value)
        tokens.write_bytes(whole)
    drawn = [text for text in told.values() if "cannot be made again" in text]
    assert drawn
    assert all("from a backup, or start a new run" in text and "remove" not in text for text in drawn)
    assert all("remove it, and they are made again" in text for text in told.values() if text not in drawn)
    train_plan(plan_of(tmp_path / "run"), tmp_path / "run", resume=True)


@pytest.mark.parametrize("interrupted", [0, 1])
def test_both_phases_of_jft_can_be_resumed(screened, small, tmp_path, monkeypatch, interrupted):
    made = make_plan(screened, **small(method="jft", epochs=1, checkpoint_every=2, reserve=1))
    with monkeypatch.context() as patch:
        stop_before(patch, ("public_step", "private_step")[interrupted], 4)
        with pytest.raises(KeyboardInterrupt):
            train_plan(made, tmp_path / "run")
    run = train_plan(plan_of(tmp_path / "run"), tmp_path / "run", resume=True)
    ledger = read_ledger(run.folder / "ledger.jsonl")
    assert [phase for phase, _ in ledger.spent].count("phase1") == 1
    assert sum(event.count for phase, event in ledger.spent if phase == "phase2") == made.private["phase2"].steps
    verify(run.folder)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_ledger_that_was_cut_is_refused(copied):
    lines = (copied / "ledger.jsonl").read_text().splitlines(keepends=True)
    (copied / "ledger.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(Contradiction, match="cut off"):
        train_plan(plan_of(copied), copied, resume=True)
    (copied / "ledger.jsonl").unlink()
    with pytest.raises(ConfideError, match="ledger"):
        train_plan(plan_of(copied), copied, resume=True)


def test_a_ledger_that_was_changed_is_refused(copied):
    text = (copied / "ledger.jsonl").read_text()
    (copied / "ledger.jsonl").write_text(text.replace('"count":', '"count": ', 1))
    with pytest.raises(Contradiction):
        train_plan(plan_of(copied), copied, resume=True)


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(copied):
    newest = sorted((copied / "checkpoints").glob("0*"))[-1]
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    said = []
    run = train_plan(plan_of(copied), copied, resume=True, say=said.append)
    assert len(said) == 1
    assert str(newest) in said[0]
    run.model()
    verify(run.folder)


def test_only_damaged_checkpoints_are_a_clear_error(copied):
    for checkpoint in (copied / "checkpoints").glob("0*"):
        (checkpoint / "state.json").write_text("{}")
    with pytest.raises(BadInput, match=r"no checkpoint under .* can be used"):
        train_plan(plan_of(copied), copied, resume=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", 9), ("learning_rate", 0.5), ("model", "gpt2-tiny"), ("epsilon", 99.0), ("noise", 1.0)],
)
def test_another_option_is_refused_by_its_name(copied, name, value):
    with pytest.raises(BadInput, match=f"another --{name.replace('_', '-')}"):
        plan_of(copied, None, {name: value})


def test_a_corpus_that_was_screened_anew_is_refused(copied, screen_texts, plain_texts):
    with pytest.raises(BadInput, match="screened anew"):
        plan_of(copied, screen_texts(plain_texts, policy="digits", conservative="everything").folder)


def test_a_changed_noise_in_the_configuration_is_refused(copied):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["noise"]["train"] /= 2
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(BadInput, match="begun for another plan"):
        train_plan(plan_of(copied), copied, resume=True)


@pytest.mark.parametrize("content", [None, "", "- 1\n", "options: 3\n", "a: [", b"\xff\xfe\x00"], ids=repr)
def test_a_missing_or_damaged_configuration_is_said(copied, content):
    path = copied / "config.yaml"
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=r"config\.yaml"):
        plan_of(copied)


def test_half_a_line_of_telemetry_is_forgotten(copied, finished):
    with (copied / "telemetry.jsonl").open("a") as file:
        file.write('{"phase": "tr')
    assert train_plan(plan_of(copied), copied, resume=True).telemetry() == finished.telemetry()


def test_a_half_written_best_model_is_never_the_result(screened, small, tmp_path, monkeypatch):
    """Killed while the best model is written: what is kept is a whole model."""
    made = make_plan(screened, **small(keep="best", checkpoint_every=1, epochs=2))
    from confide.training import loop

    calls, save = iter(range(1, 10)), loop.save

    def torn(model, tokenizer, folder):
        save(model, tokenizer, folder)
        if next(calls) == 2:
            (folder / "model.safetensors").write_bytes(b"half")
            raise KeyboardInterrupt

    losses = iter([3.0, 2.0, 5.0])
    monkeypatch.setattr("confide.training.evaluation.quick", lambda *_, **__: {"loss": next(losses), "accuracy": 0.5})
    monkeypatch.setattr(loop, "save", torn)
    with pytest.raises(KeyboardInterrupt):
        train_plan(made, tmp_path / "run")
    (tmp_path / "run" / "best.replaced").mkdir()  # a power cut brought back what was removed last
    run = train_plan(plan_of(tmp_path / "run"), tmp_path / "run", resume=True)
    run.model()
    assert not (tmp_path / "run" / "best.replaced").exists()


def test_two_at_once_are_refused(copied):
    from confide.accounting import LedgerWriter

    with LedgerWriter.resume(copied / "ledger.jsonl"), pytest.raises(BadInput, match="another process is writing"):
        train_plan(plan_of(copied), copied, resume=True)
    assert json.loads((copied / "certificate.json").read_text())
