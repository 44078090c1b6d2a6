"""Dashboard page with numbers, curves and earlier passes, drawn by Bokeh (extra ``dashboard``).

Colours follow the colour scheme of the browser: text by CSS variables, which reach into Bokeh's
shadow roots, and curves by a few lines of JavaScript.
"""

from __future__ import annotations

import math
import time
from functools import partial
from html import escape
from typing import Any

from bokeh.events import DocumentReady
from bokeh.models import ColumnDataSource, CustomJS, Div, HoverTool, PrintfTickFormatter, Range1d
from bokeh.plotting import figure
from distributed.dashboard.core import BokehApplication
from jinja2 import Environment, PackageLoader, StrictUndefined

from dask_sketch.cluster.dashboard.passes import PAGE, DriftCheck, Pass, Passes
from dask_sketch.display.theme import BLUE, ORANGE, SCHEMES

REDRAW = 1000  # milliseconds
_HEIGHT = 240  # pixels of a curve
_SOURCE = 120  # characters of the name of an input
_TEMPLATES = Environment(
    loader=PackageLoader("dask_sketch.cluster.dashboard"),
    autoescape=False,
    undefined=StrictUndefined,
)
_STYLE = _TEMPLATES.get_template("numbers.css.jinja").render(blue=BLUE)
_PAINT = _TEMPLATES.get_template("paint.js").render()


def serve(scheduler: Any, passes: Passes) -> None:
    """Add the page to the HTTP server of a scheduler, as Dask adds its own.

    Parameters
    ----------
    scheduler
        Scheduler with an ``http_application``.
    passes
        Passes to show.
    """
    routes = {f"/{PAGE}": partial(_document, passes)}
    prefix = getattr(next(iter(scheduler.http_application.applications), None), "prefix", "/")
    application = BokehApplication(routes, scheduler, prefix=prefix)
    scheduler.http_application.add_application(application)
    application.initialize(scheduler.loop)
    application.start()


def _document(passes: Passes, scheduler: Any, extra: dict[str, Any], document: Any) -> None:
    component = SketchComponent(passes)
    for root in component.roots:
        document.add_root(root)
    document.add_periodic_callback(component.update, REDRAW)
    document.js_on_event(
        DocumentReady,
        CustomJS(args={"figures": component.figures, "schemes": SCHEMES}, code=_PAINT),
    )
    document.template = _TEMPLATES.get_template("page.html.jinja")
    document.template_variables.update(schemes=SCHEMES)
    document.title = "Dask: sketches"


class SketchComponent:
    """Bokeh models of one browser session.

    Attributes
    ----------
    roots
        Bokeh models, named as in the template.
    figures
        Models that are curves.
    """

    def __init__(self, passes: Passes):
        self._passes = passes
        self._numbers, self._before, self._drift = (
            Div(name=name, stylesheets=[_STYLE], sizing_mode="stretch_width", margin=0)
            for name in ("numbers", "before", "drift")
        )
        self._curves = ColumnDataSource({"seconds": [], "rate": [], "limit": [], "noise": []})
        self.figures = [self._rates(), self._noises()]
        self.roots = [self._numbers, *self.figures, self._before, self._drift]
        self.update()

    def update(self) -> None:
        """Show the current progress."""
        shown = self._passes.shown
        self._numbers.text = _numbers(shown)
        self._before.text = _before(self._passes)
        self._drift.text = _drift(self._passes)
        polls = [] if shown is None else shown.polls
        self._curves.data = {
            "seconds": [poll.seconds for poll in polls],
            "rate": [poll.rate / 1e9 for poll in polls],
            "limit": [poll.limit / 1e9 for poll in polls],
            "noise": [poll.noise for poll in polls],
        }
        rates, noises = self.figures
        rates.x_range.end = noises.x_range.end = max([poll.seconds for poll in polls] + [1.0])
        highest = [value for key in ("rate", "limit") for value in self._curves.data[key]]
        rates.y_range.end = 1.1 * max([value for value in highest if value > 0] or [1.0])
        known = [poll.noise for poll in polls if poll.noise > 0]
        noises.y_range.start = 0.7 * min(known or [0.1])
        noises.y_range.end = 1.4 * max(known or [1.0])

    def _rates(self) -> Any:
        drawn = _figure("rates", "G pairs per second")
        drawn.line("seconds", "rate", source=self._curves, color=BLUE, line_width=2.5)
        drawn.line(
            "seconds", "limit", source=self._curves, color=ORANGE, line_width=2, line_dash="dashed"
        )
        drawn.add_tools(
            HoverTool(tooltips=[("G pairs/s", "@rate{0.00}"), ("limit", "@limit{0.00}")])
        )
        return drawn

    def _noises(self) -> Any:
        drawn = _figure("noises", "noise of |z|", y_axis_type="log")
        drawn.yaxis.formatter = PrintfTickFormatter(format="%.1e")
        drawn.line("seconds", "noise", source=self._curves, color=BLUE, line_width=2.5)
        drawn.add_tools(HoverTool(tooltips=[("noise of |z|", "@noise{0.0e}")]))
        return drawn


