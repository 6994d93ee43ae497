"""Each method is what it says: equal to its limits bit for bit, and to a case that can be worked out by hand."""

import json
import math
import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy

from confide.accounting import read_ledger
from confide.dp import PrivateGradients
from confide.models.loading import write_sums
from confide.records import MASK
from confide.training import make_plan, steps
from confide.training.building import new_model, new_tokenizer
from confide.training.corpus import TokenFile
from confide.training.loop import Work
from confide.training.provenance import TRAINED_ON

GPT = "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2"
LSTM = "lstm:hidden_size=16,embedding_size=16"
ONE_STEP = {"optimizer": "sgd", "learning_rate": 0.5, "epochs": 1, "validation_share": 0.0, "batch_size": 1000}


@pytest.fixture
def same(weights):
    def check(one, other):
        one, other = weights(one), weights(other)
        assert one.keys() == other.keys()
        return all(torch.equal(one[name], other[name]) for name in one)

    return check


@pytest.fixture(scope="module")
def public(screen_texts, plain_texts):
    """A corpus in which everything is public."""
    return screen_texts(plain_texts)


@pytest.fixture(scope="module")
def private(screen_texts, plain_texts):
    """The same texts, all of them private, nothing redacted."""
    return screen_texts(plain_texts, conservative="everything")


# -- limits -----------------------------------------------------------------------------------------------------------


def test_crt_with_everything_public_is_plain_training(public, trained, same):
    crt, plain = (trained(public, method=method, dropout=0.1) for method in ("crt", "plain"))
    assert same(crt, plain)
    assert crt.certificate is None
    assert crt.summary()["certificate"] is None


def test_crt_with_everything_private_is_dpsgd_with_the_same_coins(private, public, outside, trained, same, coins):
    choices = {"vocabulary_from": outside, "validation_share": 0.0, "learning_rate": 0.01}
    runs = []
    for corpus, method in ((private, "crt"), (private, "dpsgd"), (public, "dpsgd")):
        coins()
        runs.append(trained(corpus, method=method, **choices))
    assert same(runs[0], runs[1])
    assert same(runs[1], runs[2])  # to DP-SGD the parts are one
    first, second = (read_ledger(run.folder / "ledger.jsonl") for run in runs[:2])
    assert (first.planned, first.spent) == (second.planned, second.spent)
    coins(1)
    assert not same(runs[0], trained(private, method="crt", **choices))


def test_jft_with_a_policy_that_finds_nothing_is_fine_tuning_and_then_dpsgd(public, outside, trained, same, coins):
    choices = {"vocabulary_from": outside, "learning_rate": 0.01, "epochs": 1}
    coins()
    both = trained(public, method="jft", **choices)
    first = trained(public, method="plain", **choices)
    coins()
    # As if it came from elsewhere: weights of a run on the same records are refused.
    model = shutil.copytree(first.folder / "model", first.folder.with_name("elsewhere") / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({name: one for name, one in config.items() if name != TRAINED_ON}))
    write_sums(model)
    second = trained(public, method="dpsgd", learning_rate=0.01, epochs=1, model=str(model))
    assert same(both, second)
    assert not same(both, first)


def test_redacted_training_is_plain_training_on_the_screened_text(screened, trained, same, screen_texts):
    redacted = trained(screened, method="redacted", epochs=1)
    assert not same(redacted, trained(screened, method="plain", epochs=1))
    anonymized = trained(screened, method="anonymized", epochs=1)
    tokenizer = anonymized.tokenizer()
    assert any(token.startswith("<") and token not in (MASK,) for token in tokenizer.get_added_vocab())
    assert redacted.certificate is anonymized.certificate is None


# -- one step by hand -------------------------------------------------------------------------------------------------


def begin(corpus, options):
    """The plan, the model before its first step, and its tokenizer."""
    made = make_plan(corpus, **options)
    tokenizer, _, _ = new_tokenizer(made)
    return made, new_model(made, tokenizer)[0], tokenizer


