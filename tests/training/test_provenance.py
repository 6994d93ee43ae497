"""What a run takes besides its records must not come from those records."""

import json
import shutil

import pytest

from confide.accounting import verify
from confide.errors import BadInput, Contradiction, Refused
from confide.screening import screen
from confide.training import make_plan, plan_of, train_plan


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = [
        f"the parcel of customer {n:06d} was sent" if n % 2 else "all of it was fine thank you" for n in range(300)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "outside.txt").write_text("we hope that all of it was fine and thank you for the kind words\n" * 50)
    for name, conservative in (("screened", "allowlist"), ("again", "nothing")):
        screen(str(folder / "chats.jsonl"), "digits", folder / name, conservative=conservative, dedup="off")
    return folder


@pytest.mark.parametrize("name", ["vocabulary_from", "validation"])
@pytest.mark.parametrize("where", ["chats.jsonl", "*.jsonl", "screened/private", "screened", "again/public", "."])
def test_the_corpus_is_no_outside_text(corpus, small, name, where):
    with pytest.raises(Refused, match="text of the corpus that is trained on") as told:
        make_plan(corpus / "screened", **small(**{name: str(corpus / where)}))
    assert "customer" not in str(told.value)


def test_outside_text_and_baselines_are_free(corpus, small):
    make_plan(corpus / "screened", **small(vocabulary_from=str(corpus / "outside.txt")))
    make_plan(corpus / "screened", **small(method="plain", vocabulary_from=str(corpus / "chats.jsonl")))


def test_weights_and_vocabularies_of_a_run_on_the_same_corpus_are_refused(corpus, small, tmp_path):
    run = train_plan(make_plan(corpus / "screened", **small(method="plain", epochs=1)), tmp_path / "run").folder
    for screened in ("screened", "again"):
        for choices in (
            {"model": str(run / "model")},
            {"tokenizer": str(run / "model")},
            {"tokenizer": str(run / "checkpoints" / "tokenizer")},
        ):
            with pytest.raises(Refused, match="comes from a run on these very records"):
                make_plan(corpus / screened, **small(**choices))


def test_weights_that_were_copied_elsewhere_still_say_what_they_were_trained_on(corpus, small, tmp_path):
    run = train_plan(make_plan(corpus / "screened", **small(method="plain", epochs=1)), tmp_path / "run")
    copy = tmp_path / "copy"
    run.model().save_pretrained(copy)  # without anything else of the run
    run.tokenizer().save_pretrained(copy)
    with pytest.raises(Refused, match="comes from a run on these very records"):
        make_plan(corpus / "screened", **small(model=str(copy)))
    (tmp_path / "other.jsonl").write_text('{"text": "all of it was fine"}\n' * 300)
    screen(str(tmp_path / "other.jsonl"), "digits", tmp_path / "other", conservative="everything", dedup="off")
    other = small(model=str(copy), epochs=1)
    later = train_plan(make_plan(tmp_path / "other", **other), tmp_path / "later").model()
    later.save_pretrained(tmp_path / "third")
    shutil.copytree(
        copy, tmp_path / "third", dirs_exist_ok=True, ignore=shutil.ignore_patterns("config.json", "*.safetensors")
    )
    with pytest.raises(Refused, match="comes from a run on these very records"):
        make_plan(corpus / "screened", **small(model=str(tmp_path / "third")))


def test_a_configuration_alone_knows_no_records_but_its_vocabulary_may(corpus, small, tmp_path):
    run = train_plan(make_plan(corpus / "screened", **small(epochs=1)), tmp_path / "run")
    run.model().save_pretrained(tmp_path / "copy")
    run.tokenizer().save_pretrained(tmp_path / "copy")
    choices = small(model=str(tmp_path / "copy"), from_scratch=True, epochs=1)
    with pytest.raises(Refused, match="--model's vocabulary comes from a run on these very records"):
        make_plan(corpus / "screened", **choices)
    again = make_plan(corpus / "screened", **choices, vocabulary_from=str(corpus / "outside.txt"))
    assert "weights" not in train_plan(again, tmp_path / "again").certificate["setting"]


def test_what_stands_for_masks_is_not_drawn_again_in_the_middle_of_a_run(corpus, small, tmp_path):
    run = train_plan(make_plan(corpus / "screened", **small(epochs=1, fill_masks=True)), tmp_path / "run").folder
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "screened")
    with pytest.raises(BadInput, match="what stands for the masks"):
        train_plan(plan_of(run), run, resume=True)


