"""Training: a screened corpus and a plan in; an ordinary Hugging Face model, a ledger and a certificate out."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import ConfideError
from .options import Options

if TYPE_CHECKING:
    from .beginning import plan_of
    from .loop import train as train_plan
    from .planning import TrainingPlan
    from .planning import plan as make_plan
    from .probe import probe as probe_plan
    from .run import Run

NEEDED = ("torch", "transformers", "cryptography", "peft", "safetensors", "rapidfuzz")  # by the extra `train`

__all__ = ["Options", "Run", "TrainingPlan", "make_plan", "plan_of", "probe_plan", "train_plan"]

_FROM = {
    "Run": ("run", "Run"),
    "TrainingPlan": ("planning", "TrainingPlan"),
    "make_plan": ("planning", "plan"),
    "plan_of": ("beginning", "plan_of"),
    "probe_plan": ("probe", "probe"),
    "train_plan": ("loop", "train"),
}


def __getattr__(name: str) -> Any:
    """Load torch only when something is trained: the command line and the options need none of it."""
    return lazily(__name__, _FROM, name, "training")


def lazily(package: str, found_in: Mapping[str, tuple[str, str]], name: str, doing: str) -> Any:
    """A name of a package that needs torch, from the module that has it; what is missing is said with how to install it."""
    if name not in found_in:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, attribute = found_in[name]
    try:
        return getattr(import_module(f".{module}", package), attribute)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in NEEDED:
            raise ConfideError(f"{doing} needs {error.name}: pip install 'confide[train]'") from None
        raise
