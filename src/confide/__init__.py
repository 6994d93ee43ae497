"""confide trains language models on text that holds secrets, and proves what the model cannot leak."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accounting import verify as verify

__version__ = version("confide")
__all__ = ["__version__", "verify"]


def __getattr__(name: str) -> Any:
    """Import the numerical parts only when they are asked for, so that `import confide` is quick."""
    if name == "verify":
        from .accounting import verify

        return verify
    raise AttributeError(f"module 'confide' has no attribute {name!r}")
