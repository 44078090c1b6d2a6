"""Principal components, and affine maps of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.model import finite
from dask_sketch.validation.arrays import FrozenDataclass, require_unmasked
from dask_sketch.validation.device import on_host
from dask_sketch.validation.registry import apply_lazily

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AffineMap(FrozenDataclass):
    """Map of rows, ``y = (x - offset) @ matrix + shift``, also of lazy ones.

    Attributes
    ----------
    offset
        Vector that is subtracted first, shape (n_features,).
    matrix
        Matrix, shape (n_features, n_components).
    shift
        Vector that is added last, shape (n_components,).
    feature_names
        Names of the features of ``x``, or None.

    Examples
    --------
    >>> AffineMap(np.ones(2), np.eye(2), np.zeros(2)).transform([[3.0, 1.0]])
    array([[2., 0.]])
    """

    offset: Array
    matrix: Array
    shift: Array
    feature_names: tuple[str, ...] | None = None

    @property
    def n_features(self) -> int:
        """Number of features of the rows."""
        return len(self.matrix)

    @property
    def n_components(self) -> int:
        """Number of features of the result."""
        return self.matrix.shape[1]

    def transform(self, x: Any) -> Any:
        """Map rows, shape (n, n_features), to shape (n, n_components); lazy ones lazily."""
        if hasattr(x, "__dask_graph__"):
            return apply_lazily(self, "transform", x)
        require_unmasked(x, "rows", "the rows")
        rows = on_host(x)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise InputError(f"rows have shape={rows.shape}: give (n, {self.n_features}).")
        return (rows - self.offset) @ self.matrix + self.shift


@dataclass(frozen=True, eq=False)
class PrincipalComponents(FrozenDataclass):
    """Mean and leading principal components of samples.

    Attributes
    ----------
    mean
        Mean of the samples, shape (n_features,).
    components
        Orthonormal directions by decreasing variance, shape (n_components, n_features). The entry
        of largest size is positive in each, as in scikit-learn.
    explained_variance
        Variance along each component, shape (n_components,).
    total_variance
        Sum of the variances of all features.
    noise_variance
        Mean variance along all other directions.
    excess_risk
        Estimated variance that these components miss and the best ones explain, as a fraction of
        the variance that is not explained; 0 for components of all second moments.
    """

    mean: Array
    components: Array
    explained_variance: Array
    total_variance: float
    noise_variance: float
    excess_risk: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean", "components", "explained_variance"):
            object.__setattr__(self, name, finite(name, getattr(self, name)))

    @property
    def explained_variance_ratio(self) -> Array:
        """Fraction of the total variance along each component, shape (n_components,)."""
        if not self.total_variance > 0.0:
            return np.full(len(self.explained_variance), np.nan)
        return self.explained_variance / self.total_variance
