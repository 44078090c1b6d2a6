"""Expectations of functions from weighted rows, with the features of a sketch as control variates.

The sketch holds the means of its features over all rows. A function is regressed on these features
over a few rows. The expectation of the fitted part is known from the sketch, so that only the
expectation of the residuals is estimated from the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from dask_sketch.decoders.calibrated_sample import RowFeatures, precise_frequencies
from dask_sketch.errors import InputError
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.latent_class_mixture import LatentClassMixture
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
_MAX_ROWS = 20_000
# factor on the number of draws of a model, of which those in the range of the data are taken
_MORE = 4
_MAX_FREQUENCIES = 500  # frequencies used at most: two columns each
_ROWS_PER_COLUMN = 10  # rows for each column at least
_HELD_OUT = 0.2  # fraction of the frequencies that choose the ridge
_MAX_LEVERAGE = 0.9
# With draws of a model, the covariance of features whose correlation the model lacks was within
# 1.96 errors in 22 to 28 of 30 repeats (three cases) with a factor of 1, and in 28 or 29 with 2 or
# 3; in two other cases in 32 and 34 of 40 with 2, and in 38 with 3.
_SHARES = 3.0
_MAX_CELLS = 4096  # pairs of levels whose shares are solved for
_FEATURE_ERROR = 1e-7  # error of a feature in float32, for each level: phases grow with the codes
_RIDGES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # ridges, relative to the mean variance of the columns
_QUANTILE = 0.975  # quantile at which errors that few rows decide are widened
# Effective number of random rows near a point, below which a mean has no error: of 44 points with 2
# to 5, 98 % were within 1.96 errors, of 69 with fewer 28 %.
_MIN_NEAR = 3.0
_POINTS = 256  # points at once
_WIDTH = 64  # points of a block are padded to a multiple: rounding may depend on their number


class MeanEstimate(NamedTuple):
    """Estimates with their standard errors.

    Attributes
    ----------
    value
        Estimates, a number or an array.
    standard_error
        Standard errors, ``>= 0``, of the same shape.
    """

    value: Array
    standard_error: Array


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Weighted rows that represent the data.

    Attributes
    ----------
    rows
        Rows, shape (n_rows, n_features).
    weights
        Weights, shape (n_rows,), summing to one.
    inclusion
        Probability that a row of the data is included, shape (n_rows,); None for draws of a model.
    """

    rows: Array
    weights: Array
    inclusion: Array | None

    @property
    def is_exact(self) -> bool:
        """Whether these are all rows of the data."""
        return self.inclusion is not None and bool((self.inclusion >= 1.0).all())


def weighted_rows(
    sketch: Sketch,
    model: GaussianMixture | LatentClassMixture | None,
    seed: int,
    *,
    within: bool = True,
) -> WeightedRows:
    """Choose the rows that represent the data: random rows of a sketch, or draws of a model.

    Parameters
    ----------
    sketch
        Sketch of the data.
    model
        Model of the data. Without one, the random rows of the sketch are taken, or draws of the
        mixture of pilot rows in its feature map if the sketch has no rows.
    seed
        Seed of the draws.
    within
        Whether to keep only draws of a mixture in the range of the data, if there are enough of
        them.

    Returns
    -------
    weighted
        At most 20,000 rows with their weights.

    Raises
    ------
    InputError
        If there are neither rows nor a model.
    """
    sample = sketch.sample
    if model is None and sample is not None and len(sample):
        resized = sample.resized(_MAX_ROWS) if len(sample) > _MAX_ROWS else sample
        inclusion = np.minimum(1.0, resized.importance * resized.threshold)
        return WeightedRows(np.asarray(resized.rows, dtype=np.float64), resized.weights, inclusion)
    pilot = sketch.feature_map.pilot
    mixture = None if pilot is None or model is not None else pilot.mixture
    categories = sketch.feature_map.categories
    if mixture is not None and categories is None:
        model = GaussianMixture(mixture.weights, mixture.means, mixture.variances)
    elif mixture is not None and categories is not None and mixture.probabilities is not None:
        product = mixture.product_of(categories)
        assert product is not None
        model = LatentClassMixture(
            product.weights, product.probabilities, categories, product.means, product.variances
        )
    if model is None:
        raise InputError(
            "model=None: the sketch has no random rows, and its feature map no mixture of pilot "
            "rows. Give a mixture, such as decode(sketch, n_components)."
        )
    if isinstance(model, LatentClassMixture):
        rows = model.sample_codes(_MAX_ROWS, seed=seed)
    else:
        rows = model.sample(_MORE * _MAX_ROWS, seed=seed)
        inside = ((rows >= sketch.minimum) & (rows <= sketch.maximum)).all(axis=1)
        rows = (rows[inside] if within and inside.sum() >= _MAX_ROWS else rows)[:_MAX_ROWS]
    return WeightedRows(rows, np.full(len(rows), 1.0 / len(rows)), None)


