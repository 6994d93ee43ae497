"""Ways to break the bound on one record's contribution, or the noise, that were tried; each is refused or does not work."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

from confide.accounting import LedgerWriter, Setting
from confide.dp import Plan, PrivateGradients
from confide.dp.head import made_up, ways
from confide.dp.losses import built_in
from confide.errors import BadInput, Refused

U = 2.0**-24


def forced(model, batch):
    """A loss whose output gradient is given."""
    return (model(batch["x"]) * batch["force"]).sum((1, 2))


def size(sums):
    return math.sqrt(sum(float(part.square().sum()) for part in sums))


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 32)

    def forward(self, ids):
        return self.table(ids)


# --- noise


def released(after=lambda model: None, before=lambda model: None):
    """The gradients of four steps with much noise, with something done in between."""
    model, x = nn.Linear(40, 1), torch.randn(40, 40)
    plan = Plan(records=40, sampling_rate=1.0, steps=4, noise_multiplier=100.0)
    private, found = PrivateGradients(model, plan), []
    for step in plan.run():
        for rows in step.microbatches(20):
            before(model)
            private.accumulate({"x": x[rows]}, lambda model, batch: model(batch["x"])[:, 0])
        private.release(step)
        found.append(model.weight.grad.flatten().clone() * plan.expected_batch)
        after(model)
    return torch.stack(found)


def scale(model):
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad.data * 1


@pytest.mark.parametrize(
    ("after", "before"),
    [
        (lambda model: None, lambda model: model.zero_grad(set_to_none=False)),
        (scale, lambda model: None),
        (lambda model: (model.double(), model.float()), lambda model: None),
        (lambda model: [p.grad.zero_() for p in model.parameters()], lambda model: None),
    ],
    ids=["zero_grad", "grad.data", "to another type and back", "zeroed"],
)
def test_nothing_done_to_gradients_takes_the_noise_away(after, before):
    steps = released(after, before)
    assert (steps.std(1) > 50).all()
    assert (torch.corrcoef(steps) - torch.eye(4)).abs().max() < 0.8


def test_a_sum_without_noise_is_never_seen():
    model = nn.Linear(4, 1)
    plan = Plan(records=4, sampling_rate=1.0, steps=2, noise_multiplier=1.0)
    private = PrivateGradients(model, plan)
    for step in plan.run():
        private.accumulate({"x": torch.randn(4, 4)}, lambda model, batch: model(batch["x"])[:, 0])
        assert all(parameter.grad is None for parameter in model.parameters())
        private.release(step)
        assert private._sums is None


def test_a_backward_pass_in_an_open_step_is_refused():
    model = nn.Linear(4, 1)
    plan = Plan(records=8, sampling_rate=1.0, steps=2, noise_multiplier=1.0)
    private = PrivateGradients(model, plan)
    step, x = next(plan.run()), torch.randn(4, 4)
    private.accumulate({"x": x}, lambda model, batch: model(batch["x"])[:, 0])
    model(x).sum().backward()
    with pytest.raises(Refused, match=r"something wrote into p\.grad"):
        private.accumulate({"x": x}, lambda model, batch: model(batch["x"])[:, 0])
    with pytest.raises(Refused, match="make new PrivateGradients"):
        private.release(step)


def test_no_more_steps_are_released_than_planned():
    model = nn.Linear(4, 1)
    plan = Plan(records=8, sampling_rate=1e-9, steps=2, noise_multiplier=1.0)
    private = PrivateGradients(model, plan)
    for step in plan.run():
        private.release(step)
    with pytest.raises(Refused, match="all steps of the plan are taken"):
        private.release(next(plan.run()))


def test_a_ledger_that_states_another_clipping_norm_or_corpus_is_refused(tmp_path):
    plan = Plan(records=60, sampling_rate=0.1, steps=2, noise_multiplier=1.0)
    for name, records, norm in (("norm", 60, 0.1), ("corpus", 61, 1.0)):
        facts = Setting("dpsgd", "document", "none", "everything", records, norm)
        ledger = LedgerWriter.create(tmp_path / name, facts.to_plain(), [("train", plan.event)])
        with ledger, pytest.raises(Refused, match="states another"):
            plan.run(ledger)


# --- contributions


class SharedScale(nn.Module):
    """Two norms that share their weight and not their bias."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(6), nn.LayerNorm(6)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.one(x) - self.two(torch.tanh(x))


def test_layers_that_share_one_of_two_parameters(oracle, clipped, far):
    model, x = SharedScale(), torch.randn(3, 5, 6)
    inputs = {"x": x, "force": torch.randn(3, 5, 6)}
    _, sums = oracle(model, inputs, forced, 1.0)
    _, found = clipped(model, inputs, forced, clip_norm=1.0)
    assert far(found, sums) < 1e-5
    inputs["force"] = torch.randn(3, 5, 6) * 100
    inputs["force"][:2] = 0
    assert size(clipped(model, inputs, forced, clip_norm=1.0)[1]) <= 1 + 1e-6


