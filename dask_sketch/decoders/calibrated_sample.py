"""Calibrate the weights of sample rows to a sketch of all rows, by the regression estimator.

The rows are a sample, the sketch holds sums over the whole data. Weights are changed as little as
possible such that the weighted features of the rows agree with the sketch. Any estimator that takes
weights of samples can learn from the rows then, with a smaller sampling error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from dask_sketch.display.text import one_line
from dask_sketch.errors import InputError
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
_ROWS_PER_CONSTRAINT = 4  # real constraints beyond this fraction of the rows fit sampling noise
_MAX_FREQUENCIES = 500  # frequencies used at most: the Gram matrix has twice as many columns
_HELD_OUT = 0.2  # fraction of the used frequencies that choose the ridge
# rounding error of products of features, relative to the mean
_ROUNDING = 32.0 * float(np.finfo(np.float32).eps)
# multiple of chance, and frequencies held out that are compared with it
_UNLIKE, _MIN_HELD = 4.0, 10
_RIDGES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # ridges, relative to the mean squared feature
_MAX_RATIO = 5.0  # largest calibrated weight, relative to the base weight
_SEARCH_PASSES, _FINAL_PASSES = 3, 12  # passes over the rows at most
_TOLERANCE = 1e-4  # change of the weights that ends the passes, as a fraction of their sum
_MOMENT_RIDGE = 0.01  # ridge of first and second moments, relative to that of the frequencies
_SUM_RIDGE = 1e-3  # ridge of the sum of the weights, which is normalised in the end
_BLOCK_BYTES = 16 << 20
# Phase of a standard deviation, above which features in float32 are not precise: with 60,000 rows
# of counts and a flag, the sketch was wrong by 8e-4 at phases of 3e4, and by 1e-7 at phases of 10.
_MAX_PHASE = 300.0
_KEPT_BYTES = 96 << 20  # 20,000 rows with the most columns, which are then computed once


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedSample:
    """Rows with weights that agree with a sketch of all rows.

    Attributes
    ----------
    rows
        Rows of the sample, shape (n_rows, n_features), in the units of the data.
    weights
        Calibrated weights, shape (n_rows,), not negative, summing to one.
    base_weights
        Weights before calibration, shape (n_rows,), summing to one.
    ridge
        Ridge that was chosen, relative to the mean squared feature; infinity if the base weights
        are kept.
    n_frequencies
        Number of frequencies whose sketch values the weights are calibrated to.
    n_held_out
        Number of those that were left out while the ridge was chosen.
    discrepancy_before, discrepancy_after
        Mean squared difference ``|sum_i w_i exp(-i omega_j . x_i) - psi_j|**2`` over the held-out
        frequencies, with the base weights and with weights calibrated to the other frequencies.
        NaN if there are none.
    """

    rows: NDArray[np.floating]
    weights: Array
    base_weights: Array
    ridge: float
    n_frequencies: int
    n_held_out: int
    discrepancy_before: float
    discrepancy_after: float

    @property
    def effective_count(self) -> float:
        """Kish's effective number of rows, ``1 / sum_i w_i**2``."""
        return 1.0 / float(self.weights @ self.weights)

    def as_dict(self) -> dict[str, object]:
        """Sizes, ridge and diagnostics."""
        return {
            "kind": "calibrated sample",
            "n_rows": len(self.rows),
            "n_features": self.rows.shape[1],
            "effective_count": self.effective_count,
            "ridge": self.ridge,
            "n_frequencies": self.n_frequencies,
            "n_held_out": self.n_held_out,
            "discrepancy_before": self.discrepancy_before,
            "discrepancy_after": self.discrepancy_after,
        }

    def __repr__(self) -> str:
        values = self.as_dict()
        del values["kind"]
        return f"<CalibratedSample: {one_line(values)}>"


def precise_frequencies(sketch: Sketch) -> NDArray[np.intp]:
    """Indices of the frequencies whose features are precise in the precision of the sketch.

    In float32, features of large phases have errors that rows with few distinct values share. The
    variances of such values are nearly zero, so that ``design`` draws very large frequencies.

    Parameters
    ----------
    sketch
        Sketch of rows.

    Returns
    -------
    indices
        Indices in order, at least one.
    """
    feature_map = sketch.feature_map
    if feature_map.dtype != "float32":
        return np.arange(feature_map.n_frequencies)
    phases = np.sqrt(sketch.extent[1]) @ np.abs(feature_map.frequencies)
    return np.flatnonzero(phases <= max(_MAX_PHASE, phases.min()))