def exact_fractions(sketch: Sketch, features: Sequence[int]) -> MeanEstimate | None:
    """Compute the share of the rows with each level, or each pair of levels, from a sketch.

    The shares solve linear equations. Each frequency that uses no other features gives two of them,
    for the real and the imaginary part. For one column with all of its characters, the solution is
    the inverse discrete Fourier transform.

    Parameters
    ----------
    sketch
        Sketch of a feature map with categories.
    features
        Numbers of one or two categorical features.

    Returns
    -------
    estimate
        Shares of the rows, shape (n_levels,) or (n_levels, n_other_levels), and their errors, by
        rounding in the pass and by noise that was added. None if the frequencies do not determine
        the shares, or there are more than 4096 pairs.
    """
    feature_map = sketch.feature_map
    assert feature_map.categories is not None
    shape = tuple(len(feature_map.categories.levels[k] or ()) for k in features)
    size = math.prod(shape)
    used = feature_map.frequencies != 0.0
    is_within = used[list(features)].any(axis=0) & (
        used[list(features)].sum(axis=0) == used.sum(axis=0)
    )
    chosen = np.flatnonzero(is_within)
    if size > _MAX_CELLS or 2 * len(chosen) + 1 < size:
        return None
    cells = np.indices(shape).reshape(len(shape), -1)
    characters = np.exp(-1j * (cells.T @ feature_map.frequencies[list(features)][:, chosen])).T
    values = sketch.characteristic[chosen]
    matrix = np.concatenate([characters.real, characters.imag, np.ones((1, size))])
    right = np.concatenate([values.real, values.imag, [1.0]])
    with one_blas_thread():
        inverse, rank = linalg.pinv(matrix, rtol=1e-4, return_rank=True)
    if rank < size:
        return None
    rounding = _FEATURE_ERROR * max(10, *shape)
    deviation = math.sqrt(sketch.added_variance + rounding**2)
    error = deviation * np.linalg.norm(inverse[:, :-1], axis=1)
    fractions = np.clip(inverse @ right, 0.0, 1.0)
    return MeanEstimate(fractions.reshape(shape), error.reshape(shape))


