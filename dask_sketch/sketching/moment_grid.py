"""Conventions of second moments: center, units and test matrix."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.display.text import one_line
from dask_sketch.errors import InputError, MergeError
from dask_sketch.validation.arrays import FrozenDataclass, frozen, require_integer
from dask_sketch.validation.tables import distinct_names, warn_of_coarse_numbers

Array = NDArray[np.float64]
MAX_FEATURES = 5000  # features whose second moments are all summed, at most: they take 200 MB
_WORDS = 16  # bytes of a sum of two words
# binary logarithm of the deviation of an entry of the test matrix: that of 64 coins is 4
_DEVIATION = 2
_RANGE = 400  # binary exponents of units, whose squares are float64 numbers
_COLUMNS, _MIN_COLUMNS = 8, 80  # columns of the test matrix: for each component, and at least
_FIELDS = ("center", "unit", "n_columns", "seed", "feature_names", "pairwise")


@dataclass(frozen=True, eq=False, repr=False)
class MomentGrid(FrozenDataclass):
    """Conventions of second moments: moments of one grid can be added.

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
    pairwise
        Whether the moments of two features are sums over the rows that have both features.

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
    pairwise: bool = False

    def __post_init__(self) -> None:
        for name in ("center", "unit"):
            try:
                values = frozen(np.asarray(getattr(self, name), dtype=np.float64))
            except (TypeError, ValueError) as error:
                raise InputError(f"{name}: give numbers: {error}.", parameter=name) from error
            if values.ndim != 1 or not values.size or not np.isfinite(values).all():
                raise InputError(
                    f"{name} has shape={values.shape}: give a number for each feature."
                )
            object.__setattr__(self, name, values)
        if self.unit.shape != self.center.shape or (np.frexp(self.unit)[0] != 0.5).any():
            raise InputError(f"unit={self.unit!r}: give one power of two for each feature.")
        require_integer("seed", self.seed, 0)
        if not isinstance(self.pairwise, bool):
            raise InputError(f"pairwise={self.pairwise!r}: give True or False.")
        if self.feature_names is not None:
            names = distinct_names(self.feature_names, self.n_features)
            object.__setattr__(self, "feature_names", names)
        if self.n_columns is not None:
            require_integer("n_columns", self.n_columns, 1)
            if self.pairwise:
                raise InputError(
                    f"n_columns={self.n_columns}: missing values need all second moments; leave it "
                    "out, or pass nan_policy='omit'."
                )
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
        *,
        pairwise: bool = False,
    ) -> MomentGrid:
        """Grid for data such as the given rows; a few hundred rows are enough.

        Parameters
        ----------
        rows
            Rows, shape (n, n_features), at least one. Values that are not finite are left out.
        n_columns, seed, feature_names, pairwise
            Attributes of the grid.
        """
        x = np.asarray(rows, dtype=np.float64)
        finite = np.isfinite(x)
        x, count = np.where(finite, x, 0.0), np.maximum(finite.sum(axis=0), 1)
        largest = np.abs(x).max(axis=0)
        scaled = x / np.where(largest > 0.0, largest, 1.0)
        mean = scaled.sum(axis=0) / count
        away = np.where(finite, scaled - mean, 0.0)
        deviation = np.sqrt((away**2).sum(axis=0) / count) * largest
        warn_of_coarse_numbers(x, deviation, "x", feature_names)
        # a feature that does not vary here may vary elsewhere, by a fraction of its value or, if
        # that is zero, like the others
        varies = deviation > 4.0 * np.finfo(np.float64).eps * largest
        typical = np.median(deviation[varies]) if varies.any() else 1.0
        constant = np.where(largest > 0.0, 2.0**-10 * largest, typical)
        exponent = np.rint(np.log2(np.where(varies, deviation, constant)))
        if n_columns is not None:
            exponent = np.full(len(exponent), exponent[varies].max() if varies.any() else 0.0)
        unit = np.ldexp(1.0, np.clip(exponent, -_RANGE, _RANGE).astype(int))
        # center in whole units: the differences from it have few digits, for integers none
        center = np.rint(mean * largest / unit) * unit
        return cls(center, unit, n_columns, seed, feature_names, pairwise)

    @classmethod
    def from_spec(cls, spec: str) -> MomentGrid:
        """Rebuild a grid from :attr:`spec`.

        Raises
        ------
        InputError
            If the text is not the specification of a grid.
        """
        try:
            values = json.loads(spec)
            names = values["feature_names"]
            if set(values) != set(_FIELDS) or not isinstance(values["pairwise"], bool):
                raise ValueError("it has other keys")
            if names is not None:
                names = tuple(map(str, names))
                if len(names) != len(values["center"]):
                    raise ValueError("it has not one name for each feature")
            return cls(**(values | {"feature_names": names}))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"spec={str(spec)[:40]!r} is not that of a grid of second moments: {error}."
            ) from error

    @cached_property
    def spec(self) -> str:
        """Specification as canonical JSON text: sorted keys, exact numbers."""
        values = {name: getattr(self, name) for name in _FIELDS}
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
        return json.dumps(plain, sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the specification, 64 hexadecimal digits."""
        return hashlib.sha256(self.spec.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        """Whether all conventions are the same."""
        if not isinstance(other, MomentGrid):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def as_dict(self) -> dict[str, object]:
        """Sizes, center and units, and digest."""
        return {
            "kind": "grid of second moments",
            "n_features": self.n_features,
            "n_columns": self.n_columns,
            "n_sums": self.n_sums,
            "bytes": self.nbytes,
            "center": self.center,
            "unit": self.unit,
            "feature_names": self.feature_names,
            "pairwise": self.pairwise,
            "seed": self.seed,
            "digest": self.digest,
        }

    def __repr__(self) -> str:
        shown = ("n_features", "n_columns", "bytes", "pairwise", "seed")
        values = {name: value for name, value in self.as_dict().items() if name in shown}
        return f"<MomentGrid: {one_line(values)}, digest {self.digest[:12]}>"

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.center)

    @property
    def n_sums(self) -> int:
        """Number of sums."""
        return moment_bytes(self.n_features, self.n_columns, pairwise=self.pairwise) // _WORDS

    @property
    def nbytes(self) -> int:
        """Size of the sums in bytes."""
        return moment_bytes(self.n_features, self.n_columns, pairwise=self.pairwise)

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
        for name in _FIELDS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if not np.array_equal(mine, theirs):
                raise MergeError(
                    f"the second moments have different grids, in {name}: compute one of them with "
                    "like= the other."
                )


def moment_bytes(n_features: int, n_columns: int | None, *, pairwise: bool = False) -> int:
    """Size of second moments in bytes, or of their products with a test matrix.

    Examples
    --------
    >>> moment_bytes(5000, None), moment_bytes(5000, 80)
    (200120016, 6561296)
    """
    if n_columns is None:
        side = 1 + n_features * (2 if pairwise else 1)
        return _WORDS * (side * (side + 1) // 2)
    return _WORDS * ((n_features + 1) * (n_columns + 1) + n_features)


def default_n_columns(n_features: int, n_components: int) -> int:
    """Number of columns of the test matrix, for components of a spectrum like ``1 / i``.

    With eight columns for each of 10 or 20 components, and eigenvalues ``1 / i``, the variance that
    is not explained was within 0.6 % of the smallest possible.

    Examples
    --------
    >>> default_n_columns(20_000, 20)
    160
    """
    return min(max(_COLUMNS * n_components, _MIN_COLUMNS), n_features)


@lru_cache(maxsize=2)
def _test_matrix(n_features: int, n_columns: int, seed: int) -> Array:
    # bits of the generator itself are the same in all versions of NumPy: 64 coins each
    bits = np.random.Philox(key=seed).random_raw(n_features * n_columns)
    entries = np.bitwise_count(bits).astype(np.float64) - 32.0
    entries.flags.writeable = False
    return entries.reshape(n_features, n_columns)
