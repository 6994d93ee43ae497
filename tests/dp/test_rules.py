"""Every rule against a loop over single examples."""

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.pytorch_utils import Conv1D

from confide.dp import Elementwise, Plan, PrivateGradients, register
from confide.dp.rules import linear, rule_for
from confide.errors import Refused

EXACT = {torch.float32: 1e-5, torch.float64: 1e-9}


class Net(nn.Module):
    """Any layer between a random projection of the input and a loss that uses every output."""

    def __init__(self, layer, **how):
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, x):
        return self.layer(x, **self.how)


def loss(model, batch):
    out = model(batch["x"])
    target = torch.sin(torch.arange(out[0].numel(), dtype=out.dtype)).view(out.shape[1:])
    return (out - target).square().flatten(1).mean(1)


class Tied(nn.Module):
    """An embedding, something in between, and a head with the same matrix."""

    def __init__(self, words=11, features=6, bias=False, padding=None):
        super().__init__()
        self.table = nn.Embedding(words, features, padding_idx=padding)
        self.between = nn.Linear(features, features)
        self.head = nn.Linear(features, words, bias=bias)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(torch.tanh(self.between(self.table(x))))


class Twice(nn.Module):
    """One layer used twice, the second time on fewer positions."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        first = self.layer(x)
        return torch.cat([first, self.layer(torch.tanh(first[:, 1:]))], 1)


class TwoTables(nn.Module):
    """Two embeddings with one matrix, as in encoder and decoder."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Embedding(11, 4), nn.Embedding(11, 4)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.one(x) * torch.sin(self.two(x.flip(1)))


class Positions(nn.Module):
    """Words plus positions, whose ids have shape [1, T] and stand for every example."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, 4), nn.Embedding(20, 4)

    def forward(self, x):
        return torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1])[None]))


COINS = torch.Generator().manual_seed(0)


def numbers(*shape):
    return torch.randn(*shape, generator=COINS)


def words(*shape):
    return torch.randint(0, 11, shape, generator=COINS)


def moved(layer):
    """A layer as it is after some training."""
    with torch.no_grad():
        layer.weight.add_(torch.linspace(-0.3, 0.6, len(layer.weight)))
    return layer


LAYERS = {
    "linear": (lambda: nn.Linear(5, 7), numbers(4, 6, 5)),
    "linear on one vector": (lambda: nn.Linear(5, 7), numbers(4, 5)),
    "linear without bias": (lambda: nn.Linear(5, 7, bias=False), numbers(4, 6, 5)),
    "linear in four dimensions": (lambda: nn.Linear(5, 7), numbers(4, 2, 3, 5)),
    "long linear": (lambda: nn.Linear(3, 2), numbers(4, 33, 3)),
    "conv1d": (lambda: Conv1D(7, 5), numbers(4, 6, 5)),
    "long conv1d": (lambda: Conv1D(2, 3), numbers(4, 33, 3)),
    "layernorm": (lambda: nn.LayerNorm(5), numbers(4, 6, 5)),
    "layernorm without bias": (lambda: nn.LayerNorm(5, bias=False), numbers(4, 6, 5)),
    "rmsnorm": (lambda: nn.RMSNorm(5), numbers(4, 6, 5)),
    "rmsnorm with weights that have moved": (lambda: moved(nn.RMSNorm(5)), numbers(4, 6, 5)),
    "gemma's rmsnorm": (lambda: moved(GemmaRMSNorm(5)), numbers(4, 6, 5)),
    "embedding": (lambda: nn.Embedding(11, 4), words(4, 9)),
    "embedding with padding": (lambda: nn.Embedding(11, 4, padding_idx=3), words(4, 9)),
    "positions for all": (Positions, words(4, 9)),
    "tied": (Tied, words(4, 9)),
    "tied with bias": (lambda: Tied(bias=True), words(4, 9)),
    "tied with padding": (lambda: Tied(padding=2), words(4, 9)),
    "tied and long": (Tied, words(4, 80)),
    "two tables": (TwoTables, words(4, 9)),
    "linear twice": (lambda: Twice(nn.Linear(5, 5)), numbers(4, 6, 5)),
    "conv1d twice and long": (lambda: Twice(Conv1D(3, 3)), numbers(4, 20, 3)),
    "layernorm twice": (lambda: Twice(nn.LayerNorm(5)), numbers(4, 6, 5)),
    "a stack": (lambda: nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)), numbers(4, 6, 5)),
}


@pytest.mark.parametrize("direct", [True, False, None], ids=["direct", "gram", "as chosen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_norms_and_clipped_sums_are_those_of_single_examples(name, dtype, direct, oracle, clipped, far, monkeypatch):
    if direct is not None:
        monkeypatch.setattr(linear, "prefers_direct", lambda *shape: direct)
    make, x = LAYERS[name]
    model = Net(make()).to(dtype)
    inputs = {"x": x.to(dtype) if x.is_floating_point() else x}
    norms, sums = oracle(model, inputs, loss, 0.05)
    found_norms, found = clipped(model, inputs, loss, clip_norm=0.05)
    exact = EXACT[torch.float32 if "gemma" in name else dtype]  # it computes in single precision always
    assert torch.allclose(found_norms, norms, rtol=exact, atol=0)
    # Weights come from upper bounds of the norms, which are wider where uses of one parameter may cancel.
    assert far(found, sums) < exact * (3 if "twice" in name else 1)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("make", [lambda: nn.Linear(5, 7), lambda: Conv1D(7, 5), lambda: nn.LayerNorm(5)])
def test_frozen_parameters_take_no_part(frozen, make, oracle, clipped, far):
    model = Net(nn.Sequential(nn.Linear(5, 5), make()))
    getattr(model.layer[1], frozen).requires_grad_(False)
    inputs = {"x": numbers(4, 6, 5)}
    norms, sums = oracle(model, inputs, loss, 0.05)
    found_norms, found = clipped(model, inputs, loss, clip_norm=0.05)
    assert torch.allclose(found_norms, norms, rtol=1e-5)
    assert far(found, sums) < 1e-5
    assert not getattr(model.layer[1], frozen).requires_grad


class Polynomial(nn.Module):
    """A layer that no rule knows."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5, 5))

    def forward(self, x):
        return self.a * x**2 + x @ self.b


