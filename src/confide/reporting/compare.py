"""Several runs on one page: their data in; the privacy–utility plane, and tables of promises and attacks, out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..accounting.guarantees import down
from ..attacks.lines import Attack, audits, lines, strongest
from ..wording import SELECTIVE, epsilon, number, share, utility
from .drawing import SERIES, Chart, draw, plain_log
from .gather import Found, differing

MARKERS = "osD^vPX*"


def compare(runs: Sequence[Found], whole: Sequence[Found]) -> dict[str, Any]:
    """What the comparison's template shows of `runs`; whether they compare is read from them as they are (`whole`)."""
    return {
        "runs": runs,
        "broken": [one for one in runs if one.verdict.kind == "broken"],
        "plane": _plane(runs),
        "table": [_row(one) for one in runs],
        "attacks": _attack_table(runs),
        "selective": SELECTIVE if {one.method == "sdp" for one in runs if one.main} == {True, False} else "",
        "same_corpus": len({one.digest for one in whole}) == 1,
        "differ": [(one.name, differ) for one in whole[1:] if (differ := differing(whole[0], one))],
        "deltas": len({one.main["delta"] for one in runs if one.main is not None}),
        "uncovered": [one for one in runs if not one.holds],
    }


def _row(one: Found) -> dict[str, Any]:
    best, made = strongest(one.attacks), audits(one.attacks)
    withheld = "withheld" if one.shareable and not one.holds else ""
    return {
        "run": one,
        "epsilon": "none" if one.main is None else epsilon(one.main["epsilon"]),
        "main": one.main,
        "utility": utility(one.utility),
        "accuracy": share(one.utility["accuracy"]) if one.utility else "–",
        "attack": best,
        "unattacked": withheld or ("none on planted secrets" if one.shareable and one.attacks else "not attacked"),
        "audit": f"≥ {down(made[0][1]['lower_bound'])}" if made else withheld or "not audited",
    }


def _attack_table(runs: Sequence[Found]) -> list[tuple[str, str, list[Attack | None]]]:
    """For each attack its chance level (empty if it is another one in each run), and a line of each run."""
    columns = [{row.what: row for row in lines(one.attacks)[0]} for one in runs]
    table = []
    for what in dict.fromkeys(name for column in columns for name in column):
        cells = [column.get(what) for column in columns]
        chances = {cell.chance for cell in cells if cell is not None}
        table.append((what, chances.pop() if len(chances) == 1 else "", cells))
    return table


def _plane(runs: Sequence[Found]) -> Chart | None:
    """Utility by ε; runs that promise nothing stand in a strip of their own, which is on no scale."""
    measured = [one for one in runs if one.utility is not None]
    causal = all(one.utility["perplexity"] is not None for one in measured if one.utility)
    key, label = ("perplexity", "perplexity, lower is better") if causal else ("accuracy", "accuracy, higher is better")
    points = [(one, one.main["epsilon"] if one.main else None, (one.utility or {})[key]) for one in measured]
    points = [point for point in points if point[2] is not None]
    if not points:
        return None
    finite = [value for _, value, _ in points if value is not None]
    heights = [height for _, _, height in points]
    without = [one for one, value, _ in points if value is None]

    def paint(axes: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        end = 1.12 * max(finite, default=1.0)  # of the scale; the strip is from 1.04 to 1.24 of it
        places = {id(one): end * (1.04 + 0.2 * (n + 0.5) / len(without)) for n, one in enumerate(without)}
        for n, (one, value, height) in enumerate(points):
            axes.plot([places[id(one)] if value is None else value], [height], MARKERS[n % 8], color=SERIES[n % 6], markersize=8,
                      markerfacecolor="none" if value is None else SERIES[n % 6], label=f"{one.name} ({one.method})", linestyle="none")  # fmt: skip
        if causal and max(heights) > 8 * min(heights):
            axes.set_yscale("log")
            plain_log(axes.yaxis)
        ticks = [tick for tick in MaxNLocator(6).tick_values(0, end) if tick <= end] if finite else []
        names = [f"{tick:g}" for tick in ticks]
        if without:
            axes.axvspan(end * 1.04, end * 1.24, alpha=0.15, color=SERIES[1], linewidth=0)
            ticks, names = [*ticks, end * 1.14], [*names, "no promise"]
        axes.set_xticks(ticks, names)
        axes.spines["bottom"].set_bounds(0, end)  # the axis ends before the strip
        axes.set_xlim(0, end * (1.26 if without else 1.0))
        axes.margins(y=0.25)
        axes.set_xlabel("ε, smaller is stronger")
        axes.set_ylabel(label)
        axes.legend()

    rows = [
        (one.name, one.method, "none" if value is None else _conditional(one, value), number(height, 3))
        for one, value, height in points
    ]
    told = "; ".join(f"{row[0]}: epsilon {row[2]}, {key} {row[3]}" for row in rows)
    return draw(
        "plane", "Privacy and utility", paint, alt=f"Scatter chart of {key} by epsilon. {told}.", columns=("run", "method", "epsilon", key), rows=rows,
        caption="Filled marks have a certificate that holds; hollow ones promise nothing, and stand in a strip that is on no scale.", size=(5.6, 3.7),
    )  # fmt: skip


def _conditional(one: Found, value: float) -> str:
    return f"{epsilon(value)}, {one.condition}" if one.condition else epsilon(value)
