"""Several processes as one run: torchrun's environment in, a joined group out; a process alone is a group of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..dp.plan import agreed
from ..errors import ConfideError

PATIENCE = timedelta(minutes=30)  # for the other processes: a step of a large model takes long


def launched() -> bool:
    """Whether torchrun, or something like it, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes the run has."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Join the other processes for the time of a run."""
    if not launched() or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"  # counts and words are summed on the CPU
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, ConfideError) or not _lost(error):
            raise
        raise ConfideError(
            "another process of this run ended or cannot be reached; nothing that was paid for is lost: start the same command "
            "again with --resume, with as many processes as you like"
        ) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _lost(error: RuntimeError) -> bool:
    words = ("connection", "closed by peer", "gloo", "nccl", "timed out", "timeout", "socket", "reset by peer")
    return any(word in str(error).lower() for word in words)


def shared(make: Callable[[], Any]) -> Any:
    """What rank 0 makes, in every process; its error, too."""
    return agreed((rank(), world()), make)


def total(value: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, in place."""
    if world() > 1:
        dist.all_reduce(value)
    return value