def test_a_layer_without_a_rule_is_refused_by_name_and_says_what_to_do():
    plan = Plan(records=4, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    with pytest.raises(Refused, match=r"layer \(Polynomial\) trains a, b.*register.*generic=True"):
        PrivateGradients(Net(Polynomial()), plan)


@pytest.mark.parametrize("wrap", [lambda layer: layer, Twice])
def test_the_generic_rule_covers_unknown_layers(wrap, oracle, clipped, far):
    model = Net(nn.Sequential(nn.Linear(5, 5), wrap(Polynomial())))
    inputs = {"x": numbers(4, 6, 5)}
    norms, sums = oracle(model, inputs, loss, 0.05)
    found_norms, found = clipped(model, inputs, loss, clip_norm=0.05, generic=True)
    assert torch.allclose(found_norms, norms, rtol=1e-5)
    assert far(found, sums) < 1e-5


def test_the_generic_rule_refuses_a_layer_that_draws_coins(clipped):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.ones(5))

        def forward(self, x):
            return self.a * nn.functional.dropout(x, 0.5)

    with pytest.raises(Refused, match="Noisy"):
        clipped(Net(Noisy()), {"x": numbers(4, 6, 5)}, loss, generic=True, checked=False)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return self.weight * x.exp()


def test_a_registered_rule_is_used(oracle, clipped, far):
    @register
    class ScaleRule(Elementwise):
        layers = (Scale,)

        def factor(self, use):
            return use.activations[0].exp()

    model = Net(Scale())
    inputs = {"x": numbers(4, 6, 5)}
    _, sums = oracle(model, inputs, loss, 0.05)
    _, found = clipped(model, inputs, loss, clip_norm=0.05)
    assert far(found, sums) < 1e-5


def test_a_wrong_rule_is_found_on_the_first_batch(clipped):
    class Root(Scale):
        pass

    @register
    class WrongRule(Elementwise):
        layers = (Root,)

        def factor(self, use):
            return use.activations[0]

    with pytest.raises(Refused, match=r"layer\.weight: the per-example rule does not give the gradient"):
        clipped(Net(Root()), {"x": numbers(4, 6, 5)}, loss)


