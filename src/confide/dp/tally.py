"""The uses of one backward pass added up to squared norms, per group of layers and example."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .clipping import rounding
from .rules import Use
from .rules.base import precisely


class Tally:
    """The uses of one backward pass, and per group of layers and example their squared norms and spreads."""

    def __init__(self, groups: dict[nn.Module, int], examples: int) -> None:
        shape = (1 + max(groups.values()), examples)
        self.uses: list[Use] = []
        self.square = torch.zeros(shape, dtype=torch.float64)
        self._spread = torch.zeros(shape, dtype=torch.float64)
        self._own: dict[int, Tensor] = {}  # the square of each use by itself
        self._groups = groups
        self._by_parameter: dict[int, list[Use]] = {}

    def see(self, use: Use) -> None:
        """Count a use: its own square, and twice its inner product with each earlier use of the same parameter.

        *Formal guarantees.* The squares of all uses of a parameter and all their cross terms make up ‖Σ_u g_u‖², exactly; this
        is what tied embeddings and modules called twice need. Spreads of such uses add up before they are squared. Cross terms, and
        squares of kept products, are taken in double precision then: what rounding takes from a square is small beside that square,
        and not beside what is left where uses cancel each other.
        """
        measured = use.rule.measure(use)
        group = self._groups[use.module]
        self._own[id(use)] = measured.square.cpu()
        self.square[group] += self._own[id(use)]
        self._spread[group] += measured.spread.sqrt().cpu()
        shared: dict[int, tuple[Use, set[str]]] = {}
        for name in use.trained:
            uses = self._by_parameter.setdefault(id(use.parameter(name)), [])
            for other in uses:
                shared.setdefault(id(other), (other, set()))[1].add(name)
            uses.append(use)
        for one in (use, *(other for other, _ in shared.values())) if shared else ():
            if one.kept is not None:
                with precisely():
                    exact = one.rule.measure(one).square.cpu()
                self.square[group] += exact - self._own[id(one)]
                self._own[id(one)] = exact
        for other, names in shared.values():
            self.square[group] += 2 * use.rule.inner(use, other, frozenset(names)).cpu()
        self.uses.append(use)

    @property
    def spread(self) -> Tensor:
        """The squared spreads."""
        return self._spread.square()

    def rounding(self, dtype: torch.dtype) -> Tensor:
        return rounding(self.square, self.spread, dtype)

    def again(self, rows: Tensor) -> Tally:
        """The same for some examples, in double precision."""
        tally = Tally(self._groups, len(rows))
        for use in self.uses:
            tally.see(use.select(rows))
        return tally
