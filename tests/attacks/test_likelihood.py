"""Scores of rows against the direct formula, for the kinds of models there are, whatever stands beside a row in a batch."""

import numpy as np
import pytest
import torch
import transformers as hf

from confide.attacks import likelihood
from confide.attacks.likelihood import Row, log_likelihoods, score_classes, score_rows, text_row
from confide.errors import BadInput
from confide.models.lstm import LstmConfig, LstmForCausalLM
from confide.models.tokens import train_bpe

VOCABULARY = 60


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def gpt2(**choices):
    shape = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32, "initializer_range": 0.5}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCABULARY, **shape, **choices))


def llama():
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=32, initializer_range=0.5,
        )
    )  # fmt: skip


def lstm():
    return LstmForCausalLM(LstmConfig(VOCABULARY, 16, 16, initializer_range=0.8))


def gemma():
    """Its logits are squashed after the head, so that body and head alone would give others."""
    return hf.Gemma2ForCausalLM(
        hf.Gemma2Config(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=32, final_logit_softcapping=0.5,
            initializer_range=0.5,
        )
    )  # fmt: skip


def some_rows(seed=0, count=23):
    draw = np.random.default_rng(seed)
    rows = []
    for n in range(count):
        ids = [0, *map(int, draw.integers(1, VOCABULARY, draw.integers(1, 30)))]
        rows.append(Row(ids, [bool(flag) for flag in draw.integers(0, 2, len(ids))] if n % 2 else None))
    return rows


@torch.no_grad()
def directly(model, row):
    """log p of every next token, from one row alone."""
    model.eval()
    logs = model(torch.tensor([row.ids])).logits[0, :-1].double().log_softmax(-1)
    chosen = torch.tensor(row.target[1:] if row.target is not None else [True] * (len(row.ids) - 1), dtype=torch.bool)
    return logs[chosen], torch.tensor(row.ids[1:])[chosen]


@pytest.mark.parametrize("make", [gpt2, llama, lstm, gemma])
def test_rows_of_unequal_lengths_score_as_each_does_alone(make, monkeypatch):
    monkeypatch.setattr(likelihood, "TOKENS_AT_ONCE", 100)
    monkeypatch.setattr(likelihood, "AT_ONCE", 7 * VOCABULARY)
    model, rows = make(), some_rows()
    for row, found in zip(rows, score_rows(model, rows), strict=True):
        logs, ids = directly(model, row)
        assert found.z is None
        np.testing.assert_allclose(found.nats, -logs.gather(1, ids[:, None])[:, 0], rtol=1e-4, atol=1e-5)


def test_standardised_scores_are_the_formula_of_min_k_plus_plus():
    model, rows = gpt2(), some_rows()
    for row, found in zip(rows, score_rows(model, rows, standardised=True), strict=True):
        logs, ids = directly(model, row)
        chances = logs.exp()
        mean = (chances * logs).sum(-1)
        variance = (chances * logs.square()).sum(-1) - mean.square()
        expected = (logs.gather(1, ids[:, None])[:, 0] - mean) / variance.sqrt()
        np.testing.assert_allclose(found.z, expected, rtol=1e-3, atol=1e-4)


def test_a_constant_model_has_no_spread_and_scores_of_zero():
    model = lstm()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    for found in score_rows(model, some_rows(), standardised=True):
        np.testing.assert_allclose(found.nats, np.log(VOCABULARY), rtol=1e-6)
        assert not found.z.any()


def test_totals_are_not_divided_by_lengths():
    model, rows = llama(), some_rows()
    expected = [-found.nats.sum() for found in score_rows(model, rows)]
    np.testing.assert_allclose(log_likelihoods(model, rows), expected, rtol=1e-6)


def test_bos_is_never_predicted_and_a_row_without_a_target_scores_nothing():
    model = gpt2()
    ticks = []
    rows = [Row([0]), Row([0, 5], [True, False]), Row([0, 5], [True, True]), Row([0, 5])]
    found = score_rows(model, rows, standardised=True, tick=ticks.append)
    assert [len(one.nats) for one in found] == [len(one.z) for one in found] == [0, 0, 1, 1]
    assert sum(ticks) == len(rows)
    assert score_rows(model, []) == []
    assert log_likelihoods(model, rows[:1]).tolist() == [0.0]


def test_the_model_is_left_as_it_was_and_dropout_does_not_count():
    model = gpt2(embd_pdrop=0.5).train()
    rows = some_rows(count=4)
    first, again = log_likelihoods(model, rows), log_likelihoods(model, rows)
    assert (first == again).all()
    assert model.training
    assert model.transformer.drop.training


def test_a_text_is_read_from_bos_and_without_an_end():
    tokenizer = train_bpe(["some public words"] * 9, 270, "")
    row = text_row(tokenizer, "some words <MASK>")
    assert row.target is None
    assert row.ids[0] == tokenizer.bos_token_id
    assert row.ids[-1] == tokenizer.mask_token_id
    assert tokenizer.decode(row.ids[1:-1]) == "some words "


@pytest.mark.parametrize(
    "rows",
    [
        [Row([0, 1]), Row(list(range(34)))],
        [Row([0, VOCABULARY])],
        [Row([0, 1, 2], [True])],
        [Row([])],
    ],
)
def test_rows_that_the_model_cannot_read_are_refused(rows):
    with pytest.raises(BadInput):
        score_rows(gpt2(), rows)


def test_a_row_as_long_as_the_context_fits_and_a_recurrent_model_has_none():
    full = Row([0, *([3] * 32)])
    assert len(score_rows(gpt2(), [full])[0].nats) == 32
    assert len(score_rows(lstm(), [Row([0] * 2000)])[0].nats) == 1999


def test_a_model_of_nans_is_refused():
    model = gpt2()
    model.transformer.ln_f.weight.data.fill_(float("nan"))
    with pytest.raises(BadInput, match="not a number"):
        score_rows(model, [Row([0, 1])])


def roberta_classes():
    config = hf.RobertaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=34, pad_token_id=1, num_labels=3, initializer_range=0.5,
    )  # fmt: skip
    return hf.RobertaForSequenceClassification(config)


def gpt2_classes(pad):
    config = hf.GPT2Config(vocab_size=VOCABULARY, n_layer=1, n_embd=16, n_head=2, n_positions=32, num_labels=3)
    config.pad_token_id = pad
    return hf.GPT2ForSequenceClassification(config)


@pytest.mark.parametrize("make", [roberta_classes, lambda: gpt2_classes(1), lambda: gpt2_classes(None)])
def test_classes_score_as_each_row_does_alone(make):
    model, draw = make().eval(), np.random.default_rng(1)
    rows = [Row([0, *map(int, draw.integers(2, VOCABULARY, draw.integers(1, 30)))]) for _ in range(15)]
    labels = [int(label) for label in draw.integers(0, 3, len(rows))]
    found = score_classes(model, rows, labels)
    with torch.no_grad():
        for row, label, nats in zip(rows, labels, found, strict=True):
            logits = model(torch.tensor([row.ids])).logits[0].double()
            assert nats == pytest.approx(-float(logits.log_softmax(-1)[label]), abs=1e-5)
    with pytest.raises(BadInput):
        score_classes(model, rows, labels[:-1])
    with pytest.raises(BadInput):
        score_classes(model, rows, [3] * len(rows))
