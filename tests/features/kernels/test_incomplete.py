"""Sums and counters over rows with missing values, against ``np.exp`` and counts in float64."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap
from dask_sketch.features.kernels.dense import DenseKernel
from dask_sketch.features.kernels.incomplete import (
    IncompleteKernel,
    missing_values,
    pairs_of,
    used_features,
)
from dask_sketch.features.kernels.structured import StructuredKernel

TOLERANCE = {"float32": 3e-7, "float64": 1e-13}


def rows(rng, n, d, dtype, fraction=0.3):
    x = rng.normal(size=(n, d)).astype(dtype)
    observed = (rng.random((n, d)) >= fraction).astype(dtype)
    return x * observed, observed


def kernels(feature_map, bits=None):
    dtype = feature_map.dtype
    if feature_map.distribution == "sparse-sums":
        kernel = StructuredKernel(dtype, bits)
    else:
        kernel = DenseKernel(feature_map.n_features, dtype, bits)
    return kernel, IncompleteKernel(kernel, feature_map.cycles_per_unit)


def summed(feature_map, x, observed, weights=None, bits=None):
    kernel, incomplete = kernels(feature_map, bits)
    sums = kernel.zeros(kernel.pack(feature_map.cycles_per_unit))
    incomplete.add(x, observed, sums, weights)
    return kernel.unpack(sums, feature_map.n_frequencies), 2.0**-kernel.fraction


# dense kernels are compiled for each number of features: those that other tests have as well
SIZES = [
    *(("sparse-sums", *size) for size in [(1, 5, 3), (5, 40, 700), (16, 33, 100), (17, 70, 257)]),
    *(("sparse-radius", *size) for size in [(1, 5, 3), (3, 40, 700), (12, 33, 100), (65, 70, 257)]),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("distribution", "d", "m", "n"), SIZES)
def test_each_frequency_sums_the_rows_that_observe_it(dtype, distribution, d, m, n, rng):
    fm = FeatureMap(d, m, scale=1.0, distribution=distribution, dtype=dtype, seed=1)
    x, observed = rows(rng, n, d, dtype)
    uses = used_features(fm.cycles_per_unit, distribution == "sparse-sums")
    np.testing.assert_array_equal(uses, fm.frequencies.T != 0)
    counts = ((1 - observed) @ uses.T) == 0
    for weights in (None, rng.uniform(0.1, 1, n).astype(dtype)):
        quanta, unit = summed(fm, x, observed, weights)
        terms = counts * np.exp(-1j * (x.astype(float) @ fm.frequencies))
        expected = terms.sum(axis=0) if weights is None else weights.astype(float) @ terms
        got = unit * quanta
        assert abs(got[0] + 1j * got[1] - expected).max() <= TOLERANCE[dtype] * n + 1e-6 * (n < 10)


@pytest.mark.parametrize("distribution", ["sparse-sums", "sparse-radius"])
def test_bits_depend_neither_on_vectors_nor_on_the_order_of_rows(distribution, rng):
    fm = FeatureMap(3, 50, scale=1.0, distribution=distribution, seed=1)
    x, observed = rows(rng, 300, 3, "float32")
    weights = rng.uniform(0.1, 1, 300).astype("float32")
    order = rng.permutation(300)
    expected, _ = summed(fm, x, observed, weights)
    for bits in (128, None):  # each width is compiled; None is that of the processor
        got, _ = summed(fm, x[order], observed[order], weights[order], bits)
        np.testing.assert_array_equal(got, expected)


def test_a_row_without_missing_values_has_the_sums_of_the_other_kernel(rng):
    fm = FeatureMap(6, 50, scale=1.0, distribution="sparse-sums", seed=1)
    x = rng.normal(size=(100, 6)).astype("float32")
    kernel, _ = kernels(fm)
    packed = kernel.pack(fm.cycles_per_unit)
    sums = kernel.zeros(packed)
    kernel.add(x, packed, sums)
    got, _ = summed(fm, x, np.ones_like(x))
    np.testing.assert_array_equal(got, kernel.unpack(sums, 50))


@pytest.mark.parametrize("n", [1, 63, 64, 65, 5000])
def test_counters_are_exact(n, rng):
    fm = FeatureMap(5, 40, scale=1.0, distribution="sparse-sums", seed=1)
    _, incomplete = kernels(fm)
    _, observed = rows(rng, n, 5, "float32")
    mantissas = rng.integers(2**20, 2**24, n) * 2.0**-24
    for weights in (None, mantissas.astype("float32")):
        quanta = np.full(n, 2**48) if weights is None else (mantissas * 2.0**48).astype(np.int64)
        found = incomplete.count(observed, weights)
        for members, total in zip(incomplete.sets, found, strict=True):
            assert total == quanta[(observed[:, members] == 1).all(axis=1)].sum()


def test_counters_of_groups_are_exact(rng):
    fm = FeatureMap(70, 40, scale=1.0, distribution="sparse-sums", seed=1)
    _, incomplete = kernels(fm)
    n = 20_000  # the sums of most of them have two words
    _, observed = rows(rng, n, 70, "float64")
    counts, missing = missing_values(np.where(observed > 0, 1.0, np.nan))
    np.testing.assert_array_equal(counts, (observed == 0).sum(axis=1))
    order = rng.permutation(n).astype(np.uint32)
    ends = np.array([3, 3, 80, n])
    starts = np.r_[0, ends[:-1]]
    quanta = rng.integers(2**44, 2**48, n)
    for given in (None, quanta):
        found = incomplete.count_missing(missing, order, starts, ends, given)
        sets = np.r_[incomplete.set_of_frequency[:4], len(incomplete.sets) - np.arange(3, 0, -1)]
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            part = order[start:end]
            both = found[0].integers(group)[:4] + found[1].integers(group)[-3:]
            for members, total in zip(incomplete.sets[sets], both, strict=True):
                lack = (observed[part][:, members] == 0).any(axis=1)
                weight = int(lack.sum()) << 71 if given is None else int(quanta[part][lack].sum())
                assert total == weight


def test_sets_are_the_features_of_the_frequencies_and_all_pairs():
    fm = FeatureMap(7, 90, scale=1.0, distribution="sparse-sums", seed=1)
    _, incomplete = kernels(fm)
    for number, chosen in enumerate(incomplete.set_of_frequency):
        assert set(incomplete.sets[chosen]) == set(np.flatnonzero(fm.frequencies[:, number]))
    first, second = pairs_of(7)
    assert incomplete.n_pairs == len(first) == 28
    assert [set(each) for each in incomplete.sets[-28:]] == [
        {a, b} for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]
    assert len(pairs_of(2000)[0]) == 2000
