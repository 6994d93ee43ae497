"""YAML files of plain data: a path in, numbers, texts, lists and mappings out. No objects, no aliases, bounded in size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .errors import BadInput
from .rundir import read_file

LARGEST = 1 << 20  # bytes
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
CONFIG, LARGEST_CONFIG = "config.yaml", 1 << 26  # of a run: it names every file of the corpus


class _Loader(yaml.SafeLoader):
    """Plain data only, and no aliases: a small file cannot unfold into a large one. `12:30` is text, and no number to the base of 60."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and ":" in node.value:
            node.tag = "tag:yaml.org,2002:str"
        return super().construct_object(node, deep)


def read_yaml(path: Path, what: str, largest: int = LARGEST) -> Any:
    """What a file says; anything that is not plain YAML is refused, with the line."""
    try:
        return _plain(yaml.load(read_file(path, largest).decode(), _Loader))
    except OSError as error:
        raise BadInput(f"cannot read {what} {path}: {error.strerror}; name a file that can be read") from None
    except BadInput:
        raise
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        RecursionError,
    ) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise BadInput(f"{path}{where}: not a YAML file of plain values without aliases; mend it there") from None


def _plain(found: Any) -> Any:
    """The same, if it is made of texts, numbers, truth values, lists and mappings alone: dates, sets and bytes are none of these."""
    if isinstance(found, dict):
        return {_plain(name): _plain(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_plain(value) for value in found]
    if found is not None and not isinstance(found, str | int | float | bool):
        raise ValueError
    if isinstance(found, str):
        found.encode()  # half a character, which only an escape can write, is a ValueError
    return found


def run_config(folder: Path) -> dict[str, Any]:
    """What a run was started with; raises `BadInput` if the folder holds no such file, or a damaged one."""
    found = read_yaml(folder / CONFIG, "the configuration of a run", LARGEST_CONFIG)
    if not isinstance(found, dict) or not isinstance(found.get("options"), dict):
        raise BadInput(f"{folder / CONFIG} is damaged; bring it back from a backup")
    return found
