"""Names that arguments may take in several layers. This module imports no numerics."""

from __future__ import annotations

from typing import Literal, get_args

Distribution = Literal[
    "adapted-radius", "sparse-radius", "sparse-sums", "folded-gaussian", "gaussian", "clustering"
]
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)
"""Frequency distributions, see :mod:`dask_sketch.features.distributions`."""

Task = Literal["mixture", "clustering", "comparison"]
TASKS: tuple[str, ...] = get_args(Task)
"""Purposes of a sketch, see :func:`dask_sketch.design`."""

Whitening = Literal["diagonal", "full"]
WHITENINGS: tuple[str, ...] = get_args(Whitening)
"""Kinds of whitening, see :func:`dask_sketch.design`."""

CovarianceType = Literal["diag", "spherical", "tied", "full"]
COVARIANCE_TYPES: tuple[str, ...] = get_args(CovarianceType)
"""Types of the covariances of a mixture, as in scikit-learn; see :class:`GaussianMixture`."""


def uses_matrices(covariance_type: str | None) -> bool:
    """Whether components of a covariance type have covariance matrices.

    Parameters
    ----------
    covariance_type
        Type of the covariances, or the family of the atoms of a sketch; None for the default.

    Examples
    --------
    >>> uses_matrices("tied"), uses_matrices("diag"), uses_matrices(None)
    (True, False, False)
    """
    return covariance_type in ("full", "tied")
