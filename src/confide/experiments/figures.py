"""The figures of results.md: a study's results in; a chart for each model and corpus out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .numbers import COLUMNS
from .pages import table
from .results import Result, comparable, swept

if TYPE_CHECKING:
    from ..reporting.drawing import Chart


def draw_study(result: Result) -> list[Chart]:
    """The figures, if the study has any and something of it was measured: one for each model and corpus."""
    if result.study.y is None:
        return []
    groups = comparable(result.study, dict.fromkeys(name for name, _ in result.keys))
    name = result.study.name
    drawn = (
        _draw(result, name if len(groups) == 1 else f"{name}-{group}", names) for group, names in sorted(groups.items())
    )
    return [chart for chart in drawn if chart is not None]


def _draw(result: Result, file: str, names: Sequence[str]) -> Chart | None:
    """The mean over seeds of some rows, with a 95 % interval or the deviation as a bar."""
    study = result.study
    assert study.y is not None
    y = study.y
    lines = {name: points for name in names if (points := _curve(result, name))}
    if not lines:
        return None
    from ..reporting.drawing import INK, MUTED, SERIES, draw, plain_log

    places = {x for points in lines.values() for x, _, _ in points if x is not None}
    if study.sweep is not None and not study.x:
        places |= {value for _, value in result.keys if value is not None}  # those that another figure shows too
    if not places:
        return None
    xs = sorted(places)

    def paint(axes: Any) -> None:
        for number, (name, points) in enumerate(lines.items()):
            style = {
                "color": SERIES[number % len(SERIES)],
                "label": name,
                "marker": "osD^vP"[(number + number // len(SERIES)) % 6],
                "linestyle": "-" if number < len(SERIES) else "--",
            }
            known = [(x, y, error) for x, y, error in points if x is not None]
            if known:
                at, means, ends = zip(*known, strict=True)
                axes.errorbar(at, means, list(zip(*ends, strict=True)), markersize=4, capsize=2, **style)
            elif xs:  # it has no place on this axis: what it came to in the end
                axes.plot([xs[0], xs[-1]], [points[-1][1]] * 2, color=style["color"], label=name, linestyle=":")
        stars = [one for one in study.published if y in one and "value" in one]
        for one in stars:
            axes.plot([one["value"]], [one[y]], linestyle="none", marker="*", markersize=11, color=INK, zorder=5, label="published" if one is stars[0] else None)  # fmt: skip
        for check in study.checks:
            if check.kind == "chance" and check.column == y:
                axes.axhline(check.level, color=MUTED, linewidth=1, linestyle=":", label="chance")
                break
        axes.set_xlabel(COLUMNS[study.x] if study.x else swept(study))
        axes.set_ylabel(COLUMNS[y])
        if "ppl" in y:
            axes.set_yscale("log")
            plain_log(axes.yaxis)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))

    head, rows = table(result)
    return draw(file, study.title, paint, caption=study.claim, alt=f"{study.title}, {study.paper}: {', '.join(lines)}", columns=head, rows=rows, size=(9.5, 4.2))  # fmt: skip


def _curve(result: Result, name: str) -> list[tuple[float | None, float, tuple[float, float]]]:
    study = result.study
    found: list[tuple[float | None, float, tuple[float, float]]] = []
    for value in result.values(name):
        y = result.point((name, value), str(study.y))
        x = result.point((name, value), study.x) if study.x else None
        if y is not None and math.isfinite(y.mean):
            low, high = y.interval or (y.mean - y.deviation, y.mean + y.deviation)
            found.append(
                (x.mean if x is not None else None if study.x else value, y.mean, (y.mean - low, high - y.mean))
            )
    return found
