"""What a paper claims about the shape of a figure, held against what was measured: a verdict with its numbers comes out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations, pairwise

from .numbers import COLUMNS
from .results import FEWEST, Key, Point, Result, comparable, show, swept
from .study import Check, Study, jobs

UNMEASURED = "not measured yet"
VERDICTS = {True: "holds", False: "**does not hold**", None: "open"}


def holds(check: Check, result: Result) -> tuple[bool | None, str]:
    """Whether a claim about the shape holds for what was measured, and by which numbers; None if that is not known.

    Nothing is known where a planned value is missing, or where the intervals of both sides are known and overlap.
    """
    first = check.rows[0]
    points = [(value, point) for value in result.values(first) if (point := result.point((first, value), check.column))]
    if not points:
        return None, UNMEASURED
    complete = len(points) >= len(_planned(first, result))
    if check.kind in ("rises", "falls"):
        if points[0][0] == points[-1][0]:
            return None, "measured at one value only"
        said = "; ".join(_at(show(check.column, one), value) for value, one in (points[0], points[-1]))
        ends = [points[0][1], points[-1][1]]
        good = _less(*ends) if check.kind == "rises" else _less(*reversed(ends))
        planned = [value for value in _planned(first, result) if value is not None]
        complete = not planned or (points[0][0], points[-1][0]) == (min(planned), max(planned))
    elif check.kind in ("chance", "paper chance", "under"):
        limits = {value: _limit(check, result, (first, value)) for value, _ in points}
        said = "; ".join(_at(show(check.column, point), value) for value, point in points)
        said += f"; {'limit' if check.kind != 'chance' else 'chance'} {' and '.join(dict.fromkeys(f'{one:.3g}' for one in limits.values()))}"
        if check.kind == "chance" and any(point.interval is None for _, point in points):
            return None, f"{said}; no interval is known of fewer than {FEWEST} runs"
        good = all(
            (point.interval[0] if check.kind == "chance" and point.interval else point.mean) <= limits[value]
            for value, point in points
        )
    else:
        second = check.rows[1]
        others = {
            value: result.point((second, value), check.column)
            or result.point((second, None), check.column)
            or result.published(second, check.column)
            for value, _ in points
        }
        both = [(value, point, other) for value, point in points if (other := others[value]) is not None]
        if not both:
            return None, UNMEASURED
        complete = complete and len(both) == len(points)
        level = check.level if check.kind == "within" else 1.0
        said = "; ".join(
            _at(f"{show(check.column, one)} against {show(check.column, other)}", value) for value, one, other in both
        )
        if check.kind == "exceeds":
            good = all(one.mean - other.mean >= check.level for _, one, other in both)
        elif check.kind == "within":
            good = all(one.mean < level * other.mean for _, one, other in both)
        else:
            good = _all(_less(one, other) for _, one, other in both)
        if not all(math.isfinite(number) for _, one, other in both for number in (one.mean, other.mean)):
            good = None
    return (None if good and not complete else good), said


def _less(one: Point, other: Point) -> bool | None:
    """Whether a point lies below another; None if their intervals overlap."""
    if one.interval is not None and other.interval is not None:
        if one.interval[1] < other.interval[0]:
            return True
        return False if other.interval[1] < one.interval[0] else None
    return one.mean < other.mean


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _at(said: str, value: float | None) -> str:
    return said if value is None else f"{said} at {value:g}"


def _limit(check: Check, result: Result, key: Key) -> float:
    """What a row may reach: a stated level, or the upper limit of chance in a paper's own game, which each run measured for itself."""
    limit = result.point(key, f"{check.column}_chance_high") if check.kind == "paper chance" else None
    return check.level if limit is None else limit.mean


def _planned(row: str, result: Result) -> set[float | None]:
    """The values at which a row is to be measured."""
    return {one.value for one in jobs(result.study, result.scale) if one.row.name == row}


def shape(result: Result) -> list[str]:
    """Of a figure over a sweep: the order of its lines at both ends, how far each moves, and which of them cross."""
    study = result.study
    if study.sweep is None or study.y is None:
        return []
    lines: dict[str, dict[float, float]] = {}
    for name, value in result.keys:
        point = result.point((name, value), study.y)
        if value is not None and point is not None and math.isfinite(point.mean):
            lines.setdefault(name, {})[value] = point.mean
    lines = {name: points for name, points in lines.items() if len(points) > 1}
    groups = comparable(study, list(lines))
    said = [
        (f"{group}: " if len(groups) > 1 else "") + text
        for group, names in groups.items()
        if (text := _order(study, {name: lines[name] for name in names}))
    ]
    return [part for text in said for part in (text, "")]


def _order(study: Study, lines: dict[str, dict[float, float]]) -> str:
    if len(lines) < 2:
        return ""
    both = sorted(set.intersection(*(set(points) for points in lines.values())))
    said = []
    for at in (both[0], both[-1]) if len(both) > 1 else ():
        ordered = sorted(lines, key=lambda name, at=at: lines[name][at])  # type: ignore[misc]
        said.append(f"at {at:g}: {' < '.join(ordered)}")
    moves = "; ".join(
        f"{name} by {points[max(points)] - points[min(points)]:+.3g} from {min(points):g} to {max(points):g}"
        for name, points in lines.items()
    )
    crossings = [
        f"{one} and {other} between {low:g} and {high:g}"
        for one, other in combinations(lines, 2)
        for low, high in pairwise(sorted(lines[one].keys() & lines[other].keys()))
        if (lines[one][low] - lines[other][low]) * (lines[one][high] - lines[other][high]) < 0
    ]
    order = f"Order by {COLUMNS[str(study.y)]}, {swept(study)} {'; '.join(said)}. " if said else ""
    return f"{order}Lines move: {moves}. Lines cross: {'; '.join(crossings) or 'none'}."
