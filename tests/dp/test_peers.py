"""Agreement with Opacus where Opacus is exact."""

import warnings

import pytest
import torch
from torch import nn


class Classifier(nn.Module):
    """What Opacus covers exactly: an embedding, linear layers, a norm, no tied weight."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(self.table(x)).mean(1)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


@pytest.mark.parametrize("clip_norm", [0.1, 1.0])
def test_norms_and_clipped_sums_agree_with_opacus(clip_norm, clipped, far):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule

        model = Classifier()
        inputs = {"x": torch.randint(0, 50, (7, 12)), "y": torch.randint(0, 3, (7,))}
        norms, sums = clipped(model, inputs, loss, clip_norm=clip_norm)
        wrapped = GradSampleModule(model, loss_reduction="sum")
        loss(wrapped, inputs).sum().backward()
    samples = [p.grad_sample for p in wrapped.parameters()]
    theirs = torch.stack([s.flatten(1).norm(dim=1) for s in samples]).norm(dim=0)
    weights = (clip_norm / theirs).clamp_max(1.0)
    assert torch.allclose(norms.float(), theirs, rtol=1e-5)
    assert far(sums, [torch.einsum("i...,i->...", s, weights).double() for s in samples]) < 2e-5
