"""The GPU's kernels, on a GPU where there is one, and as C++ on the processor, thread by thread.

There the tensor cores' sums are made as coarsely as any of them does; all other arithmetic is that
of the device, operation by operation.
"""

from __future__ import annotations

import numpy as np
import pytest
from emulation import emulated_cupy
from strategies import assert_close_sketches, reference_sums

from dask_sketch import FeatureMap, merge, partial_sketch
from dask_sketch.errors import ChunkError
from dask_sketch.features.kernels import cuda
from dask_sketch.validation.choices import DISTRIBUTIONS

pytestmark = pytest.mark.usefixtures("gpu")

SINGLE = 7e-7  # of one pair, beside the rounding of the row to float32
SLOW = [pytest.param(d, marks=pytest.mark.slow) for d in (1, 16)]  # each is compiled


def gpu_sketch(x, feature_map, weights=None, **options):
    """Of rows in host memory."""
    return partial_sketch(x, feature_map, weights, device="cuda", **options)


def rows_within(rng, n_rows, feature_map, radians=50.0):
    """Float32 rows whose phases about the center stay within ``radians``."""
    x = rng.normal(size=(n_rows, feature_map.n_features))
    x *= radians / np.abs(x @ feature_map.frequencies).max()
    return (feature_map.center + x).astype(np.float32)


def error_and_bound(x, fm, weights=None):
    total = len(x) if weights is None else weights.sum()
    got = gpu_sketch(x, fm, weights).moment_sum
    error = np.abs(got - reference_sums(x, fm, weights)).max() / total
    if len(x) >= 1000:
        return error, 2e-7
    return error, SINGLE + 2.0**-24 * (np.abs(x - fm.center) @ np.abs(fm.frequencies)).max()


@pytest.mark.slow
@pytest.mark.parametrize("n_features", [*SLOW, 2, 12, 17, 300])
def test_moments_agree_with_exp(n_features, rng):
    fm = FeatureMap(n_features, 129 if n_features == 12 else 20, scale=1.0)
    for n_rows in {12: (1, 7, 16, 65, 1000), 300: (65,)}.get(n_features, (65, 1000)):
        x = rows_within(rng, n_rows, fm)
        for weights in (None, rng.random(n_rows).astype(np.float32).astype(float)):
            error, bound = error_and_bound(x, fm, weights)
            assert error <= bound, (n_rows, weights is not None)


@pytest.mark.slow
def test_one_phase_alone_is_exact_to_its_parts(rng):
    """A single row has no other rows to average its errors out, and equal rows add no bias."""
    fm = FeatureMap(12, 128, scale=1.0)
    cycles = np.abs(fm.frequencies).max(axis=0) / (2 * np.pi)
    for _ in range(5):
        x = rows_within(rng, 1, fm)
        # of each of 12 products, two below 2**-25 of the largest one are left out, at random
        left_out = 2 * np.pi * np.sqrt(12) * 2.0**-24 * np.abs(x).max() * cycles
        error = np.abs(gpu_sketch(x, fm).moment_sum - reference_sums(x, fm))
        assert (error <= SINGLE + left_out).all()
    same = np.repeat(x, 500, axis=0)
    error = np.abs(gpu_sketch(same, fm).moment_sum - reference_sums(same, fm)) / 500
    assert (error <= SINGLE + left_out).all()


@pytest.mark.slow
def test_features_may_have_any_units(rng):
    units = 10.0 ** np.repeat([6.0, -6.0, 0.0, 3.0], 3)
    fm = FeatureMap(12, 60, covariances=units**2)
    x = (rng.normal(size=(1000, 12)) * units).astype(np.float32)
    error, bound = error_and_bound(x, fm)
    assert error <= bound


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.few_cases(5)
def test_every_distribution_is_drawn_on_the_host(distribution, rng):
    m = 96 if distribution == "gaussian-pairs" else 70
    fm = FeatureMap(12, m, scale=2.0, distribution=distribution)
    x = rows_within(rng, 1000, fm, 20.0)
    there, here = gpu_sketch(x, fm), partial_sketch(x, fm)
    assert there.feature_map.digest == here.feature_map.digest
    assert np.abs(there.z - here.z).max() * np.sqrt(m) <= 2e-7


def test_cpu_and_gpu_make_the_same_sketch(rng):
    fm = FeatureMap(2, 50, scale=1.0, center=[5.0, 100.0])
    x = (fm.center + rng.normal(size=(1000, 2))).astype(np.float32)
    for weights in (None, rng.random(1000)):
        there, here = gpu_sketch(x, fm, weights), partial_sketch(x, fm, weights)
        assert there.feature_map.digest == here.feature_map.digest
        assert_close_sketches(there, here)
        assert np.abs(there.z - here.z).max() * np.sqrt(50) <= 2e-7
        assert merge([there, here]).count == 2000


