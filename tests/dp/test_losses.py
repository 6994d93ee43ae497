"""A batch holds so many examples, each with its targets; what each gives is measured row by row."""

import math

import pytest
import torch
from torch import nn

from confide.dp import Plan, PrivateGradients
from confide.dp.losses import built_in, check_labels, count, rows, targets
from confide.dp.rules import Rule, Use
from confide.dp.rules.base import precisely, single, squared
from confide.errors import BadInput

IDS = torch.arange(6).view(2, 3)


@pytest.mark.parametrize(
    ("batch", "examples"),
    [
        ({"input_ids": IDS}, 2),
        ({"input_ids": IDS, "labels": IDS}, 2),
        ({"position_ids": IDS[:1], "input_ids": IDS, "labels": IDS}, 2),
        ({"x": torch.zeros(5, 2), "labels": torch.zeros(5)}, 5),
        ({"x": torch.zeros(5, 2), "weight": torch.zeros(5)}, 5),
        ({"scale": torch.tensor(2.0), "x": torch.zeros(4)}, 4),
        ({"name": "c.jsonl", "x": torch.zeros(0, 3)}, 0),
        ({"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}, 2),
        ({"input_ids": IDS, "attention_mask": torch.zeros(2, 3)}, 2),
    ],
)
def test_a_batch_has_as_many_examples_as_its_tokens_or_its_first_tensor(batch, examples):
    assert count(batch) == examples


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ([IDS], "a batch is a mapping of names to tensors"),
        ({}, "holds no tensor"),
        ({"scale": torch.tensor(2.0), "name": "x"}, "holds no tensor"),
        ({"input_ids": IDS, "labels": torch.zeros(3, 3)}, "labels for another number of examples"),
        ({"x": torch.zeros(3, 2), "labels": torch.zeros(2)}, "labels for another number of examples"),
        ({"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]])}, "pad records on the right"),
        ({"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 1]])}, "pad records on the right"),
    ],
)
def test_what_is_no_batch_is_refused(batch, reason):
    with pytest.raises(BadInput, match=reason):
        count(batch)


def test_some_examples_of_a_batch_keep_what_all_share():
    batch = {"x": IDS, "positions": IDS[:1], "scale": torch.tensor(2.0), "name": "c"}
    chosen = rows(batch, slice(1, 2), 2)
    assert chosen["x"].tolist() == [[3, 4, 5]]
    assert {name: chosen[name] is batch[name] for name in ("positions", "scale", "name")} == dict.fromkeys(
        ("positions", "scale", "name"), True
    )


def test_a_causal_model_predicts_the_next_token_and_a_masked_one_its_own():
    batch = {"input_ids": IDS, "labels": IDS}
    assert targets(batch, "causal").tolist() == [[1, 2, -100], [4, 5, -100]]
    assert targets(batch, "masked").tolist() == IDS.tolist()
    assert targets({"labels": torch.tensor([1, 0])}, "classify").tolist() == [1, 0]
    assert targets({"x": IDS, "labels": IDS}, "masked").tolist() == IDS.tolist()


def test_labels_from_zero_to_the_last_and_the_sign_of_none_are_known():
    check_labels(torch.tensor([0, 4, -100]), 5)
    for unknown in (5, -1, -99, -101):
        with pytest.raises(BadInput, match="neither -100 nor from 0 to 4"):
            check_labels(torch.tensor([0, unknown]), 5)


class Logits(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, **inputs):
        assert "labels" not in inputs
        return self.logits


@pytest.mark.parametrize(("reduction", "divisor"), [("sum", 1), ("mean", 2)])
def test_a_records_loss_is_the_sum_or_the_mean_over_its_own_targets(reduction, divisor):
    logits = torch.randn(2, 3, 6)
    logs = logits.log_softmax(2)
    expected = -(logs[0, 0, 1] + logs[0, 1, 2]) / divisor
    labels = torch.tensor([[0, 1, 2], [0, -100, -100]])
    found = built_in("causal", reduction)(Logits(logits), {"input_ids": IDS, "labels": labels}).detach()
    assert found.tolist() == pytest.approx([float(expected), 0.0], rel=1e-6)
    own = built_in("masked", reduction)(Logits(logits), {"input_ids": IDS, "labels": labels.roll(-1, 1)}).detach()
    assert float(own[0]) == pytest.approx(
        float(-(logs[0, 0, 1] + logs[0, 1, 2] + logs[0, 2, 0]) / (3 if divisor == 2 else 1)), rel=1e-6
    )


def test_a_class_without_a_label_has_no_loss():
    logits = torch.randn(2, 6)
    found = built_in("classify", "mean")(Logits(logits), {"x": IDS, "labels": torch.tensor([4, -100])})
    assert found.tolist() == pytest.approx([-float(logits.log_softmax(1)[0, 4]), 0.0], rel=1e-6)


# -- what each example gives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 4), (3, 2, 2, 4), (3, 4500)])
def test_the_square_of_an_example_is_over_all_that_it_has(shape):
    value = torch.randn(shape)
    expected = value.double().reshape(3, -1).square().sum(1)
    assert squared(value).dtype == torch.float64
    assert torch.allclose(squared(value), expected, rtol=1e-5)
    with precisely():
        assert torch.allclose(squared(value), expected, rtol=1e-13)


def test_precision_is_restored():
    value = torch.full((1, 1000), 0.1)
    before = squared(value)
    with precisely():
        with precisely():
            pass
        assert not torch.equal(squared(value), before)
    assert torch.equal(squared(value), before)


def test_only_half_precision_is_raised():
    for given, made in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int16, torch.int16),
    ):
        assert single(torch.zeros(2, dtype=given)).dtype == made


def test_examples_are_chosen_in_double_precision_and_dropped_whole():
    ids, x = torch.arange(6).view(3, 2), torch.tensor([[1.0, math.nan], [math.inf, 2.0], [3.0, 4.0]])
    use = Use(Rule(), nn.Linear(2, 2), 3, frozenset({"weight"}), (ids, x), x[:, :, None], (None, x))
    chosen = use.select(torch.tensor([2, 0]))
    assert (chosen.examples, chosen.trained) == (2, use.trained)
    assert chosen.activations[0].tolist() == [[4, 5], [0, 1]]
    assert chosen.activations[1].dtype == chosen.gradient.dtype == chosen.kept[1].dtype == torch.float64
    use.drop(torch.tensor([True, True, False]))
    assert use.activations[0].tolist() == ids.tolist()
    for value in (use.activations[1], use.gradient[:, :, 0], use.kept[1]):
        assert value.tolist() == [[0, 0], [0, 0], [3, 4]]
    assert use.kept[0] is None


def test_a_detached_engine_leaves_nothing_on_the_model():
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    private = PrivateGradients(model, Plan(records=4, sampling_rate=1.0, steps=1, noise_multiplier=1.0))
    assert all(layer._forward_hooks for layer in model)
    private.detach()
    assert not any(layer._forward_hooks for layer in model)
