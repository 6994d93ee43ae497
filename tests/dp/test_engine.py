"""What every guarantee rests on: bounded contributions, noise once per step, and refusals (guarantees §1)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from confide.dp import Elementwise, Plan, PrivateGradients, register
from confide.dp.engine import Doubts
from confide.dp.head import can_fuse, looks_back, parts
from confide.dp.losses import built_in, token_weights
from confide.dp.noise import GaussianNoise
from confide.dp.rules.base import Sums
from confide.errors import BadInput, Refused

WORDS, FEATURES = 13, 6


class LanguageModel(nn.Module):
    """A tiny tied language model with the parts of a Hugging Face one."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.base_model = Body(dropout)
        self.head = nn.Linear(FEATURES, WORDS, bias=False)
        self.head.weight = self.base_model.table.weight

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids):
        return Output(self.head(self.base_model(input_ids)[0]))


class Body(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.table = nn.Embedding(WORDS, FEATURES)
        self.mix = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.LayerNorm(FEATURES)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids):
        x = self.table(input_ids)
        return (self.norm(x + self.dropout(torch.tanh(self.mix(x.cumsum(1))))),)


class Output:
    def __init__(self, logits):
        self.logits = logits


class Scaled(LanguageModel):
    def forward(self, input_ids):
        return Output(2 * super().forward(input_ids).logits)


def test_a_head_is_fused_only_where_the_logits_are_its_own():
    row, model = {"input_ids": torch.arange(8)[None]}, LanguageModel()
    assert parts(model) == (model.base_model, model.head)
    assert can_fuse(model, row)
    assert not can_fuse(Scaled(), row)
    assert parts(nn.Linear(2, 2)) == (None, None)


def test_the_last_position_is_left_out_only_where_no_other_sees_it():
    class Seeing(LanguageModel):
        def __init__(self):
            super().__init__()
            self.base_model.norm = Reversed()

    ids = torch.arange(4)[None]
    assert looks_back(LanguageModel(), {"input_ids": ids})
    assert looks_back(LanguageModel(), {"input_ids": ids[:, :2]})
    assert not looks_back(LanguageModel(), {"input_ids": ids[:, :1]})
    assert not looks_back(Seeing(), {"input_ids": ids})


class Reversed(nn.Module):
    def forward(self, x):
        return x.flip(1)


def plan_of(records, **more):
    return Plan(**{"records": records, "sampling_rate": 1.0, "steps": 4, "noise_multiplier": 1.0, **more})


def sentences(examples=6, width=8):
    ids = torch.randint(0, WORDS, (examples, width))
    return {"input_ids": ids, "labels": ids.clone()}


def size(sums):
    return math.sqrt(sum(float(part.double().square().sum()) for part in sums))


@pytest.mark.parametrize("clipping", ["flat", "automatic", "per-layer"])
@pytest.mark.parametrize("clip_norm", [1e-6, 0.1, 1e6])
def test_no_record_contributes_more_than_the_clipping_norm(clipping, clip_norm, clipped):
    model, inputs = LanguageModel(), sentences()
    for index in range(6):
        row = {name: value[index : index + 1] for name, value in inputs.items()}
        _, sums = clipped(model, row, task="causal", clipping=clipping, clip_norm=clip_norm)
        assert size(sums) <= clip_norm * (1 + 1e-6)
        if clipping == "automatic" and clip_norm < 1e6:
            assert size(sums) > 0.9 * clip_norm


def test_automatic_clipping_normalises(oracle, clipped, far):
    model, inputs = LanguageModel(), sentences()
    _, sums = oracle(model, inputs, built_in("causal", "mean"), 0.5, weight=lambda norm: 0.5 / (norm + 0.01))
    _, found = clipped(model, inputs, task="causal", clipping="automatic")
    assert far(found, sums) < 1e-5


