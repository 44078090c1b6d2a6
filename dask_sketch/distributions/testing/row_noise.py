"""Noise of the difference of two sketches of independent rows, from their random rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import feature_scales, halves
from dask_sketch.distributions.testing.effect import Effect
from dask_sketch.distributions.testing.permutations import combined_p_value
from dask_sketch.distributions.testing.rare_values import MAX_ROWS
from dask_sketch.distributions.testing.result import FeatureDifference, TwoSampleTest
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.sketching.missing import refuse_missing
from dask_sketch.sketching.row_sample import RowSample
from dask_sketch.sketching.sketch import Sketch

Array = NDArray[np.float64]
MIN_ROWS = 200  # random rows of a side
_MIN_PERMUTED = 20  # rows of a side, if both sketches have all of their rows
_NUMBERS = 2**25  # features of these rows in memory at once
_FREE = 1e-9  # share of the weight of a side that is not in one row, at least
_ROUNDING = 1e-13  # difference, relative to the values, that is rounding


@dataclass(frozen=True, eq=False)
class ObservedDifference:
    """Difference of the sketch vectors of two sides of independent rows, and its noise.

    Attributes
    ----------
    difference
        Difference of the real and imaginary parts, with the weights of the features, shape
        (2 * n_frequencies,).
    noise
        Features of the random rows of both sides, minus their mean and times roots of the noise
        masses, shape (n_rows, 2 * n_frequencies): the sum of their squares is a covariance.
    factor
        Factor by which this covariance is multiplied for the covariance of the difference.
    rows, masses
        Random rows of both sides, shape (n_rows, n_features), and their masses, which sum to one.
    noise_masses
        Shares of the rows in the noise, shape (n_rows,), summing to one. The variance of a weighted
        mean is a sum over squares of weights: where weights differ, these are not the masses.
    is_first
        Whether a row is of the first side, shape (n_rows,).
    is_weighted
        Whether the weights of the rows of a side differ.
    added
        Standard deviations of the noise that was added to the difference by rounded sums or
        quantised phases, shape (2 * n_frequencies,).
    """

    difference: Array
    noise: Array
    factor: float
    rows: Array
    masses: Array
    noise_masses: Array
    is_first: NDArray[np.bool_]
    is_weighted: bool
    added: Array

    def effect(self) -> Effect:
        """Squared discrepancy, with the noise of independent rows of one covariance."""
        return effect_of_rows(self.difference, self.noise, self.factor, self.added**2)


def observe(first: Sketch, second: Sketch, *, pooled: bool = True) -> ObservedDifference:
    """Compute the difference of two sketches, and its noise from their random rows.

    Parameters
    ----------
    first, second
        Sketches of one feature map, with random rows.
    pooled
        Whether the noise is estimated as if both sides had one distribution; otherwise from the
        rows of each side around the mean of the side.

    Returns
    -------
    observed
        Difference and noise.

    Raises
    ------
    InputError
        If a sketch has no random rows, or too few.
    MergeError
        If the feature maps differ.
    """
    named = {"first": first, "second": second}
    row_samples = [getattr(side, "sample", None) for side in named.values()]
    complete = all(sample is not None and sample.is_complete for sample in row_samples)
    for name, side in named.items():
        _require_rows(name, side, _MIN_PERMUTED if complete else MIN_ROWS)
    first.feature_map.require_same(second.feature_map)
    feature_map = first.feature_map
    m, counts = feature_map.n_frequencies, (first.effective_count, second.effective_count)
    size = max_rows(m)
    samples = [resized(side.sample, size) for side in (first, second) if side.sample is not None]
    rows = np.concatenate(
        [np.asarray(side_sample.rows, dtype=np.float64) for side_sample in samples]
    )
    fractions = np.array(counts) / sum(counts)
    masses = _shared(fractions, [side_sample.weights for side_sample in samples])
    noise_masses, is_weighted = masses, any(side_sample.is_weighted for side_sample in samples)
    if is_weighted:  # the variance of each side is over its own count, not that of both together
        noise_masses = _shared(
            fractions[::-1], [side_sample.noise_weights for side_sample in samples]
        )
    unit = feature_scales(feature_map)
    factor = sum(counts) / (counts[0] * counts[1])
    features, cut = features_of(feature_map, rows), len(samples[0])
    if pooled:
        noise = centred(features, masses, noise_masses)
    else:
        factor = 1.0
        sides = zip((features[:cut], features[cut:]), samples, (first, second), counts, strict=True)
        noise = np.concatenate(
            [
                _without_leverage(
                    centred(values, side_sample.weights, side_sample.noise_weights) / math.sqrt(n),
                    side_sample.row_weights / sketch.total_weight,
                )
                for values, side_sample, sketch, n in sides
            ]
        )
    difference = halves(unit * (first.characteristic - second.characteristic))
    difference[np.abs(difference) < _ROUNDING * unit.max()] = 0.0
    added = np.hypot(*(added_noise(feature_map, side) for side in (first, second)))
    return ObservedDifference(
        difference,
        noise,
        factor,
        rows,
        masses,
        noise_masses,
        np.arange(len(rows)) < cut,
        is_weighted,
        added,
    )


def require_sketch(name: str, sketch: Sketch) -> None:
    """Refuse anything but a sketch without missing values.

    Parameters
    ----------
    name
        Name of the argument.
    sketch
        Sketch.
    """
    if not isinstance(sketch, Sketch):
        raise InputError(
            f"{name} of type {type(sketch).__name__}: give a sketch; use compare() for groups, and "
            ".compute() on a lazy one.",
            parameter=name,
        )
    refuse_missing(name, sketch)


def _require_rows(name: str, sketch: Sketch, min_rows: int) -> None:
    require_sketch(name, sketch)
    if sketch.sample is None:
        raise InputError(
            f"{name} has no random rows, from which the noise is estimated. Sketch with "
            "sample=True, in groups for compare(), or with a feature map of "
            "distribution='gaussian-pairs'."
        )
    if len(sketch.sample) < min_rows:
        raise InputError(
            f"{name} has {len(sketch.sample):,} random rows: with fewer than {min_rows} the noise "
            "cannot be estimated. Sketch more data, or with a larger sample."
        )


def _shared(fractions: Array, masses: list[Array]) -> Array:
    """Masses of the rows of both sides, which have these shares."""
    return np.concatenate(
        [fraction * part for fraction, part in zip(fractions, masses, strict=True)]
    )


def max_rows(n_frequencies: int) -> int:
    """Largest number of random rows of a side, for features that are in memory at once."""
    return max(min(MAX_ROWS, _NUMBERS // (2 * n_frequencies)), MIN_ROWS)


def resized(sample: RowSample, size: int) -> RowSample:
    """At most ``size`` of some random rows."""
    return sample.resized(size) if len(sample) > size else sample


def features_of(feature_map: FeatureMap, rows: Array) -> Array:
    """Weighted features of rows, real parts beside imaginary ones."""
    features = feature_scales(feature_map) * np.exp(-1j * (rows @ feature_map.frequencies))
    return halves(np.asarray(features, dtype=np.complex128))  # some stubs of NumPy say float64


def centred(features: Array, masses: Array, noise_masses: Array | None = None) -> Array:
    """Features minus their mean, times roots of noise masses: their squares sum to a covariance.

    Parameters
    ----------
    features
        Values, shape (n_rows, n_values).
    masses
        Masses of the rows in the mean, shape (n_rows,), summing to one.
    noise_masses
        Shares of the rows in the noise, by default the masses.
    """
    out = features - masses @ features
    out[np.abs(out) < _ROUNDING * np.abs(features).max(axis=0)] = 0.0
    return np.asarray(np.sqrt(masses if noise_masses is None else noise_masses)[:, None] * out)


def _without_leverage(noise: Array, shares: Array) -> Array:
    """Noise of rows that draw the mean of their side towards themselves.

    Residuals of a row that has most of the weight of its side are small: its noise is estimated
    from the change of the mean without it, as in the HC3 of MacKinnon and White (1985).
    """
    return np.asarray(noise / np.maximum(1.0 - shares, _FREE)[:, None])


def added_noise(feature_map: FeatureMap, sketch: Sketch) -> Array:
    """Deviations of the noise of rounded sums or quantised phases in weighted features."""
    return np.tile(feature_scales(feature_map) * math.sqrt(sketch.added_variance), 2)


def effect_of_rows(difference: Array, noise: Array, factor: float, added: Array) -> Effect:
    """Squared discrepancy, with the noise of independent rows of one covariance.

    Further independent noise has the variances ``added``.
    """
    squared_norms = np.einsum("ij,ij->i", noise, noise)
    wide = noise.shape[1] > noise.shape[0]
    gram = noise @ noise.T if wide else noise.T @ noise
    # sums over pairs of different rows are unbiased: the terms of a row with itself are subtracted
    paired = np.sum(gram**2, axis=0) if wide else np.einsum("ij,ij->i", noise @ gram, noise)
    square = factor**2 * max(float(np.sum(paired) - np.sum(squared_norms**2)), 0.0)
    cube = (
        float(np.sum((gram @ gram) * gram))
        - 3.0 * float(squared_norms @ paired)
        + 2.0 * float(np.sum(squared_norms**3))
    )
    variances = factor * np.einsum("ij,ij->j", noise, noise)
    square += float(added @ (2.0 * variances + added))
    third = factor**3 * cube + float(added @ (3.0 * variances * (variances + added) + added**2))
    length = float(difference @ difference)
    along = factor * float(np.sum((noise @ difference) ** 2)) + float(added @ difference**2)
    return Effect(
        squared=length - factor * float(np.sum(squared_norms)) - float(np.sum(added)),
        noise_variance=2.0 * square,
        noise_third_moment=8.0 * max(third, 0.0),
        direction_variance=along / length if length > 0 else 0.0,
        degrees_of_freedom=math.inf,
    )


def result_of_rows(
    statistics: Array,
    effect: Effect,
    features: tuple[FeatureDifference, ...],
    tolerance: float,
    level: float,
    n_draws: int,
    counts: tuple[int, int],
) -> TwoSampleTest:
    """Result of a test of independent rows, from its statistics and its effect.

    Parameters
    ----------
    statistics
        Statistics of the observed and of all simulated differences, shape (n_statistics, n_draws +
        1).
    effect, features
        Squared discrepancy with its error, and the differences of single features.
    tolerance, level, n_draws
        Arguments of the test.
    counts
        Numbers of rows of both sides.
    """
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
        n_units=counts,
        n_strata=1,
        n_permutations=n_draws + 1,
        is_complete=False,
        features=features,
    )
