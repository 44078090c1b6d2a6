"""Counters of rows with missing values, and the noise of sums over the rows that are available.

A frequency is summed over the rows that observe all of its features. With ``n_j`` such rows for
frequency ``j``, and ``n_jl`` for both ``j`` and ``l``, the mean of frequency ``j`` has the
expectation of complete rows if values are missing completely at random, and the covariance of two
means is the covariance of single rows times ``n_jl / (n_j n_l)``. The numbers ``n_j`` are counted,
and the ``n_jl`` are modelled: by the tree of features whose pairs of missing values are the most
dependent (Chow and Liu 1968), which is exact for values that are missing independently, and for
groups of features that are missing together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import depth_first_order, minimum_spanning_tree

from dask_sketch.errors import InputError, MergeError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.frequency_distributions import min_with_marginals
from dask_sketch.features.kernels.fixed_point import FRACTION, WEIGHT_FRACTION, FixedPoint
from dask_sketch.features.kernels.incomplete import pairs_of, used_features
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.validation.arrays import FrozenDataclass
from dask_sketch.validation.choices import STRUCTURED

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
ARRAYS = ("frequencies", "pairs", "first", "second")  # attributes of the counters
STACKED = (*ARRAYS, "weight_quanta")
_BLOCK = 256  # sets of features whose overlaps with all others are computed together
# Bound of the probabilities of the tree: values that were never missing may be missing.
_MIN_PROBABILITY = 1e-12
_MIN_FRACTION = 1e-9  # smallest fraction of the rows that observe a frequency


@dataclass(frozen=True, eq=False)
class MissingWeights(FrozenDataclass):
    """Counters and moments of the rows with missing values, which are called incomplete.

    They are exact integers, which add and subtract like the sums of a sketch.

    Attributes
    ----------
    frequencies
        Weight of the rows without all features of each frequency, in quanta of ``2**-71``, shape
        (n_frequencies,).
    pairs
        Weight of the rows without both features of each pair, in the same quanta, shape (n_features
        * (n_features + 1) / 2,), in the order of ``numpy.triu_indices``: a feature with itself is a
        pair. For over 1024 features there are only these pairs, shape (n_features,).
    first, second
        Moments of the observed values of the incomplete rows, in the quanta of a sketch, shape
        (n_features,).
    weight_quanta
        Total weight of the incomplete rows, in the quanta of a sketch.
    """

    frequencies: FixedPoint
    pairs: FixedPoint
    first: FixedPoint
    second: FixedPoint
    weight_quanta: int

    @classmethod
    def sum(cls, parts: Sequence[MissingWeights | None]) -> MissingWeights | None:
        """Sum of counters; None if there are none, which stands for zeros.

        Parameters
        ----------
        parts
            Counters of one feature map.
        """
        counters = [part for part in parts if part is not None]
        if not counters:
            return None
        sums = {name: FixedPoint.sum([getattr(part, name) for part in counters]) for name in ARRAYS}
        return cls(**sums, weight_quanta=sum(part.weight_quanta for part in counters))

    @classmethod
    def difference(
        cls, whole: MissingWeights | None, part: MissingWeights | None
    ) -> MissingWeights | None:
        """Counters without those of a part; None if nothing is left.

        Parameters
        ----------
        whole, part
            Counters of one feature map.

        Raises
        ------
        MergeError
            If the part has counters and the whole has none.
        """
        if part is None:
            return whole
        if whole is None:
            raise MergeError(
                "cannot subtract a sketch of rows with missing values from one without: subtract "
                "only a part that was added."
            )
        left = {name: getattr(whole, name) - getattr(part, name) for name in ARRAYS}
        weight = whole.weight_quanta - part.weight_quanta
        return cls(**left, weight_quanta=weight).or_none()

    def times(self, factor: float) -> MissingWeights | None:
        """Counters of rows whose weights are multiplied by a factor, each rounded once."""
        arrays = {name: getattr(self, name).times(factor) for name in ARRAYS}
        weight = round(Fraction(self.weight_quanta) * Fraction(factor))
        return MissingWeights(**arrays, weight_quanta=weight).or_none()

    def or_none(self) -> MissingWeights | None:
        """The counters; None if all are zero."""
        some = self.weight_quanta or any(getattr(self, name).any() for name in ARRAYS)
        return self if some else None

    def observed(self, weight_quanta: int) -> tuple[Array, Array]:
        """Weights of the rows that observe each frequency, and each pair of features.

        Parameters
        ----------
        weight_quanta
            Total weight, in quanta of a sketch.
        """
        total = FixedPoint.from_integers([weight_quanta >> (WEIGHT_FRACTION - FRACTION)])
        fractions = []
        for missing in (self.frequencies, self.pairs):
            everywhere = total.part(np.zeros(missing.shape, np.intp))
            fractions.append((everywhere - missing).to_float(FRACTION))
        return fractions[0], fractions[1]

    def is_possible(self, weight_quanta: int) -> bool:
        """Whether the counters are between zero and the total weight, and squares positive."""
        observed = np.concatenate(self.observed(weight_quanta))
        return bool(
            (observed >= 0).all()
            and 0 <= self.weight_quanta <= weight_quanta
            and all((getattr(self, name).high >= 0).all() for name in ARRAYS if name != "first")
        )

    @property
    def nbytes(self) -> int:
        """Size of the counters in bytes."""
        return int(sum(getattr(self, name).nbytes for name in ARRAYS))

    def __eq__(self, other: object) -> bool:
        """Whether all counters are equal."""
        if not isinstance(other, MissingWeights):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in STACKED)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class StackedMissing(FrozenDataclass):
    """Counters of several groups: the attributes of :class:`MissingWeights`, one row for each.

    A group without missing values has zeros.

    Attributes
    ----------
    frequencies, pairs, first, second, weight_quanta
        Counters and moments, with a leading axis of groups.
    """

    frequencies: StackedFixedPoint
    pairs: StackedFixedPoint
    first: StackedFixedPoint
    second: StackedFixedPoint
    weight_quanta: StackedFixedPoint

    @classmethod
    def stack(
        cls, parts: Sequence[MissingWeights | None], feature_map: FeatureMap
    ) -> StackedMissing | None:
        """Stack the counters of groups; None if no group has any.

        Parameters
        ----------
        parts
            Counters of each group, or None.
        feature_map
            Their feature map.
        """
        if all(part is None for part in parts):
            return None
        zeros = {name: FixedPoint.zeros(n) for name, n in counter_sizes(feature_map).items()}
        none = MissingWeights(**zeros, weight_quanta=0)
        counters = [none if part is None else part for part in parts]
        stacks = {
            name: StackedFixedPoint.from_fixed_point([getattr(part, name) for part in counters])
            for name in ARRAYS
        }
        weights = StackedFixedPoint.from_integers([part.weight_quanta for part in counters])
        return cls(**stacks, weight_quanta=weights)

    @classmethod
    def sum(
        cls,
        parts: Sequence[StackedMissing | None],
        positions: Sequence[NDArray[np.intp]],
        n_groups: int,
    ) -> StackedMissing | None:
        """Add the counters of groups row by row; None if no part has any.

        Parameters
        ----------
        parts
            Counters of one feature map, or None.
        positions
            Row of the result for each row of a part, ascending.
        n_groups
            Number of rows of the result.
        """
        counters = [
            (part, position)
            for part, position in zip(parts, positions, strict=True)
            if part is not None
        ]
        if not counters:
            return None
        places = [position for _, position in counters]
        sums = {
            name: StackedFixedPoint.sum(
                [getattr(part, name) for part, _ in counters],
                places,
                n_groups,
                max_bits=None if name == "weight_quanta" else 118,
            )
            for name in STACKED
        }
        return cls(**sums)

    def rows(self, chosen: NDArray[np.intp]) -> StackedMissing | None:
        """Counters of some groups, in the given order; None if none of them has any."""
        return StackedMissing(
            **{name: getattr(self, name).rows(chosen) for name in STACKED}
        ).or_none()

    def or_none(self) -> StackedMissing | None:
        """The counters; None if all are zero."""
        return self if any(getattr(self, name).words.any() for name in STACKED) else None

    def of(self, row: int) -> MissingWeights | None:
        """Counters of one group; None if all are zero."""
        arrays = {name: getattr(self, name).fixed_point(row) for name in ARRAYS}
        return MissingWeights(**arrays, weight_quanta=self.weight_quanta.integers(row)).or_none()

    def observed(self, weight_quanta: StackedFixedPoint, rows: slice) -> tuple[Array, Array]:
        """Weights of the rows of each group that observe each frequency, and each pair.

        Parameters
        ----------
        weight_quanta
            Total weight of each group, in quanta of a sketch.
        rows
            Positions of the groups.

        Returns
        -------
        frequencies, pairs
            Shapes (n_groups, n_frequencies) and (n_groups, n_pairs).
        """
        totals = np.array(weight_quanta.integers(rows), dtype=object)
        total = FixedPoint.from_integers((totals >> (WEIGHT_FRACTION - FRACTION))[:, None])
        frequencies, pairs = (
            (total - stack.fixed_point(rows)).to_float(FRACTION)
            for stack in (self.frequencies, self.pairs)
        )
        return frequencies, pairs

    def is_possible(self, weight_quanta: StackedFixedPoint) -> bool:
        """Whether the counters of each group are possible for its total weight."""
        totals = weight_quanta.integers()
        parts = map(self.of, range(len(totals)))
        return all(
            part is None or part.is_possible(total)
            for part, total in zip(parts, totals, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Size of the counters in bytes."""
        return sum(getattr(self, name).nbytes for name in STACKED)

    def __eq__(self, other: object) -> bool:
        """Whether all counters are equal."""
        if not isinstance(other, StackedMissing):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in STACKED)

    __hash__ = None  # type: ignore[assignment]