def test_per_layer_clipping_bounds_each_layer_and_counts_tied_ones_as_one(clipped):
    model, inputs = LanguageModel(), sentences(1)
    _, sums = clipped(model, inputs, task="causal", clipping="per-layer", clip_norm=1e-4)
    table, mix, mix_bias, norm, norm_bias = sums
    layers = [size([table]), size([mix, mix_bias]), size([norm, norm_bias])]
    assert layers == pytest.approx([1e-4 / math.sqrt(3)] * 3, rel=1e-4)


@given(seed=st.integers(0, 10**6), record=st.integers(0, 4), extreme=st.sampled_from([0.01, 1.0, 30.0]))
def test_changing_one_record_moves_the_sum_by_at_most_twice_the_clipping_norm(seed, record, extreme):
    torch.manual_seed(seed)
    model, inputs = LanguageModel(), sentences(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(extreme)
    other = {name: value.clone() for name, value in inputs.items()}
    other["input_ids"][record] = torch.randint(0, WORDS, (8,))
    other["labels"][record] = torch.randint(0, WORDS, (8,))
    private = PrivateGradients(model.train(), plan_of(5, clip_norm=0.3), task="causal", checked=False)
    sums = []
    for batch in (inputs, other):
        tally = private._record(batch, private._loss)
        into = Sums({id(p): torch.full_like(p, math.nan) for p in private._trained})
        private._add_clipped(tally, torch.ones(5, dtype=torch.bool), into, 1.0)
        sums.append([into(p) for p in private._trained])
    private.detach()
    assert size([a - b for a, b in zip(*sums, strict=True)]) <= 0.6 * (1 + 1e-5)


@pytest.mark.parametrize("batch", [1, 2, 4, 5])
@pytest.mark.parametrize("loss", [None, built_in("causal", "mean")], ids=["fused head", "own loss"])
def test_batches_of_any_size_make_the_same_sum(batch, loss, clipped, far):
    model, inputs = LanguageModel(), sentences(11)
    _, whole = clipped(model, inputs, loss, task="causal")
    _, split = clipped(model, inputs, loss, task="causal", batch=batch)
    assert far(split, whole) < 1e-6


def test_the_order_of_records_changes_nothing(clipped, far):
    model, inputs = LanguageModel(), sentences(11)
    _, sums = clipped(model, inputs, task="causal")
    order = torch.randperm(11)
    _, shuffled = clipped(model, {name: value[order] for name, value in inputs.items()}, task="causal")
    assert far(shuffled, sums) < 1e-6


@pytest.mark.parametrize("loss", [None, built_in("causal", "mean")], ids=["fused head", "own loss"])
def test_the_width_of_padding_changes_nothing(loss, clipped, far):
    model, inputs = LanguageModel(), sentences(5)
    wide = {
        "input_ids": nn.functional.pad(inputs["input_ids"], (0, 30), value=3),
        "labels": nn.functional.pad(inputs["labels"], (0, 30), value=-100),
    }
    norms, sums = clipped(model, inputs, loss, task="causal")
    wide_norms, wide_sums = clipped(model, wide, loss, task="causal")
    assert torch.allclose(norms, wide_norms, rtol=1e-6)
    assert far(wide_sums, sums) < 1e-6


def test_padding_rows_count_for_nothing(clipped, far):
    model, inputs = LanguageModel(), sentences(5)
    _, sums = clipped(model, {name: value[:3] for name, value in inputs.items()}, task="causal")
    real = torch.tensor([True, True, True, False, False])
    _, padded = clipped(model, inputs, task="causal", real=real)
    assert far(padded, sums) < 1e-6


@pytest.mark.parametrize("loss", [None, built_in("causal", "mean")], ids=["fused head", "own loss"])
def test_a_record_without_a_target_contributes_zero(loss, clipped, far):
    model, inputs = LanguageModel(), sentences(4)
    _, sums = clipped(model, {name: value[[0, 1, 3]] for name, value in inputs.items()}, loss, task="causal")
    inputs["labels"][2] = -100
    norms, found = clipped(model, inputs, loss, task="causal")
    assert norms[2] == 0
    assert far(found, sums) < 1e-6
    inputs["labels"][:] = -100
    assert size(clipped(model, inputs, loss, task="causal")[1]) == 0


@pytest.mark.parametrize("kind", ["flat", "automatic", "per-layer"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e38])
def test_a_record_whose_gradient_is_not_finite_contributes_zero(poison, kind, clipped, far):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))

        def forward(self, x):
            return self.inner(x)

    def loss(model, batch):
        return model(batch["x"]).square().sum((1, 2)) * batch["scale"]

    model = Weighted()
    x, scale = torch.randn(4, 5, 4), torch.ones(4)
    _, sums = clipped(model, {"x": x[[0, 1, 3]], "scale": scale[[0, 1, 3]]}, loss, clipping=kind)
    scale[2] = poison
    _, found = clipped(model, {"x": x, "scale": scale}, loss, clipping=kind)
    assert far(found, sums) < 1e-6
    scale[2] = 1
    x[2, 0, 0] = poison
    _, found = clipped(model, {"x": x, "scale": scale}, loss, clipping=kind)
    assert all(part.isfinite().all() for part in found)


