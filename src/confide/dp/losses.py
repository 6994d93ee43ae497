"""One loss per record, from a model and a batch: the sum or the mean over the record's own tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from ..errors import BadInput
from .rules.base import single

Inputs = Mapping[str, Any]
Loss = Callable[[nn.Module, Inputs], Tensor]
IGNORED = -100  # the label of a position without a target
REDUCTIONS = ("mean", "sum")


def targets(inputs: Inputs, task: str) -> Tensor:
    """The label that each position predicts: its own, or in a causal model that of the next position."""
    labels = inputs.get("labels")
    if not isinstance(labels, Tensor):
        raise BadInput(f"task {task!r} needs 'labels' in the batch; {IGNORED} marks positions that are no target")
    if labels.is_floating_point() or labels.dim() != (1 if task == "classify" else 2):
        raise BadInput(
            f"task {task!r} needs whole numbers as labels, {'one per record' if task == 'classify' else 'one per token'}"
        )
    ids = inputs.get("input_ids")
    if task != "classify" and isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape != labels.shape:
        raise BadInput(f"task {task!r} needs one label for each token: input_ids and labels have different shapes")
    if task == "causal":
        return functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return labels


def check_labels(goals: Tensor, known: int) -> None:
    """Refuse labels that the model does not know, without saying which: torch would print them."""
    if bool(((goals >= known) | ((goals < 0) & (goals != IGNORED))).any()):
        raise BadInput(
            f"a label is neither {IGNORED} nor from 0 to {known - 1}: labels and model do not fit each other"
        )


def token_weights(goals: Tensor, reduction: str) -> Tensor:
    """What each position's loss counts for: 1 or one over the record's number of targets; 0 where there is none.

    *Formal guarantees.* The weights of a record depend on that record alone. A record without a target has weights 0.
    """
    valid = goals != IGNORED
    if reduction == "sum":
        return valid.double()
    return valid / valid.sum(1, keepdim=True).clamp_min(1).double()


def built_in(task: str, reduction: str) -> Loss:
    """The loss of a task: `causal` and `masked` language models over tokens, `classify` over a label per record."""

    def tokens(model: nn.Module, inputs: Inputs) -> Tensor:
        goals = targets(inputs, task)
        logits = model_logits(model, inputs)
        check_labels(goals, logits.shape[-1])
        each = functional.cross_entropy(
            single(logits).flatten(0, 1), goals.flatten(), ignore_index=IGNORED, reduction="none"
        )
        return (each.view(goals.shape) * token_weights(goals, reduction).to(each.dtype)).sum(1)

    def classes(model: nn.Module, inputs: Inputs) -> Tensor:
        logits, goals = model_logits(model, inputs), targets(inputs, task)
        check_labels(goals, logits.shape[-1])
        return functional.cross_entropy(single(logits), goals, ignore_index=IGNORED, reduction="none")

    known: dict[str, Loss] = {"causal": tokens, "masked": tokens, "classify": classes}
    if task not in known:
        raise BadInput(f"task must be one of {', '.join(known)}, got {task!r}; or give a loss function to accumulate()")
    if reduction not in REDUCTIONS:
        raise BadInput(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    return known[task]


def model_logits(model: nn.Module, inputs: Inputs) -> Tensor:
    """What a model gives out, by itself or as Hugging Face's models do."""
    output = model(**without_labels(inputs))
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise BadInput(
            f"a task needs a model that returns logits, or an object that has them, as Hugging Face's do; got {type(output).__name__}. "
            "Give accumulate() a loss function of your own"
        )
    return logits


def without_labels(inputs: Inputs) -> dict[str, Any]:
    """A batch as a model takes it that must not compute a loss of its own."""
    return {name: value for name, value in inputs.items() if name != "labels"}


def rows(inputs: Inputs, chosen: slice | Tensor, examples: int) -> dict[str, Any]:
    """Some examples of a batch."""
    return {
        name: value[chosen] if isinstance(value, Tensor) and value.dim() and len(value) == examples else value
        for name, value in inputs.items()
    }


def count(inputs: Inputs) -> int:
    """How many examples a batch holds."""
    if not isinstance(inputs, Mapping):
        raise BadInput(
            f"a batch is a mapping of names to tensors, such as input_ids and labels; got {type(inputs).__name__}"
        )
    sizes = [len(value) for value in inputs.values() if isinstance(value, Tensor) and value.dim()]
    if not sizes:
        raise BadInput("the batch holds no tensor; leave out accumulate() for an empty batch and call release() alone")
    named = [inputs[name] for name in ("labels", "input_ids") if isinstance(inputs.get(name), Tensor)]
    if len({len(value) for value in named if value.dim()}) > 1 or (len(named) == 1 and len(named[0]) not in sizes[:1]):
        raise BadInput("the batch has labels for another number of examples than it has inputs")
    _check_padding(inputs.get("attention_mask"))
    return len(named[0]) if named and named[0].dim() else sizes[0]


def _check_padding(mask: Any) -> None:
    """Refuse padding on the left: what a record gives would depend on how long the others of its batch are.

    The first of its own tokens would be predicted from padding, if there is some, and stand at another position.
    """
    if isinstance(mask, Tensor) and mask.dim() == 2 and bool(((mask[:, 1:] != 0) & (mask[:, :-1] == 0)).any()):
        raise BadInput(
            "attention_mask hides a token that stands before a visible one: pad records on the right (tokenizer.padding_side = 'right'), "
            "or what a record contributes depends on the length of the others"
        )


def check_losses(losses: Any, examples: int) -> Tensor:
    """Refuse anything but one loss per example."""
    if not isinstance(losses, Tensor) or losses.shape != (examples,):
        if not isinstance(losses, Tensor):
            got = f"a {type(losses).__name__}"
        elif losses.dim() == 1:
            got = "another number of them"
        else:
            got = f"a tensor of {losses.dim()} dimensions"
        raise BadInput(
            f"the loss function must return a tensor with one loss per example, got {got}; a loss already averaged over the batch "
            "cannot be clipped by example (use reduction='none' and sum over each record's tokens)"
        )
    return losses
