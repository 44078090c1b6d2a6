"""Mixtures of latent classes: products of Gaussians and categorical distributions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.artifact import LATENT_CLASSES, VERSION, latent_class_dataset
from dask_sketch.models.mixture import Mixture
from dask_sketch.models.model import SHOWN_FEATURES, finite, in_memory, row_blocks
from dask_sketch.models.product_em import ProductDensity, ProductMixture
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.categories import Categories, Level, stated_categories, with_codes
from dask_sketch.validation.registry import apply_lazily

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from dask_sketch.models.model import Decoding, Polishing

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class LatentClassMixture(Mixture):
    """A mixture whose features are independent within each component: latent class analysis.

    Categorical features have probabilities of their levels in each component, numeric features a
    mean and a variance (latent profile analysis). Methods take frames of the levels, or arrays of
    codes, the positions of the levels; values may be missing (NaN or None): the density is then
    that of the observed values. For samples in memory methods return arrays; for lazy input (Dask,
    Parquet, a path, ...) they return a Dask collection, with one task per chunk.

    Parameters
    ----------
    weights
        Non-negative weights that sum to one, shape (n_components,).
    probabilities
        Probabilities of the levels of all categorical features, one feature after the other, shape
        (n_components, n_levels).
    categories
        Levels of each feature, None for a numeric one; or
        :class:`~dask_sketch.validation.categories.Categories`.
    means, variances
        Means and variances of the numeric features, shape (n_components, n_numeric); needed if
        there are any.
    decoding
        Record of the decoding, if the mixture was decoded.
    polishing
        None, since :func:`dask_sketch.polish` does not take this model.

    Raises
    ------
    InputError
        If a shape or value is invalid.

    Examples
    --------
    >>> levels = [("red", "blue"), ("no", "yes")]
    >>> model = LatentClassMixture([0.5, 0.5], [[0.9, 0.1, 0.8, 0.2], [0.2, 0.8, 0.3, 0.7]], levels)
    >>> model.predict([[0, 0], [1, 1]])
    array([0, 1])
    >>> model.level_probabilities["1"][0]
    array([0.8, 0.2])
    """

    _arrays = ("weights", "means", "variances", "probabilities")
    _schema = LATENT_CLASSES
    _kind = "latent class mixture"

    weights: Array
    probabilities: Array
    categories: Categories
    means: Array = None  # type: ignore[assignment]  # set below
    variances: Array = None  # type: ignore[assignment]
    decoding: Decoding | None = None
    polishing: Polishing | None = None

    def __post_init__(self) -> None:
        given: Any = self.categories
        if not isinstance(given, Categories):
            given = stated_categories(given, len(given), None)
        object.__setattr__(self, "categories", given)
        k = np.size(self.weights)
        for name in ("means", "variances"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros((k, 0)))
        for name in self._arrays:
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        numeric = (k, len(given.numeric))
        shapes = {
            "weights": (k,), "means": numeric, "variances": numeric,
            "probabilities": (k, given.n_levels),
        }  # fmt: skip
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise InputError(
                    f"{name} has shape {getattr(self, name).shape}: for {k} components of these "
                    f"categories give {shape}."
                )
        _require_distribution("weights", self.weights)
        for part in given.slices:
            _require_distribution("probabilities", self.probabilities[:, part])
        if not (self.variances > 0.0).all():
            raise InputError(
                f"variances: the smallest is {self.variances.min():g}; give positive ones."
            )

    @property
    def n_components(self) -> int:
        """Number of components ``K``."""
        return len(self.weights)

    @property
    def n_features(self) -> int:
        """Number of features ``d``, categorical and numeric."""
        return self.categories.n_features

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the features, if they have names; samples with others are refused."""
        return self.categories.names

    @property
    def level_probabilities(self) -> dict[str, Array]:
        """Probabilities of the levels of each categorical feature, by its name or number.

        Shape (n_components, n_levels) of each.
        """
        names = self.categories.as_dict()
        parts = zip(names, self.categories.slices, strict=True)
        return {name: self.probabilities[:, part] for name, part in parts}

    @property
    def levels(self) -> dict[str, list[Level]]:
        """Levels of each categorical feature in order, by its name or number."""
        return self.categories.as_dict()

    @property
    def parameters(self) -> ProductMixture:
        """Weights, means, variances and probabilities."""
        return ProductMixture(self.weights, self.means, self.variances, self.probabilities)

    @property
    def n_parameters(self) -> int:
        """Number of free parameters; weights and probabilities sum to one."""
        levels = self.categories.n_levels - len(self.categories.sizes)
        return self.n_components * (1 + 2 * self.means.shape[1] + levels) - 1

    def characteristic(self, frequencies: ArrayLike) -> NDArray[np.complex128]:
        """Characteristic function ``E exp(-i omega . x)`` of rows of codes.

        Parameters
        ----------
        frequencies
            Frequencies ``omega``, shape (n_features, n_frequencies), radians per unit of the data.

        Returns
        -------
        psi
            Values, shape (n_frequencies,), complex128, at most one in modulus.
        """
        omega = self._omega(frequencies)
        numeric = omega[self.categories.numeric]
        each = np.exp(-1j * (self.means @ numeric) - 0.5 * (self.variances @ numeric**2))
        for column, part in zip(self.categories.columns, self.categories.slices, strict=True):
            used = np.flatnonzero(omega[column])
            codes = np.arange(part.stop - part.start)
            each[:, used] *= self.probabilities[:, part] @ np.exp(
                -1j * np.outer(codes, omega[column, used])
            )
        return np.asarray(self.weights @ each)

    def density(self) -> ProductDensity:
        """Joint log-density of rows of codes and components, for repeated use."""
        return ProductDensity(self.parameters, self.categories)

    def _blocks(self, x: Any) -> Iterator[Array]:
        """Blocks of rows of codes in memory, which may have missing values."""
        if hasattr(x, "dtypes") and hasattr(x, "columns"):
            x = with_codes(x, self.categories.of_columns(list(x.columns)))
        for block in row_blocks(
            x, self.n_features, self.n_components, self.feature_names, missing=True
        ):
            self.categories.require_codes(block, "x")
            yield block

    def impute(self, x: Any) -> Any:
        """Replace missing values by predictions given the observed values of the sample.

        Numeric features have their conditional mean, categorical ones their most probable level.
        Both are the best predictions if the mixture is the distribution of the samples and values
        are missing at random.

        Parameters
        ----------
        x
            Samples with missing values, shape (n_samples, n_features): a table with the levels, or
            rows of codes, or lazy input.

        Returns
        -------
        x
            Rows of numbers and codes, as of :meth:`sample_codes`; lazy if ``x`` is. Observed values
            are unchanged. ``model.categories.frame(x)`` is the table.

        Raises
        ------
        InputError
            If the number of features or a value is wrong.

        Examples
        --------
        >>> levels = [("red", "blue"), ("no", "yes")]
        >>> chances = [[0.9, 0.1, 0.8, 0.2], [0.2, 0.8, 0.3, 0.7]]
        >>> model = LatentClassMixture([0.5, 0.5], chances, levels)
        >>> model.impute([[0, np.nan], [np.nan, 1]])
        array([[0., 0.],
               [1., 1.]])
        """
        if not in_memory(x):
            return apply_lazily(self, "impute", x)
        density = self.density()
        rows = [self._completed(block, density.posterior(block)) for block in self._blocks(x)]
        return np.concatenate([np.empty((0, self.n_features)), *rows])

    def _completed(self, block: Array, posterior: Array) -> Array:
        """Rows with predictions in place of NaN, by the probabilities of their components."""
        predictions = np.empty_like(block)
        predictions[:, self.categories.numeric] = posterior @ self.means
        for column, part in zip(self.categories.columns, self.categories.slices, strict=True):
            predictions[:, column] = (posterior @ self.probabilities[:, part]).argmax(axis=1)
        return np.where(np.isnan(block), predictions, block)

    def sample_codes(self, n_samples: int, seed: int = 0) -> Array:
        """Sample rows of numbers and codes.

        Parameters
        ----------
        n_samples, seed
            Arguments of :meth:`sample`.

        Returns
        -------
        x
            Rows, shape (n_samples, n_features), float64.
        """
        n_samples = require_integer("n_samples", n_samples, 0)
        rng = np.random.default_rng(require_integer("seed", seed, 0))
        component = np.searchsorted(np.cumsum(self.weights)[:-1], rng.random(n_samples), "right")
        out = np.empty((n_samples, self.n_features))
        noise = rng.standard_normal((n_samples, self.means.shape[1]))
        out[:, self.categories.numeric] = (
            self.means[component] + np.sqrt(self.variances)[component] * noise
        )
        for column, part in zip(self.categories.columns, self.categories.slices, strict=True):
            edges = np.cumsum(self.probabilities[:, part], axis=1)[:, :-1]
            uniform = rng.random(n_samples)
            for k, edge in enumerate(edges):
                here = component == k
                out[here, column] = np.searchsorted(edge, uniform[here], "right")
        return out

    def sample(self, n_samples: int, seed: int = 0) -> pd.DataFrame:
        """Sample from the mixture.

        Parameters
        ----------
        n_samples
            Number of samples, ``>= 0``.
        seed
            Seed, ``>= 0``; the same seed gives the same values.

        Returns
        -------
        x
            Frame of float64 and of categorical columns, or of booleans where the levels are.

        Raises
        ------
        InputError
            If ``n_samples`` or ``seed`` is not a non-negative integer.
        """
        return self.categories.frame(self.sample_codes(n_samples, seed))

    def _stored(self) -> tuple[xr.Dataset, str, int]:
        return latent_class_dataset(self), LATENT_CLASSES, VERSION

    def __dask_tokenize__(self) -> tuple[str, str]:
        name, token = super().__dask_tokenize__()
        own = json.dumps([self.categories.levels, self.categories.names])
        return name, hashlib.sha256(f"{token}{own}".encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Sizes, parameters, levels, and the record of the decoding."""
        return super().as_dict() | {"categories": self.levels}

    def _repr_html_(self) -> str:
        header = ["component", "weight"]
        names = self.feature_names or [f"feature {k}" for k in range(self.n_features)]
        shown = range(min(SHOWN_FEATURES, self.n_features))
        header += [names[k] for k in shown]
        if self.n_features > SHOWN_FEATURES:
            header[-1] += f" (of {self.n_features:,})"
        rows = [
            [str(k), f"{weight:.4g}", *(self._cell(k, feature) for feature in shown)]
            for k, weight in enumerate(self.weights)
        ]
        heading = "components: weight, mean (standard deviation), probabilities of levels"
        return self._card(heading, header, rows)

    def _cell(self, k: int, feature: int) -> str:
        """Mean and standard deviation, or the most probable levels."""
        levels = self.categories.levels[feature]
        if levels is None:
            position = int(np.searchsorted(self.categories.numeric, feature))
            return f"{self.means[k, position]:.4g} ({np.sqrt(self.variances[k, position]):.3g})"
        part = self.categories.slices[int(np.searchsorted(self.categories.columns, feature))]
        found = self.probabilities[k, part]
        likeliest = np.argsort(-found, kind="stable")[:_SHOWN_LEVELS]
        return ", ".join(f"{levels[level]}: {found[level]:.3g}" for level in likeliest)


_SHOWN_LEVELS = 4  # most probable levels of a cell of the table


def _require_distribution(name: str, values: Array) -> None:
    """Raise unless values are not negative and sum to one along the last axis."""
    sums = values.sum(axis=-1)
    if values.size and (values.min() < 0.0 or np.abs(sums - 1.0).max() > 1e-8):
        raise InputError(
            f"{name}: the smallest is {values.min():g}, and sums are from {sums.min():.10g} to "
            f"{sums.max():.10g}; give numbers that are not negative and sum to one."
        )
