"""What a run may show while it goes on: public quantities in, one JSON line each out."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfideError
from ..rundir import read_file, sync_folder, write_private

# guarantees §7: no loss, norm, share or size of anything private, no seeds, no times of steps.
ALLOWED = frozenset(
    {
        "phase", "epoch", "slot", "public_step", "private_step", "learning_rate", "private_learning_rate", "public_loss", "training_loss",
        "noised_gradient_norm", "validation_loss", "validation_accuracy", "epsilon", "delta",
        "epsilon_of",
    }
)  # fmt: skip


class Telemetry:
    """Appends to telemetry.jsonl and, if asked, to TensorBoard.

    *Formal guarantees.* Every value is a function of released gradients, public records and public constants. Keys outside
    `ALLOWED` are refused. Lines written after the checkpoint that a run resumes from are removed first: they belong to
    steps that are taken again.
    """

    def __init__(self, path: Path, slot: int, board: Path | None = None) -> None:
        self.path = path
        kept = [one for one in read_telemetry(path) if one["slot"] <= slot] if slot else []
        with _disk(path):
            write_private(path, *(json.dumps(one) + "\n" for one in kept))
        self._board = None if board is None else _board(board, slot)

    def write(self, **values: Any) -> None:
        """One line; a key that is not allowed is a mistake of ours and raises."""
        values = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
        unknown = values.keys() - ALLOWED
        if unknown:
            raise AssertionError(f"telemetry may not hold {sorted(unknown)}")
        with _disk(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values, allow_nan=False) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    # Without the time: how long a private step takes depends on its draw.
                    self._board.add_scalar(name, value, values["slot"], walltime=float(values["slot"]))

    def sync(self) -> None:
        """Wait until all lines are on disk: those before a checkpoint are never written again."""
        with _disk(self.path):
            sync_folder(self.path)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfideError(f"cannot write {path}: {error.strerror}; make room, then go on with --resume") from None


def read_telemetry(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole: a kill may have left half of one, and a bad disk worse."""
    found = []
    for line in read_file(path).decode("utf-8", errors="replace").split("\n")[:-1] if path.exists() else ():
        with contextlib.suppress(ValueError, RecursionError):
            one = json.loads(line)
            if isinstance(one, dict) and isinstance(one.get("slot"), int):
                found.append(one)
    return found


def _board(folder: Path, slot: int) -> Any:
    """A writer that hides what an earlier process wrote of steps that are taken again."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfideError("--tensorboard needs TensorBoard: pip install tensorboard") from None
    return SummaryWriter(str(folder), purge_step=slot + 1)