def _figure(name: str, label: str, **more: Any) -> Any:
    drawn = figure(
        name=name,
        height=_HEIGHT,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        border_fill_color=None,  # transparent, to show the background of the page
        background_fill_color=None,
        x_range=Range1d(0, 1),
        y_range=Range1d(0, 1),
        margin=0,
        x_axis_label="seconds since the pass began",
        y_axis_label=label,
        **more,
    )
    drawn.axis.axis_label_text_font_style = "normal"
    drawn.axis.major_label_text_font_size = "13px"
    drawn.axis.axis_label_text_font_size = "13px"
    drawn.axis.minor_tick_line_color = None
    return drawn


def _numbers(shown: Pass | None) -> str:
    if shown is None:
        return (
            "<p>No pass yet. Those of <code>ds.sketch(...).compute()</code> and of "
            "<code>dask-sketch run</code> on this cluster are shown here.</p>"
        )
    total = shown.n_samples
    read = "of an unknown number" if total is None else f"of {total:,}"
    limited = not math.isnan(shown.limit) and shown.limit > 0
    fraction = shown.rate / shown.limit if limited else None
    return (
        f"<p>{escape(_title(shown))}</p>"
        '<div class="tiles" style="margin-top: .75rem">'
        + _tile(
            "rows sketched",
            f"{shown.rows:,}",
            read,
            shown.rows / total if total else None,
        )
        + _tile(
            "row × frequency pairs per second",
            _big(shown.rate),
            _limit(shown, fraction),
            fraction,
        )
        + _tile(
            "partial sketches merged",
            f"{shown.partials:,}",
            f"{shown.n_chunks:,} chunks",
        )
        + _tile(
            "noise of |z|",
            "" if math.isnan(shown.noise) else f"{shown.noise:.1e}",
            "1/√rows: smaller values in the sketch are not significant",
        )
        + "</div>"
    )


def _limit(shown: Pass, fraction: float | None) -> str:
    if fraction is not None:
        return f"{fraction:.0%} of {_big(shown.limit)}, the calibrated limit"
    if not shown.polls:
        return ""
    return "limit not calibrated: ds.plan(..., calibrate=True) measures it"


def _tile(name: str, value: str, note: str, fraction: float | None = None) -> str:
    bar = ""
    if fraction is not None:
        bar = f'<div class="bar"><i style="width: {100 * min(fraction, 1.0):.1f}%"></i></div>'
    return (
        f'<div class="tile"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value) or "&nbsp;"}</div>{bar}'
        f'<div class="note">{escape(note)}</div></div>'
    )


def _title(run: Pass) -> str:
    state = "running" if run.ended is None else "done"
    return (
        f"{run.source[:_SOURCE]}: {run.n_features} features, {run.n_frequencies:,} "
        f"frequencies; {state}, {run.seconds:.1f} s"
    )


def _before(passes: Passes) -> str:
    lines = [
        f"<li>{escape(_title(one))}, {one.rows:,} rows, {_big(one.rate)} pairs per second, from "
        f"{time.strftime('%H:%M:%S', time.localtime(one.started))}</li>"
        for one in (passes[i] for i in reversed(range(len(passes))))
    ]
    return f"<ul>{''.join(lines)}</ul>" if lines else "<p>None.</p>"


def _drift(passes: Passes) -> str:
    lines = [
        f"<li>{'<strong>Alarm</strong>' if one.alarm else 'No alarm'} in run {one.run} of "
        f"{escape(one.source[:_SOURCE])}, {time.strftime('%H:%M:%S', time.localtime(one.time))}: "
        f"discrepancy {one.discrepancy:.2g}, within [{one.low:.2g}, {one.high:.2g}]; "
        f"p = {one.p_value:.2g} at a level of {one.level:.2g}{_where(one)}</li>"
        for one in reversed(passes.checks)
    ]
    if lines:
        return f"<ul>{''.join(lines)}</ul>"
    return "<p>None. Runs of <code>dask-sketch run</code> test their newest data.</p>"


def _where(one: DriftCheck) -> str:
    """Features that differ, and the run of the last change, as far as they are known."""
    text = ""
    if one.features:
        more = one.n_different - len(one.features)
        names = escape(", ".join(one.features)) + (f" and {more:,} more" if more > 0 else "")
        text += f"; differs in {names}"
    return text if one.since is None else f"{text}; last change with run {escape(one.since)}"


def _big(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.0f}"
