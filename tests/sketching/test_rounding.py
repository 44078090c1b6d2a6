from dataclasses import replace

import numpy as np
import pytest
from compatibility import format_reader, format_values

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, InputError, LedgerError, MergeError
from dask_sketch.jobs.ledger import Partition
from dask_sketch.sketching.rounding import pack, unpack

MAP = ds.FeatureMap(2, 500, scale=1.0)
RNG = np.random.default_rng(0)
PARTS = [ds.partial_sketch(RNG.normal(size=(n, 2)), MAP) for n in (4097, 1000)]


def test_errors_are_below_the_noise_and_of_mean_zero():
    for n, w in ((1, None), (50, np.ones(50)), (3000, None), (3000, RNG.exponential(size=3000))):
        sketch = ds.partial_sketch(RNG.normal(size=(n, 2)) + 3.0, MAP, w)
        found = np.array([sketch.rounded(seed).moment_sum for seed in range(30)])
        errors = (found - sketch.moment_sum) / sketch.total_weight
        noise = 1.0 / sketch.effective_count
        assert 0 < np.mean(np.abs(errors) ** 2) <= 0.015 * noise
        bound = sketch.rounded().rounding_error / sketch.total_weight
        assert np.mean(np.abs(errors) ** 2) <= 2.1 * bound**2
        assert np.abs(errors.mean()) < 5 * bound / np.sqrt(errors.size)
        bits = np.ceil(np.log2(sketch.effective_count) / 2) + 4
        assert pack(sketch.rounded().moment_quanta)[2] <= bits + 1


def test_errors_of_parts_are_independent():
    parts = [ds.partial_sketch(RNG.normal(size=(300, 2)), MAP) for _ in range(20)]
    exact, small = ds.merge(parts), ds.merge([part.rounded() for part in parts])
    errors = np.abs(small.moment_sum - exact.moment_sum) ** 2
    assert np.mean(errors) <= 2.2 * small.rounding_error**2
    np.testing.assert_allclose(small.noise_level, exact.noise_level, rtol=0.02)
    assert small.noise_level > exact.noise_level


def test_small_files(tmp_path):
    exact = PARTS[0]
    small = exact.rounded()
    assert small.rounded().rounding_error >= small.rounding_error
    small.to_zarr(tmp_path / "small.zarr")
    value = exact.to_bytes(rounded=True)
    for again in (ds.open(value), ds.open(tmp_path / "small.zarr")):
        assert again.identical(small)
        assert again.rounding_error == small.rounding_error
        assert again.to_bytes() == value
        np.testing.assert_array_equal(again.mean, exact.mean)
    packed = pack(small.moment_quanta)
    assert 8 < exact.moment_quanta.nbytes / packed[0].nbytes < 16
    assert unpack(*packed, (2, 500)) == small.moment_quanta
    assert "rounding_error" in repr(small)
    assert "rounding_error" not in repr(exact)
    found = format_reader.read(value)
    assert found["schema_version"] == 4
    np.testing.assert_allclose(format_values.sketch_z(found), small.z, atol=1e-15)
    both = ds.open(value) + PARTS[1]
    assert ds.open(both.to_bytes()).identical(both)
    missing = np.where(RNG.random((300, 7)) < 0.2, np.nan, 1.0)
    plain = ds.FeatureMap(7, 50, scale=1.0, distribution="sparse-sums")
    lacking = ds.partial_sketch(missing, plain, nan_policy="available").rounded()
    assert ds.open(lacking.to_bytes()).identical(lacking)
    assert ds.Sketch.empty(MAP).rounded().rounding_error == 0


def test_rounded_sums_are_refused_where_sums_must_be_exact(tmp_path):
    small = PARTS[0].rounded()
    for first, second in ((small, PARTS[1]), (PARTS[0] + PARTS[1], small)):
        with pytest.raises(MergeError, match="subtract a rounded"):
            first - second
    with pytest.raises(InputError, match="rounded"):
        ds.privatise(small, 1.0)
    with pytest.raises(InputError, match="rounded"):
        ds.SketchGroup.from_sketches({"a": small})
    with pytest.raises(MergeError, match="round"):
        ds.privatise(PARTS[0], 1.0).rounded()
    ledger = ds.create_ledger(tmp_path / "ledger.zarr", MAP)
    with ledger.lock(), pytest.raises(LedgerError, match="'day' is rounded"):
        ledger.commit([(Partition("day", "1"), small)])


def test_edited_digits_are_refused():
    small = PARTS[0].rounded()
    dataset = small._stored()[0]
    for change in ({"moment_bits": 70}, {"moment_shift": -1}, {"rounding_error": -1.0}):
        with pytest.raises(ArtifactError):
            ds.sketching.open.sketch_from_dataset(dataset.assign_attrs(change))
    assert replace(small, rounding_error=0.0).same_sums(small)
