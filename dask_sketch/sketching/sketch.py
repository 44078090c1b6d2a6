"""The sketch: a handful of sums over all samples, which merge by addition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card, fields_table, html_table
from dask_sketch.display.plots import SketchPlots
from dask_sketch.errors import CapacityError, InputError, MergeError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import (
    FEATURE_FRACTION,
    FRACTION,
    LARGEST_TOTAL,
    LEAST,
    MOST,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.sketching.privacy import Privacy, merged_privacy, refuse_private
from dask_sketch.storage.artifact import Stored
from dask_sketch.validation.arrays import Rebuilt

if TYPE_CHECKING:
    import xarray as xr


_SLACK = 1e-3  # of a modulus over its weight: far above all rounding of features


@dataclass(frozen=True, eq=False, repr=False)
class Sketch(Stored, Rebuilt):
    """Weighted sums over samples, from which mixtures are decoded.

    Sketches of one feature map form a commutative monoid: ``a + b`` is the sketch of both inputs
    together, :meth:`empty` is neutral, ``a - b`` takes a part out again. All sums are unnormalised.

    **Exact, and rounded.** What a sample adds is rounded once, by arithmetic that depends on the
    sample, its weight and the feature map alone; then whole numbers are added (``*_quanta``; see
    :class:`~dask_sketch.features.kernels.fixed_point.FixedPoint` for the scheme, its error and
    capacity). So the same samples have the same sketch, bit for bit, for every chunking, order,
    shape of the tree of merges, number of batches and of workers, and after any retry; and ``(a +
    b) - b`` has all sums of ``a``. (Chunks that a GPU sketched are rounded once each: their merges
    and subtractions are exact too, but another chunking has other last bits.) The float64 numbers
    below, ``moment_sum`` to ``second_moment``, are views: whole numbers rounded once.

    Attributes
    ----------
    feature_map
        What was averaged.
    moment_quanta
        Real and imaginary parts of ``moment_sum`` in steps of ``2**-71``, shape
        (2, n_frequencies).
    weight_quanta, squared_weight_quanta
        ``total_weight`` in steps of ``2**-80``, ``squared_weight`` in steps of ``2**-112``.
    count
        Number of samples summed, those of weight zero included.
    omitted
        Number of rows left out because a value was NaN or infinite.
    minimum, maximum
        Bounds of each feature, shape (n_features,); infinite, the wrong way round, when empty.
    first_quanta, second_quanta
        ``first_moment`` in steps of ``2**-62`` units, ``second_moment`` in steps of ``2**-62``
        units squared, shape (n_features,); the unit of each feature is a power of two near the
        scale of the feature map, :func:`~dask_sketch.features.feature_map.moment_units`.
    tight_bounds
        False after a subtraction: the bounds then hold the data, but may be wider than it.
    privacy
        What :meth:`privatise` did, if it did; the sums are then those of the data and noise.

    Examples
    --------
    >>> from dask_sketch.sketching import partial_sketch
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

    def __post_init__(self) -> None:
        self.minimum.flags.writeable = self.maximum.flags.writeable = False
        if self.weight_quanta > LARGEST_TOTAL << WEIGHT_FRACTION:
            raise CapacityError(
                f"the total weight is {self.total_weight:g}, over the {LARGEST_TOTAL:.4g} that a "
                "sketch holds exactly. Multiply all weights by one smaller factor."
            )

    @classmethod
    def empty(cls, feature_map: FeatureMap) -> Sketch:
        """The neutral element: the sketch of no sample at all."""
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
        """A sketch of sums in float64 that were made elsewhere, each rounded once.

        Parameters
        ----------
        feature_map
            What was averaged.
        moment_sum, total_weight, squared_weight, count, first_moment, second_moment, minimum, \
        maximum, omitted, tight_bounds
            As the attributes of that name.

        Raises
        ------
        CapacityError
            If a sum is larger than a sketch holds exactly, or NaN.

        Examples
        --------
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

    # -- the monoid --------------------------------------------------------------------------

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
        if other.count > self.count or other.omitted > self.omitted:
            raise MergeError(
                f"cannot subtract a sketch of {other.count} samples ({other.omitted} omitted) from "
                f"one of {self.count} ({self.omitted} omitted): it was never part of it."
            )
        left = replace(
            self,
            **{name: getattr(self, name) - getattr(other, name) for name in _SUMS},
            tight_bounds=self.tight_bounds and other.count == 0,
        )
        if not left._is_possible() or not other._is_within(self):
            raise MergeError(
                f"cannot subtract a sketch of weight {other.total_weight:g} ({other.count} samples)"
                f" from one of weight {self.total_weight:g} ({self.count} samples): it was never "
                "part of it."
            )
        if left.count == 0:
            return replace(Sketch.empty(self.feature_map), omitted=left.omitted)
        return left

    def _is_possible(self) -> bool:
        """Whether there may be samples with these sums; without any weight, exactly."""
        if self.count == 0 or self.weight_quanta <= 0:
            return not (
                self.weight_quanta
                or self.squared_weight_quanta
                or self.moment_quanta.any()
                or self.first_quanta.any()
                or self.second_quanta.any()
            )
        return bool(
            self.squared_weight_quanta > 0
            and (self.second_quanta.high >= 0).all()
            and np.abs(self.moment_sum).max() <= self.total_weight * (1 + _SLACK)
        )

    def _is_within(self, other: Sketch) -> bool:
        """Whether no sample is outside of the bounds of ``other``, as far as that is known."""
        return not self.tight_bounds or bool(
            (self.minimum >= other.minimum).all() and (self.maximum <= other.maximum).all()
        )

    def scale(self, factor: float) -> Sketch:
        """The same samples with all weights multiplied by ``factor``.

        Each sum is rounded once, to its step; powers of two that are at least one are exact.

        Parameters
        ----------
        factor
            Zero, or from ``2**-32`` to ``2**32``, as weights are. Counts and bounds stay.

        Raises
        ------
        InputError
            For another factor.
        CapacityError
            If the sums become larger than a sketch holds exactly.
        """
        refuse_private("scale", self.privacy)
        number = isinstance(factor, (int, float, np.number))
        if not number or not (factor == 0 or 2.0**LEAST <= factor <= 2.0**MOST):
            raise InputError(
                f"factor={factor!r}: give zero, or a number from 2**{LEAST} to 2**{MOST}, as "
                "weights may be."
            )
        return replace(
            self,
            moment_quanta=self.moment_quanta.times(factor),
            weight_quanta=_scaled(self.weight_quanta, factor),
            squared_weight_quanta=_scaled(self.squared_weight_quanta, factor, factor),
            first_quanta=self.first_quanta.times(factor),
            second_quanta=self.second_quanta.times(factor),
        )

    # -- the rest ----------------------------------------------------------------------------

    def to_xarray(self) -> xr.Dataset:
        """The sketch as a labelled dataset, every convention spelled out in its attributes."""
        from dask_sketch.sketching.artifact import to_dataset

        return to_dataset(self)

    def _artifact(self) -> tuple[xr.Dataset, str, int]:
        from dask_sketch.sketching.artifact import SCHEMA, VERSION, stored

        return stored(self), SCHEMA, VERSION

    def identical(self, other: Sketch) -> bool:
        """Whether all sums, counts and bounds have the same bits, and the maps one digest."""
        return self.same_sums(other) and (
            np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
            and self.tight_bounds == other.tight_bounds
            and self.privacy == other.privacy
        )

    def same_sums(self, other: Sketch) -> bool:
        """Whether all sums and counts have the same bits, and the maps one digest.

        Bounds do not count: a subtraction cannot bring the earlier ones back.
        """
        return (
            isinstance(other, Sketch)
            and self.feature_map == other.feature_map
            and all(getattr(self, name) == getattr(other, name) for name in _SUMS)
        )

    def __sizeof__(self) -> int:
        # what Dask's memory accounting sees; without it a sketch would count as 56 bytes
        return (
            object.__sizeof__(self)
            + self.feature_map.__sizeof__()
            + sum(getattr(self, name).nbytes for name in _ARRAYS)
        )

    @cached_property
    def moment_sum(self) -> NDArray[np.complex128]:
        """``sum_i w_i exp(-i omega_j . (x_i - center))``, shape (n_frequencies,), complex128.

        With the center of the feature map; :attr:`z` puts the center back.
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

    # -- what it says ------------------------------------------------------------------------

    @property
    def z(self) -> NDArray[np.complex128]:
        """The sketch vector of eq. (13), shape (n_frequencies,), complex128.

        ``z_j = 1 / sqrt(m) * sum_i w_i exp(-i omega_j . x_i) / sum_i w_i``, so that ``|z| <= 1``.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        return self.characteristic / np.sqrt(self.feature_map.n_frequencies)

    @property
    def characteristic(self) -> NDArray[np.complex128]:
        """Empirical characteristic function at the frequencies: :attr:`z` times ``sqrt(m)``."""
        self._require_weight()
        phase = self.feature_map.center @ self.feature_map.frequencies
        return np.asarray(np.exp(-1j * phase) * (self.moment_sum / self.total_weight))

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of the data, shape (n_features,).

        Raises
        ------
        InputError
            If the total weight is zero, or the sketch was privatised: it holds no moments then.
        """
        self._require_moments()
        return self.feature_map.center + self.first_moment / self.total_weight

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of the data in each feature, shape (n_features,), ``>= 0``; as :attr:`mean`."""
        self._require_moments()
        mean = self.first_moment / self.total_weight
        return np.maximum(self.second_moment / self.total_weight - mean**2, 0.0)

    @property
    def extent(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where the data lies, for decoders: :attr:`mean` and :attr:`variance`.

        A private sketch holds neither; of it, those of the even distribution between its bounds.
        """
        if self.privacy is None:
            return self.mean, self.variance
        width = self.maximum - self.minimum
        return self.minimum + width / 2, width**2 / 12

    @property
    def private_variance(self) -> float:
        """What privatising adds to the variance of each real number of :attr:`characteristic`.

        Mean over the entries, their real and imaginary parts; 0 if nothing was added.
        """
        if self.privacy is None:
            return 0.0
        self._require_weight()
        moments = (self.privacy.moment_deviation / self.total_weight) ** 2
        weight = (self.privacy.weight_deviation / self.total_weight) ** 2
        energy = min(float(np.mean(np.abs(self.moment_sum / self.total_weight) ** 2)), 1.0)
        return moments + energy * weight / 2

    @property
    def effective_count(self) -> float:
        """Kish's ``(sum w)**2 / sum w**2``: the count, when all weights are equal."""
        return self.total_weight**2 / self.squared_weight if self.squared_weight else 0.0

    @property
    def noise_level(self) -> float:
        """Expected ``|z_hat - z|**2``: ``(1 - |z|**2) / n`` with the effective count as ``n``.

        Of a private sketch, the noise that was added comes on top.
        """
        self._require_weight()
        added = 2.0 * self.private_variance
        energy = np.vdot(self.z, self.z).real - added
        return float((1.0 - energy) / self.effective_count) + added

    @property
    def noise_modulus(self) -> float:
        """Modulus that :attr:`characteristic` has where that of the samples' distribution is zero.

        ``1 / sqrt(n)``, with the effective count as ``n``, and what privatising added.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        self._require_weight()
        return float(np.sqrt(1.0 / self.effective_count + 2.0 * self.private_variance))

    @property
    def plot(self) -> SketchPlots:
        """Plots (extra ``plot``): ``sketch.plot.moduli()``."""
        return SketchPlots(self)

    def _require_weight(self) -> None:
        if not self.total_weight > 0:
            raise InputError(
                f"the sketch is empty: total weight {self.total_weight:g}, {self.count} samples, "
                f"{self.omitted} omitted. Nothing can be averaged."
            )

    def _require_moments(self) -> None:
        self._require_weight()
        if self.privacy is not None:
            raise InputError(
                "a private sketch holds no mean and no variance of the data: decode a model and "
                "take its own."
            )

    def _fields(self) -> dict[str, str]:
        """What a glance should show, in words."""
        out = {
            "samples": f"{self.count:,}",
            "omitted": f"{self.omitted:,}",
            "total weight": f"{self.total_weight:,.6g}",
        }
        if self.total_weight > 0:
            out["|z|"] = f"{np.linalg.norm(self.z):.4f}"
            out["noise of z"] = f"{np.sqrt(max(self.noise_level, 0.0)):.2e}"
        if self.privacy is not None:
            out |= self.privacy._fields()
        out["size"] = f"{self.__sizeof__() / 1e3:,.1f} kB"
        return out

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self._fields().items())
        return f"<Sketch: {shown}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        fields, summary = self._fields(), "of no sample"
        more = {"feature map": fields_table(self.feature_map._fields())}
        if self.total_weight > 0:
            visible = np.abs(self.characteristic) > 2.0 * self.noise_modulus
            fields["frequencies above the noise"] = f"{visible.mean():.0%}"
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
        return card("Sketch", fields, summary=summary, more=more)


_WORDS = ("moment_quanta", "first_quanta", "second_quanta")
_NUMBERS = ("weight_quanta", "squared_weight_quanta", "count", "omitted")
_SUMS = (*_WORDS, *_NUMBERS)
_ARRAYS = (*_WORDS, "minimum", "maximum")


def _scaled(steps: int, *factors: float) -> int:
    """The product with finite numbers, rounded once."""
    product = Fraction(steps)
    for factor in factors:
        product *= Fraction(factor)
    return round(product)


def merge(sketches: Iterable[Sketch]) -> Sketch:
    """The sketch of all inputs together, section 2.7.

    Parameters
    ----------
    sketches
        At least one sketch; all of one feature map, in any order.

    Returns
    -------
    sketch
        Exact in all its sums, counts and bounds: no rounding, and so the same for every order.

    Raises
    ------
    MergeError
        If there is none, or two have different feature maps; the message names the field.
    CapacityError
        If the sums are larger than a sketch holds.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> merge([Sketch.empty(feature_map), Sketch.empty(feature_map)]).count
    0
    """
    if not isinstance(sketches, Iterable):
        raise MergeError(f"merge takes a list of sketches, not {type(sketches).__name__}.")
    parts = list(sketches)
    if not parts:
        raise MergeError("no sketch was given: merge needs at least one.")
    first = parts[0]
    for part in parts:
        if not isinstance(part, Sketch):
            raise MergeError(
                f"merge takes sketches, not {type(part).__name__}; call .compute() on a lazy one."
            )
        first.feature_map.require_same(part.feature_map)
    if len(parts) == 1:
        return first
    words: Any = {name: FixedPoint.sum([getattr(p, name) for p in parts]) for name in _WORDS}
    return Sketch(
        feature_map=first.feature_map,
        minimum=np.stack([part.minimum for part in parts]).min(axis=0),
        maximum=np.stack([part.maximum for part in parts]).max(axis=0),
        tight_bounds=all(part.tight_bounds for part in parts),
        privacy=merged_privacy([p.privacy for p in parts if p.privacy or p.count or p.omitted]),
        **words,
        **{name: sum(getattr(part, name) for part in parts) for name in _NUMBERS},
    )


# What the sums of a sketch say: averages in float64.


def _read_only(view: NDArray[Any]) -> NDArray[Any]:
    view.flags.writeable = False
    return view
