"""One HTML page on a sketch and its mixture, complete in itself (extra ``plot``)."""

from __future__ import annotations

import base64
import io
import platform
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import ArrayLike

from dask_sketch.diagnostics import plots
from dask_sketch.diagnostics.fit import diagnose
from dask_sketch.models import Centroids, GaussianMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dask_sketch.diagnostics.comparison import Comparison
    from dask_sketch.diagnostics.watch import Watch
    from dask_sketch.features import FeatureMap
    from dask_sketch.sketching import Sketch

PACKAGES = ("dask-sketch", "dask", "distributed", "numba", "numpy", "scipy", "xarray", "zarr")

# text and lines, and paper, of pictures in either colour scheme; the same as the page's
_SCHEMES = {"light": ("#1d2026", "#ffffff"), "dark": ("#e4e6ea", "#1b1e24")}


@dataclass(frozen=True)
class Picture:
    """A picture in both colour schemes, as data URLs."""

    title: str
    caption: str
    light: str
    dark: str


@dataclass(frozen=True)
class Section:
    """A table of a report, and what it says.

    Attributes
    ----------
    title
        Heading.
    text
        What the table shows.
    header
        Names of the columns.
    rows
        Cells.
    strong
        Numbers of the rows that need to be seen.
    """

    title: str
    text: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: Set[int] = frozenset()