def noised(model, plan, inputs, batch):
    """The noised gradients of every step of a plan with rate one."""
    private = PrivateGradients(model.train(), plan, task="causal")
    steps = []
    for step in plan.run():
        for rows in step.microbatches(batch):
            private.accumulate({name: value[rows] for name, value in inputs.items()})
        private.release(step)
        steps.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))
    private.detach()
    return torch.stack(steps)


@pytest.mark.parametrize("batch", [1, 3, 6])
def test_noise_is_added_once_per_step_however_many_batches_make_it(batch):
    model, inputs = LanguageModel(), sentences(6)
    plan = plan_of(6, steps=60, noise_multiplier=2.0, clip_norm=0.25)
    steps = noised(model, plan, inputs, batch) * plan.expected_batch
    spread = (steps - steps.mean(0)).square().sum() / (steps.numel() - steps.shape[1])
    freedom = steps.numel() - steps.shape[1]
    assert float(spread) == pytest.approx(0.5**2, rel=6 * math.sqrt(2 / freedom))


def test_noise_differs_between_steps_and_runs():
    model, inputs = LanguageModel(), sentences(3)
    steps = torch.cat([noised(model, plan_of(3, steps=3), inputs, 3) for _ in range(2)])
    correlation = torch.corrcoef(steps - steps.mean(0))
    assert (correlation - torch.eye(6)).abs().max() < 0.2 + 6 / math.sqrt(steps.shape[1])  # 1/5 from the mean taken off
    assert len({float(step[0]) for step in steps}) == 6


def test_an_empty_step_is_noised_on_every_parameter():
    model = LanguageModel()
    plan = plan_of(1000, sampling_rate=1e-9, steps=1)
    private = PrivateGradients(model.train(), plan, task="causal")
    step = next(plan.run())
    assert len(step.indices) == 0
    private.release(step)
    noise = torch.cat([p.grad.flatten() for p in model.parameters()]) * plan.expected_batch
    assert (noise != 0).all()
    assert float(noise.std()) == pytest.approx(1.0, rel=6 / math.sqrt(2 * len(noise)))


def test_rows_of_an_embedding_that_no_record_touched_are_noised():
    model = LanguageModel()
    plan = plan_of(1, steps=1)
    private = PrivateGradients(model.train(), plan, task="causal")
    private.accumulate(
        {"input_ids": torch.zeros(1, 8, dtype=torch.long), "labels": torch.zeros(1, 8, dtype=torch.long)}
    )
    private.release(next(plan.run()))
    assert float(model.head.weight.grad.abs().min()) > 0


def test_the_divisor_is_the_expected_batch_whatever_was_drawn(silent):
    model, inputs = LanguageModel(), sentences(40)
    plan = plan_of(40, sampling_rate=0.25, steps=6, clip_norm=1e-3)
    private = PrivateGradients(model.train(), plan, task="causal", clipping="automatic")
    for step in plan.run():
        for rows in step.microbatches(4):
            private.accumulate({name: value[rows] for name, value in inputs.items()})
        private.release(step)
        found = [p.grad.clone() for p in model.parameters()]
        alone = sum_of(model, private, inputs, step.indices)
        assert all(torch.allclose(a * 10, b, rtol=1e-4, atol=1e-9) for a, b in zip(found, alone, strict=True))


