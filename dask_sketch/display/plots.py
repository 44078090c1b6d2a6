"""Plot scale fits, sketches, mixtures, decoding traces and error rates (extra ``plot``).

Every function draws into ``ax`` if given, else into a new figure that belongs to nobody else, and
returns the axes; ``ax.figure`` is the figure. Colours are readable on light and dark paper alike.
The functions take arrays, or objects with the few attributes that the protocols name.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from dask_sketch.display.progress import in_notebook
from dask_sketch.display.theme import BLUE, GREEN, GREY, ORANGE
from dask_sketch.errors import InputError, install_command

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
SIZE = (5.0, 3.75)  # inches
_WIDE_RANGE = 1000.0  # range of a criterion, in nats, from which its axis is logarithmic
_MAX_LEGEND = 8  # lines that a legend names
_MAX_POINTS = 5000  # points of a scatter plot, at most: more make a picture larger, not clearer


class ScaleFitLike(Protocol):
    """Moduli of pilot frequencies by radius, and the scale fitted to them."""

    @property
    def scale(self) -> float: ...  # noqa: D102
    @property
    def radii(self) -> Array: ...  # noqa: D102
    @property
    def moduli(self) -> Array: ...  # noqa: D102
    @property
    def peak_radii(self) -> Array: ...  # noqa: D102
    @property
    def peak_moduli(self) -> Array: ...  # noqa: D102
    def curve(self, radii: ArrayLike) -> Array: ...  # noqa: D102


class FeatureMapLike(Protocol):
    """Frequencies, and their radii in units of a component."""

    @property
    def frequencies(self) -> Array: ...  # noqa: D102
    @property
    def scaled_radii(self) -> Array: ...  # noqa: D102


class SketchLike(Protocol):
    """Empirical characteristic function at the frequencies of a feature map."""

    @property
    def feature_map(self) -> FeatureMapLike: ...  # noqa: D102
    @property
    def characteristic(self) -> NDArray[np.complex128]: ...  # noqa: D102
    @property
    def noise_modulus(self) -> float: ...  # noqa: D102


class CharacteristicFunction(Protocol):
    """Model with a characteristic function."""

    def characteristic(self, frequencies: ArrayLike) -> NDArray[np.complex128]: ...  # noqa: D102


class DecodingLike(Protocol):
    """Cost of a decoder after each iteration."""

    @property
    def trace(self) -> tuple[float, ...]: ...  # noqa: D102
    @property
    def noise_level(self) -> float: ...  # noqa: D102
    @property
    def steps(self) -> str: ...  # noqa: D102


class ErrorRatesLike(Protocol):
    """Misses and false alarms of a verifier at every threshold."""

    @property
    def miss(self) -> Array: ...  # noqa: D102
    @property
    def false_alarm(self) -> Array: ...  # noqa: D102
    @property
    def equal_error_rate(self) -> float: ...  # noqa: D102


def plot_scale_fit(fit: ScaleFitLike | None, ax: Axes | None = None) -> Axes:
    """Pilot moduli by radius, and the fitted envelope (Keriven et al. 2018, Figure 2).

    Parameters
    ----------
    fit
        Fit of ``feature_map.scale_fit`` after ``design``, or of ``estimate_scale``.
    ax
        Axes to draw into.

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
    sketch: SketchLike, model: CharacteristicFunction | None = None, ax: Axes | None = None
) -> Axes:
    """Modulus of the characteristic function by radius of the frequency.

    Shown with the envelope of the component that the frequencies were sampled for, and the noise
    level: frequencies where the sketch is below the noise carry no information on the data.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    model
        Mixture to show beside the sketch.
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If the sketch is empty, or matplotlib is missing.
    """
    ax = new_axes(ax)
    radii, moduli = sketch.feature_map.scaled_radii, np.abs(sketch.characteristic)
    some = slice(None, None, -(-len(radii) // _MAX_POINTS))
    ax.plot(radii[some], moduli[some], ".", color=BLUE, ms=2.5, alpha=0.5, label="sketch")
    if model is not None:
        expected = np.abs(model.characteristic(sketch.feature_map.frequencies[:, some]))
        ax.plot(radii[some], expected, ".", color=GREEN, ms=2.5, alpha=0.5, label="mixture")
    grid = np.linspace(0.0, float(radii.max()), 200)
    noise = sketch.noise_modulus
    ax.plot(grid, np.exp(-0.5 * grid**2), color=ORANGE, lw=2, label="envelope of one component")
    ax.axhline(noise, color=GREY, ls="--", lw=1.5, label="noise level")
    ax.set_yscale("log")
    ax.set_ylim(noise / 10.0, 1.5)
    ax.set(xlabel="radius of frequency (in component scales)", ylabel="modulus |z|")
    # at small radii, moduli are above the noise level
    ax.legend(loc="lower left", markerscale=3)
    return ax


def plot_components(
    weights: ArrayLike,
    means: ArrayLike,
    covariances: ArrayLike | None = None,
    sample: ArrayLike | None = None,
    features: tuple[int, int] | None = None,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Components as ellipses of two standard deviations, over the density of a sample.

    Parameters
    ----------
    weights
        Weights of the components, shape (n_components,); heavier ones are larger and bolder.
    means
        Means of the components, shape (n_components, n_features).
    covariances
        Variances of the components, shape (n_components, n_features), or covariance matrices,
        shape (n_components, n_features, n_features). Points where not given.
    sample
        Rows of data, shape (n_samples, n_features).
    features
        Numbers of the two features to show; by default the two with the largest variances.
    names
        Names of all features.
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If a feature does not exist, shapes do not match, or matplotlib is missing.
    """
    fractions = np.asarray(weights, dtype=np.float64)
    centers_all = np.asarray(means, dtype=np.float64)
    deviations_all, d = np.zeros_like(centers_all), centers_all.shape[1]
    shapes = None if covariances is None else np.asarray(covariances, dtype=np.float64)
    if shapes is not None:
        variances = shapes if shapes.ndim == 2 else np.diagonal(shapes, axis1=1, axis2=2)
        deviations_all = np.sqrt(variances)
    rows = None if sample is None else np.asarray(sample, dtype=np.float64)
    if rows is not None and (rows.ndim != 2 or rows.shape[1] != d or not len(rows)):
        raise InputError(f"sample has shape {rows.shape}; the model needs (n_samples, {d}).")
    if features is None:
        away = (centers_all - fractions @ centers_all) ** 2 + deviations_all**2
        spread = fractions @ away if rows is None else rows.var(axis=0)
        order = np.argsort(-spread, kind="stable")
        features = (int(order[0]), int(order[min(1, d - 1)]))
    if len(features) != 2 or not all(0 <= feature < d for feature in features):
        raise InputError(f"features={features!r}: give two numbers from 0 to {d - 1}.")
    if names is not None and len(names) != d:
        raise InputError(f"names has {len(names)} names for {d} features: give one for each.")
    ax = new_axes(ax)
    pair = list(features)
    shown = None if rows is None else rows[:, pair]
    if shown is not None:
        _draw_density(ax, shown)
    axes, angles = 1.0 * deviations_all[:, pair], np.zeros(len(fractions))
    if shapes is not None and shapes.ndim == 3 and pair[0] != pair[1]:
        squares, directions = np.linalg.eigh(shapes[:, pair][:, :, pair])
        axes = np.sqrt(np.maximum(squares, 0.0))
        angles = np.degrees(np.arctan2(directions[:, 1, 0], directions[:, 0, 0]))
    _draw_ellipses(ax, fractions / fractions.max(), centers_all[:, pair], axes, angles)
    low, high = _limits(centers_all[:, pair], deviations_all[:, pair], shown)
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    labels = [f"feature {k}" for k in range(d)] if names is None else list(map(str, names))
    ax.set(xlabel=labels[pair[0]], ylabel=labels[pair[1]])
    take_names_literally(ax)
    return ax


def _draw_density(ax: Axes, rows: Array) -> None:
    drawn = ax.hexbin(
        rows[:, 0], rows[:, 1], gridsize=50, bins="log", mincnt=1, cmap=density_colours(), lw=0.1
    )
    drawn.set_rasterized(True)  # thousands of polygons otherwise
    drawn.set_label("density of the sample")


def _draw_ellipses(
    ax: Axes, fractions: Array, centers: Array, deviations: Array, angles: Array
) -> None:
    """Ellipses with deviations along two axes, the first at an angle in degrees."""
    from matplotlib.collections import EllipseCollection

    if deviations.any():
        ellipses = EllipseCollection(
            4.0 * deviations[:, 0],  # two deviations to either side
            4.0 * deviations[:, 1],
            angles,
            units="xy",
            offsets=centers,
            offset_transform=ax.transData,
            facecolors="none",
            edgecolors=ORANGE,
            linewidths=0.3 + 1.3 * fractions**2,
            alpha=1.0 if len(fractions) <= 16 else 0.6,
            label="two standard deviations",
        )
        ax.add_collection(ellipses)
    size = 4 + 40 * fractions
    ax.scatter(
        centers[:, 0], centers[:, 1], s=size, color=ORANGE, zorder=3, lw=0, label="centroids"
    )


def _limits(centers: Array, deviations: Array, rows: Array | None) -> tuple[Array, Array]:
    """Ends of both axes, shape (2,) each."""
    low, high = (centers - 2 * deviations).min(axis=0), (centers + 2 * deviations).max(axis=0)
    if not deviations.any():  # points have no width of their own
        room = 0.05 * np.where(high > low, high - low, 1.0)
        low, high = low - room, high + room
    if rows is not None:
        # a few far components must not squeeze the data into a corner
        inner = np.percentile(rows, [0.05, 99.95], axis=0)
        room = 0.15 * (inner[1] - inner[0])
        low, high = np.maximum(low, inner[0] - room), np.minimum(high, inner[1] + room)
        low, high = np.minimum(low, inner[0]), np.maximum(high, inner[1])
    return low, high


def plot_trace(decoding: DecodingLike | None, ax: Axes | None = None) -> Axes:
    """Cost of the decoder after each iteration, and the cost that noise alone explains.

    Parameters
    ----------
    decoding
        Record of the decoder, ``model.decoding``.
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If the model was not decoded, or matplotlib is missing.
    """
    if decoding is None:
        raise InputError("decoding=None: this mixture was not decoded from a sketch.")
    ax = new_axes(ax)
    iterations = np.arange(1, len(decoding.trace) + 1)
    ax.plot(iterations, decoding.trace, "o-", color=BLUE, ms=4, lw=1.5, label="cost")
    ax.axhline(decoding.noise_level, color=GREY, ls="--", lw=1.5, label="expected from noise alone")
    ax.set_yscale("log")
    integer_ticks(ax)
    ax.set(xlabel=decoding.steps, ylabel="cost ||z - AP||²")
    ax.legend()
    return ax


def plot_criterion(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    selected: tuple[float, float],
    label: str,
    ax: Axes | None = None,
) -> Axes:
    """Criterion of model selection by the number of components.

    Parameters
    ----------
    curves
        Numbers of components and values of the criterion, by the name of the curve, such as the
        type of the covariances.
    selected
        Number of components and value of the selected model.
    label
        Name of the criterion.
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If matplotlib is missing.
    """
    ax = new_axes(ax)
    for (name, (numbers, values)), color in zip(
        curves.items(), itertools.cycle((BLUE, GREEN, ORANGE, GREY)), strict=False
    ):
        ax.plot(numbers, values, "o-", color=color, ms=4, lw=1.5, label=name)
    ax.plot(*selected, "o", ms=11, mfc="none", mec=ORANGE, mew=2, label="selected")
    integer_ticks(ax)
    ax.set(xlabel="components", ylabel=label)
    ends = np.concatenate([np.asarray(values, np.float64).ravel() for _, values in curves.values()])
    if np.ptp(ends) > _WIDE_RANGE:
        ax.set_yscale("symlog", linthresh=_WIDE_RANGE / 10)
    ax.legend()
    return ax


def plot_explained_variance(ratios: ArrayLike, ax: Axes | None = None) -> Axes:
    """Fraction of the variance along each principal component, and its running sum.

    Parameters
    ----------
    ratios
        Fraction of the total variance along each component, shape (n_components,).
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If matplotlib is missing.

    Examples
    --------
    >>> ax = plot_explained_variance([0.7, 0.2])
    >>> len(ax.patches), ax.get_ylabel()
    (2, 'fraction of the variance')
    """
    ax = new_axes(ax)
    values = np.asarray(ratios, dtype=np.float64)
    numbers = np.arange(len(values))
    ax.bar(numbers, values, color=BLUE, label="each")
    ax.plot(numbers, np.cumsum(values), color=ORANGE, marker=".", label="together")
    integer_ticks(ax)
    ax.set(xlabel="component", ylabel="fraction of the variance", ylim=(0.0, 1.05))
    ax.legend()
    return ax


def plot_history(
    numbers: Sequence[int],
    values: ArrayLike,
    label: str,
    weights: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Values of components over runs, one line for each component.

    Parameters
    ----------
    numbers
        Numbers of the runs, increasing.
    values
        Values by run and component, shape (n_runs, n_components); NaN where there is none.
    label
        Label of the axis of values.
    weights
        Weights of the same shape, which the areas of the markers show; equal markers by default.
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If matplotlib is missing.

    Examples
    --------
    >>> ax = plot_history([1, 2, 3], [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], "weight")
    >>> len(ax.lines), ax.get_ylabel()
    (2, 'weight')
    """
    ax = new_axes(ax)
    from matplotlib import colormaps

    y = np.asarray(values, dtype=np.float64)
    sizes = np.full(y.shape, 12.0)
    if weights is not None:
        masses = np.nan_to_num(np.asarray(weights, dtype=np.float64))
        sizes = 4.0 + 80.0 * masses / max(masses.max(initial=0.0), np.finfo(float).tiny)
    for k, line in enumerate(y.T):
        color = colormaps["viridis"](0.85 * k / max(y.shape[1] - 1, 1))
        ax.plot(numbers, line, color=color, lw=1.2, label=f"component {k}")
        ax.scatter(numbers, line, sizes[:, k], color=[color])
    integer_ticks(ax)
    ax.set(xlabel="run", ylabel=label)
    if y.shape[1] <= _MAX_LEGEND:  # the legend is beside the axes: lines may be anywhere in them
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return ax


def new_axes(ax: Axes | None) -> Axes:
    """Given axes, or the axes of a new figure."""
    if ax is not None:
        return ax
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=SIZE, layout="constrained").add_subplot()


def integer_ticks(ax: Axes) -> None:
    """Put the ticks of the horizontal axis at integers only."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def take_names_literally(ax: Axes) -> None:
    """Draw names as they are: they may hold dollar signs that do not mark formulas."""
    legend = ax.get_legend()
    marked = [] if legend is None else legend.get_texts()
    for text in (ax.xaxis.label, ax.yaxis.label, *marked):
        text.set_parse_math(False)


def require_matplotlib() -> None:
    """Raise unless matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InputError(f"plots need matplotlib: {install_command('plot')}.") from error


def density_colours() -> Any:
    """Colour map from transparent to strong blue, for light and dark paper."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("density", [(0.23, 0.51, 0.84, a) for a in (0.08, 1)])


# range of the rates in a DET curve: the axes cannot show zero, and nobody looks at higher rates
_MIN_RATE, _MAX_RATE = 5e-4, 0.6
_TICKS = np.array([0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95])


def plot_det(rates: ErrorRatesLike, ax: Axes | None = None, **line: Any) -> Axes:
    """Detection error trade-off: both error rates on normal-deviate axes, and the equal error rate.

    Scores with two normal distributions of equal variance give a straight line.

    Parameters
    ----------
    rates
        Error rates of a verifier.
    ax
        Axes to draw into; several curves may share them.
    line
        Keyword arguments of ``Axes.plot``, such as ``label``.

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
    x, y = (ndtri(np.clip(r, _MIN_RATE, 1 - _MIN_RATE)) for r in (rates.false_alarm, rates.miss))
    (drawn,) = ax.plot(x, y, **line)
    here = ndtri(np.clip(rates.equal_error_rate, _MIN_RATE, 1 - _MIN_RATE))
    ax.plot([here], [here], "o", color=drawn.get_color())
    for axis, name in ((ax.xaxis, "false alarms"), (ax.yaxis, "misses")):
        axis.set_ticks(ndtri(_TICKS), [f"{100 * tick:g} %" for tick in _TICKS])
        axis.set_label_text(name)
    largest = max(_MAX_RATE, min(2.0 * rates.equal_error_rate, 1.0 - _MIN_RATE))
    if others:
        largest = max(largest, float(ndtr(ax.get_xlim()[1])))
    ends = ndtri([_MIN_RATE, largest])
    ax.set(xlim=ends, ylim=ends, aspect="equal")
    ax.tick_params(axis="x", rotation=45)
    return ax


@dataclass(frozen=True)
class FeatureMapPlots:
    """Plots of a feature map.

    Attributes
    ----------
    scale_fit_
        Fit of the scale, if the scale was estimated.
    """

    scale_fit_: ScaleFitLike | None

    def scale_fit(self, ax: Axes | None = None) -> Axes:
        """Plot the fit of the scale: :func:`~dask_sketch.display.plots.plot_scale_fit`."""
        return plot_scale_fit(self.scale_fit_, notebook_axes(ax))


@dataclass(frozen=True)
class SketchPlots:
    """Plots of a sketch.

    Attributes
    ----------
    sketch
        Sketch to plot.
    """

    sketch: SketchLike

    def moduli(self, model: CharacteristicFunction | None = None, ax: Axes | None = None) -> Axes:
        """Plot ``|z|`` by radius: :func:`~dask_sketch.display.plots.plot_modulus`."""
        return plot_modulus(self.sketch, model, notebook_axes(ax))


@dataclass(frozen=True)
class ModelPlots:
    """Plots of a mixture, or of centroids.

    Attributes
    ----------
    weights
        Weights of the components, shape (n_components,).
    means
        Means of the components, shape (n_components, n_features).
    covariances
        Variances of the components, of the same shape, or covariance matrices, shape
        (n_components, n_features, n_features); none of points.
    decoding
        Record of the decoder, if there is one.
    """

    weights: Array
    means: Array
    covariances: Array | None
    decoding: DecodingLike | None

    def ellipses(
        self,
        sample: ArrayLike | None = None,
        features: tuple[int, int] | None = None,
        names: Sequence[str] | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Plot components over a sample: :func:`~dask_sketch.display.plots.plot_components`."""
        return plot_components(
            self.weights, self.means, self.covariances, sample, features, names, notebook_axes(ax)
        )

    def trace(self, ax: Axes | None = None) -> Axes:
        """Plot the cost of the decoder: :func:`~dask_sketch.display.plots.plot_trace`."""
        return plot_trace(self.decoding, notebook_axes(ax))


@dataclass(frozen=True)
class RatesPlots:
    """Plots of the error rates of a verifier.

    Attributes
    ----------
    rates
        Error rates at every threshold.
    """

    rates: ErrorRatesLike

    def det(self, ax: Axes | None = None, **line: Any) -> Axes:
        """Plot the DET curve: :func:`~dask_sketch.display.plots.plot_det`."""
        return plot_det(self.rates, notebook_axes(ax), **line)


def notebook_axes(ax: Axes | None) -> Axes | None:
    """Axes of a figure that the notebook shows, where there is a notebook and none are given."""
    if ax is not None or not in_notebook():
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=SIZE, layout="constrained")[1]


@dataclass(frozen=True)
class HistoryPlots:
    """Plots of the models of successive runs.

    Attributes
    ----------
    numbers
        Numbers of the runs.
    weights_by_run, means_by_run
        Weights and means of the components, shapes (n_runs, n_components) and (n_runs,
        n_components, n_features); NaN where there is none.
    names
        Names of the features; None if there are none.
    """

    numbers: Sequence[int]
    weights_by_run: Array
    means_by_run: Array
    names: Sequence[str] | None

    def weights(self, ax: Axes | None = None) -> Axes:
        """Plot the weights over time: :func:`~dask_sketch.display.plots.plot_history`."""
        return plot_history(self.numbers, self.weights_by_run, "weight", ax=notebook_axes(ax))

    def means(self, feature: int | str = 0, ax: Axes | None = None) -> Axes:
        """Plot the means of a feature over time, with areas of markers by the weights.

        Parameters
        ----------
        feature
            Number or name of the feature.
        ax
            Axes to draw into.

        Raises
        ------
        InputError
            If there is no such feature.
        """
        names = list(self.names or [])
        k = names.index(feature) if feature in names else feature
        n = self.means_by_run.shape[2]
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 0 <= k < n:
            raise InputError(
                f"feature={feature!r}: give a number from 0 to {n - 1}"
                + (f", or one of {names}." if names else "."),
                parameter="feature",
            )
        label = f"mean of {names[k] if names else f'feature {k}'}"
        return plot_history(
            self.numbers, self.means_by_run[:, :, k], label, self.weights_by_run, notebook_axes(ax)
        )


@dataclass(frozen=True)
class SelectionPlots:
    """Plots of a selection among models.

    Attributes
    ----------
    curves, selected, label
        Arguments of :func:`~dask_sketch.display.plots.plot_criterion`.
    """

    curves: Mapping[str, tuple[ArrayLike, ArrayLike]]
    selected: tuple[float, float]
    label: str

    def criterion(self, ax: Axes | None = None) -> Axes:
        """Plot the criterion: :func:`~dask_sketch.display.plots.plot_criterion`."""
        return plot_criterion(self.curves, self.selected, self.label, notebook_axes(ax))
