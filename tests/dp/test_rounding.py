"""Rounding is part of the proof: norms are bounded from above where sums cancel, stagnate, or both (guarantees §1)."""

import math

import pytest
import torch
from torch import nn

from confide.dp import Plan, PrivateGradients
from confide.dp.clipping import PAID, rounding
from confide.dp.rules.gram import gram_square

EXAMPLES = 6
SHAPES = [(128, 96, 384), (256, 64, 64), (64, 50, 8192), (40, 64, 20_000)]


def families(positions, inputs, outputs):
    """Activations and gradients on which single precision does its worst."""
    a, g = torch.randn(EXAMPLES, positions, inputs), torch.randn(EXAMPLES, positions, outputs)
    same = a[:, :1].expand_as(a).contiguous()
    signs = torch.ones(positions, 1)
    signs[::2] = -1
    alternating = g[:, :1] * signs * (1 + 1e-4 * torch.randn(EXAMPLES, positions, 1))
    target = torch.randint(0, outputs, (EXAMPLES, positions, 1))
    minus = -torch.ones(EXAMPLES, positions, 1)
    stagnating = torch.full((EXAMPLES, positions, outputs), math.sqrt(0.45 * 2.0**-23))
    stagnating[:, :, 0] = 1
    yield "random", a, g
    yield "same activations, gradients that sum to zero", same, g - g.mean(1, keepdim=True)
    yield "near activations, gradients that sum to zero", same + 1e-3 * a, g - g.mean(1, keepdim=True)
    yield "alternating gradients", same + 1e-3 * a, alternating
    yield "alternating gradients, positive activations", a.abs() + 1, alternating
    yield "peaked softmax", a, torch.softmax(3 * g, 2).scatter_add(2, target, minus)
    yield "flat softmax", a, torch.softmax(0.1 * g, 2).scatter_add(2, target, minus)
    yield "flat softmax, first word", a.abs() + 1, torch.softmax(0.1 * g, 2).scatter_add(2, target * 0, minus)
    yield "sums that lose all small terms", a.abs() + 1, stagnating
    yield "sums that lose all small terms and cancel", a.abs() + 1, stagnating * signs


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bound_on_a_squared_norm_is_never_below_the_truth(shape):
    bounds_hold(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bound_holds_where_torch_does_the_work(shape, monkeypatch):
    monkeypatch.setattr("confide.dp.compiled.COMPILED", None)
    bounds_hold(shape)


def bounds_hold(shape):
    for name, activation, gradient in families(*shape):
        found = gram_square(activation, gradient, 1.0)
        true = gram_square(activation.double(), gradient.double(), 1.0).square
        bound = found.square + rounding(found.square, found.spread, torch.float32)
        assert (bound >= true).all(), name


def test_without_cancellation_the_bound_is_tight():
    activation, gradient = torch.randn(4, 128, 64), torch.randn(4, 128, 256)
    found = gram_square(activation, gradient)
    assert (rounding(found.square, found.spread, torch.float32) < 2e-5 * found.square).all()


class Cancelling(nn.Module):
    """Equal positions whose output gradients cancel: single precision sees large terms and a small sum."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(40, 30)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("rest", [1e-1, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e8])
def test_contributions_that_cancel_are_clipped_all_the_same(rest, scale, clipped):
    torch.manual_seed(3)
    model = Cancelling()
    x = torch.randn(1, 1, 40).expand(1, 50, 40) + rest * torch.randn(1, 50, 40)
    force = torch.randn(1, 50, 30)
    force = (force - force.mean(1, keepdim=True)) * scale

    def loss(model, batch):
        return (model(batch["x"]) * batch["force"]).sum((1, 2))

    _, sums = clipped(model, {"x": x, "force": force}, loss, clip_norm=1.0)
    assert math.sqrt(sum(float(part.square().sum()) for part in sums)) <= 1 + 1e-6


def test_the_worst_of_many_contributions_stays_below_the_norm(clipped):
    """Random models and inputs with little to no slack: the largest of them must not pass C."""
    worst = 0.0
    for seed in range(40):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(20, 60), nn.Tanh(), nn.Linear(60, 30))
        x = torch.randn(1, 33, 20) * 10 ** torch.empty(1).uniform_(-3, 3)

        def loss(model, batch):
            return model(batch["x"]).square().sum((1, 2)) * 1e3

        _, sums = clipped(model, {"x": x}, loss, clip_norm=1e-3)
        worst = max(worst, math.sqrt(sum(float(part.square().sum()) for part in sums)))
    assert 0.9999e-3 < worst <= 1e-3 * (1 + 1e-6)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("part", [3.0, 8.0, 11.0, 13.5, 14.5, 20.0])
def test_roundings_that_conspire_stay_below_what_noise_pays_for(part, lanes, clipped):
    """Inner products whose terms all round down, and others whose terms all round up, in both Gram matrices at once."""
    unit = 2.0**-23
    v, w = (torch.full((512,), math.sqrt(share * unit)) for share in (0.4995, 0.5013))
    v[:lanes] = w[:lanes] = 1
    d = torch.tensor([float(v.double().norm()) / part / 2])
    x, force = torch.stack([v, w])[None], torch.stack([torch.cat([v, d]), -torch.cat([w, -d])])[None]

    def loss(model, batch):
        return (model(batch["x"]) * batch["force"]).sum((1, 2))

    layer = nn.Linear(512, 513, bias=False)
    _, sums = clipped(nn.Sequential(layer), {"x": x, "force": force}, loss, clip_norm=0.1)
    assert float(sums[0].norm()) <= 0.1 * PAID


def summed(values, batch):
    """The sum, before noise, of records of one number each, in batches of a size."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).train()
    plan = Plan(records=len(values), sampling_rate=1.0, steps=1, noise_multiplier=1.0, clip_norm=1.0)
    private = PrivateGradients(model, plan, checked=False)
    for rows in next(plan.run()).microbatches(batch):
        private.accumulate({"x": values[rows]}, lambda model, batch: model(batch["x"])[:, 0])
    total = private._sums.total(model[0].weight).double() * len(values)
    private.detach()
    return float(total)


@pytest.mark.parametrize("batch", [8, 64])
def test_a_record_that_lifts_the_sum_over_a_power_of_two_does_not_change_how_later_batches_are_rounded(batch):
    """Casacuberta et al. 2022: half of the records bring the sum to 2^10 and a little, the rest add less than a unit in its last place."""
    records, large = 2048, 1023 / 1024
    first = -(-1025 // batch) * batch
    values = torch.full((records, 1), 0.6 * 1024 * 2.0**-23)
    values[:first] = (1024.5 - large) / (first - 1)
    values[0] = large
    other = values.clone()
    other[0] = -large
    assert abs(summed(values, batch) - summed(other, batch)) <= 2 * PAID
    assert abs(summed(values, batch) - float(values.double().sum())) < 1e-3


class Tied(nn.Module):
    def __init__(self, words, features):
        super().__init__()
        self.table, self.head = nn.Embedding(words, features), nn.Linear(features, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids, x):
        return self.table(ids), self.head(x)


@pytest.mark.parametrize(("features", "lanes", "positions"), [(4096, 8, 1), (2048, 16, 64)])
def test_uses_of_a_tied_table_that_cancel_are_clipped_all_the_same(features, lanes, positions):
    """A head that takes back nearly all that the embedding gives, where each single square loses its small terms."""
    unit = 2.0**-23
    given, taken = (
        torch.full((features,), -math.sqrt(0.4995 * unit)),
        torch.full((features,), 0.5013 * unit / math.sqrt(0.4995 * unit)),
    )
    given[:lanes], taken[:lanes] = -1, 1
    given = torch.cat([given, (taken.double().norm() / 13.6).float()[None]])
    taken = torch.cat([taken, torch.zeros(1)])

    def loss(model, batch):
        rows, scores = model(batch["ids"], batch["x"])
        return (rows * batch["given"]).sum((1, 2)) + scores[:, :, 3].sum(1)

    model = Tied(8, features + 1).train()
    plan = Plan(records=1, sampling_rate=1.0, steps=1, noise_multiplier=1.0, clip_norm=0.1)
    private = PrivateGradients(model, plan, checked=False)
    batch = {
        "ids": torch.full((1, positions), 3),
        "x": taken.expand(1, positions, -1),
        "given": given.expand(1, positions, -1),
    }
    private.accumulate(batch, loss)
    assert float(private._sums.total(model.table.weight).double().norm()) <= 0.1 * (1 + 1e-4)
    private.detach()
