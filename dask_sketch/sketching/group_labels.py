"""Labels of samples: which groups there are, and which group each sample is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError, MergeError

Labels = NDArray[Any]
Codes = NDArray[np.intp]

MISSING = -1  # code of a sample without a label: NaN, NaT, None
_KINDS = {
    "b": "boolean",
    "i": "whole numbers",
    "f": "real numbers",
    "U": "strings",
    "S": "bytes",
    "M": "dates",
    "m": "durations",
}
_OFFER = (
    "Labels are whole numbers, strings, dates, durations, booleans or real numbers, all of one of "
    "these kinds."
)


def codes_of(groups: Any, n_samples: int, name: str = "samples") -> tuple[Labels, Codes]:
    """The labels that occur, and for each sample the number of its own among them.

    Parameters
    ----------
    groups
        One label for each sample: an array of any shape, or a series or array of pandas.
    n_samples
        How many samples there are.
    name
        Of the samples, for messages.

    Returns
    -------
    labels
        Sorted, each once: an array of int64, float64, bool, datetime64, timedelta64, or strings.
    codes
        Shape (n_samples,); ``MISSING`` where there is no label.

    Raises
    ------
    InputError
        If there is another number of labels than samples, or they are of another kind.

    Examples
    --------
    >>> codes_of(["bob", "ann", None, "bob"], 4)
    (array(['ann', 'bob'], dtype='<U3'), array([ 1,  0, -1,  1]))
    """
    given = groups if _of_pandas(groups) else np.asarray(groups)
    if given.size != n_samples:
        raise InputError(
            f"groups of {name} have {given.size} labels, the samples have {n_samples} rows; give "
            "one label for each row."
        )
    if isinstance(given, np.ndarray):
        given = given.reshape(-1)
        if given.dtype.kind not in "OT":
            return _sorted(_plain(given, name))
        given = given.astype(object)
    import pandas as pd

    codes, found = pd.factorize(given, use_na_sentinel=True)
    labels, numbers = _sorted(_plain(_of_one_kind(np.asarray(found), name), name))
    return labels, np.where(codes < 0, MISSING, np.append(numbers, MISSING)[codes])


def _of_pandas(groups: Any) -> bool:
    return type(groups).__module__.partition(".")[0] == "pandas"


def _of_one_kind(found: Labels, name: str) -> Labels:
    """Different objects, none of them missing, as an array of a kind of labels."""
    if found.dtype.kind != "O":
        return found
    kinds = {np.asarray(label).dtype.kind if np.ndim(label) == 0 else "O" for label in found}
    kinds = {"i" if kind == "u" else kind for kind in kinds}
    if kinds == {"O"}:  # dates of the standard library and of pandas
        try:
            return np.array(found, dtype="M8[ns]")
        except (TypeError, ValueError):
            pass
    if len(kinds) > 1 or kinds & {"O", "c", "V"}:
        types = sorted({type(label).__name__ for label in found})
        raise InputError(f"groups of {name} hold labels of types {', '.join(types)}. {_OFFER}")
    return np.array(found.tolist() if kinds & set("US") else list(found))


def _plain(labels: Labels, name: str) -> Labels:
    """In one type for each kind, so that the labels of all chunks can be compared."""
    kind = labels.dtype.kind
    if kind == "u" and labels.dtype.itemsize == 8 and labels.max(initial=0) >= 2**63:
        raise InputError(f"groups of {name} hold labels of 2**63 and more: give them as strings.")
    if kind in "iu":
        return labels.astype(np.int64, copy=False)
    if kind == "f":
        return labels.astype(np.float64) + 0.0  # zero has no sign
    if kind not in _KINDS:
        raise InputError(f"groups of {name} are of type {labels.dtype}. {_OFFER}")
    return labels


def _sorted(values: Labels) -> tuple[Labels, Codes]:
    if values.dtype.kind in "fMm":
        missing = np.isnan(values) if values.dtype.kind == "f" else np.isnat(values)
        if missing.any():
            codes = np.full(len(values), MISSING)
            labels, codes[~missing] = np.unique(values[~missing], return_inverse=True)
            return labels, codes
    return np.unique(values, return_inverse=True)


def union(all_labels: Sequence[Labels]) -> tuple[Labels, list[Codes]]:
    """The labels that occur in any of some sorted arrays, and where those of each are among them.

    Raises
    ------
    MergeError
        If they are of different kinds.

    Examples
    --------
    >>> union([np.array([1, 5]), np.array([3, 5])])
    (array([1, 3, 5]), [array([0, 2]), array([1, 2])])
    """
    full = [labels for labels in all_labels if len(labels)] or [all_labels[0]]
    kinds = {labels.dtype.kind for labels in full}
    if len(kinds) > 1:
        names = " and ".join(sorted(_KINDS[kind] for kind in kinds))
        raise MergeError(
            f"the labels of the groups are {names}: they cannot be sorted together. Give all "
            "labels as one kind."
        )
    first = full[0]
    if all(np.array_equal(first, labels) for labels in full):
        merged = first
    else:
        merged = np.unique(np.concatenate(full))
    return merged, [
        np.arange(len(labels))
        if len(labels) == len(merged)
        else np.searchsorted(merged, labels)
        if len(labels)
        else np.zeros(0, dtype=np.intp)
        for labels in all_labels
    ]