def sum_of(model, private, inputs, indices):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for index in indices:
        row = {name: value[index : index + 1] for name, value in inputs.items()}
        tally = private._record(row, private._loss)
        buffers = dict(zip((id(p) for p in model.parameters()), total, strict=True))
        private._add_clipped(tally, torch.ones(1, dtype=torch.bool), Sums(buffers, frozenset(buffers)), 1.0)
    return total


def test_double_precision_gives_the_same_sum(clipped, far):
    model, inputs = LanguageModel(), sentences()
    _, single = clipped(model, inputs, task="causal")
    _, double = clipped(model, inputs, task="causal", exact=True)
    assert far(single, double) < 1e-5


def test_dropout_is_left_to_the_model(clipped):
    model, inputs = LanguageModel(dropout=0.5), sentences()
    _, one = clipped(model, inputs, task="causal")
    _, other = clipped(model, inputs, task="causal")
    assert any(not torch.allclose(a, b) for a, b in zip(one, other, strict=True))


class TestBadUse:
    @pytest.fixture
    def private(self):
        model = LanguageModel().train()
        return PrivateGradients(model, plan_of(6), task="causal")

    def test_evaluation_mode(self, private):
        private.model.eval()
        with pytest.raises(BadInput, match=r"evaluation mode: call model\.train"):
            private.accumulate(sentences())

    def test_a_loss_that_is_already_averaged(self, private):
        with pytest.raises(BadInput, match="one loss per example, got a tensor of 0 dimensions"):
            private.accumulate(sentences(), lambda model, batch: built_in("causal", "mean")(model, batch).mean())

    def test_a_loss_function_that_runs_its_own_backward_pass(self, private):
        def loss(model, batch):
            each = built_in("causal", "mean")(model, batch)
            each.sum().backward(retain_graph=True)
            return each

        with pytest.raises(Refused, match="leave the backward pass to PrivateGradients"):
            private.accumulate(sentences(), loss)

    def test_a_loss_without_gradients(self, private):
        with pytest.raises(BadInput, match="does not depend on any trainable parameter"):
            private.accumulate(sentences(), lambda model, batch: torch.zeros(len(batch["labels"])))
        with torch.no_grad(), pytest.raises(BadInput, match="no_grad"):
            PrivateGradients(LanguageModel(), plan_of(6), task="causal").accumulate(sentences())

    def test_two_engines_on_one_model(self, private):
        with pytest.raises(BadInput, match=r"already has PrivateGradients: call detach"):
            PrivateGradients(private.model, plan_of(6))
        private.detach()
        PrivateGradients(private.model, plan_of(6)).detach()

    def test_a_detached_engine(self, private):
        private.detach()
        with pytest.raises(BadInput, match="detached"):
            private.accumulate(sentences())

    def test_a_step_of_another_plan_and_other_batches(self, private):
        private.accumulate(sentences())
        with pytest.raises(Refused, match="another plan"):
            private.release(next(plan_of(7).run()))
        with pytest.raises(Refused, match="DataLoader"):
            private.release(torch.utils.data.DataLoader(range(6)))

    def test_a_step_released_twice(self, private):
        step = next(private.plan.run())
        private.accumulate(sentences())
        private.release(step)
        private.accumulate(sentences())
        with pytest.raises(Refused, match="already released"):
            private.release(step)

    def test_more_or_fewer_records_than_drawn(self, private):
        private.accumulate(sentences(5))
        with pytest.raises(Refused, match="not the records drawn") as caught:
            private.release(next(private.plan.run()))
        assert not any(digit in str(caught.value) for digit in "56")

    def test_a_failed_batch_spoils_its_step(self, private):
        private.accumulate(sentences(3))
        with pytest.raises(BadInput):
            private.accumulate({"input_ids": torch.zeros(3, 8, dtype=torch.long)})
        with pytest.raises(Refused, match="failed"):
            private.accumulate(sentences(3))
        with pytest.raises(Refused):
            private.release(next(private.plan.run()))
        assert all(parameter.grad is None for parameter in private.model.parameters())
        assert all(parameter.requires_grad for parameter in private.model.parameters())

    def test_batch_normalisation(self):
        with pytest.raises(Refused, match=r"1 \(BatchNorm1d\).*other records.*GroupNorm or LayerNorm"):
            PrivateGradients(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), plan_of(6))

    def test_nothing_trainable(self):
        with pytest.raises(BadInput, match="no trainable parameter"):
            PrivateGradients(LanguageModel().requires_grad_(False), plan_of(6))

    def test_parameters_frozen_afterwards(self, private):
        private.model.head.weight.requires_grad_(False)
        with pytest.raises(BadInput, match="requires_grad or their precision changed"):
            private.accumulate(sentences())

    def test_half_precision(self, private):
        with pytest.raises(Refused, match="float32"):
            PrivateGradients(LanguageModel().half(), plan_of(6))
        with torch.autocast("cpu", torch.float16), pytest.raises(Refused, match="loss scale"):
            private.accumulate(sentences())

    def test_batches_that_are_none(self, private):
        for batch, message in [
            ([1, 2], "mapping of names to tensors, such as input_ids and labels; got list"),
            ({}, "holds no tensor"),
            (
                {"input_ids": torch.zeros(2, 3, dtype=torch.long), "labels": torch.zeros(3, 3)},
                "another number of examples",
            ),
        ]:
            with pytest.raises(BadInput, match=message):
                PrivateGradients(LanguageModel(), plan_of(6), task="causal").accumulate(batch)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"task": "summarise"}, "task must be one of causal, masked, classify"),
            ({"task": "causal", "reduction": "median"}, "reduction must be one of mean, sum"),
            ({"clipping": "adaptive"}, "clipping must be one of flat, automatic, per-layer"),
        ],
    )
    def test_unknown_options(self, options, message):
        with pytest.raises(BadInput, match=message):
            PrivateGradients(LanguageModel(), plan_of(6), **options)

    @pytest.mark.parametrize("checked", [True, False])
    @pytest.mark.parametrize("label", [4_711, -7])
    def test_labels_that_the_model_does_not_know_are_not_shown(self, label, checked):
        inputs = sentences()
        inputs["labels"][0, 3] = label
        private = PrivateGradients(LanguageModel(), plan_of(6), task="causal", checked=checked)
        with pytest.raises(BadInput, match="a label is neither -100 nor from 0 to 12") as caught:
            private.accumulate(inputs)
        assert str(label) not in str(caught.value)

    def test_what_is_no_model_and_no_plan(self):
        with pytest.raises(BadInput, match=r"works on a torch\.nn\.Module, got str"):
            PrivateGradients("gpt2", plan_of(6))
        with pytest.raises(BadInput, match=r"needs a confide\.dp\.Plan, got dict"):
            PrivateGradients(LanguageModel(), {"records": 6})

    def test_a_step_that_was_drawn_for_another_process(self, private):
        step = next(private.plan.run(part=(0, 2)))
        with pytest.raises(Refused, match="drawn for another process"):
            private.release(step)
        assert not step.released

    def test_processes_with_different_models(self, private, monkeypatch):
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, operation: tensor)
        private._check_ranks()
        most = torch.distributed.ReduceOp.MAX
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, operation: tensor.add_(operation == most))
        with pytest.raises(Refused, match="the processes have different models"):
            private._check_ranks()

    @pytest.mark.parametrize(
        ("returned", "got"),
        [
            (lambda each: each.tolist(), "got a list"),
            (lambda each: each[:-1], "got another number of them"),
            (lambda each: each[None], "got a tensor of 2 dimensions"),
        ],
    )
    def test_losses_that_are_not_one_per_example(self, private, returned, got):
        with pytest.raises(BadInput, match=got):
            private.accumulate(sentences(), lambda model, batch: returned(built_in("causal", "mean")(model, batch)))

    @pytest.mark.parametrize(
        ("task", "labels", "message"),
        [
            ("causal", None, "needs 'labels' in the batch"),
            ("causal", torch.zeros(6, 8), "whole numbers as labels, one per token"),
            ("masked", torch.zeros(6, dtype=torch.long), "whole numbers as labels, one per token"),
            ("classify", torch.zeros(6, 8, dtype=torch.long), "whole numbers as labels, one per record"),
            ("classify", torch.zeros(6), "whole numbers as labels, one per record"),
        ],
    )
    def test_labels_that_do_not_go_with_a_task(self, task, labels, message):
        with pytest.raises(BadInput, match=message):
            PrivateGradients(LanguageModel(), plan_of(6), task=task).accumulate({**sentences(), "labels": labels})

    def test_a_model_without_logits(self):
        class Silent(LanguageModel):
            def forward(self, input_ids):
                return {"scores": super().forward(input_ids).logits}

        with pytest.raises(BadInput, match=r"needs a model that returns logits, .* got dict"):
            PrivateGradients(Silent(), plan_of(6), task="masked").accumulate(sentences())

    def test_an_error_of_the_model_that_says_nothing_of_hooks(self, private):
        def loss(model, batch):
            raise RuntimeError("out of memory")

        with pytest.raises(RuntimeError, match=r"^out of memory$"):
            private.accumulate(sentences(), loss)

    def test_a_layer_that_gives_out_more_than_a_tensor(self):
        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(3))

            def forward(self, x):
                return self.scale * x, x

        private = PrivateGradients(nn.Sequential(Pair()), plan_of(6), generic=True)
        with pytest.raises(Refused, match="0: the rule for Pair expects one tensor as output"):
            private.accumulate({"x": torch.randn(6, 3)}, lambda model, batch: model(batch["x"])[0].sum(1))

    def test_parameters_of_several_precisions(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double())
        with pytest.raises(Refused, match="several precisions"):
            PrivateGradients(model, plan_of(6))
        model[0].requires_grad_(False)
        PrivateGradients(model, plan_of(6)).detach()

    @pytest.mark.parametrize("frozen", [True, False])
    def test_running_statistics(self, frozen):
        norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True).requires_grad_(not frozen)
        with pytest.raises(Refused, match=r"1 \(InstanceNorm1d\) keeps running statistics"):
            PrivateGradients(nn.Sequential(nn.Linear(3, 3), norm), plan_of(6))

    def test_a_magnitude_without_its_lora_layer(self):
        class Magnitude(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3))

        model = nn.ModuleDict({"lora_magnitude_vector": Magnitude()})
        with pytest.raises(Refused, match="lora_magnitude_vector: DoRA's magnitudes have no per-example rule"):
            PrivateGradients(model, plan_of(6))

    @pytest.mark.parametrize("name", ["num_local_experts", "num_experts", "n_routed_experts"])
    def test_several_experts(self, name):
        for experts in (0, 1, None):
            model = LanguageModel()
            model.config = Config(**{name: experts})
            PrivateGradients(model, plan_of(6)).detach()
        model.config = Config(**{name: 2})
        with pytest.raises(Refused, match="mixture-of-experts"):
            PrivateGradients(model, plan_of(6))

    def test_no_loss_at_all(self):
        with pytest.raises(BadInput, match="no loss: name a task"):
            PrivateGradients(LanguageModel(), plan_of(6)).accumulate(sentences())

    def test_a_mask_of_real_examples_of_another_shape(self, private):
        with pytest.raises(BadInput, match="one boolean for each example"):
            private.accumulate(sentences(), real=torch.ones(5, dtype=torch.bool))


