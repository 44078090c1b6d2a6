"""Values too rare for the random rows of two sketches to show their noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.tables import feature_title
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
MAX_ROWS = 4000  # random rows of a side, from which the noise is estimated
_REACH = 5.0  # standard deviations beyond the random rows
_ROUNDING = 1e-6  # relative rounding error of the random rows, which are of single precision
_MIN_EFFECTIVE = 20  # effective number of random rows below which a variance is not trusted
_KEEP_ALL = (
    f"sketches that keep all their rows, with sample=n_samples up to {MAX_ROWS:,}, or sketches of "
    "groups with compare(). There the level is exact."
)


def with_rare_rows(
    first: Sketch, second: Sketch, rows: Array, masses: Array
) -> tuple[Array, Array]:
    """Add a row for each bound of the data that is far from all random rows.

    The mass of the row supplies the variance that the random rows lack, within bounds that follow
    from the numbers of rows.

    Parameters
    ----------
    first, second
        Sketches of both sides.
    rows, masses
        Random rows of both sides, shape (n_rows, n_features), and their masses.

    Returns
    -------
    rows, masses
        Rows, and their masses, which sum to one.
    """
    masses = masses / masses.sum()
    center = masses @ rows
    variance = masses @ (rows - center) ** 2
    counts = np.array([first.effective_count, second.effective_count])
    fractions = counts / counts.sum()
    mean = fractions @ [first.mean, second.mean]
    exact = fractions @ [
        first.variance + (first.mean - mean) ** 2,
        second.variance + (second.mean - mean) ** 2,
    ]
    added, added_masses = [], []
    low, high = _bounds(first, second)
    for bounds, outer in ((low, rows.min(axis=0)), (high, rows.max(axis=0))):
        away = np.abs(bounds - outer) > _REACH * np.sqrt(variance) + _ROUNDING * np.abs(bounds)
        for feature in np.flatnonzero(away):
            row = center.copy()
            row[feature] = bounds[feature]
            lacking = (exact - variance)[feature] / (row - center)[feature] ** 2
            added.append(row)
            added_masses.append(np.clip(lacking, 1.0 / counts.sum(), 3.0 / len(rows)))
    if not added:
        return rows, masses
    masses = np.concatenate([masses, added_masses])
    return np.concatenate([rows, added]), masses / masses.sum()


def _bounds(first: Sketch, second: Sketch) -> tuple[Array, Array]:
    """Bounds of each feature in both sketches together, shape (n_features,)."""
    return np.minimum(first.minimum, second.minimum), np.maximum(first.maximum, second.maximum)


def warn_of_rare_values(
    first: Sketch, second: Sketch, rows: Array, masses: Array, noise_masses: Array
) -> None:
    """Warn of values too rare for the random rows to show their noise.

    Rows at the bounds of the data replace rare rows that are not among the random rows, see
    :func:`with_rare_rows`. This is exact only for rare values of one size.

    Parameters
    ----------
    first, second
        Sketches of both sides.
    rows, masses, noise_masses
        Random rows of both sides, shape (n_rows, n_features), and their masses in means and in the
        noise.
    """
    names = first.feature_map.feature_names
    low, high = _bounds(first, second)
    noun, remedy = "variance", _KEEP_ALL
    if noise_masses is not masses:  # rows with weights are not permuted
        noun, remedy = "noise", "sketches of groups with compare(), or lighter weights."
    for feature, column in enumerate(rows.T):
        squares = noise_masses * (column - masses @ column) ** 2
        variance = float(squares.sum())
        n_effective = variance**2 / max(float(squares @ squares), np.finfo(float).tiny)
        reach = _REACH * math.sqrt(variance) + _ROUNDING * max(
            abs(low[feature]), abs(high[feature])
        )
        if low[feature] < column.min() - reach or high[feature] > column.max() + reach:
            why = f"has values from {low[feature]:.4g} to {high[feature]:.4g}, and the random rows "
            why += f"only from {column.min():.4g} to {column.max():.4g}"
        elif 0.0 < n_effective < _MIN_EFFECTIVE:
            why = f"owes its {noun} to about {n_effective:.2g} of {len(rows):,} random rows"
        else:
            continue
        warn_user(
            f"{feature_title(feature, names)} {why}: rare values make differences by chance larger "
            f"than these rows show, so the p-value may be too small. Compare {remedy}"
        )
        return