@pytest.mark.slow
def test_wide_rows_are_described_feature_by_feature(rng):
    fm = FeatureMap(300, 5, scale=1.0, dtype="float64")
    x = rng.normal(size=(100, 300))
    assert_close_sketches(gpu_sketch(x, fm), partial_sketch(x, fm), rel=1e-13)


def test_double_precision(rng):
    fm = FeatureMap(2, 600, scale=1.0, dtype="float64", center=[1.0, 2.0])
    x = fm.center + rng.normal(size=(101, 2)) * 3
    for weights in (None, rng.random(101)):
        there, here = gpu_sketch(x, fm, weights), partial_sketch(x, fm, weights)
        assert_close_sketches(there, here, rel=1e-13)
        np.testing.assert_allclose(there.moment_sum, reference_sums(x, fm, weights), atol=1e-10)


@pytest.mark.slow
def test_bits_do_not_depend_on_the_order_of_threads(rng, monkeypatch):
    fm = FeatureMap(12, 129, scale=1.0)
    x, weights = rng.normal(size=(300, 12)), rng.random(300)
    for dtype, share in (("f4", None), ("f4", weights)):
        forwards = gpu_sketch(x.astype(dtype), fm, share)
        assert gpu_sketch(x.astype(dtype), fm, share).identical(forwards)
        monkeypatch.setattr(emulated_cupy.settings, "backwards", True)
        assert gpu_sketch(x.astype(dtype), fm, share).identical(forwards)
        monkeypatch.setattr(emulated_cupy.settings, "backwards", False)


def test_a_row_has_the_same_bits_wherever_it_stands(rng):
    fm = FeatureMap(12, 40, scale=1.0)
    x = rng.normal(size=(200, 12)).astype(np.float32)
    alone = gpu_sketch(x[:1], fm).moment_sum
    for place in (0, 8, 15, 16, 100, 199):
        weights = np.zeros(200)
        weights[place] = 1.0
        got = gpu_sketch(np.roll(x, place, axis=0), fm, weights).moment_sum
        np.testing.assert_array_equal(got, alone)


@pytest.mark.slow
def test_chunks_are_read_in_batches(gpu, rng, monkeypatch):
    monkeypatch.setattr(cuda, "BATCH_BYTES", 1)
    assert cuda.batch_rows(1) == cuda.SLAB
    fm = FeatureMap(2, 5, scale=1.0)
    x = rng.normal(size=(cuda.SLAB + 100, 2)).astype(np.float32)
    got = gpu_sketch(x, fm)
    assert gpu.launches.count("sum_moments") == 2
    assert_close_sketches(got, partial_sketch(x, fm))
    x[cuda.SLAB + 7] = np.nan
    with pytest.raises(ChunkError, match=f"row {cuda.SLAB + 7} "):
        gpu_sketch(x, fm)


@pytest.mark.parametrize("dtype", [">f4", "f8", "f2", "i2", "i8", "u8", "u4", "i4", "u1", "?"])
@pytest.mark.few_cases(6)
def test_every_real_type_is_read_by_its_value(dtype, rng):
    fm = FeatureMap(2, 10, scale=3.0)
    x = rng.integers(0, 2 if dtype == "?" else 100, size=(50, 2)).astype(dtype)
    there, here = gpu_sketch(x, fm), partial_sketch(x, fm)
    assert_close_sketches(there, here, rel=2e-6)  # 50 rows only
    np.testing.assert_array_equal(there.maximum, x.max(axis=0))


