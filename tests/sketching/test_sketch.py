from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from dask.sizeof import sizeof
from strategies import feature_map

from dask_sketch import Sketch, partial_sketch
from dask_sketch.errors import InputError


@pytest.fixture
def sample(rng):
    return partial_sketch(rng.normal(size=(100, 3)), feature_map(center=[1.0, 0.0, 0.0]))


def test_z_is_eq_13(sample, rng):
    x = np.random.default_rng(20180701).normal(size=(100, 3))
    z = np.exp(-1j * (x @ sample.feature_map.frequencies)).mean(axis=0) / np.sqrt(40)
    np.testing.assert_allclose(sample.z, z, atol=1e-14)
    np.testing.assert_allclose(sample.characteristic, z * np.sqrt(40), atol=1e-13)
    assert sample.z.dtype == np.complex128


def test_pickle_is_exact(sample):
    plain = len(pickle.dumps(sample))
    assert sample.moment_sum is sample.moment_sum  # made once, and kept
    sent = pickle.dumps(sample)
    assert len(sent) == plain  # views do not travel
    again = pickle.loads(sent)
    assert again.identical(sample)
    assert pickle.dumps(again) == sent
    for array in (again.minimum, again.moment_quanta.high, again.second_quanta.low):
        assert not array.flags.writeable
    np.testing.assert_array_equal(again.moment_sum, sample.moment_sum)


def test_identical_sees_every_field(sample, rng):
    assert sample.identical(sample.scale(1.0))
    assert not sample.identical(sample.scale(2.0))
    assert not sample.identical(sample + sample)
    assert not sample.identical((sample + sample) - sample)
    assert not sample.identical(Sketch.empty(feature_map()))


@pytest.mark.parametrize("name", ["z", "characteristic", "mean", "variance", "noise_level"])
def test_an_empty_sketch_says_so(name):
    empty = Sketch.empty(feature_map())
    with pytest.raises(InputError, match="total_weight=0, count=0, omitted=0"):
        getattr(empty, name)
    assert empty.effective_count == 0.0


def test_size_is_true(sample):
    assert sizeof(sample) == sys.getsizeof(sample) or sizeof(sample) == sample.__sizeof__()
    arrays = 40 * 32 + 6 * 3 * 8
    assert arrays < sample.__sizeof__() < arrays + 1000
    big = Sketch.empty(feature_map(n_frequencies=10_040)).__sizeof__()
    assert big - Sketch.empty(feature_map()).__sizeof__() == 10_000 * 32


def test_texts(sample):
    text = repr(sample)
    assert text.startswith("<Sketch: count=100, omitted=0, total_weight=100, noise_level=")
    assert "digest=" in text
    html = sample._repr_html_()
    assert "100 samples of 3 features" in html
    assert "noise_level" in html
    assert "count=0" in repr(Sketch.empty(feature_map()))
    assert "Sketch" in Sketch.empty(feature_map())._repr_html_()


def test_a_sketch_cannot_be_changed(sample):
    with pytest.raises(AttributeError):
        sample.count = 3
    for name in ("moment_sum", "minimum", "maximum", "first_moment", "second_moment"):
        assert not getattr(sample, name).flags.writeable


def test_to_xarray_spells_out_its_conventions(sample):
    dataset = sample.to_xarray()
    assert dataset.sizes == {"feature": 3, "frequency": 40, "part": 2}
    assert "eq. (13)" in dataset.attrs["convention"]
    assert all("meaning" in variable.attrs for variable in dataset.data_vars.values())
    # the convention, followed to the letter
    phase = np.exp(-1j * dataset["frequencies"].values.T @ dataset["center"].values)
    z = phase * dataset["moment_sum"].values / dataset.attrs["total_weight"] / np.sqrt(40)
    np.testing.assert_allclose(z, sample.z, rtol=1e-15, atol=1e-16)
