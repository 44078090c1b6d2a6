"""Test whether two sketches are of one distribution, where rows are independent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import feature_weights, halves
from dask_sketch.distributions.bands import bands
from dask_sketch.distributions.effect import Effect
from dask_sketch.distributions.permutations import (
    adjusted_p_values,
    combined_p_value,
    contrasts,
    default_number,
    p_values,
    permutations_of,
    require_memory,
)
from dask_sketch.distributions.rare_values import MAX_ROWS, warn_of_rare_values, with_rare_rows
from dask_sketch.distributions.result import FeatureDifference, TwoSampleTest
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.missing import refuse_missing
from dask_sketch.sketching.row_sample import RowSample
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
_RIDGES = (0.1, 0.01, 0.001)  # of the whitened statistics, relative to the largest eigenvalue
_MAX_BAND = 128  # frequencies of a band that is whitened
_MIN_ROWS, _FEWEST_PERMUTED = 200, 20  # random rows of a side; where both sides are all rows
_NUMBERS = 2**25  # features of these rows in memory at once
_MANY = 100.0  # draws of a row, the number of which is nearly normal
_COPIES = 4  # of the coefficients and of the simulated features of a draw
_FEW_ROWS = 20  # effective rows from which the variance along a direction is known
_UNSEEN_ROWS = 4.0  # rows whose variance a direction has at least that fewer rows tell of
_ROUNDING = 1e-13  # difference, relative to the values, that is rounding


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

    Neighbouring rows of recordings, sensors or days are not independent, and would be found
    different nearly always: sketch such data in groups, and use
    :func:`~dask_sketch.distributions.compare`.

    If the sketches carry all their rows, from 20 up to 4,000 each, these are permuted between them,
    and the level is exact. Otherwise, with 200 random rows each or more, the noise of the
    difference is simulated from the random rows that they carry, by drawing as many of one half of
    them as each side has, while the other half whitens the differences: then the level is nearly
    exact, unless few rows carry most of the noise, of which a warning tells.

    Parameters
    ----------
    first, second
        Sketches of one feature map, each with random rows.
    tolerance
        Largest discrepancy that does not matter, from 0 to 2.
    level
        Chance to find a difference where there is none, in (0, 1).
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
        If an argument is out of range, or a sketch has no random rows or too few.
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
    level, tolerance, n_draws, seed = _checked(tolerance, level, n_draws, seed)
    with one_blas_thread():
        return _tested(first, second, tolerance, level, n_draws, seed)


def compare_model(
    sketch: Sketch,
    model: GaussianMixture,
    *,
    tolerance: float = 0.0,
    level: float = 0.05,
    n_draws: int | None = None,
    seed: int = 0,
) -> TwoSampleTest:
    """Test whether a sketch is of rows from a mixture that is known, if the rows are independent.

    The noise of the sketch is simulated from rows of the mixture, so that the sketch needs no
    random rows.

    Parameters
    ----------
    sketch
        Sketch of rows that the model was not fitted to: with a model decoded from the same rows the
        p-value is too large.
    model
        Mixture.
    tolerance
        Largest discrepancy that does not matter, from 0 to 2. With many rows no mixture is exact.
    level
        Chance to find a difference where there is none, in (0, 1).
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
        If an argument is out of range, or the sketch is private, of missing values or of too few
        rows.

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
    level, tolerance, n_draws, seed = _checked(tolerance, level, n_draws, seed)
    if not isinstance(sketch, Sketch) or not isinstance(model, GaussianMixture):
        raise InputError(
            f"sketch of type {type(sketch).__name__} with model of type {type(model).__name__}: "
            "give a sketch of independent rows, and a GaussianMixture."
        )
    feature_map, n = sketch.feature_map, sketch.effective_count
    refuse_missing("sketch", sketch)
    if sketch.privacy is not None or n < _MIN_ROWS or feature_map.n_features != model.n_features:
        raise InputError(
            f"sketch has an effective count of {n:,.0f}, {feature_map.n_features} features and "
            f"privacy={sketch.privacy is not None}: give one of {_MIN_ROWS} rows or more of "
            f"{model.n_features} features, without the noise of privacy."
        )
    m, omega = feature_map.n_frequencies, feature_map.frequencies
    size = max(min(MAX_ROWS, _NUMBERS // (2 * m)), _MIN_ROWS)
    require_memory("n_draws", n_draws, 8 * _COPIES * (size + 2 * m))
    with one_blas_thread():
        # other rows than those of the same seed, which the sketch may be of
        own = int(np.random.default_rng((seed, 2)).integers(2**63))
        both, masses = model.sample(2 * size, seed=own), np.full(size, 1.0 / size)
        unit, expected = feature_weights(feature_map) / math.sqrt(m), model.characteristic(omega)
        # simulated and observed differences are both independent of the rows that whiten them
        noise, others = (
            halves(unit * (np.exp(-1j * (part @ omega)) - expected)) / math.sqrt(size)
            for part in (both[:size], both[size:])
        )
        rows, difference = both[:size], halves(unit * (sketch.characteristic - expected))
        draws = _noise_of_rows(np.random.default_rng((seed, 1)), masses, n, n_draws)
        added = _added_noise(feature_map, sketch)
        differences = _Differences(draws, math.sqrt(n), False, added * math.sqrt(n))
        mean, variance = model.mean, model.variance
        statistics = _statistics(feature_map, variance, noise, others, difference, differences)
        effect = _effect(difference, noise, 1.0 / n, added**2)
        sides = (sketch.mean, sketch.variance), (mean, variance)
        features = _moment_differences(
            sides, mean, rows, masses, differences, feature_map.feature_names
        )
    return TwoSampleTest(
        p_value=combined_p_value(statistics),
        smallest_p_value=1.0 / (n_draws + 1),
        discrepancy=math.sqrt(max(effect.squared, 0.0)),
        squared=effect.squared,
        interval=effect.interval(level),
        level=level,
        tolerance=tolerance,
        tolerance_p_value=effect.p_value_above(tolerance),
        dim="row",
        n_units=(sketch.count, 0),
        n_strata=1,
        n_permutations=n_draws + 1,
        is_complete=False,
        features=features,
    )


def _checked(
    tolerance: float, level: float, n_draws: int | None, seed: int
) -> tuple[float, float, int, int]:
    level = require_number("level", level, 0.0, 1.0, strict=True)
    tolerance = require_number("tolerance", tolerance, 0.0, 2.0)
    if n_draws is None:
        n_draws = default_number(level)
    n_draws = require_integer("n_draws", n_draws, 1)
    seed = require_integer("seed", seed, 0)
    if 1.0 / (n_draws + 1) > level:
        raise InputError(
            f"n_draws={n_draws}: no p-value is under {1.0 / (n_draws + 1):.2g} with them. Take "
            f"{math.ceil(1.0 / level)} or more for level={level:g}.",
            parameter="n_draws",
        )
    return level, tolerance, n_draws, seed


def _require_rows(name: str, sketch: Sketch, least: int) -> None:
    if not isinstance(sketch, Sketch):
        raise InputError(
            f"{name} of type {type(sketch).__name__}: give a sketch; use compare() for groups, and "
            ".compute() on a lazy one."
        )
    refuse_missing(name, sketch)
    if sketch.sample is None:
        raise InputError(
            f"{name} has no random rows, from which the noise is estimated. Sketch with "
            "sample=True, or in groups for compare()."
        )
    if len(sketch.sample) < least:
        raise InputError(
            f"{name} has {len(sketch.sample):,} random rows: with less than {least} the noise "
            "cannot be estimated. Sketch more data, or with a larger sample."
        )


def _tested(
    first: Sketch, second: Sketch, tolerance: float, level: float, n_draws: int, seed: int
) -> TwoSampleTest:
    observed = observe(first, second)
    feature_map = first.feature_map
    m = feature_map.n_frequencies
    noise, rows, masses = observed.noise, observed.rows, observed.masses
    require_memory("n_draws", n_draws, 8 * _COPIES * (len(rows) + 2 * m))
    variance = masses @ (rows - masses @ rows) ** 2
    differences, others = _permuted(first, second, observed, n_draws, seed), noise
    if differences is None:
        warn_of_rare_values(first, second, rows, masses)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(rows))
        # simulated and observed differences are both independent of the rows that whiten them
        others, kept = noise[order[1::2]] * math.sqrt(2.0), order[::2]
        rows, masses = with_rare_rows(first, second, rows[kept], masses[kept])
        noise = _noise(feature_map, rows, masses)
        differences = _drawn(first, second, masses, observed, n_draws, rng)
    statistics = _statistics(feature_map, variance, noise, others, observed.difference, differences)
    effect = observed.effect()
    return TwoSampleTest(
        p_value=combined_p_value(statistics),
        smallest_p_value=1.0 / (n_draws + 1),
        discrepancy=math.sqrt(max(effect.squared, 0.0)),
        squared=effect.squared,
        interval=effect.interval(level),
        level=level,
        tolerance=tolerance,
        tolerance_p_value=effect.p_value_above(tolerance),
        dim="row",
        n_units=(first.count, second.count),
        n_strata=1,
        n_permutations=n_draws + 1,
        is_complete=False,
        features=_feature_differences(first, second, rows, masses, differences),
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
        if len(band) <= 2 * _MAX_BAND:
            values, basis = np.linalg.eigh(
                others[:, band].T @ others[:, band] + np.diag(differences.variance(band))
            )
            values, squares = np.maximum(values, 0.0), (simulated @ basis) ** 2
            values = _known_variances(values, others[:, band] @ basis)
            if values[-1] > 0.0:
                statistics += [squares @ (1.0 / (values + r * values[-1])) for r in _RIDGES]
    return np.array(statistics)


def _known_variances(values: Array, scores: Array) -> Array:
    """Variances along directions, no less than that of a few rows where few rows tell them.

    Two rare flags may never meet in the random rows, but do in the sketches: along such a direction
    a small variance would make any difference by chance a large one.

    Parameters
    ----------
    values
        Variances, shape (n_directions,).
    scores
        Coordinates of the random rows, times roots of their masses, shape (n_rows, n_directions).
    """
    squares = scores**2
    largest = float(np.max(squares.sum(axis=1)))  # of one row
    totals, fourth = squares.sum(axis=0), (squares**2).sum(axis=0)
    few = totals**2 < _FEW_ROWS * fourth + (_ROUNDING * largest) ** 2
    return np.where(few, np.maximum(values, _UNSEEN_ROWS * largest), values)


@dataclass(frozen=True, eq=False)
class ObservedDifference:
    """Difference of the sketch vectors of two sides of independent rows, and its noise.

    Attributes
    ----------
    difference
        Difference of the real and imaginary parts, with the weights of the features, shape
        (2 * n_frequencies,).
    noise
        Features of the random rows of both sides, without their mean and times roots of their
        masses, shape (n_rows, 2 * n_frequencies): the sum of their squares is a covariance.
    factor
        Covariance of the difference in units of that covariance.
    rows, masses
        Random rows of both sides, shape (n_rows, n_features), and their masses, which sum to one.
    added
        Standard deviations of the noise that was added to the difference by rounded sums or
        quantised phases, shape (2 * n_frequencies,).
    """

    difference: Array
    noise: Array
    factor: float
    rows: Array
    masses: Array
    added: Array

    def effect(self) -> Effect:
        """Squared discrepancy, with the noise of independent rows of one covariance."""
        return _effect(self.difference, self.noise, self.factor, self.added**2)


def observe(first: Sketch, second: Sketch, *, pooled: bool = True) -> ObservedDifference:
    """Difference of two sketches of one feature map, and its noise from their random rows.

    Parameters
    ----------
    first, second
        Sketches.
    pooled
        Whether the noise is that of rows of one common distribution, as if the sides were alike, or
        of rows of each side around its own mean.

    Raises
    ------
    InputError
        If a sketch has no random rows, or too few.
    MergeError
        If the feature maps differ.
    """
    named = {"first": first, "second": second}
    kept = [getattr(side, "sample", None) for side in named.values()]
    complete = all(sample is not None and sample.is_complete for sample in kept)
    for name, side in named.items():
        _require_rows(name, side, _FEWEST_PERMUTED if complete else _MIN_ROWS)
    first.feature_map.require_same(second.feature_map)
    feature_map = first.feature_map
    m, counts = feature_map.n_frequencies, (first.effective_count, second.effective_count)
    size = max(min(MAX_ROWS, _NUMBERS // (2 * m)), _MIN_ROWS)
    samples = [_rows(side.sample, size) for side in (first, second) if side.sample is not None]
    rows = np.concatenate([one for one, _ in samples])
    shares = np.array(counts) / sum(counts)
    masses = np.concatenate([share * w for share, (_, w) in zip(shares, samples, strict=True)])
    unit = feature_weights(feature_map) / math.sqrt(m)
    factor = sum(counts) / (counts[0] * counts[1])
    if pooled:
        noise = _noise(feature_map, rows, masses)
    else:
        features = _features(feature_map, rows)
        cut, factor = len(samples[0][0]), 1.0
        sides = zip((features[:cut], features[cut:]), samples, counts, strict=True)
        noise = np.concatenate([_centred(side, w) / math.sqrt(n) for side, (_, w), n in sides])
    gap = unit * (first.characteristic - second.characteristic)
    difference = np.concatenate([gap.real, gap.imag])
    difference[np.abs(difference) < _ROUNDING * unit.max()] = 0.0
    added = np.hypot(*(_added_noise(feature_map, side) for side in (first, second)))
    return ObservedDifference(difference, noise, factor, rows, masses, added)


@dataclass(frozen=True, eq=False)
class _Differences:
    """Differences of two sides that are alike, beside the observed difference.

    Attributes
    ----------
    coefficients
        Coefficients of the rows of noise in each difference, shape (n_differences, n_rows).
    scale
        Factor of observed differences.
    permuted
        Whether the differences are those of permutations, the first of which is the observed one.
    added
        Standard deviations of the noise of rounded sums or quantised phases in scaled differences,
        shape (2 * n_frequencies,).
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
        found = self.coefficients @ noise
        if self.permuted:
            return np.asarray(found)
        if values is not None and self.added is not None and self.added.any():
            # another sequence than that of the coefficients, the same for all values
            rng = np.random.default_rng((len(found), 3))
            own = rng.standard_normal((len(found), len(self.added)))
            found += own[:, values] * self.added[values]
        return np.vstack([self.scale * observed, found])


def _permuted(
    first: Sketch, second: Sketch, observed: ObservedDifference, n_draws: int, seed: int
) -> _Differences | None:
    """Permute rows where the samples are all rows."""
    sides = [side.sample for side in (first, second) if side.sample is not None]
    n_rows, scale = [len(one) for one in sides], 1.0 / math.sqrt(observed.factor)
    if not all(one.is_complete for one in sides) or sum(n_rows) != len(observed.rows):
        return None
    one_side = np.repeat([True, False], n_rows)
    found = permutations_of(one_side, np.zeros(sum(n_rows), dtype=np.intp), n_draws, seed)
    weights = np.concatenate([one.row_weights for one in sides])
    # the rows of the noise are multiplied by the roots of their masses
    each = contrasts(found.sides, weights) / np.sqrt(observed.masses)
    return _Differences(each, scale, True)


def _drawn(
    first: Sketch,
    second: Sketch,
    masses: Array,
    observed: ObservedDifference,
    n_draws: int,
    rng: np.random.Generator,
) -> _Differences:
    """Draw the rows of both sides from those that have these masses."""
    factor, scale = observed.factor, 1.0 / math.sqrt(observed.factor)
    counts = first.effective_count, second.effective_count
    drawn = np.zeros((n_draws, len(masses)))
    for sign, n in zip((1.0, -1.0), counts, strict=True):
        drawn += _noise_of_rows(rng, masses, n, n_draws) * (sign * math.sqrt(1.0 / n / factor))
    return _Differences(drawn, scale, False, observed.added * scale)


def _noise_of_rows(rng: np.random.Generator, masses: Array, n: float, n_draws: int) -> Array:
    """Random numbers of mean zero and variance one: how often each of some rows is drawn.

    The numbers of few draws are not normal: those of rare rows have a long upper tail.
    """
    if n * float(masses.min()) >= _MANY:
        return rng.standard_normal((n_draws, len(masses)))
    expected = round(n) * masses
    return np.asarray((rng.multinomial(round(n), masses, n_draws) - expected) / np.sqrt(expected))


def _rows(sample: RowSample, size: int) -> tuple[Array, Array]:
    """Some of the random rows with weights that sum to one."""
    kept = sample.resized(size) if len(sample) > size else sample
    return np.asarray(kept.rows, dtype=np.float64), kept.weights


def _features(feature_map: FeatureMap, rows: Array) -> Array:
    """Weighted features of rows, real parts beside imaginary ones."""
    unit = feature_weights(feature_map) / math.sqrt(feature_map.n_frequencies)
    features = unit * np.exp(-1j * (rows @ feature_map.frequencies))
    return halves(np.asarray(features, dtype=np.complex128))  # some stubs of NumPy say float64


def _noise(feature_map: FeatureMap, rows: Array, masses: Array) -> Array:
    return _centred(_features(feature_map, rows), masses)


def _centred(features: Array, masses: Array) -> Array:
    """Rows minus their mean, times roots of their weights: their squares sum to the covariance."""
    out = features - masses @ features
    out[np.abs(out) < _ROUNDING * np.abs(features).max(axis=0)] = 0.0
    return np.asarray(np.sqrt(masses)[:, None] * out)


def _added_noise(feature_map: FeatureMap, sketch: Sketch) -> Array:
    """Deviations of the noise of rounded sums or quantised phases in weighted features."""
    unit = feature_weights(feature_map) / math.sqrt(feature_map.n_frequencies)
    return np.tile(unit * math.sqrt(sketch.added_variance), 2)


def _effect(difference: Array, noise: Array, factor: float, added: Array) -> Effect:
    """Squared discrepancy, with the noise of independent rows of one covariance.

    Independent noise of the variances ``added`` is beside that of the rows.
    """
    own = np.einsum("ij,ij->i", noise, noise)
    wide = noise.shape[1] > noise.shape[0]
    gram = noise @ noise.T if wide else noise.T @ noise
    # the sums over products of different rows, whose expectation has no bias, from those over all
    paired = np.sum(gram**2, axis=0) if wide else np.einsum("ij,ij->i", noise @ gram, noise)
    square = factor**2 * max(float(np.sum(paired) - np.sum(own**2)), 0.0)
    cube = (
        float(np.sum((gram @ gram) * gram))
        - 3.0 * float(own @ paired)
        + 2.0 * float(np.sum(own**3))
    )
    variances = factor * np.einsum("ij,ij->j", noise, noise)
    square += float(added @ (2.0 * variances + added))
    third = factor**3 * cube + float(added @ (3.0 * variances * (variances + added) + added**2))
    length = float(difference @ difference)
    along = factor * float(np.sum((noise @ difference) ** 2)) + float(added @ difference**2)
    return Effect(
        squared=length - factor * float(np.sum(own)) - float(np.sum(added)),
        noise_variance=2.0 * square,
        noise_third_moment=8.0 * max(third, 0.0),
        direction_variance=along / length if length > 0 else 0.0,
        degrees_of_freedom=math.inf,
    )


def _feature_differences(
    first: Sketch, second: Sketch, rows: Array, masses: Array, differences: _Differences
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
    masses: Array,
    differences: _Differences,
    names: tuple[str, ...] | None,
) -> tuple[FeatureDifference, ...]:
    """Differences of the sides, each with means and variances, around a common mean."""
    (first, first_variance), (second, second_variance) = sides
    shift = first - second
    squares = [(mean - pooled) ** 2 + variance for mean, variance in sides]
    p: list[Array] = []
    for feature in range(len(pooled)):
        column = rows[:, feature] - pooled[feature]
        noise = _centred(np.column_stack([column, column**2]), masses)
        observed = np.array([shift[feature], squares[0][feature] - squares[1][feature]])
        deviation = np.sqrt(np.sum(noise**2, axis=0))
        deviation[deviation == 0.0] = np.inf
        simulated = differences(noise, observed) / deviation
        p.append(p_values(np.sum(simulated**2, axis=1)[None])[0])
    adjusted = adjusted_p_values(np.array(p))
    return tuple(
        FeatureDifference(
            name=f"feature {feature}" if names is None else names[feature],
            p_value=float(adjusted[feature]),
            means=(float(first[feature]), float(second[feature])),
            deviations=(
                math.sqrt(first_variance[feature]),
                math.sqrt(second_variance[feature]),
            ),
        )
        for feature in np.lexsort(([one[0] for one in p], adjusted))
    )
