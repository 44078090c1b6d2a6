"""Dask bags: of two-dimensional blocks, or of records with one sample each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.sources.samples import Samples

if TYPE_CHECKING:
    import dask.bag as db

_RECORDS = 4096  # records gathered into one block

Block = tuple[NDArray[Any], NDArray[Any] | None]


def bag_samples(
    bag: db.Bag, *, columns: Iterable[str] | None = None, weights: Any = None
) -> Samples:
    """Samples from a bag.

    Parameters
    ----------
    bag
        Its elements are arrays of shape (n, n_features), or records: dictionaries, sequences or
        one-dimensional arrays of n_features numbers.
    columns
        Fields of the dictionaries that are features, in this order; by default all but the
        weights, in alphabetical order, which is the same for every partition.
    weights
        Field of the dictionaries, or a bag with the same partitions and elements: one array of
        weights for each block, or one number for each record.

    Raises
    ------
    InputError
        If the weights are neither.
    """
    given = None if weights is None or isinstance(weights, str) else weights
    if given is not None and getattr(given, "npartitions", None) != bag.npartitions:
        raise InputError(
            f"weights of a bag must be the name of a field, or a bag of {bag.npartitions} "
            f"partitions like the samples; got {type(weights).__name__} of "
            f"{getattr(given, 'npartitions', 'no')} partitions."
        )
    return Samples(
        blocks=bag,
        label=f"the bag {bag.name}",
        n_features=None,
        weights=given,
        record_fields=None if columns is None else tuple(columns),
        weight_field=weights if isinstance(weights, str) else None,
    )


def blocks_of_partition(
    items: Iterable[Any],
    weights: Iterable[Any] | None,
    fields: tuple[str, ...] | None,
    weight_field: str | None,
    label: str,
) -> Iterator[Block]:
    """Blocks of rows, with their weights, from the elements of one partition.

    Parameters
    ----------
    items, weights
        Elements, and their weights if those are a bag of their own.
    fields, weight_field
        Fields of dictionaries; see :func:`bag_samples`.
    label
        Name of the partition for messages.

    Yields
    ------
    block, weights
        Shape (n, n_features), and (n,) or none.

    Raises
    ------
    InputError
        If elements are neither blocks nor records, or records differ in length.
    """
    missing = object()
    pairs = ((item, None) for item in items) if weights is None else zip_longest(
        items, weights, fillvalue=missing
    )  # fmt: skip
    names = fields
    rows: list[Any] = []
    shares: list[Any] = []
    for item, share in pairs:
        if item is missing or share is missing:
            raise InputError(f"weights of {label} do not have as many elements as the samples.")
        if isinstance(item, dict):
            if names is None:
                names = tuple(sorted((name for name in item if name != weight_field), key=str))
            try:
                row: Any = [item[name] for name in names]
                if weight_field is not None:
                    share = item[weight_field]
            except KeyError as error:
                raise InputError(f"a record of {label} has no field {error}: {item!r}.") from error
        else:
            row = item
            if weight_field is not None or fields is not None:
                option = f"columns={list(fields)}" if fields else f"weights={weight_field!r}"
                raise InputError(
                    f"{option} names fields, but {label} holds {type(item).__name__}, not "
                    "dictionaries."
                )
            if np.ndim(row) == 2:
                if rows:
                    yield _gathered(rows, shares, label)
                    rows, shares = [], []
                yield np.asarray(row), None if share is None else np.asarray(share)
                continue
        rows.append(row)
        if share is not None:
            shares.append(share)
        if len(rows) == _RECORDS:
            yield _gathered(rows, shares, label)
            rows, shares = [], []
    if rows:
        yield _gathered(rows, shares, label)


def _gathered(rows: list[Any], shares: list[Any], label: str) -> Block:
    try:
        block = np.asarray(rows)
    except ValueError as error:
        raise InputError(f"records of {label} differ in length: {error}.") from error
    if block.ndim != 2:
        raise InputError(
            f"elements of {label} have shape {block.shape[1:]}; give two-dimensional blocks, or "
            "records of one number for each feature."
        )
    return block, np.asarray(shares) if shares else None
