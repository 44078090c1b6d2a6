"""Covariance matrices of low rank plus a diagonal: factor analysis, and its steps of EM."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.models.covariances import (
    COVARIANCES,
    Array,
    Components,
    Covariances,
    Full,
    Moments,
)
from dask_sketch.validation.choices import LOW_RANK, listed_types, rank_of

_TINY = 1e-300
_MIN_NOISE = 1e-9  # noise variance, as a fraction of the variance of the feature
# Inner steps of an M-step, each of which increases the likelihood: where rows are in memory, the
# eigenvectors take most of the time, and one step took 0.5 to 0.7 of the time of three; where each
# M-step needs a pass over the data, more.
_STEPS, _STEPS_OF_PASS = 1, 3
# largest number of steps, and tolerance, of an analysis without a start
_MAX_STEPS, _TOLERANCE = 300, 1e-7
_START_RIDGE = 1e-6  # ridge of correlations whose inverse gives the first noise variances


def covariances_of(covariance_type: str) -> Covariances:
    """Covariances of a type.

    Parameters
    ----------
    covariance_type
        One of ``COVARIANCE_TYPES``, or ``"low-rank:r"`` with the rank ``r``.

    Raises
    ------
    InputError
        If there is no such type.

    Examples
    --------
    >>> covariances_of("low-rank:2").n_parameters(10, 64)
    1910
    """
    rank = rank_of(covariance_type)
    if rank is not None:
        return _low_rank(rank)
    if not isinstance(covariance_type, str) or covariance_type not in COVARIANCES:
        raise InputError(f"covariance_type={covariance_type!r}: choose one of {listed_types()}.")
    return COVARIANCES[covariance_type]


def require_rank(covariance_type: str | None, n_features: int) -> None:
    """Raise unless the rank of a covariance type is less than the number of features.

    Parameters
    ----------
    covariance_type
        Name of the type; types without a rank pass.
    n_features
        Number of features.

    Raises
    ------
    InputError
        If it is not.
    """
    rank = rank_of(covariance_type)
    if rank is not None and not rank < n_features:
        remedy = f"a rank of at most {n_features - 1}, or " if n_features > 1 else ""
        raise InputError(
            f"covariance_type={covariance_type!r} with n_features={n_features}: the rank must be "
            f"less than the number of features. Give {remedy}"
            f"{'full' if n_features > 1 else 'diag'!r}.",
            parameter="covariance_type",
        )


@lru_cache
def _low_rank(rank: int) -> LowRank:
    return LowRank(rank)


def factor_analysis(
    matrices: Array,
    rank: int,
    noise: Array | None = None,
    *,
    floor: float | Array = 0.0,
    n_steps: int = _MAX_STEPS,
    tolerance: float = _TOLERANCE,
) -> Array:
    """Noise variances and loadings of greatest likelihood, given second moments.

    Each step finds the loadings ``W`` of greatest likelihood for given noise variances ``psi``, by
    eigenvectors of ``psi^-1/2 S psi^-1/2`` (Lawley 1940), and then ``psi = diag(S - W W^T)``. At
    these loadings, this is a step of EM (Rubin and Thayer 1982, eq. 7), so that no step reduces
    the likelihood.

    Parameters
    ----------
    matrices
        Second moments ``S``, shape (n_components, n_features, n_features).
    rank
        Number of factors, from 1 to ``n_features - 1``.
    noise
        Noise variances to start from, shape (n_components, n_features), at least the floor; by
        default from the inverses of the matrices.
    floor
        Smallest noise variances, of a shape that broadcasts to (n_components, n_features).
    n_steps
        Largest number of steps.
    tolerance
        Largest relative change of a noise variance that ends the steps.

    Returns
    -------
    factors
        Noise variances, and after them the loadings, shape (n_components, n_features, 1 + rank):
        covariance matrices are ``diag(factors[..., 0]) + W W^T`` with ``W = factors[..., 1:]``.

    References
    ----------
    Rubin, Thayer (1982), EM algorithms for ML factor analysis, Psychometrika 47(1). Lawley (1940),
    The estimation of factor loadings by the method of maximum likelihood, Proceedings of the Royal
    Society of Edinburgh 60.

    Examples
    --------
    >>> loadings = np.array([[1.0], [2.0], [1.0], [0.5]])
    >>> found = factor_analysis((np.eye(4) + loadings @ loadings.T)[None], 1)
    >>> np.abs(found[0]).round(2).tolist()
    [[1.0, 1.0], [1.0, 2.0], [1.0, 1.0], [1.0, 0.5]]
    """
    diagonal = np.diagonal(matrices, axis1=1, axis2=2)
    floors = np.maximum(np.maximum(_MIN_NOISE * diagonal, floor), _TINY)
    if noise is None:
        noise = _first_noise(matrices, diagonal)
    noise = np.maximum(noise, floors)
    for _ in range(n_steps):
        unit = np.sqrt(noise)
        values, vectors = np.linalg.eigh(matrices / unit[:, :, None] / unit[:, None, :])
        lengths = np.sqrt(np.maximum(values[:, None, -rank:] - 1.0, 0.0))
        loadings = unit[:, :, None] * vectors[:, :, -rank:] * lengths
        before, noise = noise, np.maximum(diagonal - (loadings**2).sum(axis=2), floors)
        if np.abs(noise / before - 1.0).max() < tolerance:
            break
    return np.concatenate([noise[:, :, None], loadings], axis=2)


def _first_noise(matrices: Array, diagonal: Array) -> Array:
    """Variances of the features given all others, shape (n_components, n_features)."""
    unit = np.sqrt(np.maximum(diagonal, _TINY))
    correlations = matrices / unit[:, :, None] / unit[:, None, :]
    values, vectors = np.linalg.eigh(correlations)
    inverse = 1.0 / np.maximum(values, _START_RIDGE)
    return np.asarray(unit**2 / np.einsum("kij,kj->ki", vectors**2, inverse))


class LowRank(Full):
    """Factors of each component, a mixture of factor analysers: covariance type ``"low-rank:r"``.

    Arrays hold the noise variances and the loadings, as :func:`factor_analysis` returns them.

    Parameters
    ----------
    rank
        Number of factors.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.name = f"{LOW_RANK}:{rank}"
        self.dimensions = f"(n_components, n_features, {1 + rank}): noise variances, loadings"

    def shape(self, n_components: int, n_features: int) -> tuple[int, ...]:
        """Shape of the array of covariances."""
        return n_components, n_features, 1 + self.rank

    def n_parameters(self, n_components: int, n_features: int) -> int:
        """Number of free parameters of all components, without rotations of the factors."""
        d, r = n_features, self.rank
        return n_components * min(d * (1 + r) - r * (r - 1) // 2, d * (d + 1) // 2)

    def variances(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Variances of each component in each feature, shape (n_components, n_features)."""
        return np.asarray(covariances[..., 0] + (covariances[..., 1:] ** 2).sum(axis=-1))

    def matrices(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Covariance matrices, shape (n_components, n_features, n_features)."""
        loadings = covariances[..., 1:]
        noise = covariances[..., 0, None] * np.eye(covariances.shape[-2])
        return np.asarray(noise + loadings @ np.swapaxes(loadings, -1, -2))

    def from_matrices(self, weights: Array, matrices: Array) -> Array:
        """Covariances of this type that are nearest to matrices (K, n_features, n_features)."""
        return factor_analysis(matrices, self.rank)

    def from_variances(self, weights: Array, variances: Array) -> Array:
        """Covariances of this type that are nearest to variances (n_components, n_features)."""
        loadings = np.zeros((*variances.shape, self.rank))
        return np.concatenate([variances[..., None], loadings], axis=-1)

    def rescaled(self, covariances: Array, factor: Array) -> Array:
        """Covariances of rows times a factor for each feature."""
        powers = np.r_[2, np.ones(self.rank)]
        return np.asarray(covariances * factor[:, None] ** powers)

    def plus_variances(self, covariances: Array, variances: Array) -> Array:
        """Covariances of rows with independent errors of these variances, shape (n_features,)."""
        found = covariances.copy()
        found[..., 0] += variances
        return found

    def log_determinants(self, covariances: Array, n_features: int) -> Array:
        """Logarithms of the determinants, shape (n_components,)."""
        return np.asarray(
            np.log(covariances[..., 0]).sum(axis=-1) + np.linalg.slogdet(_inner(covariances))[1]
        )

    def merged(self, components: Components, k: int) -> tuple[Array, Array, Array]:
        """Means, matrices and log-determinants of component ``k`` merged with each other one."""
        matrices = self.matrices(components.covariances, *components.means.shape)
        full = Components(components.weights, components.means, matrices)
        return COVARIANCES["full"].merged(full, k)

    def of_merged(self, merged: Array) -> Array:
        """Covariances of this type of one of the merged components."""
        return factor_analysis(merged[None], self.rank)[0]

    def pooled(self, components: Components) -> Array:
        """Covariances of one component, with the mean covariances of all."""
        matrices = self.matrices(components.covariances, *components.means.shape)
        return self.of_merged(np.einsum("k,kij->ij", components.weights, matrices))

    def joint(self, components: Components, rows: Array) -> Array:
        """Log of weight times density, shape (n_components, n), by Woodbury's formula."""
        factors = components.covariances
        precisions = 1.0 / factors[..., 0]
        lower = np.linalg.cholesky(_inner(factors))
        # (x - mean)' psi^-1 W (I + W' psi^-1 W)^-1 W' psi^-1 (x - mean) is a sum of squares
        scaled = precisions[..., None] * factors[..., 1:]
        whitening = np.swapaxes(np.linalg.solve(lower, np.swapaxes(scaled, 1, 2)), 1, 2)
        halves = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        halves += 0.5 * np.log(2.0 * np.pi * factors[..., 0]).sum(axis=1)
        k, d, rank = whitening.shape
        linear = components.means * precisions
        halves += 0.5 * (linear * components.means).sum(axis=1)
        joint = linear @ rows.T
        joint -= (0.5 * precisions) @ (rows * rows).T
        joint += (np.log(np.maximum(components.weights, _TINY)) - halves)[:, None]
        # one product of matrices for all components, without a copy of the rows for each
        stacked = np.swapaxes(whitening, 1, 2).reshape(k * rank, d)
        projected = (stacked @ rows.T).reshape(k, rank, -1)
        projected -= np.einsum("kij,ki->kj", whitening, components.means)[:, :, None]
        joint += 0.5 * np.einsum("krn,krn->kn", projected, projected)
        return np.asarray(joint)

    def constrained(self, matrices: Array, before: Array, floor: Array) -> Array:
        """Covariances of an M-step, of no smaller likelihood than those before.

        Parameters
        ----------
        matrices
            Second moments about the means, shape (n_components, n_features, n_features).
        before
            Covariances before the step; their noise variances are the floor where they are below.
        floor
            Smallest noise variances, shape (n_features,).
        """
        noise = before[..., 0]
        floors = np.minimum(noise, floor)
        return factor_analysis(matrices, self.rank, noise, floor=floors, n_steps=_STEPS_OF_PASS)

    def _covariances(
        self,
        moments: Moments,
        counts: Array,
        means: Array,
        before: Components,
        floor: float | Array,
    ) -> Array:
        matrices = moments.squares / counts[:, :, None] - means[:, :, None] * means[:, None, :]
        noise = before.covariances[..., 0]
        return factor_analysis(matrices, self.rank, noise, floor=floor, n_steps=_STEPS)


def _inner(factors: Array) -> Array:
    """Matrices ``I + W^T psi^-1 W``, shape (n_components, rank, rank)."""
    loadings = factors[..., 1:]
    inner = np.swapaxes(loadings, -1, -2) @ (loadings / factors[..., :1])
    return np.asarray(inner + np.eye(inner.shape[-1]))
