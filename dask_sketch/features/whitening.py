"""Whitening: a linear map that gives the features unit variance, from pilot samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError

KINDS = ("diagonal", "full")


def whitening_matrix(samples: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    """Matrix ``L`` such that ``L @ x`` has features of unit variance (section 5.4, erratum).

    Parameters
    ----------
    samples
        Pilot samples, shape (n_samples, n_features).
    kind
        ``"diagonal"`` divides each feature by its standard deviation; ``"full"`` is the symmetric
        inverse square root of the covariance, which removes correlations as well.

    Returns
    -------
    matrix
        Shape (n_features, n_features).

    Raises
    ------
    InputError
        If a feature does not vary, or features are linearly dependent.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(1000, 2)) * [1.0, 100.0]
    >>> (x @ whitening_matrix(x, "diagonal").T).std(axis=0)
    array([1., 1.])
    """
    if kind not in KINDS:
        raise InputError(f"whitening={kind!r}: choose 'diagonal' or 'full', or leave it out.")
    deviation = samples.std(axis=0)
    if not (deviation > 0).all():
        raise InputError(
            f"features {np.flatnonzero(deviation == 0).tolist()} do not vary in the pilot samples, "
            "so they cannot be whitened. Leave them out."
        )
    if kind == "diagonal":
        return np.diag(1.0 / deviation)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(samples.T)))
    if values[0] <= 1e-12 * values[-1]:
        raise InputError("the features are linearly dependent: full whitening is not possible.")
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)
