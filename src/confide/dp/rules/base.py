"""What a rule is: how one kind of layer turns what a backward pass left behind into norms and clipped sums.

In: the activations and output gradients of one use of one module, for a batch of examples. Out: each example's
squared gradient norm with its rounding term, and the weighted sum of the examples' gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import Refused

Layers = tuple[type[nn.Module] | str, ...]
HandOver = Callable[[tuple[Tensor, ...], Tensor, frozenset[str]], None]  # activations, gradient, names of parameters


MISMATCH = (
    "what a layer gave out has other examples or positions than what it was given: something after the layer, such as a "
    "hook, cuts or repeats its output; do that in a module of its own"
)


class Measured(NamedTuple):
    """Per example: the squared norm as computed, and the square of its spread.

    The spread is the norm that the gradient would have if nothing in it cancelled (for a linear layer Σ_t ‖a_t‖‖g_t‖).
    Rounding can move the computed square by a small multiple of the machine precision times the squared spread.
    """

    square: Tensor
    spread: Tensor


@dataclass
class Use:
    """One use of one module in one step: its activations, its output gradient, or the product kept of them."""

    rule: Rule
    module: nn.Module
    examples: int
    trained: frozenset[str]  # names of the module's own parameters that take part
    activations: tuple[Tensor, ...]  # each [examples, positions, features]; integer for embeddings
    gradient: Tensor | None  # [examples, positions, features]
    kept: Any = None  # per-example gradients, once a rule has formed them

    def parameter(self, name: str) -> nn.Parameter:
        parameter: nn.Parameter = getattr(self.module, name)
        return parameter

    def select(self, rows: Tensor) -> Use:
        """The same use for some of its examples, in double precision."""

        def take(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(take(item) for item in value)
            if not isinstance(value, Tensor):
                return value
            value = value[rows]
            return value.double() if value.is_floating_point() else value

        return Use(
            self.rule,
            self.module,
            len(rows),
            self.trained,
            take(self.activations),
            take(self.gradient),
            take(self.kept),
        )

    def drop(self, rows: Tensor) -> None:
        """Set to zero all that the examples marked in `rows` left behind: not finite times zero is not zero."""

        def wipe(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(wipe(item) for item in value)
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            return value.masked_fill(rows.view(-1, *[1] * (value.dim() - 1)), 0.0)

        self.activations, self.gradient, self.kept = wipe(self.activations), wipe(self.gradient), wipe(self.kept)


class Sums:
    """The buffers into which the weighted sums of parameters are added: `sums(parameter)`, zero when first asked for.

    A matrix product that comes first is written and not added, so that large buffers are neither cleared nor read for it.
    `started` are the parameters (by id) whose buffers hold a part of the sum already.
    """

    def __init__(self, buffers: dict[int, Tensor], started: frozenset[int] = frozenset()) -> None:
        self._buffers, self._untouched = buffers, set(buffers) - started

    def __call__(self, parameter: nn.Parameter) -> Tensor:
        buffer = self._buffers[id(parameter)]
        if id(parameter) in self._untouched:
            self._untouched.remove(id(parameter))
            buffer.zero_()
        return buffer

    def alike(self, value: Tensor, parameter: nn.Parameter) -> Tensor:
        """A tensor in the precision and on the device of a parameter's buffer."""
        return value.to(self._buffers[id(parameter)])

    def add_product(self, parameter: nn.Parameter, left: Tensor, right: Tensor) -> None:
        """Add left·right into a parameter's buffer."""
        if id(parameter) in self._untouched:
            self._untouched.remove(id(parameter))
            torch.mm(left, right, out=self._buffers[id(parameter)])
        else:
            self._buffers[id(parameter)].addmm_(left, right)

    def finish(self, parameter: nn.Parameter) -> None:
        """All that a batch adds to a parameter is added."""

    def widen(self) -> None:
        """Something in double precision is about to be added."""

    def add_exact(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Add a sum that was taken in double precision."""
        self(parameter).add_(value)


class Rule:
    """How one kind of layer is measured and summed. A subclass states its `layers` and is registered by that."""

    layers: ClassVar[Layers] = ()  # classes, or their dotted names to spare an import
    replaces_forward: ClassVar[bool] = False

    def covers(self, module: nn.Module) -> bool:
        """Whether this rule is for the module: exact classes only, since a subclass may compute something else."""
        kind = type(module)
        return kind in self.layers or f"{kind.__module__}.{kind.__qualname__}" in self.layers

    def check(self, module: nn.Module, name: str) -> None:
        """Refuse a module of this kind whose options the rule does not cover."""

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        """The tensors of a call that the rule needs; the first argument unless a rule knows better."""
        value = args[0] if args else next(iter(kwargs.values()))
        return (value,)

    def arrange(self, value: Tensor, examples: int) -> Tensor:
        """One tensor as [examples, positions, features]; a single row stands for every example."""
        if len(value) == 1 and examples > 1:
            value = value.expand(examples, *value.shape[1:])
        return value.reshape(examples, -1, value.shape[-1])

    def forward(self, module: nn.Module, hand_over: HandOver) -> Callable[..., Any]:
        """For a layer that hides what its gradient needs: a forward to use in its place while recording.

        Its backward calls `hand_over`, once for each part of the module whose gradients are measured together.
        """
        raise NotImplementedError

    def measure(self, use: Use) -> Measured:
        """Squared norms of the examples' gradients; may keep per-example gradients in `use.kept`."""
        raise NotImplementedError

    def inner(self, use: Use, other: Use, names: frozenset[str]) -> Tensor:
        """⟨gradient in this use, gradient in the other⟩ per example, over the parameters they share.

        `names` are the shared parameters' names in `use.module`. Needed only for tied or repeatedly used modules.
        """
        raise Refused(
            f"{type(use.module).__name__} shares a parameter with {type(other.module).__name__}, and no rule says what "
            "their joint gradient norm is; untie them"
        )

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        """Add Σ_i weights[i]·gradient_i into the buffers of the module's trained parameters."""
        raise NotImplementedError


_RULES: list[Rule] = []


def register(rule: type[Rule]) -> type[Rule]:
    """Make a rule known; of several that cover a module the one registered last counts.

    >>> class Scale(torch.nn.Module):
    ...     def __init__(self, features):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.ones(features))
    ...     def forward(self, x):
    ...         return self.weight * x
    >>> @register
    ... class ScaleRule(Elementwise):
    ...     layers = (Scale,)
    ...     def factor(self, use):
    ...         return use.activations[0]
    >>> isinstance(rule_for(Scale(3)), ScaleRule)
    True
    """
    _RULES.append(rule())
    return rule


def rule_for(module: nn.Module) -> Rule | None:
    """The rule for a module, or None."""
    return next((rule for rule in reversed(_RULES) if rule.covers(module)), None)


_PAUSED = False


@contextlib.contextmanager
def pausing() -> Iterator[None]:
    """No use is recorded inside: for a rule that runs its module again."""
    global _PAUSED
    before, _PAUSED = _PAUSED, True
    try:
        yield
    finally:
        _PAUSED = before


def paused() -> bool:
    """Whether a rule is running its module again (`pausing`)."""
    return _PAUSED


def exactly(value: Tensor) -> torch.autocast:
    """Where norms and sums are taken: without autocast, whatever the forward pass ran under."""
    return torch.autocast(value.device.type, enabled=False)


def single(value: Tensor) -> Tensor:
    """Half-precision tensors of autocast as float32: norms and sums are never taken in less."""
    return value.float() if value.is_floating_point() and value.dtype.itemsize < 4 else value


_PRECISE = False


@contextlib.contextmanager
def precisely() -> Iterator[None]:
    """`squared` works in double precision inside."""
    global _PRECISE
    before, _PRECISE = _PRECISE, True
    try:
        yield
    finally:
        _PRECISE = before


def squared(value: Tensor) -> Tensor:
    """Squared Euclidean norm of each example's part of `value`: rows in its own precision, their sum in double.

    *Formal guarantees.* All terms are squares, so nothing cancels: with rows of n numbers, summed in eight lanes in single
    precision, the relative error is at most (n/8+8)·2⁻²⁴ whatever the number of rows; rows beyond 2,000 numbers are
    cut up. Inside of `precisely` it is at most 2,000·2⁻⁵³.
    """
    if value.dim() == 1:  # one number for each example
        value = value[:, None]
    square = torch.zeros(len(value), dtype=torch.float64, device=value.device)
    dtype = torch.float64 if _PRECISE else None
    for part in torch.split(value.contiguous(), 2000, dim=-1):
        rows = torch.linalg.vector_norm(part, dim=-1, dtype=dtype).double().square()
        square += rows.reshape(len(rows), -1).sum(1)
    return square


class Elementwise(Rule):
    """A layer whose parameters multiply (`weight`) or shift (`bias`) each feature: LayerNorm, RMSNorm, scales.

    The gradient of the weight is Σ_t factor_t ∘ g_t and that of the bias Σ_t g_t, formed for every example; they *are*
    the contributions that are summed, so no rounding stands between them and their norm.
    """

    def factor(self, use: Use) -> Tensor:
        """What the weight multiplies."""
        raise NotImplementedError

    def gradients(self, use: Use) -> tuple[Tensor, ...]:
        """Every example's gradients of the trained parameters, by name: Σ_t g_t and Σ_t factor_t ∘ g_t."""
        assert use.gradient is not None
        both = {"bias": lambda g: g, "weight": lambda g: self.factor(use) * g}
        return tuple(both[name](use.gradient).sum(1) for name in sorted(use.trained))

    def measure(self, use: Use) -> Measured:
        if use.kept is None:
            assert use.gradient is not None
            use.kept = self.gradients(use)
            use.activations, use.gradient = (), None
        square = sum((squared(part) for part in use.kept), torch.zeros((), dtype=torch.float64))
        return Measured(square, square)

    def inner(self, use: Use, other: Use, names: frozenset[str]) -> Tensor:
        result = torch.zeros(use.examples, dtype=torch.float64)
        for name in names:
            if not isinstance(other.rule, Elementwise) or name not in other.trained:
                return super().inner(use, other, names)
            if use.parameter(name) is not other.parameter(name):
                return super().inner(use, other, names)
            mine, theirs = sorted(use.trained).index(name), sorted(other.trained).index(name)
            result += (use.kept[mine].double() * other.kept[theirs].double()).sum(1)
        return result

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        for name, part in zip(sorted(use.trained), use.kept, strict=True):
            sums(use.parameter(name)).addmv_(part.t(), weights)
