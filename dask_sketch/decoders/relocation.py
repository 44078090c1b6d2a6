"""Moves of mixture components out of local maxima of the likelihood: merge here, split there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dask_sketch.decoders.covariances import Components, Covariances

Array = NDArray[np.float64]
_MIN_SHARE = 0.05  # rows below this probability of a component do not decide how it is split
_MAX_ROWS = 4000  # rows that a split is fitted to
_N_ITERATIONS = 10  # of EM of two components on the rows of one
_MIN_ROWS = 5.0  # effective rows of each half, and one more for each feature


def relocations(
    family: Covariances, components: Components, rows: Array, weights: Array, floor: float
) -> Iterator[Components]:
    """Mixtures with one component removed and another one split, the most promising first.

    The loss of a removal is the likelihood that the other components leave to the rows. The gain of
    a split is that of EM with two components on the rows of one, weighted by its probabilities.
    After split and merge EM (Ueda, Nakano, Ghahramani and Hinton 2000), with other criteria.

    Parameters
    ----------
    family
        Type of the covariances.
    components
        Mixture at a maximum of the likelihood.
    rows, weights
        Rows in standard units, shape (n_rows, n_features), and their weights, shape (n_rows,).
    floor
        Number added to variances.
    """
    shares = family.posterior(components, rows)
    losses = -(weights @ np.log1p(-np.minimum(shares, 1.0 - 1e-15)))
    splits = [
        _split(family, components, k, shares[:, k], rows, weights, floor)
        for k in range(len(components.weights))
    ]
    gains = np.array([gain for gain, _ in splits])
    expected = gains[:, None] - losses
    np.fill_diagonal(expected, -np.inf)
    used: set[int] = set()
    for pair in np.argsort(-expected, axis=None, kind="stable"):
        k, removed = (int(index) for index in np.unravel_index(pair, expected.shape))
        if not np.isfinite(expected[k, removed]):
            return
        if k in used:  # the same split beside another removal seldom succeeds
            continue
        used.add(k)
        halves = splits[k][1]
        assert halves is not None  # its gain is positive
        yield _replace(components, k, removed, halves)


def _replace(components: Components, k: int, removed: int, halves: Components) -> Components:
    weights, means = components.weights.copy(), components.means.copy()
    covariances = components.covariances.copy()
    both = np.array([k, removed])
    weights[both] = components.weights[k] * halves.weights
    means[both], covariances[both] = halves.means, halves.covariances
    return Components(weights / weights.sum(), means, covariances)


def _split(
    family: Covariances,
    components: Components,
    k: int,
    share: Array,
    rows: Array,
    weights: Array,
    floor: float,
) -> tuple[float, Components | None]:
    """Gain of the likelihood by splitting a component in two, and its halves."""
    kept = np.flatnonzero(share > _MIN_SHARE)
    kept = kept[:: max(len(kept) // _MAX_ROWS, 1)]
    n_min = _MIN_ROWS + rows.shape[1]
    if len(kept) < 2 * n_min:
        return -np.inf, None
    x, w = rows[kept], weights[kept] * share[kept]
    w = w / w.sum()
    one = Components(np.ones(1), components.means[[k]], components.covariances[[k]])
    single = family.maximization(family.expectation(one, x, w), one, floor)
    alone = family.expectation(single, x, w).log_likelihood
    best, halves = -np.inf, None
    for upper in _divisions(x, w):
        start = family.from_labels(x, w, upper.astype(np.intp), 2)
        for _ in range(_N_ITERATIONS):
            moments = family.expectation(start, x, w)
            start = family.maximization(moments, start, floor)
        rows_of = moments.counts**2 / np.maximum(moments.squared_counts, 1e-300)
        gain = moments.log_likelihood - alone
        if rows_of.min() > n_min and gain > best:
            best, halves = gain, start
    return float(components.weights[k]) * best, halves


def _divisions(x: Array, w: Array) -> Iterator[NDArray[np.bool_]]:
    """Divisions of rows in two: by the widest direction, distance, and the least normal feature."""
    deviation = x - w @ x
    scale = np.sqrt(w @ deviation**2)
    standard = deviation / np.where(scale > 0.0, scale, 1.0)
    _, vectors = np.linalg.eigh((standard * w[:, None]).T @ standard)
    along = standard @ vectors[:, -1]
    distance = (standard**2).sum(axis=1)
    odd = standard[:, int(np.argmax(np.abs(w @ standard**4 - 3.0)))]
    for divided in (along > 0.0, distance > np.quantile(distance, 0.7), odd > 0.0):
        if divided.any() and not divided.all():
            yield divided
