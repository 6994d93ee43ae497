"""The rule for nn.LSTM against nn.LSTM itself and against plain autograd, one example at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from confide.dp.capture import Capture, Layer
from confide.dp.rules.base import Measured, Use
from confide.dp.rules.lstm import LSTM
from confide.errors import Refused

RULE = LSTM()
INPUTS, HIDDEN, BATCH = 4, 3, 3
Loss = Callable[[nn.LSTM, slice], Tensor]  # one loss per example of the slice


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only lose time by waiting for other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(dtype: torch.dtype = torch.float64, **options: object) -> nn.LSTM:
    torch.manual_seed(1)
    return nn.LSTM(INPUTS, HIDDEN, dtype=dtype, **{"batch_first": True} | options)


def record(module: nn.LSTM, loss: Loss, examples: int, trained: frozenset[str] | None = None) -> list[Use]:
    trained = trained or frozenset(name for name, _ in module.named_parameters())
    uses: list[Use] = []
    capture = Capture([Layer("lstm", module, RULE, trained)])
    parameters = [module.get_parameter(name) for name in trained]
    with capture.recording(parameters, examples, uses.append):
        each = loss(module, slice(0, examples))
        capture.backward(each, torch.ones_like(each))
    return uses


def brute_force(module: nn.LSTM, loss: Loss, examples: int, trained: frozenset[str]) -> list[dict[str, Tensor]]:
    """Each example's gradient by plain autograd on nn.LSTM."""
    result = []
    for i in range(examples):
        given = [module.get_parameter(name) for name in sorted(trained)]
        gradients = torch.autograd.grad(loss(module, slice(i, i + 1)).sum(), given)
        result.append(dict(zip(sorted(trained), gradients, strict=True)))
    return result


def assert_right(
    module: nn.LSTM,
    loss: Loss,
    *,
    examples: int = BATCH,
    trained: frozenset[str] | None = None,
    tolerance: float = 1e-10,
) -> list[Use]:
    """Norms and weighted sums of all uses together are those of brute force."""
    trained = trained or frozenset(name for name, _ in module.named_parameters())
    uses = record(module, loss, examples, trained)
    squares = [RULE.measure(use).square for use in uses]
    for (i, use), (j, other) in itertools.combinations(enumerate(uses), 2):
        names = use.trained & other.trained
        if names:
            squares.append(2 * RULE.inner(use, other, names))
            assert torch.allclose(squares[-1], 2 * RULE.inner(other, use, names), rtol=tolerance * 10, atol=1e-12), (
                i,
                j,
            )
    true = brute_force(module, loss, examples, trained)
    expected = torch.stack([sum(g.double().square().sum() for g in each.values()) for each in true])
    assert torch.allclose(torch.stack(squares).sum(0), expected, rtol=tolerance, atol=0)
    weights = torch.linspace(0.3, 1.1, examples, dtype=next(module.parameters()).dtype)
    buffers = {id(module.get_parameter(name)): torch.ones_like(module.get_parameter(name)) for name in trained}
    for use in uses:
        RULE.add(use, weights, lambda parameter: buffers[id(parameter)])
    for name in trained:
        target = 1 + sum(weight * each[name] for weight, each in zip(weights, true, strict=True))
        close = tolerance * float(target.abs().max())
        assert torch.allclose(buffers[id(module.get_parameter(name))], target, rtol=tolerance, atol=close), name
    return uses


def batch_loss(x: Tensor, seed: int = 2) -> Loss:
    """A random linear function of all outputs and of the last state, one value per example."""

    def loss(module: nn.LSTM, rows: slice) -> Tensor:
        part = x[rows] if module.batch_first else x[rows].transpose(0, 1)
        output, state = module(part)
        if not module.batch_first:
            output = output.transpose(0, 1)
        generator = torch.Generator().manual_seed(seed)
        total = torch.zeros(output.shape[0], dtype=output.dtype)
        for value in (output, *(part.transpose(0, 1) for part in state)):
            scale = torch.randn(len(x), *value.shape[1:], generator=generator, dtype=output.dtype)[rows]
            total = total + (value * scale).flatten(1).sum(1)
        return total

    return loss


def examples_of(length: int, dtype: torch.dtype = torch.float64, examples: int = BATCH) -> Tensor:
    return torch.randn(examples, length, INPUTS, generator=torch.Generator().manual_seed(3), dtype=dtype)


