"""Joint log-density of rows and the components of a mixture, such as one of Gaussians."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from dask_sketch.models.gaussian_kernels import squared_distances
from dask_sketch.models.missing_values import log_joint_observed

Array = NDArray[np.float64]
# Squared distance of a component from the center, in its variances, up to which the expanded
# quadratic form loses fewer than seven of sixteen digits.
_MAX_EXPANDED = 1e6
_GRID_STEPS = 6  # steps of the grid to either side of a rounded value, at most one deviation each
_DISTINCT = 0.5  # fraction of the rows with distinct values of a feature of few values, at most
_TINY = np.finfo(float).tiny
_NO_WIDTH = 3e-3  # standard deviation, over that of the rows, below which values are points


class JointDensity(ABC):
    """Joint log-density of samples and components; a subclass has :meth:`log_joint`."""

    @abstractmethod
    def log_joint(self, block: Array) -> Array:
        """Log of weight times density, shape (n, n_components)."""

    def log_total(self, block: Array) -> Array:
        """Log of the mixture's density, shape (n,)."""
        return self.normalised(block)[1]

    def posterior(self, block: Array) -> Array:
        """Probability of each component given the sample, shape (n, n_components)."""
        return self.normalised(block)[0]

    def normalised(self, block: Array) -> tuple[Array, Array]:
        """Probabilities of the components, and log-densities of the mixture."""
        joint = self.log_joint(block)
        largest = joint.max(axis=1)
        joint -= largest[:, None]
        np.exp(joint, out=joint)
        total = joint.sum(axis=1)
        joint /= total[:, None]
        return joint, largest + np.log(total)


class RowDensity(JointDensity):
    """Joint log-density of samples and components.

    With variances, the quadratic form is expanded into two matrix products. To avoid cancellation,
    samples and means are taken relative to the mean of the mixture, and the few components that are
    still many standard deviations away from it are computed by differences. With covariance
    matrices, equations of the Cholesky factors are solved for differences from each mean. The
    density of a row with missing values (NaN) is the density of the observed ones.

    Parameters
    ----------
    weights, means
        Weights, shape (n_components,), and means, shape (n_components, n_features).
    covariances
        Variances, shape (n_components, n_features); or covariance matrices, shape (n_components,
        n_features, n_features), or (1, n_features, n_features) for one that all components share.

    Examples
    --------
    >>> density = RowDensity(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    >>> density.log_total(np.zeros((1, 2))).round(3)
    array([-1.838])
    """

    def __init__(self, weights: Array, means: Array, covariances: Array) -> None:
        d = means.shape[1]
        self._given = weights, means, covariances
        self._center = weights @ means
        self._means = means - self._center
        with np.errstate(divide="ignore"):  # a weight of zero is a density of zero
            log_weights = np.log(weights)
        self._shared: Array | None = None  # transposed inverse of the common Cholesky factor
        self._lower: Array | None = None  # Cholesky factors of the components
        if covariances.ndim == 3:
            lower = np.asarray(np.linalg.cholesky(covariances), dtype=np.float64)
            halves = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
            log_weights = log_weights - halves
            if len(covariances) < len(means) or len(means) == 1:
                self._shared = np.linalg.inv(lower[0]).T
                self._means = self._means @ self._shared
            else:
                self._lower = lower
            covariances = np.ones((len(means), d))
        self._precisions = 1.0 / covariances
        scaled = self._means * self._precisions
        distances = (self._means * scaled).sum(axis=1)
        self._peaks = log_weights - 0.5 * np.log(2.0 * np.pi * covariances).sum(axis=1)
        self._constants = self._peaks - 0.5 * distances
        self._linear = scaled.T.copy()
        self._quadratic = (-0.5 * self._precisions).T.copy()
        self._far = np.flatnonzero(distances > _MAX_EXPANDED)

    def log_joint(self, block: Array) -> Array:
        """Log of weight times density, shape (n, n_components)."""
        joint = self._log_joint_complete(block)
        incomplete = np.isnan(joint[:, 0])
        if incomplete.any():
            joint[incomplete] = log_joint_observed(*self._given, block[incomplete])
        return joint

    def _log_joint_complete(self, block: Array) -> Array:
        """Log of weight times density; NaN for rows with missing values."""
        x = block - self._center
        if self._lower is not None:
            squares = squared_distances(x, self._means, self._lower)
            return np.ascontiguousarray((self._peaks[:, None] - 0.5 * squares).T)
        if self._shared is not None:
            x = x @ self._shared
        joint = x @ self._linear
        joint += (x * x) @ self._quadratic
        joint += self._constants
        for far in self._far:
            k = int(far)
            joint[:, k] = self._peaks[k] - 0.5 * ((x - self._means[k]) ** 2 @ self._precisions[k])
        return np.asarray(joint)


