"""Divergences of rows by the distances to their nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.spatial import KDTree

from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.sketch import sketch
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer, require_memory

Array = NDArray[np.float64]
_FOLDS = 10
# Biases decrease like a power of the number of rows: 1 / n_features, at most 1/2 where densities
# have edges or the second one lighter tails, and 0.2 for an estimate of "kl" that grows with the
# rows, since few rows or none of the second distribution lie in the tails of the first.
_SLOWEST = 5  # features beyond which the power is not assumed to be smaller
_POWER, _POWER_OF_TAILS = 0.5, 0.2
_PER_NEIGHBOR = 3  # rows of a fold for each neighbour


@dataclass(frozen=True)
class NeighborEstimate:
    """Divergence that is estimated from nearest neighbours.

    Attributes
    ----------
    value
        Estimate; may be negative.
    standard_error
        Standard error, from disjoint parts of the rows; NaN for too few rows.
    bias
        Rough estimate of the bias, from the excess of the estimates of the parts over ``value``. It
        is assumed to decrease like ``n_samples**-power``, with ``power = 1 / min(n_features, 5)``,
        at most 0.5; at most 0.2 for ``"kl"``, if the estimate grows with the number of rows. NaN
        for too few rows.
    degrees
        Degrees of freedom of the standard error: the number of parts minus one. NaN for too few
        rows.
    """

    value: float
    standard_error: float
    bias: float
    degrees: float = math.nan


def checked_rows(name: str, given: Any) -> Array:
    """Validate rows in memory.

    Parameters
    ----------
    name
        Name of the argument.
    given
        Array-like, shape (n_samples, n_features).

    Returns
    -------
    rows
        Rows in float64.

    Raises
    ------
    InputError
        If the values are not finite real numbers, the shape differs, or the rows are lazy.
    """
    require_memory(given, name, "Give rows in memory, or decode a sketch of them.")
    try:
        rows = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} of type {type(given).__name__}: give a mixture, as dask_sketch.decode returns "
            "it, or rows of shape (n_samples, n_features); the other argument must be of the same "
            "kind.",
            parameter=name,
        ) from None
    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
        raise InputError(
            f"{name} has shape {rows.shape}: give finite rows, (n_samples, n_features).",
            parameter=name,
        )
    return rows


def opened_rows(given: Any) -> Any:
    """Open lazy rows; rows in memory and mixtures are returned as they are.

    Parameters
    ----------
    given
        Argument of :func:`sampled_rows`.
    """
    if isinstance(given, (np.ndarray, list, tuple, GaussianMixture, Samples)):
        return given
    samples = open_samples(given)
    return samples if samples.lazy else given


def sampled_rows(name: str, given: Any, n_rows: int, seed: int) -> Array:
    """Validate rows in memory, or draw random rows of lazy input in one pass.

    Parameters
    ----------
    name
        Name of the argument.
    given
        Array-like, shape (n_samples, n_features); or lazy input that
        :func:`~dask_sketch.open_samples` takes or returns.
    n_rows
        Maximum number of rows of lazy input. They are drawn without replacement, as by
        :class:`RowSample`, and are in random order.
    seed
        Seed of the draw, ``>= 0``.

    Returns
    -------
    rows
        Rows, shape (n_samples, n_features); for lazy input, ``(min(n_rows, n_samples),
        n_features)``.

    Raises
    ------
    InputError
        If the values are not finite real numbers, the shape differs, or lazy input has weights or
        an unknown number of features.

    Examples
    --------
    >>> import dask.array as da
    >>> sampled_rows("x", da.random.normal(size=(1000, 2), chunks=(300, 2)), 50, seed=0).shape
    (50, 2)
    """
    opened = opened_rows(given)
    if isinstance(opened, Samples):
        opened = _sample_lazy(name, opened, n_rows, seed)
    return checked_rows(name, opened)


def _sample_lazy(name: str, samples: Samples, n_rows: int, seed: int) -> NDArray[Any]:
    weighted = samples.weights is not None or samples.weight_column or samples.weight_field
    if weighted or samples.n_features is None:
        obstacle = "weights" if weighted else "an unknown number of features"
        raise InputError(
            f"{name}: {samples.label} has {obstacle}. Give rows without weights, of a known number "
            "of features, or decode sketches of both sides.",
            parameter=name,
        )
    # without a pilot, all rows have the same importance
    feature_map = FeatureMap(samples.n_features, 1, scale=1.0, seed=seed)
    sampled = sketch(samples, feature_map, nan_policy="omit", sample=n_rows)
    sampled = sampled.compute() if isinstance(sampled, LazyResult) else sampled
    if sampled.omitted:
        raise InputError(
            f"{name} has {sampled.omitted:,} rows with NaN or infinite values, of "
            f"{sampled.count + sampled.omitted:,}: leave them out of the input.",
            parameter=name,
        )
    return np.asarray(sampled.sample.rows)


def neighbor_divergence(
    x: Array,
    y: Array,
    kind: str,
    alpha: float,
    n_neighbors: int,
    seed: int,
    folds: int = _FOLDS,
) -> NeighborEstimate:
    """Estimate a divergence by distances to nearest neighbours.

    The estimate is consistent for any fixed number of neighbours. Its standard error and bias are
    estimated from disjoint parts of the rows in random order.

    Parameters
    ----------
    x, y
        Rows of the two distributions, shape (n_samples, n_features).
    kind
        Kind of the divergence; all except ``"tv"``.
    alpha
        Order of ``"renyi"`` and ``"alpha"``.
    n_neighbors
        Rank of the neighbour whose distance is used, ``>= 1``.
    seed
        Seed of the order of the rows.
    folds
        Number of parts for the standard error; 0 for no standard error.

    Returns
    -------
    estimate
        Divergence with its error.

    Raises
    ------
    InputError
        If there are too few rows, or rows are repeated.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(2, 500, 1))
    >>> abs(neighbor_divergence(x, y, "kl", 0.5, 5, seed=0).value) < 0.2
    True
    """
    require_neighbors([x, y], kind, alpha, n_neighbors)
    rng = np.random.default_rng(seed)
    x, y = x[rng.permutation(len(x))], y[rng.permutation(len(y))]

    def estimate(left: Array, right: Array) -> float:
        sides = [Neighbors.of(side, n_neighbors) for side in (left, right)]
        return sides[0].divergence(sides[1], kind, alpha)

    value = estimate(x, y)
    if not folds or min(len(x), len(y)) < folds * _PER_NEIGHBOR * (n_neighbors + 1):
        return NeighborEstimate(value, math.nan, math.nan)
    parts = [estimate(x[f::folds], y[f::folds]) for f in range(folds)]
    excess = float(np.mean(parts)) - value
    largest = _POWER_OF_TAILS if kind == "kl" and excess < 0.0 else _POWER
    power = min(1.0 / min(x.shape[1], _SLOWEST), largest)
    return NeighborEstimate(
        value=value,
        standard_error=float(np.std(parts, ddof=1)) / math.sqrt(folds),
        bias=excess / (folds**power - 1.0),
        degrees=folds - 1.0,
    )


def require_neighbors(rows: Sequence[Array], kind: str, alpha: float, n_neighbors: int) -> None:
    """Raise for kinds, orders and rows whose divergence nearest neighbours cannot estimate.

    Parameters
    ----------
    rows
        Rows of each distribution.
    kind, alpha, n_neighbors
        Arguments of :func:`neighbor_divergence`.

    Raises
    ------
    InputError
        If an argument is out of range, there are too few rows, or their features differ.
    """
    k = require_integer("n_neighbors", n_neighbors, 1)
    if kind == "tv":
        raise InputError(
            "kind='tv': the total variation is not estimated by nearest neighbours. Give mixtures, "
            "or kind='squared-hellinger', which bounds it from both sides."
        )
    if kind in ("renyi", "alpha") and k <= abs(alpha - 1.0):
        raise InputError(
            f"n_neighbors={k} with alpha={alpha:g}: give more than {abs(alpha - 1.0):g}."
        )
    for other in rows[1:]:
        if other.shape[1] != rows[0].shape[1]:
            raise InputError(
                f"first has {rows[0].shape[1]} features, another array {other.shape[1]}: give rows "
                "of the same features."
            )
    fewest = min(map(len, rows))
    if fewest < k + 1:
        raise InputError(
            f"n_neighbors={k} with {fewest:,} rows: give more rows, or fewer neighbours."
        )


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Rows with the distances to their own nearest neighbours.

    Attributes
    ----------
    rows
        Rows in random order, shape (n_samples, n_features).
    tree
        Tree of the rows.
    n_neighbors
        Rank ``k`` of the neighbour.
    log_distances
        Logarithm of the distance of each row to its ``k``-th neighbour, shape (n_samples,).
    """

    rows: Array
    tree: KDTree
    n_neighbors: int
    log_distances: Array

    @classmethod
    def of(cls, rows: Array, n_neighbors: int) -> Neighbors:
        """Find the neighbour of each row among the other rows."""
        tree = KDTree(rows)
        return cls(rows, tree, n_neighbors, _log_distances(tree, rows, n_neighbors, 1))

    def divergence(self, other: Neighbors, kind: str, alpha: float) -> float:
        """Divergence of these rows from other rows.

        Parameters
        ----------
        other
            Rows of the second distribution.
        kind, alpha
            Arguments of :func:`neighbor_divergence`.
        """
        (n, d), m, k = self.rows.shape, len(other.rows), self.n_neighbors
        if kind == "js":  # entropies of both sides, and of the same number of rows of each
            n = min(n, m)
            pooled = Neighbors.of(np.concatenate([self.rows[:n], other.rows[:n]]), k)
            return pooled._entropy - 0.5 * (self._entropy + other._entropy)
        log_other = _log_distances(other.tree, self.rows, k, 0)
        if kind == "kl":  # Wang et al. (2009)
            return d * float(np.mean(log_other - self.log_distances)) + math.log(m / (n - 1))
        # the integral of p**order q**(1 - order), Póczos et al. (2012)
        order = 0.5 if kind == "squared-hellinger" else alpha
        ratios = np.exp(d * (1.0 - order) * (self.log_distances - log_other))
        constant = 2.0 * special.gammaln(k) + (1.0 - order) * math.log((n - 1) / m)
        constant -= special.gammaln(k + 1.0 - order) + special.gammaln(k - 1.0 + order)
        integral = math.exp(constant) * float(np.mean(ratios))
        if kind == "renyi":
            return math.log(integral) / (order - 1.0)
        lost = 1.0 - integral
        return lost if kind == "squared-hellinger" else lost / (order * (1.0 - order))

    @property
    def _entropy(self) -> float:
        """Entropy by Kozachenko and Leonenko, without the volume of the ball, which cancels."""
        n, d = self.rows.shape
        scale = float(special.digamma(n) - special.digamma(self.n_neighbors))
        return scale + d * float(np.mean(self.log_distances))


def _log_distances(tree: KDTree, x: Array, k: int, omitted: int) -> Array:
    """Logarithms of the distances to the k-th neighbours, after the row itself is omitted."""
    distances = np.asarray(tree.query(x, k=[k + omitted])[0])[:, 0]
    repeated = int(np.sum(distances == 0.0))
    if repeated:
        raise InputError(
            f"n_neighbors={k}: {repeated:,} rows have a distance of 0 to their neighbour {k}. "
            "Remove repeated rows, add a little noise, or give a larger n_neighbors."
        )
    return np.asarray(np.log(distances))
