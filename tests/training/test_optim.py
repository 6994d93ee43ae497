"""Rates are functions of public numbers; optimizers are torch's own."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.training.optim import Annealing, Rate, make_optimizer, set_rate

rates = st.builds(
    Rate, st.floats(1e-6, 10), st.sampled_from(["constant", "linear", "cosine", "anneal"]), st.floats(0, 1)
)


@given(rates, st.integers(1, 300))
def test_no_step_is_taken_at_rate_zero_or_above_the_base(rate, total):
    assert all(0 < rate.at(done, total) <= rate.base for done in range(total))


@given(rates, st.integers(1, 300))
def test_a_rate_rises_to_its_base_and_then_never_rises_again(rate, total):
    values = [rate.at(done, total) for done in range(total)]
    peak = values.index(max(values))
    assert max(values) == pytest.approx(rate.base)
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)


def test_schedules_by_hand():
    assert [Rate(2.0).at(done, 4) for done in range(4)] == [2.0] * 4
    assert [Rate(1.0, "linear").at(done, 4) for done in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert Rate(1.0, "cosine").at(2, 4) == pytest.approx(0.5)
    assert Rate(1.0, "cosine").at(1, 4) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert [Rate(1.0, "constant", 0.5).at(done, 8) for done in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_annealing_divides_by_four_when_the_best_loss_is_not_beaten():
    annealing, scales = Annealing(), []
    for loss in (3.0, 2.0, 2.0, 1.9, 5.0, math.nan, 1.8):
        annealing = annealing.see(loss)
        scales.append(annealing.scale)
    assert scales == [1, 1, 1 / 4, 1 / 4, 1 / 16, 1 / 64, 1 / 64]
    assert annealing.best == 1.8


@given(st.lists(st.floats(allow_nan=True), max_size=8))
def test_annealing_survives_a_checkpoint(losses):
    annealing = Annealing()
    for loss in losses:
        annealing = annealing.see(loss)
    assert Annealing.from_plain(json.loads(json.dumps(annealing.to_plain(), allow_nan=False))) == annealing


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
        ("adam", lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01)),
        ("adamw", lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.01)),
    ],
)
def test_each_optimizer_steps_as_torchs_own_does(name, peer):
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(4))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    ours = make_optimizer(mine, name, weight_decay=0.01, momentum=0.9 if name == "sgd" else 0.0)
    other = peer(theirs)
    for _ in range(5):
        set_rate(ours, 0.1)
        for a, b in zip(mine, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        ours.step()
        other.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert ours.param_groups[0]["fused"]


def test_frozen_parameters_are_left_out():
    trained, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert make_optimizer([trained, frozen], "sgd").param_groups[0]["params"] == [trained]
    with pytest.raises(BadInput, match="frozen"):
        make_optimizer([frozen], "sgd")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "lion"},
        {"name": "adam", "momentum": 0.9},
        {"name": "sgd", "momentum": 1.0},
        {"name": "adam", "betas": (0.9, 1.0)},
        {"name": "adamw", "weight_decay": -1.0},
        {"name": "adamw", "eps": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadInput):
        make_optimizer([torch.nn.Parameter(torch.ones(2))], **wrong)


@pytest.mark.parametrize("wrong", [(0.0,), (math.inf,), (math.nan,), (1.0, "step"), (1.0, "linear", 1.1)])
def test_rates_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadInput):
        Rate(*wrong)
    with pytest.raises(BadInput):
        Rate(1.0).at(-1, 5)
    with pytest.raises(BadInput, match="above 1"):
        Annealing(factor=1.0)
