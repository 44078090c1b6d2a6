"""Pictures of a report: drawn once, stored twice, for light and for dark paper (extra ``plot``)."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from dask_sketch.diagnostics import plots
from dask_sketch.models import GaussianMixture
from dask_sketch.schemes import SCHEMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dask_sketch.features import FeatureMap
    from dask_sketch.models import Centroids
    from dask_sketch.sketching import Sketch


_SIZE = (4.6, 3.5)  # inches: small, so that letters are large enough in a narrow window


@dataclass(frozen=True)
class Picture:
    """A picture in both colour schemes, as data URLs."""

    title: str
    caption: str
    light: str
    dark: str


def draw_pictures(
    sketch: Sketch | None,
    model: GaussianMixture | Centroids | None,
    feature_map: FeatureMap | None,
    sample: ArrayLike | None,
    names: list[str],
) -> list[Picture]:
    """All pictures that there is something for.

    Parameters
    ----------
    sketch, model, feature_map, sample, names
        As for :func:`~dask_sketch.diagnostics.report.write_report`.

    Raises
    ------
    InputError
        If matplotlib is missing, or something does not fit the model.
    """
    pictures = []
    if feature_map is not None and feature_map.scale_fit is not None:
        pictures.append(
            _picture(
                "Scale fit",
                "|z| of the pilot samples, each feature in units of the components' deviation that "
                "was found in it: below the envelope of one component, and the further below the "
                "more they overlap.",
                plots.plot_scale_fit(feature_map.scale_fit),
            )
        )
    if sketch is not None:
        mixture = model if isinstance(model, GaussianMixture) else None
        pictures.append(
            _picture(
                "|z| against radius",
                "Where the sketch lies in the noise it says nothing; "
                + ("mixture and sketch should agree above." if mixture else "above it, it does."),
                plots.plot_modulus(sketch, mixture),
            )
        )
    if model is not None:
        what = (
            "Components as ellipses of two standard deviations, bold if heavy"
            if isinstance(model, GaussianMixture)
            else "Centroids, large if heavy"
        )
        pictures.append(
            _picture(
                "The model",
                what
                + (", over a data sample" if sample is not None else "")
                + "; the two features of largest variance.",
                plots.plot_mixture(model, sample, names=names),
            )
        )
    if model is not None and model.decoding is not None and len(model.decoding.trace) > 1:
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
    figure.set_size_inches(*_SIZE)
    urls = {}
    for scheme, colours in SCHEMES.items():
        _paint(ax, colours["ink"], colours["paper"])
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
            text.set_fontsize(8)
