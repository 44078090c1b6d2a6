"""Pictures of a scale fit, a sketch, a mixture and a decoding (extra ``plot``).

Every function draws into ``ax`` if given, else into a new figure that belongs to nobody else, and
returns the axes; ``ax.figure`` is the figure. Colours are readable on light and dark paper alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display import BLUE, GREEN, GREY, ORANGE
from dask_sketch.errors import InputError
from dask_sketch.models import Centroids

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dask_sketch.features.scale import ScaleFit
    from dask_sketch.models import Decoding, GaussianMixture
    from dask_sketch.sketching.averages import Averages

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
    sketch: Averages, model: GaussianMixture | None = None, ax: Axes | None = None
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
