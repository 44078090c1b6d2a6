"""Counters of missing values, and the model of the values that are observed together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dask_sketch import FeatureMap, Sketch, merge, partial_sketch
from dask_sketch.errors import ChunkError, InputError, MergeError
from dask_sketch.features.kernels.incomplete import pairs_of
from dask_sketch.sketching.missing import MissingWeights, ObservedPatterns, supports


def sparse_map(d=5, m=40, **options):
    return FeatureMap(d, m, scale=1.0, distribution="sparse-sums", **({"seed": 1} | options))


def with_missing(rng, n=2000, d=5, fraction=0.3):
    x = rng.normal(size=(n, d))
    return x, np.where(rng.random((n, d)) < fraction, np.nan, x)


def available(x, fm, weights=None, **options):
    return partial_sketch(x, fm, weights, nan_policy="available", **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_are_over_the_rows_that_observe(dtype, weighted, rng):
    fm = sparse_map(dtype=dtype, center=[1.0, -2.0, 0.3, 0.0, 5.0])
    x, y = with_missing(rng)
    w = rng.uniform(1e-3, 50.0, len(x)) if weighted else np.ones(len(x))
    sketch = available(y, fm, w if weighted else None)
    seen = ~np.isnan(y)
    counts = seen.any(axis=1)
    assert sketch.count == counts.sum()
    assert sketch.omitted == len(x) - counts.sum()
    assert sketch.total_weight == pytest.approx(w[counts].sum(), rel=1e-7)
    observes = (~seen @ supports(fm).T) == 0
    masses = w @ observes
    np.testing.assert_allclose(sketch.observed.frequencies, masses, rtol=1e-7)
    np.testing.assert_allclose(sketch.observed.features, w @ seen, rtol=1e-7)
    terms = observes * np.exp(-1j * (x @ fm.frequencies))
    np.testing.assert_allclose(sketch.characteristic, w @ terms / masses, atol=3e-6)
    mean = w @ np.where(seen, x, 0.0) / (w @ seen)
    np.testing.assert_allclose(sketch.mean, mean, atol=1e-7)
    variance = w @ np.where(seen, (x - mean) ** 2, 0.0) / (w @ seen)
    np.testing.assert_allclose(sketch.variance, variance, atol=1e-7)
    np.testing.assert_array_equal(sketch.minimum, np.nanmin(y, axis=0))
    np.testing.assert_array_equal(sketch.maximum, np.nanmax(y, axis=0))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("raw", ["f4", "f8"])
def test_bits_depend_neither_on_chunks_nor_on_order(weighted, raw, rng):
    fm = sparse_map(d=7, m=70)
    _, y = with_missing(rng, 5000, 7)
    y = y.astype(raw)
    w = rng.uniform(1e-3, 50.0, len(y)) if weighted else None

    def part(rows):
        return available(y[rows], fm, None if w is None else w[rows])

    whole = part(slice(None))
    assert whole.missing is not None
    cuts = [0, 1, 17, 2000, 4500, 5000]
    parts = [part(slice(a, b)) for a, b in itertools.pairwise(cuts)]
    assert merge(parts[::-1]).identical(whole)
    assert part(rng.permutation(len(y))).identical(whole)
    assert (whole - parts[2]).same_sums(merge([*parts[:2], *parts[3:]]))


def test_complete_rows_have_the_sketch_of_the_other_policies(rng):
    fm, x = sparse_map(), rng.normal(size=(300, 5))
    sketch = available(x, fm)
    assert sketch.missing is None
    assert sketch.identical(partial_sketch(x, fm))
    np.testing.assert_array_equal(sketch.observed.fractions, 1.0)


def test_a_merge_with_complete_rows_keeps_the_counters(rng):
    fm = sparse_map()
    x, y = with_missing(rng)
    both = partial_sketch(x, fm) + available(y, fm)
    assert both.identical(available(np.concatenate([x, y]), fm))
    assert (both - available(y, fm)).same_sums(partial_sketch(x, fm))
    part = available(y[~np.isnan(y).all(axis=1)], fm)
    with pytest.raises(MergeError, match="missing"):
        partial_sketch(np.tile(x, (2, 1)), fm) - part


def test_infinite_values_are_missing_and_rows_without_values_omitted(rng):
    fm = sparse_map()
    x = rng.normal(size=(4, 5))
    x[0, 0], x[1], x[2] = np.inf, np.nan, [np.nan, 1.0, np.inf, -np.inf, np.nan]
    sketch = available(x, fm)
    assert (sketch.count, sketch.omitted) == (3, 1)
    np.testing.assert_array_equal(sketch.observed.features, [1, 3, 2, 2, 2])
    assert np.isfinite(sketch.maximum).all()


def test_a_row_of_missing_values_can_be_refused(rng):
    fm = sparse_map()
    _, y = with_missing(rng, 50)
    y[20] = [np.nan, 0.0, 1e12, 0.0, 0.0]
    with pytest.raises(ChunkError, match=r"chunk 7: row 20 .* 1000000000000.0 in feature 2"):
        available(y, fm, label="chunk 7")
    y[20, 2] = 0.0
    w = np.ones(50)
    w[20] = -1.0
    with pytest.raises(ChunkError, match="row 20 has weight=-1"):
        available(y, fm, w)


def test_rows_of_weight_zero_count_but_do_not_bound():
    fm = sparse_map()
    x = np.array([[1.0] * 5, [np.nan, 99.0, 99.0, 99.0, 99.0]])
    sketch = available(x, fm, [1.0, 0.0])
    assert (sketch.count, sketch.maximum.max(), sketch.missing) == (2, 1.0, None)


def test_scaling_multiplies_the_counters(rng):
    fm = sparse_map()
    _, y = with_missing(rng, 200)
    sketch = available(y, fm)
    assert sketch.scale(16.0).identical(available(y, fm, np.full(200, 16.0)))
    assert sketch.scale(0.0).as_dict()["observed_features"] is None


def test_a_sketch_states_what_is_observed(rng):
    fm = sparse_map()
    _, y = with_missing(rng, 200, fraction=0.1)
    values = available(y, fm).as_dict()
    np.testing.assert_allclose(values["observed_features"], (~np.isnan(y)).mean(axis=0))
    assert 0.5 < values["mean_observed_fraction"] < 0.9
    assert "mean_observed_fraction" in repr(available(y, fm))


@pytest.mark.parametrize(
    "feature_map",
    [
        FeatureMap(3, 40, scale=1.0, distribution="gaussian"),
        FeatureMap(3, 40, scale=1.0, distribution="sparse-radius"),
        FeatureMap(
            3, 40, scale=1.0, distribution="sparse-sums", whitening=np.eye(3) + 0.1,
        ),
    ],
)  # fmt: skip
def test_frequencies_of_all_features_are_refused(feature_map):
    with pytest.raises(InputError, match="nan_policy='available'.*sparse-sums"):
        available(np.zeros((2, 3)), feature_map)


def test_the_noise_level_is_that_of_simulated_sketches(rng):
    fm = sparse_map(m=60)
    found, expected = [], []
    truth = np.exp(-0.5 * (fm.frequencies**2).sum(axis=0))
    for _ in range(40):
        _, y = with_missing(rng, 500)
        sketch = available(y, fm)
        found.append(np.mean(abs(sketch.characteristic - truth) ** 2))
        expected.append(sketch.noise_level)
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.1)


def fitted(seen, uses):
    first, second = pairs_of(seen.shape[1])
    both = (seen[:, first] & seen[:, second]).mean(axis=0)
    observes = (~seen @ uses.T) == 0
    return ObservedPatterns(uses, observes.mean(axis=0), both), observes


@pytest.mark.parametrize("kind", ["independent", "together", "one after the other", "complete"])
def test_overlaps_are_those_of_the_rows(kind, rng):
    n, d = 20_000, 6
    if kind == "independent":
        seen = rng.random((n, d)) > [0.3, 0.1, 0.0, 0.2, 0.5, 0.3]
    elif kind == "together":
        seen = np.repeat(rng.random((n, 2)) > 0.3, 3, axis=1)
    elif kind == "complete":
        seen = np.ones((n, d), dtype=bool)
    else:  # dropouts, as in panels
        seen = np.cumprod(rng.random((n, d)) > 0.15, axis=1) > 0
    uses = supports(sparse_map(d, 64))
    patterns, observes = fitted(seen, uses)
    counts = observes.astype(float).T @ observes
    alone = np.diagonal(counts)
    got = patterns.overlaps()
    np.testing.assert_allclose(got, n * counts / np.outer(alone, alone), rtol=0.08)
    assert np.linalg.eigvalsh(got)[0] > -1e-9 * np.linalg.eigvalsh(got)[-1]
    some = np.array([5, 1, 60])
    np.testing.assert_array_equal(patterns.overlaps(some), got[np.ix_(some, some)])
    factors = patterns.simulate(4000, np.random.default_rng(0))
    np.testing.assert_allclose(factors.T @ factors / 4000, got, rtol=0.3)


def test_a_frequency_that_no_row_observes_has_no_weight():
    fm = sparse_map()
    x = np.zeros((10, 5))
    x[:, 0] = np.nan
    sketch = available(x, fm)
    unseen = supports(fm)[:, 0]
    assert unseen.any()
    np.testing.assert_array_equal(sketch.z[unseen], 0.0)
    assert np.isfinite(sketch.observed.patterns.overlaps()).all()
    assert sketch.mean[0] == fm.center[0]
    assert np.isfinite(sketch.noise_level)


def test_counters_are_plain_values(rng):
    _, y = with_missing(rng, 100)
    counters = available(y, sparse_map()).missing
    assert MissingWeights.sum([None, counters]) == counters
    assert MissingWeights.sum([None]) is None
    assert counters != 3
    assert counters.nbytes == 16 * (40 + 15 + 2 * 5)
    assert isinstance(Sketch.empty(sparse_map()).missing, type(None))
