"""The oracle of private gradients: a loop over single examples with plain autograd."""

import math

import pytest
import torch

from confide.dp import Plan, PrivateGradients
from confide.dp import losses as built_in
from confide.dp.noise import Lane


@pytest.fixture(autouse=True)
def _same_weights(request):
    """The same weights everywhere; and one thread, since tests run side by side, but where threads are the matter."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    if "noise" not in request.module.__name__:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def silent(monkeypatch):
    """Noise of zero, so that the sum before noise shows; there is no such switch outside the tests."""
    monkeypatch.setattr("confide.dp.noise.COMPILED", None)
    monkeypatch.setattr(Lane, "draw", lambda self, out, std: out.zero_())


@pytest.fixture
def oracle():
    """A function to (norms, clipped sums) of a model's examples, one at a time."""

    def run(model, inputs, loss, clip_norm, weight=None):
        weight = weight or (lambda norm: min(1.0, clip_norm / norm) if norm else 1.0)
        examples = built_in.count(inputs)
        trained = [p for p in model.parameters() if p.requires_grad]
        sums, norms = [torch.zeros_like(p, dtype=torch.float64) for p in trained], []
        for index in range(examples):
            row = built_in.rows(inputs, slice(index, index + 1), examples)
            found = torch.autograd.grad(loss(model, row).sum(), trained, allow_unused=True)
            found = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]
            norms.append(math.sqrt(sum(float(g.double().square().sum()) for g in found)))
            for total, gradient in zip(sums, found, strict=True):
                total += weight(norms[-1]) * gradient.double()
        return torch.tensor(norms, dtype=torch.float64), sums

    return run


@pytest.fixture
def clipped(silent, monkeypatch):
    """A function to (norms, clipped sums) of a model's examples by the engine, in batches of a given size."""

    def run(model, inputs, loss=None, *, clip_norm=0.5, batch=None, real=None, **options):
        examples = built_in.count(inputs)
        records = examples if real is None else int(real.sum())
        plan = Plan(records=records, sampling_rate=1.0, steps=1, noise_multiplier=1.0, clip_norm=clip_norm)
        private = PrivateGradients(model.train(), plan, **options)
        norms = []
        add = private._add_clipped

        def spy(tally, *rest):
            norms.append(tally.square.sum(0).clamp_min(0).sqrt())
            add(tally, *rest)

        monkeypatch.setattr(private, "_add_clipped", spy)
        step = next(plan.run())
        for start in range(0, examples, batch or examples):
            chosen = slice(start, start + (batch or examples))
            rows = built_in.rows(inputs, chosen, examples)
            private.accumulate(rows, loss, real=None if real is None else real[chosen])
        private.release(step)
        private.detach()
        sums = [p.grad.double() * records for p in model.parameters() if p.requires_grad]
        model.zero_grad()
        return torch.cat(norms), sums

    return run


@pytest.fixture
def far():
    """How far two lists of tensors are apart, relative to the second."""

    def run(found, true):
        assert any(part.abs().max() > 0 for part in true), "nothing to compare with"
        difference = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(found, true, strict=True)))
        return difference / math.sqrt(sum(float(b.square().sum()) for b in true))

    return run
