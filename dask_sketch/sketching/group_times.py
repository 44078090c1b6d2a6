"""Dates and durations as labels: in one unit, where NumPy's conversions would wrap round.

The year 9999, which stands for "never" in many a table, is 1815 in nanoseconds.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_COARSER = ("us", "ms", "s")  # units that hold what nanoseconds do not


def instants(found: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Objects of the standard library or of pandas as dates or durations of NumPy.

    Periods become their first instant. The unit is that of NumPy's own, else the nanosecond, or
    one that holds all.

    Raises
    ------
    TypeError
        If there are other objects among them.
    ValueError
        If one has a time zone, or they fit no unit together.

    Examples
    --------
    >>> instants([datetime.date(2000, 1, 1), datetime.date(9999, 12, 31)])
    array(['2000-01-01T00:00:00.000000', '9999-12-31T00:00:00.000000'],
          dtype='datetime64[us]')
    """
    each = [np.asarray(_instant(label)) for label in found]
    kinds = {one.dtype.kind for one in each}
    if kinds not in ({"M"}, {"m"}):
        raise TypeError("they are not all dates, and not all durations")
    if not all(isinstance(label, np.generic) for label in found):  # those have units of their own
        each.append(np.zeros(0, dtype=f"{kinds.pop()}8[ns]"))
    return np.array(in_one_unit(each)[: len(found)])


def _instant(label: Any) -> Any:
    if getattr(label, "tzinfo", None) is not None:
        raise ValueError(
            f"{label} has a time zone: take it away, by tz_convert(None) for universal time or by "
            "tz_localize(None) for local time"
        )
    label = getattr(label, "start_time", label)  # of a period of pandas
    for name in ("to_datetime64", "to_timedelta64"):  # of pandas, which knows nanoseconds
        if hasattr(label, name):
            return getattr(label, name)()
    if isinstance(label, datetime.timedelta):
        return np.timedelta64(label)
    return np.datetime64(label) if isinstance(label, datetime.date) else label


def in_one_unit(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Arrays of dates, or of durations, in the finest unit of theirs, or a coarser one.

    Raises
    ------
    ValueError
        If there is no unit that holds all of them exactly.

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
        made = [values.astype(unit) for values in arrays]
        back = zip(made, arrays, strict=True)
        if all(np.array_equal(each.astype(values.dtype), values) for each, values in back):
            return made
    raise ValueError("no unit holds all of them exactly: they lie too far apart")
