"""Attacks in lines: what attacks.json holds in; a line for each attack beside chance and ceiling, and the strongest of them, out.

A part whose shape is not the expected one (another confide wrote it) becomes a remark, never an error. In reports,
`certified` is that of the verified certificate (`verdict.held_against`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..accounting.guarantees import down
from ..errors import UNREADABLE
from ..wording import between, epsilon, number, rounded_up, share, share_up

AUDITS = (("black_box", "the model"), ("white_box", "the engine that made it"))
NOT_READ = "cannot be read, since another confide wrote it; run confide attack again"


class Attack(NamedTuple):
    """An attack with one number: what it reached, what chance reaches, and what it cannot exceed.

    `what` is the same in every run, so that runs line up; `detail` is of this one: which attack was best, how many secrets.
    """

    what: str
    detail: str
    measured: str
    interval: str
    chance: str
    ceiling: str
    advantage: float | None = None  # 0: chance, 1: everything; None: does not compete for the strongest
    chance_interval: str = ""

    @property
    def name(self) -> str:
        return f"{self.what} ({self.detail})" if self.detail else self.what

    @property
    def reached(self) -> str:
        return f"{self.measured} ({self.interval})" if self.interval else self.measured

    @property
    def expected(self) -> str:
        return f"{self.chance} ({self.chance_interval})" if self.chance_interval else self.chance


def lines(attacks: Mapping[str, Any] | None) -> tuple[list[Attack], list[tuple[str, str]]]:
    """A line for each attack, and what was not done and why."""
    rows: list[Attack] = []
    left: list[tuple[str, str]] = []
    for name, part in (attacks or {}).items():
        if name in _LINES:
            try:
                made = [] if "skipped" in part else list(_LINES[name](part))
                rows += made
                left += _left(name, part)
            except UNREADABLE:
                left.append((name, NOT_READ))
    return rows, left


def strongest(attacks: Mapping[str, Any] | None) -> Attack | None:
    """The attack that is furthest above chance, on its own scale from 0 (chance) to 1 (knows everything)."""
    competing = [(one.advantage, one) for one in lines(attacks)[0] if one.advantage is not None]
    return max(competing, key=lambda pair: pair[0], default=(0.0, None))[1]


def audits(attacks: Mapping[str, Any] | None) -> list[tuple[str, dict[str, Any]]]:
    """The audits that were made, each with what was audited."""
    parts = (attacks or {}).get("audit", {})
    found: list[tuple[str, dict[str, Any]]] = []
    for name, what in AUDITS:
        with suppress(*UNREADABLE):
            part = parts[name]
            if not all(isinstance(part[of], (int, float)) for of in ("lower_bound", "reach", "confidence")):
                continue
            found.append((what, {"certified": None, **part}))
    return found


def _exposure(part: Mapping[str, Any]) -> Iterator[Attack]:
    several, ceiling, bits = part["number"] > 1, part.get("ceiling"), part["bits"]
    copies = "" if part.get("copies", 1) == 1 else f", {part['copies']} copies each"
    sampled = "" if part.get("way", "exact") == "exact" else ", sampled"
    planted = f"{part['number']:,} planted secret{'s' if several else ''}{copies}{sampled}"
    for key in ("mean", "max") if several else ("max",):
        value, chance = part[key], part["chance"][key]
        most = f"{rounded_up(ceiling[key])} bits{' on average' if key == 'max' else ''}" if ceiling else _none(part)
        limits = part["mean_interval"] if key == "mean" and part["mean_interval"] else (None, None)
        competes = key == "mean" or not several  # the largest of many is above the chance of one
        yield Attack(
            f"exposure of planted secrets, {'mean' if key == 'mean' else 'largest'}",
            planted,
            f"{number(value)} of {number(bits)} bits",
            between(limits[0], limits[1]),
            f"{number(chance)} bits",
            most,
            (value - chance) / max(1e-9, bits - chance) if competes else None,
            between(*(part["chance"].get(f"{key}_interval") or (None, None))),
        )


def _membership(part: Mapping[str, Any]) -> Iterator[Attack]:
    best, blind = part["strongest"], part["blind"]["auc"]["value"]
    of, by, none = "membership of real records", f"best attack: {best['name']}", _none(part)
    limits = between(best["auc"]["low"], best["auc"]["high"])
    without = f"{by}; without the model: {number(blind, 3)}"
    yield Attack(f"{of}, AUC", without, number(best["auc"]["value"], 3), limits, "0.5", none)
    yield _accuracy(of, by, best["accuracy"], none)
    for key, at in (("tpr_at_0.01", "1 %"), ("tpr_at_0.001", "0.1 %")):
        if best[key]["value"] is not None:
            limits = between(best[key]["low"], best[key]["high"], share)
            yield Attack(f"{of}, found at {at} false alarms", by, share(best[key]["value"]), limits, at, none)
    group = part.get("group")
    if group is not None:
        found = group["attacks"][best["name"]]["accuracy"]
        yield _accuracy("membership of groups", f"of {group['size']}; {by}", found, none)._replace(advantage=None)


def _extraction(part: Mapping[str, Any]) -> Iterator[Attack]:
    for way, title in (("without_prompt", "secrets written unasked"), ("with_prompt", "secrets written when prompted")):
        if "skipped" not in part.get(way, {"skipped": ""}):
            mine, control = (part[way]["all"]["exact"][side] for side in ("training", "control"))
            limits = between(mine["interval"][0], mine["interval"][1], share)
            beside = f"{control['found']:,} of {control['of']:,} held out"
            gained = (mine["rate"] or 0.0) - (control["rate"] or 0.0)
            yield Attack(title, "", f"{mine['found']:,} of {mine['of']:,}", limits, beside, "none applies", gained)


def _inference(part: Mapping[str, Any]) -> Iterator[Attack]:
    yield from _game("secret picked among candidates", f"{part['number']} of them", part)


def _reconstruction(part: Mapping[str, Any]) -> Iterator[Attack]:
    yield from _game("secret is the likeliest proposal", "", part)


def _game(title: str, detail: str, part: Mapping[str, Any]) -> Iterator[Attack]:
    mine, control = (part["all"]["top_1"][side] for side in ("training", "control"))
    if mine["rate"] is not None and control["rate"] is not None:
        gained = (mine["rate"] - control["rate"]) / max(1e-9, 1 - control["rate"])
        limits = between(mine["interval"][0], mine["interval"][1], share)
        beside = f"{share(control['rate'])} held out"
        control_limits = between(control["interval"][0], control["interval"][1], share)
        yield Attack(title, detail, share(mine["rate"]), limits, beside, "none applies", gained, control_limits)


def _audit(part: Mapping[str, Any]) -> Iterator[Attack]:
    for what, one in audits({"audit": part}):
        measured = f"ε ≥ {down(one['lower_bound'])} ({one['right']:,} of {one['guesses']:,} guesses right)"
        changed = ", ".join([*filter(None, [one.get("adjacency")]), f"k={one.get('records', 1)}"])
        most = "none applies" if one["certified"] is None else f"ε ≤ {epsilon(one['certified'])} ({changed})"
        reach = f"0 (could show {down(one['reach'])})"
        yield Attack(f"audit of {what}", f"{one['canaries']:,} coins", measured, "", reach, most)
        coins = one.get("coins")
        if coins and coins["accuracy"]["value"] is not None:
            most = share_up(coins["ceiling"]["accuracy"]) if coins["ceiling"] else _none(coins)
            yield _accuracy(f"secret or mask, guessed from {what}", "", coins["accuracy"], most)


def _accuracy(what: str, detail: str, found: Mapping[str, Any], ceiling: str) -> Attack:
    limits = between(found["low"], found["high"], share)
    return Attack(
        f"{what}, accuracy", detail, share(found["value"]), limits, "50 %", ceiling, 2 * (found["value"] - 0.5)
    )


def _left(name: str, part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was not done, and why; what an audit says."""
    if "skipped" in part:
        yield name, str(part["skipped"])
    for key, one in part.items():
        if isinstance(one, dict) and "skipped" in one:
            yield f"{name} ({key.replace('_', ' ')})", str(one["skipped"])
        elif name == "audit" and isinstance(one, dict) and one.get("says"):
            yield f"{name} of {dict(AUDITS).get(key, key)}", str(one["says"])


def _none(part: Mapping[str, Any]) -> str:
    why = str(part.get("no_ceiling") or "").removeprefix("no ceiling applies: ")
    return f"none applies: {why}" if why else "none applies"


_LINES = {
    "exposure": _exposure,
    "membership": _membership,
    "extraction": _extraction,
    "inference": _inference,
    "reconstruction": _reconstruction,
    "audit": _audit,
}
PARTS = tuple(_LINES)  # of attacks.json, in their order
