"""The sketch: a handful of sums over all samples, which merge by addition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError, MergeError
from dask_sketch.features import FeatureMap

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, eq=False)
class Sketch:
    """Weighted sums over samples, from which mixtures are decoded.

    Sketches of one feature map form a commutative monoid: ``a + b`` is the sketch of both inputs
    together, :meth:`empty` is neutral, ``a - b`` takes a part out again. All sums are float64,
    unnormalised, whatever the precision of the features.

    Attributes
    ----------
    feature_map
        What was averaged.
    moment_sum
        ``sum_i w_i exp(-i omega_j . (x_i - center))``, shape (n_frequencies,), complex128, with
        the center of the feature map. :attr:`z` puts the center back.
    total_weight, squared_weight
        Sums of the weights and of their squares.
    count
        Number of samples summed, those of weight zero included.
    omitted
        Number of rows left out because a value was NaN or infinite.
    minimum, maximum
        Bounds of each feature, shape (n_features,); infinite, the wrong way round, when empty.
    first_moment, second_moment
        ``sum_i w_i (x_i - center)`` and ``sum_i w_i (x_i - center)**2``, shape (n_features,).
    tight_bounds
        False after a subtraction: the bounds then hold the data, but may be wider than it.

    Examples
    --------
    >>> from dask_sketch.sketching import partial_sketch
    >>> feature_map = FeatureMap(2, 20, scale=1.0, seed=0)
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> a, b = partial_sketch(x[:60], feature_map), partial_sketch(x[60:], feature_map)
    >>> whole = a + b
    >>> whole.count, bool(abs(whole.z).max() <= 1)
    (100, True)
    """

    feature_map: FeatureMap
    moment_sum: NDArray[np.complex128]
    total_weight: float
    squared_weight: float
    count: int
    omitted: int
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    first_moment: NDArray[np.float64]
    second_moment: NDArray[np.float64]
    tight_bounds: bool = True

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            getattr(self, name).flags.writeable = False

    @classmethod
    def empty(cls, feature_map: FeatureMap) -> Sketch:
        """The neutral element: the sketch of no sample at all."""
        d = feature_map.n_features
        return cls(
            feature_map=feature_map,
            moment_sum=np.zeros(feature_map.n_frequencies, dtype=np.complex128),
            total_weight=0.0,
            squared_weight=0.0,
            count=0,
            omitted=0,
            minimum=np.full(d, np.inf),
            maximum=np.full(d, -np.inf),
            first_moment=np.zeros(d),
            second_moment=np.zeros(d),
        )

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
        """Mean of the data, shape (n_features,)."""
        self._require_weight()
        return self.feature_map.center + self.first_moment / self.total_weight

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of the data in each feature, shape (n_features,), ``>= 0``."""
        self._require_weight()
        mean = self.first_moment / self.total_weight
        return np.maximum(self.second_moment / self.total_weight - mean**2, 0.0)

    @property
    def effective_count(self) -> float:
        """Kish's ``(sum w)**2 / sum w**2``: the count, when all weights are equal."""
        return self.total_weight**2 / self.squared_weight if self.squared_weight else 0.0

    @property
    def noise_level(self) -> float:
        """Expected ``|z_hat - z|**2``: ``(1 - |z|**2) / n`` with the effective count as ``n``."""
        self._require_weight()
        return float((1.0 - np.vdot(self.z, self.z).real) / self.effective_count)

    def _require_weight(self) -> None:
        if not self.total_weight > 0:
            raise InputError(
                f"the sketch is empty: total weight {self.total_weight:g}, {self.count} samples, "
                f"{self.omitted} omitted. Nothing can be averaged."
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
        if other.count > self.count or other.omitted > self.omitted:
            raise MergeError(
                f"cannot subtract a sketch of {other.count} samples ({other.omitted} omitted) from "
                f"one of {self.count} ({self.omitted} omitted): it was never part of it."
            )
        left = self.total_weight - other.total_weight
        tolerance = 1e-12 * self.total_weight  # each weight is a sum, rounded in another order
        if left < -tolerance or (other.count == self.count and left > tolerance):
            raise MergeError(
                f"cannot subtract a sketch of weight {other.total_weight:g} ({other.count} samples)"
                f" from one of weight {self.total_weight:g} ({self.count} samples): it was never "
                "part of it."
            )
        if other.count == 0:
            return replace(self, omitted=self.omitted - other.omitted)
        if other.count == self.count:
            return replace(Sketch.empty(self.feature_map), omitted=self.omitted - other.omitted)
        return replace(
            self,
            **{name: getattr(self, name) - getattr(other, name) for name in _SUMS},
            tight_bounds=False,
        )

    def scale(self, factor: float) -> Sketch:
        """The same samples with all weights multiplied by ``factor``.

        Parameters
        ----------
        factor
            Finite, ``>= 0``. Counts and bounds stay.

        Raises
        ------
        InputError
            For a negative or infinite factor.
        """
        if not isinstance(factor, (int, float, np.number)) or not 0 <= factor < np.inf:
            raise InputError(f"factor={factor!r}: give a finite number that is not negative.")
        return replace(
            self,
            moment_sum=self.moment_sum * factor,
            total_weight=self.total_weight * factor,
            squared_weight=self.squared_weight * factor**2,
            first_moment=self.first_moment * factor,
            second_moment=self.second_moment * factor,
        )

    # -- the rest ----------------------------------------------------------------------------

    def to_xarray(self) -> xr.Dataset:
        """The sketch as a labelled dataset, every convention spelled out in its attributes."""
        from dask_sketch.sketching.artifact import to_dataset

        return to_dataset(self)

    def to_zarr(
        self, store: Any, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Store the sketch as a Zarr group; see :func:`dask_sketch.open_sketch`.

        Parameters
        ----------
        store
            Path, URL or Zarr store.
        overwrite
            Replace what stands there. Otherwise an existing store is an error.
        storage_options
            Options of the file system of a URL.
        """
        from dask_sketch.sketching.artifact import write_sketch

        write_sketch(self, store, overwrite=overwrite, storage_options=storage_options)

    def identical(self, other: Sketch) -> bool:
        """Whether all sums, counts and bounds have the same bits, and the maps one digest."""
        return self.feature_map == other.feature_map and all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name))
            for f in fields(self)
            if f.name != "feature_map"
        )

    def __sizeof__(self) -> int:
        # what Dask's memory accounting sees; without it a sketch would count as 56 bytes
        return (
            object.__sizeof__(self)
            + self.feature_map.__sizeof__()
            + sum(getattr(self, name).nbytes for name in _ARRAYS)
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
        out["size"] = f"{self.__sizeof__() / 1e3:,.1f} kB"
        return out

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self._fields().items())
        return f"<Sketch: {shown}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        from dask_sketch.display import table

        return table("Sketch", self._fields() | self.feature_map._fields())


_SUMS = (
    "moment_sum",
    "total_weight",
    "squared_weight",
    "count",
    "omitted",
    "first_moment",
    "second_moment",
)
_ARRAYS = ("moment_sum", "minimum", "maximum", "first_moment", "second_moment")


def merge(sketches: Iterable[Sketch]) -> Sketch:
    """The sketch of all inputs together, section 2.7.

    Parameters
    ----------
    sketches
        At least one sketch; all of one feature map. They are added in the order given.

    Returns
    -------
    sketch
        Exact: counts and bounds of all, sums rounded once per addition.

    Raises
    ------
    MergeError
        If there is none, or two have different feature maps; the message names the field.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> merge([Sketch.empty(feature_map), Sketch.empty(feature_map)]).count
    0
    """
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
    sums = {name: getattr(first, name) for name in _SUMS}
    moments = first.moment_sum.copy()  # one copy, then in place: the large array of the lot
    minimum, maximum = first.minimum, first.maximum
    for part in parts[1:]:
        moments += part.moment_sum
        for name in _SUMS[1:]:
            sums[name] = sums[name] + getattr(part, name)
        minimum = np.minimum(minimum, part.minimum)
        maximum = np.maximum(maximum, part.maximum)
    sums["moment_sum"] = moments
    return Sketch(
        feature_map=first.feature_map,
        minimum=minimum,
        maximum=maximum,
        tight_bounds=all(part.tight_bounds for part in parts),
        **sums,
    )
