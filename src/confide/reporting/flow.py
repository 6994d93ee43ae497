"""Where the records went: a screening's counts in; a Sankey diagram from the corpus to its parts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .drawing import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, Chart, draw
from .wording import share

GAP, WIDTH = 0.13, 0.035
MIDDLE, RIGHT = 0.4, 0.84
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
        Stream("public: no policy flags it", int(manifest["public"]), GREEN),
        Stream("public duplicates,\nleft out", int(manifest.get("public_duplicates", 0)), MUTED),
        Stream(PRIVATE, private, BLUE),
    ]
    second = [
        Stream("found secrets masked,\ntext kept", private - masks, SKY),
        Stream("nothing but masks", masks - doubles, ORANGE),
        Stream("duplicates, masked", doubles, PURPLE),
    ]
    return [one for one in first if one.records], [one for one in second if one.records]


def flow(manifest: dict[str, Any]) -> Chart:
    first, second = streams(manifest)
    total = sum(one.records for one in first)

    def paint(axes: Any) -> None:
        spread = GAP * (len(first) - 1) / 2, GAP * max(0, len(second) - 1) / 2
        axes.set_axis_off()
        axes.set_xlim(0, 1.3)
        axes.set_ylim(-spread[0] - spread[1] - 0.1, 1.02 + spread[0])
        _node(axes, 0.0, 0.0, 1.0, INK)
        axes.text(0.0, -0.02, f"{total:,} {manifest.get('unit', 'record')}s", va="top", fontweight="bold")
        ends = _fan(axes, first, 0.0, 0.0, MIDDLE, total, label=lambda one: one.name != PRIVATE)
        if PRIVATE in ends:
            one = first[-1]
            middle = ends[PRIVATE] + one.records / total / 2
            axes.text(MIDDLE + WIDTH + 0.01, middle, f"private\n{one.records:,}", va="center", fontsize=9)
            _fan(axes, second, MIDDLE, ends[PRIVATE], RIGHT, total, label=lambda one: True)

    rows = [(_line(one.name), f"{one.records:,}", share(one.records / total)) for one in [*first, *second]]
    told = "; ".join(f"{_line(one.name)}: {one.records:,}" for one in [*first, *second])
    return draw(
        "flow", "From the corpus to its parts", paint, alt=f"Flow diagram of {total:,} records. {told}.", columns=("part", "records", "of all"),
        rows=rows, caption="Public records hold nothing that a policy flags. Every other record is private, whether its secrets were found or not.",
        size=(5.6, 3.5),
    )  # fmt: skip


def _line(name: str) -> str:
    return name.replace("\n", " ")


def _fan(
    axes: Any, parts: Sequence[Stream], x: float, low: float, to: float, total: int, label: Callable[[Stream], bool]
) -> dict[str, float]:
    """Bands from one node to several, the first on top, spread evenly; where each of them ends."""
    ends, source = {}, low + sum(one.records for one in parts) / total
    target = source + GAP * (len(parts) - 1) / 2
    for one in parts:
        height = one.records / total
        source -= height
        target -= height
        _band(axes, x + WIDTH, source, to, target, height, one.colour)
        _node(axes, to, target, height, one.colour)
        if label(one):
            axes.text(to + WIDTH + 0.01, target + height / 2, f"{one.name}\n{one.records:,}", va="center", fontsize=9)
        ends[one.name] = target
        target -= GAP
    return ends


def _node(axes: Any, x: float, y: float, height: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), WIDTH, height, color=colour, linewidth=0))


def _band(axes: Any, x: float, y: float, to: float, target: float, height: float, colour: str) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    half = (x + to) / 2
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
