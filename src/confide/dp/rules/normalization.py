"""LayerNorm and RMSNorm: the weight multiplies the normalised input, which is recomputed rather than kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import Refused
from ..compiled import loops_for, threads
from .base import MISMATCH, Elementwise, Use, register


@register
class LayerNorm(Elementwise):
    """`torch.nn.LayerNorm` over the last dimension."""

    layers = (nn.LayerNorm,)

    def check(self, module: nn.Module, name: str) -> None:
        assert isinstance(module, nn.LayerNorm)
        if len(module.normalized_shape) != 1:
            raise Refused(f"{name}: a LayerNorm over several dimensions has no rule; normalise over the last one")

    def factor(self, use: Use) -> Tensor:
        module = use.module
        assert isinstance(module, nn.LayerNorm)
        return functional.layer_norm(use.activations[0], module.normalized_shape, None, None, module.eps)

    def gradients(self, use: Use) -> tuple[Tensor, ...]:
        assert isinstance(use.module, nn.LayerNorm)
        assert use.gradient is not None
        if use.activations[0].shape != use.gradient.shape:
            raise Refused(MISMATCH)
        loops = loops_for(use.activations[0], use.gradient)
        if not loops or len(use.trained) < 2:
            return super().gradients(use)
        x, g = use.activations[0].contiguous(), use.gradient.contiguous()
        weight, bias = x.new_empty(2, len(x), x.shape[2])
        made = (use.module.eps, weight.data_ptr(), bias.data_ptr(), threads())
        loops.confide_layernorm(x.data_ptr(), g.data_ptr(), *x.shape, *made)
        return bias, weight


@register
class RMSNorm(Elementwise):
    """x / √(mean(x²)+ε) times the weight, or times one plus the weight: the gradient is the same.

    Hugging Face has a class of that name for nearly every model; each is tried on random numbers before it is taken.
    """

    layers = (nn.RMSNorm,)

    def covers(self, module: nn.Module) -> bool:
        kind = type(module)
        named = kind.__module__.startswith("transformers.") and kind.__name__.endswith("RMSNorm")
        return super().covers(module) or (named and [name for name, _ in module.named_parameters()] == ["weight"])

    def check(self, module: nn.Module, name: str) -> None:
        weight = module.get_parameter("weight")
        x = torch.randn(3, len(weight), dtype=weight.dtype, device=weight.device)
        with torch.no_grad():
            out, normalised = module(x), _normalised(module, x)
            usual = any(torch.allclose(out, normalised * (weight + one), rtol=1e-2, atol=1e-3) for one in (0.0, 1.0))
        if weight.dim() != 1 or not usual:
            raise Refused(
                f"{name}: {type(module).__name__} does not compute what an RMSNorm computes; register a rule for it"
            )

    def factor(self, use: Use) -> Tensor:
        return _normalised(use.module, use.activations[0])


def _normalised(module: nn.Module, x: Tensor) -> Tensor:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps))
