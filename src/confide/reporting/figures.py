"""The charts of a report: a run's data in; the drawings for which there are data out, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..accounting.guarantees import many
from ..wording import epsilon, number, share, share_up, small
from .attack_figures import attack_charts, forbidden, rates
from .drawing import BLUE, GREEN, INK, MUTED, ORANGE, RED, Chart, draw, plain_log
from .flow import flow
from .gather import Found

MOST_BARS = 25


def charts(found: Found, others: Sequence[Found] = ()) -> dict[str, Chart]:
    """Every chart that this run has data for; `others` are runs to compare its utility with."""
    return {one.name: one for one in _all(found, others)}


def _all(found: Found, others: Sequence[Found]) -> Iterator[Chart]:
    if found.manifest is not None:
        if found.manifest.get("findings"):
            yield _findings(found.manifest["findings"])
        yield flow(found.manifest)
    if found.review is not None and found.review.get("types"):
        yield _missrates(found.review)
    if found.curves:
        yield _privacy_curve(found)
    if found.ceiling:
        yield _trade_off(found)
    spent = [one for one in found.validations if one["epsilon"] is not None]
    if spent:
        yield _over_training(spent)
    if found.utility is not None and found.utility["perplexity"] is not None:
        yield _utility(
            found, [one for one in others if one.utility is not None and one.utility["perplexity"] is not None]
        )
    if found.certificate is not None and found.holds:
        groups = [
            one for one in found.certificate["guarantees"] if one["name"] == "group" and one["epsilon"] is not None
        ]
        if len(groups) > 1:
            yield _groups(groups)
    yield from attack_charts(found.attacks or {})


def _findings(findings: dict[str, int]) -> Chart:
    ordered = sorted(findings.items(), key=lambda pair: pair[1])
    shown = ordered[-MOST_BARS:]

    def paint(axes: Any) -> None:
        bars = axes.barh([str(kind) for kind, _ in shown], [count for _, count in shown], color=BLUE, height=0.65)
        axes.bar_label(bars, labels=[f"{count:,}" for _, count in shown], padding=3)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("secrets found")
        axes.margins(x=0.2)

    total = sum(findings.values())
    rows = [(kind, f"{count:,}", share(count / total if total else None)) for kind, count in reversed(ordered)]
    alt = f"Bar chart: {total:,} secrets found, of {len(findings)} types; most often {shown[-1][0]}, {shown[-1][1]:,} times."
    return draw(
        "findings", "Where the secrets were", paint, alt=alt, columns=("type", "found", "share"), rows=rows,
        caption=f"What the policy found and redacted, by type{_part(shown, ordered)}.", size=(5.6, 1.0 + 0.32 * len(shown)),
    )  # fmt: skip


def _missrates(review: dict[str, Any]) -> Chart:
    """Types of which no secret was seen have no rate to draw, but stay in the table: nothing is known about them."""
    kinds = sorted((str(kind), one) for kind, one in review["types"].items())
    seen = [(kind, one) for kind, one in kinds if one["secrets"]]
    shown = sorted(sorted(seen, key=lambda pair: -pair[1]["secrets"])[:MOST_BARS], reverse=True)
    rates_seen = [one["missed"] / one["secrets"] for _, one in shown]
    bounds = [min(1.0, float(one["bound"])) for _, one in shown]
    confidence = float(review["confidence"])

    def paint(axes: Any) -> None:
        places = np.arange(len(shown))
        axes.hlines(places, rates_seen, bounds, color=BLUE, linewidth=5, alpha=0.35)
        axes.plot(rates_seen, places, "o", color=BLUE, label="missed in the sample", clip_on=False, zorder=5)
        axes.plot(bounds, places, "|", color=RED, markersize=14, markeredgewidth=2.5, label="upper bound")
        axes.set_yticks(places, [kind for kind, _ in shown])
        axes.set_xlim(0, 1.02 if max(bounds, default=1) > 0.5 else max(bounds) * 1.15)
        axes.set_ylim(-0.7, max(1, len(shown)) - 0.3)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        axes.set_xlabel("share of secrets that the policy misses")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    rows = [
        (kind, f"{one['secrets']:,}", f"{one['missed']:,}",
         share(one["missed"] / one["secrets"]) if one["secrets"] else "none seen", share_up(min(1.0, one["bound"])))
        for kind, one in kinds
    ]  # fmt: skip
    alt = f"Dot chart: miss rate by type with upper bounds, {100 * confidence:g} % sure: " + ", ".join(
        f"{kind} at most {share_up(bound)}" for (kind, _), bound in zip(shown, bounds, strict=True)
    )
    return draw(
        "misses", "What the policy misses, by type", paint, alt=alt + ".", columns=("type", "secrets seen", "missed", "rate", "bound"),
        rows=rows, caption=f"From a person's review of a random sample; all bounds together hold with confidence {100 * confidence:g} %, "
        f"whenever the reviewer stopped{_part(shown, kinds)}.", size=(5.6, 1.5 + 0.36 * max(1, len(shown))),
    )  # fmt: skip


def _part(shown: Sequence[object], of: Sequence[object]) -> str:
    return "" if len(shown) == len(of) else f"; drawn are {len(shown)} of {len(of)} types, the table has all"


def _privacy_curve(found: Found) -> Chart:
    certificate = found.certificate or {}
    delta, main = float(certificate["delta"]), found.main

    def paint(axes: Any) -> None:
        for curve, style in zip(found.curves, ("-", "--", "-.", ":"), strict=False):
            axes.semilogy(curve["epsilons"], curve["deltas"], style, label=many(curve["k"], "record"))
        axes.axhline(delta, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        axes.text(
            0.995,
            delta * 1.15,
            f"δ = {small(delta)}",
            ha="right",
            color=INK,
            transform=axes.get_yaxis_transform(),
            fontsize=9,
        )
        if main is not None:
            axes.plot([main["epsilon"]], [main["delta"]], "o", color=INK, zorder=5)
        axes.set_xlabel("ε")
        axes.set_ylabel("δ(ε)")
        plain_log(axes.yaxis)
        axes.legend()

    picks = range(0, 81, 8)
    rows = [
        (many(one["k"], "record"), number(one["epsilons"][i], 3), small(one["deltas"][i]))
        for one in found.curves
        for i in picks
    ]
    alt = "Line chart: the proven delta falls as epsilon grows"
    if main is not None:
        alt += f"; epsilon {epsilon(main['epsilon'])} at delta {small(main['delta'])} for {many(main['k'], 'record')}"
    return draw(
        "curve", "The privacy curve", paint, alt=alt + ".", columns=("changed", "epsilon", "delta at most"), rows=rows,
        caption="Every pair (ε, δ) on a line is proven at once. The dot is the one that the certificate states.",
    )  # fmt: skip


def _trade_off(found: Found) -> Chart:
    xs, ys = [x for x, _ in found.ceiling], [y for _, y in found.ceiling]

    def paint(axes: Any) -> None:
        forbidden(axes, xs, ys, "impossible")
        axes.loglog([xs[0], 1], [xs[0], 1], "--", color=MUTED, linewidth=1.2, label="guessing")
        rates(axes, xs[0], "secrets found")

    stated = (found.certificate or {})["trade_off"]
    rows = [(share(one["fpr"], 2), share_up(one["tpr_at_most"], 2)) for one in stated]
    most = next((y for x, y in found.ceiling if x >= 0.01), 1.0)
    alt = f"Curve on log axes: at {share(0.01)} false alarms no test finds more than {share_up(most)} of the secrets."
    return draw(
        "trade_off", "The trade-off curve", paint, alt=alt, columns=("false alarms", "found at most"), rows=rows, size=(5.6, 3.9),
        caption="What the best possible test can do that must tell a secret from its mask by looking at the model.",
    )  # fmt: skip


def _over_training(spent: Sequence[dict[str, Any]]) -> Chart:
    xs, ys = [one["slot"] for one in spent], [one["epsilon"] for one in spent]

    def paint(axes: Any) -> None:
        axes.plot([0, *xs], [0, *ys], "-o", markersize=4.5, color=BLUE)
        axes.set_ylim(0, max(ys) * 1.12)
        axes.set_xlabel("training step")
        axes.set_ylabel("ε spent")

    rows = [
        (f"{one['phase'] or ''} {one['epoch']}", f"{one['slot']:,}", epsilon(one["epsilon"]), small(one["delta"]))
        for one in spent
    ]
    of = str(spent[-1]["epsilon_of"] or "")
    alt = f"Line chart: epsilon grows from 0 to {epsilon(ys[-1])} over {xs[-1]:,} steps."
    return draw(
        "spending", "ε over training", paint, alt=alt, columns=("epoch", "step", "epsilon", "delta"), rows=rows,
        caption=f"The privacy that was spent when each epoch ended{f' ({of})' if of else ''}.",
    )  # fmt: skip


def _utility(found: Found, others: Sequence[Found]) -> Chart:
    course = [one for one in found.validations if one["perplexity"] is not None]
    private = [one for one in course if one["epsilon"] is not None]
    mine = [(found.name, found, (found.utility or {})["perplexity"])]
    lines = [(one.name if not one.shareable else one.method, one, (one.utility or {})["perplexity"]) for one in others]

    def paint(axes: Any) -> None:
        if private:
            axes.plot([one["epsilon"] for one in private], [one["perplexity"] for one in private], "-o", color=BLUE,
                      markersize=5, label=f"{found.name} ({found.method}), by epoch")  # fmt: skip
        flat = [one for one in [*([] if private else mine), *lines] if one[1].main is None]
        for (name, one, value), colour, style in zip(
            flat, (RED, GREEN, ORANGE, MUTED) * 9, ("--", "-.", ":") * 12, strict=False
        ):
            axes.axhline(value, color=colour, linestyle=style, label=f"{name} ({one.method}): no ε")
        for name, one, value in lines:
            if one.main is not None:
                axes.plot([one.main["epsilon"]], [value], "s", color=RED, markersize=6, label=f"{name} ({one.method})")
        heights = [one["perplexity"] for one in (private or course)] + [value for _, _, value in lines]
        if max(heights) > 8 * min(heights):
            axes.set_yscale("log")
            plain_log(axes.yaxis)
        axes.set_xlabel("ε" if private else "")
        axes.set_ylabel("perplexity, lower is better")
        axes.margins(y=0.25)
        if not private:
            axes.set_xticks([])
        axes.legend()

    rows = [
        (f"{found.name}, epoch {one['epoch']}", epsilon(one["epsilon"]), number(one["perplexity"])) for one in course
    ]
    rows += [(name, epsilon(one.main["epsilon"] if one.main else None), number(value)) for name, one, value in lines]
    selective = {one.method == "sdp" for one in [found, *others] if one.main is not None} == {True, False}
    return draw(
        "utility", "Perplexity against ε", paint, columns=("run", "epsilon", "perplexity"), rows=rows,
        alt=f"Chart: perplexity {number(mine[0][2])} for {found.name}" + "".join(f", {number(v)} for {name}" for name, _, v in lines) + ".",
        caption=f"Measured on {(found.utility or {})['on']}. Runs without an ε are horizontal lines."
        + (" An S-DP epsilon does not compare with the others." if selective else ""),
    )  # fmt: skip


def _groups(groups: Sequence[dict[str, Any]]) -> Chart:
    def paint(axes: Any) -> None:
        bars = axes.bar([str(one["k"]) for one in groups], [one["epsilon"] for one in groups], color=BLUE, width=0.65)
        axes.bar_label(bars, labels=[epsilon(one["epsilon"]) for one in groups], padding=2, fontsize=9)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("records that change together (k)")
        axes.set_ylabel("ε")
        axes.margins(y=0.12)

    rows = [(one["k"], epsilon(one["epsilon"]), small(one["delta"])) for one in groups]
    alt = (
        "Bar chart: epsilon by group size: "
        + ", ".join(f"k={one['k']}: {epsilon(one['epsilon'])}" for one in groups)
        + "."
    )
    return draw(
        "groups", "The guarantee for several records", paint, alt=alt, columns=("k", "epsilon", "delta"), rows=rows,
        caption=f"A secret that stands in k records needs the bar of k. All at δ = {small(groups[0]['delta'])}.",
    )  # fmt: skip
