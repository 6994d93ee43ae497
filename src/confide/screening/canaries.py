"""Canaries: invented secrets planted among the records, so that attacks can measure what a model remembers.

In: a few words such as `crt` or `audit,number=200`. Out: documents that pass through the same screening as all others,
and the two files that attacks need: what was planted, and (apart from it) how the coins fell.
"""

from __future__ import annotations

import json
import math
import re
import secrets as entropy
import string
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ..errors import BadInput
from ..records import MARK, Record, Row, escape, render
from ..rundir import new_folder, write_private

ALPHABETS = {"digits": string.digits, "letters": string.ascii_uppercase, "code": string.ascii_uppercase + string.digits}
POLICIES = ("as-is", "missed", "found")
_SLOT = re.compile(r"\{(digits|letters|code):(\d{1,2})\}")


@dataclass(frozen=True)
class Planting:
    """What to plant. `format` has one slot such as {digits:6}, or `secret` names the one value in it.

    `policy`: "as-is" leaves the finding to the policy; "missed" makes it overlook the secret (the record is private all
    the same, as an audit of a missed secret needs); "found" makes it find it. With `coins` each canary is present or
    already masked by a fair coin.
    """

    format: str = "My ID is: {digits:6}"
    number: int = 10
    copies: int = 1
    policy: str = "as-is"
    coins: bool = False
    secret: str = ""
    seed: int | None = None  # None: the operating system's entropy

    def __post_init__(self) -> None:
        slots = _SLOT.findall(self.format)
        if len(slots) != 1 or not 1 <= int(slots[0][1]) <= 40:
            raise BadInput("canaries: the format has one slot of 1 to 40 signs: {digits:6}, {letters:8} or {code:10}")
        if self.policy not in POLICIES:
            raise BadInput(f"canaries: policy must be one of {', '.join(POLICIES)}")
        if not 1 <= self.copies <= 10**6 or not 1 <= self.number <= 10**6 or self.copies * self.number > 10**7:
            raise BadInput("canaries: number and copies are at least 1, and at most ten million together")
        if self.space < 2 * self.number and not self.secret:
            raise BadInput(
                f"canaries: {self.number} different values need a larger space than {self.space}; take a longer slot, or fewer"
            )
        alphabet, length = self.slot
        if self.secret and (self.number != 1 or len(self.secret) != length or set(self.secret) - set(alphabet)):
            raise BadInput("canaries: a fixed secret fits the slot, in signs and length, and stands alone (number=1)")

    @property
    def slot(self) -> tuple[str, int]:
        kind, length = _SLOT.findall(self.format)[0]
        return ALPHABETS[kind], int(length)

    @property
    def around(self) -> tuple[str, str]:
        """What stands before and behind the secret, as intake leaves it."""
        before, after = (escape(part) for part in _SLOT.sub("\0", self.format, count=1).split("\0"))
        return before, after

    @property
    def space(self) -> int:
        """How many values a canary may have."""
        alphabet, length = self.slot
        return int(len(alphabet) ** length)


PRESETS = {
    "crt": Planting(copies=20),
    "sdp": Planting(format="My ID is {digits:6}.", number=1, copies=10, secret="341752"),
    "jft": Planting(format="My ID is {digits:6}.", number=10, copies=1),
    "audit": Planting(number=1000, policy="missed", coins=True),
}


def parse_canaries(spec: str) -> Planting:
    """Read `preset,name=value,…`; the format comes last, since it may hold commas.

    >>> parse_canaries("audit,number=200").coins
    True
    """
    spec, _, given_format = spec.partition("format=")
    if not spec.strip(" ,") and not given_format:
        raise BadInput(f"canaries: name a preset ({', '.join(PRESETS)}) or a format")
    planting = Planting()
    changes: dict[str, Any] = {"format": given_format} if given_format else {}
    kinds = {field.name: field.type for field in fields(Planting)}
    for i, part in enumerate(part.strip() for part in spec.split(",") if part.strip()):
        name, equals, value = part.partition("=")
        if i == 0 and not equals and name in PRESETS:
            planting = PRESETS[name]
        elif equals and name in kinds and name != "format":
            changes[name] = _value(name, value)
        else:
            raise BadInput(
                f"canaries: {part[:40]!r} is neither a preset ({', '.join(PRESETS)}) at the start nor one of "
                "number=, copies=, policy=, coins=, secret=, seed=, format="
            )
    return replace(planting, **changes)


