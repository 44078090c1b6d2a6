"""Principal components, and affine maps of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dask_sketch.display.html import card
from dask_sketch.display.text import describe, one_line
from dask_sketch.errors import InputError
from dask_sketch.models.artifact import COMPONENTS, VERSION, components_dataset
from dask_sketch.models.model import finite, row_blocks, weighted_mean
from dask_sketch.storage.artifact import Storable
from dask_sketch.validation.arrays import FrozenDataclass, require_unmasked
from dask_sketch.validation.device import on_host
from dask_sketch.validation.registry import apply_lazily
from dask_sketch.validation.tables import names_in, require_names

if TYPE_CHECKING:
    import xarray as xr

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
        require_names(names_in(x), "x", self.feature_names, "the model", parameter="x")
        rows = on_host(x)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise InputError(f"rows have shape={rows.shape}: give (n, {self.n_features}).")
        return (rows - self.offset) @ self.matrix + self.shift


@dataclass(frozen=True, eq=False)
class ComponentDensity(FrozenDataclass):
    """Normal density whose variance is equal in all directions but those of the components.

    Probabilistic principal component analysis (Tipping and Bishop 1999).

    Attributes
    ----------
    mean
        Mean, shape (n_features,).
    components
        Orthonormal directions, shape (n_components, n_features).
    variances
        Variance along each component, shape (n_components,), above 0.
    noise_variance
        Variance in all other directions, above 0 if there are any.
    feature_names
        Names of the features, or None.

    Examples
    --------
    >>> density = ComponentDensity(np.zeros(2), np.eye(1, 2), np.ones(1), 1.0)
    >>> density.logpdf(np.zeros((1, 2))).round(4)
    array([-1.8379])
    """

    mean: Array
    components: Array
    variances: Array
    noise_variance: float
    feature_names: tuple[str, ...] | None = None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.mean)

    @property
    def n_components(self) -> int:
        """Number of components."""
        return len(self.components)

    def logpdf(self, x: Any) -> Array:
        """Logarithm of the density, shape (n,), of rows in memory, shape (n, n_features)."""
        blocks = row_blocks(x, self.n_features, self.n_components, self.feature_names)
        return np.concatenate([np.empty(0), *map(self._logpdf, blocks)])

    def _logpdf(self, block: Array) -> Array:
        rows = block - self.mean
        scores = rows @ self.components.T
        squares = (scores**2 / self.variances).sum(axis=1)
        logarithm, n_others = np.log(self.variances).sum(), self.n_features - self.n_components
        if n_others:
            rest = np.maximum((rows**2).sum(axis=1) - (scores**2).sum(axis=1), 0.0)
            squares += rest / self.noise_variance
            logarithm += n_others * np.log(self.noise_variance)
        return np.asarray(-0.5 * (squares + logarithm + self.n_features * np.log(2.0 * np.pi)))

    def score(self, x: Any, weights: Any = None) -> float:
        """Mean of :meth:`logpdf`, with weights of the rows, shape (n,), or without."""
        return weighted_mean(self.logpdf(x), weights, x)


@dataclass(frozen=True, eq=False, repr=False)
class PrincipalComponents(FrozenDataclass, Storable):
    """Mean and leading principal components of samples.

    Parameters
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
    n_samples
        Number of samples.
    feature_names
        Names of the features, or None.

    Raises
    ------
    InputError
        If a shape or value is invalid.

    Examples
    --------
    >>> found = PrincipalComponents([1.0, 2.0], [[0.0, 1.0]], [4.0], 5.0, 1.0)
    >>> found.transform([[1.0, 5.0]]), found.explained_variance_ratio
    (array([[3.]]), array([0.8]))
    """

    mean: Array
    components: Array
    explained_variance: Array
    total_variance: float
    noise_variance: float
    excess_risk: float = 0.0
    n_samples: int = 0
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "components", "explained_variance"):
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        shape = self.components.shape
        if len(shape) != 2 or not self.components.size:
            raise InputError(f"components has shape {shape}; give (n_components, n_features).")
        for name, size in (("mean", shape[1]), ("explained_variance", shape[0])):
            if getattr(self, name).shape != (size,):
                raise InputError(f"{name} has shape {getattr(self, name).shape}; give ({size},).")
        names = self.feature_names
        if names is not None and len(names) != shape[1]:
            raise InputError(
                f"feature_names has {len(names)} names: give one for each of {shape[1]} features."
            )

    @property
    def n_components(self) -> int:
        """Number of components."""
        return len(self.components)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.mean)

    @property
    def explained_variance_ratio(self) -> Array:
        """Fraction of the total variance along each component, shape (n_components,)."""
        if not self.total_variance > 0.0:
            return np.full(len(self.explained_variance), np.nan)
        return self.explained_variance / self.total_variance

    def transform(self, x: Any) -> Any:
        """Coordinates of rows along the components.

        Parameters
        ----------
        x
            Rows, shape (n, n_features), in memory or lazy.

        Returns
        -------
        scores
            Shape (n, n_components); lazy if ``x`` is.
        """
        shift = np.zeros(self.n_components)
        return AffineMap(self.mean, self.components.T, shift, self.feature_names).transform(x)

    def inverse_transform(self, x: Any) -> Any:
        """Map coordinates along the components back to rows.

        Parameters
        ----------
        x
            Coordinates, shape (n, n_components), in memory or lazy.

        Returns
        -------
        rows
            Shape (n, n_features), without the parts along other directions; lazy if ``x`` is.
        """
        return AffineMap(np.zeros(self.n_components), self.components, self.mean).transform(x)

    def angle_to(self, other: PrincipalComponents) -> float:
        """Largest principal angle between the subspaces of two sets of components, in degrees.

        Parameters
        ----------
        other
            Components of the same features, for instance of the day before.

        Returns
        -------
        angle
            From 0, if one subspace contains the other, to 90 (Björck and Golub 1973).

        Raises
        ------
        InputError
            If the features differ.
        """
        if (other.n_features, other.feature_names) != (self.n_features, self.feature_names):
            raise InputError(
                f"other has {other.n_features} features with the names {other.feature_names}: give "
                f"components of the same {self.n_features} features."
            )
        angles = scipy.linalg.subspace_angles(self.components.T, other.components.T)
        return float(np.degrees(angles.max()))

    def _stored(self) -> tuple[xr.Dataset, str, int]:
        return components_dataset(self), COMPONENTS, VERSION

    def as_dict(self) -> dict[str, object]:
        """Sizes, variances and names."""
        return {
            "kind": "principal components",
            "n_components": self.n_components,
            "n_features": self.n_features,
            "n_samples": self.n_samples,
            "explained_variance": self.explained_variance,
            "explained_variance_ratio": self.explained_variance_ratio,
            "total_variance": self.total_variance,
            "noise_variance": self.noise_variance,
            "excess_risk": self.excess_risk,
            "feature_names": self.feature_names,
        }

    def __repr__(self) -> str:
        shown = ("n_components", "n_features", "n_samples", "explained_variance_ratio")
        values = {name: value for name, value in self.as_dict().items() if name in shown}
        return f"<PrincipalComponents: {one_line(values)}>"

    def _repr_html_(self) -> str:
        values = describe(self.as_dict() | {"kind": None})
        fraction = float(self.explained_variance_ratio.sum())
        summary = (
            f"{self.n_components} of {self.n_features:,} directions, {fraction:.1%} of variance"
        )
        return card("PrincipalComponents", values, summary=summary)
