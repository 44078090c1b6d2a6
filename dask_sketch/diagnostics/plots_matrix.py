"""A matrix of discrepancies, as of every two groups (extra ``plot``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dask_sketch.diagnostics.plots import density_colours, new_axes
from dask_sketch.errors import InputError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

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
