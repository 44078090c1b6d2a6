"""The sketch: weighted sums over all samples, which merge by addition."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card, fields_table, html_table
from dask_sketch.display.plots import SketchPlots
from dask_sketch.display.text import describe, one_line
from dask_sketch.errors import CapacityError, InputError, MergeError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import (
    FEATURE_FRACTION,
    FRACTION,
    MAX_EXPONENT,
    MAX_TOTAL_WEIGHT,
    MIN_EXPONENT,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.sketching import artifact
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.missing import MissingWeights, ObservedWeights
from dask_sketch.sketching.privacy import Privacy, merged_privacy, noise_variance, refuse_private
from dask_sketch.sketching.rounding import refuse_rounded, rounded_sums
from dask_sketch.sketching.row_sample import RowSample
from dask_sketch.storage.artifact import Storable
from dask_sketch.validation.arrays import FrozenDataclass
from dask_sketch.validation.registry import registered_unpacker

if TYPE_CHECKING:
    import xarray as xr

_SLACK = 1e-3  # relative excess of a modulus over the weight, far above the rounding of features
_ARRAY_SUMS = ("moment_quanta", "first_quanta", "second_quanta")
_INTEGER_SUMS = ("weight_quanta", "squared_weight_quanta", "count", "omitted")
_SUMS = (*_ARRAY_SUMS, *_INTEGER_SUMS, "missing")
_ARRAYS = (*_ARRAY_SUMS, "minimum", "maximum")


@dataclass(frozen=True, eq=False, repr=False)
class Sketch(FrozenDataclass, Storable):
    """Weighted sums over samples, from which models are decoded.

    Sketches of one feature map can be added and subtracted: ``a + b`` is the sketch of both inputs
    together, ``a - b`` removes a part again, and :meth:`empty` is the sketch of no samples. The
    normalised moments are :attr:`z`, :attr:`mean` and :attr:`variance`; all stored sums are
    unnormalised.

    **Exact sums.** The contribution of a sample is rounded once, by arithmetic that depends only on
    the sample, its weight and the feature map. From there on integers are added (``*_quanta``; see
    :class:`~dask_sketch.features.kernels.fixed_point.FixedPoint` for the scheme, its error and its
    capacity). The same samples therefore have the same sketch, bit for bit, for every chunking,
    order, shape of the tree of merges, number of batches and of workers, and after any retry; and
    ``(a + b) - b`` has all sums of ``a``. (Each chunk that is sketched on a GPU is rounded once as
    a whole: merges and subtractions of such sketches are exact too, but another chunking changes
    the last bits.) The float64 numbers ``moment_sum`` to ``second_moment`` are views: the integers
    rounded once.

    Attributes
    ----------
    feature_map
        Feature map whose features are summed.
    moment_quanta
        Real and imaginary parts of ``moment_sum`` in multiples of ``2**-71``, shape
        (2, n_frequencies).
    weight_quanta, squared_weight_quanta
        ``total_weight`` in multiples of ``2**-80``, ``squared_weight`` in multiples of ``2**-112``.
    count
        Number of samples summed, including those of weight zero.
    omitted
        Number of rows left out because a value was NaN or infinite; with
        ``nan_policy="available"``, because no value was finite.
    minimum, maximum
        Bounds of each feature, shape (n_features,); ``inf`` and ``-inf`` for an empty sketch.
    first_quanta, second_quanta
        ``first_moment`` in multiples of ``2**-62`` units, ``second_moment`` in multiples of
        ``2**-62`` squared units, shape (n_features,). The unit of each feature is a power of two
        near the scale of the feature map,
        ``dask_sketch.features.feature_map.moment_units``.
    tight_bounds
        False after a subtraction: the bounds then contain the data, but may be too wide.
    privacy
        Record of :func:`~dask_sketch.privatise` if the sums contain its noise, else None.
    sample
        Random rows of the data, if the pass carried them, else None; see
        :class:`~dask_sketch.sketching.row_sample.RowSample`. They depend on the positions of the
        rows, not on the chunking; they are lost in a sum with a sketch that has none. Rows with
        missing values are not among them.
    missing
        Weights of the rows that lack a feature of each frequency, if the pass had
        ``nan_policy="available"`` and there were such rows, else None; see
        :class:`~dask_sketch.sketching.missing.MissingWeights`.
    rounding_error
        Standard deviation of the random errors of the parts of ``moment_sum``, in units of the
        weight, if these sums were :meth:`rounded`, or are of quantised phases; 0 for exact sums.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> feature_map = FeatureMap(2, 20, scale=1.0, seed=0)
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> a, b = partial_sketch(x[:60], feature_map), partial_sketch(x[60:], feature_map)
    >>> whole = a + b
    >>> whole.count, bool(abs(whole.z).max() <= 1)
    (100, True)
    >>> whole.identical(partial_sketch(x[::-1], feature_map)), (whole - b).same_sums(a)
    (True, True)
    """

    feature_map: FeatureMap
    moment_quanta: FixedPoint
    weight_quanta: int
    squared_weight_quanta: int
    count: int
    omitted: int
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    first_quanta: FixedPoint
    second_quanta: FixedPoint
    tight_bounds: bool = True
    privacy: Privacy | None = None
    sample: RowSample | None = None
    missing: MissingWeights | None = None
    rounding_error: float = 0.0

    def __post_init__(self) -> None:
        self.minimum.flags.writeable = self.maximum.flags.writeable = False
        if self.weight_quanta > MAX_TOTAL_WEIGHT << WEIGHT_FRACTION:
            raise CapacityError(
                f"total_weight={self.total_weight:g} is over the {MAX_TOTAL_WEIGHT:.4g} that a "
                f"sketch "
                "can hold exactly. Multiply all weights by one smaller factor."
            )

    @classmethod
    def empty(cls, feature_map: FeatureMap) -> Sketch:
        """The neutral element of addition: the sketch of no samples.

        Parameters
        ----------
        feature_map
            Feature map of the sketch.
        """
        d = feature_map.n_features
        return cls(
            feature_map=feature_map,
            moment_quanta=FixedPoint.zeros((2, feature_map.n_frequencies)),
            weight_quanta=0,
            squared_weight_quanta=0,
            count=0,
            omitted=0,
            minimum=np.full(d, np.inf),
            maximum=np.full(d, -np.inf),
            first_quanta=FixedPoint.zeros(d),
            second_quanta=FixedPoint.zeros(d),
        )

    @classmethod
    def from_sums(
        cls,
        feature_map: FeatureMap,
        *,
        moment_sum: ArrayLike,
        total_weight: float,
        squared_weight: float,
        count: int,
        first_moment: ArrayLike,
        second_moment: ArrayLike,
        minimum: ArrayLike,
        maximum: ArrayLike,
        omitted: int = 0,
        tight_bounds: bool = True,
    ) -> Sketch:
        """Make a sketch of float64 sums computed elsewhere, each rounded once.

        Parameters
        ----------
        feature_map
            Feature map whose features were summed.
        moment_sum, total_weight, squared_weight, count, first_moment, second_moment, minimum, \
        maximum, omitted, tight_bounds
            Values of the attributes of the same names.

        Raises
        ------
        CapacityError
            If a sum is NaN or larger than a sketch can hold exactly.

        Examples
        --------
        >>> from dask_sketch import FeatureMap
        >>> feature_map = FeatureMap(1, 3, scale=1.0)
        >>> bounds = {"minimum": [0.0], "maximum": [2.0]}
        >>> moments = {"moment_sum": [2, 1j, 0], "first_moment": [2.0], "second_moment": [4.0]}
        >>> Sketch.from_sums(
        ...     feature_map, total_weight=2, squared_weight=2, count=2, **moments, **bounds
        ... ).mean
        array([1.])
        """
        moments = np.asarray(moment_sum, dtype=np.complex128)
        unit = moment_units(feature_map)
        first, second = (np.asarray(m, dtype=np.float64) for m in (first_moment, second_moment))
        return cls(
            feature_map=feature_map,
            moment_quanta=FixedPoint.from_float(np.stack([moments.real, moments.imag]), FRACTION),
            weight_quanta=_scaled(1 << WEIGHT_FRACTION, total_weight),
            squared_weight_quanta=_scaled(1 << SQUARED_FRACTION, squared_weight),
            count=int(count),
            omitted=int(omitted),
            minimum=np.array(minimum, dtype=np.float64),
            maximum=np.array(maximum, dtype=np.float64),
            first_quanta=FixedPoint.from_float(first / unit, FEATURE_FRACTION),
            second_quanta=FixedPoint.from_float(second / unit**2, FEATURE_FRACTION),
            tight_bounds=tight_bounds,
        )

    @classmethod
    def _add(cls, parts: list[Sketch]) -> Sketch:
        sums: Any = {
            name: FixedPoint.sum([getattr(part, name) for part in parts]) for name in _ARRAY_SUMS
        }
        return cls(
            feature_map=parts[0].feature_map,
            minimum=np.stack([part.minimum for part in parts]).min(axis=0),
            maximum=np.stack([part.maximum for part in parts]).max(axis=0),
            tight_bounds=all(part.tight_bounds for part in parts),
            privacy=merged_privacy([p.privacy for p in parts if p.privacy or p.count or p.omitted]),
            sample=_merged_sample(parts),
            missing=MissingWeights.sum([part.missing for part in parts]),
            rounding_error=float(np.linalg.norm([part.rounding_error for part in parts])),
            **sums,
            **{name: sum(getattr(part, name) for part in parts) for name in _INTEGER_SUMS},
        )

    def __add__(self, other: object) -> Sketch:
        if not isinstance(other, Sketch):
            return NotImplemented
        return merge([self, other])

    def __radd__(self, other: object) -> Sketch:
        if isinstance(other, int) and other == 0:  # sum([...]) starts from 0
            return self
        return NotImplemented

    def __sub__(self, other: object) -> Sketch:
        if not isinstance(other, Sketch):
            return NotImplemented
        self.feature_map.require_same(other.feature_map)
        refuse_private("subtract", self.privacy, other.privacy)
        refuse_rounded("subtract", self, other)
        if other.count > self.count or other.omitted > self.omitted:
            raise MergeError(
                f"cannot subtract a sketch with count={other.count}, omitted={other.omitted} from "
                f"one with count={self.count}, omitted={self.omitted}. Subtract only a part that "
                "was added."
            )
        left = replace(
            self,
            **{
                name: getattr(self, name) - getattr(other, name)
                for name in (*_ARRAY_SUMS, *_INTEGER_SUMS)
            },
            missing=MissingWeights.difference(self.missing, other.missing),
            tight_bounds=self.tight_bounds and other.count == 0,
            sample=self._sample_without(other),
        )
        if not left.is_possible or not other._is_within(self):
            raise MergeError(
                f"cannot subtract a sketch with total_weight={other.total_weight:g}, "
                f"count={other.count} from one with total_weight={self.total_weight:g}, "
                f"count={self.count}: no samples have the remaining sums or bounds. Subtract only "
                "a part that was added."
            )
        if left.count == 0:
            return replace(Sketch.empty(self.feature_map), omitted=left.omitted)
        return left

    def _sample_without(self, other: Sketch) -> RowSample | None:
        if self.sample is None or other.count == 0:
            return self.sample
        return None if other.sample is None else self.sample.without(other.sample)

    @property
    def holds_all_rows(self) -> bool:
        """Whether the random rows are all rows of the data."""
        return self.sample is not None and self.sample.is_complete and self.missing is None

    def without_sample(self) -> Sketch:
        """The same sums without the random rows, for instance to publish them."""
        return self if self.sample is None else replace(self, sample=None)

    @property
    def is_possible(self) -> bool:
        """Whether samples may have these sums: necessary conditions.

        Sums with noise, of privacy or of quantised phases, need not meet them.
        """
        if self.count == 0 or self.weight_quanta <= 0:
            return not (
                self.weight_quanta
                or self.squared_weight_quanta
                or any(getattr(self, name).any() for name in _ARRAY_SUMS)
                or self.missing is not None
            )
        if self.missing is not None and not self.missing.is_possible(self.weight_quanta):
            return False
        largest = self.observed.frequencies * (1 + _SLACK)
        return bool(
            self.squared_weight_quanta > 0
            and (self.second_quanta.high >= 0).all()
            and (np.abs(self.moment_sum) <= largest + 1e-9 * self.total_weight).all()
        )

    def _is_within(self, other: Sketch) -> bool:
        """Check the bounds against the bounds of ``other``, unless they are too wide to compare."""
        return not self.tight_bounds or bool(
            (self.minimum >= other.minimum).all() and (self.maximum <= other.maximum).all()
        )

    def scale(self, factor: float) -> Sketch:
        """Multiply all weights by a factor.

        Each sum is rounded once, to its quantum; powers of two of at least one are exact.

        Parameters
        ----------
        factor
            Zero, or a number from ``2**-32`` to ``2**32``, the range of weights.

        Returns
        -------
        sketch
            Sketch of the same samples; counts and bounds stay.

        Raises
        ------
        InputError
            If the factor is out of range.
        MergeError
            If the sketch is private.
        CapacityError
            If the sums become larger than a sketch can hold exactly.
        """
        refuse_private("scale", self.privacy)
        number = isinstance(factor, (int, float, np.number))
        if not number or not (factor == 0 or 2.0**MIN_EXPONENT <= factor <= 2.0**MAX_EXPONENT):
            raise InputError(
                f"factor={factor!r}: give zero, or a number from 2**{MIN_EXPONENT} to "
                f"2**{MAX_EXPONENT}."
            )
        return replace(
            self,
            moment_quanta=self.moment_quanta.times(factor),
            weight_quanta=_scaled(self.weight_quanta, factor),
            squared_weight_quanta=_scaled(self.squared_weight_quanta, factor, factor),
            first_quanta=self.first_quanta.times(factor),
            second_quanta=self.second_quanta.times(factor),
            sample=None if self.sample is None else self.sample.scale(factor),
            missing=None if self.missing is None else self.missing.times(factor),
            rounding_error=self.rounding_error * factor,
        )

    def rounded(self, seed: int = 0) -> Sketch:
        """Round the sums of features at random to a grid below their noise, for small files.

        Each real and imaginary part of ``moment_sum`` becomes a number of about
        ``ceil(log2(n) / 2) + 4`` bits, with the effective count as ``n``, in place of two words of
        64 bits. It is rounded up or down with the probabilities that make its expectation exact,
        which adds 0.3 % to 1.4 % to the squared error of the sketch. Errors of different
        sketches are independent, so that a sum of rounded sketches is as accurate as they are. It
        can be decoded, added and stored, but neither be subtracted nor stand in a ledger or a
        group. All other sums stay exact. Random rows are kept: :meth:`without_sample` drops them.

        Parameters
        ----------
        seed
            Seed of the rounding, ``>= 0``, which also depends on the sums.

        Returns
        -------
        sketch
            Sketch with :attr:`rounding_error`; the same sketch if it is empty.

        Raises
        ------
        InputError
            If the sketch is private: its noise is on a grid of its own.

        Examples
        --------
        >>> from dask_sketch import FeatureMap, partial_sketch
        >>> x = np.random.default_rng(0).normal(size=(10_000, 2))
        >>> sketch = partial_sketch(x, FeatureMap(2, 1000, scale=1.0))
        >>> small = sketch.rounded()
        >>> bool(abs(small.z - sketch.z).max() < 0.02 / np.sqrt(1000))
        True
        >>> len(sketch.to_bytes()), len(small.to_bytes())
        (36114, 6987)
        """
        return replace(self, **rounded_sums(self, seed))

    def to_bytes(self, *, rounded: bool = False) -> bytes:
        """Return one value for a column of a database, a message or a cache.

        :func:`dask_sketch.open` reads the value back with the same bits, and accepts values from
        others as it accepts their files. The value is an uncompressed ZIP file of arrays in NumPy's
        format and of a document in JSON. Frequencies are left out: they follow from the document.

        Parameters
        ----------
        rounded
            Whether to store the sums of :meth:`rounded`, which take 7 to 12 times fewer bytes.

        Examples
        --------
        >>> import dask_sketch as ds
        >>> sketch = ds.partial_sketch([[0.0, 1.0]], ds.FeatureMap(2, 20, scale=1.0))
        >>> value = sketch.to_bytes()
        >>> ds.open(value).identical(sketch)
        True
        """
        return super(Sketch, self.rounded() if rounded else self).to_bytes()

    @classmethod
    def from_bytes(cls, value: bytes | bytearray | memoryview) -> Sketch:
        """Return the sketch whose value :meth:`to_bytes` returned, with the same bits.

        Values from others are accepted as their files are. :func:`dask_sketch.open` reads values of
        other objects as well.

        Parameters
        ----------
        value
            Value that :meth:`to_bytes` of a sketch returned.

        Raises
        ------
        InputError
            If ``value`` is not of bytes.
        ArtifactError
            If the value is of another object or version, or was truncated or edited.

        Examples
        --------
        >>> import dask_sketch as ds
        >>> sketch = ds.partial_sketch([[0.0, 1.0]], ds.FeatureMap(2, 20, scale=1.0))
        >>> ds.Sketch.from_bytes(sketch.to_bytes()).identical(sketch)
        True
        """
        return cast(Sketch, registered_unpacker()(value))

    def to_xarray(self) -> xr.Dataset:
        """Return the sketch as a labelled dataset whose attributes state every convention."""
        return artifact.sketch_dataset(self)

    def _stored(self) -> tuple[xr.Dataset, str, int]:
        return artifact.stored_sketch(self), artifact.SKETCH, artifact.sketch_version(self)

    def identical(self, other: Sketch) -> bool:
        """Whether all sums, counts and bounds, and the digest of the feature map, are the same.

        The random rows of ``sample`` are not compared: they are the same for every chunking, but
        depend on the positions of the rows, and so on their order.
        """
        return self.same_sums(other) and (
            np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
            and self.tight_bounds == other.tight_bounds
            and self.privacy == other.privacy
            and self.rounding_error == other.rounding_error
        )

    def same_sums(self, other: Sketch) -> bool:
        """Whether all sums and counts, and the digest of the feature map, are the same.

        Bounds are not compared: a subtraction cannot restore them.
        """
        return (
            isinstance(other, Sketch)
            and self.feature_map == other.feature_map
            and all(getattr(self, name) == getattr(other, name) for name in _SUMS)
        )

    def __sizeof__(self) -> int:
        # Dask's memory accounting calls this; without it a sketch would count as 56 bytes
        return (
            object.__sizeof__(self)
            + self.feature_map.__sizeof__()
            + sum(getattr(self, name).nbytes for name in _ARRAYS)
            + (0 if self.sample is None else self.sample.nbytes)
            + (0 if self.missing is None else self.missing.nbytes)
        )

    @cached_property
    def moment_sum(self) -> NDArray[np.complex128]:
        """``sum_i w_i exp(-i omega_j . (x_i - center))``, shape (n_frequencies,), complex128.

        Relative to the center of the feature map; :attr:`z` is relative to the origin.
        """
        real, imaginary = self.moment_quanta.to_float(FRACTION)
        return _read_only(real + 1j * imaginary)

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return self.weight_quanta / (1 << WEIGHT_FRACTION)

    @property
    def squared_weight(self) -> float:
        """Sum of the squares of the weights."""
        return self.squared_weight_quanta / (1 << SQUARED_FRACTION)

    @cached_property
    def first_moment(self) -> NDArray[np.float64]:
        """``sum_i w_i (x_i - center)``, shape (n_features,)."""
        unit = moment_units(self.feature_map)
        return _read_only(self.first_quanta.to_float(FEATURE_FRACTION) * unit)

    @cached_property
    def second_moment(self) -> NDArray[np.float64]:
        """``sum_i w_i (x_i - center)**2``, shape (n_features,)."""
        unit = moment_units(self.feature_map)
        return _read_only(self.second_quanta.to_float(FEATURE_FRACTION) * unit**2)

    @cached_property
    def observed(self) -> ObservedWeights:
        """Weights and fractions of the rows that observe each frequency and each feature.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        self._require_weight()
        return ObservedWeights(self.feature_map, self.weight_quanta, self.missing)

    @cached_property
    def centered_characteristic(self) -> NDArray[np.complex128]:
        """Empirical characteristic function of the data less the center of the map, shape (m,).

        Zero at frequencies that no row observes.
        """
        weights = self.observed.frequencies
        return _read_only(self.moment_sum / np.where(weights > 0.0, weights, np.inf))

    @property
    def z(self) -> NDArray[np.complex128]:
        """The sketch vector (eq. 13 of Keriven et al. 2018), shape (n_frequencies,), complex128.

        ``z_j = 1 / sqrt(m) * sum_i w_i exp(-i omega_j . x_i) / sum_i w_i``, so that ``|z| <= 1``.
        With missing values both sums are over the rows that observe the frequency.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        return self.characteristic / np.sqrt(self.feature_map.n_frequencies)

    @property
    def characteristic(self) -> NDArray[np.complex128]:
        """Empirical characteristic function at the frequencies, ``sqrt(m) z``, shape (m,)."""
        self._require_weight()
        phase = self.feature_map.center @ self.feature_map.frequencies
        return np.asarray(np.exp(-1j * phase) * self.centered_characteristic)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of the data, shape (n_features,).

        If values are missing, the mean of the observed ones; the center of the feature map for a
        feature without any.

        Raises
        ------
        InputError
            If the total weight is zero, or the sketch is private and so has no moments.
        """
        self._require_moments()
        return self.feature_map.center + self.first_moment / self.observed.divisors

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of each feature, shape (n_features,), ``>= 0``.

        Raises
        ------
        InputError
            If the total weight is zero, or the sketch is private and so has no moments.
        """
        self._require_moments()
        mean = self.first_moment / self.observed.divisors
        return np.maximum(self.second_moment / self.observed.divisors - mean**2, 0.0)

    @property
    def extent(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Location and spread of the data for decoders: :attr:`mean` and :attr:`variance`.

        A private sketch has no such sums: it gives the variances of a uniform distribution between
        its bounds.
        """
        if self.privacy is None:
            return self.mean, self.variance
        width = self.maximum - self.minimum
        return self.minimum + width / 2, width**2 / 12

    @property
    def private_variance(self) -> float:
        """Variance of the privacy noise in real and imaginary parts of :attr:`characteristic`.

        Mean over the entries, with missing values weighted by the fractions of the rows that
        observe them; 0 unless the sketch is private.
        """
        if self.privacy is None:
            return 0.0
        self._require_weight()
        return noise_variance(self)

    @property
    def added_variance(self) -> float:
        """Variance of added noise in real and imaginary parts of :attr:`characteristic`.

        Sum of the variances by privacy, by rounded sums and by quantised phases.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        self._require_weight()
        return self.private_variance + (self.rounding_error / self.total_weight) ** 2

    @property
    def effective_count(self) -> float:
        """Kish's effective sample size, ``(sum w)**2 / sum w**2``; the count for equal weights."""
        return self.total_weight**2 / self.squared_weight if self.squared_weight else 0.0

    @property
    def noise_level(self) -> float:
        """Expected ``|z_hat - z|**2``: ``(1 - |z|**2) / n`` with the effective count as ``n``.

        The :attr:`added_variance` is included.
        """
        n, added = self.effective_count, 2.0 * self.added_variance
        if self.missing is not None:
            energies = 1.0 - np.abs(self.characteristic) ** 2
            return float(np.mean(energies * self.observed.noise_factors) / n) + added
        return max(float((1.0 - (np.vdot(self.z, self.z).real - added)) / n), 0.0) + added

    @property
    def noise_modulus(self) -> float:
        """Modulus of :attr:`characteristic` at frequencies where the true one is zero.

        ``1 / sqrt(n)`` with the effective count as ``n``; further noise is added. With missing
        values, the root of the mean square over the frequencies.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        added = 2.0 * self.added_variance
        factor = 1.0 if self.missing is None else float(np.mean(self.observed.noise_factors))
        return float(np.sqrt(factor / self.effective_count + added))

    @property
    def plot(self) -> SketchPlots:
        """Plots (extra ``plot``): ``sketch.plot.moduli()``."""
        return SketchPlots(self)

    def _require_weight(self) -> None:
        if not self.total_weight > 0:
            raise InputError(
                f"the sketch is empty: total_weight={self.total_weight:g}, count={self.count}, "
                f"omitted={self.omitted}. Sketch samples with positive weights."
            )

    def _require_moments(self) -> None:
        self._require_weight()
        if self.privacy is not None:
            raise InputError(
                "privacy: a private sketch has no mean and no variance of the data. Decode a model "
                "and use its mean and variance."
            )

    def as_dict(self) -> dict[str, object]:
        """Counts, weights, noise, moments and bounds, and the description of the feature map.

        ``noise_level``, ``mean`` and ``variance`` are None where the sketch does not have them.
        """
        has_weight = self.total_weight > 0
        has_moments = has_weight and self.privacy is None
        return {
            "kind": "sketch",
            "count": self.count,
            "omitted": self.omitted,
            "total_weight": self.total_weight,
            "noise_level": self.noise_level if has_weight else None,
            "mean": self.mean if has_moments else None,
            "variance": self.variance if has_moments else None,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "privacy": None if self.privacy is None else asdict(self.privacy),
            "rounding_error": self.rounding_error or None,
            "sample_rows": None if self.sample is None else len(self.sample),
            "observed_features": self.missing and self.observed.feature_fractions,
            "mean_observed_fraction": self.missing and float(np.mean(self.observed.fractions)),
            "bytes": self.__sizeof__(),
            "feature_map": self.feature_map.as_dict(),
        }

    def __repr__(self) -> str:
        values = self.as_dict()
        del values["kind"], values["feature_map"]
        return f"<Sketch: {one_line(values)}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        values = self.as_dict()
        del values["kind"], values["feature_map"]
        more = {"feature map": fields_table(describe(self.feature_map.as_dict()))}
        summary = "no samples"
        if self.total_weight > 0:
            visible = np.abs(self.characteristic) > 2.0 * self.noise_modulus
            values["frequencies above the noise"] = f"{visible.mean():.0%}"
            summary = (
                f"{self.count:,} samples of {self.feature_map.n_features:,} features in "
                f"{self.feature_map.n_frequencies:,} frequencies"
            )
            if self.privacy is None:
                columns = (self.mean, np.sqrt(self.variance), self.minimum, self.maximum)
                rows = [
                    [k, *(f"{x:.4g}" for x in row)]
                    for k, row in enumerate(zip(*columns, strict=True))
                ]
                header = ["feature", "mean", "standard deviation", "minimum", "maximum"]
                more["features"] = html_table(header, rows)
        notes = [] if self.privacy is None else self.privacy.notes()
        return card("Sketch", describe(values), summary=summary, notes=notes, more=more)


def _merged_sample(parts: list[Sketch]) -> RowSample | None:
    """Sample of all parts; None if a part with rows has none."""
    if any(part.sample is None and part.count for part in parts):
        return None
    samples = [part.sample for part in parts if part.sample is not None]
    return RowSample.merge(samples) if samples else None


def _scaled(quanta: int, *factors: float) -> int:
    """The product with finite numbers, rounded once."""
    product = Fraction(quanta)
    for factor in factors:
        product *= Fraction(factor)
    return round(product)


def _read_only(view: NDArray[Any]) -> NDArray[Any]:
    view.flags.writeable = False
    return view
