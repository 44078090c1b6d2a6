"""Pictures of a scale fit, a sketch, a mixture and a decoding (extra ``plot``).

Every function draws into ``ax`` if given, else into a new figure that belongs to nobody else, and
returns the axes; ``ax.figure`` is the figure. Colours are readable on light and dark paper alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from dask_sketch.display.drawing import BLUE, GREEN, GREY, ORANGE
from dask_sketch.display.progress import in_notebook
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from dask_sketch.diagnostics.detection import ErrorRates
    from dask_sketch.features.feature_map import Described
    from dask_sketch.features.scale import ScaleFit
    from dask_sketch.models.gaussian_mixture import GaussianMixture
    from dask_sketch.models.model import Decoding
    from dask_sketch.sketching.group import GroupAverages
    from dask_sketch.sketching.sketch import Sketch

SIZE = (5.0, 3.75)  # inches
_SHOWN = 5000  # points of a scatter: more make a picture larger, not clearer


def plot_scale_fit(fit: ScaleFit | None, ax: Axes | None = None) -> Axes:
    """The pilot moduli against radius, and the envelope that gave the scale (Figure 2).

    Parameters
    ----------
    fit
        ``feature_map.scale_fit`` after ``design``, or the result of ``estimate_scale``.
    ax
        Where to draw.

    Raises
    ------
    InputError
        If there is no fit, or matplotlib is missing.
    """
    if fit is None:
        raise InputError(
            "fit=None: the feature map was given its scale, or was read from a file; the fit is "
            "on the map that design() returns when it estimates the scale."
        )
    ax = new_axes(ax)
    radii = np.linspace(0.0, float(fit.radii.max()), 200)
    ax.plot(fit.radii, fit.moduli, ".", color=GREY, ms=3, alpha=0.7, label="pilot frequencies")
    ax.plot(fit.peak_radii, fit.peak_moduli, "o", color=BLUE, ms=5, label="largest of a shell")
    ax.plot(radii, fit.curve(radii), color=ORANGE, lw=2, label=f"fit: scale {fit.scale:.3g}")
    ax.set(xlabel="radius of frequency (radians per unit)", ylabel="modulus |z|")
    ax.set_ylim(0.0, 1.05)
    ax.legend()
    return ax


def plot_modulus(
    sketch: Sketch, model: GaussianMixture | None = None, ax: Axes | None = None
) -> Axes:
    """Modulus of the characteristic function against radius of frequency.

    With the envelope of the component that the frequencies were drawn for, and the noise level:
    frequencies at which the sketch lies in the noise say nothing about the data.

    Parameters
    ----------
    sketch
        Of at least one sample.
    model
        Mixture to show beside it.
    ax
        Where to draw.

    Raises
    ------
    InputError
        If the sketch is empty, or matplotlib is missing.
    """
    ax = new_axes(ax)
    radii, moduli = sketch.feature_map.scaled_radii, np.abs(sketch.characteristic)
    some = slice(None, None, -(-len(radii) // _SHOWN))
    ax.plot(radii[some], moduli[some], ".", color=BLUE, ms=2.5, alpha=0.5, label="sketch")
    if model is not None:
        expected = np.abs(model.characteristic(sketch.feature_map.frequencies[:, some]))
        ax.plot(radii[some], expected, ".", color=GREEN, ms=2.5, alpha=0.5, label="mixture")
    grid = np.linspace(0.0, float(radii.max()), 200)
    noise = sketch.noise_modulus
    ax.plot(grid, np.exp(-0.5 * grid**2), color=ORANGE, lw=2, label="envelope of the law")
    ax.axhline(noise, color=GREY, ls="--", lw=1.5, label="noise level")
    ax.set_yscale("log")
    ax.set_ylim(noise / 10.0, 1.5)
    ax.set(xlabel="radius of frequency (in component scales)", ylabel="modulus |z|")
    # upper right is where the envelope never is
    ax.legend(loc="upper right", markerscale=3)
    return ax


def plot_mixture(
    model: GaussianMixture | Centroids,
    sample: ArrayLike | None = None,
    features: tuple[int, int] | None = None,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Components as ellipses of two standard deviations, over the density of a sample.

    Parameters
    ----------
    model
        What to draw; what weighs more is the larger and bolder. Centroids are dots alone.
    sample
        Rows of data, shape (n, n_features).
    features
        The two features to show; those of largest variance by default.
    names
        Names of all features.
    ax
        Where to draw.

    Raises
    ------
    InputError
        If a feature does not exist, shapes do not match, or matplotlib is missing.
    """
    d = model.n_features
    rows = None if sample is None else np.asarray(sample, dtype=np.float64)
    if rows is not None and (rows.ndim != 2 or rows.shape[1] != d or not len(rows)):
        raise InputError(f"sample has shape {rows.shape}; the model needs (n, {d}).")
    if features is None:
        spread = _variance(model) if rows is None else rows.var(axis=0)
        order = np.argsort(-spread, kind="stable")
        features = (int(order[0]), int(order[min(1, d - 1)]))
    if len(features) != 2 or not all(0 <= feature < d for feature in features):
        raise InputError(f"features={features!r}: give two numbers from 0 to {d - 1}.")
    if names is not None and len(names) != d:
        raise InputError(f"names has {len(names)} names for {d} features.")
    ax = new_axes(ax)
    from matplotlib.collections import EllipseCollection

    pair = list(features)
    if rows is not None:
        shown = ax.hexbin(
            rows[:, pair[0]],
            rows[:, pair[1]],
            gridsize=50,
            bins="log",
            mincnt=1,
            cmap=density_colours(),
            lw=0.1,
        )
        shown.set_rasterized(True)  # thousands of polygons otherwise
        shown.set_label("density of the sample")
    share = model.weights / model.weights.max()
    if isinstance(model, Centroids):
        centers = model.centers[:, pair]
        deviations = np.zeros_like(centers)
    else:
        centers, deviations = model.means[:, pair], np.sqrt(model.covariances[:, pair])
    ellipses = EllipseCollection(
        4.0 * deviations[:, 0],  # two deviations to either side
        4.0 * deviations[:, 1],
        np.zeros(len(share)),
        units="xy",
        offsets=centers,
        offset_transform=ax.transData,
        facecolors="none",
        edgecolors=ORANGE,
        linewidths=0.3 + 1.3 * share**2,
        alpha=1.0 if len(share) <= 16 else 0.6,
        label="two standard deviations",
    )
    if deviations.any():
        ax.add_collection(ellipses)
    ax.scatter(
        centers[:, 0],
        centers[:, 1],
        s=4 + 40 * share,
        color=ORANGE,
        zorder=3,
        lw=0,
        label="centroids",
    )
    low, high = (centers - 2 * deviations).min(axis=0), (centers + 2 * deviations).max(axis=0)
    if isinstance(model, Centroids):  # dots have no width of their own
        room = 0.05 * np.where(high > low, high - low, 1.0)
        low, high = low - room, high + room
    if rows is not None:
        # a few far components must not squeeze the data into a corner
        inner = np.percentile(rows[:, pair], [0.05, 99.95], axis=0)
        room = 0.15 * (inner[1] - inner[0])
        low, high = np.maximum(low, inner[0] - room), np.minimum(high, inner[1] + room)
        low, high = np.minimum(low, inner[0]), np.maximum(high, inner[1])
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    labels = [f"feature {k}" for k in range(d)] if names is None else list(map(str, names))
    ax.set(xlabel=labels[pair[0]], ylabel=labels[pair[1]])
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_parse_math(False)  # a name may hold dollar signs
    return ax


