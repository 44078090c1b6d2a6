"""Warnings of rows and features that no mixture describes well."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dask_sketch import FeatureMap, decode, design, partial_sketch, sketch
from dask_sketch.decoders.checks.unusual_rows import (
    warn_of_dependence,
    warn_of_few_samples,
    warn_of_narrow_components,
)


@pytest.fixture(scope="module")
def data():
    """Three features of two clusters."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 3))
    rows[:700] += [5.0, 0.0, 2.0]
    return rows


def _messages(rows, covariance_type):
    feature_map = design(rows, n_components=2, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decode(sketch(rows, feature_map, sample=True), 2, covariance_type=covariance_type, seed=0)
    return [str(each.message) for each in caught if "linearly dependent" in str(each.message)]


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_dependent_features_are_named(data, covariance_type):
    rows = np.column_stack([data, 2.0 * data[:, 0] - 3.0 * data[:, 2]])
    (message,) = _messages(rows, covariance_type)
    assert message.startswith("feature 0, feature 2 and feature 3 are")
    assert "Leave out 1 of them" in message


@pytest.mark.slow
def test_features_without_width_or_with_noise_are_not_dependent(data):
    noise = 0.02 * np.random.default_rng(1).normal(size=len(data))
    rows = np.column_stack([data, data[:, 0] + noise, np.arange(len(data)) < 700])
    assert _messages(rows, "full") == []
    assert _messages(np.column_stack([data, data[:, 0]]), "diag") == []


def test_many_dependent_features_are_counted():
    rows = np.random.default_rng(0).dirichlet(np.full(7, 2.0), 500)
    found = sketch(rows, design(rows, n_components=1, seed=0))
    with pytest.warns(UserWarning, match="7 features, such as feature 0") as caught:
        warn_of_dependence(found, np.ones(1), np.cov(rows.T)[None])
    assert len(caught) == 1
    assert "Leave out 1 of them" in str(caught[0].message)


def test_a_far_row_that_is_not_among_the_random_rows_is_named():
    rows = np.random.default_rng(0).normal(size=(5000, 2))
    rows[17, 1] = 400.0
    whole = FeatureMap(2, 50, scale=1.0)
    maps = (replace(whole, seed=seed) for seed in range(5))
    few = (sketch(rows, each, sample=200) for each in maps)
    lost = next(each for each in few if each.sample.rows.max() < 100.0)
    with pytest.warns(UserWarning, match=r"feature 1 has the value 400.* sample="):
        decode(lost, 3, model="dirac")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(sketch(rows, whole, sample=5000), 3, model="dirac")


def test_light_rows_far_away_are_not_counted_as_heavy_ones(rng):
    x, w = rng.normal(size=(30_000, 2)), np.ones(30_000)
    x[0], w[0], w[1] = (-500.0, 0.0), 1e-4, 1000.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feature_map = design(x, n_components=2, task="clustering", weights=w)
        decode(sketch(x, feature_map, weights=w, sample=3000), 2, model="dirac")


def test_heavy_rows_that_are_not_among_the_random_rows_are_counted(rng):
    x, w = rng.normal(size=(30_000, 2)), rng.uniform(0.5, 2.0, size=30_000)
    feature_map = design(x, n_components=2, task="clustering", weights=w)
    x[:3] = (-300.0, 0.0)
    others = sketch(x[3:], feature_map, weights=w[3:], sample=1000).sample
    found = replace(sketch(x, feature_map, weights=w, sample=1000), sample=others)
    with pytest.warns(UserWarning, match=r"feature 0.* -300.* such rows add about [67]\d\d\.\d%"):
        decode(found, 2, model="dirac")


def test_rows_that_the_pilot_does_not_have_are_counted_without_rows(rng):
    x = rng.normal(size=(20_000, 2))
    feature_map = design(x, n_components=2, task="clustering")
    x[:50] = rng.normal(size=(50, 2)) + 30.0
    with pytest.warns(UserWarning, match=r"feature \d .*add about 3\d\d% to"):
        decode(sketch(x, feature_map, sample=False), 2, model="dirac")


def test_components_of_few_rows_are_warned_of_without_a_pilot():
    rows = np.random.default_rng(0).normal(size=(10_000, 6))
    rows[:20] += 60.0
    feature_map = FeatureMap(
        6, 130, covariances=np.outer([1.0, 16.0, 256.0, 4096.0], np.ones(6)),
        distribution="sparse-radius",
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"1 of 2 components .* 2\d rows.* 13 parameters"):
        decode(partial_sketch(rows, feature_map), 2)


@pytest.mark.parametrize("rounded", [True, False])
def test_components_of_one_value_are_named(rounded):
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(5.0, 1.0, (400, 2)), rng.normal(0.0, 1.0, (400, 2))])
    if rounded:
        rows[:, 1] = rows[:, 1].round()
    rows[:300, 1] = 9.0
    with pytest.warns(UserWarning, match="9 in feature 1") as caught:
        decode(sketch(rows, design(rows, n_components=3)), 3)
    (message,) = [str(each.message) for each in caught if "9 in feature 1" in str(each.message)]
    share = float(message.split("%")[0].split()[-1])
    assert share >= 37.0 if rounded else share == pytest.approx(100 * 300 / 800, abs=3)
    assert ("from -0.5 to 0.5" in message) == rounded
    # noise of the width of the rounding gives them a density
    noisy = rows + rng.uniform(-0.5, 0.5, rows.shape)
    decode(sketch(noisy, design(noisy, n_components=3)), 3)