def encoded(tokenizer, texts, max_length=32):
    """The framing of a record, worked out anew: [bos] text [eos], a mask being one token."""
    found = []
    for text in texts:
        ids = [tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id]
        for i, piece in enumerate(text.split(MASK)):
            ids += [tokenizer.mask_token_id] if i else []
            ids += tokenizer(piece, add_special_tokens=False)["input_ids"]
        found.append(torch.tensor([*ids, tokenizer.eos_token_id][:max_length]))
    return found


def nll(model, ids, ignored=None):
    """The losses of a record's tokens after the first, from a model without padding or batches."""
    losses = cross_entropy(model(input_ids=ids[None]).logits[0, :-1], ids[1:], reduction="none")
    return losses if ignored is None else losses[ids[1:] != ignored]


def gradient_of(model, loss):
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.autograd.grad(loss, trained)


def moved(model, run):
    """What a run added to each parameter of the model it began with."""
    after = dict(run.model().named_parameters())
    return [after[name].detach() - p.detach() for name, p in model.named_parameters() if p.requires_grad]


def close(found, true, tolerance=1e-5):
    size = math.sqrt(sum(float(t.double().square().sum()) for t in true))
    off = math.sqrt(sum(float((f - t).double().square().sum()) for f, t in zip(found, true, strict=True)))
    assert size > 0
    assert off <= tolerance * size, (off, size)


@pytest.mark.parametrize("model", [LSTM, GPT])
@pytest.mark.parametrize(("microbatch", "fused"), [(1000, True), (7, True), (7, False)])
def test_a_public_step_is_sgd_on_the_mean_loss_of_all_tokens(
    public, plain_texts, small, trained, monkeypatch, model, microbatch, fused
):
    choices = small(method="plain", model=model, microbatch=microbatch, **ONE_STEP)
    _, start, tokenizer = begin(public, choices)
    losses = torch.cat([nll(start, ids) for ids in encoded(tokenizer, plain_texts)])
    true = [-0.5 * g for g in gradient_of(start, losses.mean())]
    if not fused:
        monkeypatch.setattr(steps, "ways", lambda model, batch: (False, False))
    run = trained(public, **choices)
    close(moved(start, run), true)
    assert run.telemetry()[0]["training_loss"] == pytest.approx(float(losses.detach().mean()), rel=1e-5)


@pytest.mark.parametrize("model", [LSTM, GPT])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_private_step_is_the_sum_of_clipped_gradients_over_the_expected_batch(
    private, plain_texts, outside, small, trained, silent, model, reduction
):
    choices = {"vocabulary_from": outside, "private_batch_size": 60, "clip_norm": 0.3, "microbatch": 7, "model": model}
    choices = small(**ONE_STEP, **choices, reduction=reduction, private_learning_rate=0.25)
    made, start, tokenizer = begin(private, choices)
    assert made.private["train"].steps == 1
    true = _clipped(start, encoded(tokenizer, plain_texts), 0.3, 60, 0.25, reduction)
    close(moved(start, trained(private, **choices)), true, 1e-3)


def _clipped(model, records, clip, expected, rate, reduction="mean", ignored=None):
    total = [torch.zeros_like(p) for p in model.parameters() if p.requires_grad]
    for ids in records:
        losses = nll(model, ids, ignored)
        if not len(losses):
            continue
        found = gradient_of(model, losses.mean() if reduction == "mean" else losses.sum())
        norm = math.sqrt(sum(float(g.square().sum()) for g in found))
        for part, gradient in zip(total, found, strict=True):
            part += gradient * min(1.0, clip / norm)
    return [-rate * part / expected for part in total]


