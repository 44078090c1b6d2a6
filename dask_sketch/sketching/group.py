"""Sketches of many groups of samples, stacked: one for each speaker, day or file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.display.html import card, fields_table, html_table
from dask_sketch.errors import CapacityError, InputError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import (
    FEATURE_FRACTION,
    FRACTION,
    LARGEST_TOTAL,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
)
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.storage.artifact import Stored
from dask_sketch.validation.arrays import Rebuilt
from dask_sketch.validation.labels import Codes, Labels, codes_of, in_one_unit

if TYPE_CHECKING:
    import xarray as xr


# What the sums of groups of samples say: averages in float64, and how far groups are apart.


class GroupAverages(Stored):
    """The part of :class:`~dask_sketch.SketchGroup` that only reads; attributes are told there."""

    feature_map: FeatureMap
    labels: NDArray[Any]
    moment_quanta: StackedFixedPoint
    weight_quanta: StackedFixedPoint
    squared_weight_quanta: StackedFixedPoint
    count: NDArray[np.int64]
    omitted: NDArray[np.int64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    first_quanta: StackedFixedPoint
    second_quanta: StackedFixedPoint
    tight_bounds: NDArray[np.bool_]
    unlabelled: int
    dim: str

    # -- the sums, in float64 ----------------------------------------------------------------

    @property
    def total_weight(self) -> NDArray[np.float64]:
        """Sums of the weights, shape (n_groups,)."""
        return _quotients(self.weight_quanta, WEIGHT_FRACTION)

    @property
    def squared_weight(self) -> NDArray[np.float64]:
        """Sums of the squares of the weights, shape (n_groups,)."""
        return _quotients(self.squared_weight_quanta, SQUARED_FRACTION)

    @property
    def effective_count(self) -> NDArray[np.float64]:
        """Kish's ``(sum w)**2 / sum w**2``, shape (n_groups,); zero for a group without weight."""
        squared = self.squared_weight
        return self.total_weight**2 / np.where(squared > 0, squared, np.inf)

    def characteristic(self, rows: slice = slice(None)) -> NDArray[np.complex128]:
        """Empirical characteristic functions at the frequencies, shape (n_groups, n_frequencies).

        NaN for a group without weight.

        Parameters
        ----------
        rows
            Of which groups: all of them take 16 bytes for each group and frequency.
        """
        parts = self.moment_quanta.fixed_point(rows).to_float(FRACTION)
        weight = self.total_weight[rows]
        sums: NDArray[np.complex128] = parts[:, 0] + 1j * parts[:, 1]
        with np.errstate(invalid="ignore"):  # nothing over nothing
            means = sums / weight[:, None]
        return np.exp(-1j * (self.feature_map.center @ self.feature_map.frequencies)) * means

    @property
    def z(self) -> NDArray[np.complex128]:
        """The sketch vectors of eq. (13), shape (n_groups, n_frequencies); see :attr:`Sketch.z`."""
        return self.characteristic() / np.sqrt(self.feature_map.n_frequencies)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of each group, shape (n_groups, n_features); NaN for a group without weight."""
        return self.feature_map.center + self._average(self.first_quanta)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of each group in each feature, shape (n_groups, n_features); as :attr:`mean`."""
        mean, unit = self._average(self.first_quanta), moment_units(self.feature_map)
        return np.maximum(self._average(self.second_quanta) * unit - mean**2, 0.0)

    def _average(self, steps: StackedFixedPoint) -> NDArray[np.float64]:
        sums = steps.fixed_point(slice(None)).to_float(FEATURE_FRACTION)
        with np.errstate(invalid="ignore"):  # nothing over nothing
            return sums * moment_units(self.feature_map) / self.total_weight[:, None]

    # -- what it says of pairs ---------------------------------------------------------------

    def mmd(self, *, squared: bool = False) -> xr.DataArray:
        """Maximum mean discrepancy of every two groups, without what noise adds to it.

        The kernel is that of the feature map, with the weights of its features if it has them.

        Parameters
        ----------
        squared
            Give the unbiased estimates of its square, which are below zero now and then where two
            groups have one distribution; else their root, and 0 for these.

        Returns
        -------
        matrix
            Shape (n_groups, n_groups), dimensions ``dim`` and ``other_`` with its name. NaN for
            groups of less than two samples: of them there is no saying what is noise.

        Raises
        ------
        InputError
            If the matrix needs more memory than there is; ``select`` some groups.

        References
        ----------
        Gretton, Borgwardt, Rasch, Schölkopf, Smola (2012), A kernel two-sample test.

        Examples
        --------
        >>> from dask_sketch import partial_groups
        >>> x = np.random.default_rng(0).normal(size=(3000, 2))
        >>> label = np.arange(3000) % 3
        >>> x[label == 2] += 1.0
        >>> matrix = partial_groups(x, FeatureMap(2, 100, scale=1.0), label).mmd()
        >>> matrix.dims, bool(matrix.sel(group=0, other_group=2) > 5 * matrix[0, 1])
        (('group', 'other_group'), True)
        """
        from dask_sketch.diagnostics.mmd import discrepancies

        return discrepancies(self, squared)

    # -- the rest ----------------------------------------------------------------------------

    def to_xarray(self) -> xr.Dataset:
        """Sketch vectors, counts, weights, means and bounds as a labelled dataset, in float64."""
        from dask_sketch.sketching.group_artifact import to_dataset

        return to_dataset(self)

    def _artifact(self) -> tuple[xr.Dataset, str, int]:
        from dask_sketch.sketching.group_artifact import SCHEMA, VERSION, stored

        return stored(self), SCHEMA, VERSION

    @property
    def nbytes(self) -> int:
        """Bytes of all sums, bounds, counts and labels."""
        stacks = (
            self.moment_quanta,
            self.weight_quanta,
            self.squared_weight_quanta,
            self.first_quanta,
            self.second_quanta,
        )
        arrays = (self.labels, self.count, self.omitted, self.minimum, self.maximum)
        return sum(each.nbytes for each in (*stacks, *arrays, self.tight_bounds))

    def __len__(self) -> int:
        return len(self.labels)

    def __sizeof__(self) -> int:
        # what Dask's memory accounting sees
        return object.__sizeof__(self) + self.feature_map.__sizeof__() + self.nbytes

    def _fields(self) -> dict[str, str]:
        return {
            "groups": f"{len(self):,} of {self.dim}",
            "samples": f"{int(self.count.sum()):,}",
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self._fields().items())
        return f"<SketchGroup: {shown}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        fields = {"rows left out": f"{int(self.omitted.sum()):,}", "rows without a label":
                  f"{self.unlabelled:,}", "size": f"{self.nbytes / 1e3:,.1f} kB"}  # fmt: skip
        order = np.argsort(-self.count, kind="stable")
        largest = [[self.labels[i], f"{self.count[i]:,}"] for i in order]
        return card(
            "SketchGroup",
            fields,
            summary=f"{len(self):,} sketches, one for each {self.dim}, of "
            f"{int(self.count.sum()):,} samples",
            more={
                f"largest of {self.dim}": html_table([self.dim, "samples"], largest),
                "feature map": fields_table(self.feature_map._fields()),
            },
        )