def both_ways(module: nn.LSTM, x: Tensor, state: tuple[Tensor, Tensor] | None) -> list[list[Tensor]]:
    """Outputs, last state and gradients of input and first state: by nn.LSTM and by the rule."""
    results = []
    for forward in (module.forward, RULE.forward(module, lambda *_: None)):
        given = [value.clone().requires_grad_() for value in (x, *(state or ()))]
        output, (h, c) = forward(given[0], tuple(given[1:]) if state else None)
        loss = sum(
            (value * torch.linspace(-1, 2, value.numel(), dtype=x.dtype).view_as(value)).sum()
            for value in (output, h, c)
        )
        results.append([output, h, c, *torch.autograd.grad(loss, given)])
    return results


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("given_state", [True, False])
def test_forward_and_gradients_equal_those_of_nn_lstm(
    layers: int, bias: bool, batch_first: bool, bidirectional: bool, given_state: bool
) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        module = build(dtype, num_layers=layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
        x = examples_of(5, dtype) if batch_first else examples_of(5, dtype).transpose(0, 1)
        shape = (2, layers * (1 + bidirectional), BATCH, HIDDEN)
        h, c = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=dtype)
        theirs, ours = both_ways(module, x, (h, c) if given_state else None)
        for expected, actual in zip(theirs, ours, strict=True):
            assert actual.shape == expected.shape
            assert torch.allclose(
                actual, expected, rtol=tolerance, atol=tolerance * float(expected.detach().abs().max())
            )


@pytest.mark.parametrize(("examples", "length"), [(1, 1), (1, 6), (4, 1)])
def test_a_single_example_or_position_is_no_special_case(examples: int, length: int) -> None:
    module, x = build(num_layers=2), examples_of(length, examples=examples)
    for expected, actual in zip(*both_ways(module, x, None), strict=True):
        assert torch.allclose(actual, expected, rtol=1e-12, atol=1e-12)
    assert_right(module, batch_loss(x), examples=examples)


def test_dropout_acts_between_layers_in_training_only() -> None:
    module, x = build(num_layers=2, dropout=0.5), examples_of(6)
    forward = RULE.forward(module, lambda *_: None)
    one, another = forward(x)[0], forward(x)[0]
    assert one.shape == another.shape == (BATCH, 6, HIDDEN)
    assert not torch.equal(one, another)
    module.eval()
    assert torch.allclose(forward(x)[0], module(x)[0], rtol=1e-12, atol=1e-12)
    single = build(dropout=0.0)
    single.dropout = 0.5  # nothing follows the only layer
    assert torch.allclose(RULE.forward(single, lambda *_: None)(x)[0], build()(x)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("batch_first", [True, False])
def test_norms_and_sums_equal_brute_force(layers: int, bias: bool, bidirectional: bool, batch_first: bool) -> None:
    module = build(num_layers=layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first)
    uses = assert_right(module, batch_loss(examples_of(6)))
    assert len(uses) == layers * (1 + bidirectional)
    assert all(use.kept is None for use in uses)


@pytest.mark.parametrize(("length", "direct"), [(6, False), (40, True)])
@pytest.mark.parametrize("bias", [True, False])
def test_norms_and_sums_equal_brute_force_in_single_precision(length: int, direct: bool, bias: bool) -> None:
    module = build(torch.float32, num_layers=2, bias=bias)
    uses = assert_right(module, batch_loss(examples_of(length, torch.float32)), tolerance=1e-5)
    assert all((use.kept is not None) is direct for use in uses)


def test_the_square_in_double_precision_is_that_of_the_same_tensors() -> None:
    for length in (6, 40):
        (use,) = record(build(torch.float32), batch_loss(examples_of(length, torch.float32)), BATCH)
        square = RULE.measure(use).square
        rows = torch.tensor([2, 0])
        again: Measured = RULE.measure(use.select(rows))
        assert torch.allclose(again.square, square[rows], rtol=1e-5)
        assert (again.spread >= again.square * (1 - 1e-12)).all()


NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("dtype", "length"), [(torch.float64, 5), (torch.float32, 40)])
def test_frozen_parameters_take_no_part(count: int, dtype: torch.dtype, length: int) -> None:
    loss = batch_loss(examples_of(length, dtype))
    for names in itertools.combinations(NAMES, count):
        assert_right(build(dtype), loss, trained=frozenset(names), tolerance=1e-10 if dtype == torch.float64 else 1e-5)