def uncovered_features(rows: Array, means: Array, variances: Array) -> NDArray[np.intp]:
    """Features of few values, of which a new combination would have hardly any density.

    In such features some components have no width. If none is wide in all of them, a row with a
    combination of values that no component has is millions of deviations away from each.

    Parameters
    ----------
    rows
        Rows of the data, shape (n_rows, n_features).
    means, variances
        Means and variances of the components, shape (K, n_features).

    Returns
    -------
    features
        Numbers of these features; none if a component is wide in all of them, or the rows have all
        combinations of the values.

    Examples
    --------
    >>> rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> uncovered_features(rows, rows[:3], np.full((3, 2), 1e-12))
    array([0, 1])
    """
    tolerance = _NO_WIDTH * rows.std(axis=0)
    points = np.sqrt(variances) < tolerance
    # where most values are distinct, these are narrow clusters far from each other
    for k in np.flatnonzero(points.any(axis=0)):
        points[:, k] &= len(np.unique(rows[:, k])) <= _DISTINCT * len(rows)
    chosen = np.flatnonzero(points.any(axis=0))
    if len(chosen) < 2 or not points.any(axis=1).all():
        return chosen[:0]
    codes = np.full((len(rows), len(chosen)), -1)
    for column, feature in enumerate(chosen):
        values = np.unique(means[points[:, feature], feature])
        after = np.searchsorted(values, rows[:, feature] - tolerance[feature])
        nearest = values[np.minimum(after, len(values) - 1)]
        is_value = np.abs(nearest - rows[:, feature]) <= tolerance[feature]
        codes[is_value, column] = np.searchsorted(values, nearest[is_value])
    possible = np.prod([float(len(np.unique(column))) for column in codes.T])
    return chosen if len(np.unique(codes, axis=0)) < possible else chosen[:0]


def gap_variances(rows: Array) -> Array:
    """Variances to add to components for rows that are rounded to the gaps between their values.

    A density has no bound at a value that is repeated: components without width there, one for each
    of the values, would seem ever likelier. With the variance of a normal density whose maximum is
    one over the gap, a component has about the probability of the rounded value, divided by the
    width of its interval, and no more than that without width. The median gap belongs to the scale
    on which most values were recorded; among thousands of values that are not rounded, it is
    negligible.

    Parameters
    ----------
    rows
        Rows of the data, shape (n_rows, n_features).

    Returns
    -------
    variances
        Squared median gaps over 2 pi, shape (n_features,); zero for a constant feature.

    Examples
    --------
    >>> gap_variances(np.array([[0.0, 5.0], [3.0, 5.0], [3.0, 5.0], [6.0, 5.0]]))
    array([1.43239449, 0.        ])
    """
    gaps = [np.diff(np.unique(column)) for column in rows.T]
    return np.array([np.median(gap) ** 2 / (2.0 * np.pi) if gap.size else 0.0 for gap in gaps])


def masses_on_grid(variances: Array, rounding: Array) -> Array:
    """Total probability of the rounded values that normal densities around one of them give.

    Parameters
    ----------
    variances
        Variances of components with those of :func:`gap_variances` added, shape (n_components,
        n_features).
    rounding
        The latter, shape (n_features,).

    Returns
    -------
    masses
        One for components of the width of the gap or wider, up to 1.09 in each feature for those
        without width, shape (n_components,).

    Examples
    --------
    >>> rounding = np.array([1.0, 0.0])
    >>> masses_on_grid(rounding + np.array([[9.0, 1.0], [0.0, 1.0]]), rounding).round(3)
    array([1.   , 1.086])
    """
    squared_gaps = 2.0 * np.pi * rounding
    ratios = squared_gaps / np.maximum(variances, 1e-300)
    steps = np.arange(-_GRID_STEPS, _GRID_STEPS + 1)
    sums = np.exp(-0.5 * ratios[..., None] * steps**2).sum(axis=-1)
    masses = np.where(ratios > 1.0, np.sqrt(ratios / (2.0 * np.pi)) * sums, 1.0)
    return np.asarray(masses.prod(axis=1))
