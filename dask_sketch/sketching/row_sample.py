"""Random rows that a pass carries beside the sums: exactly mergeable, the same for any chunking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.validation.arrays import FrozenDataclass, unit_rows
from dask_sketch.validation.compilation import cached_njit
from dask_sketch.validation.device import from_device, on_host

Array = NDArray[np.float64]
DEFAULT_ROWS = 20_000  # rows of a sample, where they are not too long
_DEFAULT_BYTES, _MIN_ROWS = 2**24, 2_000
# For mixtures of many parameters, each of which needs so many rows; a map has five frequencies for
# each parameter.
_PER_FREQUENCY, _PER_PARAMETER = 20, 100
_BLOCK = 262_144  # rows that are scanned together
_HASHES = 4096  # hashes of rows that are computed together
_FEW = 0.08  # fraction of candidates up to which a branch is faster than none
_READ_BYTES = 32 * 1024**2  # bytes of candidates that are read together
_FAR = 7.0  # bound of the squared distance from the center that raises the importance, in variances
_MAX_WEIGHT = 2.0**400  # largest weight of a row, and one over the least: their squares are summed
_U53 = float(2**53)
_EQUAL_WEIGHTS = 1e-13  # relative difference of weights that is rounding
_NO_POSITIONS = np.empty(0, np.int64)


def default_size(n_features: int, wanted: int = 0) -> int:
    """Default number of rows of a sample: 20,000, more if wanted, or fewer rows of many features.

    Parameters
    ----------
    n_features
        Number of features. Rows of over 200 features are fewer: at most 16 MiB in float32.
    wanted
        Number of rows that a mixture of many parameters needs, see :func:`wanted_rows`.

    Examples
    --------
    >>> default_size(12), default_size(784), default_size(12, 160_000), default_size(50, 646_400)
    (20000, 5349, 160000, 83886)
    """
    max_rows = max(_DEFAULT_BYTES // (4 * n_features), _MIN_ROWS)
    return min(max(DEFAULT_ROWS, wanted), max_rows)


def wanted_rows(feature_map: FeatureMap) -> int:
    """Number of rows that the mixture needs which a feature map was designed for; else zero.

    Maximum likelihood of ``p`` parameters on ``r`` rows loses ``p / 2r`` nats: 0.005 with 100 rows
    for each parameter, which are 20 for each frequency of the default number.

    Parameters
    ----------
    feature_map
        Feature map.

    Examples
    --------
    >>> from dask_sketch.features.design import design_from_pilot
    >>> rows = np.random.default_rng(0).normal(size=(5000, 12))
    >>> wanted_rows(design_from_pilot(rows, n_components=10))
    25000
    """
    pilot, d = feature_map.pilot, feature_map.n_features
    if pilot is None or pilot.mixture is None or pilot.clusters is not None:
        return 0
    # number of parameters with full covariances
    n_parameters = len(pilot.mixture.weights) * (1 + d + d * (d + 1) // 2)
    return min(_PER_FREQUENCY * feature_map.n_frequencies, _PER_PARAMETER * n_parameters)


def sample_bytes(n_rows: int, n_features: int, itemsize: int = 8) -> int:
    """Number of bytes of a sample in memory.

    Parameters
    ----------
    n_rows, n_features, itemsize
        Number of rows, number of features, and bytes of one value.

    Examples
    --------
    >>> sample_bytes(1000, 12, itemsize=4)
    72000
    """
    return n_rows * (itemsize * n_features + 24)


def sample_size(
    sample: object, n_features: int, *, grouped: bool = False, wanted: int = 0
) -> int | None:
    """Validate ``sample``: the number of random rows that a pass carries; None for none.

    Parameters
    ----------
    sample
        Maximum number of rows; True or None for the default number, and False or 0 for none. None
        means none for groups.
    n_features
        Number of features.
    grouped
        Whether there is a sketch for each of many groups, which carry no rows.
    wanted
        Number of rows that a mixture of many parameters needs, see :func:`wanted_rows`.

    Raises
    ------
    InputError
        If it is neither a boolean nor an integer, negative, or groups are to carry rows.

    Examples
    --------
    >>> sample_size(None, 12), sample_size(100, 12), sample_size(False, 12), sample_size(0, 12)
    (20000, 100, None, None)
    """
    none = sample == 0  # False is zero as well
    if grouped and sample is not None and not none:
        raise InputError(
            f"sample={sample!r}: sketches of groups carry no rows; leave it out with groups."
        )
    if grouped or none:
        return None
    if sample is None or sample is True:
        return default_size(n_features, wanted)
    if isinstance(sample, bool) or not isinstance(sample, Integral) or sample < 0:
        raise InputError(
            f"sample={sample!r}: give a number of rows, True for the default, or 0 or False for "
            "none."
        )
    return int(sample)


@dataclass(frozen=True, eq=False, repr=False)
class RowSample(FrozenDataclass):
    """Random rows of the data, with the probabilities with which they were chosen.

    Priority sampling (Duffield, Lund and Thorup 2007): row ``i`` of importance ``q_i`` has the key
    ``u_i / q_i``, where ``u_i`` in (0, 1) is a hash of a seed and of the position of the row in its
    source. The sample holds *all* rows whose key is below ``threshold``, at most ``size`` of them:
    the threshold is the smallest key of a row that did not fit. Given the threshold, row ``i`` was
    chosen with probability ``min(1, q_i threshold)``, and sums over the rows divided by these
    probabilities are unbiased.

    Samples are exactly mergeable. Let ``t`` be the key of rank ``size + 1`` among the rows of two
    parts together. Neither part has more than ``size`` rows with a key under ``t``, so the
    threshold of each is at least ``t``, and each holds all of its rows under ``t``. The rows of
    both under the smaller threshold are all rows of the union under it; if there are more than
    ``size``, the one of rank ``size + 1`` has the key ``t``, the new threshold; if not, the smaller
    threshold is ``t``. By induction the sample depends on the rows and their positions alone: not
    on chunks, order, workers or repeated tasks. A part is subtracted by taking its rows out.

    Parts may hold fewer rows than their merge, as the partitions of a ledger do (see
    :meth:`resized`). Let ``t_p`` be the thresholds of the parts, and ``t`` the threshold that one
    pass over everything has: the key of rank ``size + 1``. The merge has the threshold ``T =
    min(t, min_p t_p)``, and holds all rows under it. For each part holds its rows under ``t_p``, so
    that all rows under ``min_p t_p`` are at hand; if these are more than ``size``, the one of rank
    ``size + 1`` has the key ``t``, and else ``t`` is not smaller. So the merge always is the sample
    of one pass, cut at a threshold. It is *equal* to it if and only if ``t_p >= t`` for every part,
    that is, if no part has more of the ``size`` rows of the one pass than it may hold. Parts of
    equal weight that may hold a little more than ``size`` over their number do so almost surely.
    The threshold is always the key of a row, or infinite, and changing the key of a row under it to
    any smaller one does not change it: sums over the rows are unbiased in any case.

    The importance is the weight of the row, and for a feature map with a pilot, half of it in
    proportion to the squared distance from the center, up to a bound, as in a lightweight coreset
    (Bachem, Lucic and Krause 2018): rare clusters and heavy tails are far from the center.

    Parameters
    ----------
    rows
        Chosen rows, shape (r, n_features), float32 or float64, by ascending key.
    row_weights
        Weights of these rows in the data, shape (r,).
    importance
        Importance ``q`` of each row, shape (r,).
    keys
        Key of each row, shape (r,), ascending.
    threshold
        Bound of the keys; infinite where all rows of the data are in the sample.
    size
        Maximum number of rows.

    References
    ----------
    Duffield, Lund, Thorup (2007), Priority sampling for estimation of arbitrary subset sums,
    Journal of the ACM 54(6). Bachem, Lucic, Krause (2018), Scalable k-means clustering via
    lightweight coresets, KDD.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> x = np.arange(1000.0)[:, None]
    >>> found = partial_sketch(x, FeatureMap(1, 10, scale=100.0), sample=50).sample
    >>> len(found), bool(abs(found.weights @ found.rows[:, 0] - 499.5) < 150)
    (50, True)
    """

    rows: NDArray[Any]
    row_weights: Array
    importance: Array
    keys: Array
    threshold: float
    size: int

    def __post_init__(self) -> None:
        for name in ("rows", "row_weights", "importance", "keys"):
            getattr(self, name).flags.writeable = False

    @classmethod
    def empty(cls, n_features: int, size: int, dtype: Any = np.float32) -> RowSample:
        """The sample of no rows.

        Parameters
        ----------
        n_features, size, dtype
            Number of features, maximum number of rows, and type of the rows.
        """
        none = np.empty(0)
        return cls(np.empty((0, n_features), dtype), none, none, none, np.inf, size)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether the sample holds all rows of positive weight."""
        return self.threshold == np.inf

    @cached_property
    def weights(self) -> Array:
        """Weights that represent the data, shape (r,), summing to one.

        Weight of each row, divided by the probability with which it was chosen, up to one factor.
        """
        if not len(self):
            return np.empty(0)
        chance = np.minimum(1.0, self.importance * self.threshold)
        weights = self.row_weights / chance
        return np.asarray(weights / weights.sum())

    @property
    def is_weighted(self) -> bool:
        """Whether the weights of the rows in the data differ."""
        weights = self.row_weights
        return bool(len(weights) and np.ptp(weights) > _EQUAL_WEIGHTS * weights.max())

    @cached_property
    def noise_weights(self) -> Array:
        """Shares of the rows in the variance of a weighted mean, shape (r,), summing to one.

        The variance is a sum over squares of the weights in the data. Where these are equal, the
        shares are :attr:`weights`.
        """
        if not self.is_weighted:
            return self.weights
        squares = self.weights * self.row_weights
        return np.asarray(squares / squares.sum())

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return self.rows.nbytes + 3 * self.keys.nbytes

    @classmethod
    def merge(cls, parts: Sequence[RowSample]) -> RowSample:
        """Sample of the rows of all parts; the smallest ``size`` of the parts holds.

        Parameters
        ----------
        parts
            Samples of disjoint rows, at least one, of one number of features.
        """
        size = min(part.size for part in parts)
        threshold = min(part.threshold for part in parts)
        nonempty = [part for part in parts if len(part)]
        if not nonempty:
            return cls.empty(parts[0].rows.shape[1], size, parts[0].rows.dtype)._cut(threshold)
        rows = np.concatenate([part.rows for part in nonempty])
        weights, importance, keys = (
            np.concatenate([getattr(part, name) for part in nonempty])
            for name in ("row_weights", "importance", "keys")
        )
        return cls(rows, weights, importance, keys, threshold, size)._cut(threshold)

    def _cut(self, threshold: float) -> RowSample:
        """Rows in their order under a threshold, and under that of ``size``."""
        order = np.argsort(self.keys, kind="stable")
        keys = self.keys[order]
        if (keys[1:] == keys[:-1]).any():  # one position was sketched twice: any order of the parts
            order = np.lexsort((*self.rows.T[::-1], self.keys))
            keys = self.keys[order]
        if len(keys) > self.size:
            threshold = min(threshold, float(keys[self.size]))
        under = order[: int(np.searchsorted(keys, threshold))]
        return RowSample(
            self.rows[under], self.row_weights[under], self.importance[under], self.keys[under],
            float(threshold), self.size,
        )  # fmt: skip

    def without(self, part: RowSample) -> RowSample | None:
        """Sample of the rows that are not in a part; None if the part holds other rows.

        Parameters
        ----------
        part
            Sample of a part of the rows.
        """
        threshold = min(self.threshold, part.threshold)
        mine = self._cut(threshold)
        gone = part._cut(threshold)
        is_gone = np.isin(mine.keys, gone.keys)
        if is_gone.sum() != len(gone):
            return None
        left = ~is_gone
        return RowSample(
            mine.rows[left], mine.row_weights[left], mine.importance[left], mine.keys[left],
            threshold, self.size,
        )  # fmt: skip

    def resized(self, size: int) -> RowSample:
        """The same sample with another maximum number of rows; a smaller one takes rows out.

        Parameters
        ----------
        size
            Maximum number of rows, ``>= 1``: with a larger one, the merge with other parts may
            hold more rows than this part.
        """
        return replace(self, size=size)._cut(self.threshold)

    @property
    def is_possible(self) -> bool:
        """Whether the arrays, of the right shapes, can be those of a sample."""
        keys = self.keys
        arrays = (self.rows, self.row_weights, self.importance, keys)
        return bool(
            all(np.isfinite(values).all() for values in arrays)
            and len(self) <= self.size
            and self.threshold > 0  # not NaN
            and (keys[1:] >= keys[:-1]).all()
            and (not len(self) or (keys[0] > 0 and keys[-1] < self.threshold))
            and all(
                ((weights > 1 / _MAX_WEIGHT) & (weights < _MAX_WEIGHT)).all()
                for weights in (self.importance, self.row_weights)
            )
        )

    def scale(self, factor: float) -> RowSample:
        """Multiply the weights of the rows by a factor; their probabilities stay."""
        return RowSample(
            self.rows, self.row_weights * factor, self.importance, self.keys, self.threshold,
            self.size,
        )  # fmt: skip

    def identical(self, other: RowSample | None) -> bool:
        """Whether rows, keys, weights and threshold are the same."""
        return (
            other is not None
            and self.threshold == other.threshold
            and all(
                np.array_equal(getattr(self, name), getattr(other, name))
                for name in ("rows", "row_weights", "importance", "keys")
            )
        )

    def as_dict(self) -> dict[str, object]:
        """Number of rows, maximum number, effective number and size in bytes."""
        weights = self.weights
        return {
            "n_rows": len(self),
            "size": self.size,
            "n_effective": float(1.0 / (weights @ weights)) if len(self) else 0.0,
            "complete": self.is_complete,
            "bytes": self.nbytes,
        }

    def __repr__(self) -> str:
        all_rows = ", all rows of the data" if self.is_complete else ""
        return f"<RowSample: {len(self):,} of at most {self.size:,} rows{all_rows}>"


