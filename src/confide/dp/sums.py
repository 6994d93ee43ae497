"""The clipped sum of one step: what rules add for each batch comes in; one flat buffer for each device goes out.

A step that one batch makes is summed in the parameters' precision, straight into the buffer. From the second batch on, and where
an example was measured in double precision, the buffer is double, and what a batch gives is rounded by nothing on its way in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .rules.base import Sums

ALIGNED = 16  # numbers: each parameter's part of a buffer starts at a multiple
PIECE = 2**20  # numbers of a buffer that are narrowed at a time


class StepSums(Sums):
    """*Formal guarantees.* How a step's records are shared out to batches, and in which order these come, changes the sum by the
    rounding inside of each batch's own products, and by n·2⁻⁵³ of the sum of n batches. In single precision a running sum would be
    rounded anew with every batch, by half a unit in the last place of *all* that came before: a record that lifts the sum over a
    power of two would change how every later batch is rounded, and move the sum by more than twice its bound (Casacuberta et al. 2022).
    """

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self._parameters = list(parameters)
        alike: dict[torch.device, list[nn.Parameter]] = {}
        for parameter in parameters:
            alike.setdefault(parameter.device, []).append(parameter)
        self._alike = list(alike.values())
        self._wide: dict[int, Tensor] | None = None
        self.flat = [torch.empty(sum(map(_room, some)), dtype=dtype, device=device) for device, some in alike.items()]
        super().__init__(self._places())

    def _places(self) -> dict[int, Tensor]:
        """Each parameter's part of the buffers."""
        found = {}
        for flat, parameters in zip(self.flat, self._alike, strict=True):
            for p, part in zip(parameters, torch.split(flat, [_room(p) for p in parameters]), strict=True):
                part[p.numel() :].zero_()
                found[id(p)] = part[: p.numel()].view(p.shape)
        return found

    def settle(self) -> None:
        """Zero what no record has touched."""
        if self._wide is None:
            for parameter in self._parameters:
                super().__call__(parameter)

    def widen(self) -> None:
        """Go on in double precision."""
        if self._wide is None and self.flat and self.flat[0].dtype != torch.float64:
            self.settle()
            for number, flat in enumerate(self.flat):
                self.flat[number] = flat.double()
            self._wide, self._buffers = self._places(), {}

    def total(self, parameter: nn.Parameter) -> Tensor:
        return super().__call__(parameter) if self._wide is None else self._wide[id(parameter)]

    def __call__(self, parameter: nn.Parameter) -> Tensor:
        if self._wide is None:
            return super().__call__(parameter)
        if id(parameter) not in self._buffers:
            self._buffers[id(parameter)] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        return self._buffers[id(parameter)]

    def alike(self, value: Tensor, parameter: nn.Parameter) -> Tensor:
        return value.to(parameter)

    def add_product(self, parameter: nn.Parameter, left: Tensor, right: Tensor) -> None:
        if self._wide is not None and id(parameter) not in self._buffers:
            self._buffers[id(parameter)] = torch.mm(left, right)
        else:
            super().add_product(parameter, left, right)

    def finish(self, parameter: nn.Parameter) -> None:
        if self._wide is not None and id(parameter) in self._buffers:
            self._wide[id(parameter)].add_(self._buffers.pop(id(parameter)))

    def add_exact(self, parameter: nn.Parameter, value: Tensor) -> None:
        self.total(parameter).add_(value)

    def gradients(self) -> list[Tensor]:
        """The sums as gradients, one for each parameter, in its precision; nothing can be added any more.

        A double buffer is rounded in place, from its beginning on, so that no second one is needed.
        """
        for number, flat in enumerate(self.flat):
            if self._wide is not None:
                narrow = flat.view(torch.float32)[: len(flat)]
                for at in range(0, len(flat), PIECE):
                    narrow[at : at + PIECE] = flat[at : at + PIECE].float()
                self.flat[number] = narrow
        places = self._places()
        return [places[id(parameter)] for parameter in self._parameters]


def _room(parameter: nn.Parameter) -> int:
    return -(-parameter.numel() // ALIGNED) * ALIGNED
