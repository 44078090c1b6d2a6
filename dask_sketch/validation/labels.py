"""Validate the group labels of samples, and convert them to codes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from dask_sketch.errors import InputError, MergeError
from dask_sketch.validation.arrays import package_of, require_unmasked
from dask_sketch.validation.compilation import cached_njit

# units for dates beyond the range of nanoseconds: NumPy would convert the year 9999, a common
# placeholder, to the year 1815
_COARSER = ("us", "ms", "s")


def instants(labels: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Convert objects of the standard library or of pandas to dates or durations of NumPy.

    Periods become their first instant. The unit is taken from objects of NumPy; otherwise it is the
    nanosecond, or the finest unit that holds all of them.

    Raises
    ------
    TypeError
        If there are other objects.
    ValueError
        If one has a time zone, or no unit holds all of them.

    Examples
    --------
    >>> instants([datetime.date(2000, 1, 1), datetime.date(9999, 12, 31)])
    array(['2000-01-01T00:00:00.000000', '9999-12-31T00:00:00.000000'],
          dtype='datetime64[us]')
    """
    each = [np.asarray(_instant(label)) for label in labels]
    kinds = {array.dtype.kind for array in each}
    if kinds not in ({"M"}, {"m"}):
        raise TypeError("they are not all dates, and not all durations")
    if not all(
        isinstance(label, np.generic) for label in labels
    ):  # objects of NumPy have units of their own
        each.append(np.zeros(0, dtype=f"{kinds.pop()}8[ns]"))
    return np.array(in_one_unit(each)[: len(labels)])


def _instant(label: Any) -> Any:
    if getattr(label, "tzinfo", None) is not None:
        raise ValueError(
            f"{label} has a time zone: remove it, by tz_convert(None) for universal time or by "
            "tz_localize(None) for local time"
        )
    label = getattr(label, "start_time", label)  # a period of pandas has a start
    for name in ("to_datetime64", "to_timedelta64"):  # methods of pandas, which knows nanoseconds
        if hasattr(label, name):
            return getattr(label, name)()
    if isinstance(label, datetime.timedelta):
        return np.timedelta64(label)
    return np.datetime64(label) if isinstance(label, datetime.date) else label


