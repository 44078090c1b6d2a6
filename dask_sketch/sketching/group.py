"""Sketches of groups of samples, stacked: one for each speaker, day or file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.display.html import card, fields_table, html_table
from dask_sketch.display.text import counted, describe, one_line
from dask_sketch.errors import CapacityError, InputError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import (
    FEATURE_FRACTION,
    FRACTION,
    MAX_TOTAL_WEIGHT,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
)
from dask_sketch.features.kernels.incomplete import pairs_of
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.sketching import artifact
from dask_sketch.sketching.merge import STACKS, SUMS, WEIGHTS, add_groups, merge
from dask_sketch.sketching.missing import StackedMissing
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.storage.artifact import Storable
from dask_sketch.validation.arrays import FrozenDataclass
from dask_sketch.validation.labels import (
    Codes,
    Labels,
    codes_of,
    in_one_unit,
    union,
    values_by_label,
)

if TYPE_CHECKING:
    import xarray as xr

_ARRAYS = ("labels", *artifact.ROWS)
_MAX_SHOWN = 6  # labels in a message


@dataclass(frozen=True, eq=False, repr=False)
class SketchGroup(FrozenDataclass, Storable):
    """One sketch for each group of samples, of one feature map, along one dimension.

    :func:`~dask_sketch.sketch` returns it for ``groups=labels``: ``group["ann"]`` is
    identical to the sketch of Ann's samples alone. Groups can be added like sketches: ``a + b``
    adds sketches of the same label, and has the labels of both.

    Attributes
    ----------
    feature_map
        Feature map whose features are summed.
    labels
        Sorted, distinct labels of the groups, shape (n_groups,); int64, float64, bool, datetime64,
        timedelta64 or strings.
    moment_quanta, weight_quanta, squared_weight_quanta, first_quanta, second_quanta
        Exact sums like those of :class:`Sketch`, with a leading axis of groups.
    count, omitted
        Numbers of samples summed and of rows left out, shape (n_groups,).
    minimum, maximum
        Bounds of each feature, shape (n_groups, n_features).
    tight_bounds
        Flags like that of :class:`Sketch`, shape (n_groups,).
    unlabelled
        Number of rows left out because they had no label.
    dim
        Name of the dimension of groups.
    missing
        Weights of the rows that lack features, if the pass had ``nan_policy="available"`` and there
        were such rows in any group, else None; see
        :class:`~dask_sketch.sketching.missing.StackedMissing`.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> speaker = np.array(["ann", "bob", "eve", "bob"] * 25)
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> group = partial_sketch(x, feature_map, groups=speaker, dim="speaker")
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
    missing: StackedMissing | None = None

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            getattr(self, name).flags.writeable = False
        limit, quanta = MAX_TOTAL_WEIGHT << WEIGHT_FRACTION, self.weight_quanta
        if quanta.largest << quanta.shift > limit:
            for label, weight in zip(self.labels, quanta.integers(), strict=True):
                if weight > limit:
                    raise CapacityError(
                        f"{self.dim}={label!s}: total_weight={weight / (1 << WEIGHT_FRACTION):g} "
                        f"is over the {MAX_TOTAL_WEIGHT:.4g} that a sketch can hold exactly. "
                        f"Multiply "
                        "all weights by one smaller factor."
                    )

    @classmethod
    def empty(cls, feature_map: FeatureMap, dim: str = "group") -> SketchGroup:
        """The neutral element of addition: no groups.

        Parameters
        ----------
        feature_map
            Feature map of the sketches.
        dim
            Name of the dimension of groups.
        """
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
            Mapping from labels to sketches, at least one.
        dim
            Name of the dimension of groups.

        Raises
        ------
        InputError
            If there is no sketch, or one is private: a private sketch is released as it is.
        MergeError
            If two have different feature maps.

        Examples
        --------
        >>> from dask_sketch import FeatureMap
        >>> empty = Sketch.empty(FeatureMap(2, 20, scale=1.0))
        >>> SketchGroup.from_sketches({"a": empty, "b": empty}).count
        array([0, 0])
        """
        if not isinstance(sketches, Mapping):
            raise InputError(
                f"sketches of type {type(sketches).__name__}: give a mapping from labels to "
                "sketches."
            )
        if not sketches:
            raise InputError("sketches={}: give at least one sketch by its label.")
        labels, codes = codes_of(list(sketches), len(sketches), "sketches")
        if len(labels) < len(sketches) or codes.min() < 0:
            raise InputError(
                f"sketches has the labels {list(sketches)[:_MAX_SHOWN]!r}: give distinct labels, "
                "none of them missing."
            )
        unsorted = list(sketches.values())
        parts = [unsorted[position] for position in np.argsort(codes)]
        for part in parts:
            if not isinstance(part, Sketch):
                raise InputError(
                    f"sketches holds an object of type {type(part).__name__}: give sketches; call "
                    ".compute() on lazy ones."
                )
            parts[0].feature_map.require_same(part.feature_map)
            if part.privacy is not None:
                raise InputError(
                    "sketches holds a private sketch: stack sketches of the data, and privatise "
                    "the result of group[label]."
                )
            if part.rounding_error:
                raise InputError(
                    "sketches holds a rounded sketch, and a group holds exact sums: stack the "
                    "exact sketches of the data."
                )
        stacks = {
            name: StackedFixedPoint.from_fixed_point([getattr(part, name) for part in parts])
            for name in SUMS
        }
        weights = {
            name: StackedFixedPoint.from_integers([getattr(part, name) for part in parts])
            for name in WEIGHTS
        }
        arrays = {name: np.array([getattr(part, name) for part in parts]) for name in artifact.ROWS}
        feature_map = parts[0].feature_map
        missing = StackedMissing.stack([part.missing for part in parts], feature_map)
        fields: Any = stacks | weights | arrays
        return cls(feature_map=feature_map, labels=labels, dim=dim, missing=missing, **fields)

    # -- averages in float64 ----------------------------------------------------------------

    @property
    def total_weight(self) -> NDArray[np.float64]:
        """Sums of the weights, shape (n_groups,)."""
        return _as_floats(self.weight_quanta, WEIGHT_FRACTION)

    @property
    def squared_weight(self) -> NDArray[np.float64]:
        """Sums of the squares of the weights, shape (n_groups,)."""
        return _as_floats(self.squared_weight_quanta, SQUARED_FRACTION)

    @property
    def effective_count(self) -> NDArray[np.float64]:
        """Kish's effective sample sizes ``(sum w)**2 / sum w**2``, shape (n_groups,).

        Zero for a group without weight.
        """
        squared = self.squared_weight
        return self.total_weight**2 / np.where(squared > 0, squared, np.inf)

    def characteristic(self, rows: slice = slice(None)) -> NDArray[np.complex128]:
        """Empirical characteristic functions at the frequencies.

        Parameters
        ----------
        rows
            Positions of the groups; all of them take 16 bytes for each group and frequency.

        Returns
        -------
        values
            Shape (n_groups, n_frequencies); NaN for a group without weight, and at frequencies
            that no row of a group observes.
        """
        parts = self.moment_quanta.fixed_point(rows).to_float(FRACTION)
        sums: NDArray[np.complex128] = parts[:, 0] + 1j * parts[:, 1]
        with np.errstate(invalid="ignore"):  # 0 / 0 without weight
            means = sums / self.observed_weight(rows)
        return np.exp(-1j * (self.feature_map.center @ self.feature_map.frequencies)) * means

    def observed_weight(self, rows: slice = slice(None)) -> NDArray[np.float64]:
        """Total weight of the rows of each group that observe each frequency.

        Parameters
        ----------
        rows
            Positions of the groups.

        Returns
        -------
        weights
            Shape (n_groups, n_frequencies), or (n_groups, 1) without missing values.
        """
        if self.missing is None:
            return self.total_weight[rows][:, None]
        return self.missing.observed(self.weight_quanta, rows)[0]

    @property
    def z(self) -> NDArray[np.complex128]:
        """The sketch vectors, shape (n_groups, n_frequencies); see :attr:`Sketch.z`."""
        return self.characteristic() / np.sqrt(self.feature_map.n_frequencies)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of each group, shape (n_groups, n_features); NaN for a group without weight.

        If values are missing, the mean of the observed ones; NaN for a feature without any.
        """
        return self.feature_map.center + self._average(self.first_quanta)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of each feature, shape (n_groups, n_features); NaN for groups without weight."""
        mean, unit = self._average(self.first_quanta), moment_units(self.feature_map)
        return np.maximum(self._average(self.second_quanta) * unit - mean**2, 0.0)

    def _average(self, quanta: StackedFixedPoint) -> NDArray[np.float64]:
        sums = quanta.fixed_point(slice(None)).to_float(FEATURE_FRACTION)
        weights = self.total_weight[:, None]
        if self.missing is not None:
            first, second = pairs_of(self.feature_map.n_features)
            weights = self.missing.observed(self.weight_quanta, slice(None))[1][:, first == second]
        with np.errstate(invalid="ignore"):  # 0 / 0 without weight
            return sums * moment_units(self.feature_map) / weights

    # -- sketches of single groups ----------------------------------------------------------

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Any]:
        labels = self.labels  # dates stay NumPy's: Python's have no nanoseconds
        return iter(labels if labels.dtype.kind in "mM" else labels.tolist())

    def __contains__(self, label: object) -> bool:
        return self._position(label) is not None

    def __getitem__(self, label: Any) -> Sketch:
        return self.sketch_of(label)

    def keys(self) -> list[Any]:
        """Labels, in their order."""
        return list(self)

    def values(self) -> Iterator[Sketch]:
        """Sketches, one after the other."""
        return (sketch for _, sketch in self.items())

    def items(self) -> Iterator[tuple[Any, Sketch]]:
        """Labels and their sketches, one after the other."""
        return ((label, self._sketch(row)) for row, label in enumerate(self))

    def sketch_of(self, label: Any) -> Sketch:
        """Sketch of one group, with the bits of the sketch of its samples alone.

        Parameters
        ----------
        label
            Label of the group.

        Raises
        ------
        InputError
            If there is no such group.
        """
        position = self._position(label)
        if position is None:
            several = isinstance(label, slice) or np.ndim(label) > 0
            raise InputError(
                f"{self.dim}={label!r}: there is no such group; there are "
                f"{self.brief_labels()}, of dtype {self.labels.dtype}."
                + (" For several groups, use select() or merged()." if several else "")
            )
        return self._sketch(position)

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
            missing=None if self.missing is None else self.missing.of(row),
            **{name: getattr(self, name).fixed_point(row) for name in SUMS},
        )

    def _position(self, label: Any) -> int | None:
        """Row of a label, or None."""
        if not len(self.labels) or np.ndim(label):
            return None
        labels = self.labels
        try:
            distinct, (code,) = codes_of([label], 1)
            if code < 0 or distinct.dtype.kind != labels.dtype.kind:
                return None
            if distinct.dtype.kind in "Mm" and distinct.dtype != labels.dtype:
                distinct, labels = in_one_unit([distinct, labels])
        except (InputError, TypeError, ValueError):  # pandas raises TypeError for a slice
            return None
        position = int(np.searchsorted(labels, distinct[0]))
        return position if position < len(labels) and labels[position] == distinct[0] else None

    def brief_labels(self) -> str:
        """The first few labels as text, for messages."""
        names = ", ".join(str(label) for label in self.labels[:_MAX_SHOWN])
        return f"{names} ... ({len(self):,} in all)" if len(self) > _MAX_SHOWN else names or "none"

    # -- selection and merges ---------------------------------------------------------------

    def select(self, chosen: Any) -> SketchGroup:
        """Some of the groups.

        Parameters
        ----------
        chosen
            A label or several; a mask, shape (n_groups,), bool, or a series of pandas with labels
            as its index; or a function from a label to bool.

        Returns
        -------
        group
            Chosen groups in the order of the labels; ``unlabelled`` is 0.

        Raises
        ------
        InputError
            If there is no such group, or the mask has another length.
        """
        return replace(self._in_order(self._rows(chosen)), unlabelled=0)

    def _in_order(self, rows: Codes) -> SketchGroup:
        arrays: Any = {name: getattr(self, name)[rows] for name in _ARRAYS}
        stacks: Any = {name: getattr(self, name).rows(rows) for name in STACKS}
        missing = None if self.missing is None else self.missing.rows(rows)
        return replace(self, missing=missing, **arrays, **stacks)

    def _rows(self, chosen: Any) -> Codes:
        if callable(chosen):
            chosen = np.array([bool(chosen(label)) for label in self.labels], dtype=bool)
        mask = np.asarray(chosen)
        if mask.dtype == bool and mask.ndim:
            mask = np.asarray(values_by_label(chosen, self.labels, "chosen"))
        if mask.dtype == bool and mask.ndim:
            if mask.shape != (len(self),):
                raise InputError(
                    f"chosen is a mask of shape {mask.shape}: give one of shape ({len(self)},)."
                )
            return np.flatnonzero(mask)
        labels = [chosen] if mask.ndim == 0 else list(chosen)
        positions = [self._position(label) for label in labels]
        for position, label in zip(positions, labels, strict=True):
            if position is None:
                raise InputError(
                    f"{self.dim}={label!r}: there is no such group; there are "
                    f"{self.brief_labels()}, of dtype {self.labels.dtype}."
                )
        return np.unique(np.array(positions, dtype=np.intp))

    def merged(self, labels: Any = None) -> Sketch:
        """Sketch of the samples of several groups together.

        Parameters
        ----------
        labels
            Groups, as for :meth:`select`; all by default.
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
            New label of each group: an array of shape (n_groups,), a mapping or series of pandas
            from labels, or a function of a label.
        dim
            Name of the dimension of the result; by default the name in this group.

        Raises
        ------
        InputError
            If a group has no new label, or the number of new labels differs.
        """
        if callable(labels):
            labels = [labels(label) for label in self.labels]
        else:
            labels = values_by_label(labels, self.labels, "labels")
        is_vector = isinstance(labels, (list, tuple)) or getattr(labels, "ndim", 0) == 1
        if is_vector and len(labels) != len(self):
            raise InputError(
                f"labels has {counted(len(labels), 'new label')} for {len(self):,} groups: give "
                "one for each group."
            )
        new, codes = codes_of(labels, len(self), f"the {len(self):,} groups")
        if (codes < 0).any():
            label = self.labels[int(np.argmax(codes < 0))]
            raise InputError(
                f"labels has no new label for {self.dim}={label!s}: give one for each group."
            )
        group = self
        if (np.diff(codes) < 0).any():
            order = np.argsort(codes, kind="stable")
            group, codes = self._in_order(order), codes[order]
        arrays = add_groups([group], [codes], len(new))
        return replace(self, labels=new, dim=self.dim if dim is None else dim, **arrays)

    @classmethod
    def _add(cls, parts: list[SketchGroup]) -> SketchGroup:
        labels, positions = union([part.labels for part in parts])
        return cls(
            feature_map=parts[0].feature_map,
            labels=labels,
            unlabelled=sum(part.unlabelled for part in parts),
            dim=parts[0].dim,
            **add_groups(parts, positions, len(labels)),
        )

    def __add__(self, other: object) -> SketchGroup:
        if not isinstance(other, SketchGroup):
            return NotImplemented
        return merge([self, other])

    def __radd__(self, other: object) -> SketchGroup:
        if isinstance(other, int) and other == 0:  # sum([...]) starts from 0
            return self
        return NotImplemented

    def identical(self, other: SketchGroup) -> bool:
        """Whether labels, sums, bounds and the digest of the feature map are the same."""
        return (
            isinstance(other, SketchGroup)
            and self.feature_map == other.feature_map
            and self.unlabelled == other.unlabelled
            and all(np.array_equal(getattr(self, n), getattr(other, n)) for n in _ARRAYS)
            and all(getattr(self, name) == getattr(other, name) for name in STACKS)
            and self.missing == other.missing
        )

    # -- storage and description ------------------------------------------------------------

    def to_xarray(self) -> xr.Dataset:
        """Sketch vectors, counts, weights, means and bounds as a labelled dataset, in float64."""
        return artifact.group_dataset(self)

    def _stored(self) -> tuple[xr.Dataset, str, int]:
        return artifact.stored_group(self), artifact.GROUP, artifact.group_version(self)

    @property
    def nbytes(self) -> int:
        """Size of all sums, counters, bounds, counts and labels in bytes."""
        counters = 0 if self.missing is None else self.missing.nbytes
        return counters + sum(getattr(self, name).nbytes for name in (*STACKS, *_ARRAYS))

    def __sizeof__(self) -> int:
        # Dask's memory accounting calls this
        return object.__sizeof__(self) + self.feature_map.__sizeof__() + self.nbytes

    def as_dict(self) -> dict[str, object]:
        """Numbers of groups, of samples and of rows left out, and values of the feature map."""
        return {
            "kind": "sketches of groups",
            "dim": self.dim,
            "n_groups": len(self),
            "count": int(self.count.sum()),
            "omitted": int(self.omitted.sum()),
            "unlabelled": self.unlabelled,
            "observed_features": self.missing and self.merged().observed.feature_fractions,
            "bytes": self.nbytes,
            "feature_map": self.feature_map.as_dict(),
        }

    def __repr__(self) -> str:
        values = self.as_dict()
        del values["kind"], values["feature_map"]
        return f"<SketchGroup: {one_line(values)}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        values = self.as_dict()
        del values["kind"], values["feature_map"]
        order = np.argsort(-self.count, kind="stable")
        largest = [[self.labels[i], f"{self.count[i]:,}"] for i in order]
        return card(
            "SketchGroup",
            describe(values),
            summary=f"{len(self):,} sketches, one for each {self.dim}, of "
            f"{int(self.count.sum()):,} samples",
            more={
                f"largest of {self.dim}": html_table([self.dim, "samples"], largest),
                "feature map": fields_table(describe(self.feature_map.as_dict())),
            },
        )


def _as_floats(quanta: StackedFixedPoint, fraction: int) -> NDArray[np.float64]:
    return np.array([number / (1 << fraction) for number in quanta.integers()], dtype=np.float64)
