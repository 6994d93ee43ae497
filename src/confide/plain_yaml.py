"""YAML files of plain data: a path in, numbers, texts, lists and mappings out. No objects, no aliases, bounded in size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .errors import BadInput

LARGEST = 1 << 20  # bytes


class _Loader(yaml.SafeLoader):
    """Plain data only, and no aliases: a small file cannot unfold into a large one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def read_yaml(path: Path, what: str) -> Any:
    """What a file says; anything that is not plain YAML is refused, with the line."""
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(f"{path}: {what} has at most {LARGEST >> 20} MB")
        return yaml.load(path.read_text("utf-8"), _Loader)
    except OSError as error:
        raise BadInput(f"cannot read {what} {path}: {error.strerror}") from None
    except BadInput:
        raise
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise BadInput(f"{path}{where}: not a YAML file of plain values without aliases") from None
