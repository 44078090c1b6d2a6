"""Minimisation within bounds by L-BFGS-B, as both Step 1 and Step 5 use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, minimize

from dask_sketch.decoders.families import Array

_PAIRS = 20  # corrections kept; 10, 30 and 60 ended neither lower nor sooner on average


@dataclass(frozen=True)
class Effort:
    """When a descent stops.

    Attributes
    ----------
    tolerance
        Smallest decrease of one iteration, relative to the larger of the value and one.
    n_iterations
        Most iterations; twice as many evaluations.
    """

    tolerance: float
    n_iterations: int


@dataclass(frozen=True)
class Descent:
    """Where a descent ended, with the value there, and why."""

    x: Array
    value: float
    converged: bool
    message: str


def descend_within(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    lower: Array,
    upper: Array,
    effort: Effort,
) -> Descent:
    """Minimise a function of many variables from its value and gradient.

    Parameters
    ----------
    function
        Value, in a unit that makes one small, and gradient.
    start, lower, upper
        Starting point and bounds, shape (n,); bounds may be infinite.
    effort
        When to stop.

    Returns
    -------
    descent
        A point within the bounds, its value no higher than the start's.
    """
    found = minimize(
        function,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(lower, upper),
        options={
            "maxiter": effort.n_iterations,
            "maxfun": 2 * effort.n_iterations,
            "ftol": effort.tolerance,
            "gtol": 1e-9,
            "maxcor": _PAIRS,
        },
    )
    return Descent(
        x=np.clip(np.asarray(found.x), lower, upper),
        value=float(found.fun),
        converged=bool(found.success),
        message=str(found.message),
    )