def in_one_unit(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Convert arrays of dates, or of durations, to their finest unit, or to a coarser one.

    Raises
    ------
    ValueError
        If no unit holds all of them exactly.

    Examples
    --------
    >>> made = in_one_unit([np.array(["2000"], "M8[ns]"), np.array(["9999"], "M8[Y]")])
    >>> [str(each[0])[:10] for each in made]
    ['2000-01-01', '9999-01-01']
    """
    try:
        finest = np.result_type(*arrays)
    except TypeError as error:  # years and days: how long is a year?
        raise ValueError("years or months cannot be compared with shorter units") from error
    for unit in (finest, *(np.dtype(f"{finest.kind}8[{name}]") for name in _COARSER)):
        try:
            converted = [values.astype(unit) for values in arrays]
            back = zip(converted, arrays, strict=True)
            if all(np.array_equal(each.astype(values.dtype), values) for each, values in back):
                return converted
        except OverflowError:  # NumPy 2.5 and later; earlier releases wrap around
            continue
    raise ValueError("no unit holds all of them exactly: they are too far apart")


Labels = NDArray[Any]
Codes = NDArray[np.intp]
_TABLE, _TABLE_PER_SAMPLE = 2**16, 4  # largest range of integers that is counted in a table
_FEW = 1000  # labels that are sorted directly
MISSING = -1  # code of a sample without a label: NaN, NaT, None
_KINDS = {
    "b": "boolean",
    "i": "integers",
    "f": "real numbers",
    "U": "strings",
    "S": "bytes",
    "M": "dates",
    "m": "durations",
}
_OFFER = (
    "Labels are integers, strings, dates, durations, booleans or real numbers, all of one of these "
    "types."
)


def codes_of(groups: Any, n_samples: int, name: str = "samples") -> tuple[Labels, Codes]:
    """Find the distinct labels, and the number of the label of each sample.

    Parameters
    ----------
    groups
        One label for each sample: an array of any shape, or a series or array of pandas.
    n_samples
        Number of samples.
    name
        Name of the samples in messages.

    Returns
    -------
    labels
        Distinct labels, sorted: an array of int64, float64, bool, datetime64, timedelta64, or
        strings.
    codes
        Number of the label of each sample, shape (n_samples,); ``MISSING`` without a label.

    Raises
    ------
    InputError
        If there is another number of labels than samples, or they have another type.

    Examples
    --------
    >>> codes_of(["bob", "ann", None, "bob"], 4)
    (array(['ann', 'bob'], dtype='<U3'), array([ 1,  0, -1,  1]))
    """
    require_unmasked(groups, "groups", f"groups of {name}")
    given = groups
    if package_of(groups) != "pandas":
        # NumPy would convert numbers in a list to strings if there are strings
        given = np.asarray(groups, dtype=object if isinstance(groups, (list, tuple)) else None)
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

    codes, distinct = pd.factorize(given, use_na_sentinel=True)
    labels, numbers = _sorted(_plain(_of_one_kind(np.asarray(distinct), name), name))
    return labels, np.where(codes < 0, MISSING, np.append(numbers, MISSING)[codes])


def _of_one_kind(objects: Labels, name: str) -> Labels:
    """Convert distinct objects, none of them missing, to an array of one type of labels."""
    if objects.dtype.kind != "O":
        return objects
    kinds = {np.asarray(label).dtype.kind if np.ndim(label) == 0 else "O" for label in objects}
    kinds = {"i" if kind == "u" else kind for kind in kinds}
    if kinds and (kinds <= {"O", "M"} or kinds <= {"O", "m"}):
        try:
            return instants(objects)
        except TypeError:
            pass  # there are other objects than dates and durations
        except ValueError as error:
            raise InputError(f"groups of {name}: {error}.") from error
    if len(kinds) > 1 or kinds & {"O", "c", "V"}:
        types = sorted({type(label).__name__ for label in objects})
        raise InputError(f"groups of {name} hold labels of types {', '.join(types)}. {_OFFER}")
    texts = bool(kinds & set("US"))
    if texts and any(label[-1:] in ("\0", b"\0") for label in objects):
        raise InputError(
            f"groups of {name} hold labels that end in a zero byte, which NumPy leaves out, so "
            "that different labels would be one: remove it."
        )
    labels = np.array(objects.tolist() if texts else list(objects))
    if kinds == {"i"} and labels.dtype.kind == "f":  # NumPy converts -1 and 2**63 to floats
        raise _too_large(name)
    return labels


def _plain(labels: Labels, name: str) -> Labels:
    """Convert to one type for each kind, so that the labels of all chunks can be compared."""
    kind = labels.dtype.kind
    if kind == "u" and labels.dtype.itemsize == 8 and labels.max(initial=0) >= 2**63:
        raise _too_large(name)
    if kind in "iu":
        return labels.astype(np.int64, copy=False)
    if kind == "f":
        if labels.dtype.itemsize == 8 and (np.isfinite(labels) & (np.abs(labels) >= 2**53)).any():
            raise InputError(
                f"groups of {name} hold real numbers of 2**53 or more, as which different integers "
                "are equal: tables make real numbers of integers where some are missing. Give "
                "integers with a mask, of the type Int64 of pandas, or strings."
            )
        return labels.astype(np.float64) + 0.0  # no negative zero
    if kind not in _KINDS:
        raise InputError(f"groups of {name} are of type {labels.dtype}. {_OFFER}")
    return labels


def _too_large(name: str) -> InputError:
    return InputError(f"groups of {name} hold labels of 2**63 or more: give them as strings.")


def _sorted(values: Labels) -> tuple[Labels, Codes]:
    """Find the distinct values, sorted, and the number of each value among them.

    Integers in a small range are counted in a table, and strings are hashed: ``pandas.factorize``
    takes 10 and 3 times as long for 10**6 labels of 10**4 groups.
    """
    kind = values.dtype.kind
    if kind in "Mm" or kind == "f":
        missing = np.isnan(values) if kind == "f" else np.isnat(values)
        if missing.any():
            codes = np.full(len(values), MISSING)
            labels, codes[~missing] = _sorted(values[~missing])
            return labels, codes
    if kind in "Mm":
        whole, codes = _sorted(values.view(np.int64))
        return whole.view(values.dtype), codes
    if kind == "i" and len(values):
        lowest, highest = int(values.min()), int(values.max())
        if highest - lowest < max(_TABLE, _TABLE_PER_SAMPLE * len(values)):
            codes = np.empty(len(values), dtype=np.int64)
            return _by_table(values, lowest, np.zeros(highest - lowest + 1, np.int32), codes), codes
    if kind in "US" and values.dtype.itemsize and len(values) > _FEW:
        words = np.ascontiguousarray(values).view(np.uint32 if kind == "U" else np.uint8)
        firsts, codes = _by_hash(words.reshape(len(values), -1))
        labels, numbers = np.unique(values[firsts], return_inverse=True)
        return labels, numbers[codes]
    if kind in "if" and len(values) > _FEW:
        import pandas as pd

        codes, distinct = pd.factorize(values)
        labels, numbers = np.unique(distinct, return_inverse=True)
        return labels, numbers[codes]
    return np.unique(values, return_inverse=True)


@cached_njit(
    types.int64[::1](
        types.Array(types.int64, 1, "A", readonly=True),
        types.int64,
        types.int32[::1],
        types.int64[::1],
    ),
    nogil=True,
)  # labels that were received from another process may be read-only
def _by_table(values, least, ranks, codes):  # type: ignore[no-untyped-def]
    """Write the codes of integers in a small range; return the distinct integers."""
    for value in values:
        ranks[value - least] = 1
    labels = np.empty(ranks.sum(), np.int64)
    n = 0
    for k in range(ranks.size):
        if ranks[k]:
            ranks[k], labels[n] = n, least + k
            n += 1
    for i in range(values.size):
        codes[i] = ranks[values[i] - least]
    return labels


@cached_njit(nogil=True)
def _by_hash(words):  # type: ignore[no-untyped-def]
    """Find the first of each set of equal rows, and the number of its set for each row."""
    n, width = words.shape
    size = 1024
    table = np.full(size, -1, np.int64)
    firsts = np.empty(n, np.int64)
    hashes = np.empty(n, np.uint64)
    codes = np.empty(n, np.int64)
    n_sets = 0
    for i in range(n):
        hashed = np.uint64(14695981039346656037)
        for k in range(width):
            hashed = (hashed ^ np.uint64(words[i, k])) * np.uint64(1099511628211)
        hashed ^= hashed >> np.uint64(29)
        place = np.int64(hashed & np.uint64(size - 1))
        while True:
            code = table[place]
            if code < 0:
                break
            same = hashes[code] == hashed
            for k in range(width):
                same &= words[firsts[code], k] == words[i, k]
            if same:
                break
            place = (place + 1) & (size - 1)
        if code < 0:
            code = n_sets
            table[place], firsts[code], hashes[code] = code, i, hashed
            n_sets += 1
        codes[i] = code
        if 2 * n_sets > size:
            size *= 4
            table = np.full(size, -1, np.int64)
            for code in range(n_sets):
                place = np.int64(hashes[code] & np.uint64(size - 1))
                while table[place] >= 0:
                    place = (place + 1) & (size - 1)
                table[place] = code
    return firsts[:n_sets].copy(), codes


def union(all_labels: Sequence[Labels]) -> tuple[Labels, list[Codes]]:
    """Merge sorted arrays of distinct labels, and find the position of each label.

    Raises
    ------
    MergeError
        If their types differ.

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
            "labels the same type."
        )
    if kinds <= {"M", "m"} and len({labels.dtype for labels in full}) > 1:
        try:
            converted = iter(in_one_unit(full))
        except ValueError as error:
            raise MergeError(
                f"the labels of the groups are {_KINDS[kinds.pop()]}: {error}."
            ) from error
        all_labels = [next(converted) if len(labels) else labels for labels in all_labels]
        full = [labels for labels in all_labels if len(labels)]
    first = full[0]
    if all(np.array_equal(first, labels) for labels in full):
        merged = first
    else:
        # a stable sort merges the sorted parts; np.unique would take ten times as long
        every = np.sort(np.concatenate(full), kind="stable")
        merged = every[np.r_[True, every[1:] != every[:-1]]]
    return merged, [
        np.arange(len(labels))
        if len(labels) == len(merged)
        else np.searchsorted(merged, labels)
        if len(labels)
        else np.zeros(0, dtype=np.intp)
        for labels in all_labels
    ]


