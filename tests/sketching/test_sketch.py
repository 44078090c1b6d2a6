"""A sketch: averages, their error, description and immutability."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from dask.sizeof import sizeof
from scipy import stats
from strategies import feature_map

from dask_sketch import FeatureMap, Sketch, partial_sketch
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


def characteristic(weights, means, variances, omega):
    """Eq. (15), summed over the components of a diagonal mixture."""
    phase = means @ omega
    decay = np.exp(-0.5 * (variances @ omega**2))
    return weights @ (np.exp(-1j * phase) * decay)


def draw(rng, n, weights, means, variances):
    labels = rng.choice(len(weights), size=n, p=weights)
    return means[labels] + rng.normal(size=(n, means.shape[1])) * np.sqrt(variances[labels])


MIXTURES = {
    "one": ([1.0], [[0.5, -1.0]], [[1.0, 0.5]]),
    "three": (
        [0.2, 0.5, 0.3],
        [[-4.0, 0.0], [3.0, 3.0], [0.0, -5.0]],
        [[1.0, 0.5], [0.3, 1.5], [1.0, 1.0]],
    ),
    "five features": (
        [0.5, 0.5],
        [[0.0, 1.0, 2.0, 3.0, 4.0], [5.0, -1.0, 0.0, 0.0, 2.0]],
        [[1.0] * 5, [0.5] * 5],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("n", [50, 2000])
@pytest.mark.parametrize("weighted", [False, True])
def test_mean_squared_error_is_the_variance_over_n(name, n, weighted, rng):
    weights, means, variances = map(np.array, MIXTURES[name])
    fm = FeatureMap(means.shape[1], 60, scale=1.0, seed=3)
    z = characteristic(weights, means, variances, fm.frequencies) / np.sqrt(60)
    errors, levels = [], []
    for _ in range(200):
        w = rng.integers(1, 4, size=n).astype(float) if weighted else None
        got = partial_sketch(draw(rng, n, weights, means, variances), fm, w)
        errors.append(np.linalg.norm(got.z - z) ** 2)
        levels.append(got.noise_level)
    effective = n if not weighted else n * 2.0**2 / np.mean([1, 4, 9])
    expected = (1 - np.linalg.norm(z) ** 2) / effective
    # the errors of repeated draws are independent: a t-test at one in a hundred thousand
    assert stats.ttest_1samp(errors, expected).pvalue > 1e-5
    assert np.mean(errors) == pytest.approx(expected, rel=0.15)
    assert np.mean(levels) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_estimate_is_unbiased(name, rng):
    weights, means, variances = map(np.array, MIXTURES[name])
    fm = FeatureMap(means.shape[1], 40, scale=1.0, seed=1)
    z = characteristic(weights, means, variances, fm.frequencies) / np.sqrt(40)
    n = 200_000
    got = partial_sketch(draw(rng, n, weights, means, variances), fm)
    # chi-squared with about 80 degrees of freedom, of correlated terms: ten times its mean never
    assert np.linalg.norm(got.z - z) ** 2 < 4 * (1 - np.linalg.norm(z) ** 2) / n
    assert np.linalg.norm(got.z) <= 1
    np.testing.assert_allclose(got.mean, weights @ means, atol=6 * np.sqrt(20 / n))
    total = weights @ (variances + means**2) - (weights @ means) ** 2
    np.testing.assert_allclose(got.variance, total, rtol=0.03)


def test_mean_and_variance_are_those_of_the_data(rng):
    x = 1e5 + rng.normal(size=(3000, 3)) * [1.0, 10.0, 0.1]
    w = rng.random(3000)
    fm = FeatureMap(3, 5, scale=1.0, center=x[:10].mean(axis=0))
    got = partial_sketch(x, fm, w)
    w = w.astype(np.float32).astype(float)  # as the float32 kernel has it
    mean = np.average(x, axis=0, weights=w)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(
        got.variance, np.average((x - mean) ** 2, axis=0, weights=w), rtol=1e-9
    )
    assert got.effective_count == pytest.approx(w.sum() ** 2 / (w**2).sum())
    np.testing.assert_array_equal(got.minimum, x.min(axis=0))
    np.testing.assert_array_equal(got.maximum, x.max(axis=0))


def test_one_row_has_modulus_one():
    got = partial_sketch([[3.0, 4.0]], FeatureMap(2, 100, scale=1.0))
    assert np.linalg.norm(got.z) == pytest.approx(1.0, abs=1e-6)
    assert 0.0 <= got.noise_level < 1e-6
    np.testing.assert_array_equal(got.variance, 0.0)


def test_whether_the_random_rows_are_all_rows(rng):
    made = FeatureMap(3, 40, scale=1.0, distribution="sparse-sums")
    x = rng.normal(size=(60, 3))
    assert partial_sketch(x, made, sample=60).holds_all_rows
    assert not partial_sketch(x, made, sample=59).holds_all_rows
    assert not partial_sketch(x, made).holds_all_rows
    x[3, 1] = np.nan
    assert partial_sketch(x, made, sample=60, nan_policy="omit").holds_all_rows
    assert not partial_sketch(x, made, sample=60, nan_policy="available").holds_all_rows
