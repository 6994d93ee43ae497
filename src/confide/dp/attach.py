"""Which layers of a model take part and by which rule; what cannot be trained privately is refused by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import BadInput, Refused
from .capture import Layer
from .rules import rule_for
from .rules.generic import Generic


def find_layers(model: nn.Module, *, generic: bool) -> list[Layer]:
    """The model's layers with trainable parameters of their own, each with its rule.

    *Formal guarantees.* Every trainable parameter belongs to a layer with a rule, or an error names it: none is left without
    clipping. Modules that mix the records of a batch (batch normalisation, routers) are refused even where they are frozen.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"PrivateGradients works on a torch.nn.Module, got {type(model).__name__}")
    if hasattr(model, "_orig_mod"):
        raise Refused("a model from torch.compile hides its layers; give PrivateGradients the model that was compiled")
    _refuse_mixing(model)
    ruled: list[Layer] = []
    unruled: list[tuple[str, nn.Module, frozenset[str]]] = []
    for name, module in model.named_modules():
        trained = frozenset(n for n, p in module.named_parameters(recurse=False) if p.requires_grad)
        if not trained:
            continue
        rule = rule_for(module)
        if rule is None:
            unruled.append((name or "the model itself", module, trained))
        else:
            rule.check(module, name)
            ruled.append(Layer(name, module, rule, trained))
    if not ruled and not unruled:
        raise BadInput("the model has no trainable parameter: set requires_grad on what is to be trained")
    covered = {id(getattr(layer.module, n)) for layer in ruled for n in layer.trained}
    for name, module, trained in unruled:
        if trained == {"bias"} and id(module.bias) in covered:
            continue  # it only holds the bias of its decoder, as the prediction heads of BERT's kin do
        if not generic:
            raise Refused(_without_rule(name, module, trained))
        ruled.append(Layer(name, module, Generic(), trained))
    if len({getattr(layer.module, n).dtype for layer in ruled for n in layer.trained}) > 1:
        raise Refused("the trainable parameters have several precisions; make them one with model.float()")
    for layer in ruled:
        for n in layer.trained:
            dtype = getattr(layer.module, n).dtype
            if dtype not in (torch.float32, torch.float64):
                raise Refused(
                    f"{layer.name}.{n} is {str(dtype).removeprefix('torch.')}: trainable parameters must be float32 (model.float()); "
                    "for speed run the forward pass under bfloat16 autocast"
                )
    return ruled


def _without_rule(name: str, module: nn.Module, trained: frozenset[str]) -> str:
    if "lora_magnitude_vector" in name:
        return f"{name}: DoRA's magnitudes have no per-example rule; use LoRA with use_dora=False"
    return (
        f"{name} ({type(module).__name__}) trains {', '.join(sorted(trained))} and has no rule for per-example gradients; freeze it, "
        "register a rule (confide.dp.register, see docs/engine.md), or pass generic=True for a slower one that covers most layers"
    )


def _refuse_mixing(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise Refused(
                f"{name} ({kind}) computes with the other records of a batch, so that no record's influence is bounded; replace "
                "it by GroupNorm or LayerNorm"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise Refused(f"{name} ({kind}) keeps running statistics of private records; set track_running_stats=False")
        if kind == "ModulesToSaveWrapper":
            raise Refused(
                f"{name}: PEFT's modules_to_save is not covered; leave it out of LoraConfig, or train those modules in full"
            )
        if getattr(module, "use_dora", None) and any(_values(module.use_dora)):
            raise Refused(
                f"{name}: DoRA divides by a norm of the whole weight and has no per-example rule; use use_dora=False"
            )
    config: Any = getattr(model, "config", None)
    experts = max(
        (int(getattr(config, key, 0) or 0) for key in ("num_local_experts", "num_experts", "n_routed_experts")),
        default=0,
    )
    if experts > 1:
        raise Refused(
            "mixture-of-experts models route the tokens of a batch together and balance them by a loss over the batch, so that no "
            "record's influence is bounded; use a dense model"
        )


def _values(flags: Any) -> list[Any]:
    return list(flags.values()) if hasattr(flags, "values") else [flags]


def group_layers(layers: list[Layer]) -> dict[nn.Module, int]:
    """The number of each module's group: modules that share a parameter are one group, others stand alone."""
    group: dict[nn.Module, int] = {}
    owner: dict[int, nn.Module] = {}
    for layer in layers:
        own = group.setdefault(layer.module, len(group))
        for n in layer.trained:
            other = owner.setdefault(id(getattr(layer.module, n)), layer.module)
            if group[other] != own:
                group = {module: group[other] if number == own else number for module, number in group.items()}
                own = group[other]
    numbers = {number: index for index, number in enumerate(dict.fromkeys(group.values()))}
    return {module: numbers[number] for module, number in group.items()}