def values_by_label(given: Any, labels: Labels, name: str) -> Any:
    """Arrange values that have labels in the order of other labels.

    Parameters
    ----------
    given
        Mapping from labels; series or frame of pandas with labels as its index; array of xarray of
        one dimension with labels as its coordinate; or values without labels.
    labels
        Labels of which there is one value each, shape (n,).
    name
        Name of the argument, for messages.

    Returns
    -------
    values
        List or array in the order of ``labels``; ``given`` itself if it has no labels.

    Raises
    ------
    InputError
        If a label has no value, or several.

    Examples
    --------
    >>> values_by_label({"bob": 2, "ann": 1}, np.array(["ann", "bob"]), "y")
    [1, 2]
    >>> values_by_label([5, 6], np.array(["ann", "bob"]), "y")
    [5, 6]
    """
    if isinstance(given, Mapping):
        keys: Any = labels if labels.dtype.kind in "mM" else labels.tolist()
        absent = np.array([key not in given for key in keys], dtype=bool)
        _require_all(absent, labels, name)
        return [given[key] for key in keys]  # NumPy would convert numbers among strings
    package = package_of(given)
    if package == "xarray" and given.ndim == 1 and given.dims[0] in given.coords:
        given, package = given.to_series(), "pandas"
    if package != "pandas" or not hasattr(given, "index"):
        return given
    index, n = given.index, len(labels)
    if len(index) == n and index.nlevels == 1:
        counted = list(index) == list(range(n)) and len(set(labels.tolist())) < n
        if counted or list(index) == labels.tolist():
            return given.to_numpy()  # same order already: labels of two sides may occur twice
    if index.nlevels > 1 or not index.is_unique:
        raise InputError(
            f"{name} of type {type(given).__name__} has an index with labels that occur twice, or "
            "of several levels: give one value for each label, or an array in the order of the "
            "labels.",
            parameter=name,
        )
    positions = index.get_indexer(labels)
    _require_all(positions < 0, labels, name)
    return given.to_numpy()[positions]


def _require_all(absent: NDArray[np.bool_], labels: Labels, name: str) -> None:
    """Raise for labels without a value."""
    if absent.any():
        others = int(absent.sum()) - 1
        raise InputError(
            f"{name} has no value for the label {labels[int(np.argmax(absent))]!s}"
            + (f" and {others:,} more" if others else "")
            + ": give one for each label, as a mapping or a series with the labels as its index, "
            "or an array in the order of the labels.",
            parameter=name,
        )