def _value(name: str, value: str) -> Any:
    if name == "coins":
        if value not in ("yes", "no"):
            raise BadInput("canaries: coins is yes or no")
        return value == "yes"
    if name in ("number", "copies", "seed"):
        if not (value.isascii() and value.isdecimal() and len(value) < 19):
            raise BadInput(f"canaries: {name} is a whole number")
        return int(value)
    return value


class Canary(NamedTuple):
    """One canary: its secret, what the policy is to do with it, and whether the coin left it in place."""

    secret: str
    policy: str
    present: bool


@dataclass(frozen=True)
class CanaryChunk:
    """The canaries as a last chunk of the corpus. `planted`: by document."""

    number: int
    rows: list[Row]
    planted: dict[str, Canary]
    name: str = "canaries"
    ids_given: bool = False
    payload: bytes = b""


def plant(planting: Planting) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the secrets and the coins. Out: what was planted, and the coins, as plain data to be kept apart."""
    coins: Random = entropy.SystemRandom() if planting.seed is None else Random(f"canaries {planting.seed}")
    alphabet, length = planting.slot
    values: dict[str, None] = {planting.secret: None} if planting.secret else {}
    while len(values) < planting.number:
        values["".join(coins.choices(alphabet, k=length))] = None
    planted = {
        **asdict(planting),
        "space": planting.space,
        "bits": math.log2(planting.space),
        "canaries": [{"id": f"canary-{i}", "secret": value} for i, value in enumerate(values)],
    }
    present = [bool(coins.getrandbits(1)) if planting.coins else True for _ in values]
    return planted, {"present": present}


def canary_chunk(number: int, planted: dict[str, Any], coins: dict[str, Any]) -> CanaryChunk:
    """The documents to screen, all with their secret: it is taken out after splitting, where the coin says so."""
    rows: list[Row] = []
    found: dict[str, Canary] = {}
    before, after = Planting(format=planted["format"], number=1).around
    for canary, present in zip(planted["canaries"], coins["present"], strict=True):
        for copy in range(planted["copies"]):
            name = f"{canary['id']}-{copy}"
            # One group for all copies: they are trained on together, or held out together
            rows.append(Row(len(rows) + 1, Record(name, before + canary["secret"] + after, canary["id"])))
            found[name] = Canary(canary["secret"], planted["policy"], present)
    return CanaryChunk(number, rows, found)


def hide(record: Record, secret: str) -> Record:
    """The neighbour of a record in which the secret is masked: records and borders stay, as the audit needs (guarantees §8)."""
    return record._replace(text=record.text.replace(secret, MARK))


def write_canaries(spec: str, folder: Path) -> dict[str, Any]:
    """A new folder with canaries for a corpus that is not screened here: the texts to add to it, what they are, and the coins."""
    planted, coins = plant(parse_canaries(spec))
    new_folder(folder).chmod(0o700)
    chunk = canary_chunk(0, planted, coins)
    lines = []
    for row in chunk.rows:
        canary = chunk.planted[row.record.id]
        record = row.record if canary.present else hide(row.record, canary.secret)
        lines.append(json.dumps({"id": record.id, "text": render(record.text)}, ensure_ascii=False) + "\n")
    for name, content in (("canaries.json", planted), ("coins.json", coins)):
        write_private(folder / name, json.dumps(content, indent=1) + "\n")
    write_private(folder / "canaries.jsonl", "".join(lines))
    return {
        "canaries": len(planted["canaries"]),
        "space": planted["space"],
        "texts": len(lines),
        "add": str(folder / "canaries.jsonl"),
    }