@dataclass(frozen=True)
class RowSampling:
    """Choice of random rows in a pass.

    Attributes
    ----------
    size
        Maximum number of rows, ``>= 1``.
    seed
        Seed of the hash.
    limit
        Bound of the threshold, infinite by default. A bound that almost surely exceeds the
        threshold of the whole data keeps the samples of small parts small.
    variance
        Variance of each feature, by which rows far from the center of the feature map are given
        more importance; None for an importance that is the weight.
    """

    size: int
    seed: int
    limit: float = np.inf
    variance: tuple[float, ...] | None = None

    @classmethod
    def of(
        cls, size: int, feature_map: FeatureMap, n_samples: int | None, *, weighted: bool
    ) -> RowSampling:
        """Choice of rows for data of a known or unknown number of samples.

        Seed and variances come from the feature map and its pilot rows. Among ``n`` rows of
        importance at least 1/2, the number with a key under ``limit`` is binomial with a mean of at
        least ``size + 10 sqrt(size) + 50``: fewer than ``size`` of them have a probability below
        ``1e-15``.

        Parameters
        ----------
        size, feature_map
            Maximum number of rows, and the feature map of the sketch.
        n_samples
            Number of samples; None if it is unknown.
        weighted
            Whether the samples have weights, whose size is unknown.
        """
        pilot = feature_map.pilot
        variance = None if pilot is None else tuple(map(float, pilot.variance))
        sampling = cls(size, feature_map.seed, variance=variance)
        if not n_samples or weighted:
            return sampling
        return replace(sampling, limit=sampling.bounds(n_samples)[1])

    def bounds(self, n_rows: int) -> tuple[float, float]:
        """Thresholds that usually, and almost surely, exceed the keys of over ``size`` rows.

        Parameters
        ----------
        n_rows
            Number of rows, of weight one.
        """
        root = math.sqrt(self.size)
        probable, sure = self.size + 4.0 * root + 10.0, self.size + 10.0 * root + 50.0
        if sure >= n_rows:
            return np.inf, np.inf
        mean, floor = (1.0, 1.0) if self.variance is None else (0.7, 0.5)  # importance
        return float(probable / mean / n_rows), float(sure / floor / n_rows)