class FeatureRegression:
    """Regression of functions on the features of a sketch.

    This is the regression estimator of Deville and Särndal (1992), section 1, for any ridge. The
    slopes for the residual of a row leave that row out, so that the estimate has hardly any bias if
    the rows are random rows of the data.

    For draws of a model, the error does not follow from their number, since the model is not the
    data. It is estimated from frequencies that were left out: the mean of each is estimated like
    the mean of any function, and compared with its value in the sketch. The errors of other
    functions are assumed to be the same multiple of the deviation of their residuals. A function
    may look in the direction in which the model is wrong, as products of features do where it lacks
    a correlation. The share of a function's own difference that is left is therefore assumed to be
    three times the share that is left of the differences between model and data at those
    frequencies.

    Parameters
    ----------
    weighted
        Rows that represent the data.
    sketch
        Sketch of all rows.
    seed
        Seed of the choice of frequencies.

    Attributes
    ----------
    weighted
        Rows that represent the data.
    ridge
        Ridge that was chosen, relative to the mean variance of the columns.
    model_error
        Errors of draws of a model, in deviations of the residuals; None for random rows.
    model_share
        Errors of draws of a model, in differences between model and data.
    """

    def __init__(self, weighted: WeightedRows, sketch: Sketch, seed: int):
        self.weighted = weighted
        self.model_error: float | None = None
        self.model_share = 0.0
        self.ridge = math.inf
        if weighted.is_exact:
            return
        precise, n_rows = precise_frequencies(sketch), len(weighted.rows)
        used = max(min(len(precise), _MAX_FREQUENCIES, n_rows // (2 * _ROWS_PER_COLUMN)), 1)
        chosen = np.random.default_rng(seed).permutation(precise)[:used]
        with one_blas_thread():
            self._features = RowFeatures(weighted.rows, sketch, chosen)
            self._bias = self._means(weighted.weights)
            gram = self._features.gram(weighted.weights) - np.outer(self._bias, self._bias)
            # the constant column has no covariances but rounding, which a small ridge would amplify
            gram[-1] = gram[:, -1] = 0.0
            self._fit(gram)

    def _means(self, weights: Array) -> Array:
        total = np.zeros(self._features.n_columns)
        for part, block in self._features.blocks():
            total += weights[part] @ block
        return total

    def _fit(self, gram: Array) -> None:
        used = self._features.n_frequencies
        scale = float(np.mean(gram.diagonal()[:-1]))
        n_held = max(round(_HELD_OUT * used), 1)
        held_out = np.concatenate([np.arange(n_held), used + np.arange(n_held)])
        others = np.setdiff1d(np.arange(len(gram)), held_out)
        inner, cross = gram[np.ix_(others, others)], gram[np.ix_(others, held_out)]
        coefficients = []
        for ridge in _RIDGES:
            slopes = _solve(inner, ridge * scale, cross)
            errors = self._bias[held_out] - self._bias[others] @ slopes
            left = np.einsum("ij,ij->j", slopes, inner @ slopes - 2.0 * cross)
            left += gram.diagonal()[held_out]
            coefficients.append((float(np.mean(errors**2)), float(np.mean(left)), ridge))
        squared, left, self.ridge = min(coefficients)
        if self.weighted.inclusion is None:
            self.model_error = math.sqrt(squared / left) if left > 0 else 0.0
            differences = float(np.mean(self._bias[held_out] ** 2))
            self.model_share = math.sqrt(squared / differences) if differences > 0 else 0.0
        matrix = gram.copy()
        matrix[np.diag_indices_from(matrix)] += self.ridge * scale
        self._factor = linalg.cho_factor(matrix, lower=True, check_finite=False)
        self._scale, regression_weights = self._row_factors()
        self._error_weights = self.weighted.weights
        if self.weighted.inclusion is not None:  # errors of draws of a model are calibrated
            self._error_weights = regression_weights

    def _row_factors(self) -> tuple[Array, Array]:
        """Factors of the residuals of each row, both of shape (n_rows,).

        The first ones are residuals of a fit without the row over those of the fit. The others are
        weights with which the values of the rows make the estimate. Residuals count by them
        (Särndal, Swensson and Wretman 1989, The weighted residual technique): they are large where
        the random rows have too few rows far out.
        """
        lower = np.tril(self._factor[0])
        inverse = linalg.solve_triangular(lower, np.eye(len(lower)), lower=True).astype(np.float32)
        shift = linalg.cho_solve(self._factor, self._bias, check_finite=False)
        leverage, factors = np.empty((2, len(self.weighted.rows)))
        for part, block in self._features.blocks():
            white = (block - self._bias.astype(np.float32)) @ inverse.T
            leverage[part] = self.weighted.weights[part] * np.einsum("ij,ij->i", white, white)
            factors[part] = 1.0 - (block.astype(np.float64) - self._bias) @ shift
        weights = np.asarray(self.weighted.weights * factors)
        return 1.0 / (1.0 - np.minimum(leverage, _MAX_LEVERAGE)), weights

    def estimate(self, values: Array) -> MeanEstimate:
        """Means of functions over all rows of the data.

        Parameters
        ----------
        values
            Values of the functions for the weighted rows, shape (n_rows, n_functions).

        Returns
        -------
        estimate
            Means over the data and their standard errors, shape (n_functions,). The errors are zero
            if the weighted rows are all rows of the data.
        """
        weights = self.weighted.weights
        with one_blas_thread():
            means = weights @ values
            if self.weighted.is_exact:
                return MeanEstimate(means, np.zeros_like(means))
            centred = values - means
            moments = np.zeros((self._features.n_columns, values.shape[1]))
            for part, block in self._features.blocks():
                weighted = weights[part, None] * centred[part]
                moments += block.T.astype(np.float64) @ weighted
            slopes = linalg.cho_solve(self._factor, moments, check_finite=False)
            shift = self._bias @ slopes
            centred += shift
            factors = (self._error_weights * self._scale) ** 2
            pulls = weights * (self._scale - 1.0)  # rows with large residuals attract the fit
            if self.weighted.inclusion is not None:  # the row itself is one of those it represents
                factors *= 1.0 - self.weighted.inclusion
                pulls *= 1.0 - self.weighted.inclusion
            squares, fourth, correction = np.zeros((3, values.shape[1]))
            for part, block in self._features.blocks():
                residuals = centred[part] - block.astype(np.float64) @ slopes
                squares += factors[part] @ residuals**2
                fourth += factors[part] ** 2 @ residuals**4
                correction += pulls[part] @ residuals
            if self.model_error is not None:  # the error of a model is the root of a mean square
                squares *= len(weights) * self.model_error**2
                squares += (_SHARES * self.model_share * shift) ** 2
        return MeanEstimate(
            means - shift + correction, np.sqrt(squares) * _widening(squares, fourth)
        )


def _widening(squares: Array, fourth: Array) -> Array:
    """Ratio of the quantile of Student's t to the normal quantile, where few rows decide the error.

    A function that grows far out has its largest residuals in a handful of rows. Such rows are
    missing in the sum of squares unless they are among the random rows. The degrees of freedom are
    half of the effective number of squares. With them, the covariances of normal and Poisson rows,
    and of two clusters, were outside of 1.96 errors in 3 to 17 % of 60 to 100 repeats each, and the
    covariances of exponential rows in 9 to 27 %; without them in 7 to 33 %, and in 31 to 45 %.
    """
    degrees = np.maximum(0.5 * squares**2 / np.maximum(fourth, 1e-300), 1.0)
    return np.asarray(special.stdtrit(degrees, _QUANTILE) / special.ndtri(_QUANTILE))


def _solve(gram: Array, penalty: float, moments: Array) -> Array:
    matrix = gram.copy()
    matrix[np.diag_indices_from(matrix)] += penalty
    factor = linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    return np.asarray(linalg.cho_solve(factor, moments, check_finite=False))


class LocalMeans:
    """Kernel densities and kernel regression over all rows, with a Gaussian kernel around points.

    Parameters
    ----------
    regression
        Regression on the features of the sketch, with its rows.
    features
        Numbers of the features in which distances are measured, shape (n_given,).
    bandwidths
        Standard deviations of the kernel, shape (n_given,).
    target
        Number of the feature whose mean is regressed.
    """

    def __init__(
        self,
        regression: FeatureRegression,
        features: NDArray[np.intp],
        bandwidths: Array,
        target: int = 0,
    ):
        self._regression = regression
        self._bandwidths = bandwidths
        rows = regression.weighted.rows
        self._center = rows[:, features].mean(axis=0)  # the expanded square needs small values
        self._rows = (rows[:, features] - self._center) / bandwidths
        self._target = rows[:, target]
        self._peak = float(np.exp(-np.log(bandwidths * np.sqrt(2.0 * np.pi)).sum()))

    def _kernel(self, points: Array) -> Array:
        """Kernel of all rows around points, padded with points of zeros, (n_rows, n_padded)."""
        scaled = np.zeros((-len(points) // _WIDTH * -_WIDTH, len(self._bandwidths)))
        scaled[: len(points)] = (points - self._center) / self._bandwidths
        squares = np.sum(self._rows**2, axis=1)[:, None] + np.sum(scaled**2, axis=1)
        squares -= 2.0 * (self._rows @ scaled.T)
        return np.asarray(np.exp(-0.5 * np.maximum(squares, 0.0)))

    def density(self, points: Array) -> Array:
        """Kernel densities and their standard errors, shape (n_points, 2)."""
        points = np.asarray(points, dtype=np.float64)
        out = np.full((len(points), 2), np.nan)
        finite = np.flatnonzero(np.isfinite(points).all(axis=1))
        for start in range(0, len(finite), _POINTS):
            block = finite[start : start + _POINTS]
            estimate = self._regression.estimate(self._kernel(points[block]))
            value, error = (column[: len(block)] for column in estimate)
            out[block, 0] = self._peak * np.maximum(value, 0.0)
            out[block, 1] = self._peak * error
        return out

    def _count_near(self, kernel: Array) -> Array:
        """Effective numbers of rows near the points, infinite if these are all rows."""
        weighted = self._regression.weighted
        if weighted.is_exact:
            return np.full(kernel.shape[1], np.inf)
        masses = weighted.weights[:, None] * kernel
        squares = (masses**2).sum(axis=0)
        return np.asarray(masses.sum(axis=0) ** 2 / np.maximum(squares, np.finfo(float).tiny))

    def regress(self, points: Array) -> Array:
        """Means of the target near points and their standard errors, shape (n_points, 2).

        NaN where fewer than three random rows are near, since one row has no error of its own.
        """
        out = np.full((len(points), 2), np.nan)
        middle = self._target.mean()
        for start in range(0, len(points), _POINTS):
            block = slice(start, start + _POINTS)
            kernel = self._kernel(points[block])
            weight = self._regression.estimate(kernel)[0]
            few = self._count_near(kernel) < _MIN_NEAR
            total = self._regression.estimate(kernel * (self._target - middle)[:, None])[0]
            with np.errstate(divide="ignore", invalid="ignore"):
                mean = np.where((weight > 0.0) & ~few, middle + total / weight, np.nan)
                # error of a ratio, to first order
                kernel *= self._target[:, None] - np.nan_to_num(mean)
                error = self._regression.estimate(kernel)[1] / weight
            error[np.isnan(mean)] = np.nan
            out[block] = np.column_stack([mean, error])[: len(out[block])]
        return out
