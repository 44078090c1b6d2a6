"""Draw the figures of a report, in the colours of its page (extra ``plot``)."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from dask_sketch.display import plots
from dask_sketch.models.gaussian_mixture import GaussianMixture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.sketching.sketch import Sketch

# placeholders that are replaced by the colours of the page
_INK, _PAPER = "#010203", "#040506"
_SIZE = (4.6, 3.5)  # inches; small, so that text is legible in a narrow window


@dataclass(frozen=True)
class Picture:
    """Figure as an SVG element, in the colours of the page around it."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Drawing:
    """Figure that a caller of the report draws.

    Attributes
    ----------
    title, caption
        Heading, and explanation below the figure.
    draw
        Function that draws into the axes of its keyword argument ``ax``. The axes of the page do
        not belong to a figure of pyplot, which a notebook would show.
    size
        Width and height in inches.
    """

    title: str
    caption: str
    draw: Callable[..., object]
    size: tuple[float, float] = _SIZE

    def picture(self) -> Picture:
        """Draw the figure."""
        ax = plots.new_axes(None)
        self.draw(ax=ax)
        return _picture(self.title, self.caption, ax, self.size)


def draw_pictures(
    sketch: Sketch | None,
    model: GaussianMixture | Centroids | None,
    feature_map: FeatureMap | None,
    sample: ArrayLike | None,
    names: list[str],
    drawings: Sequence[Drawing] = (),
) -> list[Picture]:
    """Draw all figures that are possible for the given subjects.

    Parameters
    ----------
    sketch, model, feature_map, sample, names, drawings
        Arguments of :func:`~dask_sketch.diagnostics.report.write_report`.

    Returns
    -------
    pictures
        Figures as SVG elements.

    Raises
    ------
    InputError
        If matplotlib is missing, or ``sample`` or ``names`` do not match the model.
    """
    pictures = [drawing.picture() for drawing in drawings]
    if feature_map is not None and feature_map.scale_fit is not None:
        pictures.append(
            _picture(
                "Scale fit",
                "|z| of the pilot samples, in units of the components' standard deviations. It "
                "lies below the envelope of one component, the more so the more components there "
                "are.",
                plots.plot_scale_fit(feature_map.scale_fit),
            )
        )
    if sketch is not None:
        mixture = model if isinstance(model, GaussianMixture) else None
        pictures.append(
            _picture(
                "|z| by radius",
                "Frequencies below the noise level carry no information"
                + ("; above it, mixture and sketch should agree." if mixture else "."),
                plots.plot_modulus(sketch, mixture),
            )
        )
    if model is not None:
        caption = (
            "Components as ellipses of two standard deviations, bold for large weights"
            if isinstance(model, GaussianMixture)
            else "Centroids, large for large weights"
        )
        pictures.append(
            _picture(
                "The model",
                caption
                + (", over a data sample" if sample is not None else "")
                + "; the two features of largest variance.",
                model.plot.ellipses(sample, names=names, ax=plots.new_axes(None)),
            )
        )
    if model is not None and model.decoding is not None and len(model.decoding.trace) > 1:
        pictures.append(
            _picture(
                "Decoder",
                "Cost after each step. A cost that stays well above the noise level indicates a "
                "poor minimum, or data that is not such a mixture.",
                plots.plot_trace(model.decoding),
            )
        )
    return pictures


def _picture(title: str, caption: str, ax: Axes, size: tuple[float, float] = _SIZE) -> Picture:
    import matplotlib as mpl

    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.set_size_inches(*size)
    for axes in figure.axes:  # including the axes of colour bars
        _paint(axes)
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": title}):  # identical pictures give identical text
        figure.savefig(buffer, format="svg", dpi=150)
    return Picture(title, caption, _element(buffer.getvalue(), title.encode().hex()))


def _element(text: str, mark: str) -> str:
    """Extract the SVG element for a page, without metadata and with unique identifiers."""
    text = text[text.index("<svg") :]
    for needless in (r"<!--.*?-->", r"<metadata>.*?</metadata>", r"<style.*?</style>"):
        text = re.sub(needless, "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{mark}-", text)
    return text.replace(_INK, "currentColor").replace(_PAPER, "var(--paper)")


def _paint(ax: Axes) -> None:
    if ax.figure is not None:
        ax.figure.set_facecolor("none")
    ax.set_facecolor("none")
    for spine in ax.spines.values():
        spine.set_color(_INK)
    ax.tick_params(which="both", colors=_INK)
    for label in (ax.xaxis.label, ax.yaxis.label, ax.title):
        label.set_color(_INK)
    legend = ax.get_legend()
    if legend is not None:
        legend.get_frame().set(facecolor=_PAPER, edgecolor=_INK, alpha=0.85)
        for text in legend.get_texts():
            text.set_color(_INK)
            text.set_fontsize(8)