class Config:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def test_a_batch_of_no_records_opens_a_step_and_adds_nothing(silent):
    private = PrivateGradients(LanguageModel().train(), plan_of(1000, sampling_rate=1e-9), task="causal")
    private.accumulate(sentences(0))
    private.release(next(private.plan.run()))
    assert all(parameter.grad.count_nonzero() == 0 for parameter in private.model.parameters())


def test_noise_has_the_plans_deviation_and_pays_for_rounding_and_for_the_lattice(monkeypatch):
    asked = []
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, std: asked.append((len(sums), std)))
    model = LanguageModel()
    private = PrivateGradients(
        model.train(), plan_of(20, sampling_rate=0.5, noise_multiplier=3.0, clip_norm=0.2), task="causal"
    )
    step = next(private.plan.run())
    private._rows = len(step.indices)
    private.release(step)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    paid = (1 + 2.0**-10) * (1 + 2.0**-30 * 3.0 * math.sqrt(numbers))
    assert asked == [
        (sum(-(-p.numel() // 16) * 16 for p in model.parameters()), pytest.approx(paid * 0.6 / 10, rel=1e-14))
    ]


def test_what_is_unproven_is_looked_at_in_batches_one_two_four_and_eight():
    doubts = Doubts({1})
    doubts.independence = False
    assert [number for number in range(1, 17) if doubts.due(5)] == [1, 2, 4, 8, 16]
    doubts = Doubts(set())
    doubts.independence = False
    assert not any(doubts.due(5) for _ in range(8))


def test_independence_is_looked_at_in_every_batch_of_two_records_until_two_were_compared():
    doubts = Doubts(set())
    assert [doubts.due(records) for records in (1, 1, 1, 2, 1, 2, 7)] == [True, True, False, True, False, True, True]
    doubts.compared = True
    assert [doubts.due(7) for _ in range(2)] == [True, False]


def test_what_a_rule_gives_is_held_against_autograd_to_a_part_in_a_thousand():
    """A rule that is off by one and a half parts, in the gradient or in its norm alone, is found; one that is right is not."""

    def rule_for(factor, norm):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

            def forward(self, x):
                return self.weight * x

        @register
        class Rule(Elementwise):
            layers = (Scale,)

            def factor(self, use):
                return factor * use.activations[0]

            def measure(self, use):
                found = super().measure(use)
                return found._replace(square=found.square * norm**2)

        return Scale()

    def loss(model, batch):
        return model(batch["x"]).square().sum((1, 2))

    for factor, norm, reason in (
        (1.0, 1.0, None),
        (1.0015, 1.0, "0.weight: the per-example rule does not give the gradient"),
        (1.0, 1.0015, "the norm that the per-example rules give is not the norm"),
        (1.0, 0.9985, "the norm that the per-example rules give is not the norm"),
    ):
        private = PrivateGradients(nn.Sequential(rule_for(factor, norm)), plan_of(6))
        if reason is None:
            private.accumulate({"x": torch.randn(6, 5, 4)}, loss)
            continue
        with pytest.raises(Refused, match=reason):
            private.accumulate({"x": torch.randn(6, 5, 4)}, loss)


def test_each_targeted_position_counts_alike_within_its_record():
    goals = torch.tensor([[3, -100, 4, 5], [-100, -100, -100, -100], [0, -100, -100, -100]])
    assert token_weights(goals, "sum").tolist() == [[1, 0, 1, 1], [0] * 4, [1, 0, 0, 0]]
    assert token_weights(goals, "mean").tolist() == [[1 / 3, 0, 1 / 3, 1 / 3], [0] * 4, [1, 0, 0, 0]]


def test_training_learns_under_noise():
    """The whole loop: with little noise a language model learns a simple rule."""
    torch.manual_seed(1)
    model = LanguageModel()
    start = torch.randint(0, WORDS, (256, 1))
    ids = (start + torch.arange(8)) % WORDS
    inputs = {"input_ids": ids, "labels": ids.clone()}
    plan = Plan(records=256, sampling_rate=0.25, steps=150, noise_multiplier=0.5, clip_norm=1.0)
    private = PrivateGradients(model.train(), plan, task="causal")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    loss = built_in("causal", "mean")
    before = float(loss(model, inputs).mean().detach())
    for step in plan.run():
        for rows in step.microbatches(32):
            private.accumulate({name: value[rows] for name, value in inputs.items()})
        private.release(step)
        optimizer.step()
    assert float(loss(model, inputs).mean().detach()) < 0.5 * before
