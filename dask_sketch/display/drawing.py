"""Small pictures for notebooks: SVG without scripts, in colours for light and dark paper.

Lines and letters take the colour of the text around them; the others have a contrast of at least 3
to white and to near-black.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
BLUE, ORANGE, GREEN, GREY = "#3b82d6", "#d97706", "#3a9150", "#85878c"
_WIDTH, _HEIGHT = 300, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 8, 30  # room around the axes
_LETTER = 11


class Chart:
    """Points and lines over two axes.

    Parameters
    ----------
    label
        What the picture shows, for readers who do not see it.
    x, y
        Ends of the axes.
    names
        Of the axes.
    log
        Whether the second axis is logarithmic; both of its ends are positive then.

    Examples
    --------
    >>> chart = Chart("a line", (0.0, 1.0), (0.0, 2.0), ("x", "y"))
    >>> chart.line([0, 1], [0, 2])
    >>> chart.svg().startswith("<svg")
    True
    """

    def __init__(
        self,
        label: str,
        x: tuple[float, float],
        y: tuple[float, float],
        names: tuple[str, str],
        *,
        log: bool = False,
    ):
        self._label, self._names, self._log = label, names, log
        self._ends = x, y
        self._shapes: list[str] = []
        self._key: list[tuple[str, str]] = []

    def _places(self, x: ArrayLike, y: ArrayLike) -> Array:
        """Pixels, shape (n, 2); what lies outside of the axes is put at their ends."""
        across, up = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (x, y))
        (x0, x1), (y0, y1) = self._ends
        if self._log:
            up = np.log(np.maximum(up, y0))
            y0, y1 = float(np.log(y0)), float(np.log(y1))
        across = (across - x0) / ((x1 - x0) or 1.0)
        up = (up - y0) / ((y1 - y0) or 1.0)
        wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        places = np.stack(np.broadcast_arrays(across, up), axis=1)
        places = np.clip(np.nan_to_num(places), 0.0, 1.0)
        return np.asarray([_LEFT, _TOP + high] + places * [wide, -high])

    def points(self, x: ArrayLike, y: ArrayLike, colour: str = BLUE, name: str = "") -> None:
        """Dots."""
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in self._places(x, y))
        self._shapes.append(
            f'<path d="{dots}" stroke="{colour}" stroke-width="2.5" stroke-linecap="round" '
            'stroke-opacity=".7" fill="none"/>'
        )
        self._named(name, colour)

    def line(self, x: ArrayLike, y: ArrayLike, colour: str = ORANGE, name: str = "") -> None:
        """A line through points."""
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in self._places(x, y))
        self._shapes.append(
            f'<polyline points="{corners}" stroke="{colour}" stroke-width="1.5" fill="none"/>'
        )
        self._named(name, colour)

    def level(self, y: float, name: str = "") -> None:
        """A dashed line at one height."""
        (x0, at), (x1, _) = self._places(self._ends[0], [y, y])
        self._shapes.append(
            f'<path d="M{x0:.1f} {at:.1f}H{x1:.1f}" stroke="{GREY}" stroke-width="1.5" '
            'stroke-dasharray="5 3"/>'
        )
        self._named(name, GREY)

    def ellipses(self, centers: Array, radii: Array, shares: Array) -> None:
        """Ellipses along the axes, shape (k, 2) both, the stronger the larger their share."""
        middle = self._places(centers[:, 0], centers[:, 1])
        reach = np.abs(
            self._places(centers[:, 0] + radii[:, 0], centers[:, 1] + radii[:, 1]) - middle
        )
        for (x, y), (a, b), share in zip(middle, reach, shares, strict=True):
            self._shapes.append(
                f'<ellipse cx="{x:.1f}" cy="{y:.1f}" rx="{a:.1f}" ry="{b:.1f}" stroke="{BLUE}" '
                f'fill="{BLUE}" fill-opacity="{0.05 + 0.3 * share:.2f}" stroke-width="1.2"/>'
            )

    def _named(self, name: str, colour: str) -> None:
        if name:
            self._key.append((name, colour))

    def svg(self) -> str:
        """The picture, with its key beneath."""
        (x0, x1), (y0, y1) = self._ends
        right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        axes = (
            f'<path d="M{_LEFT} {_TOP}V{floor}H{right}" stroke="currentColor" '
            'stroke-opacity=".5" fill="none"/>'
        )
        letters = [
            _text(_LEFT - 4, _TOP + 8, _brief(y1), "end"),
            _text(_LEFT - 4, floor, _brief(y0), "end"),
            _text(_LEFT, floor + 12, _brief(x0), "start"),
            _text(right, floor + 12, _brief(x1), "end"),
            _text((_LEFT + right) / 2, floor + 24, self._names[0], "middle"),
            _text(12, (_TOP + floor) / 2, self._names[1], "middle", turned=True),
        ]
        drawn = framed(self._label, _WIDTH, _HEIGHT, axes + "".join(self._shapes + letters))
        return drawn + key(self._key)


def bars(label: str, values: Sequence[float] | Array, name: str) -> str:
    """Upright bars, in their order; at most 100, of which each may stand for several.

    Examples
    --------
    >>> bars("weights", [0.5, 0.3, 0.2], "weights").count("<rect")
    3
    """
    heights = _gathered(np.asarray(values, dtype=np.float64))
    top = float(heights.max()) if len(heights) else 0.0
    floor, wide = 70, _WIDTH - _LEFT - _RIGHT
    step = min(wide / max(len(heights), 1), 28.0)
    shapes = "".join(
        f'<rect x="{_LEFT + i * step:.1f}" y="{floor - h:.1f}" '
        f'width="{max(0.8 * step, 0.8):.1f}" height="{h:.1f}" fill="{BLUE}"/>'
        for i, h in enumerate(heights / (top or 1.0) * (floor - _TOP))
    )
    letters = (
        _text(_LEFT - 4, _TOP + 8, _brief(top), "end")
        + _text(_LEFT - 4, floor, "0", "end")
        + _text(4, floor + 14, name, "start")
    )
    axis = f'<path d="M{_LEFT} {floor}H{_WIDTH - _RIGHT}" stroke="currentColor" opacity=".5"/>'
    return framed(label, _WIDTH, floor + 20, shapes + axis + letters)


def blocks(label: str, sizes: Sequence[float], below: str) -> str:
    """Chunks side by side, as wide as they are long; nan for a length that is not known.

    Examples
    --------
    >>> blocks("chunks", [10, 10, 5], "3 chunks").count("<rect")
    3
    """
    lengths = np.asarray(sizes, dtype=np.float64)
    known = bool(len(lengths)) and bool(np.isfinite(lengths).all())
    shown = _gathered(lengths if known else np.ones(len(lengths)))
    total = float(shown.sum()) or 1.0
    place, shapes = 0.0, []
    for size in shown:
        wide = (_WIDTH - 8) * size / total
        gap = min(1.5, 0.25 * wide)
        shapes.append(
            f'<rect x="{4 + place:.1f}" y="4" width="{max(wide - gap, 0.3):.1f}" height="26" '
            f'fill="{BLUE}"{"" if known else _DOUBTFUL}/>'
        )
        place += wide
    return framed(label, _WIDTH, 50, "".join(shapes) + _text(4, 45, below, "start"))


def gauge(label: str, parts: Sequence[tuple[str, float, str]], whole: float, below: str) -> str:
    """A bar of several parts out of a whole, each with its name, size and colour.

    Examples
    --------
    >>> gauge("memory", [("used", 1.0, BLUE)], 4.0, "1 of 4").count("<rect")
    2
    """
    scale = (_WIDTH - 8) / (max(whole, sum(size for _, size, _ in parts)) or 1.0)
    shapes = [
        f'<rect x="4" y="4" width="{_WIDTH - 8}" height="14" fill="{GREY}" fill-opacity=".25"/>'
    ]
    place = 4.0
    for _, size, colour in parts:
        shapes.append(
            f'<rect x="{place:.1f}" y="4" width="{size * scale:.1f}" height="14" fill="{colour}"/>'
        )
        place += size * scale
    if 0 < whole * scale < _WIDTH - 8.5:  # the limit is passed
        at = 4 + whole * scale
        shapes.append(f'<path d="M{at:.1f} 1V21" stroke="currentColor" stroke-width="2"/>')
    named = [(name, colour) for name, _, colour in parts] if len(parts) > 1 else []
    drawn = framed(label, _WIDTH, 36, "".join(shapes) + _text(4, 31, below, "start"))
    return drawn + key(named)


def key(entries: Sequence[tuple[str, str]]) -> str:
    """Names beside their colours."""
    shown = "".join(
        f'<span style="white-space:nowrap;margin-right:1em"><span style="color:{colour}" '
        f'aria-hidden="true">●</span> {escape(name)}</span> '
        for name, colour in entries
    )
    style = f"font-size:{_LETTER}px;max-width:{_WIDTH}px"
    return f'<div style="{style}">{shown}</div>' if shown else ""


def framed(label: str, width: int, height: int, shapes: str) -> str:
    """An SVG of that size, or smaller where there is less room."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="max-width:100%;height:auto;display:block" '
        f'font-size="{_LETTER}" fill="currentColor"><title>{escape(label)}</title>{shapes}</svg>'
    )


_DOUBTFUL = ' fill-opacity=".45"'


def _text(x: float, y: float, text: str, anchor: str, *, turned: bool = False) -> str:
    around = f' transform="rotate(-90 {x:.0f} {y:.0f})"' if turned else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{around}>{escape(text)}</text>'


def _brief(value: float) -> str:
    """At most seven letters, which is the room beside an axis."""
    if value and not 1e-2 <= abs(value) < 1e6:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.3g}"


def _gathered(values: Array, most: int = 100) -> Array:
    """At most that many values, each the mean of some that are neighbours."""
    if len(values) <= most:
        return values
    cuts = np.linspace(0, len(values), most + 1).astype(int)
    return np.add.reduceat(values, cuts[:-1]) / np.diff(cuts)


def thinned(n: int, most: int = 400) -> slice:
    """Every so many of ``n`` points: more of them make a picture larger, not clearer."""
    return slice(None, None, -(-n // most))