def test_a_use_of_a_parameter_outside_its_module_is_found_on_the_first_batch(clipped):
    class Sneaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 5)

        def forward(self, x):
            return self.inner(x) @ self.inner.weight

    with pytest.raises(Refused, match=r"inner\.weight.*outside its module"):
        clipped(Sneaky(), {"x": numbers(4, 6, 5)}, loss)


def test_a_batch_that_does_not_come_first_is_refused(clipped):
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 5)

        def forward(self, x):
            return self.inner(x.transpose(0, 1)).transpose(0, 1)

    with pytest.raises(Refused, match="inner: the rows of its output"):
        clipped(TimeFirst(), {"x": numbers(4, 5, 5)}, loss)
    with pytest.raises(Refused, match=r"not independent|the rows of its output"):
        clipped(TimeFirst(), {"x": numbers(4, 4, 5)}, loss)


def test_examples_that_see_each_other_are_found_on_the_first_batch(clipped):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 5)

        def forward(self, x):
            return self.inner(x - x.mean(0) * 0.5)

    with pytest.raises(Refused, match="not independent"):
        clipped(Centred(), {"x": numbers(4, 6, 5)}, loss)


def test_ids_without_a_batch_dimension_are_refused(clipped):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(11, 4)

        def forward(self, x):
            return self.table(torch.arange(5)) + self.table(x)

    with pytest.raises(Refused, match="one dimension"):
        clipped(Flat(), {"x": words(4, 5)}, loss)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_mix_records_are_refused(options):
    plan = Plan(records=4, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    with pytest.raises(Refused, match="mixes the records"):
        PrivateGradients(Net(nn.Embedding(5, 3, **options)), plan)


def test_gram_matrices_are_chosen_for_short_records_and_products_for_long_ones():
    assert not linear.prefers_direct(positions=32, inputs=768, outputs=3072)
    assert linear.prefers_direct(positions=512, inputs=256, outputs=256)
    assert not linear.prefers_direct(positions=512, inputs=4096, outputs=50_000), "per-example products would not fit"


@pytest.mark.parametrize("kept", ["first", "second"])
@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 3), lambda: Conv1D(3, 3)], ids=["linear", "conv1d"])
def test_two_uses_of_a_layer_may_be_measured_in_different_ways(make, kept, oracle, clipped, far, monkeypatch):
    monkeypatch.setattr(linear, "prefers_direct", lambda positions, *shape: (positions == 6) == (kept == "first"))
    model, inputs = Net(Twice(make())), {"x": numbers(4, 6, 3)}
    norms, sums = oracle(model, inputs, loss, 0.05)
    found_norms, found = clipped(model, inputs, loss, clip_norm=0.05)
    assert torch.allclose(found_norms, norms, rtol=1e-5)
    assert far(found, sums) < 3e-5


class Holder(nn.Module):
    """Holds its decoder's bias under a name of its own."""

    def __init__(self):
        super().__init__()
        self.decoder = nn.Linear(5, 3)
        self.bias = self.decoder.bias

    def forward(self, x):
        return self.decoder(x)


def test_a_bias_that_is_held_twice_is_trained_once(oracle, clipped, far):
    model, inputs = Net(Holder()), {"x": numbers(4, 6, 5)}
    norms, sums = oracle(model, inputs, loss, 0.05)
    found_norms, found = clipped(model, inputs, loss, clip_norm=0.05)
    assert torch.allclose(found_norms, norms, rtol=1e-5)
    assert far(found, sums) < 1e-5
    model.layer.bias = nn.Parameter(torch.zeros(3))
    with pytest.raises(Refused, match=r"layer \(Holder\) trains bias and has no rule"):
        clipped(model, inputs, loss)


class Chain(nn.Module):
    """Layers one after the other, of which some share a parameter."""

    def __init__(self, *layers, **tied):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        for name, parameter in tied.items():
            setattr(self.layers[1], name, parameter)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = torch.tanh(x[0] if isinstance(x, tuple) else x)
        return x


def scale_as_bias():
    norm = nn.LayerNorm(5)
    return Chain(norm, nn.Linear(5, 5), bias=norm.weight)


def scale_as_shift():
    norm = nn.LayerNorm(5)
    return Chain(norm, nn.LayerNorm(5), bias=norm.weight)