def write_report(
    path: str | Path,
    sketch: Sketch,
    model: GaussianMixture | Centroids,
    *,
    title: str = "A mixture from a sketch",
    source: Mapping[str, object] | None = None,
    feature_map: FeatureMap | None = None,
    plan: Any = None,
    happened: Watch | None = None,
    comparison: Comparison | None = None,
    heldout: Sketch | None = None,
    sample: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    sections: Sequence[Section] = (),
    command: str = "",
) -> Path:
    """Write a page that needs nothing but itself: no network, no other file.

    Parameters
    ----------
    path
        File to write; its folder is made. Replaced if it exists.
    sketch, model
        What the page is about.
    title
        Heading.
    source
        What was read, name by name.
    feature_map
        The map as :func:`design` returned it, for its scale fit, which no file holds.
    plan, happened
        The :class:`Plan` of the pass and what :func:`watch` saw of it.
    comparison
        Likelihoods of this mixture and others.
    heldout
        Sketch by the same map of samples that the model has not seen.
    sample
        Rows of data to draw beneath the mixture, shape (n, n_features).
    names
        Names of the features.
    sections
        What else there is to say, before the pictures: of a job, what changed and drift.
    command
        Command line that makes the page again.

    Returns
    -------
    path
        Where the page is.

    Raises
    ------
    InputError
        If matplotlib is missing, or ``heldout``, ``sample`` or ``names`` do not fit the model.
    """
    labels = [f"feature {k}" for k in range(model.n_features)] if names is None else list(names)
    found = diagnose(model, sketch, heldout)
    environment = Environment(
        loader=PackageLoader("dask_sketch.diagnostics"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.jinja").render(
        title=title,
        schemes=_SCHEMES,
        read=dict(source or {})
        | {"samples": f"{sketch.count:,}", "omitted": f"{sketch.omitted:,}"},
        plan=_plan_rows(plan, happened),
        sketch=_sketch_fields(sketch, model),
        diagnostics=found._fields(),
        findings=list(found.findings.values()),
        comparison=comparison,
        components=_component_rows(model),
        mixture=isinstance(model, GaussianMixture),
        names=labels,
        sections=sections,
        pictures=_pictures(sketch, model, feature_map or sketch.feature_map, sample, labels),
        versions=_versions(),
        command=command,
    )
    out = Path(path)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return out


def _plan_rows(plan: Any, happened: Watch | None) -> list[tuple[str, str, str]]:
    """Name, planned and happened."""
    if plan is None:
        return []
    seen = {} if happened is None else {"tasks": str(happened)}
    rows = [
        (name, value, seen.get(name, ""))
        for name, value in plan._fields().items()
        if name != "source"
    ]
    if happened is None:
        return rows
    rate = plan.n_samples / happened.seconds if plan.n_samples and happened.seconds else None
    rows.append(("seconds", "", f"{happened.seconds:.1f}"))
    rows.append(("seconds of all threads", "", f"{happened.busy_seconds:.1f}"))
    if rate is not None:
        rows.append(("samples per second", "", f"{rate:,.0f}"))
    return rows


def _sketch_fields(sketch: Sketch, model: GaussianMixture | Centroids) -> dict[str, str]:
    fields = {
        "frequencies": f"{sketch.feature_map.n_frequencies:,}",
        "size in memory": f"{sketch.__sizeof__() / 1e3:,.0f} kB",
        "feature map": f"{sketch.feature_map.law}, digest {sketch.feature_map.digest[:12]}",
        "scale of its law": sketch.feature_map._fields()["scale"],
    }
    if model.decoding is not None:
        how = model.decoding
        refined = "" if how.refine is None else f", {how.refine} refinement"
        fields["decoded by"] = (
            f"{how.method}{refined}, {how.seconds:.1f} s, {how.n_evaluations} evaluations"
        )
        fields["last descent"] = "converged" if how.converged else f"stopped: {how.message}"
    return fields


def _component_rows(model: GaussianMixture | Centroids) -> list[tuple[str, list[str]]]:
    """Weight, and mean and deviation in each feature, of each component."""
    if isinstance(model, Centroids):
        places = zip(model.weights, model.centers, strict=True)
        return [(f"{weight:.4f}", [f"{x:.4g}" for x in center]) for weight, center in places]
    deviations = np.sqrt(model.covariances)
    return [
        (
            f"{weight:.4f}",
            [f"{mean:.4g} ± {deviation:.3g}" for mean, deviation in zip(*pair, strict=True)],
        )
        for weight, *pair in zip(model.weights, model.means, deviations, strict=True)
    ]


def _pictures(
    sketch: Sketch,
    model: GaussianMixture | Centroids,
    feature_map: FeatureMap,
    sample: ArrayLike | None,
    names: list[str],
) -> list[Picture]:
    pictures = []
    if feature_map.scale_fit is not None:
        pictures.append(
            _picture(
                "Scale fit",
                "|z| of the pilot samples, each feature in units of the components' deviation that "
                "was found in it: below the envelope of one component, and the further below the "
                "more they overlap.",
                plots.plot_scale_fit(feature_map.scale_fit),
            )
        )
    pictures.append(
        _picture(
            "|z| against radius",
            "Where the sketch lies in the noise it says nothing; mixture and sketch should agree "
            "above.",
            plots.plot_modulus(sketch, model if isinstance(model, GaussianMixture) else None),
        )
    )
    if isinstance(model, GaussianMixture):
        pictures.append(
            _picture(
                "Centroids",
                "Components as ellipses of two standard deviations, bold if heavy"
                + (", over a data sample" if sample is not None else "")
                + "; the two features of largest variance.",
                plots.plot_mixture(model, sample, names=names),
            )
        )
    if model.decoding is not None and len(model.decoding.trace) > 1:  # one step is no curve
        pictures.append(
            _picture(
                "Decoder",
                "Cost after each step. A fit that stays well above the noise level has missed "
                "something, or the data is no such mixture.",
                plots.plot_trace(model.decoding),
            )
        )
    return pictures


def _picture(title: str, caption: str, ax: Axes) -> Picture:
    figure = ax.get_figure(root=True)
    assert figure is not None
    urls = {}
    for scheme, (ink, paper) in _SCHEMES.items():
        _paint(ax, ink, paper)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", dpi=150)
        encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
        urls[scheme] = f"data:image/svg+xml;base64,{encoded}"
    return Picture(title, caption, **urls)


def _paint(ax: Axes, ink: str, paper: str) -> None:
    if ax.figure is not None:
        ax.figure.set_facecolor(paper)
    ax.set_facecolor(paper)
    for spine in ax.spines.values():
        spine.set_color(ink)
    ax.tick_params(which="both", colors=ink)
    for label in (ax.xaxis.label, ax.yaxis.label, ax.title):
        label.set_color(ink)
    legend = ax.get_legend()
    if legend is not None:
        legend.get_frame().set(facecolor=paper, edgecolor=ink, alpha=0.85)
        for text in legend.get_texts():
            text.set_color(ink)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