def counter_sizes(feature_map: FeatureMap) -> dict[str, int]:
    """Number of counters of each kind, by the attribute of :class:`MissingWeights`."""
    d = feature_map.n_features
    sizes = feature_map.n_frequencies, len(pairs_of(d)[0]), d, d
    return dict(zip(ARRAYS, sizes, strict=True))


def require_sparse(feature_map: FeatureMap) -> None:
    """Raise InputError if every frequency uses all features, so that no row with NaN counts.

    Parameters
    ----------
    feature_map
        Feature map of a sketch with ``nan_policy="available"``.
    """
    if feature_map.normalize:
        raise InputError(
            "nan_policy='available' with a feature map with normalize=True: rows with missing "
            "values have no known length. Pass nan_policy='omit'.",
            parameter="nan_policy",
        )
    paired = feature_map.distribution == "gaussian-pairs"  # a few of them use no feature
    if feature_map.row_whitening is None and not paired and not supports(feature_map).all():
        return
    white = feature_map.whitening
    full = white is not None and np.count_nonzero(white) > len(white)
    cause = "whitening='full'" if full else f"distribution={feature_map.distribution!r}"
    remedy = "Pass nan_policy='omit'."
    if feature_map.n_features > 1:
        # sparse sums use both of two features, and a sparse radius all of four
        sparse = ["gaussian-marginals", "sparse-sums", "sparse-radius"]
        names = sparse[: min(max(feature_map.n_features - 1, 1), 2) + (feature_map.n_features > 4)]
        min_frequencies = min_with_marginals(feature_map.n_features)
        remedy = (
            f"Design the feature map with distribution={' or '.join(map(repr, names))}, at least "
            f"{min_frequencies} frequencies and without whitening='full', or pass "
            "nan_policy='omit'."
        )
    raise InputError(
        f"nan_policy='available' with a feature map with {cause} of {feature_map.n_features} "
        "features: the frequencies use all features, so that no row with a missing value counts. "
        + remedy,
        parameter="nan_policy",
    )


