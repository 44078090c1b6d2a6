"""Kernel densities and kernel regression from weighted rows and the features of a sketch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_sketch.distributions.control_variates import FeatureRegression

Array = NDArray[np.float64]
_POINTS = 256  # points at once
_WIDTH = 64  # numbers of points are multiples of it, since rounding may depend on the number


class LocalMeans:
    """Means over rows weighted by a Gaussian kernel around points.

    Parameters
    ----------
    regression
        Regression on the features of the sketch, with its rows.
    features
        Numbers of the features in which rows are near, shape (n_given,).
    bandwidths
        Standard deviations of the kernel, shape (n_given,).
    target
        Number of the feature whose mean is regressed.
    """

    def __init__(
        self,
        regression: FeatureRegression,
        features: NDArray[np.intp],
        bandwidths: Array,
        target: int = 0,
    ):
        self._regression = regression
        self._bandwidths = bandwidths
        rows = regression.nodes.rows
        self._center = rows[:, features].mean(axis=0)  # the expanded square needs small values
        self._rows = (rows[:, features] - self._center) / bandwidths
        self._target = rows[:, target]
        self._peak = float(np.exp(-np.log(bandwidths * np.sqrt(2.0 * np.pi)).sum()))

    def _kernel(self, points: Array) -> Array:
        """Kernel of all rows around points and some others, shape (n_rows, n_kernels)."""
        scaled = np.zeros((-len(points) // _WIDTH * -_WIDTH, len(self._bandwidths)))
        scaled[: len(points)] = (points - self._center) / self._bandwidths
        squares = np.sum(self._rows**2, axis=1)[:, None] + np.sum(scaled**2, axis=1)
        squares -= 2.0 * (self._rows @ scaled.T)
        return np.asarray(np.exp(-0.5 * np.maximum(squares, 0.0)))

    def density(self, points: Array) -> Array:
        """Kernel densities and their standard errors, shape (n_points, 2)."""
        points = np.asarray(points, dtype=np.float64)
        out = np.full((len(points), 2), np.nan)
        finite = np.flatnonzero(np.isfinite(points).all(axis=1))
        for start in range(0, len(finite), _POINTS):
            block = finite[start : start + _POINTS]
            found = self._regression.estimate(self._kernel(points[block]))
            value, error = (one[: len(block)] for one in found)
            out[block, 0] = self._peak * np.maximum(value, 0.0)
            out[block, 1] = self._peak * error
        return out

    def regress(self, points: Array) -> Array:
        """Means of the target near points and their standard errors, shape (n_points, 2)."""
        out = np.full((len(points), 2), np.nan)
        middle = self._target.mean()
        for start in range(0, len(points), _POINTS):
            block = slice(start, start + _POINTS)
            kernel = self._kernel(points[block])
            weight = self._regression.estimate(kernel)[0]
            total = self._regression.estimate(kernel * (self._target - middle)[:, None])[0]
            with np.errstate(divide="ignore", invalid="ignore"):
                mean = np.where(weight > 0.0, middle + total / weight, np.nan)
                # error of a ratio, to first order
                kernel *= self._target[:, None] - np.nan_to_num(mean)
                error = self._regression.estimate(kernel)[1] / weight
            error[np.isnan(mean)] = np.nan
            out[block] = np.column_stack([mean, error])[: len(out[block])]
        return out
