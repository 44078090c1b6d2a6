"""Second moments of samples: exact, mergeable sums for principal components.

All second moments take ``d**2 / 2`` numbers. For many features their products with a random test
matrix, ``sum_i w_i x_i (x_i' Omega)``, take ``d r`` numbers, from which the leading principal
components are found (Tropp, Yurtsever, Udell and Cevher 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.display.html import card
from dask_sketch.display.text import describe, one_line
from dask_sketch.errors import CapacityError, InputError, MergeError
from dask_sketch.features.kernels.fixed_point import (
    MAX_EXPONENT,
    MAX_TOTAL_WEIGHT,
    MIN_EXPONENT,
    FixedPoint,
    are_possible_squares,
)
from dask_sketch.sketching import artifact
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.storage.artifact import Storable
from dask_sketch.validation.arrays import FrozenDataclass
from dask_sketch.validation.tables import feature_title

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
FRACTION = 30  # binary digits of a value in its unit
SQUARED_FRACTION = 40 - 2 * MIN_EXPONENT  # binary digits of the sum of squared weights


@dataclass(frozen=True, eq=False, repr=False)
class SecondMoments(FrozenDataclass, Storable):
    """Exact second moments of samples, or their products with a test matrix.

    Second moments of one grid can be added and subtracted: ``a + b`` are the moments of both inputs
    together. They have the same bits for every chunking and order of the samples.

    Attributes
    ----------
    grid
        Conventions of the sums.
    sums
        Sums as integers, flat: of ``[1, x]' [1, x]``, upper triangle row by row; or with a test
        matrix of ``[1, x]' [1, x Omega]``, and of the squares of ``x``; or, with a pairwise grid,
        of ``[1, e, x]' [1, e, x]``, where ``e`` is one where a value is observed, and missing
        values count as zero.
    squared_weight_quanta
        Sum of the squares of the weights in multiples of ``2**-104``.
    count
        Number of samples, including those of weight zero.
    omitted
        Number of rows that were left out because a value was NaN or infinite.

    Notes
    -----
    A sample of weight ``w`` contributes the products of ``sqrt(w) (1, x)``, rounded to the grid.
    *Error.* A value is rounded by at most ``2**-31`` units, at random, so that a covariance of
    ``n`` samples is within about ``4e-10 / sqrt(n)`` of the deviations of its features.

    Examples
    --------
    >>> from dask_sketch.sketching.partial_moments import partial_moments
    >>> x = np.random.default_rng(0).normal(size=(1000, 3))
    >>> grid = MomentGrid.of_rows(x)
    >>> parts = [partial_moments(x[:300], grid), partial_moments(x[300:], grid)]
    >>> bool(np.allclose((parts[0] + parts[1]).covariance, np.cov(x.T), rtol=1e-9))
    True
    """

    grid: MomentGrid
    sums: FixedPoint
    squared_weight_quanta: int
    count: int
    omitted: int

    def __post_init__(self) -> None:
        if self.total_weight > MAX_TOTAL_WEIGHT:
            raise CapacityError(
                f"total_weight={self.total_weight:g} is over the {MAX_TOTAL_WEIGHT:.4g} that can "
                "be held exactly. Multiply all weights by one smaller factor."
            )

    @classmethod
    def empty(cls, grid: MomentGrid) -> SecondMoments:
        """Second moments of no samples."""
        return cls(grid, FixedPoint.zeros(grid.n_sums), 0, 0, 0)

    @classmethod
    def _add(cls, parts: Sequence[SecondMoments]) -> SecondMoments:
        return cls(
            parts[0].grid,
            FixedPoint.sum([part.sums for part in parts]),
            sum(part.squared_weight_quanta for part in parts),
            sum(part.count for part in parts),
            sum(part.omitted for part in parts),
        )

    @property
    def feature_map(self) -> MomentGrid:
        """The grid, under the name by which :func:`~dask_sketch.merge` compares conventions."""
        return self.grid

    def __add__(self, other: object) -> SecondMoments:
        if not isinstance(other, SecondMoments):
            return NotImplemented
        return merge([self, other])

    def __radd__(self, other: object) -> SecondMoments:
        if isinstance(other, int) and other == 0:  # sum([...]) starts from 0
            return self
        return NotImplemented

    def __sub__(self, other: object) -> SecondMoments:
        if not isinstance(other, SecondMoments):
            return NotImplemented
        self.grid.require_same(other.grid)
        left = replace(
            self,
            sums=self.sums - other.sums,
            squared_weight_quanta=self.squared_weight_quanta - other.squared_weight_quanta,
            count=self.count - other.count,
            omitted=self.omitted - other.omitted,
        )
        if not left.is_possible:
            raise MergeError(
                f"cannot subtract second moments with count={other.count}, "
                f"total_weight={other.total_weight:g} from those with count={self.count}, "
                f"total_weight={self.total_weight:g}: no samples have the remaining sums. Subtract "
                "only a part that was added."
            )
        return left

    def scale(self, factor: float) -> SecondMoments:
        """Multiply all weights by a factor; each sum is rounded once.

        Parameters
        ----------
        factor
            Zero, or a number from ``2**-32`` to ``2**32``, the range of weights.

        Raises
        ------
        InputError
            If the factor is out of range.
        CapacityError
            If the sums become larger than second moments can hold exactly.
        """
        number = isinstance(factor, (int, float, np.number))
        if not number or not (factor == 0 or 2.0**MIN_EXPONENT <= factor <= 2.0**MAX_EXPONENT):
            raise InputError(
                f"factor={factor!r}: give zero, or a number from 2**{MIN_EXPONENT} to "
                f"2**{MAX_EXPONENT}."
            )
        squared = round(self.squared_weight_quanta * Fraction(float(factor)) ** 2)
        return replace(self, sums=self.sums.times(factor), squared_weight_quanta=squared)

    def identical(self, other: object) -> bool:
        """Whether all sums, counts and conventions are the same, as for sketches."""
        return self == other

    @property
    def is_possible(self) -> bool:
        """Whether samples could have such sums: counts and squares are not negative."""
        counts = (self.count, self.omitted, self.squared_weight_quanta)
        if min(counts) < 0 or (self.count == 0 and self.sums.any()):
            return False
        squares = self.sums.high[self._squares]
        if self.sums.high[0] < 0 or (squares < 0).any():
            return False
        squared_weight = self.squared_weight_quanta / (1 << SQUARED_FRACTION)
        return bool(are_possible_squares(self.total_weight, squared_weight, self.count))

    def __eq__(self, other: object) -> bool:
        """Whether all sums, counts and conventions are the same."""
        if not isinstance(other, SecondMoments):
            return NotImplemented
        try:
            self.grid.require_same(other.grid)
        except MergeError:
            return False
        return self.sums == other.sums and all(
            getattr(self, name) == getattr(other, name)
            for name in ("squared_weight_quanta", "count", "omitted")
        )

    __hash__ = None  # type: ignore[assignment]

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.sums.nbytes

    # Positions of the sums.

    @property
    def is_complete(self) -> bool:
        """Whether all second moments are held, rather than products with a test matrix."""
        return self.grid.n_columns is None

    @property
    def _squares(self) -> Any:
        """Positions of the sums of squares."""
        d = self.grid.n_features
        if not self.is_complete:
            return slice(self.grid.n_sums - d, None)
        rows = np.arange(1, d + 1) + (d if self.grid.pairwise else 0)
        return self._starts(rows) + rows

    def _starts(self, rows: Any) -> Any:
        """Positions before the first column, of rows of the upper triangle."""
        side = 1 + self.grid.n_features * (2 if self.grid.pairwise else 1)
        return rows * side - rows * (rows + 1) // 2

    def _part(self, row: int, start: int, stop: int) -> Array:
        """Entries of one row of the upper triangle."""
        before = self._starts(row)
        return self._floats(slice(before + start, before + stop))

    def _floats(self, where: Any) -> Array:
        chosen = FixedPoint(self.sums.high[where].copy(), self.sums.low[where].copy())
        return chosen.to_float(2 * FRACTION)

    # Moments.

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.grid.n_features

    @cached_property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self._floats(slice(0, 1))[0])

    @property
    def effective_count(self) -> float:
        """Kish's effective sample size, ``(sum w)**2 / sum w**2``; the count for equal weights."""
        if not self.squared_weight_quanta:
            return 0.0
        return self.total_weight**2 / (self.squared_weight_quanta / (1 << SQUARED_FRACTION))

    @property
    def feature_fractions(self) -> Array:
        """Fraction of the total weight with a value of each feature, shape (n_features,).

        Ones, but for pairwise moments; zeros without samples.
        """
        d, total = self.n_features, self.total_weight
        if not self.grid.pairwise or not total > 0.0:
            return np.full(d, float(total > 0.0))
        rows = np.arange(1, d + 1)
        return np.asarray(self._floats(self._starts(rows) + rows) / total)

    @cached_property
    def _weights(self) -> Any:
        """Weight of the values of each feature: the total weight, or pairwise an array."""
        self._require_weight()
        if not self.grid.pairwise:
            return self.total_weight
        rows = np.arange(1, self.n_features + 1)
        totals = self._floats(self._starts(rows) + rows)
        if not (totals > 0.0).all():
            title = feature_title(int(np.argmin(totals)), self.grid.feature_names)
            raise InputError(f"{title} has no values: leave it out of the samples.")
        return totals

    @cached_property
    def _first(self) -> Array:
        """Mean of ``(x - center) / unit``, shape (n_features,)."""
        d, weights = self.n_features, self._weights
        where: Any = slice(1, d + 1)
        if self.grid.n_columns is not None:
            width = self.grid.n_columns + 1
            where = slice(width, width * (d + 1), width)
        elif self.grid.pairwise:
            rows = np.arange(1, d + 1)
            where = self._starts(rows) + rows + d
        return self._floats(where) / weights

    @property
    def mean(self) -> Array:
        """Weighted mean, shape (n_features,), in the units of the data.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        return self.grid.center + self.grid.unit * self._first

    def _divided(self, weights: Any) -> Any:
        """Factors from second moments about the mean to unbiased covariances."""
        mean_weight = self.total_weight / max(self.effective_count, 1.0)  # mean weight of a row
        weights = np.asarray(weights)  # a division of plain numbers by zero would be an error
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(weights > mean_weight, weights / (weights - mean_weight), np.nan)

    @property
    def variance(self) -> Array:
        """Unbiased variance of each feature, shape (n_features,); nan for a single sample."""
        weights = self._weights
        spread = self._floats(self._squares) / weights - self._first**2
        return np.asarray(np.maximum(spread, 0.0) * self.grid.unit**2 * self._divided(weights))

    @property
    def covariance(self) -> Array:
        """Unbiased covariance matrix, shape (n_features, n_features).

        Equal to ``numpy.cov(x.T, aweights=weights)``. Pairwise, each entry is of the rows that have
        both features, as in pandas, so that the matrix may have negative eigenvalues.

        Raises
        ------
        InputError
            If the total weight is zero, only products with a test matrix are held, or two features
            are in no row together.
        """
        if not self.is_complete:
            raise InputError(
                f"covariance: n_columns={self.grid.n_columns} of {self.n_features} columns are "
                "held. Leave n_columns out for all second moments, or decode the leading "
                "components with SketchPCA."
            )
        d, unit = self.n_features, self.grid.unit
        offset = d if self.grid.pairwise else 0
        out, first = np.empty((d, d)), np.empty((d, d))
        weights = np.broadcast_to(np.asarray(self._weights), (d, d)).copy()
        first[:] = self._first[:, None]
        for i in range(d):
            row = 1 + offset + i
            out[i, i:] = out[i:, i] = self._part(row, row, 1 + offset + d)
            if self.grid.pairwise:
                weights[i, i:] = weights[i:, i] = self._part(1 + i, 1 + i, 1 + d)
                # first moments over the rows that have feature i
                first[:, i] = self._part(1 + i, 1 + d, 1 + 2 * d)
        if not (weights > 0.0).all():
            i, j = np.argwhere(~(weights > 0.0))[0]
            raise InputError(
                f"features {i} and {j} are in no row together: leave one of them out, or "
                "impute missing values."
            )
        if self.grid.pairwise:
            first /= weights
        out /= weights
        out -= first * first.T
        out *= np.outer(unit, unit)
        out *= self._divided(weights)
        return out

    def covariance_products(self) -> tuple[Array, Array]:
        """Products of the covariance matrix with the test matrix.

        Returns
        -------
        products, test_matrix
            ``covariance @ test_matrix`` and the test matrix, shapes (n_features, n_columns).

        Raises
        ------
        InputError
            If the total weight is zero, or all second moments are held.
        """
        if self.grid.n_columns is None:
            raise InputError("n_columns=None: all second moments are held; use covariance.")
        self._require_weight()
        shape = self.n_features + 1, self.grid.n_columns + 1
        sums = self._floats(slice(0, shape[0] * shape[1])).reshape(shape) / self.total_weight
        products = sums[1:, 1:] - np.outer(sums[1:, 0], sums[0, 1:])
        factor = float(self._divided(self.total_weight)) * float(self.grid.unit[0]) ** 2
        return products * factor, self.grid.test_matrix() * self.grid.test_scale

    def _require_weight(self) -> None:
        if not self.total_weight > 0:
            raise InputError(
                f"the second moments are empty: total_weight={self.total_weight:g}, "
                f"count={self.count}, omitted={self.omitted}. Add samples with positive weights."
            )

    # Files and descriptions.

    def _stored(self) -> tuple[xr.Dataset, str, int]:
        return artifact.stored_moments(self), artifact.MOMENTS, artifact.VERSIONS[artifact.MOMENTS]

    def as_dict(self) -> dict[str, object]:
        """Counts, weights, moments and conventions; moments are None without samples."""
        has_weight = self.total_weight > 0
        return {
            "kind": "second moments",
            "count": self.count,
            "omitted": self.omitted,
            "total_weight": self.total_weight,
            "n_features": self.n_features,
            "n_columns": self.grid.n_columns,
            "mean": self.mean if has_weight else None,
            "variance": self.variance if has_weight else None,
            "feature_names": self.grid.feature_names,
            "bytes": self.__sizeof__(),
        }

    def __repr__(self) -> str:
        values = self.as_dict()
        del values["kind"], values["feature_names"]
        return f"<SecondMoments: {one_line(values)}>"

    def _repr_html_(self) -> str:
        values = self.as_dict()
        del values["kind"]
        summary = f"{self.count:,} samples of {self.n_features:,} features"
        return card("SecondMoments", describe(values), summary=summary)
