"""One drawing: a function that paints on axes in; an SVG for the page (in the page's colours), and SVG and PNG files out."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfideError, printable

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which people with any kind of colour vision tell apart. The page replaces each by a CSS variable of
# that name, so that one drawing serves light, dark and print.
INK, MUTED, GRID, PAPER = "#1b2530", "#55606c", "#d5dbe1", "#fffffe"
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
SERIES = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", BLUE: "blue", ORANGE: "orange", GREEN: "green", RED: "red",
    PURPLE: "purple", SKY: "sky",
}  # fmt: skip
DOTS_PER_INCH = 130
PADDING = 4  # dots, at a hundred an inch


@dataclass(frozen=True)
class Chart:
    """A chart with everything that a reader who cannot see it needs."""

    name: str
    title: str
    caption: str
    alt: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    inline: Markup
    svg: str
    png: bytes


def draw(
    name: str,
    title: str,
    paint: Callable[[Axes], object],
    *,
    caption: str,
    alt: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    size: tuple[float, float] = (5.6, 3.5),
) -> Chart:
    """Paint once, and keep it in the three forms."""
    with _style(name), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page and the SVG use the reader's fonts
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=size)
        canvas: Any = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        paint(axes)
        _fit(axes, canvas.get_renderer())
        vector, pixels = io.StringIO(), io.BytesIO()
        figure.savefig(vector, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        figure.savefig(pixels, format="png", dpi=DOTS_PER_INCH, facecolor=PAPER)
    svg, title, alt = map(printable, (_bare(vector.getvalue(), name), title, alt))
    cells = tuple(tuple(map(str, row)) for row in rows)
    return Chart(name, title, caption, alt, tuple(columns), cells, _inline(svg, alt), _file(svg), pixels.getvalue())


def _fit(axes: Axes, renderer: Any) -> None:
    """Give the axes all the room that their labels leave. One pass: matplotlib's own layouts take as long as the drawing."""
    inner, outer = axes.get_window_extent(renderer), axes.get_tightbbox(renderer)
    if outer is None:
        return
    width, height = axes.figure.bbox.width, axes.figure.bbox.height
    left, right = max(0.0, inner.x0 - outer.x0) + PADDING, max(0.0, outer.x1 - inner.x1) + PADDING
    below, above = max(0.0, inner.y0 - outer.y0) + PADDING, max(0.0, outer.y1 - inner.y1) + PADDING
    axes.set_position((left / width, below / height, 1 - (left + right) / width, 1 - (below + above) / height))


def plain_log(axis: Any) -> None:
    """Plain numbers along a logarithmic axis on which everything is painted; the longer it is, the fewer of them."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high < 10 * low else (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(NullLocator())


@contextmanager
def _style(salt: str) -> Iterator[None]:
    try:
        import matplotlib as mpl
        from cycler import cycler
    except ImportError:
        raise ConfideError("a report needs matplotlib and Jinja2: pip install 'confide[report]'") from None
    wanted: Any = {
        "text.parse_math": False,  # a dollar sign in a name is a dollar sign
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10.5,
        "axes.titlesize": 10,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "lines.linewidth": 1.9,
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "axes.prop_cycle": cycler(color=SERIES),
        "path.simplify": True,
    }
    with mpl.rc_context(wanted):
        yield


def _bare(svg: str, name: str) -> str:
    """The drawing alone: no prologue, no metadata, short fonts; ids only where something refers to them, and unique in a page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 sans-serif", svg)
    wanted = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))

    def renamed(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in wanted else ""

    svg = re.sub(r' id="([^"]*)"', renamed, svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    return re.sub(r"\n\s*", "\n", svg).strip()


def _inline(svg: str, alt: str) -> Markup:
    """For the page: no fixed size, the page's colours, a text for those who cannot see it."""
    from markupsafe import Markup, escape

    size = re.search(r'viewBox="([^"]*)"', svg)
    body = svg[svg.index(">") + 1 :]
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")
    said = escape(alt)
    box = size[1] if size else "0 0 460 250"
    # What stands in `body` was escaped by matplotlib's SVG writer; nothing else enters it.
    return Markup(f'<svg viewBox="{box}" role="img" aria-label="{said}"><title>{said}</title>{body}')


def _file(svg: str) -> str:
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n'
