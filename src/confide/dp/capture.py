"""From one forward and one backward pass to a list of uses: what each layer saw and what came back to it.

Trainable parameters are frozen while the graph is built, so that the backward pass computes output gradients only.
A tap behind each layer saves the layer's input through autograd (gradient checkpointing drops and recomputes it like any
other saved tensor) and hands it over together with the output gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import BadInput, Refused
from .rules import Rule, Use
from .rules.base import HandOver, exactly, paused, single

Seen = Callable[[Use], None]


KNOWN = {  # what torch says of models that plain training can do without
    "is a view and is being modified inplace": "an operation behind a layer changes the layer's output in place: set inplace=False "
    "(of ReLU and its kin), or write x = x + y in place of x += y",
    "use_reentrant=True": "gradient checkpointing with use_reentrant=True hides a part of the model: use use_reentrant=False",
}


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """What torch refuses, said so that a user knows what to change."""
    try:
        yield
    except RuntimeError as error:
        for said, meant in KNOWN.items():
            if said in str(error):
                raise Refused(meant) from None
        raise


class Layer:
    """One module with trainable parameters of its own, and its rule."""

    def __init__(self, name: str, module: nn.Module, rule: Rule, trained: frozenset[str]) -> None:
        self.name, self.module, self.rule, self.trained = name, module, rule, trained


class Capture:
    """Hooks on an unwrapped model; they do nothing except inside `recording`."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.examples = 0
        self.precisions: set[torch.dtype] = set()  # of all that was handed over in the last recording
        self._seen: Seen | None = None
        self._backward = False
        self._handles = [
            layer.module.register_forward_hook(self._hook(layer), with_kwargs=True)
            for layer in layers
            if not layer.rule.replaces_forward
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    @contextlib.contextmanager
    def recording(self, parameters: list[nn.Parameter], examples: int, seen: Seen) -> Iterator[None]:
        """Record every use of the layers; each is handed to `seen` as the backward pass reaches it."""
        replaced = [layer for layer in self.layers if layer.rule.replaces_forward]
        self.examples, self._seen, self._backward = examples, seen, False
        self.precisions.clear()
        for parameter in parameters:
            parameter.requires_grad_(False)
        own = {layer: layer.module.__dict__.get("forward") for layer in replaced}  # of the instance, if it has one
        for layer in replaced:
            layer.module.forward = layer.rule.forward(layer.module, self._tap(layer))
        try:
            with torch.enable_grad(), explained():
                yield
        finally:
            for layer, forward in own.items():
                del layer.module.forward
                if forward is not None:
                    layer.module.forward = forward
            for parameter in parameters:
                parameter.requires_grad_(True)
            self._seen = None

    def backward(self, tensors: Tensor, gradients: Tensor | None = None) -> None:
        """The one backward pass of a recording."""
        if not tensors.requires_grad:
            raise BadInput(
                "the loss does not depend on any trainable parameter: compute it from the model's output, without "
                "torch.no_grad() or .detach()"
            )
        self._backward = True
        with exactly(tensors), explained():
            torch.autograd.backward(tensors, gradients)

    def _tap(self, layer: Layer) -> HandOver:
        def hand_over(activations: tuple[Tensor, ...], gradient: Tensor, names: frozenset[str]) -> None:
            self._hand_over(layer, activations, gradient, names & layer.trained)

        return hand_over

    def _hook(self, layer: Layer) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if self._seen is None or paused() or not torch.is_grad_enabled():
                return None
            if not isinstance(output, Tensor) or not output.is_floating_point():
                raise Refused(f"{layer.name}: the rule for {type(module).__name__} expects one tensor as output")
            activations = layer.rule.inputs(module, args, kwargs)
            if len(output) == 1 and self.examples > 1:  # stands for every example; each must get its own gradient
                output = output.expand(self.examples, *output.shape[1:])
            elif len(output) % self.examples:
                raise Refused(
                    f"{layer.name}: the rows of its output cannot be shared out to the examples of the batch; the first "
                    "dimension of every layer's output must be the batch"
                )
            if not output.requires_grad:
                output = output.detach().requires_grad_(True)  # the graph starts here
            return _Tap.apply(output, self, layer, *(value.detach() for value in activations))  # type: ignore[no-untyped-call]

        return hook

    def _hand_over(
        self, layer: Layer, activations: tuple[Tensor, ...], gradient: Tensor, trained: frozenset[str]
    ) -> None:
        if self._seen is None or not self._backward:
            raise Refused(
                "a backward pass ran that the engine did not start: the loss function must return one loss per example and "
                "leave the backward pass to PrivateGradients"
            )
        rule, examples = layer.rule, self.examples
        self.precisions.update(value.dtype for value in (gradient, *activations))
        arranged = tuple(rule.arrange(single(value), examples) for value in activations)
        self._seen(Use(rule, layer.module, examples, trained, arranged, rule.arrange(single(gradient), examples)))


class _Tap(torch.autograd.Function):
    """The identity; its backward hands over the saved activations and the gradient that came back."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, capture: Capture, layer: Layer, *activations: Tensor) -> Tensor:
        ctx.save_for_backward(*activations)
        ctx.capture, ctx.layer = capture, layer
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        activations = ctx.saved_tensors  # only once: gradient checkpointing recomputes them for it
        ctx.capture._hand_over(ctx.layer, activations, gradient, ctx.layer.trained)
        return (gradient, None, None, *[None] * len(activations))
