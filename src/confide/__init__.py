"""confide trains language models on text that holds secrets, and proves what the model cannot leak."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accounting import verify as verify
    from .screening import screen as screen

__version__ = version("confide")
__all__ = ["__version__", "screen", "verify"]

_FROM = {"screen": ".screening", "verify": ".accounting"}


def __getattr__(name: str) -> Any:
    """Import the parts only when they are asked for, so that `import confide` is quick."""
    if name in _FROM:
        return getattr(import_module(_FROM[name], __name__), name)
    raise AttributeError(f"module 'confide' has no attribute {name!r}")