def table_as_transpose():
    table = nn.Embedding(11, 5)
    return Chain(table, Wide(table.weight))


class Wide(nn.Module):
    """Words back to features by a transposed layer that shares the table."""

    def __init__(self, weight):
        super().__init__()
        self.widen, self.conv = nn.Linear(5, 11), Conv1D(5, 11)
        self.conv.weight = weight

    def forward(self, x):
        return self.conv(self.widen(x))


def recurrent_as_linear():
    lstm = nn.LSTM(5, 5, batch_first=True)
    return Chain(lstm, nn.Linear(5, 20), weight=lstm.weight_ih_l0)


def generic_in_two_modules():
    first = Polynomial()
    return Chain(first, Polynomial(), a=first.a)


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (scale_as_bias, numbers(4, 6, 5)),
        (scale_as_shift, numbers(4, 6, 5)),
        (table_as_transpose, words(4, 6)),
        (recurrent_as_linear, numbers(4, 6, 5)),
        (generic_in_two_modules, numbers(4, 6, 5)),
    ],
)
def test_a_parameter_that_plays_two_roles_is_refused(make, x, clipped):
    with pytest.raises(Refused, match=r"shares a parameter with .*untie them"):
        clipped(Net(make()), {"x": x}, loss, generic=True)


class Powers(nn.Module):
    """A layer that no rule knows, with an option."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 5))

    def forward(self, x, power=2):
        return self.scale * x**power


class Shared(nn.Module):
    """Powers of one row, which stands for every example."""

    def __init__(self):
        super().__init__()
        self.powers = Powers()

    def forward(self, x):
        return torch.tanh(x * self.powers(torch.linspace(-1, 1, 5)[None, None]))


class Flattened(nn.Module):
    """Positions in the place of examples."""

    def __init__(self):
        super().__init__()
        self.powers = Powers()

    def forward(self, x):
        return self.powers(x.flatten(0, 1)).view(x.shape)


def test_the_generic_rule_covers_one_row_for_every_example(oracle, clipped, far):
    model, inputs = Net(Shared()), {"x": numbers(4, 6, 5)}
    norms, sums = oracle(model, inputs, loss, 0.05)
    found_norms, found = clipped(model, inputs, loss, clip_norm=0.05, generic=True)
    assert torch.allclose(found_norms, norms, rtol=1e-5)
    assert far(found, sums) < 1e-5


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: Net(Powers(), power=3), "Powers: the generic rule covers calls with tensors as plain arguments only"),
        (lambda: Net(Flattened()), "needs the batch as the first dimension"),
    ],
)
def test_the_generic_rule_refuses_calls_that_it_cannot_repeat(model, reason, clipped):
    with pytest.raises(Refused, match=reason):
        clipped(model(), {"x": numbers(4, 6, 5)}, loss, generic=True)


def test_norms_that_no_rule_covers_are_refused():
    plan = Plan(records=4, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    with pytest.raises(Refused, match="layer: a LayerNorm over several dimensions"):
        PrivateGradients(Net(nn.LayerNorm((6, 5))), plan)
    odd = type("OddRMSNorm", (Scale,), {"__module__": "transformers.models.odd"})
    with pytest.raises(Refused, match="layer: OddRMSNorm does not compute what an RMSNorm computes"):
        PrivateGradients(Net(odd()), plan)


@pytest.mark.parametrize("past", [0, 2])
def test_positions_of_opt_are_counted_from_its_mask(past):
    module = OPTLearnedPositionalEmbedding(10, 3)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    (ids,) = rule_for(module).inputs(module, (mask,), {"past_key_values_length": past})
    assert torch.equal(module.weight[ids], module(mask, past))


def test_the_forward_of_a_layer_is_its_own_again_after_each_batch():
    lstm = nn.LSTM(3, 2, batch_first=True)
    plan = Plan(records=4, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    private = PrivateGradients(nn.Sequential(lstm), plan, checked=False)

    def pooled(model, batch):
        return model(batch["x"])[0].square().sum((1, 2))

    private.accumulate({"x": numbers(2, 5, 3)}, pooled)
    assert "forward" not in lstm.__dict__
    lstm.forward = own = lstm.forward
    private.accumulate({"x": numbers(2, 5, 3)}, pooled)
    assert lstm.__dict__["forward"] is own
