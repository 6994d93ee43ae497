"""Where the records went: a screening's counts in; a Sankey diagram from the corpus to its parts out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..wording import share
from .drawing import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, Chart, draw

GAP, WIDTH = 0.08, 0.035
MIDDLE, RIGHT = 0.42, 0.86
APART = 0.17  # between the middles of two labels of two lines, where the corpus has height 1
LEAST = 0.004  # so that a few records of many are seen
PRIVATE = "private: may hold a secret"


class Stream(NamedTuple):
    """A share of the corpus, and what became of it."""

    name: str
    records: int
    colour: str


def streams(manifest: dict[str, Any]) -> tuple[list[Stream], list[Stream]]:
    """The parts of the corpus, and the parts of its private part. Duplicates count as such only where whole records are compared."""
    private, masks = int(manifest["private"]), int(manifest.get("mask_only", 0))
    whole = manifest.get("dedup_unit", "record") == "record"
    doubles = min(int(manifest.get("private_duplicates", 0)), masks) if whole else 0
    first = [
        Stream("public, flagged\nby no policy", int(manifest["public"]), GREEN),
        Stream("public duplicates, left out", int(manifest.get("public_duplicates", 0)), MUTED),
        Stream(PRIVATE, private, BLUE),
    ]
    second = [
        Stream("text kept; found secrets,\nif any, masked", private - masks, SKY),
        Stream("nothing but masks", masks - doubles, ORANGE),
        Stream("duplicates, masked", doubles, PURPLE),
    ]
    return [one for one in first if one.records], [one for one in second if one.records]


def flow(manifest: dict[str, Any]) -> Chart:
    """The diagram of a screening, from its manifest."""
    first, second = streams(manifest)
    total = sum(one.records for one in first)

    def paint(axes: Any) -> None:
        axes.set_axis_off()
        low, high = _draw(axes, first, second, total, f"{total:,}\n{manifest.get('unit', 'record')}s")
        axes.set_xlim(-0.02, 1.66)
        axes.set_ylim(low - 0.02, high + 0.02)

    rows = [(_line(one.name), f"{one.records:,}", share(one.records / total)) for one in [*first, *second]]
    told = "; ".join(f"{_line(one.name)}: {one.records:,}" for one in [*first, *second])
    return draw(
        "flow", "From the corpus to its parts", paint, alt=f"Flow diagram of {total:,} records. {told}.", columns=("part", "records", "of all"),
        rows=rows, caption="Public records hold nothing that a policy flags. Every other record is private, whether its secrets were found or not.",
        size=(5.6, 3.5),
    )  # fmt: skip


def labels(wanted: Sequence[float], apart: float = APART) -> list[float]:
    """Heights for labels, from the top, as near as possible to the wanted ones and at least so far from each other."""
    placed: list[float] = []
    for height in wanted:
        placed.append(min(height, placed[-1] - apart) if placed else height)
    return placed


def _draw(axes: Any, first: Sequence[Stream], second: Sequence[Stream], total: int, corpus: str) -> tuple[float, float]:
    """Everything; out: the lowest and the highest place that is used. All parts end in one column, from the top."""
    open_ = [one for one in first if one.name != PRIVATE]
    parts = [*open_, *second]
    left = _stacked(parts, total, 0.0, 1.0)
    right = _stacked(parts, total, GAP, 1.0 + GAP * (len(parts) - 1) / 2)
    _node(axes, 0.0, 0.0, 1.0, INK)
    for one, source, target in zip(open_, left, right, strict=False):
        _band(axes, WIDTH, source, RIGHT, target, one.records / total, one.colour)
    if second:
        whole = sum(one.records for one in second) / total
        middle = (left[-1] + right[-1] + GAP * (len(second) - 1) / 2) / 2
        _band(axes, WIDTH, left[-1], MIDDLE, middle, whole, BLUE)
        _node(axes, MIDDLE, middle, whole, BLUE)
        _write(axes, MIDDLE, middle + whole / 2, f"private\n{first[-1].records:,}")
        inner = _stacked(second, total, 0.0, middle + whole)
        for one, source, target in zip(second, inner, right[len(open_) :], strict=True):
            _band(axes, MIDDLE + WIDTH, source, RIGHT, target, one.records / total, one.colour)
    _write(axes, 0.0, 0.5, corpus)
    middles = [low + one.records / total / 2 for one, low in zip(parts, right, strict=True)]
    heights = labels(middles)
    for one, low, middle, height in zip(parts, right, middles, heights, strict=True):
        _node(axes, RIGHT, low, one.records / total, one.colour)
        axes.plot([RIGHT + WIDTH, RIGHT + WIDTH + 0.05], [middle, height], color=MUTED, linewidth=0.8)
        _write(axes, RIGHT + 0.05, height, f"{one.name}: {one.records:,}")
    return min(0.0, *right, heights[-1] - 0.1), max(1.0 + GAP * (len(parts) - 1) / 2, heights[0] + 0.1)


def _stacked(parts: Sequence[Stream], total: int, gap: float, top: float) -> list[float]:
    """The lower ends of parts that stand below each other."""
    ends = []
    for one in parts:
        top -= one.records / total
        ends.append(top)
        top -= gap
    return ends


def _write(axes: Any, x: float, y: float, text: str) -> None:
    axes.text(x + WIDTH + 0.015, y, text, va="center", fontsize=9, zorder=5)


def _node(axes: Any, x: float, y: float, height: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), WIDTH, max(height, LEAST), color=colour, linewidth=0))


def _band(axes: Any, x: float, y: float, to: float, target: float, height: float, colour: str) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    half, height = (x + to) / 2, max(height, LEAST)
    points = [
        (x, y),
        (half, y),
        (half, target),
        (to, target),
        (to, target + height),
        (half, target + height),
        (half, y + height),
        (x, y + height),
        (x, y),
    ]
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, alpha=0.35, linewidth=0))


def _line(name: str) -> str:
    return name.replace("\n", " ")