@pytest.mark.parametrize(
    ("name", "change"),
    [("config.json", ('"bos_token_id"', '"other_token_id"')), ("tokenizer.json", ("<MASK>", "<mask>"))],
)
def test_a_certificate_says_nothing_of_another_configuration_or_vocabulary(corpus, small, tmp_path, name, change):
    run = train_plan(make_plan(corpus / "screened", **small(epochs=1)), tmp_path / "run").folder
    path = run / "model" / name
    (run / "model" / "README.md").write_text("a card is no part of the model")
    assert verify(run).model
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(Contradiction, match=f"does not hold the model that this run made.*{name}"):
        verify(run)


def test_a_certificate_says_nothing_of_other_weights(corpus, small, tmp_path):
    run = train_plan(make_plan(corpus / "screened", **small(epochs=1)), tmp_path / "run").folder
    assert verify(run).model
    other = train_plan(make_plan(corpus / "screened", **small(method="plain", epochs=1)), tmp_path / "plain").folder
    (run / "model").rename(tmp_path / "kept")
    shutil.copytree(other / "model", run / "model")
    with pytest.raises(Contradiction, match="does not hold the model that this run made"):
        verify(run)
    assert not verify(run / "certificate.json").model
    shutil.rmtree(run / "model")
    assert not verify(run).model
    again = train_plan(plan_of(run), run, resume=True).folder  # writes the same weights again, and names them once
    assert verify(again).model
    ledger = (run / "ledger.jsonl").read_text().splitlines()
    assert sum('"model":' in line for line in ledger) == 1


def test_a_ledger_that_was_cut_is_not_gone_on_with_though_no_checkpoint_tells(corpus, small, tmp_path):
    run = train_plan(make_plan(corpus / "screened", **small(reserve=1)), tmp_path / "run").folder
    ledger = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join(ledger[:3]))
    for checkpoint in (run / "checkpoints").glob("0*"):
        shutil.rmtree(checkpoint)
    before = (run / "certificate.json").read_text()
    with pytest.raises(Contradiction, match="counts more steps than the ledger"):
        train_plan(plan_of(run), run, resume=True)
    assert (run / "certificate.json").read_text() == before


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"method": "jft", "screened_by_hand": "some.jsonl"}, "--phase1 hand-screened"),
        ({"method": "jft", "phase1_noise": 2.0}, "--phase1 noised"),
        ({"method": "dpsgd", "ratio": 5.0}, "--ratio changes nothing for dpsgd"),
        ({"method": "jft", "ignore_mask": True}, "--ignore-mask changes nothing for jft"),
        ({"method": "sdp", "segments": 3}, "--segments changes nothing for sdp --variant sound"),
        ({"method": "plain", "ignore_mask": True}, "--ignore-mask changes nothing for plain"),
        ({"method": "dpsgd", "fill_masks": True}, "--fill-masks changes nothing for dpsgd"),
        ({"fill_masks": True, "mask_records": "drop"}, "--mask-records drop leaves out"),
        ({"dropout": 1.0}, "--dropout must be below 1"),
        ({"lora": 4, "model": "lstm:hidden_size=16"}, "the LSTM has none"),
    ],
)
def test_options_that_change_nothing_or_cannot_be_are_refused(corpus, small, choices, says):
    with pytest.raises(BadInput, match=says):
        make_plan(corpus / "screened", **small(**choices))


def test_a_first_phase_that_spends_all_leaves_no_steps_to_offer(corpus, small):
    choices = {"method": "jft", "phase1": "noised", "phase1_noise": 0.5, "epsilon": 2.0, "delta": 1e-5}
    with pytest.raises(Refused, match="smallest possible epsilon") as told:
        make_plan(corpus / "screened", **small(**choices))
    assert "steps fit" not in str(told.value)


def test_a_delta_that_means_nothing_is_said_to(corpus, small):
    assert any("delta 0.5" in note for note in make_plan(corpus / "screened", **small(delta=0.5)).notes)
    assert not any("delta" in note for note in make_plan(corpus / "screened", **small(delta=1e-4)).notes)


def test_the_loss_of_private_records_is_not_shown_as_public(corpus, small, tmp_path):
    shown = {}
    for method in ("crt", "jft", "plain", "redacted"):
        run = train_plan(make_plan(corpus / "screened", **small(method=method, epochs=1)), tmp_path / method)
        shown[method] = {name for line in run.telemetry() for name in line if name.endswith("_loss")} - {
            "validation_loss"
        }
    assert shown == {"crt": {"public_loss"}, "jft": set(), "plain": {"training_loss"}, "redacted": {"training_loss"}}
