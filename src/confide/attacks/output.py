"""What attacks found, for a file and for people: a plain dictionary in; attacks.json, and a table in the terminal, out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..errors import UNREADABLE, BadInput, ConfideError, Contradiction
from ..rundir import read_file, write_private
from ..terminal import inert, say
from ..wording import epsilon
from .lines import NOT_READ, lines
from .outside import told

FILE = "attacks.json"


def write_attacks(path: Path, found: dict[str, Any]) -> None:
    """Write for the owner only, whole or not at all. It holds no secret, but counts of real ones."""
    try:
        write_private(path, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise ConfideError(
            f"cannot write {path}: {error.strerror}; make room or make it writable, and attack again"
        ) from None


def read_attacks(path: Path) -> dict[str, Any]:
    """What a file holds, if all of it can be shown."""
    try:
        found = json.loads(read_file(path))
        known = found["confide_attacks"] == 1 and all(isinstance(one, str) for one in found["contradictions"])
        if known and not any(why == NOT_READ for _, why in lines(found)[1]):
            show_attacks(Console(quiet=True), found)
            return dict(found)
    except (OSError, *UNREADABLE, RecursionError):
        pass
    raise BadInput(f"{path} is damaged; remove it and attack again")


def undone(part: dict[str, Any]) -> str | None:
    """Why an attack could not be made; None if it was, or any of its ways."""
    if "skipped" in part:
        return str(part["skipped"])
    ways = [one for one in part.values() if isinstance(one, dict)]
    if set(part) <= {"black_box", "white_box", "with_prompt", "without_prompt"} and all(
        "skipped" in one for one in ways
    ):
        return str(ways[0]["skipped"])
    return None


def refuse_contradicted(found: dict[str, Any]) -> None:
    """Raise `Contradiction` if an attack has shown that the certificate does not hold."""
    if found["contradictions"]:
        raise Contradiction(found["contradictions"][0], found)


def show_attacks(console: Console, found: dict[str, Any]) -> None:
    """A line for each attack: measured, beside what chance gives and what the certificate allows."""
    stated = found["certificate"]
    about = "no certificate, so that nothing is promised and nothing can be contradicted"
    if "claim" in found:
        claim = found["claim"]
        about = (
            f"claimed: epsilon {claim['epsilon']:g} at delta {claim['delta']:g} for one record ({claim['adjacency']})"
        )
    if stated is not None:
        promise = epsilon(stated["epsilon"])
        if stated["epsilon"] is not None:
            promise = f"epsilon {promise} at delta {stated['delta']:.3g}"
        about = f"{stated['name']}: {promise} ({stated['adjacency']}, k={stated['k']}, unit: {stated['unit']}, {stated['sampler']} sampling)"
    say(console, f"[bold]{inert(found.get('method') or found['model'])}[/]: {inert(about)}\n")
    rows, left = lines(found)
    table = Table("attack", "measured", "chance", "proven ceiling", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for one in rows:
        table.add_row(*map(inert, (one.name, one.reached, one.expected, one.ceiling)))
    if rows:
        console.print(table, highlight=False)
    for name, why in left:
        if why not in found["contradictions"]:  # they are errors, and said as such
            say(console, f"[dim]{inert(name)}: {inert(why)}[/]")
    for one_side in told(found.get("rows", {})):
        say(console, f"[dim]{inert(one_side)}[/]")
