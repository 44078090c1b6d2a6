"""GetLocalMaximum of the sketch-and-shift paper: local maxima of the correlation with points.

For the law ``"gaussian"`` the correlation ``f_r(c) = Re <r, a(c)>`` of the sketch with a point
``c`` is an unbiased estimate of a kernel density estimate of the data, of the map's scale as its
bandwidth (eq. 8); for other laws it is one with another smooth kernel.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from dask_sketch.decoders.families import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.errors import DecodeError

Maxima = Literal["shift", "discrete", "ascent"]
MAXIMA: tuple[str, ...] = get_args(Maxima)

_N_ITERATIONS = 50  # steps of a start at most
_STILL = 1e-3  # of the bandwidth: a shorter step is the last one
# Sketched mean shift divides by the correlation, which does vanish on the way (in 15 to 60 % of
# the paths in two dimensions, for all that the paper saw none).
_SMALLEST = 1e-3  # of the largest correlation of all starts
_TINY = float(np.finfo(float).tiny)
_LONGEST = 1.0  # step in bandwidths times the root of the number of features


def climb(
    objective: Objective, residual: tuple[Array, Array], starts: Array, maxima: str = "shift"
) -> tuple[Array, Array]:
    """Move points towards local maxima of their correlation with a residual, all together.

    Parameters
    ----------
    objective
        Of the family of points.
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each.
    starts
        Starting points, shape (n, n_features), in the objective's coordinates.
    maxima
        ``"shift"``: sketched mean shift, eq. (9), ``c + eta grad f / |f|``. The paper leaves the
        step open; ``eta`` is the squared bandwidth, with which the step is that of mean shift
        for infinitely many frequencies. ``"ascent"``: plain gradient ascent, ``c + eta grad f``
        with the same ``eta``, the paper's negative example: it hardly moves where the correlation
        is small. ``"discrete"``: the points stay where they are.

    Returns
    -------
    points, values
        Where they ended, shape (n, n_features), and the correlations there, shape (n,).

    Raises
    ------
    DecodeError
        If the way to find maxima is unknown.
    """
    if maxima not in MAXIMA:
        raise DecodeError(f"maxima={maxima!r} is unknown; choose one of {', '.join(MAXIMA)}.")
    points = starts.copy()
    if maxima == "discrete":
        return points, objective.correlations(points, residual)
    lower, upper = objective.lower, objective.upper
    moving = np.arange(len(points))
    longest = _LONGEST * np.sqrt(objective.n_features)
    for _ in range(_N_ITERATIONS):
        values, gradients = objective.correlation_gradients(points[moving], residual)
        steps = gradients
        if maxima == "shift":
            sizes = np.abs(values)
            steps = gradients / np.maximum(sizes, max(_SMALLEST * sizes.max(), _TINY))[:, None]
        lengths = np.linalg.norm(steps, axis=1)
        steps *= np.minimum(1.0, longest / np.maximum(lengths, _TINY))[:, None]
        moved = np.clip(points[moving] + steps, lower, upper)
        far = np.abs(moved - points[moving]).max(axis=1) > _STILL
        points[moving] = moved
        moving = moving[far]
        if not len(moving):
            break
    return points, objective.correlations(points, residual)
