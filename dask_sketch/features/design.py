"""Whitening: a linear map that gives the features unit variance, from pilot samples."""

from __future__ import annotations

import warnings

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


# How many frequencies a task needs.


def default_n_frequencies(n_features: int, n_components: int, task: str = "mixture") -> int:
    """Five times the number of parameters: ``5 (2 d + 1) K`` for mixtures (section 5.5).

    For clustering, ``5 (d + 1) K``.

    Examples
    --------
    >>> default_n_frequencies(n_features=10, n_components=5)
    525
    >>> default_n_frequencies(n_features=10, n_components=5, task="clustering")
    275
    """
    return 5 * ((2 if task == "mixture" else 1) * n_features + 1) * n_components


def warn_if_few(
    n_frequencies: int,
    n_features: int,
    n_components: int,
    task: str = "mixture",
    stacklevel: int = 3,
) -> None:
    """Warn below the number of frequencies under which estimation breaks down (section 5.5)."""
    needed = default_n_frequencies(n_features, n_components, task)
    if n_frequencies < needed:
        rule = "5(2d+1)K" if task == "mixture" else "5(d+1)K"
        warnings.warn(
            f"n_frequencies={n_frequencies} is under {rule} = {needed} for {n_components} "
            f"components of {n_features} features: estimates may fail. Take {needed} or more.",
            UserWarning,
            stacklevel=stacklevel,
        )
