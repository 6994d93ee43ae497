"""What a paper claims about the shape of a figure, held against what was measured: a verdict with its numbers comes out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations, pairwise

from .numbers import BOUNDS, COLUMNS
from .results import FEWEST, Key, Point, Result, comparable, show, swept
from .study import Check, Study, jobs

UNMEASURED = "not measured yet"
VERDICTS = {True: "holds", False: "**does not hold**", None: "open"}
UNKNOWN = (
    0.025  # a number of fewer than `FEWEST` runs that has no interval of its own is taken as known to this share of it
)


def holds(check: Check, result: Result) -> tuple[bool | None, str]:
    """Whether a claim about the shape holds for what was measured, and by which numbers; None if that is not known.

    Nothing is known where a planned value is missing, or where what both sides may be overlaps.
    """
    first = check.rows[0]
    points = [(value, point) for value in result.values(first) if (point := result.point((first, value), check.column))]
    if not points:
        return None, UNMEASURED
    planned = {one.value for one in jobs(result.study, result.scale) if one.row.name == first}
    complete = len(points) >= len(planned)
    said = "; ".join(_at(show(check.column, point), value) for value, point in points)
    if check.kind in ("rises", "falls"):
        if points[0][0] == points[-1][0]:
            return None, "measured at one value only"
        said = "; ".join(_at(show(check.column, one), value) for value, one in (points[0], points[-1]))
        ends = [_reach(points[0][1], check.column), _reach(points[-1][1], check.column)]
        good = _less(*ends) if check.kind == "rises" else _less(*reversed(ends))
        values = [value for value in planned if value is not None]
        complete = not values or (points[0][0], points[-1][0]) == (min(values), max(values))
    elif check.kind == "over":
        value, point = points[-1]
        said = f"{_at(show(check.column, point), value)}; {check.level:.3g} is to be exceeded"
        good = _less((check.level, check.level), _reach(point, check.column))
        values = [value for value in planned if value is not None]
        complete = not values or value == max(values)
    elif check.kind == "under":
        said += f"; limit {check.level:.3g}"
        good = _all(_less(_reach(point, check.column), (check.level, check.level)) for _, point in points)
    elif check.kind in ("chance", "paper chance"):
        limits = {value: _limit(check, result, (first, value)) for value, _ in points}
        known = " and ".join(dict.fromkeys(f"{one:.3g}" for one in limits.values()))
        said += f"; {f'chance {known}, to {check.margin:g}' if check.kind == 'chance' else f'limit {known}'}"
        if check.kind == "chance" and any(point.interval is None for _, point in points):
            return None, f"{said}; no interval is known of fewer than {FEWEST} runs"
        good = _all(_at_chance(_reach(point, check.column), limits[value], check.margin) for value, point in points)
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
        said = "; ".join(
            _at(f"{show(check.column, one)} against {show(check.column, other)}", value) for value, one, other in both
        )
        pairs = [(_reach(one, check.column), _reach(other, check.column)) for _, one, other in both]
        if check.kind == "exceeds":
            good = _all(_less((other[0] + check.level, other[1] + check.level), one) for one, other in pairs)
        elif check.kind == "within":
            good = _all(_less(one, (other[0] * check.level, other[1] * check.level)) for one, other in pairs)
        else:
            good = _all(_less(one, other) for one, other in pairs)
        if not all(math.isfinite(number) for _, one, other in both for number in (one.mean, other.mean)):
            good = None
    return (None if good and not complete else good), said


def _reach(point: Point, column: str) -> tuple[float, float]:
    """From where to where a number may lie: its interval; nothing but itself, if it is computed or published."""
    if point.interval is not None:
        return point.interval
    share = 0.0 if column in BOUNDS or point.number == 0 else UNKNOWN
    return point.mean * (1 - share), point.mean * (1 + share)


def _less(one: tuple[float, float], other: tuple[float, float]) -> bool | None:
    """Whether one range lies below another; None if they overlap."""
    if one[1] < other[0]:
        return True
    return False if other[1] < one[0] else None


def _at_chance(reach: tuple[float, float], limit: float, margin: float) -> bool | None:
    """Not above chance, and known to be near it; None if only the former."""
    if reach[0] > limit:
        return False
    return True if reach[1] <= limit + margin else None


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _at(said: str, value: float | None) -> str:
    return said if value is None else f"{said} at {value:g}"


def _limit(check: Check, result: Result, key: Key) -> float:
    """What a row may reach: a stated level, or the upper limit of chance in a paper's own game, which each run measured for itself."""
    limit = result.point(key, f"{check.column}_chance_high") if check.kind == "paper chance" else None
    return check.level if limit is None else limit.mean


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
