"""The kernel against ``np.exp`` in float64, and the same bits for a row wherever it stands."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import reference_sums

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.features.kernels.dense import ROWS, dense_kernel

FEATURES = [1, 2, 3, 12, 63, 64, 65, 100]
FREQUENCIES = [1, 15, 127, 128, 129, 1000]


def within(rng, n_rows, feature_map, radians):
    """Rows whose phases about the center stay within ``radians``."""
    x = rng.normal(size=(n_rows, feature_map.n_features))
    phases = np.abs(x @ feature_map.frequencies)
    return feature_map.center + x * (radians / max(phases.max(initial=0.0), 1.0))


def error_and_bound(x, fm, weights=None):
    """Largest error of a mean moment, and what is promised for it.

    1e-12 in float64. In float32, 2e-7 for averages over many rows; a moment of a few rows may have
    their rounding in full: each of ``d`` additions (and the rounding of the row itself) is exact
    to 2**-24 of the phase that is being built up.
    """
    total = max(len(x) if weights is None else weights.sum(), 1.0)
    got = partial_sketch(x, fm, weights)
    error = np.abs(got.moment_sum - reference_sums(x, fm, weights)) / total
    if fm.dtype == "float64":
        return error.max(), 1e-12
    if len(x) >= 1000:
        return error.max(), 2e-7
    built_up = np.abs(x - fm.center) @ np.abs(fm.frequencies)
    steps = fm.n_features + 1
    return error.max(), 2e-7 + steps * 2.0**-24 * built_up.max(initial=0.0)


# each is compiled; the number of features changes nothing that is of one precision alone
COMPILED = {"float32": (1, 12, 65), "float64": (3, 65)}
KERNELS = [
    pytest.param(d, dtype, marks=() if d in chosen else pytest.mark.slow)
    for dtype, chosen in COMPILED.items()
    for d in FEATURES
]


@pytest.mark.parametrize(("n_features", "dtype"), KERNELS)
def test_moments_agree_with_exp(n_features, dtype, rng):
    for n_frequencies in FREQUENCIES:
        fm = FeatureMap(n_features, n_frequencies, scale=1.0, dtype=dtype)
        for n_rows in (1, 7, 1000):
            x = within(rng, n_rows, fm, 50.0)
            w = rng.random(n_rows).astype(dtype).astype(float)
            for weights in (None, w):
                error, bound = error_and_bound(x, fm, weights)
                assert error <= bound, (n_frequencies, n_rows)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_hundreds_of_features_are_as_exact(dtype, rng):
    fm = FeatureMap(784, 400, scale=1.0, dtype=dtype)
    error, bound = error_and_bound(within(rng, 1000, fm, 50.0), fm)
    assert error <= bound


@pytest.mark.parametrize("n_rows", [0, 1, 7, 8, 9, 2047, 2048, 4095, 4096, 4097, 4100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_agree_for_every_number_of_rows(n_rows, dtype, rng):
    fm = FeatureMap(3, 129, scale=1.0, dtype=dtype)
    x = within(rng, n_rows, fm, 50.0)
    for weights in (None, rng.integers(0, 4, size=n_rows).astype(float)):
        error, bound = error_and_bound(x, fm, weights)
        assert error <= bound
        assert partial_sketch(x, fm, weights).count == n_rows


@pytest.mark.parametrize("offset", [1e4, 1e5, 1e6])
def test_data_far_from_the_origin_lose_nothing_with_a_center(offset, rng):
    fm = FeatureMap(12, 500, scale=1.0, center=np.full(12, offset))
    x = within(rng, 1000, fm, 50.0)
    got = partial_sketch(x, fm)
    error = np.abs(got.moment_sum - reference_sums(x, fm)) / 1000
    assert error.max() <= 2e-7
    # and z stands in the original coordinates: phases as exact as long doubles make them
    phases = x.astype(np.longdouble) @ fm.frequencies.astype(np.longdouble)
    z = np.exp(-1j * phases).mean(axis=0) / np.sqrt(500)
    assert np.abs(got.z - z).max() * np.sqrt(500) <= 2e-7


@pytest.mark.parametrize("radians", [100.0, 1e3, 1e4, 1e5])
def test_beyond_fifty_radians_rounding_of_the_phase_explains_the_error(radians, rng):
    fm = FeatureMap(2, 300, scale=1.0)
    x = within(rng, 500, fm, radians).astype(np.float32)
    got = partial_sketch(x, fm).moment_sum / 500
    error = np.abs(got - reference_sums(x, fm) / 500)
    # two additions, each to half a unit in the last place of the phase in cycles
    phases = np.abs(x.astype(float)) @ np.abs(fm.frequencies)
    explained = 2 * 2.0**-24 * phases.mean(axis=0)
    assert (error <= explained + 2e-7).all()


def test_huge_phases_stay_on_the_unit_circle():
    fm = FeatureMap(1, 50, scale=1.0)
    got = partial_sketch([[3e7]], fm).moment_sum
    np.testing.assert_allclose(np.abs(got), 1.0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_features", [3, 65])
def test_a_row_has_the_same_bits_wherever_it_stands(n_features, dtype, rng):
    fm = FeatureMap(n_features, 129, scale=1.0, dtype=dtype)
    x = rng.normal(size=(4200, n_features))
    alone = partial_sketch(x[77:78], fm).moment_sum
    np.testing.assert_array_equal(partial_sketch(x[77:78], fm, [1.0]).moment_sum, alone)
    for place in (0, 1, ROWS - 1, ROWS, 100, 4095, 4096, 4199):
        others = np.roll(x, place - 77, axis=0)
        weights = np.zeros(len(x))
        weights[place] = 1.0
        for stop in (place + 1, len(x)):
            got = partial_sketch(others[:stop], fm, weights[:stop])
            np.testing.assert_array_equal(got.moment_sum, alone)


def test_a_moment_has_the_same_bits_wherever_its_frequency_stands(rng):
    x = rng.normal(size=(100, 2))
    wide = FeatureMap(2, 384, scale=1.0)
    cycles = (wide.frequencies / (2 * np.pi)).astype(np.float32)
    kernel = dense_kernel(2, "float32")
    sums = {}
    for shift in (0, 5, 128):
        packed = kernel.pack(np.roll(cycles, shift, axis=1))
        total = kernel.zeros(packed)
        kernel.add(np.ascontiguousarray(x, dtype=np.float32), packed, total)
        sums[shift] = np.roll(kernel.unpack(total, 384), -shift, axis=1)
    np.testing.assert_array_equal(sums[0], sums[5])
    np.testing.assert_array_equal(sums[0], sums[128])


def test_kernels_are_made_once():
    assert dense_kernel(3, "float32") is dense_kernel(3, "float32")


@pytest.mark.parametrize("order", ["C", "F", "strided", "reversed", "readonly"])
def test_memory_layout_does_not_matter(order, rng):
    fm = FeatureMap(3, 40, scale=1.0, dtype="float64")
    x = rng.normal(size=(50, 3))
    views = {
        "C": x,
        "F": np.asfortranarray(x),
        "strided": np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
        "reversed": x[::-1].copy()[::-1],
        "readonly": x.copy(),
    }
    given = views[order]
    given.flags.writeable = order != "readonly"
    expected = partial_sketch(x, fm)
    assert partial_sketch(given, fm).identical(expected)


@pytest.mark.parametrize(
    "dtype", [">f4", ">f8", "f2", ">i2", "i8", "u8", "u1", "i1", "?", "f4", "longdouble"]
)
def test_every_real_type_is_read_by_its_value(dtype, rng):
    fm = FeatureMap(3, 40, scale=3.0, dtype="float64")
    x = rng.integers(0, 2 if dtype == "?" else 100, size=(50, 3))
    got = partial_sketch(x.astype(dtype), fm)
    assert got.identical(partial_sketch(x.astype(float), fm))
    np.testing.assert_array_equal(got.maximum, x.max(axis=0))