@pytest.fixture(scope="module")
def masked(screen_texts, plain_texts):
    """Half of the texts hold a number, which is redacted."""
    texts = [text + (f" {1000 + i} thank you" if i % 2 else "") for i, text in enumerate(plain_texts)]
    corpus = screen_texts(texts, policy="digits", conservative="everything")
    screened = [row for batch in corpus.batches("private", ("text",)) for row in batch["text"].to_pylist()]
    assert sum(MASK in text for text in screened) == 30
    return corpus, screened


@pytest.mark.parametrize("choice", ["train", "drop", "ignore"])
def test_masked_records_train_or_contribute_exactly_nothing(masked, outside, small, trained, silent, choice):
    corpus, texts = masked
    how = {"train": {}, "drop": {"mask_records": "drop"}, "ignore": {"ignore_mask": True}}[choice]
    choices = small(**ONE_STEP, vocabulary_from=outside, private_batch_size=60, clip_norm=0.3, **how)
    _, start, tokenizer = begin(corpus, choices)
    kept = [text for text in texts if choice != "drop" or MASK not in text]
    ignored = tokenizer.mask_token_id if choice == "ignore" else None
    true = _clipped(start, encoded(tokenizer, kept), 0.3, 60, 0.5, ignored=ignored)
    run = trained(corpus, **choices)
    close(moved(start, run), true, 1e-3)
    adjacency = run.certificate["adjacency"]["name"]
    assert adjacency == ("zero-out" if choice == "drop" else "substitution")


@pytest.mark.parametrize("method", ["crt", "redacted"])
def test_filled_masks_change_what_is_learned_and_nothing_that_is_promised(masked, outside, small, trained, method):
    choices = small(vocabulary_from=outside, method=method, learning_rate=0.01)
    run = trained(masked[0], **choices, fill_masks=True)
    tokens = [TokenFile.open(path.parent) for path in (run.folder / "screened").glob("*/header.json")]
    assert tokens
    assert not any(run.tokenizer().mask_token_id in record.ids for file in tokens for record in file)
    if method == "crt":
        told = make_plan(masked[0], **choices).certificate()
        assert [one["epsilon"] for one in run.certificate["guarantees"]] == [
            one["epsilon"] for one in told["guarantees"]
        ]


def test_records_that_are_all_masked_and_dropped_move_nothing(screen_texts, outside, trained, silent, small):
    corpus = screen_texts(["call 12 now"] * 20, policy="digits", conservative="everything")
    choices = small(**ONE_STEP, vocabulary_from=outside, private_batch_size=20, mask_records="drop")
    _, start, _ = begin(corpus, choices)
    assert all(not change.any() for change in moved(start, trained(corpus, **choices)))


def test_dropping_masked_records_buys_a_smaller_epsilon(masked, outside, small):
    train, drop = (
        make_plan(masked[0], **small(vocabulary_from=outside, mask_records=choice)).certificate()
        for choice in ("train", "drop")
    )
    assert drop["guarantees"][0]["epsilon"] < train["guarantees"][0]["epsilon"]


# -- learning rates, order, one optimizer -----------------------------------------------------------------------------


def test_one_optimizer_sees_public_and_noised_gradients_each_at_its_own_rate(screened, trained, monkeypatch, small):
    seen, advance = [], Work._advance

    def spy(work, rate):
        seen.append((rate, [p.grad.clone() for p in work.model.parameters()]))
        advance(work, rate)

    monkeypatch.setattr(Work, "_advance", spy)
    choices = small(
        learning_rate=0.02, private_learning_rate=0.005, schedule="linear", private_schedule="cosine", weight_decay=0.1
    )
    run = trained(screened, **choices)
    made, model, _ = begin(screened, choices)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    public, private = (made.phases[0].epochs * made.public_steps(made.phases[0]), made.private["train"].steps)
    kinds = [
        "public" if "public_step" in line else "private"
        for line in run.telemetry()
        if "slot" in line and "validation_loss" not in line
    ]
    assert (kinds.count("public"), kinds.count("private"), len(seen)) == (public, private, public + private)
    done = {"public": 0, "private": 0}
    for kind, (rate, gradients) in zip(kinds, seen, strict=True):
        if kind == "public":
            true = 0.02 * (1 - done["public"] / public)
        else:
            true = 0.005 * (1 + math.cos(math.pi * done["private"] / private)) / 2
        done[kind] += 1
        assert rate == pytest.approx(true, rel=1e-12)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    after = run.model().state_dict()
    for name, value in model.state_dict().items():
        assert torch.allclose(value, after[name], atol=1e-6), name


