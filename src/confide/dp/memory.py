"""The C allocator's habit of handing large blocks back to the system each time they are freed: switched off, or asked for."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_memory() -> bool:
    """Let the process keep the memory it frees, instead of asking the system for fresh pages at every step.

    With glibc every large tensor is mapped anew and its pages are cleared at first touch, which costs training on a CPU
    a good part of its time (docs/engine.md). It acts on the whole process and until its end; elsewhere than on glibc
    nothing happens. Returns whether it took effect.
    """
    mallopt = _glibc("mallopt")
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


def give_back() -> None:
    """Hand free memory back to the system, once: after work that needed more than a step does."""
    if trim := _glibc("malloc_trim"):
        trim(0)


def _glibc(name: str) -> Any:
    """A function of the C library, if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
