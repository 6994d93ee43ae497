"""Optimizers by name, and learning rates as functions of public quantities: step numbers and loss on public records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import BadInput

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "linear", "cosine", "anneal")


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    name: str,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Optimizer:
    """An optimizer over the parameters that are trained, one kernel for all of them where torch has it.

    Its learning rate is 0 until `set_rate` sets it before each step.

    *Formal guarantees.* A step is a function of the parameters, of earlier gradients as given and of the rate. If every
    private gradient given to it is noised, whatever it does is post-processing (guarantees §7).
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if name not in OPTIMIZERS:
        raise BadInput(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
    if not trained:
        raise BadInput("the model has no parameter to train: every one of them is frozen")
    if momentum and name != "sgd":
        raise BadInput(f"momentum belongs to sgd; {name} has betas")
    for what, value, high in (("momentum", momentum, 1), ("weight_decay", weight_decay, math.inf), *_moments(betas)):
        if not 0 <= value < high:
            raise BadInput(f"{what} must be at least 0 and below {high}, got {value}")
    if not 0 < eps < math.inf:
        raise BadInput(f"eps must be above 0, got {eps}")
    try:
        return _make(trained, name, momentum, weight_decay, betas, eps, fused=True)
    except RuntimeError:  # a device or type for which torch has no fused kernel
        return _make(trained, name, momentum, weight_decay, betas, eps, fused=False)


def _moments(betas: tuple[float, float]) -> tuple[tuple[str, float, float], ...]:
    return tuple((f"betas[{index}]", beta, 1.0) for index, beta in enumerate(betas))


def _make(
    trained: list[nn.Parameter],
    name: str,
    momentum: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    fused: bool,
) -> Optimizer:
    if name == "sgd":
        return torch.optim.SGD(trained, lr=0.0, momentum=momentum, weight_decay=weight_decay, fused=fused)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(trained, lr=0.0, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


@dataclass(frozen=True)
class Rate:
    """A learning rate over a run: `warmup` is the share of steps in which it rises to `base`.

    >>> rate = Rate(0.8, "linear", warmup=0.2)
    >>> [round(rate.at(done, 10), 2) for done in range(10)]
    [0.4, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    """

    base: float
    schedule: str = "constant"
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise BadInput(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        if not 0 < self.base < math.inf:
            raise BadInput(f"the learning rate must be above 0 and finite, got {self.base}")
        if not 0 <= self.warmup <= 1:
            raise BadInput(f"warmup is a share of the steps, from 0 to 1, got {self.warmup}")

    def at(self, done: int, total: int) -> float:
        """The rate of the step after `done` of `total` steps; `anneal` is constant here and scaled by `Annealing`.

        *Formal guarantees.* Depends on the two numbers and the public fields alone. Never 0 before the last step is
        taken, so that no step is paid for in vain; past the end the falling schedules stay at 0.
        """
        if done < 0 or total < 1:
            raise BadInput(f"a rate needs done ≥ 0 and total ≥ 1, got {done} and {total}")
        rising = min(math.ceil(self.warmup * total), total - 1)
        if done < rising:
            return self.base * ((done + 1) / rising)
        gone = min((done - rising) / (total - rising), 1.0)
        if self.schedule == "linear":
            return self.base * (1 - gone)
        if self.schedule == "cosine":
            return self.base * (1 + math.cos(math.pi * gone)) / 2
        return self.base


@dataclass(frozen=True)
class Annealing:
    """The papers' annealing: the rate is divided by `factor` whenever the validation loss is not below the best so far.

    >>> seen = Annealing().see(2.0).see(1.5).see(1.6)
    >>> seen.scale, seen.best
    (0.25, 1.5)
    """

    factor: float = 4.0
    best: float | None = None
    times: int = 0

    def __post_init__(self) -> None:
        if not 1 < self.factor < math.inf:
            raise BadInput(f"annealing divides by a factor above 1, got {self.factor}")

    @property
    def scale(self) -> float:
        """What the rate is to be multiplied by."""
        return float(self.factor**-self.times)

    def see(self, validation_loss: float) -> Annealing:
        """The annealing after one more validation.

        *Formal guarantees.* Post-processing, if the loss is taken on public records (guarantees §7): the caller must not
        show it any loss of private ones. A loss that is not finite counts as no improvement.
        """
        if math.isfinite(validation_loss) and (self.best is None or validation_loss < self.best):
            return replace(self, best=float(validation_loss))
        return replace(self, times=self.times + 1)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Annealing:
        return cls(**plain)