def refuse_missing(name: str, sketch: Any) -> None:
    """Raise InputError for a sketch, or a group of sketches, of rows with missing values.

    Parameters
    ----------
    name
        Name of the argument.
    sketch
        Sketch or group, with an attribute ``missing``.
    """
    if sketch.missing is not None:
        raise InputError(
            f"{name} has rows with missing values, whose noise this method does not know: sketch "
            "with nan_policy='omit', or use the models of decode().",
            parameter=name,
        )


@lru_cache(maxsize=4)
def supports(feature_map: FeatureMap) -> Mask:
    """Whether each frequency uses each feature, shape (n_frequencies, n_features)."""
    return used_features(feature_map.cycles_per_unit, feature_map.distribution in STRUCTURED)


def equal_supports(feature_map: FeatureMap) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number of the set of features that each frequency uses, and the frequencies of each set.

    Returns
    -------
    sets
        Number of the set, shape (n_frequencies,).
    counts
        Number of frequencies of each set, shape (n_sets,).
    """
    _, sets, counts = np.unique(
        supports(feature_map), axis=0, return_inverse=True, return_counts=True
    )
    return sets.reshape(-1), counts


class ObservedWeights:
    """Weights of the rows that observe each frequency and each feature of a sketch.

    Parameters
    ----------
    feature_map
        Feature map of the sketch.
    weight_quanta
        Total weight, in quanta of a sketch; positive.
    missing
        Counters; None without missing values.

    Attributes
    ----------
    frequencies
        Total weight of the rows that observe each frequency, shape (n_frequencies,).
    features
        Total weight of the rows that observe each feature, shape (n_features,).
    fractions, feature_fractions
        The same as fractions of the total weight of all rows.
    pair_fractions
        Fractions of the rows that observe both features of each pair, shape (n_pairs,), in the
        order of ``pairs_of``; that of a feature with itself is its own fraction.
    complete
        Total weight of the rows without missing values.
    """

    def __init__(self, feature_map: FeatureMap, weight_quanta: int, missing: MissingWeights | None):
        self._feature_map, self._missing = feature_map, missing
        total = weight_quanta / (1 << WEIGHT_FRACTION)
        first, second = pairs_of(feature_map.n_features)
        if missing is None:
            self.frequencies = np.full(feature_map.n_frequencies, total)
            pairs = np.full(len(first), total)
        else:
            self.frequencies, pairs = missing.observed(weight_quanta)
        self.features = pairs[first == second]
        self.pair_fractions = pairs / total
        self.complete = total
        if missing is not None:
            self.complete = (weight_quanta - missing.weight_quanta) / (1 << WEIGHT_FRACTION)
        self.fractions = self.frequencies / total
        self.feature_fractions = self.features / total

    @property
    def divisors(self) -> Array:
        """Weights of the rows that observe each feature; one where there are none."""
        return np.where(self.features > 0.0, self.features, 1.0)

    @property
    def noise_factors(self) -> Array:
        """Ratios of all rows to those that observe each frequency; zero where there are none."""
        return np.divide(
            1.0, self.fractions, out=np.zeros_like(self.fractions), where=self.fractions > 0.0
        )

    @cached_property
    def patterns(self) -> ObservedPatterns | None:
        """Model of the values that are observed together; None without missing values."""
        if self._missing is None:
            return None
        return ObservedPatterns(supports(self._feature_map), self.fractions, self.pair_fractions)


class ObservedPatterns:
    """Model of the features that are observed together, fitted to the counters of pairs.

    Parameters
    ----------
    uses
        Whether each frequency uses each feature, shape (n_frequencies, n_features).
    fractions
        Fraction of the rows, by weight, that observe each frequency, shape (n_frequencies,).
    both
        Fractions that observe both features of each pair, in the order of
        :class:`MissingWeights`.

    Examples
    --------
    >>> uses = np.array([[True, False], [False, True], [True, True]])
    >>> patterns = ObservedPatterns(uses, np.array([0.5, 0.8, 0.4]), np.array([0.5, 0.4, 0.8]))
    >>> patterns.overlaps().round(3)  # independent features: frequencies 0 and 1 as if complete
    array([[2.  , 1.  , 2.  ],
           [1.  , 1.25, 1.25],
           [2.  , 1.25, 2.5 ]])
    """

    def __init__(self, uses: Mask, fractions: Array, both: Array):
        fractions = np.maximum(fractions, _MIN_FRACTION)
        self._factors = 1.0 / fractions
        d = uses.shape[1]
        first, second = pairs_of(d)
        pairs = np.zeros((d, d))
        observed = both[first == second]
        pairs[:] = np.outer(observed, observed)  # products for features whose pairs are not counted
        pairs[first, second] = pairs[second, first] = both
        self._missed = np.flatnonzero(observed < 1.0)
        uses = uses[:, self._missed]
        self._sets, of = np.unique(uses, axis=0, return_inverse=True)
        self._set_of_frequency = of.reshape(-1)
        self._observed = np.clip(observed[self._missed], _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
        self._order, self._parents, self._given = _tree(
            pairs[np.ix_(self._missed, self._missed)], self._observed
        )
        # probabilities of the model; those of the counters replace them
        alone = self._probabilities(self._sets)
        expected = np.maximum(alone[self._set_of_frequency], _MIN_PROBABILITY)
        self._units = 1.0 / np.sqrt(expected * fractions)

    def overlaps(self, chosen: NDArray[np.intp] | None = None) -> Array:
        """Factors of the covariances of the means of frequencies, ``n n_jl / (n_j n_l)``.

        Parameters
        ----------
        chosen
            Numbers of some frequencies; all by default.

        Returns
        -------
        overlaps
            Positive semidefinite matrix; 1 where all rows are complete.
        """
        of = self._set_of_frequency if chosen is None else self._set_of_frequency[chosen]
        units = self._units if chosen is None else self._units[chosen]
        used, of = np.unique(of, return_inverse=True)
        sets = self._sets[used]
        table = np.empty((len(sets), len(sets)))
        for start in range(0, len(sets), _BLOCK):
            rows = sets[start : start + _BLOCK]
            table[start : start + _BLOCK] = self._probabilities(rows[:, None] | sets)
        out = table[np.ix_(of, of)]
        out *= units
        out *= units[:, None]
        out[np.diag_indices_from(out)] = self._factors if chosen is None else self._factors[chosen]
        return np.asarray(out)

    def simulate(self, n_rows: int, rng: np.random.Generator) -> Array:
        """Factors of single rows in the mean of each frequency: zero, or ``n / n_j``, on average.

        Parameters
        ----------
        n_rows
            Number of rows.
        rng
            Random number generator.

        Returns
        -------
        factors
            Shape (n_rows, n_frequencies).
        """
        seen = np.ones((n_rows, len(self._missed)), dtype=bool)
        for feature in self._order[::-1]:
            uniform, parent = rng.random(n_rows), self._parents[feature]
            if parent < 0:
                seen[:, feature] = uniform < self._observed[feature]
            else:
                missed, observed = self._given[feature]
                seen[:, feature] = uniform < np.where(seen[:, parent], observed, missed)
        observes = (~seen @ self._sets.T) == 0
        return np.asarray(observes[:, self._set_of_frequency] * self._units)

    def _probabilities(self, needed: Mask) -> Array:
        """Probabilities that all features in sets, shape (..., n), are observed."""
        shape = needed.shape[:-1]
        total = np.ones(shape)
        below: dict[int, tuple[Array, Array]] = {}  # products over the children, by their parent
        for feature in self._order:
            parent = int(self._parents[feature])
            missed, observed = below.pop(feature, (np.ones(shape), np.ones(shape)))
            missed = np.where(needed[..., feature], 0.0, missed)
            if parent < 0:
                chance = self._observed[feature]
                total *= chance * observed + (1.0 - chance) * missed
                continue
            messages = [p * observed + (1.0 - p) * missed for p in self._given[feature]]
            earlier = below.get(parent)
            if earlier is not None:
                messages = [one * other for one, other in zip(messages, earlier, strict=True)]
            below[parent] = messages[0], messages[1]
        return total


def _tree(both: Array, observed: Array) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Tree of the largest mutual informations of pairs of features.

    Returns
    -------
    order
        Features, children before their parents, shape (n,).
    parents
        Parent of each feature, shape (n,); -1 for a root.
    conditional
        Probabilities that a feature is observed where its parent is missing, and where it is
        observed, shape (n, 2).
    """
    n = len(observed)
    order, parents = np.empty(0, np.intp), np.full(n, -1, np.intp)
    if not n:
        return order, parents, np.empty((0, 2))
    column = observed[:, None]
    cells = (both, column - both, observed - both, 1.0 - column - observed + both)
    missing, column_missing = 1.0 - observed, 1.0 - column
    expected = (
        column * observed, column * missing, column_missing * observed, column_missing * missing,
    )  # fmt: skip
    information = sum(
        np.maximum(cell, 0.0)
        * np.log(np.maximum(cell, _MIN_PROBABILITY) / np.maximum(chance, _MIN_PROBABILITY))
        for cell, chance in zip(cells, expected, strict=True)
    )
    information = np.asarray(information)
    distance = 1.0 + information.max() - information  # edges of weight zero would be none
    np.fill_diagonal(distance, 0.0)
    edges = minimum_spanning_tree(distance)
    depth_first, before = depth_first_order(edges, 0, directed=False)
    order = depth_first[::-1].astype(np.intp)
    parents = np.where(before < 0, -1, before).astype(np.intp)
    conditional = np.repeat(observed[:, None], 2, axis=1)
    for feature, parent in enumerate(parents):
        if parent >= 0:
            chance = observed[parent]
            conditional[feature, 0] = (observed[feature] - both[feature, parent]) / (1.0 - chance)
            conditional[feature, 1] = both[feature, parent] / chance
    return order, parents, np.clip(conditional, 0.0, 1.0)
