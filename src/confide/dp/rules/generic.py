"""Any layer, slowly: per-example gradients by running the module again for every example. Used only when asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import Refused
from .base import Measured, Rule, Sums, Use, pausing, squared


class Generic(Rule):
    """A module that maps tensors with the batch first to one tensor, treats examples apart and draws no coins."""

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        if kwargs or not all(isinstance(value, Tensor) for value in args):
            raise Refused(
                f"{type(module).__name__}: the generic rule covers calls with tensors as plain arguments only"
            )
        return args

    def arrange(self, value: Tensor, examples: int) -> Tensor:
        if len(value) == 1 and examples > 1:
            return value.expand(examples, *value.shape[1:])
        if len(value) != examples:
            raise Refused("the generic rule needs the batch as the first dimension of every input and output")
        return value

    def measure(self, use: Use) -> Measured:
        if use.kept is None:
            assert use.gradient is not None
            names = sorted(use.trained)
            values = {name: use.parameter(name).detach() for name in names}

            def one(gradient: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
                def run(parameters: dict[str, Tensor]) -> Any:
                    return torch.func.functional_call(use.module, parameters, tuple(value[None] for value in inputs))

                pull_back = torch.func.vjp(run, values)[1]
                (found,) = pull_back(gradient[None])
                return tuple(found[name] for name in names)

            try:
                with pausing():
                    use.kept = torch.func.vmap(one)(use.gradient, *use.activations)
            except RuntimeError:  # its text may hold numbers of a record
                raise Refused(
                    f"the generic rule cannot run {type(use.module).__name__} for one example at a time (it may draw coins, or not "
                    "treat examples apart); register a rule for it"
                ) from None
            use.activations, use.gradient = (), None
        square = sum((squared(part) for part in use.kept), torch.zeros((), dtype=torch.float64))
        return Measured(square, square)

    def inner(self, use: Use, other: Use, names: frozenset[str]) -> Tensor:
        if use.module is not other.module:
            return super().inner(use, other, names)
        chosen = [index for index, name in enumerate(sorted(use.trained)) if name in names]
        pairs = ((use.kept[index].flatten(1), other.kept[index].flatten(1)) for index in chosen)
        return sum(((a.double() * b).sum(1) for a, b in pairs), torch.zeros((), dtype=torch.float64))

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        for name, part in zip(sorted(use.trained), use.kept, strict=True):
            sums(use.parameter(name)).view(-1).addmv_(part.reshape(len(part), -1).t(), weights)
