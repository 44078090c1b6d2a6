"""Test whether two sketches are of one distribution, for independent rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import feature_scales, halves
from dask_sketch.distributions.testing.paired_features import compare_paired
from dask_sketch.distributions.testing.permutations import (
    adjusted_p_values,
    checked_number,
    contrasts,
    p_values,
    permutations_of,
    require_memory,
    require_small_p_values,
)
from dask_sketch.distributions.testing.rare_values import warn_of_rare_values, with_rare_rows
from dask_sketch.distributions.testing.result import FeatureDifference, TwoSampleTest
from dask_sketch.distributions.testing.row_noise import (
    MIN_ROWS,
    ObservedDifference,
    added_noise,
    centred,
    effect_of_rows,
    features_of,
    max_rows,
    observe,
    require_sketch,
    resized,
    result_of_rows,
)
from dask_sketch.distributions.testing.statistics import MAX_BAND, ROW_RIDGES, bands
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.missing import refuse_missing
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.tables import feature_labels, require_common_names
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]

_MANY = 100.0  # expected draws of a row from which their number is nearly normal
_MIN_EFFECTIVE = 400  # effective number of weighted random rows from which the noise is trusted
_EQUAL = 1e-6  # relative difference of counts that is rounding
_COPIES = 4  # copies of the coefficients and of the simulated features of a draw in memory
_FEW_ROWS = 20  # effective number of rows from which a variance along a direction is trusted
_UNSEEN_ROWS = 4.0  # rows whose variance is the least one along a direction with fewer rows
_ROUNDING = 1e-13  # variance along a direction, relative to that of a row, that is rounding


def compare_rows(
    first: Sketch,
    second: Sketch,
    *,
    tolerance: float = 0.0,
    level: float = 0.05,
    n_draws: int | None = None,
    seed: int = 0,
) -> TwoSampleTest:
    """Test whether two sketches are of one distribution, if their rows are independent.

    Neighbouring rows of recordings, sensors or days are not independent: a difference would nearly
    always be found. Sketch such data in groups, and use
    :func:`~dask_sketch.distributions.compare`.

    If both sketches carry all of their rows, from 20 to 4,000 without weights, these rows are
    permuted between the sketches, and the level is exact. Otherwise each sketch needs 200 random
    rows or more. The noise of the difference is then simulated: rows are drawn for each side from
    one half of the random rows, as many as the side has, and the other half whitens the
    differences. The level is nearly exact, unless few rows carry most of the noise. Then there is
    a warning. Weights may depend on the values of the rows, as in importance sampling.

    Sketches without random rows, and private sketches, can be tested with the feature maps of
    ``design(x, task="comparison", distribution="gaussian-pairs")``, whose sketches hold the
    covariance of the features of their base frequencies exactly. The test compares the base
    frequencies, whose discrepancy it returns, and normal differences of this covariance. Weights
    must not depend on the values of the rows then.

    Parameters
    ----------
    first, second
        Sketches of one feature map, each with random rows or pairs of frequencies.
    tolerance
        Largest discrepancy that does not matter, from 0 to 2.
    level
        Probability of finding a difference where there is none, in (0, 1).
    n_draws
        Number of permutations or simulated differences, ``>= 1``. The default is 999, or more if
        the level is so small that its p-values need more.
    seed
        Seed of the permutations or simulated differences, ``>= 0``.

    Returns
    -------
    test
        P-value, size of the difference with its interval, and the features that differ.

    Raises
    ------
    InputError
        If an argument is out of range, a sketch has missing values, or neither random rows nor
        pairs of frequencies, or too few rows.
    MergeError
        If the feature maps differ.

    References
    ----------
    Gretton, Fukumizu, Harchaoui, Sriperumbudur (2009), A fast, consistent kernel two-sample test.
    Sutherland (2016), section 6.2.

    Examples
    --------
    >>> import dask_sketch as ds
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(500, 2))
    >>> feature_map = ds.design(x, task="comparison")
    >>> before, same, wider = (
    ...     ds.sketch(scale * rng.normal(size=(500, 2)), feature_map) for scale in (1.0, 1.0, 1.3)
    ... )
    >>> compare_rows(before, same).is_different, compare_rows(before, wider).is_different
    (False, True)
    """
    level, tolerance, n_draws, seed = _checked_arguments(tolerance, level, n_draws, seed)
    require_sketch("first", first)
    require_sketch("second", second)
    with one_blas_thread():
        if first.feature_map.distribution == "gaussian-pairs":
            return compare_paired(
                first, second, tolerance=tolerance, level=level, n_draws=n_draws, seed=seed
            )
        return _compare(first, second, tolerance, level, n_draws, seed)


def compare_model(
    sketch: Sketch,
    model: GaussianMixture,
    *,
    n_fitted: float | None = None,
    tolerance: float = 0.0,
    level: float = 0.05,
    n_draws: int | None = None,
    seed: int = 0,
) -> TwoSampleTest:
    """Test whether the rows of a sketch come from a mixture, if the rows are independent.

    The noise of the sketch is simulated from rows of the mixture, so that the sketch needs no
    random rows.

    Parameters
    ----------
    sketch
        Sketch of rows that the model was not fitted to: with a model decoded from the same rows the
        p-value is too large.
    model
        Mixture with as many features as the sketch.
    n_fitted
        Number of independent rows that the model was fitted to, ``>= 1``, the effective one where
        they had weights. The errors of its parameters then count as the noise of so many rows,
        which is more than it is after a fit of maximum likelihood: the p-value is no smaller than
        it should be. ``None`` for a mixture that is known: with a fitted one, unless to ten times
        as many rows as the sketch has, the p-value is too small.
    tolerance
        Largest discrepancy that does not matter, from 0 to 2. With many rows no mixture is exact.
    level
        Probability of finding a difference where there is none, in (0, 1).
    n_draws
        Number of simulated differences, ``>= 1``. The default is 999, or more if the level is so
        small that its p-values need more.
    seed
        Seed of the rows and of the simulated differences, ``>= 0``.

    Returns
    -------
    test
        P-value, size of the difference with its interval, and the features that differ. The second
        side is the model, which has no rows.

    Raises
    ------
    InputError
        If an argument is out of range, the sketch is private, has missing values or too few rows,
        or the names of the features of the model are others.

    Examples
    --------
    >>> import dask_sketch as ds
    >>> model = ds.GaussianMixture([0.5, 0.5], [[-2.0], [2.0]], [[1.0], [1.0]])
    >>> feature_map = ds.FeatureMap(1, 50, scale=1.0)
    >>> x = model.sample(1000, seed=0)
    >>> same, wider = (ds.partial_sketch(c * x, feature_map) for c in (1.0, 1.2))
    >>> compare_model(same, model).is_different, compare_model(wider, model).is_different
    (False, True)
    """
    level, tolerance, n_draws, seed = _checked_arguments(tolerance, level, n_draws, seed)
    n = _require_comparable(sketch, model)
    if n_fitted is not None:
        n_fitted = require_number("n_fitted", n_fitted, 1.0, math.inf)
        n = 1.0 / (1.0 / n + 1.0 / n_fitted)
    feature_map = sketch.feature_map
    m = feature_map.n_frequencies
    unit, size = feature_scales(feature_map), max_rows(m)
    require_memory("n_draws", n_draws, 8 * _COPIES * (size + 2 * m))
    with one_blas_thread():
        expected = halves(unit * model.characteristic(feature_map.frequencies))
        rows = _weighted_rows(sketch, expected, size, seed)
        if rows is None:
            rows = _simulated_rows(feature_map, model, expected, size, seed)
        noise, masses = rows.noise, (rows.masses, rows.noise_masses)
        difference = halves(unit * sketch.characteristic) - expected
        added = added_noise(feature_map, sketch)
        rng = np.random.default_rng((seed, 1))
        draws = _noise_of_rows(rng, masses[1], n, n_draws, independent=rows.is_weighted)
        differences = _Differences(draws, math.sqrt(n), False, added * math.sqrt(n))
        mean, variance = model.mean, model.variance
        statistics = _statistics(feature_map, variance, noise, rows.others, difference, differences)
        effect = effect_of_rows(difference, noise, 1.0 / n, added**2)
        sides = (sketch.mean, sketch.variance), (mean, variance)
        features = _moment_differences(
            sides, mean, rows.rows, masses, differences, feature_map.feature_names
        )
    return result_of_rows(
        statistics, effect, features, tolerance, level, n_draws, (sketch.count, 0)
    )


def _require_comparable(sketch: Sketch, model: GaussianMixture) -> float:
    """Validate a sketch and a model, and return the effective number of rows of the sketch."""
    if not isinstance(sketch, Sketch) or not isinstance(model, GaussianMixture):
        raise InputError(
            f"sketch of type {type(sketch).__name__} with model of type {type(model).__name__}: "
            "give a sketch of independent rows, and a GaussianMixture."
        )
    feature_map, n = sketch.feature_map, sketch.effective_count
    refuse_missing("sketch", sketch)
    if sketch.privacy is not None or n < MIN_ROWS or feature_map.n_features != model.n_features:
        raise InputError(
            f"sketch has an effective count of {n:,.0f}, {feature_map.n_features} features and "
            f"privacy={sketch.privacy is not None}: give one of {MIN_ROWS} rows or more of "
            f"{model.n_features} features, without the noise of privacy."
        )
    require_common_names({"sketch": feature_map.feature_names, "model": model.feature_names})
    return n


@dataclass(frozen=True, eq=False)
class _RowsOfModel:
    """Rows from which the noise of features around those of a model is estimated.

    Attributes
    ----------
    noise, others
        Features of two sets of rows minus their expected values, times roots of the noise masses,
        shape (n_rows, 2 * n_frequencies). Simulated and observed differences are both independent
        of the rows that whiten them, the others.
    rows, masses, noise_masses
        Rows of the first set, shape (n_rows, n_features), and their masses in means and in the
        noise, each summing to one.
    is_weighted
        Whether they are random rows of the data, whose weights differ.
    """

    noise: Array
    others: Array
    rows: Array
    masses: Array
    noise_masses: Array
    is_weighted: bool


def _simulated_rows(
    feature_map: FeatureMap, model: GaussianMixture, expected: Array, size: int, seed: int
) -> _RowsOfModel:
    """Rows of the model, two sets of ``size``."""
    # other rows than those of the same seed, which the sketch may be of
    other_seed = int(np.random.default_rng((seed, 2)).integers(2**63))
    both, masses = model.sample(2 * size, seed=other_seed), np.full(size, 1.0 / size)
    noise, others = (
        (features_of(feature_map, part) - expected) / math.sqrt(size)
        for part in (both[:size], both[size:])
    )
    return _RowsOfModel(noise, others, both[:size], masses, masses, False)


def _weighted_rows(sketch: Sketch, expected: Array, size: int, seed: int) -> _RowsOfModel | None:
    """Two halves of the random rows of a sketch, if their weights differ.

    Weights may depend on the values of the rows, as those of importance sampling do. Then the noise
    is not that of rows of the model.
    """
    sample = sketch.sample
    if sample is None or len(sample) < MIN_ROWS:
        if sketch.effective_count < (1.0 - _EQUAL) * sketch.count:
            warn_user(
                f"the rows have weights, with an effective count of {sketch.effective_count:,.0f} "
                f"of {sketch.count:,}, and the sketch has no {MIN_ROWS} random rows: the noise is "
                "simulated as if weights did not depend on the values of the rows. If they do, as "
                "in importance sampling, the p-value may be far too small: sketch with sample=True."
            )
        return None
    if not sample.is_weighted:
        return None
    sample = resized(sample, 2 * size)
    order = np.random.default_rng((seed, 4)).permutation(len(sample))
    rows, noise_masses = np.asarray(sample.rows, dtype=np.float64), sample.noise_weights
    noise = np.sqrt(noise_masses)[:, None] * (features_of(sketch.feature_map, rows) - expected)
    first_half, second_half = order[::2], order[1::2]
    noise, others = (
        noise[part] / math.sqrt(noise_masses[part].sum()) for part in (first_half, second_half)
    )
    masses, noise_masses = (
        values[first_half] / values[first_half].sum() for values in (sample.weights, noise_masses)
    )
    n_effective = float(1.0 / (noise_masses @ noise_masses))
    if n_effective < _MIN_EFFECTIVE:
        warn_user(
            f"weights that differ so much leave the noise to about {n_effective:.0f} of "
            f"{len(first_half):,} random rows: the p-value may be too small. Sketch more rows, or "
            "bound their weights."
        )
    return _RowsOfModel(noise, others, rows[first_half], masses, noise_masses, True)


def _checked_arguments(
    tolerance: float, level: float, n_draws: int | None, seed: int
) -> tuple[float, float, int, int]:
    level = require_number("level", level, 0.0, 1.0, strict=True)
    tolerance = require_number("tolerance", tolerance, 0.0, 2.0)
    n_draws = checked_number(n_draws, level, "n_draws")
    seed = require_integer("seed", seed, 0)
    require_small_p_values("n_draws", n_draws, level)
    return level, tolerance, n_draws, seed


def _compare(
    first: Sketch, second: Sketch, tolerance: float, level: float, n_draws: int, seed: int
) -> TwoSampleTest:
    observed = observe(first, second)
    feature_map = first.feature_map
    m = feature_map.n_frequencies
    noise, rows = observed.noise, observed.rows
    masses, noise_masses = observed.masses, observed.noise_masses
    require_memory("n_draws", n_draws, 8 * _COPIES * (len(rows) + 2 * m))
    variance = masses @ (rows - masses @ rows) ** 2
    differences, others = _permuted_differences(first, second, observed, n_draws, seed), noise
    if differences is None:
        warn_of_rare_values(first, second, rows, masses, noise_masses)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(rows))
        # simulated and observed differences are both independent of the rows that whiten them
        others, whitening = noise[order[1::2]] * math.sqrt(2.0), order[::2]
        rows, masses = with_rare_rows(first, second, rows[whitening], masses[whitening])
        noise_masses = masses
        if observed.is_weighted:
            observed_masses, added = observed.noise_masses[whitening], masses[len(whitening) :]
            noise_masses = np.concatenate(
                [observed_masses / observed_masses.sum() * (1.0 - added.sum()), added]
            )
            is_first = observed.is_first[whitening]
            differences = _weighted_differences(first, second, noise_masses, is_first, n_draws, rng)
        else:
            differences = _simulated_differences(first, second, masses, observed, n_draws, rng)
        noise = centred(features_of(feature_map, rows), masses, noise_masses)
    statistics = _statistics(feature_map, variance, noise, others, observed.difference, differences)
    features = _feature_differences(first, second, rows, (masses, noise_masses), differences)
    counts = first.count, second.count
    return result_of_rows(
        statistics, observed.effect(), features, tolerance, level, n_draws, counts
    )


def _statistics(
    feature_map: FeatureMap,
    variance: Array,
    noise: Array,
    others: Array,
    difference: Array,
    differences: _Differences,
) -> Array:
    """Statistics of all bands and ridges, shape (n_statistics, n_differences).

    The differences are simulated from ``noise``, and whitened by the covariance of ``others``.
    """
    statistics: list[Array] = []
    for band in bands(feature_map, variance):
        simulated = differences(noise[:, band], difference[band], band)
        statistics.append(np.einsum("ij,ij->i", simulated, simulated))
        if len(band) <= 2 * MAX_BAND:
            values, basis = np.linalg.eigh(
                others[:, band].T @ others[:, band] + np.diag(differences.variance(band))
            )
            values, squares = np.maximum(values, 0.0), (simulated @ basis) ** 2
            values = _known_variances(values, others[:, band] @ basis)
            if values[-1] > 0.0:
                statistics += [squares @ (1.0 / (values + r * values[-1])) for r in ROW_RIDGES]
    return np.array(statistics)


def _known_variances(values: Array, scores: Array) -> Array:
    """Increase variances along directions that are estimated from too few rows.

    Two rare values may meet in rows of the data, but in no random row. Along such a direction, a
    variance that is too small would make any difference by chance a large one.

    Parameters
    ----------
    values
        Variances, shape (n_directions,).
    scores
        Coordinates of the random rows, times roots of their masses, shape (n_rows, n_directions).

    Returns
    -------
    variances
        Variances, at least those of four rows where the effective number of rows is below 20.
    """
    squares = scores**2
    largest = float(np.max(squares.sum(axis=1)))  # largest square of one row
    totals, fourth = squares.sum(axis=0), (squares**2).sum(axis=0)
    few = totals**2 < _FEW_ROWS * fourth + (_ROUNDING * largest) ** 2
    return np.where(few, np.maximum(values, _UNSEEN_ROWS * largest), values)


@dataclass(frozen=True, eq=False)
class _Differences:
    """Observed difference, and random differences of two sides of one distribution.

    Attributes
    ----------
    coefficients
        Coefficients of the rows of noise in each difference, shape (n_differences, n_rows).
    scale
        Factor by which observed differences are multiplied.
    permuted
        Whether the differences come from permutations, where the first one is the observed one.
    added
        Standard deviations of the noise of rounded sums or quantised phases in scaled differences,
        shape (2 * n_frequencies,); None without this noise.
    """

    coefficients: Array
    scale: float
    permuted: bool
    added: Array | None = None

    def variance(self, values: NDArray[np.intp]) -> Array:
        """Variances of the added noise in some values of the difference."""
        return np.zeros(len(values)) if self.added is None else self.added[values] ** 2

    def __call__(
        self, noise: Array, observed: Array, values: NDArray[np.intp] | None = None
    ) -> Array:
        """Scaled differences, the observed one first, from noise of shape (n_rows, n_values)."""
        differences = self.coefficients @ noise
        if self.permuted:
            return np.asarray(differences)
        if values is not None and self.added is not None and self.added.any():
            # another sequence than that of the coefficients, the same for all values
            rng = np.random.default_rng((len(differences), 3))
            draws = rng.standard_normal((len(differences), len(self.added)))
            differences += draws[:, values] * self.added[values]
        return np.vstack([self.scale * observed, differences])


def _permuted_differences(
    first: Sketch, second: Sketch, observed: ObservedDifference, n_draws: int, seed: int
) -> _Differences | None:
    """Permute the rows if the sketches have all of their rows; None otherwise.

    Rows with weights are exchangeable only if the weights of both sides arise in the same way.
    They are therefore permuted only if they are too few to simulate their noise.
    """
    sides = [side.sample for side in (first, second) if side.sample is not None]
    n_rows, scale = [len(sample) for sample in sides], 1.0 / math.sqrt(observed.factor)
    if not all(sample.is_complete for sample in sides) or sum(n_rows) != len(observed.rows):
        return None
    if observed.is_weighted:
        if min(n_rows) >= MIN_ROWS:
            return None
        warn_user(
            f"the rows have weights, and a side has {min(n_rows)} of them: the p-value is right if "
            f"the weights of both sides arise in the same way. With {MIN_ROWS} rows or more a side "
            "it does not depend on that."
        )
    one_side = np.repeat([True, False], n_rows)
    permutations = permutations_of(one_side, np.zeros(sum(n_rows), dtype=np.intp), n_draws, seed)
    # a common factor of all weights of a side means nothing
    weights = np.concatenate([sample.row_weights / sample.row_weights.mean() for sample in sides])
    # the rows of the noise are multiplied by the roots of their masses
    each = contrasts(permutations.sides, weights) / np.sqrt(observed.noise_masses)
    return _Differences(each, scale, True)


def _simulated_differences(
    first: Sketch,
    second: Sketch,
    masses: Array,
    observed: ObservedDifference,
    n_draws: int,
    rng: np.random.Generator,
) -> _Differences:
    """Draw the rows of both sides from random rows with given masses."""
    factor, scale = observed.factor, 1.0 / math.sqrt(observed.factor)
    counts = first.effective_count, second.effective_count
    drawn = np.zeros((n_draws, len(masses)))
    for sign, n in zip((1.0, -1.0), counts, strict=True):
        drawn += _noise_of_rows(rng, masses, n, n_draws) * (sign * math.sqrt(1.0 / n / factor))
    return _Differences(drawn, scale, False, observed.added * scale)


def _weighted_differences(
    first: Sketch,
    second: Sketch,
    noise_masses: Array,
    is_first: NDArray[np.bool_],
    n_draws: int,
    rng: np.random.Generator,
) -> _Differences:
    """Draw the rows of each side from its own, whose weights differ.

    The first rows have these sides. Rows after them take the place of those far from all others,
    and are drawn for both.
    """
    counts = np.array([first.effective_count, second.effective_count])
    added = np.ones(len(noise_masses) - len(is_first))
    # a side has the share of the other one in the noise: the fewer rows, the more noise
    ratio = np.where(is_first, counts[0] / counts[1], counts[1] / counts[0])
    signs = np.concatenate([np.where(is_first, 1.0, -1.0), added])
    masses = noise_masses * np.concatenate([ratio, added])
    drawn = _noise_of_rows(rng, masses, float(counts.sum()), n_draws, independent=True)
    scale = math.sqrt(float(counts.prod() / counts.sum()))
    spread = np.hypot(*(added_noise(first.feature_map, side) for side in (first, second)))
    return _Differences(signs * drawn, scale, False, spread * scale)


def _noise_of_rows(
    rng: np.random.Generator, masses: Array, n: float, n_draws: int, *, independent: bool = False
) -> Array:
    """Standardised numbers of draws of each row, in ``n_draws`` samples of ``n`` rows.

    Small numbers of draws are not normal: the numbers of rare rows have a long upper tail. They sum
    to zero unless they are ``independent``, for noise whose mean is not zero, as it is if weights
    depend on the values of the rows.
    """
    if n * float(masses.min()) >= _MANY:
        return rng.standard_normal((n_draws, len(masses)))
    expected = round(n) * masses
    if independent:
        return np.asarray(
            (rng.poisson(expected, (n_draws, len(masses))) - expected) / np.sqrt(expected)
        )
    return np.asarray((rng.multinomial(round(n), masses, n_draws) - expected) / np.sqrt(expected))


def _feature_differences(
    first: Sketch,
    second: Sketch,
    rows: Array,
    masses: tuple[Array, Array],
    differences: _Differences,
) -> tuple[FeatureDifference, ...]:
    """Differences of the means and mean squares of single features."""
    total = first.total_weight + second.total_weight
    pooled = (first.total_weight * first.mean + second.total_weight * second.mean) / total
    sides = (first.mean, first.variance), (second.mean, second.variance)
    names = first.feature_map.feature_names
    return _moment_differences(sides, pooled, rows, masses, differences, names)


def _moment_differences(
    sides: tuple[tuple[Array, Array], tuple[Array, Array]],
    pooled: Array,
    rows: Array,
    masses: tuple[Array, Array],
    differences: _Differences,
    feature_names: tuple[str, ...] | None,
) -> tuple[FeatureDifference, ...]:
    """Differences of the sides, each with means and variances, around a common mean.

    The first masses weigh the rows in means, the second ones in the noise.
    """
    (first, first_variance), (second, second_variance) = sides
    shift = first - second
    squares = [(mean - pooled) ** 2 + variance for mean, variance in sides]
    p: list[Array] = []
    for feature in range(len(pooled)):
        column = rows[:, feature] - pooled[feature]
        noise = centred(np.column_stack([column, column**2]), *masses)
        observed = np.array([shift[feature], squares[0][feature] - squares[1][feature]])
        deviation = np.sqrt(np.sum(noise**2, axis=0))
        deviation[deviation == 0.0] = np.inf
        simulated = differences(noise, observed) / deviation
        p.append(p_values(np.sum(simulated**2, axis=1)[None])[0])
    adjusted = adjusted_p_values(np.array(p))
    names = feature_labels(len(pooled), feature_names)
    return tuple(
        FeatureDifference(
            name=names[feature],
            p_value=float(adjusted[feature]),
            means=(float(first[feature]), float(second[feature])),
            deviations=(
                math.sqrt(first_variance[feature]),
                math.sqrt(second_variance[feature]),
            ),
        )
        for feature in np.lexsort(([row[0] for row in p], adjusted))
    )