def test_memory_layout_does_not_matter(gpu, rng):
    fm = FeatureMap(2, 20, scale=1.0)  # of as many features as above: kernels are compiled
    x = rng.normal(size=(50, 2)).astype(np.float32)
    expected = gpu_sketch(x, fm)
    wide = np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3]
    for view in (np.asfortranarray(x), wide, x.reshape(5, 10, 2)):
        assert gpu_sketch(view, fm).identical(expected)
        assert partial_sketch(gpu.cupy.asarray(view), fm).identical(expected)
    wider = gpu.cupy.asarray(np.repeat(np.repeat(x, 2, axis=0), 3, axis=1))
    assert partial_sketch(wider[::2, ::3], fm).identical(expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_left_out_or_refused_as_on_the_cpu(dtype, rng):
    fm = FeatureMap(2, 20, scale=1.0, dtype=dtype)
    x = rng.normal(size=(100, 2))
    x[[3, 40, 99], [0, 1, 1]] = np.nan, np.inf, -np.inf
    weights = rng.random(100)
    for share in (None, weights):
        there = gpu_sketch(x, fm, share, nan_policy="omit")
        here = partial_sketch(x, fm, share, nan_policy="omit")
        assert (there.omitted, there.count) == (3, 97)
        assert_close_sketches(there, here, rel=2e-6 if dtype == "float32" else None)
    bad = weights.copy()
    bad[2] = -1.0
    for share, policy in ((None, "raise"), (weights, "raise"), (bad, "raise"), (bad, "omit")):
        with pytest.raises(ChunkError) as on_cpu:
            partial_sketch(x, fm, share, nan_policy=policy, label="chunk 7")
        with pytest.raises(ChunkError) as on_gpu:
            gpu_sketch(x, fm, share, nan_policy=policy, label="chunk 7")
        assert str(on_gpu.value) == str(on_cpu.value)


@pytest.mark.parametrize("weight", [np.nan, np.inf, 1e31, -1.0, 2.0**33, 2.0**-33])
def test_weights_that_are_none_are_refused(weight):
    with pytest.raises(ChunkError, match="row 1 "):
        gpu_sketch(np.zeros((3, 2)), FeatureMap(2, 5, scale=1.0), [1.0, weight, 1.0])


def test_rows_without_weight_count_but_change_nothing(rng):
    fm = FeatureMap(2, 10, scale=1.0)
    x = rng.normal(size=(40, 2))
    x[7] = 1e3
    weights = np.ones(40)
    weights[7] = 0.0
    got = gpu_sketch(x, fm, weights)
    assert got.count == 40
    assert got.maximum.max() < 10
    rest = gpu_sketch(np.delete(x, 7, axis=0), fm)
    np.testing.assert_allclose(got.moment_sum, rest.moment_sum, atol=1e-5)


@pytest.mark.parametrize("radians", [1e3, 1e5, 1e7, 6e7])
def test_far_rows_are_as_exact_as_their_rounding(gpu, radians, rng):
    fm = FeatureMap(2, 30, scale=1.0)
    x = rows_within(rng, 33, fm).astype(np.float64)
    x[5] = rows_within(rng, 1, fm, radians)
    x = x.astype(np.float32).astype(np.float64)  # nothing is lost on the way
    got = gpu_sketch(x, fm)
    assert ("sum_exact" in gpu.launches) == (radians > 1e6)
    exact = np.exp(-1j * (x.astype(np.longdouble) @ fm.frequencies.astype(np.longdouble)))
    error = np.abs(got.moment_sum - exact.sum(axis=0)).max()
    rounding = 2.0**-25 if radians < 1e6 else 2.0**-49
    assert error <= 33 * SINGLE + rounding * radians
    assert got.count == 33


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [1e300, 1e8])
def test_values_too_far_are_refused_as_on_the_cpu(value, dtype):
    fm = FeatureMap(2, 5, scale=1.0, dtype=dtype)
    x = np.array([[0.0, 1.0], [2 * value, 0.0], [value, 0.0]])
    said = []
    for run in (gpu_sketch, partial_sketch):
        with pytest.raises(ChunkError, match=r"row 2 .* feature 0") as error:
            run(x, fm, [1.0, 0.0, 1.0], label="here")
        said.append(str(error.value))
    assert said[0] == said[1]
    assert gpu_sketch(x[:2], fm, [1.0, 0.0]).count == 2


def test_empty_chunks(rng):
    fm = FeatureMap(2, 5, scale=1.0)
    assert gpu_sketch(np.empty((0, 2)), fm).identical(partial_sketch(np.empty((0, 2)), fm))
    gone = gpu_sketch(np.full((3, 2), np.nan), fm, nan_policy="omit")
    assert (gone.count, gone.omitted, gone.total_weight) == (0, 3, 0.0)
    assert not gone.moment_sum.any()


def test_frequencies_are_cut_without_loss(rng):
    cycles = rng.normal(size=(12, 40)).astype(np.float32).astype(float)
    bits = cuda.cut(cycles, axis=0).astype(np.uint32) << 16
    parts = bits.view(np.float32).astype(float)
    largest = np.abs(cycles).max(axis=0)
    assert (np.abs(parts.sum(axis=0) - cycles) <= 2.0**-26 * largest).all()
    unit = 2.0 ** (np.floor(np.log2(largest)) - 7)
    assert (parts[0] / unit == np.rint(parts[0] / unit)).all()
    assert (np.abs(parts[0]) <= 256 * unit).all()
