"""Several runs on one page: their data in; the privacy–utility plane, and tables of promises and attacks, out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .attack_lines import audits, lines, strongest
from .drawing import SERIES, Chart, draw
from .figures import plain_log
from .gather import Found
from .wording import SELECTIVE, epsilon, number, rounded_down, share, utility

MARKERS = "osD^vPX*"


def compare(runs: Sequence[Found]) -> dict[str, Any]:
    """What the comparison's template shows."""
    corpora = {one.digest for one in runs if one.digest}
    return {
        "runs": runs,
        "broken": [one for one in runs if one.verdict.kind == "broken"],
        "plane": _plane(runs),
        "table": [_row(one) for one in runs],
        "attacks": _attack_table(runs),
        "selective": SELECTIVE if {one.method == "sdp" for one in runs if one.certificate} == {True, False} else "",
        "same_corpus": len(corpora) < 2,
        "same_validation": len(
            {str(one.options.get("validation")) + str(one.options.get("validate_on")) for one in runs}
        )
        == 1,
        "deltas": len({one.main["delta"] for one in runs if one.main is not None}),
        "unprotected": [one for one in runs if one.certificate is None],
    }


def _row(one: Found) -> dict[str, Any]:
    best, made = strongest(one.attacks), audits(one.attacks)
    return {
        "run": one,
        "epsilon": "none" if one.main is None else epsilon(one.main["epsilon"]),
        "main": one.main,
        "condition": one.main is not None and one.main["name"] in ("caught-secret", "bayesian"),
        "utility": utility(one.utility),
        "accuracy": share(one.utility["accuracy"]) if one.utility else "–",
        "attack": best,
        "audit": f"≥ {rounded_down(made[0][1]['lower_bound'])}" if made else "not audited",
    }


def _attack_table(runs: Sequence[Found]) -> dict[str, list[tuple[str, str] | None]]:
    """For each attack, what it measured and its ceiling, a column for each run."""
    columns = [
        {
            row.name: (f"{row.measured}{f' ({row.interval})' if row.interval else ''}", row.ceiling)
            for row in lines(one.attacks)[0]
        }
        for one in runs
    ]
    names = list(dict.fromkeys(name for column in columns for name in column))
    return {name: [column.get(name) for column in columns] for name in names}


def _plane(runs: Sequence[Found]) -> Chart | None:
    """Utility by ε; runs that promise nothing stand at the right edge."""
    measured = [one for one in runs if one.utility is not None]
    causal = all(one.utility["perplexity"] is not None for one in measured if one.utility)
    key, label = ("perplexity", "perplexity, lower is better") if causal else ("accuracy", "accuracy, higher is better")
    points = [(one, one.main["epsilon"] if one.main else None, (one.utility or {})[key]) for one in measured]
    points = [point for point in points if point[2] is not None]
    if not points:
        return None
    finite = [value for _, value, _ in points if value is not None]
    edge = (max(finite) if finite else 1.0) * 1.35

    heights = [height for _, _, height in points]
    without = [one for one, value, _ in points if value is None]
    beside = {id(one): edge * (1 + 0.08 * ((n + 0.5) / len(without) - 0.5)) for n, one in enumerate(without)}

    def paint(axes: Any) -> None:
        for n, (one, value, height) in enumerate(points):
            axes.plot([beside[id(one)] if value is None else value], [height], MARKERS[n % 8], color=SERIES[n % 6], markersize=8,
                      markerfacecolor="none" if value is None else SERIES[n % 6], label=f"{one.name} ({one.method})", linestyle="none")  # fmt: skip
        if any(value is None for _, value, _ in points):
            axes.axvspan(edge * 0.94, edge * 1.06, alpha=0.12, color=SERIES[1], linewidth=0)
            axes.text(
                edge, 1.01, "no promise", ha="center", va="bottom", transform=axes.get_xaxis_transform(), fontsize=8.5
            )
        if causal and max(heights) > 8 * min(heights):
            axes.set_yscale("log")
            plain_log(axes.yaxis)
        axes.set_xlim(0, edge * 1.08)
        axes.margins(y=0.25)
        axes.set_xlabel("ε, smaller is stronger")
        axes.set_ylabel(label)
        axes.legend()

    rows = [
        (one.name, one.method, "none" if value is None else epsilon(value), number(height, 3))
        for one, value, height in points
    ]
    told = "; ".join(f"{row[0]}: epsilon {row[2]}, {key} {row[3]}" for row in rows)
    return draw(
        "plane", "Privacy and utility", paint, alt=f"Scatter chart of {key} by epsilon. {told}.", columns=("run", "method", "epsilon", key), rows=rows,
        caption="Filled marks have a certificate; hollow ones promise nothing, and stand at the right edge.", size=(5.6, 3.7),
    )  # fmt: skip
