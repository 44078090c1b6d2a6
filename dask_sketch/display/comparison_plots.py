"""Plot distances, witness functions, discrepancies and predictions of groups (extra ``plot``).

As in :mod:`~dask_sketch.display.plots`, functions take arrays, draw into ``ax`` if given, and
return the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.plots import density_colours, integer_ticks, new_axes, take_names_literally
from dask_sketch.display.theme import BLUE, GREEN, GREY, ORANGE
from dask_sketch.errors import InputError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_MAX_LABELS = 40  # labels that have room beside a matrix
_SIDES = [BLUE, ORANGE, GREEN, GREY]
_MAX_ORDERED = 1000  # rows of a matrix whose best order of leaves is searched


def plot_discrepancies(
    numbers: Sequence[int],
    discrepancies: ArrayLike,
    intervals: ArrayLike,
    alarms: Sequence[bool],
    *,
    changes: Sequence[int] = (),
    tolerance: float = 0.0,
    ax: Axes | None = None,
) -> Axes:
    """Discrepancy of each run with its interval, and change points.

    Parameters
    ----------
    numbers
        Numbers of the runs, increasing.
    discrepancies, intervals
        Discrepancies, shape (n_runs,), and their confidence intervals, shape (n_runs, 2).
    alarms
        Whether each run raised an alarm.
    changes
        Numbers of the first runs after a change.
    tolerance
        Discrepancy that does not matter; 0 for none.
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If matplotlib is missing.

    Examples
    --------
    >>> ax = plot_discrepancies([2, 3], [0.1, 0.4], [(0.0, 0.2), (0.3, 0.5)], [False, True])
    >>> ax.get_xlabel()
    'run'
    """
    ax = new_axes(ax)
    x, y = np.asarray(numbers), np.asarray(discrepancies, dtype=np.float64)
    low, high = np.asarray(intervals, dtype=np.float64).reshape(-1, 2).T
    alarm = np.asarray(alarms, dtype=bool)
    for chosen, color, label in ((~alarm, BLUE, "no alarm"), (alarm, ORANGE, "alarm")):
        if chosen.any():
            ax.vlines(x[chosen], low[chosen], high[chosen], color=color, lw=1.5)
            ax.plot(x[chosen], y[chosen], "o", color=color, ms=4, label=label, clip_on=False)
    for k, change in enumerate(changes):
        label = "" if k else "change of the distribution"
        ax.axvline(change - 0.5, color=GREEN, ls="--", lw=1.5, label=label)
    if tolerance:
        ax.axhline(tolerance, color=GREY, ls=":", lw=1.5, label="tolerance")
    integer_ticks(ax)
    top = 1.5 * max(high.max(initial=0.0), tolerance) or 1.0  # room for the legend
    ax.set(xlabel="run", ylabel="discrepancy from the data before", ylim=(0.0, top))
    ax.legend(loc="upper left")
    return ax


def plot_matrix(
    matrix: xr.DataArray,
    ax: Axes | None = None,
    *,
    ordered: bool = False,
    sides: Sequence[str] | None = None,
    max_labels: int = _MAX_LABELS,
) -> Axes:
    """Matrix as coloured squares; NaN is left blank.

    Parameters
    ----------
    matrix
        Matrix of two dimensions, with labels as coordinates.
    ax
        Axes to draw into.
    ordered
        Put labels that are close side by side: the order of the leaves of a dendrogram of average
        distances. For a symmetric matrix of distances, such as ``mmd(group)``.
    sides
        Side of each row, shape (n_rows,), of at most four different ones: drawn as a strip of
        colours beside the matrix and below it, with a legend. For a symmetric matrix.
    max_labels
        Largest number of labels that are written at an axis; others are left out evenly.

    Raises
    ------
    InputError
        If it has another number of dimensions, is to be ordered and is not symmetric, the sides do
        not fit, or matplotlib is missing.

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
    codes = None if sides is None else _side_codes(sides, matrix.shape)
    if ordered:
        order = _leaf_order(np.asarray(matrix, dtype=np.float64))
        matrix = matrix[order, order]
        codes = None if codes is None else codes[order]
    ax = new_axes(ax)
    values = np.asarray(matrix, dtype=np.float64)
    drawn = ax.imshow(values, cmap=density_colours(), interpolation="nearest")
    for axis, dim in ((ax.yaxis, matrix.dims[0]), (ax.xaxis, matrix.dims[1])):
        labels = matrix[dim].values if dim in matrix.coords else np.arange(matrix.sizes[dim])
        step = -(-len(labels) // max_labels)
        axis.set_ticks(np.arange(len(labels))[::step], [str(x) for x in labels[::step]])
        axis.set_label_text(str(dim))
    ax.tick_params(axis="x", rotation=90)
    bar = ax.figure.colorbar(drawn, ax=ax, label=str(matrix.name or ""))
    if sides is not None and codes is not None:
        _draw_strips(ax, codes, list(dict.fromkeys(sides)))
    for axes in (ax, bar.ax):
        take_names_literally(axes)
    for text in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        text.set_parse_math(False)
    return ax


def plot_predictions(
    targets: ArrayLike,
    predictions: ArrayLike,
    reach: ArrayLike | None = None,
    *,
    name: str = "target",
    ax: Axes | None = None,
) -> Axes:
    """Predictions over their targets, with intervals; a dashed line where both are equal.

    Parameters
    ----------
    targets, predictions
        Targets and their predictions, shape (n_groups,).
    reach
        Half the width of the interval of each prediction, shape (n_groups,). Intervals that miss
        their targets have another colour.
    name
        Name of the target.
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If matplotlib is missing.

    Examples
    --------
    >>> ax = plot_predictions([1.0, 2.0], [1.1, 1.7], [0.2, 0.2], name="age")
    >>> ax.get_xlabel()
    'age'
    """
    ax = new_axes(ax)
    x, y = np.asarray(targets, dtype=np.float64), np.asarray(predictions, dtype=np.float64)
    half = None if reach is None else np.broadcast_to(np.asarray(reach, np.float64), x.shape)
    inside = np.ones(len(x), dtype=bool) if half is None else np.abs(x - y) <= half
    labels = ("prediction", "") if half is None else ("with its target", "without its target")
    for chosen, color, label in ((inside, BLUE, labels[0]), (~inside, ORANGE, labels[1])):
        if not chosen.any():
            continue
        if half is not None:
            low, high = (y + sign * half for sign in (-1.0, 1.0))
            ax.vlines(x[chosen], low[chosen], high[chosen], color=color, lw=1.0, alpha=0.5)
        ax.plot(x[chosen], y[chosen], "o", color=color, ms=3.5, mew=0, label=label)
    middle = float(np.mean(x)) if len(x) else 0.0
    ax.axline((middle, middle), slope=1.0, color=GREY, ls="--", lw=1.5, label="equal")
    ax.set(xlabel=name, ylabel=f"prediction of {name}")
    ax.legend(loc="upper left")
    take_names_literally(ax)
    return ax


def _side_codes(sides: Sequence[str], shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Code of the side of each row, in the order of their first rows."""
    names = list(dict.fromkeys(sides))
    if shape != (len(sides), len(sides)) or len(names) > len(_SIDES):
        raise InputError(
            f"sides has {len(sides)} rows of {len(names)} sides for a matrix of shape {shape}: "
            f"give the side of each row of a square one, at most {len(_SIDES)} different ones.",
            parameter="sides",
        )
    return np.array([names.index(side) for side in sides], dtype=np.intp)


def _draw_strips(ax: Axes, codes: NDArray[np.intp], names: list[str]) -> None:
    """Strips of colours at the left and below, in place of the marks of the ticks."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ListedColormap(_SIDES[: len(names)])
    for position, strip in (
        ((-0.045, 0.0, 0.03, 1.0), codes[:, None]),
        ((0.0, -0.045, 1.0, 0.03), codes[None]),
    ):
        inner = ax.inset_axes(position)
        inner.imshow(
            strip, cmap=colours, vmin=-0.5, vmax=len(names) - 0.5, aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        inner.set_axis_off()
    ax.tick_params(length=0, pad=16)
    handles = [Patch(color=_SIDES[code], label=name) for code, name in enumerate(names)]
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False,
        borderaxespad=0.2,
    )  # fmt: skip


def _leaf_order(distances: Array) -> NDArray[np.intp]:
    """Order in which close rows of a matrix of distances are neighbours."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering

    n = len(distances)
    if distances.shape != (n, n) or not np.allclose(distances, distances.T, equal_nan=True):
        raise InputError(
            f"ordered=True: matrix has shape {distances.shape} and is not symmetric; its order "
            "needs distances of all pairs, such as mmd(group).",
            parameter="ordered",
        )
    above = distances[np.triu_indices(n, 1)]
    if len(above) < 2:
        return np.arange(n)
    # groups of which nothing is known come last
    above = np.nan_to_num(above, nan=2.0 * np.nanmax(above, initial=1.0))
    merges = linkage(above, "average")
    tree = optimal_leaf_ordering(merges, above) if n <= _MAX_ORDERED else merges
    return np.asarray(leaves_list(tree), dtype=np.intp)


def plot_witness(
    x: ArrayLike,
    values: ArrayLike,
    *,
    names: Sequence[str] | None = None,
    sides: tuple[str, str] | None = None,
    noise: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Witness function at points: where the first of two distributions has more mass, or less.

    Parameters
    ----------
    x
        Points, shape (n_points, 1) or (n_points, 2): of a grid, of rows, or the means of a mixture.
        A full grid of two features is drawn as an image.
    values
        Values of :func:`dask_sketch.distributions.witness` there, shape (n_points,). With more
        features, choose the columns to draw.
    names
        Names of the features.
    sides
        Names of the two distributions.
    noise
        Values at the points that noise does not exceed, shape (n_points,), for one feature: drawn
        as a grey band around zero.
    ax
        Axes to draw into.

    Raises
    ------
    InputError
        If shapes do not match, or matplotlib is missing.

    Examples
    --------
    >>> grid = np.linspace(-3.0, 3.0, 61)[:, None]
    >>> plot_witness(grid, np.sin(grid[:, 0]), names=["height"]).get_xlabel()
    'height'
    """
    points, heights = np.asarray(x, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] not in (1, 2) or heights.shape != points.shape[:1]:
        raise InputError(
            f"x has shape {points.shape} and values {heights.shape}: give points of one or two "
            "features, and one value for each.",
            parameter="x",
        )
    ax = new_axes(ax)
    shown = [f"feature {k}" for k in range(points.shape[1])] if names is None else list(names)
    if points.shape[1] == 1:
        _draw_curve(ax, points[:, 0], heights, sides, noise)
        ax.set(xlabel=shown[0])
        take_names_literally(ax)
        return ax
    reach = float(np.abs(heights).max(initial=0.0)) or 1.0
    style: dict[str, Any] = {"cmap": _sign_colours(), "vmin": -reach, "vmax": reach}
    grid = _grid(points)
    drawn: Any
    if grid is None:
        drawn = ax.scatter(points[:, 0], points[:, 1], c=heights, s=14, lw=0, **style)
    else:
        across, up = grid
        image = np.empty((len(up), len(across)))
        image[np.searchsorted(up, points[:, 1]), np.searchsorted(across, points[:, 0])] = heights
        half = [float(c[1] - c[0]) / 2.0 for c in grid]
        extent = (
            float(across[0]) - half[0], float(across[-1]) + half[0],
            float(up[0]) - half[1], float(up[-1]) + half[1],
        )  # fmt: skip
        drawn = ax.imshow(
            image, extent=extent, origin="lower", aspect="auto", interpolation="bilinear", **style
        )
    ax.set(xlabel=shown[0], ylabel=shown[1])
    first = "the first" if sides is None else sides[0]
    bar = ax.figure.colorbar(drawn, ax=ax, label=f"witness: more of {first} above zero")
    for axes in (ax, bar.ax):
        take_names_literally(axes)
    return ax


def _draw_curve(
    ax: Axes, points: Array, values: Array, sides: tuple[str, str] | None, noise: ArrayLike | None
) -> None:
    """Witness function of one feature, above and below zero in two colours."""
    order = np.argsort(points, kind="stable")
    x, y = points[order], values[order]
    first, second = sides or ("the first", "the second")
    for color, part, side in ((BLUE, y >= 0.0, first), (ORANGE, y <= 0.0, second)):
        ax.fill_between(
            x, y, where=part, interpolate=True, color=color, alpha=0.4, lw=0,
            label=f"more of {side}",
        )  # fmt: skip
    if noise is not None:
        band = np.asarray(noise, dtype=np.float64)[order]
        ax.fill_between(x, -band, band, color=GREY, alpha=0.3, lw=0, label="noise", zorder=0)
    ax.plot(x, y, color=GREY, lw=1.5)
    ax.axhline(0.0, color=GREY, lw=1)
    ax.set(ylabel="witness")
    ax.margins(x=0.0)
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False)


def _grid(points: Array) -> tuple[Array, Array] | None:
    """Coordinates of an evenly spaced grid of two features, if the points are one."""
    across, up = np.unique(points[:, 0]), np.unique(points[:, 1])
    full = len(points) == len(across) * len(up) == len(np.unique(points, axis=0))
    if not full or min(len(across), len(up)) < 2:
        return None
    even = all(np.allclose(np.diff(c), c[1] - c[0], rtol=1e-6, atol=0.0) for c in (across, up))
    return (across, up) if even else None


def _sign_colours() -> Any:
    """Colour map from orange over transparent grey to blue, for light and dark paper."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    ends = to_rgba(ORANGE), to_rgba(GREY, 0.15), to_rgba(BLUE)
    return LinearSegmentedColormap.from_list("sign", ends)
