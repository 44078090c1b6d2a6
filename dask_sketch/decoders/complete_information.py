"""Fisher information of a component about its own parameters, if it is known which rows are its.

A feature is noisy in part because the scores of the components vary from sample to sample, and the
scores are the only part of which all features share much. With the derivatives ``J`` of the
sketch and the information ``I`` of complete data, the covariance of the features is ``S = J^T I^-1
J + R``, where ``R`` is what the scores leave. By Woodbury's formula, ``R^-1`` weights the features
as ``S^-1`` does. If frequencies are weighted in blocks, it is ``R`` whose blocks may be taken as
independent.
"""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.atoms import Array, ParameterSpace, entries
from dask_sketch.decoders.factor_descent import FactorSpace

_NONE = 1e-9  # fraction of the largest eigenvalue that counts as none, such as of rotated factors


def complete_information(space: ParameterSpace, atom: Array) -> Array | None:
    """Information of one row of a component about its mean and its shape parameters.

    Parameters
    ----------
    space
        Meaning of the parameters.
    atom
        Parameters of the component, shape (n_parameters,).

    Returns
    -------
    information
        Shape (n_parameters, n_parameters); None for families whose components share parameters, or
        have a known covariance that is not diagonal.
    """
    d, family = space.n_features, space.family
    if family.name == "tied" or not (family.diagonal or family.has_matrices):
        return None
    shape = space.shapes(atom[None])[0]
    out = np.zeros((space.n_parameters, space.n_parameters))
    if shape.ndim == 1:
        out[:d, :d] = np.diag(1.0 / shape)
        out[d:, d:] = 0.5 * (family.spread / shape**2) @ family.spread.T
        return out
    precision = np.linalg.inv(shape)
    out[:d, :d] = precision
    if isinstance(space, FactorSpace):
        loadings = space.factors(atom[None])[0, :, 1:]
        out[d:, d:] = _of_factors(precision, loadings)
    else:
        first, second = entries(d)
        halves = np.where(first == second, 0.5, 1.0)
        products = precision[np.ix_(first, first)] * precision[np.ix_(second, second)]
        products += precision[np.ix_(first, second)] * precision[np.ix_(second, first)]
        out[d:, d:] = halves * halves[:, None] * products
    return out


def _of_factors(precision: Array, loadings: Array) -> Array:
    """Information about noise variances, and loadings row after row."""
    d, rank = loadings.shape
    weighted = precision @ loadings
    inner = loadings.T @ weighted
    out = np.empty((d * (1 + rank), d * (1 + rank)))
    out[:d, :d] = 0.5 * precision**2
    out[:d, d:] = np.einsum("ai,aj->aij", precision, weighted).reshape(d, -1)
    out[d:, :d] = out[:d, d:].T
    both = np.einsum("ik,jl->ijkl", precision, inner)
    both += np.einsum("il,kj->ijkl", weighted, weighted)
    out[d:, d:] = both.reshape(d * rank, -1)
    return out


def inverse_root(matrix: Array) -> Array:
    """Matrix ``B`` (r, n) with ``B^T B`` the pseudo-inverse of a matrix (n, n) of rank ``r``.

    Examples
    --------
    >>> root = inverse_root(np.diag([4.0, 0.0]))
    >>> (root.T @ root).tolist()
    [[0.25, 0.0], [0.0, 0.0]]
    """
    scale = 1.0 / np.sqrt(np.maximum(matrix.diagonal(), 1e-300))
    values, vectors = np.linalg.eigh(matrix * scale * scale[:, None])
    known = values > _NONE * values[-1]
    return np.asarray((scale[:, None] * vectors[:, known] / np.sqrt(values[known])).T)