def test_a_matrix_shared_with_its_transpose_is_refused(clipped):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.conv = nn.Linear(5, 5), Conv1D(5, 5)
            self.conv.weight = self.linear.weight

        def forward(self, x):
            return self.conv(torch.tanh(self.linear(x)))

    with pytest.raises(Refused, match="untie"):
        clipped(Both(), {"x": torch.randn(3, 4, 5), "force": torch.randn(3, 4, 5)}, forced)


class Mixing(nn.Module):
    """A layer that looks at the batch: always, only in training, or a little."""

    def __init__(self, strength=1.0, only_in_training=False):
        super().__init__()
        self.layer, self.strength, self.only_in_training = nn.Linear(4, 3), strength, only_in_training

    def forward(self, x):
        y = self.layer(x)
        return y if self.only_in_training and not self.training else y - self.strength * y.mean(0, keepdim=True)


def cubed(model, batch):
    return model(batch["x"]).pow(3).sum(1) * batch["weight"]


@pytest.mark.parametrize("options", [{}, {"only_in_training": True}, {"strength": 1e-5}], ids=str)
def test_layers_that_mix_records_are_refused_however_little_or_seldom(options, clipped):
    weight = torch.ones(16)
    weight[:2] = 0  # the first records say nothing
    with pytest.raises(Refused, match="not independent"):
        clipped(Mixing(**options), {"x": torch.randn(16, 4), "weight": weight}, cubed)


