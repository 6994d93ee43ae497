"""What to type next: folders and options in; command lines that can be run as they stand out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Utilities compare only between runs that have all of these in common.
VALIDATED_BY = (
    "task", "model", "tokenizer", "vocabulary_from", "vocabulary_size", "special_tokens", "max_length", "validation", "validate_on",
    "validation_share",
)  # fmt: skip


def command(*words: object) -> str:
    """A command of confide, quoted for a shell."""
    return shlex.join(["confide", *map(str, words)])


def resume(folder: Path) -> str:
    """What goes on with a run that was interrupted."""
    return command("train", "-o", folder, "--resume")


def reference(folder: Path, screened: str, options: Mapping[str, Any]) -> str:
    """The same training without protection, into a new folder beside a run, so that its utility compares."""
    out, number = folder.parent / "plain", 1
    while out.exists():
        number += 1
        out = folder.parent / f"plain-{number}"
    words: list[Any] = ["train", screened, "--method", "plain", "-o", out]
    for name in ("epochs", "batch_size", "learning_rate", *VALIDATED_BY):
        value = options.get(name)
        if value not in (None, [], (), ""):
            given = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            words += [f"--{name.replace('_', '-')}", given]
    return command(*words)
