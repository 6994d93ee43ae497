"""Charts of attacks: what attacks.json holds in; exposure against chance, and ROC curves under their ceilings, out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import UNREADABLE
from ..wording import number, share, share_up
from .drawing import BLUE, GREEN, INK, MUTED, ORANGE, RED, SERIES, Chart, draw

ROC_ROWS = 12
LEAST_RATE = 1e-3


def attack_charts(attacks: dict[str, Any]) -> Iterator[Chart]:
    """The charts that the attacks have data for; a part that another confide wrote differently has none."""
    audit = attacks.get("audit", {}).get("black_box") or {}
    for chart, part, key in (
        (_exposure, attacks.get("exposure"), "canaries"),
        (_coins, audit.get("coins"), "roc"),
        (_membership, attacks.get("membership"), "attacks"),
    ):
        if isinstance(part, dict) and part.get(key):
            with suppress(*UNREADABLE):
                yield chart(part)


def _exposure(part: dict[str, Any]) -> Chart:
    bits, values = float(part["bits"]), [float(one["exposure"]) for one in part["canaries"]]
    control = [float(one["exposure"]) for one in (part.get("control") or {}).get("canaries", [])]
    edges = np.arange(0, math.ceil(bits) + 1)

    def paint(axes: Any) -> None:
        if len(values) == 1:
            axes.axvline(values[0], color=BLUE, linewidth=3, label="the planted secret")
        else:
            axes.hist(
                values, bins=edges, density=True, color=BLUE, alpha=0.55, label=f"{len(values):,} planted secrets"
            )
        if len(control) > 1:
            axes.hist(control, bins=edges, density=True, histtype="step", color=GREEN, linewidth=1.8,
                      label=f"{len(control):,} that a coin took out")  # fmt: skip
        grid = np.linspace(0, bits, 200)
        axes.plot(grid, math.log(2) * 2.0**-grid, "--", color=INK, label="chance")
        if part.get("ceiling"):
            axes.axvline(part["ceiling"]["mean"], color=RED, linestyle="-.", label="ceiling of the mean")
        axes.set_xlim(0, bits * 1.02)
        axes.set_xlabel("exposure in bits")
        axes.set_ylabel("density")
        axes.legend()

    counted = np.histogram(values, bins=edges)[0]
    rows = [(f"{low} to {low + 1}", int(count), number(len(values) * (2.0**-low - 2.0 ** -(low + 1)), 1))
            for low, count in zip(edges, counted, strict=False)]  # fmt: skip
    alt = f"Histogram: exposure of {len(values):,} planted secrets, mean {number(part['mean'])} of {number(bits)} bits; chance gives "
    return draw(
        "exposure", "Exposure of planted secrets", paint, alt=alt + f"{number(part['chance']['mean'])}.",
        columns=("bits", "planted secrets", "expected by chance"), rows=rows,
        caption=f"How far up a planted secret ranks among {part['space']:,} candidates: {number(bits)} bits is rank 1. Each stands in "
        f"{part['copies']} record{'s' if part['copies'] != 1 else ''}.",
    )  # fmt: skip


def _coins(coins: dict[str, Any]) -> Chart:
    curve = (coins.get("ceiling") or {}).get("curve", [])

    def paint(axes: Any) -> None:
        if curve:
            xs, ys = [one["fpr"] for one in curve], [one["tpr_at_most"] for one in curve]
            forbidden(axes, xs, ys, "impossible, if the certificate holds")
        _roc(axes, [("secret or mask", coins["roc"])])

    rows = _roc_rows({"secret or mask": coins["roc"]})
    alt = f"ROC on log axes: secrets against masks, area {number(coins['auc']['value'], 3)}"
    alt += (
        f"; the ceiling of the accuracy is {share_up(coins['ceiling']['accuracy'])}."
        if coins.get("ceiling")
        else "; no ceiling applies."
    )
    return draw(
        "coins", "Secret or mask? Guessed from the model", paint, alt=alt, columns=("attack", "false alarms", "found"), rows=rows,
        size=(5.6, 3.9), caption="Planted secrets, each present or masked by a fair coin: the one game in which the certificate bounds every attack"
        + (f" ({coins['ceiling']['about']})." if coins.get("ceiling") else f"; here it bounds none: {coins.get('no_ceiling', '')}."),
    )  # fmt: skip


def _membership(part: dict[str, Any]) -> Chart:
    roc = {str(name): one["roc"] for name, one in part["attacks"].items()}
    if part.get("blind", {}).get("roc"):
        roc["blind to the model"] = part["blind"]["roc"]
    best = part["strongest"]
    return draw(
        "membership", "Membership of real records", lambda axes: _roc(axes, list(roc.items())), size=(5.6, 3.9), rows=_roc_rows(roc),
        alt=f"ROC on log axes: the best membership attack, {best['name']}, has area {number(best['auc']['value'], 3)}; guessing has 0.5.",
        columns=("attack", "false alarms", "found"),
        caption=f"Private records that were trained on ({part['members']:,}) against held-out ones ({part['others']:,}). No ceiling applies: "
        "which were held out was no coin. A test that never sees the model is drawn beside the attacks.",
    )  # fmt: skip


def _roc(axes: Any, named: Sequence[tuple[str, Sequence[Sequence[float]]]]) -> None:
    styles = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
    for n, (name, points) in enumerate(named):
        shown = [(max(x, LEAST_RATE), y) for x, y in points if y > 0]
        axes.plot([x for x, _ in shown], [max(y, LEAST_RATE) for _, y in shown], linestyle=styles[n % 6], color=SERIES[n % 6],
                  drawstyle="steps-post", label=name)  # fmt: skip
    axes.plot([LEAST_RATE, 1], [LEAST_RATE, 1], linestyle="--", color=MUTED, linewidth=1.2, label="guessing")
    axes.set_xscale("log")
    axes.set_yscale("log")
    rates(axes, LEAST_RATE, "found")


def forbidden(axes: Any, xs: Sequence[float], ys: Sequence[float], label: str) -> None:
    """Shade what lies above a rising ceiling that is known at some points. Steps to the next point: nothing allowed is shaded."""
    axes.fill_between(xs, ys, 1, step="pre", color=ORANGE, alpha=0.25, linewidth=0, label=label)
    axes.plot(xs, ys, drawstyle="steps-pre", color=RED, linewidth=1.5)


def rates(axes: Any, least: float, found: str) -> None:
    """False alarms against what was `found`, in per cent from `least` on."""
    from matplotlib.ticker import NullLocator

    axes.set_xlim(least, 1)
    axes.set_ylim(least, 1)
    axes.set_xlabel("false alarms")
    axes.set_ylabel(found)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        axis.set_minor_locator(NullLocator())
    axes.legend(loc="lower right")


def _roc_rows(named: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (name, share(point[0], 2), share(point[1], 2))
        for name, points in named.items()
        for point in points[:: max(1, len(points) // ROC_ROWS)]
    ]
