"""A subset that people have screened: JSON lines with the text as they left it, for JFT's first phase."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import BadInput
from ..rundir import read_file
from .encoding import Example


def read(file: str) -> list[Example]:
    """The texts of a file of JSON lines with `text`, in which `<MASK>` stands for what was taken out; `label` if it has one."""
    examples = []
    try:
        lines = read_file(Path(file)).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}; `confide review --export FILE` makes one"
        ) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            text, label = row["text"], row.get("label")
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BadInput(f"{file}, line {number}: not a JSON object with a text") from None
        if not isinstance(text, str) or not text.strip():
            raise BadInput(f"{file}, line {number}: text must be a text that is not empty")
        examples.append(
            Example(text, "screened", (), (), None if label is None else str(label), f"{file}, line {number}")
        )
    if not examples:
        raise BadInput(f"{file} holds no record; `confide review --export FILE` makes one that does")
    return examples
