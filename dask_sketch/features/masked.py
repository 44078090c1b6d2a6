"""Masked arrays are refused: what a mask hides would be used like everything else."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_sketch.errors import InputError

_WAYS = {
    "samples": "Give x.filled(np.nan), and nan_policy='omit' to leave those rows out.",
    "weights": "Give weights.filled(0) to leave those rows out of all sums.",
    "rows": "Leave those rows out.",
    "groups": "Give labels for these rows too, or None, and nan_policy='omit' to leave them out.",
}


def require_unmasked(values: Any, kind: str, name: str) -> None:
    """Raise if an array hides values, which NumPy's conversions would silently bring back.

    Parameters
    ----------
    values
        Anything; only masked arrays of NumPy are judged, and those that hide nothing are fine.
    kind
        What it holds: ``"samples"``, ``"weights"``, ``"groups"``, or ``"rows"`` for a model.
    name
        What it is called in the message.

    Raises
    ------
    InputError
        If a value is masked; the message says how many, and what to give instead.

    Examples
    --------
    >>> require_unmasked(np.ma.masked_array([1.0, 2.0]), "weights", "weights")
    """
    # of NumPy only: pandas' arrays have masks too, and turn what is missing into NaN themselves
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(
            f"{name} hold {np.ma.count_masked(values):,} masked values, and what a mask hides "
            f"would be used. {_WAYS[kind]}"
        )
