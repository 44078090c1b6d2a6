"""Dask bags as samples: bags of two-dimensional blocks, or of records of one sample each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.sources.group_labels import Groups
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_unmasked

if TYPE_CHECKING:
    import dask.bag as db

_BLOCK_RECORDS = 4096  # records of one block


class Block(NamedTuple):
    """Rows of shape (n, n_features), and weights and labels of shape (n,), or None.

    ``number`` is the number of the chunk along each axis, and ``row`` the number of its first row,
    where a computation needs them. ``columns`` are the names of the features of a table or of
    records.
    """

    rows: NDArray[Any]
    weights: NDArray[Any] | None
    groups: NDArray[Any] | None
    number: tuple[int, ...] | None = None
    row: int = 0
    columns: tuple[Any, ...] | None = None


class Fields(NamedTuple):
    """Names of the fields of dictionaries for features, weight and label.

    ``expected`` are the names of the features of the feature map or model, in its order.
    """

    features: tuple[str, ...] | None
    weight: str | None
    group: str | None
    expected: tuple[str, ...] | None = None


def bag_samples(
    bag: db.Bag, *, columns: Iterable[str] | None = None, weights: Any = None, groups: Any = None
) -> Samples:
    """Make samples of a bag.

    Parameters
    ----------
    bag
        Bag of arrays of shape (n, n_features), or of records: dictionaries, sequences or
        one-dimensional arrays of n_features numbers.
    columns
        Fields of the dictionaries that are features, in this order; by default all but the
        weight and the label, in alphabetical order, which is the same for every partition.
    weights, groups
        Name of a field of the dictionaries, or a bag with the same partitions and elements: one
        array for each block, or one number or label for each record.

    Raises
    ------
    InputError
        If the weights or groups are neither a name nor such a bag.
    """
    weight_field, weight_bag = _field_or_bag(weights, bag, "weights")
    group_field, group_bag = _field_or_bag(groups, bag, "groups")
    return Samples(
        blocks=bag,
        label=f"the bag {bag.name}",
        n_features=None,
        weights=weight_bag,
        groups=None
        if groups is None
        else Groups(group_field or "group", group_bag, field=group_field),
        record_fields=None if columns is None else tuple(columns),
        weight_field=weight_field,
    )


def _field_or_bag(given: Any, bag: db.Bag, argument: str) -> tuple[str | None, Any]:
    if given is None or isinstance(given, str):
        return given, None
    if getattr(given, "npartitions", None) != bag.npartitions:
        raise InputError(
            f"{argument} of type {type(given).__name__} with npartitions="
            f"{getattr(given, 'npartitions', None)}: give the name of a field, or a bag with "
            f"npartitions={bag.npartitions}.",
            parameter=argument,
        )
    return None, given


def blocks_of_partition(
    items: Iterable[Any],
    weights: Iterable[Any] | None,
    groups: Iterable[Any] | None,
    fields: Fields,
    label: str,
) -> Iterator[Block]:
    """Collect the elements of one partition in blocks of rows.

    Parameters
    ----------
    items, weights, groups
        Elements, and their weights and labels if these are separate bags.
    fields
        Names of the fields of dictionaries.
    label
        Name of the partition for messages.

    Yields
    ------
    block
        Rows with their weights and labels.

    Raises
    ------
    InputError
        If elements are neither blocks nor records, or records differ in length.
    """
    held = _Records(label, grouped=groups is not None or fields.group is not None)
    names = fields.features
    columns = fields.expected
    others = tuple(name for name in (fields.weight, fields.group) if name is not None)
    for item, weight, group in _zip_elements(items, weights, groups, label):
        if isinstance(item, dict):
            if names is None:
                names = tuple(sorted((name for name in item if name not in others), key=str))
                names = _in_order_of(fields.expected, names, label)
                columns = _same_columns(columns, names, label)
            try:
                row: Any = [item[name] for name in names]
                if fields.weight is not None:
                    weight = item[fields.weight]
                if fields.group is not None:
                    group = item[fields.group]
            except KeyError as error:
                raise InputError(
                    f"a record of {label} has no field {error}: {str(item)[:200]}. Give all "
                    "fields, or choose others by columns=[...]."
                ) from error
        else:
            row = item
            if fields.features or others:
                options = zip(("columns", "weights", "groups"), fields[:3], strict=True)
                option, name = next(pair for pair in options if pair[1])
                shown = list(name) if isinstance(name, tuple) else repr(name)
                raise InputError(
                    f"{option}={shown} names fields, but {label} has elements of type "
                    f"{type(item).__name__}. Give dictionaries, or leave it out."
                )
            for kind, values in (("samples", row), ("weights", weight), ("groups", group)):
                require_unmasked(values, kind, f"{kind} of {label}")
            if np.ndim(row) == 2:
                columns = _same_columns(columns, _labels_of(row), label)
                yield from _of(columns, held.block())
                yield Block(np.asarray(row), _array(weight), _array(group), columns=columns)
                continue
        if held.add(row, weight, group) == _BLOCK_RECORDS:
            yield from _of(columns, held.block())
    yield from _of(columns, held.block())


def _labels_of(block: Any) -> Iterable[Any] | None:
    """Labels of the columns of a table of pandas, Polars or Arrow; None for other blocks."""
    names: Iterable[Any] | None = getattr(block, "column_names", getattr(block, "columns", None))
    return names


def _of(columns: tuple[Any, ...] | None, blocks: Iterator[Block]) -> Iterator[Block]:
    return (block._replace(columns=columns) for block in blocks)


def _in_order_of(
    expected: tuple[str, ...] | None, names: tuple[str, ...], label: str
) -> tuple[str, ...]:
    """Sort names of fields like the expected features, which must have the same names."""
    if expected is None:
        return names
    if sorted(expected, key=str) != list(names):
        raise InputError(
            f"a record of {label} has the fields {list(names)[:6]}, and the features are "
            f"{list(expected)[:6]}: choose these by columns=[...], or give records that have them.",
            parameter="columns",
        )
    return expected


def _same_columns(
    first: tuple[Any, ...] | None, names: Iterable[Any] | None, label: str
) -> tuple[Any, ...] | None:
    """Names of the features of a table or record; raise InputError if earlier ones differ."""
    if names is None:
        return first
    return same_columns(first, tuple(names), f"a table of {label}")


def same_columns(
    first: tuple[Any, ...] | None, second: tuple[Any, ...] | None, label: str
) -> tuple[Any, ...] | None:
    """Names of columns, if both are the same or one is not known.

    Raises
    ------
    InputError
        If they differ.
    """
    if first is None or second is None:
        return second if first is None else first
    if second != first:
        raise InputError(
            f"{label} has the columns {list(second[:6])}, where {list(first[:6])} are expected: "
            "give all of them the same columns in the same order.",
            parameter="x",
        )
    return first


def _zip_elements(
    items: Iterable[Any], weights: Iterable[Any] | None, groups: Iterable[Any] | None, label: str
) -> Iterator[tuple[Any, Any, Any]]:
    """Iterate over elements, weights and labels together; raise InputError if lengths differ."""
    missing = object()
    beside = {
        name: bag for name, bag in (("weights", weights), ("groups", groups)) if bag is not None
    }
    for item, *others in zip_longest(items, *beside.values(), fillvalue=missing):
        fields = dict(zip(beside, others, strict=True))
        wrong = [name for name in beside if (item is missing) != (fields[name] is missing)]
        if wrong:
            raise InputError(
                f"{wrong[0]} of {label} have another number of elements than the samples: give one "
                "for each.",
                parameter=wrong[0],
            )
        yield item, fields.get("weights"), fields.get("groups")


def _array(values: Any) -> NDArray[Any] | None:
    return None if values is None else np.asarray(values)


class _Records:
    """Records that are collected for a block."""

    def __init__(self, label: str, grouped: bool):
        self._label = label
        self._grouped = grouped
        self._rows: list[Any] = []
        self._weights: list[Any] = []
        self._groups: list[Any] = []

    def add(self, row: Any, weight: Any, group: Any) -> int:
        """Add a record; return the number of records."""
        self._rows.append(row)
        if weight is not None:
            self._weights.append(weight)
        if self._grouped:
            self._groups.append(group)  # also a missing one, which is refused later
        return len(self._rows)

    def block(self) -> Iterator[Block]:
        """Yield the records as one block, if there are any, and remove them."""
        if not self._rows:
            return
        try:
            rows = np.asarray(self._rows)
            if rows.dtype == object:  # None of JSON is a missing number
                rows = np.asarray([[np.nan if v is None else v for v in row] for row in self._rows])
        except ValueError as error:
            raise InputError(
                f"records of {self._label} differ in length ({error}): give records of one length."
            ) from error
        if rows.ndim != 2:
            raise InputError(
                f"elements of {self._label} have shape={rows.shape[1:]}: give two-dimensional "
                "blocks, or records of one number for each feature."
            )
        weights = np.asarray(self._weights) if self._weights else None
        # objects: mixed text and numbers are refused later
        groups = np.array(self._groups, dtype=object) if self._groups else None
        self._rows, self._weights, self._groups = [], [], []
        yield Block(rows, weights, groups)