class RowSampler:
    """Choice of rows from one chunk.

    Parameters
    ----------
    sampling
        Choice of rows.
    feature_map
        Feature map of the sketch.
    stream
        Numbers of the sequence of positions: empty for positions in the whole source, the number
        of the chunk where its place is unknown.
    """

    def __init__(
        self, sampling: RowSampling, feature_map: FeatureMap, stream: tuple[int, ...] = ()
    ):
        self._sampling = sampling
        d = feature_map.n_features
        self._center = np.asarray(feature_map.center)
        self._normalize = feature_map.normalize
        self._precision = np.zeros(d)
        if sampling.variance is not None:
            variance = np.asarray(sampling.variance)
            varies = variance > 0
            self._precision[varies] = 1.0 / (variance[varies] * varies.sum())
        self._base = stream_seed(sampling.seed, stream)
        self._threshold = sampling.limit
        self._parts: list[RowSample] = []

    def add(
        self, x: Any, weights: Any, start: int = 0, positions: NDArray[np.int64] | None = None
    ) -> None:
        """Choose among rows.

        Parameters
        ----------
        x
            Rows, shape (n, n_features), on the host or on a GPU.
        weights
            Weights, shape (n,), or None.
        start
            Position of the first row in its stream.
        positions
            Position of each row, shape (n,), if they are not consecutive.
        """
        before, earlier = self._threshold, tuple(self._parts)
        for bound in self._sampling.bounds(len(x)) if weights is None else ():
            if bound < before:
                self._threshold = bound
                self._scan(x, weights, start, positions)
                self._parts = [RowSample.merge(self._parts)]
                self._threshold = self._parts[0].threshold
                if self._threshold < bound:  # more than ``size`` rows were under it
                    return
                # else many rows are not finite, or near the center
                self._threshold, self._parts = before, list(earlier)
        self._scan(x, weights, start, positions)

    def _scan(self, x: Any, weights: Any, start: int, positions: NDArray[np.int64] | None) -> None:
        """Choose among the rows under the threshold."""
        numbers, hashes = np.empty(_BLOCK + 1, np.int64), np.empty(_BLOCK + 1, np.uint64)
        far = 0.5 * (1.0 + _FAR) if self._precision.any() else 1.0  # largest importance
        # Candidates of several blocks are read together: a GPU is waited for at each reading.
        size = max(_READ_BYTES // (8 * len(self._center)), 1)
        waiting: list[tuple[NDArray[Any], NDArray[Any], Array]] = []
        for first in range(0, len(x), _BLOCK):
            n_rows, block_weights = min(_BLOCK, len(x) - first), np.empty(0)
            if weights is not None:
                block_weights = on_host(weights[first : first + _BLOCK]).astype(np.float64)
            bound = self._bound(
                far * np.nanmax(block_weights, initial=0.0) if block_weights.size else far
            )
            positions_of_block = (
                _NO_POSITIONS if positions is None else positions[first : first + _BLOCK]
            )
            count = _candidates(
                positions_of_block, start + first, n_rows, self._base, bound, numbers, hashes
            )
            weights_of_candidates = (
                block_weights[numbers[:count]] if block_weights.size else block_weights
            )
            waiting.append((numbers[:count] + first, hashes[:count].copy(), weights_of_candidates))
            if first + n_rows == len(x) or sum(len(each) for each, _, _ in waiting) >= size:
                joined = [np.concatenate(arrays) for arrays in zip(*waiting, strict=True)]
                waiting = []
                for part in range(0, len(joined[0]), size):
                    self._add_candidates(x, *(array[part : part + size] for array in joined))

    def _bound(self, largest: float) -> np.uint64:
        """Largest hash of a row under the threshold, for any importance up to a bound."""
        reached = largest > 0 and self._threshold < 1.0 / largest
        return np.uint64(self._threshold * largest * _U53 if reached else _U53)

    def _add_candidates(
        self, x: Any, numbers: NDArray[Any], hashes: NDArray[Any], weights: Array
    ) -> None:
        """Choose among rows whose hashes are small enough."""
        # take is three times as fast, but copies all rows first if they are not in C order
        whole = isinstance(x, np.ndarray) and x.flags.c_contiguous
        chosen = np.take(x, numbers, axis=0) if whole else x[numbers]
        rows = np.ascontiguousarray(from_device(chosen), dtype=_row_type(x.dtype))
        if self._normalize:
            rows = unit_rows(rows).astype(rows.dtype)
        keys, importance = np.empty((2, len(numbers)))
        _score(rows, weights, hashes, self._center, self._precision, keys, importance)
        taken = keys < self._threshold  # not of weight zero, whose key is infinite
        rows = rows[taken]
        taken[taken] = finite = np.isfinite(rows).all(axis=1)
        size = self._sampling.size
        part = RowSample(
            rows[finite],
            weights[taken] if weights.size else np.ones(int(taken.sum())),
            importance[taken],
            keys[taken],
            self._threshold,
            size,
        )
        self._parts.append(part)
        if sum(map(len, self._parts)) > 2 * size:
            self._parts = [RowSample.merge(self._parts)]
            self._threshold = self._parts[0].threshold

    def result(self, dtype: Any) -> RowSample:
        """Sample of all rows added.

        Parameters
        ----------
        dtype
            Type of the rows of the source, for a sample without any.
        """
        empty = RowSample.empty(len(self._center), self._sampling.size, _row_type(np.dtype(dtype)))
        return RowSample.merge([*self._parts, empty._cut(self._sampling.limit)])


def _row_type(dtype: np.dtype[Any]) -> Any:
    """Float type that holds the rows of a source."""
    return np.float32 if dtype == np.float32 else np.float64


@lru_cache(maxsize=64)
def stream_seed(seed: int, stream: tuple[int, ...]) -> np.uint64:
    """Base of the hashes of one stream of positions."""
    return np.uint64(
        np.random.SeedSequence([seed, len(stream), *stream]).generate_state(1, np.uint64)[0]
    )


@cached_njit(nogil=True)
def _hash(position, base):  # type: ignore[no-untyped-def]
    """Hash of a position, 53 bits: the output of SplitMix64 (Steele, Lea and Flood 2014) there."""
    z = base + (np.uint64(position) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) >> np.uint64(11)


@cached_njit(nogil=True)
def _candidates(positions, start, n, base, bound, numbers, hashes):  # type: ignore[no-untyped-def]
    """Fill numbers and hashes of the rows whose hash is at most ``bound``; count them."""
    count: Any = 0
    part = np.empty(_HASHES, np.uint64)
    few = bound < np.uint64(_U53 * _FEW)
    for first in range(0, n, _HASHES):
        size = min(_HASHES, n - first)
        # hashes have loops of their own, which become vector instructions
        if positions.size:
            for i in range(size):
                part[i] = _hash(positions[first + i], base)
        else:
            for i in range(size):
                part[i] = _hash(start + first + i, base)
        for i in range(size):
            z = part[i]
            if few and z > bound:
                continue
            numbers[count], hashes[count] = first + i, z
            count += np.int64(z <= bound)  # many candidates: a branch would be mispredicted
    return count


@cached_njit(nogil=True, error_model="numpy")
def _score(rows, weights, hashes, center, precision, keys, importance):  # type: ignore[no-untyped-def]
    """Fill the keys and the importance of rows."""
    far = precision.any()
    for n in range(hashes.size):
        q = 1.0
        if far:
            square = 0.0
            for f in range(center.size):
                away = np.float64(rows[n, f]) - center[f]
                square += away * away * precision[f]
            q = 0.5 + 0.5 * min(square, _FAR)
        if weights.size:
            q *= weights[n]
        importance[n] = q
        keys[n] = (np.float64(hashes[n]) + 0.5) / _U53 / q  # infinite, or NaN, without weight
