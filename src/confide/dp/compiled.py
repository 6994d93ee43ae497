"""The compiled loops of noise.c and kernels.c, by ctypes. Each is None where confide was installed without a C compiler, or
on a processor that the loops are not written for: then torch does the same, more slowly."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence

import torch  # first: torch brings the threads that kernels.c shares with it

ADDRESS, LONG, INT, NUMBER = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_double
BATCH = [ADDRESS, LONG, LONG, LONG]
SIGNATURES: dict[str, tuple[type | None, Sequence[type]]] = {
    "confide_draw": (INT, [ADDRESS, LONG, ADDRESS, LONG, NUMBER, NUMBER, NUMBER, ADDRESS]),
    "confide_lattice32": (None, [ADDRESS, ADDRESS, LONG, NUMBER]),
    "confide_lattice64": (None, [ADDRESS, ADDRESS, LONG, NUMBER]),
    "confide_kernels": (INT, []),
    "confide_gram": (INT, [*BATCH, *BATCH, ADDRESS, NUMBER, NUMBER, LONG, LONG, INT, ADDRESS, ADDRESS]),
    "confide_scan": (INT, [ADDRESS, ADDRESS, LONG, LONG, *[ADDRESS] * 3, *[LONG] * 3, INT]),
    "confide_scan_back": (INT, [ADDRESS, LONG, LONG, *[ADDRESS] * 7, *[LONG] * 3, INT]),
}


def _load(name: str) -> ctypes.CDLL | None:
    found = importlib.util.find_spec(f"confide.dp.{name}")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:  # built for another machine, or without the threads' library
        return None
    for function, (result, arguments) in SIGNATURES.items():
        if hasattr(library, function):
            getattr(library, function).restype, getattr(library, function).argtypes = result, arguments
    return library


NOISE, KERNELS = _load("_noise"), _load("_kernels")
if KERNELS and not KERNELS.confide_kernels():
    KERNELS = None


def kernels_for(*tensors: torch.Tensor) -> ctypes.CDLL | None:
    """The kernels, if they are for these tensors: float32 on the CPU."""
    return KERNELS if all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors) else None


def rows_together(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied only if the numbers of a row do not lie next to each other."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def done(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the scratch of a compiled loop")
