"""Private gradients: clipping, sampling, noise, and the plan that couples them. Needs the extra `confide[train]`."""

from ..errors import ConfideError

try:
    import cryptography as _cryptography  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ConfideError(f"private training needs {error.name}; install it with: pip install 'confide[train]'") from None

from .engine import PrivateGradients
from .memory import keep_memory
from .plan import Plan, Step
from .rules import Elementwise, Measured, Rule, Use, register

__all__ = ["Elementwise", "Measured", "Plan", "PrivateGradients", "Rule", "Step", "Use", "keep_memory", "register"]
