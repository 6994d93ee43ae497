"""Weights are what their kind of clipping says, to the last bits that rounding is given; memory is kept or left alone."""

import math

import pytest
import torch

from confide.dp import memory
from confide.dp.clipping import CANCELLING, PAID, Clipping, rounding
from confide.dp.sums import ALIGNED, StepSums
from confide.errors import BadInput

SQUARES = torch.tensor([[9.0, 0.04, 0.0, 1.0], [16.0, 0.05, 0.0, 3.0]], dtype=torch.float64)
REAL = torch.tensor([True, True, True, False])
ROOM = {torch.float32: 1 - 2.0**-20, torch.float64: 1 - 2.0**-45}


def weights(kind, norm=0.5, squares=SQUARES, off=0.0, dtype=torch.float64):
    return Clipping(norm, kind).weights(squares, torch.full_like(squares, off), REAL, dtype).tolist()


@pytest.mark.parametrize("dtype", ROOM)
def test_each_kind_of_clipping_has_its_formula(dtype):
    limit = 0.5 * ROOM[dtype]
    flat, each = [limit / 5, 1.0, 1.0, 0.0], limit / math.sqrt(2)
    assert weights("flat", dtype=dtype) == [pytest.approx(flat, rel=2e-15)] * 2
    automatic = [limit / 5.01, limit / (math.sqrt(0.09) + 0.01), limit / 0.01, 0.0]
    assert weights("automatic", dtype=dtype) == [pytest.approx(automatic, rel=2e-15)] * 2
    assert weights("per-layer", dtype=dtype) == [
        pytest.approx([each / 3, 1.0, 1.0, 0.0], rel=2e-15),
        pytest.approx([each / 4, 1.0, 1.0, 0.0], rel=2e-15),
    ]


def test_what_rounding_may_have_taken_is_counted_before_clipping():
    assert weights("flat", off=0.5)[0][0] == pytest.approx(0.5 * ROOM[torch.float64] / math.sqrt(26), rel=2e-15)
    assert weights("flat", squares=-SQUARES)[0][:3] == [1.0] * 3  # rounding below zero is zero


@pytest.mark.parametrize("kind", ["flat", "automatic", "per-layer"])
@pytest.mark.parametrize("poison", [math.inf, math.nan])
def test_a_record_with_a_layer_that_is_not_finite_counts_in_none(kind, poison):
    squares = SQUARES.clone()
    squares[1, 1] = poison
    found = torch.tensor(weights(kind, squares=squares))
    assert found[:, 1].tolist() == [0.0, 0.0]
    assert bool((found[:, [0, 2]] > 0).all())


def test_another_kind_of_clipping_is_refused():
    with pytest.raises(BadInput, match="clipping must be one of flat, automatic, per-layer, got 'adaptive'"):
        Clipping(1.0, "adaptive")


def test_rounding_is_counted_in_units_of_its_precision():
    square, spread = torch.tensor([-3.0, 2.0]).double(), torch.tensor([5.0, 100.0]).double()
    assert rounding(square, spread, torch.float64).tolist() == [5 * 2.0**-37, 100 * 2.0**-37]
    expected = [(3 * 256 + 2.5) * 2.0**-24, (2 * 256 + 50) * 2.0**-24]
    assert rounding(square, spread, torch.float32).tolist() == pytest.approx(expected, rel=2e-15)


def test_noise_pays_for_what_is_not_counted_and_not_for_much_more():
    """In single precision the compiled loops may be off by 38 units of the squared spread, of which half a unit is counted."""
    beyond = math.sqrt(1 + 37.5 * CANCELLING * 2.0**-24) - 1
    assert 0.8e-3 < beyond < PAID - 1 < 1e-3


# -- the sum of a step -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_step_sums_its_batches_and_leaves_the_rest_zero(batches, monkeypatch):
    monkeypatch.setattr("confide.dp.sums.PIECE", 8)
    coins = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 5), (17,), (2, 2))]
    sums, true = StepSums(parameters, torch.float32), [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    for batch in range(batches):
        if batch:
            sums.widen()
        left, right = torch.randn(3, 4, generator=coins), torch.randn(4, 5, generator=coins)
        sums.add_product(parameters[0], left, right)
        sums.add_product(parameters[0], left, right)
        sums(parameters[1]).add_(2.0)
        true[0] += 2 * (left @ right).double()
        true[1] += 2.0
        for parameter in parameters:
            sums.finish(parameter)
    sums.settle()
    found = sums.gradients()
    assert [part.dtype for part in found] == [torch.float32] * 3
    for part, expected in zip(found, true, strict=True):
        assert torch.allclose(part.double(), expected, rtol=1e-6, atol=1e-6)
    assert [part.data_ptr() % (4 * ALIGNED) - found[0].data_ptr() % (4 * ALIGNED) for part in found] == [0, 0, 0]
    assert len(sums.flat[0]) == 16 + 32 + 16


def test_a_sum_in_double_precision_is_rounded_once():
    parameter = torch.nn.Parameter(torch.zeros(1))
    sums = StepSums([parameter], torch.float32)
    sums.widen()
    for value in (2.0**24, 1.0, 1.0):  # in single precision each 1 would be lost
        sums.add_exact(parameter, torch.tensor([value], dtype=torch.float64))
    assert sums.total(parameter).tolist() == [2.0**24 + 2]
    assert sums.gradients()[0].tolist() == [2.0**24 + 2]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_is_kept_where_glibc_is_and_nothing_happens_elsewhere(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "_glibc", lambda name: lambda *numbers: asked.append((name, *numbers)) or 1)
    assert memory.keep_memory()
    memory.give_back()
    assert asked == [("mallopt", -4, 0), ("mallopt", -1, -1), ("malloc_trim", 0)]
    monkeypatch.setattr(memory, "_glibc", lambda name: lambda *numbers: int(numbers[0] == -4))
    assert not memory.keep_memory()
    monkeypatch.undo()
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert not memory.keep_memory()
    memory.give_back()


def test_a_c_library_without_the_function_has_none():
    assert memory._glibc("no_such_function") is None