def test_only_one_direction_of_one_layer_can_be_trained() -> None:
    module = build(num_layers=2, bidirectional=True)
    trained = frozenset({"weight_hh_l1_reverse", "bias_ih_l0"})
    uses = record(module, batch_loss(examples_of(5)), BATCH, trained)
    assert sorted(len(use.trained) for use in uses) == [0, 0, 1, 1]
    assert_right(module, batch_loss(examples_of(5)), trained=trained)


@pytest.mark.parametrize(
    ("dtype", "lengths", "kept"),
    [
        (torch.float64, (5, 7), (False, False)),
        (torch.float32, (5, 7), (False, False)),
        (torch.float32, (40, 45), (True, True)),
        (torch.float32, (5, 45), (False, True)),
    ],
)
@pytest.mark.parametrize("trained", [None, frozenset({"weight_hh_l0", "bias_ih_l0"}), frozenset({"bias_hh_l0"})])
def test_state_carried_over_segments_counts_with_its_cross_terms(
    dtype: torch.dtype, lengths: tuple[int, int], kept: tuple[bool, bool], trained: frozenset[str] | None
) -> None:
    x = examples_of(sum(lengths), dtype)
    scale = torch.randn(BATCH, sum(lengths), HIDDEN, generator=torch.Generator().manual_seed(5), dtype=dtype)

    def loss(module: nn.LSTM, rows: slice) -> Tensor:
        first, second = x[rows].split(lengths, 1)
        before, state = module(first)
        after, _ = module(second, state)
        return (torch.cat([before, after], 1) * scale[rows]).flatten(1).sum(1)

    uses = assert_right(build(dtype), loss, trained=trained, tolerance=1e-10 if dtype == torch.float64 else 1e-5)
    if trained is None:
        assert sorted(use.kept is not None for use in uses) == sorted(kept)


def test_padding_at_the_end_costs_nothing_when_the_loss_ignores_it() -> None:
    module, x = build(), examples_of(6)

    def squares(padding: int) -> Tensor:
        padded = torch.cat([x, torch.full((BATCH, padding, INPUTS), 9.0, dtype=x.dtype)], 1)
        (use,) = record(module, lambda lstm, rows: lstm(padded[rows])[0][:, :6].flatten(1).square().sum(1), BATCH)
        return RULE.measure(use).square

    assert torch.allclose(squares(0), squares(3), rtol=1e-12)


def test_checkpointing_changes_nothing() -> None:
    module, x = build(num_layers=2), examples_of(6).requires_grad_()
    plain = batch_loss(x)

    def rerun(lstm: nn.LSTM, rows: slice) -> Tensor:
        return checkpoint(plain, lstm, rows, use_reentrant=False)

    for one, another in zip(record(module, plain, BATCH), record(module, rerun, BATCH), strict=True):
        assert one.gradient is not None
        assert another.gradient is not None
        assert torch.equal(one.gradient, another.gradient)
        assert torch.equal(one.activations[0], another.activations[0])


def test_autograd_computes_no_gradient_of_a_parameter() -> None:
    module = build()
    assert len(record(module, batch_loss(examples_of(4)), BATCH)) == 1
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_nothing_is_recorded_without_gradients() -> None:
    module, x = build(), examples_of(4)

    def loss(lstm: nn.LSTM, rows: slice) -> Tensor:
        with torch.no_grad():
            start = lstm(x[rows])[1]
        return lstm(x[rows], start)[0].flatten(1).sum(1)

    assert len(record(module, loss, BATCH)) == 1


@pytest.mark.parametrize("shape", [(BATCH, 4), (1, 1)])
def test_outputs_may_be_changed_in_place(shape: tuple[int, int]) -> None:
    module, x = build(), examples_of(shape[1], examples=shape[0])

    def spoiling(lstm: nn.LSTM, rows: slice) -> Tensor:
        output, (h, c) = lstm(x[rows])
        total = output.flatten(1).sum(1) + h[0].sum(1) + c[0].sum(1)
        for value in (output, h, c):
            value.mul_(0)
        return total

    def careful(lstm: nn.LSTM, rows: slice) -> Tensor:
        output, (h, c) = lstm(x[rows])
        return output.flatten(1).sum(1) + h[0].sum(1) + c[0].sum(1)

    (spoilt,), (intact,) = record(module, spoiling, len(x)), record(module, careful, len(x))
    assert torch.equal(RULE.measure(spoilt).square, RULE.measure(intact).square)


