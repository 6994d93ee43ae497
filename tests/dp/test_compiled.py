"""The compiled loops give what torch gives in double precision, for every shape, stride and number of threads."""

import math

import pytest
import torch
from torch import nn

from confide.dp import compiled
from confide.dp.rules.base import Use
from confide.dp.rules.gram import gram_square
from confide.dp.rules.lstm import _scan, _scan_back
from confide.dp.rules.normalization import LayerNorm
from confide.errors import Refused

pytestmark = pytest.mark.skipif(compiled.COMPILED is None, reason="confide was installed without a C compiler")
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 5, 7),
    (3, 12, 16, 512),
    (2, 131, 17, 40),
    (2, 133, 513, 15),
    (1, 300, 33, 1030),
    (5, 64, 200, 1),
]


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [None, 1.0, 2.0, "scale"])
def test_squares_and_spreads_are_those_of_double_precision(shape, bias, threads):
    examples, positions, inputs, outputs = shape
    a, g = torch.randn(examples, positions, inputs), torch.randn(examples, positions, outputs)
    bias = torch.rand(examples, positions) if bias == "scale" else bias
    found = gram_square(a, g, bias)
    true = gram_square(a.double(), g.double(), bias.double() if isinstance(bias, torch.Tensor) else bias)
    assert ((found.square - true.square).abs() <= 1e-6 * true.spread).all()
    assert torch.allclose(found.spread, true.spread, rtol=1e-6)


def test_rows_that_lie_apart_are_read_where_they_are():
    a, g = torch.randn(7, 3, 20)[:, :, 4:], torch.randn(9, 7, 3)  # [positions, examples, features], and features first
    a, g = a.transpose(0, 1), g.permute(2, 1, 0)
    found, wanted = gram_square(a, g, 1.0), gram_square(a.contiguous(), g.contiguous(), 1.0)
    assert torch.equal(found.square, wanted.square)
    assert torch.equal(found.spread, wanted.spread)


def test_the_number_of_threads_changes_nothing():
    a, g, found = torch.randn(5, 150, 40), torch.randn(5, 150, 600), []
    before = torch.get_num_threads()
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        found.append(gram_square(a, g, 1.0).square)
    torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 139])
def test_what_is_not_finite_shows_in_its_own_example_alone(wrong, place):
    for side in (0, 1):
        both = [torch.randn(3, 140, 20), torch.randn(3, 140, 30)]
        both[side][1, place, 3] = wrong
        square = gram_square(*both, 1.0).square
        assert not square[1].isfinite()
        assert square[[0, 2]].isfinite().all()


def test_lengths_that_may_have_underflowed_have_an_infinite_spread():
    a, g = torch.randn(3, 20, 8), torch.randn(3, 20, 9)
    g[0, 7] = 1e-25
    g[1, 7] = 0
    spread = gram_square(a, g).spread
    assert spread[0].isinf()
    assert spread[1:].isfinite().all()


@pytest.mark.parametrize(("times", "batch", "size"), [(1, 1, 1), (3, 7, 5), (5, 2, 16), (4, 13, 33), (9, 6, 100)])
def test_the_recurrence_and_its_way_back_are_torchs(times, batch, size, threads, monkeypatch):
    torch.manual_seed(times)
    start, w = torch.randn(times, batch, 4 * size) * 3, torch.randn(4 * size, size)
    outputs, h, c = torch.randn(batch, times, size).transpose(0, 1), torch.randn(batch, size), torch.randn(batch, size)

    def run(dtype):
        gates, both = start.clone().to(dtype), torch.zeros(times + 1, batch, size + 3, dtype=dtype)
        both[0, :, 3:] = h
        cells = torch.cat([c[None], torch.zeros(times, batch, size)]).to(dtype)
        squashed = _scan(gates, both[:, :, 3:], cells, w.to(dtype))
        back = _scan_back(outputs.to(dtype), h.to(dtype), c.to(dtype), cells, gates, squashed, w.to(dtype))
        return gates, both, cells, squashed, *back

    found = run(torch.float32)
    monkeypatch.setattr(compiled, "COMPILED", None)
    by_torch, true = run(torch.float32), run(torch.float64)
    for mine, theirs, exact in zip(found, by_torch, true, strict=True):
        allowed = 1e-6 * (1 + exact.abs().max()) + 4 * (theirs - exact).abs().max()
        assert (mine - exact).abs().max() <= allowed


@pytest.mark.parametrize(
    "x", [0.0, 1e-30, 1e-8, 1e-4, 0.3, -0.7, 5.0, -9.0, 30.0, -60.0, 90.0, -90.0, 1e4, -1e30, math.inf, -math.inf]
)
def test_sigmoids_and_tangents_are_right_to_a_few_units_in_the_last_place(x):
    gates, cells, hidden = torch.full((1, 1, 4), x), torch.zeros(2, 1, 1), torch.zeros(2, 1, 1)
    _scan(gates, hidden, cells, torch.zeros(4, 1))
    exact = torch.tensor(x, dtype=torch.float64)
    i, f, g, o = gates.flatten().double()
    for sigmoid in (i, f, o):
        assert torch.isclose(sigmoid, exact.sigmoid(), rtol=4e-7, atol=1e-38)
    assert torch.isclose(g, exact.tanh(), rtol=4e-7, atol=1e-38)


def test_not_a_number_stays_in_its_row_of_an_lstm():
    gates = torch.randn(4, 3, 8)
    gates[1, 2, 5] = math.nan
    cells, hidden = torch.zeros(5, 3, 2), torch.zeros(5, 3, 2)
    _scan(gates, hidden, cells, torch.randn(8, 2))
    assert hidden[:, :2].isfinite().all()
    assert hidden[2, 2].isnan().any()
    assert hidden[3:, 2].isnan().all()


@pytest.mark.parametrize(("examples", "positions", "features"), [(1, 1, 1), (3, 5, 7), (4, 33, 64), (2, 130, 100)])
def test_gradients_of_a_layernorm_are_torchs(examples, positions, features, threads, monkeypatch):
    module, rule = nn.LayerNorm(features), LayerNorm()
    x, g = 5 * torch.randn(examples, positions, features) + 3, torch.randn(examples, positions, features)
    names = frozenset({"weight", "bias"})
    found = rule.gradients(Use(rule, module, examples, names, (x,), g))
    monkeypatch.setattr(compiled, "COMPILED", None)
    true = rule.gradients(Use(rule, module, examples, names, (x.double(),), g.double()))
    for mine, exact in zip(found, true, strict=True):
        assert torch.allclose(mine.double(), exact, rtol=1e-5, atol=1e-5 * math.sqrt(positions))


def test_shapes_that_do_not_fit_are_refused_and_not_read():
    with pytest.raises(Refused, match="other examples or positions"):
        gram_square(torch.randn(3, 6, 4), torch.randn(3, 2, 5))
    layer, rule = nn.LayerNorm(8), LayerNorm()
    use = Use(rule, layer, 3, frozenset({"weight", "bias"}), (torch.randn(3, 6, 8),), torch.randn(3, 2, 8))
    with pytest.raises(Refused, match="other examples or positions"):
        rule.gradients(use)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_default_precision_does_not_matter(dtype):
    layer, rule = nn.LayerNorm(8), LayerNorm()
    use = Use(rule, layer, 3, frozenset({"weight", "bias"}), (torch.randn(3, 6, 8),), torch.randn(3, 6, 8))
    wanted = rule.gradients(use)
    torch.set_default_dtype(dtype)
    try:
        found = rule.gradients(use)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
