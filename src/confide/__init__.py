"""confide trains language models on text that holds secrets, and proves what the model cannot leak."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accounting import verify as verify
    from .attacks import attack as attack
    from .reporting import report as report
    from .screening import screen as screen
    from .training import make_plan as plan
    from .training import train_plan as train

__version__ = version("confide")
__all__ = ["__version__", "attack", "plan", "report", "screen", "train", "verify"]

_FROM = {
    "attack": (".attacks", "attack"),
    "plan": (".training", "make_plan"),
    "report": (".reporting", "report"),
    "screen": (".screening", "screen"),
    "train": (".training", "train_plan"),
    "verify": (".accounting", "verify"),
}


def __getattr__(name: str) -> Any:
    """Import the parts only when they are asked for, so that `import confide` is quick."""
    if name in _FROM:
        module, attribute = _FROM[name]
        return getattr(import_module(module, __name__), attribute)
    raise AttributeError(f"module 'confide' has no attribute {name!r}")
