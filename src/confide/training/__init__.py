"""Training: a screened corpus and a plan in; an ordinary Hugging Face model, a ledger and a certificate out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfideError
from .options import Options

if TYPE_CHECKING:
    from .loop import train as train_plan
    from .planning import TrainingPlan
    from .planning import plan as make_plan
    from .probe import probe as probe_plan
    from .run import Run, plan_of

__all__ = ["Options", "Run", "TrainingPlan", "make_plan", "plan_of", "probe_plan", "train_plan"]

_FROM = {
    "Run": ("run", "Run"),
    "TrainingPlan": ("planning", "TrainingPlan"),
    "make_plan": ("planning", "plan"),
    "plan_of": ("run", "plan_of"),
    "probe_plan": ("probe", "probe"),
    "train_plan": ("loop", "train"),
}


def __getattr__(name: str) -> Any:
    """Load torch only when something is trained: the command line and the options need none of it."""
    if name not in _FROM:
        raise AttributeError(f"module 'confide.training' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _FROM[name]
    try:
        return getattr(import_module(f".{module}", __name__), attribute)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("torch", "transformers", "cryptography", "peft", "safetensors"):
            raise ConfideError(f"training needs {error.name}: pip install 'confide[train]'") from None
        raise
