"""The kernel for sums against ``np.exp`` in float64, and against the kernel for any frequencies."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import reference_sums

from dask_sketch import FeatureMap, merge, partial_sketch
from dask_sketch.errors import ChunkError
from dask_sketch.features.kernels.dense import dense_kernel
from dask_sketch.features.kernels.structured import BLOCK, StructuredKernel, structured_kernel
from dask_sketch.features.kernels.structured_frequencies import SIDE, combine, truncate_to_grid
from dask_sketch.sketching.accumulator import kernel_of

TOLERANCE = {"float32": 2e-7, "float64": 1e-12}


def sums_map(n_features, n_frequencies, dtype="float32", **options):
    return FeatureMap(
        n_features,
        n_frequencies,
        distribution="sparse-sums",
        dtype=dtype,
        **({"scale": 1.0} | options),
    )


def within(rng, n_rows, feature_map, radians):
    """Rows whose phases about the center stay within ``radians``."""
    x = rng.normal(size=(n_rows, feature_map.n_features))
    phases = np.abs(x @ feature_map.frequencies)
    return feature_map.center + x * (radians / max(phases.max(initial=0.0), 1.0))


def explained(x, fm, weights=None):
    """Bound of the rounding error of a mean moment of a few rows; negligible for many.

    Phases of both base frequencies are within 2**-24 of what is built up in each of ``d`` additions
    and in the rounding of the row itself.
    """
    if fm.dtype == "float64":
        return 1e-12
    if len(x) >= 1000:
        return 2e-7
    packed = kernel_of(fm).packed
    cycles = np.abs(packed[:, 1]).sum(axis=1).max() * 2 * np.pi
    built_up = 2 * cycles * np.abs(x - fm.center).max(initial=0.0)
    return 5e-7 + (packed.shape[2] + 1) * 2.0**-24 * built_up


def test_the_distribution_chooses_the_kernel():
    assert isinstance(kernel_of(sums_map(3, 40)).kernel, StructuredKernel)
    assert kernel_of(sums_map(3, 40)).kernel is structured_kernel("float32")
    assert kernel_of(sums_map(3, 40, "float64")).kernel is structured_kernel("float64")
    assert kernel_of(FeatureMap(3, 40, scale=1.0)).kernel is dense_kernel(3, "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_features", [1, 2, 3, 12, 16, 17, 65])
@pytest.mark.few_cases(6)
def test_moments_agree_with_exp(n_features, dtype, rng):
    for n_frequencies in (1, 31, 32, 33, 500):
        fm = sums_map(n_features, n_frequencies, dtype)
        for n_rows in (1, 7, 1000):
            x = within(rng, n_rows, fm, 50.0)
            w = rng.random(n_rows).astype(dtype).astype(float)
            for weights in (None, w):
                total = n_rows if weights is None else w.sum()
                got = partial_sketch(x, fm, weights).moment_sum
                error = np.abs(got - reference_sums(x, fm, weights)).max()
                assert error <= explained(x, fm) * total, (n_frequencies, n_rows)


@pytest.mark.parametrize("n_features", [1, 3, 40])
@pytest.mark.parametrize(
    "n_rows", [0, 1, 15, 16, 17, 33, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 4095, 4097]
)
def test_moments_agree_for_every_number_of_rows(n_rows, n_features, rng):
    fm = sums_map(n_features, 70, "float64")
    x = within(rng, n_rows, fm, 50.0)
    for weights in (None, rng.integers(0, 4, size=n_rows).astype(float)):
        got = partial_sketch(x, fm, weights)
        reference = reference_sums(x, fm, weights)
        np.testing.assert_allclose(got.moment_sum, reference, atol=1e-12 * max(n_rows, 1))
        assert got.count == n_rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [5, 32, 33, 500])
def test_base_frequencies_may_use_every_feature(d, dtype, rng):
    kernel = structured_kernel(dtype)
    cycles = truncate_to_grid(combine(rng.normal(size=(4, 2, SIDE, d)) / d**0.5, 100))
    packed = kernel.pack(cycles)
    assert packed.shape == (32, 2, d)
    x = rng.normal(size=(2000, d))
    x *= 50 / (2 * np.pi * np.abs(x @ cycles).max())
    sums = kernel.zeros(packed)
    kernel.add(x.astype(dtype), packed, sums)
    got = kernel.unpack(sums, 100) * 2.0**-kernel.fraction / len(x)
    expected = np.exp(-2j * np.pi * (x @ cycles)).mean(axis=0)
    error = np.abs(got[0] + 1j * got[1] - expected)
    assert error.max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [2, 5, 64])
def test_rows_are_whitened(d, dtype, rng):
    white = np.eye(d) + 0.5 * rng.normal(size=(d, d)) / d**0.5
    fm = sums_map(d, 100, dtype, whitening=white, center=rng.normal(size=d))
    assert kernel_of(fm).packed.shape == (32, 2, 2)
    np.testing.assert_allclose(
        fm.frequencies, white.T @ fm.cycles_per_unit.astype(float) * 2 * np.pi, rtol=1e-9
    )
    x = within(rng, 2000, fm, 50.0)
    w = rng.integers(0, 4, size=2000).astype(float)
    for weights, total in ((None, 2000), (w, w.sum())):
        got = partial_sketch(x, fm, weights)
        error = np.abs(got.moment_sum - reference_sums(x, fm, weights)) / total
        assert error.max() <= TOLERANCE[dtype]
        order = rng.permutation(2000)
        cut = [partial_sketch(x[part], fm, None if weights is None else weights[part])
               for part in np.split(order, [1, 700, 703])]  # fmt: skip
        assert merge(cut).identical(got)
    copy = FeatureMap.from_spec(fm.spec, fm.digest, fm.frequencies)
    np.testing.assert_array_equal(copy.cycles_per_unit, fm.cycles_per_unit)
    np.testing.assert_array_equal(copy.frequencies, fm.frequencies)


def test_diagonal_whitening_leaves_the_rows(rng):
    fm = sums_map(3, 50, whitening=np.diag([1.0, 2.0, 0.5]))
    assert fm.row_whitening is None
    np.testing.assert_array_equal(fm.cycles_per_unit.astype(float) * (2 * np.pi), fm.frequencies)


def test_rows_that_whitening_takes_too_far_are_refused():
    fm = sums_map(2, 40, whitening=[[1e10, 1e9], [0.0, 1e10]], scale=1e32)
    partial_sketch([[1e22, 0.0]], fm)
    with pytest.raises(ChunkError, match="dtype='float32'"):
        partial_sketch([[3e29, 0.0]], fm)


def test_both_kernels_agree(rng):
    fm = sums_map(12, 500)
    x = np.ascontiguousarray(within(rng, 3000, fm, 50.0), dtype=np.float32)
    cycles = (fm.frequencies / (2 * np.pi)).astype(np.float32)
    sums = {}
    for kernel in (kernel_of(fm).kernel, dense_kernel(12, "float32")):
        packed = kernel.pack(cycles)
        total = kernel.zeros(packed)
        kernel.add(x, packed, total)
        sums[kernel] = kernel.unpack(total, 500) * 2.0**-kernel.fraction / len(x)
    one, other = sums.values()
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-7)


def test_omitted_rows_leave_no_trace(rng):
    fm = sums_map(3, 64)
    x = rng.normal(size=(700, 3))
    broken = x.copy()
    broken[rng.random(700) < 0.3, 1] = np.nan
    got = partial_sketch(broken, fm, nan_policy="omit")
    kept = partial_sketch(broken[np.isfinite(broken).all(axis=1)], fm)
    assert got.count == kept.count < 700
    np.testing.assert_array_equal(got.moment_sum, kept.moment_sum)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_features", [3, 65])
def test_a_row_has_the_same_bits_wherever_it_stands(n_features, dtype, rng):
    fm = sums_map(n_features, 129, dtype)
    x = rng.normal(size=(4200, n_features))
    alone = partial_sketch(x[77:78], fm).moment_sum
    np.testing.assert_array_equal(partial_sketch(x[77:78], fm, [1.0]).moment_sum, alone)
    for place in (0, 1, 15, 16, 100, BLOCK - 1, BLOCK, 4095, 4096, 4199):
        others = np.roll(x, place - 77, axis=0)
        weights = np.zeros(len(x))
        weights[place] = 1.0
        for stop in (place + 1, len(x)):
            got = partial_sketch(others[:stop], fm, weights[:stop])
            np.testing.assert_array_equal(got.moment_sum, alone)
