"""Second moments of samples: exact, mergeable sums for principal components.

All second moments take ``d**2 / 2`` numbers. For many features their products with a random test
matrix, ``sum_i w_i x_i (x_i' Omega)``, take ``d r`` numbers, from which the leading principal
components are found (Tropp, Yurtsever, Udell and Cevher 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.display.html import card
from dask_sketch.display.text import describe, one_line
from dask_sketch.errors import CapacityError, ChunkError, InputError, MergeError
from dask_sketch.features.kernels.expectation_loop import weights_by_exponent
from dask_sketch.features.kernels.fixed_point import (
    MAX_EXPONENT,
    MAX_TOTAL_WEIGHT,
    MIN_EXPONENT,
    FixedPoint,
)
from dask_sketch.features.kernels.row_loop import MAX_DISTANCE
from dask_sketch.features.kernels.sliced_products import (
    MAX_ROWS,
    SLICE_BITS,
    add_products,
    add_squares,
    slices,
)
from dask_sketch.sketching import artifact
from dask_sketch.sketching.arguments import checked_chunk, refuse_values
from dask_sketch.sketching.merge import merge
from dask_sketch.storage.artifact import Storable
from dask_sketch.validation.arrays import FrozenDataclass, frozen, require_integer
from dask_sketch.validation.device import on_host

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
FRACTION = 30  # binary digits of a value in its unit
SQUARED_FRACTION = 40 - 2 * MIN_EXPONENT  # of the sum of squared weights
_WORDS = 16  # bytes of a sum of two words
_NEAR = 2.0**41  # integers in two slices
_BLOCK = 2**20  # values that are converted at a time
_DEVIATION = 2  # of an entry of the test matrix, a power of two: that of 64 coins is 4
_RANGE = 400  # binary exponents of units, whose squares are float64 numbers


@dataclass(frozen=True, eq=False, repr=False)
class MomentGrid(FrozenDataclass):
    """Conventions of second moments: those of one grid can be added.

    A value ``x`` is counted as the integer nearest to ``2**30 (x - center) / unit``, where the unit
    is a power of two near the standard deviation of the feature. The moments of these integers are
    exact.

    Parameters
    ----------
    center
        Point that is subtracted from every sample, shape (n_features,).
    unit
        Power of two for each feature, shape (n_features,); the same for all with ``n_columns``.
    n_columns
        Number of columns of the test matrix ``Omega``; None for all second moments.
    seed
        Seed of the test matrix, ``>= 0``.
    feature_names
        Names of the features, or None.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> grid = MomentGrid.of_rows(np.array([[10.0, 0.1], [14.0, 0.3]]))
    >>> grid.center, grid.unit
    (array([12.  ,  0.25]), array([2.   , 0.125]))
    """

    center: Array
    unit: Array
    n_columns: int | None = None
    seed: int = 0
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("center", "unit"):
            values = frozen(np.asarray(getattr(self, name), dtype=np.float64))
            if values.ndim != 1 or not values.size or not np.isfinite(values).all():
                raise InputError(
                    f"{name} has shape={values.shape}: give a number for each feature."
                )
            object.__setattr__(self, name, values)
        if self.unit.shape != self.center.shape or (np.frexp(self.unit)[0] != 0.5).any():
            raise InputError(f"unit={self.unit!r}: give one power of two for each feature.")
        require_integer("seed", self.seed, 0)
        if self.n_columns is not None:
            require_integer("n_columns", self.n_columns, 1)
            if self.n_columns > self.n_features:
                raise InputError(
                    f"n_columns={self.n_columns}: give at most the number of features, "
                    f"{self.n_features}, or leave it out for all second moments."
                )
            if (self.unit != self.unit[0]).any():
                raise InputError("unit: give the same for all features with n_columns.")

    @classmethod
    def of_rows(
        cls,
        rows: Any,
        n_columns: int | None = None,
        seed: int = 0,
        feature_names: tuple[str, ...] | None = None,
    ) -> MomentGrid:
        """Grid for data like the given rows, of which a few hundred suffice.

        Parameters
        ----------
        rows
            Finite rows, shape (n, n_features), at least one.
        n_columns, seed, feature_names
            Attributes of the grid.
        """
        x = np.asarray(rows, dtype=np.float64)
        largest = np.abs(x).max(axis=0)
        scaled = x / np.where(largest > 0.0, largest, 1.0)
        mean = scaled.mean(axis=0)
        deviation = np.sqrt(((scaled - mean) ** 2).mean(axis=0)) * largest
        # a feature that does not vary here may vary elsewhere, by a fraction of its value or, if
        # that is zero, like the others
        varies = deviation > 4.0 * np.finfo(np.float64).eps * largest
        typical = np.median(deviation[varies]) if varies.any() else 1.0
        constant = np.where(largest > 0.0, 2.0**-10 * largest, typical)
        exponent = np.rint(np.log2(np.where(varies, deviation, constant)))
        if n_columns is not None:
            exponent = np.full(len(exponent), exponent[varies].max() if varies.any() else 0.0)
        unit = np.ldexp(1.0, np.clip(exponent, -_RANGE, _RANGE).astype(int))
        # in whole units: the differences from it have few digits, for integers none
        center = np.rint(mean * largest / unit) * unit
        return cls(center, unit, n_columns, seed, feature_names)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.center)

    @property
    def n_sums(self) -> int:
        """Number of sums."""
        return moment_bytes(self.n_features, self.n_columns) // _WORDS

    @property
    def nbytes(self) -> int:
        """Size of the sums in bytes."""
        return moment_bytes(self.n_features, self.n_columns)

    def test_matrix(self) -> Array:
        """Random integers with variance 16, nearly Gaussian, shape (n_features, n_columns)."""
        assert self.n_columns is not None
        return _test_matrix(self.n_features, self.n_columns, self.seed)

    @property
    def test_scale(self) -> float:
        """Factor of the test matrix, a power of two, so that products have the size of values."""
        return 2.0 ** -(_DEVIATION + round(np.log2(self.n_features) / 2))

    def require_same(self, other: MomentGrid) -> None:
        """Raise MergeError, with the name of the attribute, unless the grids are equal."""
        for name in ("center", "unit", "n_columns", "seed", "feature_names"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if not np.array_equal(mine, theirs):
                raise MergeError(
                    f"the second moments have different grids, in {name}: compute one of them with "
                    "like= the other."
                )


def moment_bytes(n_features: int, n_columns: int | None) -> int:
    """Size of second moments in bytes, or of their products with a test matrix.

    Examples
    --------
    >>> moment_bytes(5000, None), moment_bytes(5000, 80)
    (200120016, 6561296)
    """
    if n_columns is None:
        return _WORDS * ((n_features + 1) * (n_features + 2) // 2)
    return _WORDS * ((n_features + 1) * (n_columns + 1) + n_features)


@lru_cache(maxsize=2)
def _test_matrix(n_features: int, n_columns: int, seed: int) -> Array:
    # bits of the generator itself are the same in all versions of NumPy: 64 coins each
    bits = np.random.Philox(key=seed).random_raw(n_features * n_columns)
    found = np.bitwise_count(bits).astype(np.float64) - 32.0
    found.flags.writeable = False
    return found.reshape(n_features, n_columns)


@dataclass(frozen=True, eq=False, repr=False)
class SecondMoments(FrozenDataclass, Storable):
    """Exact second moments of samples, or their products with a test matrix.

    Second moments of one grid can be added and subtracted: ``a + b`` are those of both inputs
    together. They have the same bits for every chunking and order of the samples.

    Attributes
    ----------
    grid
        Conventions of the sums.
    sums
        Sums as integers, flat: those of ``[1, x]' [1, x]``, upper triangle row by row; or with a
        test matrix those of ``[1, x]' [1, x Omega]``, and of the squares of ``x``.
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

    @property
    def is_possible(self) -> bool:
        """Whether samples could have such sums: counts and squares are not negative."""
        counts = (self.count, self.omitted, self.squared_weight_quanta)
        if min(counts) < 0 or (self.count == 0 and self.sums.any()):
            return False
        squares = self.sums.high[self._squares]
        return bool(self.sums.high[0] >= 0 and (squares >= 0).all())

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
        rows = np.arange(1, d + 1)
        return rows * (d + 1) - rows * (rows + 1) // 2 + rows

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

    @cached_property
    def _first(self) -> Array:
        """Mean of ``(x - center) / unit``, shape (n_features,)."""
        d = self.n_features
        self._require_weight()
        where = slice(1, d + 1)
        if self.grid.n_columns is not None:
            width = self.grid.n_columns + 1
            where = slice(width, width * (d + 1), width)
        return self._floats(where) / self.total_weight

    @property
    def mean(self) -> Array:
        """Weighted mean, shape (n_features,), in the units of the data.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        return self.grid.center + self.grid.unit * self._first

    @cached_property
    def _divided(self) -> float:
        """Factor from second moments about the mean to unbiased covariances."""
        n = self.effective_count
        return n / (n - 1.0) if n > 1.0 else np.nan

    @property
    def variance(self) -> Array:
        """Unbiased variance of each feature, shape (n_features,); nan for a single sample."""
        self._require_weight()
        spread = self._floats(self._squares) / self.total_weight - self._first**2
        return np.asarray(np.maximum(spread, 0.0) * self.grid.unit**2 * self._divided)

    @property
    def covariance(self) -> Array:
        """Unbiased covariance matrix, shape (n_features, n_features).

        That of ``numpy.cov(x.T, aweights=weights)``.

        Raises
        ------
        InputError
            If the total weight is zero, or only products with a test matrix are held.
        """
        if not self.is_complete:
            raise InputError(
                f"covariance: n_columns={self.grid.n_columns} of {self.n_features} columns are "
                "held. Leave n_columns out for all second moments, or decode the leading "
                "components with SketchPCA."
            )
        self._require_weight()
        d, unit = self.n_features, self.grid.unit
        out = np.empty((d, d))
        start = d + 1
        for i in range(d):
            out[i, i:] = self._floats(slice(start, start + d - i))
            out[i:, i] = out[i, i:]
            start += d - i
        out /= self.total_weight
        out -= np.outer(self._first, self._first)
        out *= np.outer(unit, unit) * self._divided
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
            raise InputError("n_columns=None: all second moments are held, see covariance.")
        self._require_weight()
        shape = self.n_features + 1, self.grid.n_columns + 1
        sums = self._floats(slice(0, shape[0] * shape[1])).reshape(shape) / self.total_weight
        products = sums[1:, 1:] - np.outer(sums[1:, 0], sums[0, 1:])
        factor = self._divided * float(self.grid.unit[0]) ** 2
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


def partial_moments(
    samples: Any,
    grid: MomentGrid,
    weights: Any = None,
    *,
    nan_policy: str = "raise",
    label: str = "samples",
) -> SecondMoments:
    """Second moments of one chunk in memory.

    Parameters
    ----------
    samples
        Chunk of shape (..., n_features) and any real dtype.
    grid
        Conventions of the sums.
    weights
        Weights of shape (...), zero or from ``2**-32`` to ``2**32``; all one when not given.
    nan_policy
        ``"raise"`` refuses the chunk at a row with a NaN or infinite value, ``"omit"`` leaves such
        rows out and counts them.
    label
        Name of the chunk for messages.

    Raises
    ------
    InputError
        If shapes or types do not fit, or values are masked.
    ChunkError
        If a row or a weight is refused, or sums are too large.
    """
    given, shares = checked_chunk(samples, weights, grid.n_features, "the grid", label)
    x, w = on_host(given), None if shares is None else on_host(shares)
    step = max(min(_BLOCK // grid.n_features, MAX_ROWS), 64)
    sums = np.zeros((2, grid.n_sums), np.int64)
    squared_weight = omitted = 0
    for start in range(0, len(x), step):
        rows = x[start : start + step].astype(np.float64)
        own = None if w is None else w[start : start + step].astype(np.float64)
        fine = np.isfinite(rows).all(axis=1)
        kept = fine | (nan_policy == "omit")
        if own is not None:
            kept &= (own == 0.0) | ((own >= 2.0**MIN_EXPONENT) & (own <= 2.0**MAX_EXPONENT))
        rows -= grid.center
        rows /= grid.unit
        kept &= ~fine | (np.abs(rows) <= MAX_DISTANCE).all(axis=1)
        if not kept.all():
            bad = int(np.argmin(kept))
            refuse_values(
                x[start + bad], None if own is None else float(own[bad]), start + bad, label,
                grid.center, grid.unit, grid.feature_names, "the grid",
                "give like=, second moments of typical rows",
            )  # fmt: skip
        omitted += int((~fine).sum())
        if not fine.all():
            rows, own = rows[fine], None if own is None else own[fine]
        try:
            squared_weight += _add_rows(sums, rows, own, grid)
        except CapacityError as error:
            raise ChunkError(f"{label}: {error}") from error
    return SecondMoments(grid, FixedPoint(*sums), squared_weight, len(x) - omitted, omitted)


def _add_rows(sums: NDArray[np.int64], rows: Array, weights: Array | None, grid: MomentGrid) -> int:
    """Add rows in units of the grid; return the sum of their squared weights."""
    if weights is None:
        _add_scaled(sums, rows, None, 0, grid)
        return len(rows) << SQUARED_FRACTION
    squared = 0
    for exponent, part in weights_by_exponent(weights):
        mantissas = np.ldexp(weights[part], -exponent)
        quanta = int(np.rint(np.ldexp(mantissas**2, 40)).astype(np.int64).sum())
        squared += quanta << 2 * (exponent - MIN_EXPONENT)
        # small weights are rounded to the grid of a weight of one
        shift = max(exponent, 0)
        _add_scaled(sums, rows[part], np.sqrt(np.ldexp(weights[part], -shift)), shift, grid)
    return squared


def _add_scaled(
    sums: NDArray[np.int64], rows: Array, roots: Array | None, shift: int, grid: MomentGrid
) -> None:
    """Add the products of rows, times the square roots of their weights over ``2**shift``."""
    q = np.empty((len(rows), grid.n_features + 1))
    q[:, 0], q[:, 1:] = 1.0, rows
    if roots is not None:
        q *= roots[:, None]
    q *= 2.0**FRACTION
    np.rint(q, out=q)
    t = None
    if grid.n_columns is not None:
        t = np.empty((len(rows), grid.n_columns + 1))
        t[:, 0], t[:, 1:] = q[:, 0], _tested(q[:, 1:], grid)
    near = (np.abs(q) <= _NEAR).all(axis=1)
    if t is not None:
        near &= (np.abs(t) <= _NEAR).all(axis=1)
    # distant rows have more slices: apart from the others, of which there are more
    parts = [slice(None)] if near.all() else [np.flatnonzero(near), np.flatnonzero(~near)]
    for part in parts:
        add_products(sums, q[part], None if t is None else t[part], shift=shift)
        if t is not None:
            start = grid.n_sums - grid.n_features
            add_squares(sums, q[part, 1:], start=start, shift=shift)


def _tested(q: Array, grid: MomentGrid) -> Array:
    """Products of rows with the test matrix, each rounded to an integer by its row alone."""
    matrix, out = grid.test_matrix(), np.zeros((len(q), grid.n_columns or 0))
    for part in reversed(list(enumerate(slices(q)))):
        # exact, as are the products; one rounding for each slice, from the highest
        out += (part[1] @ matrix) * 2.0 ** (SLICE_BITS * part[0])
    out *= grid.test_scale
    return np.rint(out, out=out)