def _quotients(steps: StackedFixedPoint, fraction: int) -> NDArray[np.float64]:
    return np.array([number / (1 << fraction) for number in steps.integers()], dtype=np.float64)


_SHOWN = 6  # labels in a short description


@dataclass(frozen=True, eq=False, repr=False)
class SketchGroup(GroupAverages, Rebuilt):
    """One sketch for each group of samples, of one feature map, along one dimension.

    What :func:`~dask_sketch.sketch` gives for ``groups=labels``: ``group["ann"]`` has the bits of
    the sketch of Ann's samples alone. Groups form a commutative monoid as sketches do: ``a + b``
    adds group by group, and has the groups of both.

    Attributes
    ----------
    feature_map
        What was averaged.
    labels
        Of the groups, sorted, each once: an array of int64, float64, bool, datetime64, timedelta64
        or strings, shape (n_groups,).
    moment_quanta, weight_quanta, squared_weight_quanta, first_quanta, second_quanta
        As the attributes of :class:`Sketch`, each with a leading axis of groups.
    count, omitted
        Samples summed and rows left out, shape (n_groups,).
    minimum, maximum
        Bounds, shape (n_groups, n_features).
    tight_bounds
        As of :class:`Sketch`, shape (n_groups,).
    unlabelled
        Number of rows left out because they had no label.
    dim
        Name of the dimension of groups.

    Examples
    --------
    >>> from dask_sketch.sketching import partial_groups, partial_sketch
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> speaker = np.array(["ann", "bob", "eve", "bob"] * 25)
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> group = partial_groups(x, feature_map, speaker, dim="speaker")
    >>> list(group), group.count
    (['ann', 'bob', 'eve'], array([25, 50, 25]))
    >>> group["bob"].identical(partial_sketch(x[speaker == "bob"], feature_map))
    True
    >>> group.merged(["ann", "eve"]).count, group.merged().identical(partial_sketch(x, feature_map))
    (50, True)
    """

    feature_map: FeatureMap
    labels: Labels
    moment_quanta: StackedFixedPoint
    weight_quanta: StackedFixedPoint
    squared_weight_quanta: StackedFixedPoint
    count: NDArray[np.int64]
    omitted: NDArray[np.int64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    first_quanta: StackedFixedPoint
    second_quanta: StackedFixedPoint
    tight_bounds: NDArray[np.bool_]
    unlabelled: int = 0
    dim: str = "group"

    def __post_init__(self) -> None:
        for name in ARRAYS:
            getattr(self, name).flags.writeable = False
        most = LARGEST_TOTAL << WEIGHT_FRACTION
        steps = self.weight_quanta
        if steps.largest << steps.shift > most:
            for label, weight in zip(self.labels, steps.integers(), strict=True):
                if weight > most:
                    raise CapacityError(
                        f"{self.dim} {label!s}: the total weight is over the {LARGEST_TOTAL:.4g} "
                        "that a sketch holds exactly. Multiply all weights by one smaller factor."
                    )

    @classmethod
    def empty(cls, feature_map: FeatureMap, dim: str = "group") -> SketchGroup:
        """The neutral element: no group at all."""
        d, m = feature_map.n_features, feature_map.n_frequencies
        moments, features, numbers = (
            StackedFixedPoint.of(np.zeros(shape, np.int32), largest=0)
            for shape in ((0, 2, m), (0, d), (0,))
        )
        return cls(
            feature_map=feature_map,
            labels=np.zeros(0, dtype=np.int64),
            moment_quanta=moments,
            weight_quanta=numbers,
            squared_weight_quanta=numbers,
            count=np.zeros(0, dtype=np.int64),
            omitted=np.zeros(0, dtype=np.int64),
            minimum=np.zeros((0, d)),
            maximum=np.zeros((0, d)),
            first_quanta=features,
            second_quanta=features,
            tight_bounds=np.zeros(0, dtype=bool),
            dim=dim,
        )

    @classmethod
    def from_sketches(cls, sketches: Mapping[Any, Sketch], dim: str = "group") -> SketchGroup:
        """Stack sketches of one feature map.

        Parameters
        ----------
        sketches
            At least one, by its label.
        dim
            Name of the dimension of groups.

        Raises
        ------
        InputError
            If there is none, or one is private: to be given away, not to be added to.
        MergeError
            If two have different feature maps.

        Examples
        --------
        >>> empty = Sketch.empty(FeatureMap(2, 20, scale=1.0))
        >>> SketchGroup.from_sketches({"a": empty, "b": empty}).count
        array([0, 0])
        """
        if not isinstance(sketches, Mapping):
            raise InputError(
                f"sketches of type {type(sketches).__name__}: give a mapping from labels."
            )
        if not sketches:
            raise InputError("no sketch was given: give at least one by its label.")
        labels, codes = codes_of(list(sketches), len(sketches), "sketches")
        if len(labels) < len(sketches) or codes.min() < 0:
            raise InputError("a label is missing, or two labels are the same number.")
        given = list(sketches.values())
        parts = [given[place] for place in np.argsort(codes)]
        for part in parts:
            if not isinstance(part, Sketch):
                raise InputError(
                    f"a sketch of type {type(part).__name__}: give sketches; call .compute() on "
                    "lazy ones."
                )
            parts[0].feature_map.require_same(part.feature_map)
            if part.privacy is not None:
                raise InputError("a private sketch is to be given away, not to be one of a group.")
        words = {
            name: StackedFixedPoint.from_fixed_point([getattr(part, name) for part in parts])
            for name in WORDS
        }
        whole = {
            name: StackedFixedPoint.from_integers([getattr(part, name) for part in parts])
            for name in WEIGHTS
        }
        arrays = {name: np.array([getattr(part, name) for part in parts]) for name in ROWS}
        found: Any = words | whole | arrays
        return cls(feature_map=parts[0].feature_map, labels=labels, dim=dim, **found)

    # -- the sketches ------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        labels = self.labels  # dates as they are: those of Python have no nanoseconds
        return iter(labels if labels.dtype.kind in "mM" else labels.tolist())

    def __contains__(self, label: object) -> bool:
        return self._place(label) is not None

    def __getitem__(self, label: Any) -> Sketch:
        return self.sketch_of(label)

    def items(self) -> Iterator[tuple[Any, Sketch]]:
        """Labels and their sketches, one after the other."""
        return ((label, self._sketch(row)) for row, label in enumerate(self))

    def sketch_of(self, label: Any) -> Sketch:
        """The sketch of one group, bit for bit that of its samples alone.

        Raises
        ------
        InputError
            If there is no such group.
        """
        place = self._place(label)
        if place is None:
            several = isinstance(label, slice) or np.ndim(label) > 0
            raise InputError(
                f"{self.dim} {label!r} is not there; there are {self._shown()}."
                + (" For several groups, use select() or merged()." if several else "")
            )
        return self._sketch(place)

    def _sketch(self, row: int) -> Sketch:
        return Sketch(
            feature_map=self.feature_map,
            weight_quanta=self.weight_quanta.integers(row),
            squared_weight_quanta=self.squared_weight_quanta.integers(row),
            count=int(self.count[row]),
            omitted=int(self.omitted[row]),
            minimum=self.minimum[row].copy(),
            maximum=self.maximum[row].copy(),
            tight_bounds=bool(self.tight_bounds[row]),
            **{name: getattr(self, name).fixed_point(row) for name in WORDS},
        )

    def _place(self, label: Any) -> int | None:
        if not len(self.labels) or np.ndim(label):
            return None
        labels = self.labels
        try:
            found, (code,) = codes_of([label], 1)
            if code < 0 or found.dtype.kind != labels.dtype.kind:
                return None
            if found.dtype.kind in "Mm" and found.dtype != labels.dtype:
                found, labels = in_one_unit([found, labels])
        except (InputError, TypeError, ValueError):  # pandas' hashing of a slice is a TypeError
            return None
        place = int(np.searchsorted(labels, found[0]))
        return place if place < len(labels) and labels[place] == found[0] else None

    def _shown(self) -> str:
        names = ", ".join(str(label) for label in self.labels[:_SHOWN])
        return f"{names} ... ({len(self):,} in all)" if len(self) > _SHOWN else names or "none"

    # -- some of them ------------------------------------------------------------------------

    def select(self, chosen: Any) -> SketchGroup:
        """Some of the groups.

        Parameters
        ----------
        chosen
            A label or labels; a mask, shape (n_groups,), bool; or a function of a label that says
            whether it is wanted.

        Returns
        -------
        group
            In the order of the labels; ``unlabelled`` is 0.

        Raises
        ------
        InputError
            If there is no such group, or the mask is of another length.
        """
        return replace(self._in_order(self._rows(chosen)), unlabelled=0)

    def _in_order(self, rows: Codes) -> SketchGroup:
        arrays: Any = {name: getattr(self, name)[rows] for name in ARRAYS}
        stacks: Any = {name: getattr(self, name).rows(rows) for name in STACKS}
        return replace(self, **arrays, **stacks)

    def _rows(self, chosen: Any) -> Codes:
        if callable(chosen):
            chosen = np.array([bool(chosen(label)) for label in self.labels], dtype=bool)
        mask = np.asarray(chosen)
        if mask.dtype == bool and mask.ndim:
            if mask.shape != (len(self),):
                raise InputError(
                    f"the mask has shape {mask.shape}, and there are {len(self):,} groups."
                )
            return np.flatnonzero(mask)
        wanted = [chosen] if mask.ndim == 0 else list(chosen)
        places = [self._place(label) for label in wanted]
        for place, label in zip(places, wanted, strict=True):
            if place is None:
                raise InputError(f"{self.dim} {label!r} is not there; there are {self._shown()}.")
        return np.unique(np.array(places, dtype=np.intp))

    def merged(self, labels: Any = None) -> Sketch:
        """The sketch of several groups together.

        Parameters
        ----------
        labels
            As :meth:`select` has them; all by default.
        """
        group = self if labels is None else self.select(labels)
        if not len(group):
            return Sketch.empty(self.feature_map)
        return group.merge_by(np.zeros(len(group), dtype=np.int64))._sketch(0)

    def merge_by(
        self, labels: Mapping[Any, Any] | Callable[[Any], Any] | Any, dim: str | None = None
    ) -> SketchGroup:
        """Merge groups to larger ones: speakers to languages, days to months.

        Parameters
        ----------
        labels
            The new label of each group: an array of shape (n_groups,), a mapping from labels, or a
            function of a label.
        dim
            Name of the dimension; as it was when not given.

        Raises
        ------
        InputError
            If a group has no new label, or the number of new labels is another.
        """
        if isinstance(labels, Mapping):
            missing = [label for label in self.labels if label not in labels]
            if missing:
                raise InputError(
                    f"labels has no new label for {self.dim} {missing[0]!s}"
                    + (f" and {len(missing) - 1:,} more." if len(missing) > 1 else ".")
                )
            labels = [labels[label] for label in self.labels]
        elif callable(labels):
            labels = [labels(label) for label in self.labels]
        new, codes = codes_of(labels, len(self), f"the {len(self):,} groups")
        if (codes < 0).any():
            place = int(np.argmax(codes < 0))
            raise InputError(f"{self.dim} {self.labels[place]!s} has no new label: it is missing.")
        group = self
        if (np.diff(codes) < 0).any():
            order = np.argsort(codes, kind="stable")
            group, codes = self._in_order(order), codes[order]
        from dask_sketch.sketching.group_merge import added

        return added([group], new, [codes], self.dim if dim is None else dim)

    # -- the monoid --------------------------------------------------------------------------

    def __add__(self, other: object) -> SketchGroup:
        if not isinstance(other, SketchGroup):
            return NotImplemented
        from dask_sketch.sketching.group_merge import merge_groups

        return merge_groups([self, other])

    def __radd__(self, other: object) -> SketchGroup:
        if isinstance(other, int) and other == 0:  # sum([...]) starts from 0
            return self
        return NotImplemented

    def identical(self, other: SketchGroup) -> bool:
        """Whether the groups and the bits of their sketches are the same, and the maps one."""
        return (
            isinstance(other, SketchGroup)
            and self.feature_map == other.feature_map
            and self.unlabelled == other.unlabelled
            and all(np.array_equal(getattr(self, n), getattr(other, n)) for n in ARRAYS)
            and all(getattr(self, name) == getattr(other, name) for name in STACKS)
        )


# names of what groups have of each kind
WORDS = ("moment_quanta", "first_quanta", "second_quanta")
WEIGHTS = ("weight_quanta", "squared_weight_quanta")
STACKS = (*WORDS, *WEIGHTS)
ROWS = ("count", "omitted", "minimum", "maximum", "tight_bounds")
ARRAYS = ("labels", *ROWS)
