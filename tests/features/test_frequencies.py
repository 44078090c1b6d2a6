from __future__ import annotations

import hashlib

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch import FeatureMap
from dask_sketch.errors import ArtifactError
from dask_sketch.features.kernels.structured_frequencies import signs_of_zeros


def test_frequencies_are_sampled_once_for_a_specification():
    first = FeatureMap(2, 5, scale=1.0, seed=1)
    omega = first.frequencies
    assert FeatureMap(2, 5, scale=1.0, seed=1).frequencies is omega


def test_the_last_specifications_used_are_kept():
    used = FeatureMap(2, 5, scale=1.0, seed=100).frequencies
    for seed in range(20):
        _ = FeatureMap(2, 5, scale=1.0, seed=seed).frequencies
        assert FeatureMap(2, 5, scale=1.0, seed=100).frequencies is used
    # others are sampled again, with the same result
    forgotten = FeatureMap(2, 5, scale=1.0, seed=0)
    assert FeatureMap.from_spec(forgotten.spec, forgotten.digest) == forgotten


def with_other_signs(feature_map, changes=1):
    """Frequencies of another processor: some zeros have another sign; and their digest."""
    cycles = feature_map.cycles_per_unit.copy()
    for feature, sums, differences in signs_of_zeros(cycles)[:changes]:
        negative = np.signbit(cycles[feature, sums]).any()
        cycles[feature, np.concatenate([sums, differences])] = 0.0
        if not negative:
            cycles[feature, sums] = -0.0
    digest = hashlib.sha256(feature_map.spec.encode() + b"\0" + cycles.tobytes()).hexdigest()
    assert digest != feature_map.digest
    return cycles, digest


@pytest.mark.parametrize("m", [64, 300])
@pytest.mark.parametrize("whitening", [None, np.diag([0.5, 2.0, 1.0, 3.0, 0.25])])
def test_signs_of_zeros_may_depend_on_the_processor(m, whitening):
    found = FeatureMap(5, m, distribution="sparse-sums", scale=0.7, seed=5, whitening=whitening)
    x = np.random.default_rng(0).normal(size=(50, 5))
    here = ds.partial_sketch(x, found)
    for changes in (1, 2):
        cycles, digest = with_other_signs(found, changes)
        # of a feature map that was sent, and of a Zarr group
        for frequencies in (None, cycles.astype(np.float64) * (2 * np.pi)):
            other = FeatureMap.from_spec(found.spec, digest, frequencies)
            np.testing.assert_array_equal(other.cycles_per_unit, found.cycles_per_unit)
            np.testing.assert_array_equal(np.signbit(other.cycles_per_unit), np.signbit(cycles))
        there = ds.partial_sketch(x, FeatureMap.from_spec(found.spec, digest))
        np.testing.assert_array_equal(there.z, here.z)
        opened = ds.open(there.to_bytes())
        assert opened.feature_map.digest == digest
        both = ds.merge([here, opened])
        np.testing.assert_array_equal(both.z, here.z)
        assert both.count == 100


def test_whitened_rows_of_another_processor(tmp_path):
    white = np.eye(4) + 0.1 * np.arange(4)
    found = FeatureMap(4, 64, distribution="sparse-sums", scale=0.7, seed=6, whitening=white)
    other = FeatureMap.from_spec(found.spec, with_other_signs(found)[1])
    sketch = ds.partial_sketch(np.ones((3, 4)), other)
    sketch.to_zarr(tmp_path / "s.zarr")
    assert ds.open(tmp_path / "s.zarr").identical(sketch)


@pytest.mark.parametrize("distribution", ["sparse-sums", "adapted-radius"])
def test_other_values_are_refused(distribution):
    found = FeatureMap(5, 64, distribution=distribution, scale=0.7, seed=5)
    cycles = found.cycles_per_unit.copy()
    cycles[0, np.flatnonzero(cycles[0])[0]] *= 1 + 2**-22
    digest = hashlib.sha256(found.spec.encode() + b"\0" + cycles.tobytes()).hexdigest()
    with pytest.raises(ArtifactError, match=f"{found.digest[:12]}.*{digest[:12]}"):
        _ = FeatureMap.from_spec(found.spec, digest).frequencies


@pytest.mark.slow
def test_many_zeros_take_bounded_time():
    found = FeatureMap(3, 2000, distribution="sparse-sums", scale=0.7, seed=5)
    assert len(signs_of_zeros(found.cycles_per_unit)) > 50
    with pytest.raises(ArtifactError, match="0" * 12):
        _ = FeatureMap.from_spec(found.spec, "0" * 64).frequencies
