"""What a run may show while it goes on: public quantities in, one JSON line each out."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfideError

# guarantees §7: no loss, norm, share or size of anything private, no seeds, no times of steps.
ALLOWED = frozenset(
    {
        "phase", "epoch", "slot", "public_step", "private_step", "learning_rate", "private_learning_rate", "public_loss",
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
        kept = [line for line in _lines(path) if json.loads(line)["slot"] <= slot] if slot else []
        draft = path.with_name(f"{path.name}.partial")
        with _disk(path):
            draft.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            draft.replace(path)
        self._board = None if board is None else _board(board)

    def write(self, **values: Any) -> None:
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

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfideError(f"cannot write {path}: {error.strerror}; make room, then go on with --resume") from None


def _lines(path: Path) -> list[str]:
    """Whole lines only: a kill may have left half of one."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfideError("--tensorboard needs TensorBoard: pip install tensorboard") from None
    return SummaryWriter(str(folder))
