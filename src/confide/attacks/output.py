"""What attacks found, for a file and for people: a plain dictionary in; attacks.json, and a table in the terminal, out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..accounting.guarantees import down, up
from ..errors import BadInput, ConfideError, Contradiction
from ..screening.output import write_private
from ..terminal import inert, say
from .outside import told

FILE = "attacks.json"
PARTS = ("exposure", "membership", "extraction", "inference", "reconstruction", "audit")
Line = tuple[str, str, str, str]  # attack, measured, chance, proven ceiling


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
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["confide_attacks"] == 1 and all(isinstance(one, str) for one in found["contradictions"]):
            show_attacks(Console(quiet=True), found)
            return dict(found)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
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
        promise = (
            "no finite bound"
            if stated["epsilon"] is None
            else f"epsilon {up(stated['epsilon'])} at delta {stated['delta']:.3g}"
        )
        about = f"{stated['name']}: {promise} ({stated['adjacency']}, k={stated['k']}, unit: {stated['unit']}, {stated['sampler']} sampling)"
    say(console, f"[bold]{inert(found.get('method') or found['model'])}[/]: {inert(about)}\n")
    table = Table(
        "attack", "measured (95 %)", "chance", "proven ceiling", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for line in _lines(found):
        table.add_row(*map(inert, line))
    if table.row_count:
        console.print(table, highlight=False)
    for name, why in _left(found):
        say(console, f"[dim]{inert(name)}: {inert(why)}[/]")
    for rows in told(found.get("rows", {})):
        say(console, f"[dim]{inert(rows)}[/]")


def _lines(found: dict[str, Any]) -> Iterator[Line]:
    made = {name: part for name, part in found.items() if isinstance(part, dict) and "skipped" not in part}
    if "exposure" in made:
        yield from _exposure_lines(made["exposure"])
    if "membership" in made:
        yield from _membership_lines(made["membership"])
    if "extraction" in made:
        yield from _extraction_lines(made["extraction"])
    for name, title in (("inference", "inference"), ("reconstruction", "reconstruction")):
        if name in made:
            yield _game_line(title, made[name])
    for name, title in (("black_box", "audit"), ("white_box", "audit of the engine, by gradients")):
        part = made.get("audit", {}).get(name, {"skipped": ""})
        if "skipped" not in part:
            yield from _audit_lines(title, part)


def _exposure_lines(part: dict[str, Any]) -> Iterator[Line]:
    chance, ceiling = part["chance"], part.get("ceiling") or {}
    number = part["number"]
    copies = "" if part["copies"] == 1 else f", {part['copies']} copies each"
    copies += "" if part["way"] == "exact" else " (sampled)"
    if number > 1:
        mean = f"{part['mean']:.2f} bits{_range(part['mean_interval'], '{:.2f}')}"
        most = f"{ceiling['mean']:.2f}" if ceiling else "none"
        yield (
            f"exposure, mean of {number:,}{copies}",
            mean,
            f"{chance['mean']:.2f}{_range(chance['mean_interval'], '{:.2f}')}",
            most,
        )
    largest = f"at most {ceiling['max']:.2f} on average" if ceiling else "none"
    name = "exposure, largest" if number > 1 else f"exposure{copies}"
    yield (
        name,
        f"{part['max']:.2f} of {part['bits']:.2f} bits",
        f"{chance['max']:.2f}{_range(chance['max_interval'], '{:.2f}')}",
        largest,
    )


def _membership_lines(part: dict[str, Any]) -> Iterator[Line]:
    best, blind = part["strongest"], part["blind"]["auc"]["value"]
    yield f"membership by {best['name']}, AUC", _value(best["auc"]), f"0.5 (blind to the model: {blind:.3f})", "none"
    yield "  accuracy", _value(best["accuracy"], "{:.1%}"), "50 %", "none"
    for name, at in (("tpr_at_0.01", "1 %"), ("tpr_at_0.001", "0.1 %")):
        if best[name]["value"] is not None:
            yield f"  true positives at {at} false ones", _value(best[name], "{:.1%}"), at, "none"
    if part["group"] is not None:
        group = part["group"]
        accuracy = _value(group["attacks"][best["name"]]["accuracy"], "{:.1%}")
        yield f"membership of groups of {group['size']}, accuracy", accuracy, "50 %", "none"


def _extraction_lines(part: dict[str, Any]) -> Iterator[Line]:
    for way, title in (("without_prompt", "extraction"), ("with_prompt", "extraction, prompted")):
        if "skipped" not in part[way]:
            whole = part[way]["all"]
            mine, control = (whole["exact"][side] for side in ("training", "control"))
            yield (
                title,
                f"{mine['found']:,} of {mine['of']:,} secrets",
                f"{control['found']:,} of {control['of']:,} held-out ones",
                "none",
            )


def _game_line(title: str, part: dict[str, Any]) -> Line:
    mine, control = (part["all"]["top_1"][side] for side in ("training", "control"))
    among = f", the likeliest of {part['number']}" if "number" in part else ", the likeliest proposal"
    chance = f"{part['chance']['top_1']:.0%}; " if "chance" in part else ""
    return f"{title}{among}", _rate(mine), f"{chance}{_rate(control)} held out", "none"


def _audit_lines(title: str, part: dict[str, Any]) -> Iterator[Line]:
    measured = f"epsilon ≥ {down(part['lower_bound'])} ({part['right']:,} of {part['guesses']:,} guesses right)"
    ceiling = (
        "none"
        if part["certified"] is None
        else f"epsilon ≤ {up(part['certified'])} ({part['adjacency']}, k={part['records']})"
    )
    yield f"{title}, {part['canaries']:,} coins", measured, f"0 (could show {down(part['reach'])})", ceiling
    coins = part.get("coins")
    if coins is not None:
        most = f"{coins['ceiling']['accuracy']:.1%}" if coins["ceiling"] else "none"
        yield "  secret or mask, accuracy", _value(coins["accuracy"], "{:.1%}"), "50 %", most


def _left(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What was not done, and why; which ceilings there are none of."""
    for name, part in found.items():
        for key, one in part.items() if name in ("audit", "extraction") and "skipped" not in part else [(name, part)]:
            if isinstance(one, dict) and "skipped" in one:
                yield f"{name} ({key.replace('_', ' ')})" if key != name else name, one["skipped"]
            elif isinstance(one, dict) and one.get("no_ceiling"):
                yield f"{name}, no ceiling", one["no_ceiling"]
            elif name == "audit" and isinstance(one, dict) and not one["contradicts"]:
                yield name, one["says"]  # a contradiction is an error, and said as such


def _value(estimate: dict[str, Any], form: str = "{:.3f}") -> str:
    return form.format(estimate["value"]) + _range([estimate["low"], estimate["high"]], form)


def _range(limits: Any, form: str) -> str:
    return "" if limits is None or None in limits else f" ({form.format(limits[0])} to {form.format(limits[1])})"


def _rate(one: dict[str, Any]) -> str:
    if one["rate"] is None:
        return "none"
    return f"{one['rate']:.1%}{_range(one['interval'], '{:.1%}')}"
