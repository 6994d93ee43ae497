"""The policy `customersim`: the names, phones, orders, tracking numbers and addresses of CustomerSim. Text in, findings out.

It is made for the wording of the S-DP paper's corpus and of `confide simulate`, where capitals in pairs are names, and
for nothing else. With a file of names, those are looked up instead.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from pathlib import Path
from typing import TextIO, cast

from ..errors import BadInput
from .base import Finding, Policy, register
from .patterns import MILITARY_ADDRESS, PHONE, US_ADDRESS

_CAPITALISED = r"[^\W\d_a-z][^\W\d_]*+(?:['-][^\W\d_]++){0,3}"
_NOT_A_NAME = (
    "All|Bye|Can|Could|Goodbye|Have|Hello|Hi|How|I|It|My|No|Ok|Phone|Please|Shipping|Sure|SYS|Thank|That|The|Track|USR"
    "|Verify|We|What|Where|Yea|Yep|Yes|You|Your"
)
_SHAPES = (
    f"(?P<ADDRESS>{US_ADDRESS}|{MILITARY_ADDRESS})",
    "(?P<ORDER>[0-9]{3}-[0-9]{5}-[0-9]{4})",
    f"(?P<PHONE>{PHONE})",
    "(?P<TRACKING>[A-Z0-9]{10})",
)
_NAME = rf"(?P<NAME>(?!(?:{_NOT_A_NAME})(?!\w)){_CAPITALISED}(?: [A-Z]\.)? (?!(?:{_NOT_A_NAME})(?!\w)){_CAPITALISED})"
_SECRETS = re.compile(rf"\b(?:{'|'.join(_SHAPES)})(?!\w)")
_SECRETS_AND_NAMES = re.compile(rf"\b(?:{'|'.join(_SHAPES)}|{_NAME})(?!\w)")
_WORD = re.compile(r"\w+")


def read_names(path: str | Path) -> frozenset[str]:
    """The names in a CSV file with a column `name`, or one to a line in any other file; either may end in .gz."""
    path = Path(path)
    try:
        with cast(
            TextIO, (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="")
        ) as file:
            if path.name.removesuffix(".gz").endswith(".csv"):
                rows = csv.DictReader(file)
                if "name" not in (rows.fieldnames or ()):
                    raise BadInput(f"{path} has no column called name")
                names = [row["name"] or "" for row in rows]
            else:
                names = list(file)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise BadInput(f"cannot read names from {path}: {error}") from None
    return frozenset(" ".join(name.split()) for name in names) - {""}


@register(
    "customersim",
    "the secrets of CustomerSim, ours and the paper's: names, phones, orders, tracking numbers, addresses",
    argument="[:FILE]",
)
class CustomerSim(Policy):
    """The secrets of CustomerSim, in single turns or whole dialogues.

    >>> [f.type for f in CustomerSim().find("USR: Sure, Ada Quist. It is 750-56357-2575.")]
    ['NAME', 'ORDER']

    *Formal guarantees.* Mask-consistent by itself: a finding is a match of one left-to-right scan without context, or a
    name of the file, found from its own characters alone. Neither sees more of its surroundings than whether the characters
    beside it are letters or digits, and none matches the mark; the argument is that of `patterns`.
    """

    name = "customersim"
    consistency = "alone"

    def __init__(self, names: str | None = None) -> None:
        self.names = None if names is None else read_names(names)
        self.files = () if names is None else (names,)
        self.longest = max((len(_WORD.findall(name)) for name in self.names or ()), default=0)

    def find(self, text: str) -> list[Finding]:
        """The findings in the text; names from a file may overlap with addresses."""
        scanner = _SECRETS_AND_NAMES if self.names is None else _SECRETS
        found = [Finding(*match.span(), match.lastgroup or "", self.name) for match in scanner.finditer(text)]
        return found if self.names is None else found + self._known(text, self.names)

    def _known(self, text: str, names: frozenset[str]) -> list[Finding]:
        """The names of the file: every run of words that is one of them, letter by letter."""
        spans = [match.span() for match in _WORD.finditer(text)]
        found = []
        for first, (start, _) in enumerate(spans):
            for _, end in spans[first : first + self.longest]:
                if text[start:end] in names:
                    found.append(Finding(start, end, "NAME", self.name))
        return found