def _variance(model: GaussianMixture | Centroids) -> NDArray[np.float64]:
    """Of the model in each feature; of centroids, between them."""
    if not isinstance(model, Centroids):
        return model.variance
    mean = model.weights @ model.centers
    return np.asarray(model.weights @ (model.centers - mean) ** 2)


def plot_trace(decoding: Decoding | None, ax: Axes | None = None) -> Axes:
    """Cost of the decoder after each iteration, and the cost that noise alone explains.

    Parameters
    ----------
    decoding
        ``model.decoding``.
    ax
        Where to draw.

    Raises
    ------
    InputError
        If the model was not decoded, or matplotlib is missing.
    """
    if decoding is None:
        raise InputError("decoding=None: this mixture was not decoded from a sketch.")
    ax = new_axes(ax)
    from matplotlib.ticker import MaxNLocator

    iterations = np.arange(1, len(decoding.trace) + 1)
    ax.plot(iterations, decoding.trace, "o-", color=BLUE, ms=4, lw=1.5, label="cost")
    ax.axhline(decoding.noise_level, color=GREY, ls="--", lw=1.5, label="expected from noise alone")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel=decoding.steps, ylabel="cost ||z - AP||²")
    ax.legend()
    return ax


def new_axes(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure that belongs to nobody else."""
    if ax is not None:
        return ax
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=SIZE, layout="constrained").add_subplot()


def require_matplotlib() -> None:
    """Raise unless pictures can be made."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InputError("pictures need matplotlib: pip install 'dask-sketch[plot]'.") from error


def density_colours() -> Any:
    """From faint to strong blue; faint is see-through, so that it suits any paper."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("density", [(0.23, 0.51, 0.84, a) for a in (0.08, 1)])


# The DET curve: misses against false alarms of a verifier (extra ``plot``).

_LEAST, _MOST = 5e-4, 0.6  # of a rate: the axes have no place for zero, nobody looks at the rest
_TICKS = np.array([0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95])


def plot_det(rates: ErrorRates, ax: Axes | None = None, **line: Any) -> Axes:
    """Both rates of error on the scale of normal deviates, and the point where they are equal.

    Two normal distributions of scores, of equal variance, give a straight line.

    Parameters
    ----------
    rates
        Of a verifier.
    ax
        Where to draw; several curves may share one.
    line
        Arguments of ``Axes.plot``, such as ``label``.

    Raises
    ------
    InputError
        If matplotlib is missing.

    Examples
    --------
    >>> from dask_sketch.diagnostics.detection import error_rates
    >>> rates = error_rates([0.1, 0.4, 0.6, 0.9], [False, True, False, True])
    >>> plot_det(rates, label="sketch").get_xlabel()
    'false alarms'
    """
    ax = new_axes(ax)
    others = len(ax.lines) > 0
    x, y = (norm.ppf(np.clip(r, _LEAST, 1 - _LEAST)) for r in (rates.false_alarm, rates.miss))
    (drawn,) = ax.plot(x, y, **line)
    here = norm.ppf(np.clip(rates.equal_error_rate, _LEAST, 1 - _LEAST))
    ax.plot([here], [here], "o", color=drawn.get_color())
    for axis, name in ((ax.xaxis, "false alarms"), (ax.yaxis, "misses")):
        axis.set_ticks(norm.ppf(_TICKS), [f"{100 * tick:g} %" for tick in _TICKS])
        axis.set_label_text(name)
    most = max(_MOST, min(2.0 * rates.equal_error_rate, 1.0 - _LEAST))
    if others:
        most = max(most, float(norm.cdf(ax.get_xlim()[1])))
    ends = norm.ppf([_LEAST, most])
    ax.set(xlim=ends, ylim=ends, aspect="equal")
    ax.tick_params(axis="x", rotation=45)
    return ax


# A matrix of discrepancies, as of every two groups (extra ``plot``).

_NAMED = 40  # groups whose labels have room beside the picture


def plot_matrix(matrix: xr.DataArray, ax: Axes | None = None) -> Axes:
    """Squares that are the stronger the larger their number; empty ones for NaN.

    Parameters
    ----------
    matrix
        Two-dimensional, its labels as coordinates.
    ax
        Where to draw.

    Raises
    ------
    InputError
        If it has another number of dimensions, or matplotlib is missing.

    Examples
    --------
    >>> import xarray as xr
    >>> labels = ["ada", "ben"]
    >>> matrix = xr.DataArray(np.eye(2), {"speaker": labels, "other": labels}, name="mmd")
    >>> plot_matrix(matrix).get_ylabel()
    'speaker'
    """
    if matrix.ndim != 2:
        raise InputError(f"matrix has dimensions {matrix.dims}: a picture of one needs two.")
    ax = new_axes(ax)
    values = np.asarray(matrix, dtype=np.float64)
    drawn = ax.imshow(values, cmap=density_colours(), interpolation="nearest")
    for axis, dim in ((ax.yaxis, matrix.dims[0]), (ax.xaxis, matrix.dims[1])):
        labels = matrix[dim].values if dim in matrix.coords else np.arange(matrix.sizes[dim])
        step = -(-len(labels) // _NAMED)
        axis.set_ticks(np.arange(len(labels))[::step], [str(x) for x in labels[::step]])
        axis.set_label_text(str(dim))
    ax.tick_params(axis="x", rotation=90)
    ax.figure.colorbar(drawn, ax=ax, label=str(matrix.name or ""))
    return ax


# ``plot`` of feature maps, sketches, models and the rest: the pictures of each (extra ``plot``).
#
# ``sketch.plot.moduli()`` draws into ``ax`` if given, else into a new figure, and returns the axes.
# In a notebook that figure is one of pyplot's, so that it shows beneath the cell; elsewhere it is
# the caller's alone (``axes.figure.savefig("moduli.png")``).


@dataclass(frozen=True)
class FeatureMapPictures:
    """Of a feature map."""

    _of: Described

    def scale_fit(self, ax: Axes | None = None) -> Axes:
        """How the scale was found: :func:`~dask_sketch.display.plots.plot_scale_fit`."""
        return plot_scale_fit(self._of.scale_fit, shown(ax))


@dataclass(frozen=True)
class SketchPictures:
    """Of a sketch."""

    _of: Sketch

    def moduli(self, model: GaussianMixture | None = None, ax: Axes | None = None) -> Axes:
        """``|z|`` against radius: :func:`~dask_sketch.display.plots.plot_modulus`."""
        return plot_modulus(self._of, model, shown(ax))


@dataclass(frozen=True)
class GroupPictures:
    """Of sketches of groups."""

    _of: GroupAverages

    def mmd(self, ax: Axes | None = None) -> Axes:
        """Discrepancy of every two groups: :func:`~.plots_matrix.plot_matrix` of ``mmd()``."""
        return plot_matrix(self._of.mmd(), shown(ax))


@dataclass(frozen=True)
class ModelPictures:
    """Of a mixture, or of centroids."""

    _of: GaussianMixture | Centroids

    def ellipses(
        self,
        sample: ArrayLike | None = None,
        features: tuple[int, int] | None = None,
        names: Sequence[str] | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Components over a sample: :func:`~dask_sketch.display.plots.plot_mixture`."""
        return plot_mixture(self._of, sample, features, names, shown(ax))

    def trace(self, ax: Axes | None = None) -> Axes:
        """Cost of the decoder: :func:`~dask_sketch.display.plots.plot_trace`."""
        return plot_trace(self._of.decoding, shown(ax))


@dataclass(frozen=True)
class RatesPictures:
    """Of the errors of a verifier."""

    _of: ErrorRates

    def det(self, ax: Axes | None = None, **line: Any) -> Axes:
        """The DET curve: :func:`~dask_sketch.display.plots.plot_det`."""
        return plot_det(self._of, shown(ax), **line)


def shown(ax: Axes | None) -> Axes | None:
    """Axes that a notebook will show, where there is one and none are given."""
    if ax is not None or not in_notebook():
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=SIZE, layout="constrained")[1]