class RowFeatures:
    """Differences between the features of rows and the sketch, block by block, in float32.

    Columns are real and imaginary parts of the features of some frequencies, times the square root
    of two, then first and second moments in units of the sketch's standard deviations, and last
    the constant one, which fixes the sum of the weights.

    Parameters
    ----------
    rows
        Rows, shape (n_rows, n_features), in the units of the data.
    sketch
        Sketch of all rows.
    chosen
        Indices of the frequencies.
    keep
        Whether blocks are computed once and kept, if they take no more than 96 MiB.
    """

    def __init__(
        self,
        rows: NDArray[np.floating],
        sketch: Sketch,
        chosen: NDArray[np.intp],
        *,
        keep: bool = False,
    ):
        self.rows = rows
        feature_map = sketch.feature_map
        self._center = feature_map.center
        self._cycles = feature_map.frequencies[:, chosen] / (2.0 * np.pi)
        phase = feature_map.center @ feature_map.frequencies[:, chosen]
        values = sketch.characteristic[chosen] * np.exp(1j * phase)  # relative to the center
        self._real = values.real.astype(np.float32)
        self._imaginary = values.imag.astype(np.float32)
        self._moments: tuple[Array, Array] | None = None
        if sketch.privacy is None:
            deviation = np.sqrt(sketch.variance)
            varies = deviation > 0.0
            self._moments = sketch.mean, np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0)
        self.n_frequencies = len(chosen)
        self.n_columns = 2 * len(chosen) + (2 * rows.shape[1] if self._moments else 0) + 1
        self._keep = keep and 4 * len(rows) * self.n_columns <= _KEPT_BYTES
        self._kept: list[tuple[slice, NDArray[np.float32]]] = []

    def blocks(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Rows and columns of each block, which is not to be changed; valid until the next one."""
        if self._keep and not self._kept:
            self._kept = list(self._computed())
        return iter(self._kept) if self._keep else self._computed()

    def _computed(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        n_rows, m = len(self.rows), self.n_frequencies
        size = max(min(_BLOCK_BYTES // (8 * max(self.n_columns, 1)), n_rows), 1)
        columns = np.empty((n_rows if self._keep else size, self.n_columns), np.float32)
        for first in range(0, n_rows, size):
            part = slice(first, min(first + size, n_rows))
            rows = np.asarray(self.rows[part], dtype=np.float64)
            block = columns[part] if self._keep else columns[: len(rows)]
            if m:
                cycles = (rows - self._center) @ self._cycles
                cycles -= np.rint(cycles)
                angle = (2.0 * np.pi * cycles).astype(np.float32)
                np.cos(angle, out=block[:, :m])
                np.sin(angle, out=block[:, m : 2 * m])
                block[:, :m] -= self._real
                block[:, m : 2 * m] += self._imaginary
                block[:, : 2 * m] *= np.float32(np.sqrt(2.0))
            if self._moments is not None:
                mean, scale = self._moments
                standard = (rows - mean) * scale
                d = rows.shape[1]
                block[:, 2 * m : 2 * m + d] = standard
                block[:, 2 * m + d : -1] = (standard**2 - (scale > 0)) / np.sqrt(2.0)
            block[:, -1] = 1.0
            yield part, block

    def ridge_weights(self) -> Array:
        """Relative ridge of each column, shape (n_columns,)."""
        ridge = np.full(self.n_columns, _MOMENT_RIDGE)
        ridge[: 2 * self.n_frequencies] = 1.0
        ridge[-1] = _SUM_RIDGE
        return ridge

    def gram(self, weights: Array) -> Array:
        """Sum of weights times outer products of the columns, shape (n_columns, n_columns)."""
        total = np.zeros((self.n_columns, self.n_columns))
        roots = np.sqrt(weights).astype(np.float32)
        for part, block in self.blocks():
            scaled = block * roots[part, None]
            total += scaled.T @ scaled
        return total

    def weigh(self, base: Array, multipliers: Array) -> tuple[Array, Array]:
        """Weights of several multipliers, and weighted sums of the columns.

        Parameters
        ----------
        base
            Base weights, shape (n_rows,).
        multipliers
            Multipliers ``lambda``, shape (n_columns, n_solutions).

        Returns
        -------
        weights, sums
            Weights, shape (n_rows, n_solutions), and sums, shape (n_columns, n_solutions).
        """
        slopes = multipliers.astype(np.float32)
        weights = np.empty((len(base), slopes.shape[1]))
        sums = np.zeros(slopes.shape)
        for part, block in self.blocks():
            ratio = (block @ slopes).astype(np.float64)
            ratio += 1.0
            np.clip(ratio, 0.0, _MAX_RATIO, out=ratio)
            weights[part] = base[part, None] * ratio
            sums += block.T @ weights[part].astype(np.float32)
        return weights, sums


def _solve(
    constraints: RowFeatures,
    base: Array,
    gram: Array,
    columns: NDArray[np.intp],
    ridges: Array,
    n_passes: int,
) -> tuple[Array, Array]:
    """Weights for several ridges, and the weighted sums of all columns.

    Minimises ``sum_i (w_i - b_i)**2 / (2 b_i)`` plus the squared differences of the columns over
    twice their ridge, for weights between zero and a multiple of the base weights. The dual
    function of this quadratic programme is concave, and its curvature is largest without any
    bound that holds. So steps of Newton's method with that curvature never decrease it (a
    minorise-maximise algorithm, Hunter and Lange 2004), and the first one is the regression
    estimator.
    """
    weights_of = constraints.ridge_weights()[columns]
    inner = gram[np.ix_(columns, columns)].astype(np.float32)
    mean = float(np.mean(gram.diagonal()[:-1])) if len(gram) > 1 else 1.0
    penalties = mean * ridges * weights_of[:, None]
    factors = [_factor(inner, penalty, mean) for penalty in penalties.T]
    multipliers = np.zeros((constraints.n_columns, len(ridges)))
    target = np.zeros((constraints.n_columns, 1))
    target[-1] = 1.0
    weights, sums = constraints.weigh(base, multipliers)
    for _ in range(n_passes):
        gradient = (sums - target)[columns] + penalties * multipliers[columns]
        for k, factor in enumerate(factors):
            step = linalg.cho_solve(factor, gradient[:, k].astype(np.float32), check_finite=False)
            multipliers[columns, k] -= step
        before = weights
        weights, sums = constraints.weigh(base, multipliers)
        if np.abs(weights - before).sum(axis=0).max() < _TOLERANCE:
            break
    return weights, sums


def _factor(inner: NDArray[np.float32], penalty: Array, mean: float) -> Any:
    """Cholesky factor of the curvature; LinAlgError if its smallest pivot may be rounding."""
    matrix = inner.copy()
    matrix[np.diag_indices_from(matrix)] += penalty.astype(np.float32)
    factor = linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    if not factor[0].diagonal().min() ** 2 > _ROUNDING * mean:
        raise linalg.LinAlgError("the products of the features are singular")
    return factor


def calibrate(sketch: Sketch, *, seed: int = 0) -> CalibratedSample:
    """Calibrate the sample of rows that a sketch carries to the sketch.

    Rows with these weights stand for all rows in any estimator that takes weights of samples.

    Parameters
    ----------
    sketch
        Sketch with a sample.
    seed
        Seed of the choice of frequencies, ``>= 0``.

    Returns
    -------
    sample
        Rows and weights. A sample that holds all rows keeps their weights.

    Raises
    ------
    InputError
        If the sketch has no sample, or is empty.

    References
    ----------
    Deville, Särndal (1992), Calibration estimators in survey sampling, Journal of the American
    Statistical Association 87(418).

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> x = np.random.default_rng(0).normal(size=(20_000, 2))
    >>> sketch = partial_sketch(x, FeatureMap(2, 50, scale=1.0), sample=1000)
    >>> sample = calibrate(sketch)
    >>> bool(np.abs(sample.weights @ sample.rows - x.mean(axis=0)).max() < 1e-3)
    True
    """
    if not isinstance(sketch, Sketch):
        raise InputError(f"sketch of type {type(sketch).__name__}: give a Sketch with random rows.")
    sample = sketch.sample
    if sample is None or not len(sample):
        raise InputError(
            f"sketch has no sample of rows (count={sketch.count}): give sample=20_000 to "
            "dask_sketch.sketch, which keeps rows beside the sums."
        )
    if sketch.holds_all_rows:
        return _uncalibrated(np.asarray(sample.rows), sample.weights)
    return calibrate_rows(sample.rows, sample.weights, sketch, seed=seed)


def calibrate_rows(
    rows: ArrayLike, weights: ArrayLike, sketch: Sketch, *, seed: int = 0
) -> CalibratedSample:
    """Calibrate the weights of sample rows to a sketch.

    Parameters
    ----------
    rows
        Rows of the sample, shape (n_rows, n_features), in the units of the data.
    weights
        Base weights, shape (n_rows,), not negative: inverse inclusion probabilities times the
        weights of the rows, up to a factor.
    sketch
        Sketch of all rows, the sample among them.
    seed
        Seed of the choice of frequencies, ``>= 0``.

    Returns
    -------
    sample
        Rows and calibrated weights.

    Raises
    ------
    InputError
        If a shape or value is invalid, or the sketch is empty.
    """
    values, base = _checked(rows, weights, sketch)
    precise = precise_frequencies(sketch)
    used = min(len(precise), _MAX_FREQUENCIES, len(values) // (2 * _ROWS_PER_CONSTRAINT))
    chosen = np.random.default_rng(seed).permutation(precise)[:used]
    n_held = round(_HELD_OUT * used)
    if not n_held:
        return _uncalibrated(values, base)
    constraints = RowFeatures(values, sketch, chosen, keep=True)
    before = constraints.weigh(base, np.zeros((constraints.n_columns, 1)))[1]
    held_out = np.concatenate([np.arange(n_held), used + np.arange(n_held)])
    start = float((before[held_out] ** 2).sum() / (2 * n_held))
    gram = constraints.gram(base)
    for smallest in range(len(_RIDGES)):  # columns that depend on each other need larger ridges
        ridges = np.array(_RIDGES[smallest:])
        try:
            calibrated = _calibrated(constraints, base, gram, ridges, held_out, start)
        except linalg.LinAlgError:
            continue
        chance = float(gram.diagonal()[:-1].mean() * (base @ base))
        ratio = min(calibrated.discrepancy_after, start) / chance
        if sketch.sample is not None and ratio > _UNLIKE and n_held >= _MIN_HELD:
            _warn_of_rows(sketch, len(values), ratio)
        return calibrated
    _warn_of_rows(sketch, len(values))
    return _uncalibrated(values, base, used, n_held)


def _calibrated(
    constraints: RowFeatures,
    base: Array,
    gram: Array,
    ridges: Array,
    held_out: NDArray[np.intp],
    start: float,
) -> CalibratedSample:
    """Calibrate weights with the ridge that frequencies which are left out choose."""
    values, used, n_held = constraints.rows, constraints.n_frequencies, len(held_out) // 2
    everything = np.arange(constraints.n_columns)
    others = np.setdiff1d(everything, held_out)
    candidates, sums = _solve(constraints, base, gram, others, ridges, _SEARCH_PASSES)
    totals = candidates.sum(axis=0)
    discrepancies = (sums[held_out] ** 2).sum(axis=0) / (2 * n_held) / totals**2
    best = int(np.argmin(discrepancies))
    if not discrepancies[best] < start:
        return _uncalibrated(values, base, used, n_held, start)
    chosen = ridges[best : best + 1]
    try:
        solution, _ = _solve(constraints, base, gram, everything, chosen, _FINAL_PASSES)
    except linalg.LinAlgError:  # singular with the frequencies that were held out
        solution = candidates[:, best : best + 1]
    final = solution[:, 0] / solution.sum()
    return CalibratedSample(
        values, final, base, float(ridges[best]), used, n_held, start, float(discrepancies[best])
    )


def _warn_of_rows(sketch: Sketch, n_rows: int, ratio: float | None = None) -> None:
    """Warn of rows that hardly vary, or differ from the sketch by a multiple of chance."""
    kind, reason = "random rows of the sketch", "many of them are alike"
    if sketch.sample is None:
        kind = "rows simulated from the pilot of the feature map"
    elif sketch.missing is not None:
        reason = f"complete rows are unlike those with missing values, or {reason}"
    problem = "do not vary as the sums of the sketch do, so they are not calibrated to them"
    if ratio is not None:
        problem = f"differ from its sums by {ratio:.3g} times the square that chance explains"
    warn_user(
        f"the {n_rows:,} {kind} {problem}: {reason}. See diagnose(), and "
        "decode(method='cl-ompr') for a fit to the sums."
    )


def equally_weighted(rows: NDArray[np.floating]) -> CalibratedSample:
    """Rows of equal weights, such as simulated ones, that are not calibrated.

    Parameters
    ----------
    rows
        Rows, shape (n_rows, n_features).

    Examples
    --------
    >>> equally_weighted(np.zeros((4, 2))).weights
    array([0.25, 0.25, 0.25, 0.25])
    """
    return _uncalibrated(rows, np.full(len(rows), 1.0 / len(rows)))


def _uncalibrated(
    rows: NDArray[np.floating],
    base: Array,
    n_frequencies: int = 0,
    n_held: int = 0,
    discrepancy: float = float("nan"),
) -> CalibratedSample:
    return CalibratedSample(
        rows, base, base, float("inf"), n_frequencies, n_held, discrepancy, discrepancy
    )


def _checked(
    rows: ArrayLike, weights: ArrayLike, sketch: Sketch
) -> tuple[NDArray[np.floating], Array]:
    values = np.asarray(rows)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    base = np.asarray(weights, dtype=np.float64)
    d = sketch.feature_map.n_features
    if values.ndim != 2 or values.shape[1] != d or not len(values):
        raise InputError(f"rows has shape {values.shape}: give (n_rows, {d}), as in the sketch.")
    if base.shape != values.shape[:1]:
        raise InputError(f"weights has shape {base.shape}: give ({len(values)},).")
    if not (np.isfinite(base).all() and (base >= 0).all() and base.sum() > 0):
        raise InputError(
            f"weights must be finite, not negative and not all zero: smallest {base.min():g}, sum "
            f"{base.sum():g}."
        )
    if not np.isfinite(values).all():
        raise InputError("rows holds values that are not finite: leave those rows out.")
    return values, base / base.sum()