@pytest.mark.parametrize("order", ["public-first", "private-first", "alternate"])
def test_order_and_ratio(screened, trained, order):
    run = trained(screened, order=order, ratio=2.0, epochs=2, private_batch_size=54, batch_size=50)
    made = make_plan(screened, **json.loads(json.dumps(_options(run))))
    per_epoch = made.public_steps(made.phases[0])
    assert made.private["train"].steps == 8  # two expected epochs of two batches for each of two epochs
    lines = [line for line in run.telemetry() if "public_step" in line or "private_step" in line]
    kinds = ["u" if "public_step" in line else "p" for line in lines]
    assert [line["slot"] for line in lines] == sorted(line["slot"] for line in lines)
    whole = {"public-first": "u" * per_epoch + "pppp", "private-first": "pppp" + "u" * per_epoch, "alternate": None}
    halves = "".join(kinds[: per_epoch + 4]), "".join(kinds[per_epoch + 4 :])
    for half in halves:
        assert half == whole[order] if whole[order] else (half.count("p"), half.count("u")) == (4, per_epoch)
        if order == "alternate":
            assert "ppp" not in half
            assert half.startswith("u")
    assert [line["private_step"] for line in lines if "private_step" in line] == list(range(8))


def _options(run):
    import yaml

    return yaml.safe_load((run.folder / "config.yaml").read_text())["options"]


def test_annealing_follows_public_validation_and_scales_both_rates(screened, trained, monkeypatch):
    losses = iter([3.0, 3.5, 2.0, 2.5])
    monkeypatch.setattr("confide.training.evaluation.quick", lambda *_, **__: {"loss": next(losses), "accuracy": 0.5})
    run = trained(screened, schedule="anneal", epochs=4, learning_rate=0.4, private_learning_rate=0.2)
    rates = {
        (line["epoch"], name): line[name]
        for line in run.telemetry()
        for name in ("learning_rate", "private_learning_rate")
        if name in line
    }
    assert [rates[epoch, "learning_rate"] for epoch in range(4)] == pytest.approx([0.4, 0.4, 0.1, 0.1])
    assert [rates[epoch, "private_learning_rate"] for epoch in range(4)] == pytest.approx([0.2, 0.2, 0.05, 0.05])


def test_each_phase_anneals_by_itself(screened, trained, monkeypatch):
    losses = iter([3.0, 3.5, 9.0, 8.0])
    monkeypatch.setattr("confide.training.evaluation.quick", lambda *_, **__: {"loss": next(losses), "accuracy": 0.5})
    run = trained(screened, method="jft", schedule="anneal", learning_rate=0.1, epochs=2)
    found = [line["private_learning_rate"] for line in run.telemetry() if "private_learning_rate" in line]
    assert found == pytest.approx([0.1] * len(found))


def test_every_private_step_is_noised_also_an_empty_one(private, outside, trained, monkeypatch, small):
    released = []
    release = PrivateGradients.release

    def spy(self, step):
        release(self, step)
        released.append((len(step.indices), all(bool((p.grad != 0).all()) for p in self.model.parameters())))

    monkeypatch.setattr(PrivateGradients, "release", spy)
    run = trained(private, vocabulary_from=outside, private_batch_size=1, epochs=1)
    assert len(released) == make_plan(private, **_options(run)).private["train"].steps
    assert any(size == 0 for size, _ in released)
    assert all(noised for _, noised in released)