@pytest.mark.parametrize(("covariance_type", "share"), [("full", 0.03), ("diag", 0.1)])
def test_values_in_place_of_missing_ones_are_named(covariance_type, share):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 2)) + 4 * rng.integers(0, 2, (2000, 1))
    rows[rng.random(rows.shape) < share] = -999.0
    feature_map = design(rows, n_components=4, covariance_type=covariance_type)
    with pytest.warns(UserWarning, match="such as -999 in feature"):
        decode(sketch(rows, feature_map), 4, covariance_type=covariance_type)


def test_few_rows_of_matrices_are_named():
    rows = np.random.default_rng(1).normal(size=(10, 2))
    feature_map = design(rows, n_components=3, covariance_type="full")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decode(sketch(rows, feature_map), 3, covariance_type="full")
    assert any("10 rows are few for n_components=3" in str(each.message) for each in caught)


def test_few_rows_that_count_are_named_with_all_rows():
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(3000, 2)), np.full(3000, 1e-9)
    weights[0] = 1.0
    found = partial_sketch(x, FeatureMap(2, 60, scale=1.0), weights)
    with pytest.warns(UserWarning, match=r"3,000 rows, .* number of 1, .*n_components=2"):
        warn_of_few_samples(found, 2, 5)


@pytest.mark.parametrize("sample", [None, False])
def test_clusters_narrower_than_the_smallest_variance_are_named(sample):
    """A code so far out that sums of squares lose the digits of the other rows."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30_000, 4))
    rows[rng.random(30_000) < 0.02, 2] = 1e10
    feature_map = design(rows, n_components=3)
    with pytest.warns(UserWarning, match=r"feature 2.* loses about 6\.. nats.* 999999"):
        decode(sketch(rows, feature_map, sample=sample), 3)
    assert 6.0 < feature_map.pilot.floor_loss < 7.0
    assert FeatureMap.from_json(feature_map.to_json()).pilot.floor_loss > 6.0
    assert design(rows[:, :2], n_components=3).pilot.floor_loss == 0.0


@pytest.mark.parametrize("covariance_type", ["diag", "full"])
@pytest.mark.filterwarnings("ignore:the mixture leaves an overidentification statistic")
@pytest.mark.parametrize("sample", [None, False])
def test_a_code_for_missing_values_costs_nothing(sample, covariance_type):
    """Fits lost 4.4 nats, since the smallest variance was a millionth of that of all rows."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30_000, 4))
    rows[rng.random(30_000) < 0.02, 2] = 999_999.0
    feature_map = design(rows, n_components=3)
    assert FeatureMap.from_json(feature_map.to_json()).pilot.floor[2] < 0.02
    model = decode(sketch(rows, feature_map, sample=sample), 3, covariance_type=covariance_type)
    others = rng.normal(size=(5000, 4))
    truth = stats.norm.logpdf(others).sum(axis=1).mean() + np.log(0.98)
    assert model.logpdf(others).mean() > truth - 0.01


def test_levels_are_advised_for_a_feature_of_few_values():
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 3, 5000).astype(float)
    amounts = np.where(levels > 0.0, rng.exponential(size=5000), 0.0)
    for values, advised in ((levels, True), (amounts, False)):
        rows = np.column_stack([values, rng.normal(size=5000)])
        means = np.array([[0.0, 0.0], [1.5, 0.0]])
        variances = np.array([[1e-6 * values.var(), 1.0], [1.0, 1.0]])
        found = sketch(rows, design(rows, n_components=2))
        with pytest.warns(UserWarning, match=r"of one value .* nats a sample greater") as caught:
            warn_of_narrow_components(found, np.array([0.4, 0.6]), means, variances, 0.1)
        text = str(caught[0].message)
        assert ("state the 3 values as levels, by design(x, categories=...)" in text) == advised
