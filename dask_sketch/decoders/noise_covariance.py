"""Noise of a sketch: covariance of its features under a mixture, and expected cost of the best fit.

With ``psi`` the characteristic function of the mixture, the covariance of ``exp(-i w_i.x)`` and
``exp(-i w_j.x)`` is ``psi(w_i - w_j) - psi(w_i) conj psi(w_j)``, and the pseudo-covariance has
``w_i + w_j`` in place of the difference. Both are combined into the covariance of the real and
imaginary parts, to which decoders fit. Divided by the number of samples, it is the covariance of
the sketch.

At the distribution of the samples the cost is the noise level on average. The best fit costs less,
since it has adapted to the noise: its cost is the energy of the noise outside of the span of the
derivatives. Of white noise that is the fraction ``1 - P / 2m``; the entries of a sketch are
so correlated that it is a third to a half of the noise level at ``m = 5 P``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.features.kernels.elementary import power_of_two
from dask_sketch.validation.compilation import cached_njit
from dask_sketch.validation.threads import SERIAL, Threads

_TILE = 256  # frequencies; the four sums of two tiles (2 MiB) stay in the second-level cache
# Points sampled from the mixture to estimate the covariance of the entries of a sketch: the mean
# cost is then known to an eighth of its standard deviation.
_POINTS = 64
_DEVIATIONS = 3.0  # standard deviations above the expected cost that noise explains
# ridge relative to the curvatures, so that equations with coincident atoms are solvable
_RIDGE = 1e-9


def feature_covariance(
    weights: Array,
    means: Array,
    variances: Array,
    frequencies: Array,
    threads: Threads = SERIAL,
    dtype: npt.DTypeLike = np.float64,
) -> npt.NDArray[Any]:
    """Covariance matrix of the real and imaginary parts of ``exp(-i w.x)`` under a mixture.

    Parameters
    ----------
    weights
        Weights, shape (K,), summing to one.
    means, variances
        Means and variances, shape (K, n_features); or covariance matrices (K, n_features,
        n_features) in place of variances.
    frequencies
        Frequencies, shape (n_features, m).
    threads
        Threads that work on the tiles of the matrix; the calling thread by default.
    dtype
        Precision of the result; entries are computed in float64.

    Returns
    -------
    covariance
        Covariance matrix (2m, 2m), real parts first. Only its lower triangle is filled.

    Notes
    -----
    The result takes 32 m**2 bytes in float64, and ``K m**2`` pairs of exponentials are computed.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> covariance = feature_covariance(np.ones(1), 0 * one, one, one)
    >>> covariance.diagonal().round(3)  # of cos(x) and -sin(x)
    array([0.2  , 0.432])
    """
    m = frequencies.shape[1]
    phases = means @ frequencies
    cosine, sine = np.cos(phases), np.sin(phases)
    log2 = 1.0 / np.log(2.0)
    if variances.ndim == 3:
        shaped = [((v * log2) @ frequencies).T.copy() for v in variances]
        halves = 0.5 * np.stack([(each.T * frequencies).sum(axis=0) for each in shaped])
    else:
        shaped = [(frequencies * (v * log2)[:, None]).T.copy() for v in variances]
        halves = 0.5 * log2 * (variances @ frequencies**2)
    amplitude = weights[:, None] * np.exp2(-halves)
    mean = np.concatenate([(amplitude * cosine).sum(axis=0), -(amplitude * sine).sum(axis=0)])
    out = np.zeros((2 * m, 2 * m), dtype)
    tiles = [slice(start, min(start + _TILE, m)) for start in range(0, m, _TILE)]

    def prepare() -> Callable[[tuple[slice, slice]], None]:
        pair = np.empty((2, min(_TILE, m)))

        def fill(tile: tuple[slice, slice]) -> None:
            (rows, columns), (top, left) = tile, (tile[0].start, tile[1].start)
            sums = np.zeros((4, rows.stop - top, columns.stop - left))
            for k in range(len(weights)):
                _add_component(
                    shaped[k][rows] @ frequencies[:, columns],
                    (halves[k, rows], cosine[k, rows], sine[k, rows]),
                    (halves[k, columns], cosine[k, columns], sine[k, columns]),
                    0.5 * weights[k],
                    pair,
                    sums,
                )
            down, right = slice(m + top, m + rows.stop), slice(m + left, m + columns.stop)
            out[rows, columns] = sums[0] - np.outer(mean[rows], mean[columns])
            out[down, right] = sums[1] - np.outer(mean[down], mean[right])
            out[down, columns] = sums[2] - np.outer(mean[down], mean[columns])
            out[right, rows] = -sums[3].T - np.outer(mean[right], mean[rows])

        return fill

    threads.each(prepare, [(a, b) for i, a in enumerate(tiles) for b in tiles[: i + 1]])
    return out


@cached_njit(nogil=True, error_model="numpy")
def _add_component(products, row, column, half_weight, pair, sums):  # type: ignore[no-untyped-def]
    """Add the second moments of one component to the four sums of a tile.

    The four sums belong to the two real parts, the two imaginary parts, imaginary with real, and,
    with the other sign, real with imaginary. ``products`` is ``w_i' S w_j``; rows and columns hold
    half of ``w' S w``, and cosine and sine of ``w.mean``. Exponents have base two, and none is
    positive.
    """
    for i in range(products.shape[0]):
        h, c, s = row[0][i], row[1][i], row[2][i]
        _halves(products[i], h, column[0], half_weight, pair[0], pair[1])
        _accumulate(pair[0], pair[1], c, s, column[1], column[2], sums[0, i], sums[1, i])
        _accumulate(pair[0], pair[1], -s, c, column[1], column[2], sums[2, i], sums[3, i])


@cached_njit(nogil=True, error_model="numpy")
def _halves(product, h, column, half_weight, plus, minus):  # type: ignore[no-untyped-def]
    """Half of the sum and of the difference of ``psi(w_i - w_j)`` and ``psi(w_i + w_j)``."""
    for j in range(product.size):
        both = h + column[j]
        difference = half_weight * power_of_two(product[j] - both)
        total = half_weight * power_of_two(-product[j] - both)
        plus[j] = difference + total
        minus[j] = difference - total


@cached_njit(nogil=True, error_model="numpy")
def _accumulate(u, v, a, b, cosine, sine, first, second):  # type: ignore[no-untyped-def]
    for j in range(cosine.size):
        x, y = a * cosine[j], b * sine[j]
        first[j] += u[j] * x + v[j] * y
        second[j] += v[j] * x + u[j] * y


def expected_cost(
    objective: Objective, weights: Array, theta: Array, rng: np.random.Generator
) -> tuple[float, float]:
    """Mean and standard deviation of the cost of the best fit to samples of a mixture.

    The sketch of one sample less that of the mixture is a sample ``v`` of the noise times
    ``sqrt(n)``. With ``Q`` the projection off the span of the derivatives, the cost has the mean
    ``E |Q v|^2 / n`` and the variance ``2 E (Q v . Q v')^2 / n^2`` over independent ``v, v'``. Both
    are estimated from points of the mixture.

    Parameters
    ----------
    objective
        Atoms and their derivatives.
    weights
        Weights, shape (K,), not all zero.
    theta
        Atoms, shape (K, n_parameters).
    rng
        Random number generator.

    Returns
    -------
    mean, deviation
        Mean and standard deviation, in the unit of the cost.
    """
    d = objective.space.n_features
    proportions = weights / weights.sum()
    labels = rng.choice(len(proportions), _POINTS, p=proportions)
    sampled = rng.standard_normal((_POINTS, d))
    shapes = objective.space.shapes(theta)
    if shapes.ndim == 3:
        away = np.einsum("nij,nj->ni", np.linalg.cholesky(shapes)[labels], sampled)
    else:
        away = sampled * np.sqrt(shapes)[labels]
    x = theta[labels, :d] + away
    noise = objective.points(x)
    if objective.patterns is not None:  # some rows do not observe all frequencies
        noise -= noise.mean(axis=0)
        factors = objective.patterns.simulate(_POINTS, rng)[:, objective.chosen]
        noise *= np.tile(factors, 2)
    if objective.added_variance:
        # the added noise is nearly white; each sample carries the same part of it
        deviation = np.sqrt(objective.effective_count * objective.added_variance)
        amplitude = np.tile(objective.feature_weights / np.sqrt(objective.n_frequencies), 2)
        noise += deviation * amplitude * rng.standard_normal(noise.shape)
    if objective.patterns is None:
        noise -= noise.mean(axis=0)
    halves = noise.reshape(_POINTS, 2, -1)

    gram = objective.gram(weights, theta)
    scale = 1.0 / np.sqrt(np.maximum(np.diagonal(gram), np.finfo(float).tiny))
    gram *= scale
    gram *= scale[:, None]
    gram.reshape(-1)[:: len(gram) + 1] += _RIDGE
    inner = np.zeros((len(gram), _POINTS))
    for block, rows in objective.jacobian_blocks(weights, theta):
        inner += np.tensordot(rows, halves[:, :, block], axes=((1, 2), (1, 2)))
    solved = scale[:, None] * objective.factorise(gram)(scale[:, None] * inner)
    # |Q v|^2 and products of pairs, for the projection Q off the span of the derivatives
    products = noise @ noise.T - inner.T @ solved
    n = objective.effective_count
    # the mean of the points has been removed: one degree of freedom less
    mean = float(np.trace(products)) / (_POINTS - 1) / n
    pairs = products - np.diag(np.diagonal(products))
    deviation = np.sqrt(2.0 * float(np.sum(pairs**2)) / (_POINTS * (_POINTS - 1))) / n
    return max(mean, 0.0), float(deviation)


def is_explained(objective: Objective, fit: Fit, rng: np.random.Generator) -> bool:
    """Whether noise explains the cost of a fit, so that no better fit says more about the data."""
    if not fit.weights.any():
        return False
    mean, deviation = expected_cost(objective, fit.weights, fit.theta, rng)
    return fit.cost <= mean + _DEVIATIONS * deviation
