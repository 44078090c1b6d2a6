"""Labels of groups that stand in a Zarr group: for each row, or for each file that rows are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.sources.group_labels import number_labels, sent_table

# attribute of an array of numbers: the dimension whose entries they number; of the climate and
# forecast conventions, section H.2.5 (indexed ragged arrays)
INDEX_OF = "instance_dimension"
NAMES = "names"  # attribute of an array of numbers: what they are numbers of, as speech stores have


@dataclass(frozen=True)
class StoredGroups:
    """Where the label of each row is found.

    Attributes
    ----------
    array
        Of one axis, the rows: labels, or numbers of entries of the table.
    label
        Name for messages.
    table
        Numbers of names, by the numbers in the array, as :func:`sent_table` gives it; or none.
    names
        Those names, sorted; none where there is no table.
    """

    array: zarr.Array[Any]
    label: str
    table: Any = None
    names: NDArray[Any] | None = None


def stored_groups(root: Any, name: str, n_rows: int, label: str) -> StoredGroups:
    """Find labels by their name in a Zarr group.

    Parameters
    ----------
    root
        The group.
    name
        Of an array with a label for each row; or with one for each file, speaker or the like, if
        an array of numbers of those, one for each row, has an attribute ``instance_dimension`` that
        names the dimension.
    n_rows
        Number of samples.
    label
        Name of the samples for messages.

    Raises
    ------
    InputError
        If there is no such array, or it does not fit the rows.
    """
    found = named(root, name, label, "groups")
    shown = f"groups {name!r} of {label}"
    if found.ndim == 1 and found.shape[0] == n_rows:
        names = found.attrs.get(NAMES)
        if names is None or found.dtype.kind not in "iu":
            return StoredGroups(found, shown)
        return _numbers(found, names, shown)
    dims = dimensions(found)
    numbers = [
        array
        for _, array in root.arrays()
        if array.shape == (n_rows,) and (array.attrs.get(INDEX_OF),) == dims
    ]
    if len(numbers) == 1:
        entries = found[:]
        names = found.attrs.get(NAMES)
        if names is not None and found.dtype.kind in "iu":
            entries = np.asarray(names)[entries]
        return _numbers(numbers[0], entries, shown)
    raise InputError(
        f"groups={name!r} has shape {found.shape}, {label} has {n_rows} rows; give one label for "
        f"each row, or an array of numbers of them with the attribute {INDEX_OF!r}."
    )


def _numbers(array: zarr.Array[Any], names: Any, label: str) -> StoredGroups:
    table, different = number_labels(names, f"the names of {label}")
    return StoredGroups(array, label, sent_table(table), different)


def dimensions(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Names of the axes of a stored array, of either format of Zarr; none if it has none."""
    stated: Any = getattr(array.metadata, "dimension_names", None)
    if stated is None:
        stated = array.attrs.get("_ARRAY_DIMENSIONS") or ()
    return tuple(map(str, stated))


def named(root: Any, name: str, label: str, argument: str) -> Any:
    """The array of a group that an argument names.

    Raises
    ------
    InputError
        If there is none.
    """
    if isinstance(root, zarr.Group):
        arrays = dict(root.arrays())
        if name in arrays:
            return arrays[name]
        raise InputError(
            f"{argument}={name!r} is not an array of {label}; it has {', '.join(arrays) or 'none'}."
        )
    raise InputError(f"{argument}={name!r} names an array, but {label} is a single array.")
