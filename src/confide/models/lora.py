"""LoRA: a model in; the same with low-rank adapters beside its linear layers, which alone are trained, out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import transformers

from ..errors import BadInput, ConfideError
from .lstm import LstmForCausalLM


@dataclass(frozen=True)
class Lora:
    """Train low-rank adapters only. `targets` are names of linear layers; None: those that PEFT takes for the model.

    Everything else stays frozen, the embedding row of an added `<MASK>` among it; it keeps its public start.
    """

    rank: int = 8
    alpha: float = 16
    targets: tuple[str, ...] | None = None
    dropout: float = 0.0


def adapted(model: Any, lora: Lora, spec: str) -> Any:
    """The model with adapters, which alone are trained."""
    try:
        from peft import LoraConfig, get_peft_model
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL
    except ImportError:
        raise ConfideError("LoRA needs peft; install it with: pip install 'confide[train]'") from None
    if isinstance(model, LstmForCausalLM):
        raise BadInput("LoRA adapts linear layers and the LSTM has none; train it in full")
    targets: Any = list(lora.targets or ()) or USUAL.get(model.config.model_type, "all-linear")
    conv1d = any(isinstance(module, transformers.pytorch_utils.Conv1D) for module in model.modules())
    try:
        return get_peft_model(
            model,
            LoraConfig(
                r=lora.rank,
                lora_alpha=lora.alpha,  # type: ignore[arg-type]
                target_modules=targets,
                lora_dropout=lora.dropout,
                fan_in_fan_out=conv1d,
            ),
        )
    except ValueError as error:
        raise BadInput(f"{spec}: LoRA cannot be applied: {str(error).splitlines()[0]}") from None