def test_under_autocast_the_recurrence_runs_in_single_precision() -> None:
    module, x = build(torch.float32), examples_of(6, torch.float32)
    expected = module(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (use,) = record(module, batch_loss(x.bfloat16()), BATCH)
        output = RULE.forward(module, lambda *_: None)(x)[0]
    assert output.dtype == use.activations[0].dtype == torch.float32
    assert use.gradient is not None
    assert use.gradient.dtype == torch.float32
    assert torch.allclose(output, expected, atol=1e-6)


def test_a_module_in_half_precision_gets_its_own_precision_back() -> None:
    module, x = build(torch.float32), examples_of(6, torch.float32)
    expected = module(x)[0]
    output, (h, c) = RULE.forward(module.bfloat16(), lambda *_: None)(x.bfloat16())
    assert output.dtype == h.dtype == c.dtype == torch.bfloat16
    assert torch.allclose(output.float(), expected, atol=3e-2)


def test_what_has_no_rule_is_refused() -> None:
    forward = RULE.forward(build(), lambda *_: None)
    x = examples_of(4)
    with pytest.raises(Refused, match="padded batch"):
        forward(nn.utils.rnn.pack_padded_sequence(x, [4, 3, 2], batch_first=True))
    with pytest.raises(Refused, match=r"x\[None\]"):
        forward(x[0])
    with pytest.raises(Refused, match="length 0"):
        forward(x[:, :0])
    with pytest.raises(Refused, match="body: an LSTM with proj_size"):
        RULE.check(build(proj_size=2), "body")
    RULE.check(build(), "body")


def test_rows_that_are_no_multiple_of_the_examples_are_refused() -> None:
    x = examples_of(4)
    with pytest.raises(Refused, match="shared out to the examples"):
        record(build(), lambda module, rows: module(x)[0].flatten(1).sum(1), 2)
    with pytest.raises(Refused, match="shared out to the examples"):
        record(build(), lambda module, rows: module(x[:1])[0].flatten(1).sum(1).expand(3), 3)


def test_several_rows_of_one_example_add_up() -> None:
    x = examples_of(5, examples=2 * BATCH)
    pairs = x.view(BATCH, 2, 5, INPUTS)

    def loss(module: nn.LSTM, rows: slice) -> Tensor:
        output = module(pairs[rows].flatten(0, 1))[0]
        return output.square().flatten(1).sum(1).view(-1, 2).sum(1)

    assert_right(build(), loss)


def test_an_input_matrix_tied_to_the_state_matrix_is_refused() -> None:
    module = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
    module.weight_hh_l0 = module.weight_ih_l0
    x = torch.randn(BATCH, 4, HIDDEN)
    (use,) = record(module, lambda lstm, rows: lstm(x[rows])[0].flatten(1).sum(1), BATCH, frozenset(NAMES))
    with pytest.raises(Refused, match="untie"):
        RULE.inner(use, use, frozenset({"weight_hh_l0"}))


def test_tied_biases_have_twice_the_gradient() -> None:
    module = build()
    module.bias_hh_l0 = module.bias_ih_l0
    (use,) = record(module, batch_loss(examples_of(4)), BATCH, frozenset({"bias_ih_l0", "bias_hh_l0"}))
    assert use.gradient is not None
    expected = (2 * use.gradient.sum(1)).square().sum(1)
    assert torch.allclose(RULE.measure(use).square + 2 * RULE.inner(use, use, frozenset({"bias_hh_l0"})), expected)


def test_a_bias_that_two_lstms_share_has_its_cross_term() -> None:
    one, other = build(), build()
    other.bias_ih_l0 = one.bias_ih_l0
    x = batch_loss(examples_of(4))
    first, second = (record(module, x, BATCH, frozenset(NAMES))[0] for module in (one, other))
    assert first.gradient is not None
    assert second.gradient is not None
    expected = (first.gradient.sum(1) * second.gradient.sum(1)).sum(1)
    assert torch.allclose(RULE.inner(first, second, frozenset({"bias_ih_l0"})), expected)


def test_biases_alone_have_their_cross_terms() -> None:
    module, x = build(), examples_of(5)

    def loss(lstm: nn.LSTM, rows: slice) -> Tensor:
        first, state = lstm(x[rows])
        return lstm(first.repeat(1, 1, 2)[..., :INPUTS], state)[0].square().sum((1, 2))

    assert len(assert_right(module, loss, trained=frozenset({"bias_ih_l0", "bias_hh_l0"}))) == 2
