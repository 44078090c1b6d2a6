"""Covariance of the features of one sample under a mixture: the noise of a sketch, in closed form.

With ``psi`` the characteristic function of the mixture, the covariance of ``exp(-i w_i.x)`` and
``exp(-i w_j.x)`` is ``psi(w_i - w_j) - psi(w_i) conj psi(w_j)``, and the pseudo-covariance has
``w_i + w_j`` in place of the difference. For the real and imaginary parts, which is what decoders
fit, both are combined. Divided by the number of samples, it is the covariance of the sketch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from dask_sketch.decoders.families import Array
from dask_sketch.decoders.kernels import power_of_two
from dask_sketch.decoders.threads import SERIAL, Threads

_TILE = 256  # frequencies: the four sums of a pair of tiles (2 MiB) stay in the second cache


def feature_covariance(
    weights: Array,
    means: Array,
    variances: Array,
    frequencies: Array,
    threads: Threads = SERIAL,
) -> Array:
    """Covariance matrix of the real and imaginary parts of ``exp(-i w.x)`` under a mixture.

    Parameters
    ----------
    weights
        Shape (K,), summing to one.
    means, variances
        Shape (K, n_features).
    frequencies
        Shape (n_features, m).
    threads
        What works on the tiles of the matrix; the calling thread by default.

    Returns
    -------
    covariance
        Shape (2m, 2m), real parts first. Only its lower triangle is filled.

    Notes
    -----
    Memory is that of the result, 32 m**2 bytes; time is ``K m**2`` pairs of exponentials.

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
    halves = 0.5 * log2 * (variances @ frequencies**2)
    amplitude = weights[:, None] * np.exp2(-halves)
    mean = np.concatenate([(amplitude * cosine).sum(axis=0), -(amplitude * sine).sum(axis=0)])
    shaped = [(frequencies * (v * log2)[:, None]).T.copy() for v in variances]
    out = np.zeros((2 * m, 2 * m))
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


@njit(nogil=True, cache=True, error_model="numpy")
def _add_component(products, row, column, half_weight, pair, sums):  # type: ignore[no-untyped-def]
    """Add the second moments of one component to the four sums of a tile.

    They are those of both real parts, both imaginary parts, imaginary with real, and, with the
    other sign, real with imaginary. ``products`` is ``w_i' S w_j``; rows and columns give half of
    ``w' S w``, and cosine and sine of ``w.mean``. Exponents are to base two, and none is positive.
    """
    for i in range(products.shape[0]):
        h, c, s = row[0][i], row[1][i], row[2][i]
        _halves(products[i], h, column[0], half_weight, pair[0], pair[1])
        _accumulate(pair[0], pair[1], c, s, column[1], column[2], sums[0, i], sums[1, i])
        _accumulate(pair[0], pair[1], -s, c, column[1], column[2], sums[2, i], sums[3, i])


# Loops of their own, each over few arrays: LLVM gives up on a loop with more of them, as it must
# prove first that no two overlap.


@njit(nogil=True, cache=True, error_model="numpy")
def _halves(product, h, column, half_weight, plus, minus):  # type: ignore[no-untyped-def]
    """Half of the sum and of the difference of ``psi(w_i - w_j)`` and ``psi(w_i + w_j)``."""
    for j in range(product.size):
        both = h + column[j]
        difference = half_weight * power_of_two(product[j] - both)
        total = half_weight * power_of_two(-product[j] - both)
        plus[j] = difference + total
        minus[j] = difference - total


@njit(nogil=True, cache=True, error_model="numpy")
def _accumulate(u, v, a, b, cosine, sine, first, second):  # type: ignore[no-untyped-def]
    for j in range(cosine.size):
        x, y = a * cosine[j], b * sine[j]
        first[j] += u[j] * x + v[j] * y
        second[j] += v[j] * x + u[j] * y