def test_equal_first_records_prove_nothing():
    class Twofold(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(torch.cat([x, x]))[: len(x)]

    x = torch.randn(1, 4).expand(2, 4).contiguous()
    plan = Plan(records=6, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    private = PrivateGradients(Twofold(), plan)

    def both():
        for rows in (x, torch.randn(4, 4)):
            private.accumulate({"x": rows, "weight": torch.ones(len(rows))}, cubed)

    with pytest.raises(Refused, match="not independent"):
        both()


def test_a_mean_over_the_batch_in_the_shape_of_losses_is_refused(clipped):
    def loss(model, batch):
        return model(batch["x"]).square().mean().expand(len(batch["x"]))

    with pytest.raises(Refused, match="not independent"):
        clipped(nn.Linear(4, 3), {"x": torch.randn(4, 4)}, loss)


def test_parameters_without_a_gradient_at_first_are_proven_later():
    class Sneaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.gate = nn.Linear(5, 5), nn.Linear(5, 5)
            nn.init.zeros_(self.gate.weight)

        def forward(self, x):
            return self.gate(self.layer(x) @ self.layer.weight)

    model = Sneaky()
    nn.init.zeros_(model.gate.bias)
    plan = Plan(records=8, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    private = PrivateGradients(model, plan)
    inputs = {"x": torch.randn(4, 3, 5), "force": torch.randn(4, 3, 5)}
    private.accumulate(inputs, forced)
    with torch.no_grad():
        model.gate.weight.normal_()
    with pytest.raises(Refused, match=r"layer\.weight"):
        private.accumulate(inputs, forced)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("positions", [512, 4096])
def test_a_token_repeated_many_times(positions, exact, clipped):
    inputs = {"x": torch.zeros(1, positions, dtype=torch.long), "force": torch.ones(1, positions, 32)}
    _, sums = clipped(Table(), inputs, forced, clip_norm=1.2, exact=exact)
    assert 1.19 < size(sums) <= 1.2 * (1 + 1e-6)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("model", "inputs"), [(Table, None), (lambda: nn.Linear(256, 1024, bias=False), 256)], ids=["embedding", "linear"]
)
def test_large_terms_that_cancel_and_swallow_small_ones(model, inputs, exact, clipped):
    positions = 100
    x = torch.zeros(1, positions, dtype=torch.long) if inputs is None else torch.ones(1, positions, inputs)
    force = torch.full((1, positions, 32 if inputs is None else 1024), 0.55 * 2.0**-3)  # rounds up to 2⁻³ beside 2²⁰
    large = torch.tensor([2.0**20, 0.7 * 2.0**20])  # two that only together cancel the third: no symmetry helps
    force[:, 0], force[:, positions // 2], force[:, -1] = *large, -large.sum()
    _, sums = clipped(model(), {"x": x, "force": force}, forced, clip_norm=1.5, exact=exact, checked=False)
    # Not much less, either: in single precision the bound on what rounding may have done would leave next to nothing of it
    assert 0.8 < size(sums) <= 1.5 * (1 + 1e-6)


@pytest.mark.parametrize("exact", [True, False])
def test_squares_that_underflow_are_taken_in_double_precision(exact, clipped):
    inputs = {"x": torch.full((1, 16, 64), 2e18), "force": torch.full((1, 16, 20_000), 2.5e-23)}
    _, sums = clipped(nn.Linear(64, 20_000, bias=False), inputs, forced, clip_norm=0.1, exact=exact, checked=False)
    assert 0.099 < size(sums) <= 0.1 * (1 + 1e-6)


@pytest.mark.parametrize("shape", [(4, 2048, 8192), (4, 768, 3072), (1, 384, 384), (48, 768, 3072)], ids=str)
def test_both_factors_that_lose_their_small_terms_are_paid_for_by_the_noise(shape, clipped):
    positions, inputs, outputs = shape
    x, force = (torch.full((1, positions, n), math.sqrt(0.98 * U)) for n in (inputs, outputs))
    x[..., 0] = force[..., 0] = 1
    model = nn.Linear(inputs, outputs, bias=False)
    _, sums = clipped(model, {"x": x, "force": force * 128}, forced, clip_norm=1.0, checked=False)
    assert size(sums) <= 1 + 2.0**-12
    _, sums = clipped(model, {"x": x, "force": force * 128}, forced, clip_norm=1.0, checked=False, exact=True)
    assert size(sums) <= 1 + 1e-6


# --- precision and models


def test_reduced_precision_of_products_is_refused(clipped):
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(Refused, match="reduced precision"):
            clipped(nn.Linear(4, 3), {"x": torch.randn(2, 3, 4), "force": torch.randn(2, 3, 3)}, forced)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("dtype", "fine"), [(torch.bfloat16, True), (torch.float16, False)])
def test_autocast_inside_the_loss_function_is_seen(dtype, fine, clipped):
    def loss(model, batch):
        with torch.autocast("cpu", dtype):
            return (model(batch["x"]) * batch["force"]).float().sum((1, 2))

    inputs = {"x": torch.randn(3, 4, 5), "force": torch.randn(3, 4, 2)}
    if fine:
        assert size(clipped(nn.Linear(5, 2), inputs, loss)[1]) > 0
    else:
        with pytest.raises(Refused, match="float16 needs a dynamic loss scale"):
            clipped(nn.Linear(5, 2), inputs, loss)


def test_a_tied_layer_without_a_rule_is_refused_by_name():
    sizes = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    model = Gemma2ForCausalLM(Gemma2Config(**sizes, num_key_value_heads=1, head_dim=4))
    with pytest.raises(Refused, match="embed_tokens"):
        PrivateGradients(model, Plan(records=4, sampling_rate=1.0, steps=1, noise_multiplier=1.0), task="causal")


def test_engines_on_a_model_and_on_a_part_of_it():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    plan = Plan(records=4, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    first = PrivateGradients(model, plan)
    with pytest.raises(ValueError, match="already has PrivateGradients"):
        PrivateGradients(model[0], plan)
    first.detach()
    PrivateGradients(model[0], plan)


# --- what a record gives must not depend on the others of its batch


def tiny_llama(**more):
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, **more))


@pytest.mark.parametrize("task", ["causal", None])
def test_padding_on_the_left_is_refused(task):
    # The first token would be predicted from padding, if a longer record is there: a swap moved the sum by 97 C
    plan = Plan(records=2, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    private = PrivateGradients(tiny_llama().train(), plan, task=task)
    ids = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}
    with pytest.raises(BadInput, match="pad records on the right"):
        private.accumulate(batch, None if task else lambda model, batch: model(**batch).logits.mean((1, 2)))


def test_what_all_records_share_is_decided_by_none_of_them():
    model = tiny_llama().eval()
    for width in (1, 2, 9):
        ids = torch.randint(0, 40, (3, width))
        row = made_up(model, {"input_ids": ids, "labels": ids, "attention_mask": torch.zeros_like(ids)})
        assert row["input_ids"].tolist() == [[0, 1, 2, 3]]
        assert bool(row["attention_mask"].all())
        assert ways(model, {"input_ids": ids}) == (True, True)
    assert made_up(model, {"input_ids": ids, "something": ids}) is None
    assert ways(nn.Linear(2, 2), {"input_ids": ids}) == (False, False)


class Summing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.outer = nn.Linear(3, 1)

    def forward(self, x):
        hidden = self.inner(x)
        return self.outer(hidden + hidden.sum(0))


@pytest.mark.parametrize("sizes", [[31, 1, 1], [1, 1, 31], [1, 1, 1, 1, 3, 1]])
def test_records_that_mix_are_found_in_the_first_batch_that_shows_it(sizes):
    plan = Plan(records=sum(sizes), sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    private = PrivateGradients(Summing(), plan)

    def all_of_them():
        for count in sizes:
            private.accumulate({"x": torch.randn(count, 3)}, lambda model, batch: model(batch["x"])[:, 0])

    with pytest.raises(Refused, match="not independent"):
        all_of_them()


@pytest.mark.parametrize("x", [8.587e17, 1.194e18, 3e18])
def test_a_weight_too_small_for_single_precision_is_none(x, clipped):
    # Rounded up as a subnormal number it let a contribution of 2 C through
    model = nn.Linear(1, 1, bias=False)
    batch = {"x": torch.cat([torch.full((1, 1), x), torch.ones(999, 1)])}
    _, (alone,) = clipped(
        model, {"x": batch["x"][1:]}, lambda model, batch: model(batch["x"])[:, 0] ** 2, clip_norm=1e-6
    )
    _, (both,) = clipped(model, batch, lambda model, batch: model(batch["x"])[:, 0] ** 2, clip_norm=1e-6)
    assert float((both - alone).norm()) <= 1e-6 * 1.001


# --- what plain training can do, done here too or refused in words


def test_a_frozen_base_in_half_precision_trains_its_adapters(clipped, oracle, far):
    model = get_peft_model(tiny_llama().bfloat16(), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    ids = torch.randint(0, 40, (3, 6))
    _, sums = clipped(model, {"input_ids": ids, "labels": ids}, task="causal")
    assert all(bool(part.isfinite().all()) for part in sums)
    assert size(sums) > 0


def test_a_model_of_ones_own_may_return_its_logits(clipped, oracle, far):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_model = nn.Sequential(nn.Embedding(9, 4))
            self.base_model.forward = lambda input_ids: (self.base_model[0](input_ids),)
            self.head = nn.Linear(4, 9)

        def get_output_embeddings(self):
            return self.head

        def forward(self, input_ids):
            return self.head(self.base_model(input_ids)[0])

    model, ids = Own(), torch.randint(0, 9, (4, 5))
    batch = {"input_ids": ids, "labels": ids}
    assert ways(model, batch) == (True, True)
    _, sums = clipped(model, batch, task="causal")
    assert far(sums, oracle(model, batch, built_in("causal", "mean"), 0.5)[1]) < 1e-4


def test_a_parameter_may_lie_in_memory_as_it_likes(clipped, oracle, far):
    model = nn.Sequential(nn.Linear(5, 3))
    model[0].weight = nn.Parameter(torch.randn(5, 3).t())
    batch = {"x": torch.randn(4, 5)}
    loss = lambda model, batch: model(batch["x"]).square().sum(1)  # noqa: E731
    _, sums = clipped(model, batch, loss, batch=2)
    assert far(sums, oracle(model, batch, loss, 0.5)[1]) < 1e-4


def test_a_scalar_parameter_has_a_generic_rule(clipped, oracle, far):
    class Scalar(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.3))

        def forward(self, x):
            return x * self.scale

    model = nn.Sequential(nn.Linear(5, 3), Scalar())
    batch = {"x": torch.randn(4, 5)}
    loss = lambda model, batch: model(batch["x"]).square().sum(1)  # noqa: E731
    _, sums = clipped(model, batch, loss, generic=True)
    assert far(sums, oracle(model, batch, loss, 0.5)[1]) < 1e-4


def test_what_torch_says_of_in_place_operations_is_explained(clipped):
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    with pytest.raises(Refused, match="inplace=False"):
        clipped(model, {"x": torch.randn(4, 5)}, lambda model, batch: model(batch["x"])[:, 0])


def test_reentrant_checkpoints_are_refused_in_words(clipped):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 3), nn.Linear(3, 1)

        def forward(self, x):
            return checkpoint(self.second, self.first(x), use_reentrant=True)

    with pytest.raises(Refused, match="use_reentrant=False"):
        clipped(Checkpointed(), {"x": torch.randn(4, 5)}, lambda model, batch: model(batch["x"])[:, 0])


def test_labels_of_another_width_are_refused(clipped):
    ids = torch.randint(0, 40, (2, 9))
    with pytest.raises(BadInput, match="different shapes"):
        clipped(tiny_llama(), {"input_ids": ids, "labels": ids[:, :8]}, task="causal")


def test_position_ids_for_all_records_may_come_first(clipped, far):
    model, ids = tiny_llama(), torch.randint(0, 40, (3, 6))
    batch = {"input_ids": ids, "labels": ids}
    shared = {"position_ids": torch.arange(6)[None], **batch}
    assert far(clipped(model, shared, task="causal")[1], clipped(model, batch, task="causal")[1]) < 1e-4


def test_layers_that_are_hidden_or_sparse_are_refused():
    plan = Plan(records=2, sampling_rate=1.0, steps=1, noise_multiplier=1.0)
    with pytest.raises(Refused, match=r"torch\.compile"):
        PrivateGradients(torch.compile(nn.Linear(2, 2)), plan)
    with pytest.raises(Refused, match="sparse"):
        PrivateGradients(nn.Embedding(3, 2, sparse=True), plan)
