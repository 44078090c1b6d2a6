"""Warn of intervals of predictions that are too narrow for the groups that are predicted."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
# fraction of the size of the smallest group of a fit, below which groups are warned of
_SMALL = 0.7


def warn_of_small_groups(sizes: Array | None, smallest: float) -> None:
    """Warn of groups that are smaller than those whose errors are known.

    Parameters
    ----------
    sizes
        Effective numbers of samples of the predicted groups, shape (n_groups,), if they are known.
    smallest
        Effective number of samples of the smallest group of the fit; NaN if it is not known.
    """
    if sizes is None:
        return
    small = sizes[sizes < _SMALL * smallest]
    if len(small):
        warn_user(
            f"{len(small):,} of {len(sizes):,} groups are smaller than the groups of the "
            f"fit, such as one of {small.min():,.4g} samples beside {smallest:,.4g} "
            "or more: the errors of such groups are not known, and their intervals are too "
            "narrow. Fit to groups of their sizes as well."
        )


def warn_of_few_labels(n_labels: int | None, level: float) -> None:
    """Warn of intervals for groups of new labels by a fit to groups of few labels.

    Parameters
    ----------
    n_labels
        Number of labels whose groups were left out together; None if each group was left out alone.
    level
        Probability that a target lies outside of its interval.
    """
    needed = math.ceil(1.0 / level - 1.0 - 1e-9)
    if n_labels is not None and n_labels < needed:
        warn_user(
            f"the groups of the fit have {n_labels} labels, and level={level:g} needs {needed:,} "
            "or more: intervals for groups of new labels are too narrow. Fit to groups of more "
            "labels, or give a larger level."
        )
