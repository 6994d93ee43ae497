"""The compiled loops of the *.c files beside, by ctypes; None where confide was installed without a C compiler that knows
OpenMP, or on a processor that they are not written for: then torch does the same, more slowly."""

from __future__ import annotations

import ctypes
import importlib.util
import os

import torch  # first: it brings the threads that the loops share with it

ADDRESS, LONG, INT, NUMBER, WORD = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_double, ctypes.c_uint64
VERSION = 2  # of the functions below, as `confide_kernels` says it; 0 on a processor without their instructions
BATCH = [ADDRESS, LONG, LONG, LONG]
SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "confide_kernels": (INT, []),
    "confide_expand": (None, [ADDRESS, ADDRESS]),
    "confide_stream": (None, [ADDRESS, WORD, WORD, LONG, LONG, ADDRESS, INT]),
    "confide_draw": (None, [ADDRESS, LONG, ADDRESS, *[NUMBER] * 3, ADDRESS]),
    "confide_noise": (None, [ADDRESS, INT, LONG, ADDRESS, WORD, WORD, *[NUMBER] * 4, INT]),
    "confide_gram": (INT, [*BATCH, *BATCH, ADDRESS, NUMBER, NUMBER, LONG, LONG, INT, ADDRESS, ADDRESS]),
    "confide_layernorm": (None, [ADDRESS, ADDRESS, *[LONG] * 3, NUMBER, ADDRESS, ADDRESS, INT]),
    "confide_scan": (INT, [ADDRESS, ADDRESS, LONG, LONG, *[ADDRESS] * 3, *[LONG] * 3, INT]),
    "confide_scan_back": (INT, [ADDRESS, LONG, LONG, *[ADDRESS] * 7, *[LONG] * 3, INT]),
}


def _load() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("confide.dp._compiled")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:  # made for another machine, or without the threads' library
        return None
    if not hasattr(library, "confide_kernels") or library.confide_kernels() != VERSION:
        return None
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


COMPILED = _load()
_forked = False


def _in_child() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_in_child)


def threads() -> int:
    """How many threads a loop may use: torch's number, but one in a forked process, where OpenMP would wait for ever."""
    return 1 if _forked else torch.get_num_threads()


def loops_for(*tensors: torch.Tensor) -> ctypes.CDLL | None:
    """The loops, if they are for these tensors: float32 on the CPU."""
    return COMPILED if all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors) else None


def rows_together(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied only if the numbers of a row do not lie next to each other."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def done(failed: int) -> None:
    """Raise where a loop says that it had no memory for its scratch."""
    if failed:
        raise MemoryError("no memory for the scratch of a compiled loop")
