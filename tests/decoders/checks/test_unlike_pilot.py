from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.decoders.checks.unlike_pilot import (
    difference_from_pilot,
    fraction_left_out,
    pilot_is_such_a_mixture,
)
from dask_sketch.graph.sketch import sketch_reduction
from dask_sketch.models import GaussianMixture, random_mixture
from dask_sketch.sources.open import open_samples


def spiral(n_rows: int, end: float, seed: int) -> np.ndarray:
    """Rows near the part of a spiral up to its end, at most 1."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(0.0, end, n_rows)
    curve = np.column_stack([20 * np.cos(6 * t), 20 * np.sin(6 * t), 40 * t])
    return curve + 0.5 * rng.normal(size=(n_rows, 3))


@pytest.fixture(scope="module")
def rows():
    return spiral(20_000, 1.0, seed=0)


@pytest.fixture(scope="module")
def earlier_map():
    """Feature map of pilot rows that lack the last part of the spiral."""
    return ds.design(spiral(7000, 0.95, seed=1), n_components=8)


def _mixture(pilot) -> GaussianMixture:
    found = pilot.mixture
    return GaussianMixture(found.weights, found.means, found.variances)


@pytest.mark.slow
def test_rows_like_the_pilot_differ_by_chance(rows):
    for feature_map in (ds.design(rows, n_components=8), ds.design(rows, n_components=3, seed=5)):
        assert feature_map.pilot.characteristic is not None
        assert difference_from_pilot(ds.sketch(rows, feature_map)) is None
        assert difference_from_pilot(ds.sketch(rows[:300], feature_map)) is None


def test_the_share_is_a_lower_bound_of_the_rows_that_the_pilot_lacks(rows, earlier_map):
    for n_lacking in (500, 1000, 3000):
        n_known = int(19_000 * 0.9)
        known = spiral(n_known, 0.95, seed=2)
        other = np.random.default_rng(3).normal(30.0, 1.0, size=(n_lacking, 3))
        sketch = ds.sketch(np.concatenate([known, other]), earlier_map)
        share = n_lacking / (n_lacking + n_known)
        assert 0.6 * share < difference_from_pilot(sketch).fraction <= share


def test_a_model_of_the_new_rows_leaves_nothing_out(rows, earlier_map):
    found = difference_from_pilot(ds.sketch(rows, earlier_map))
    omega, start = earlier_map.frequencies, _mixture(earlier_map.pilot)
    known = start.characteristic(omega)
    assert fraction_left_out(found, known, known) == found.fraction
    assert 0.03 < found.fraction < 0.05
    fitted = _mixture(ds.design(rows, n_components=8).pilot)
    assert fraction_left_out(found, fitted.characteristic(omega), known) < 0.01


@pytest.mark.parametrize("model", ["gaussian", "dirac"])
def test_users_are_warned_of_rows_that_the_pilot_lacks(rows, model):
    task = "clustering" if model == "dirac" else "mixture"
    feature_map = ds.design(spiral(7000, 0.95, seed=1), n_components=8, task=task)
    with pytest.warns(UserWarning, match=r"3\.\d% of the rows .* 5,000 pilot rows"):
        ds.decode(ds.sketch(rows, feature_map, sample=False), 8, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = ds.sketch(spiral(20_000, 0.95, seed=4), feature_map, sample=False)
        ds.decode(same, 8, model=model)


@pytest.mark.slow
def test_no_comparison_without_a_record_or_with_missing_values(rows, earlier_map):
    found = ds.sketch(rows, earlier_map, sample=False)
    without = earlier_map.with_pilot(replace(earlier_map.pilot, characteristic=None))
    assert difference_from_pilot(ds.sketch(rows, without)) is None
    assert difference_from_pilot(replace(found, feature_map=without)) is None
    some = rows.copy()
    some[::10, 0] = np.nan
    sparse = ds.design(some, n_components=8, nan_policy="available")
    assert sparse.pilot.characteristic is None
    complete = ds.design(rows, n_components=8, distribution="sparse-sums")
    assert complete.pilot.characteristic is not None
    with_missing = ds.sketch(some, complete, nan_policy="available")
    assert difference_from_pilot(with_missing) is None


def test_tasks_do_not_carry_the_record(earlier_map):
    samples = open_samples(np.zeros((10, 3)))
    reduction = sketch_reduction(samples, earlier_map, "raise")
    carried = len(pickle.dumps(reduction.chunk))
    without = sketch_reduction(samples, earlier_map.with_pilot(None), "raise")
    assert carried < len(pickle.dumps(without.chunk)) + 1000
    assert len(pickle.dumps(earlier_map)) > carried + 2 * earlier_map.n_frequencies


@pytest.mark.slow
def test_few_frequencies_differ_more_by_chance():
    truth = random_mixture(3, 1, seed=0)
    found = 0
    for seed in range(30):
        feature_map = ds.design(truth.sample(5000, seed=seed), n_components=3)
        sketch = ds.sketch(truth.sample(6000, seed=100 + seed), feature_map, sample=False)
        found += difference_from_pilot(sketch) is not None
    assert found <= 1  # 10 or more beyond 1.5 times the mean


@pytest.mark.slow
def test_users_are_warned_of_new_components_that_frequencies_do_not_resolve():
    truth = random_mixture(4, 3, seed=0)
    feature_map = ds.design(truth.sample(6000, seed=1), n_components=5)
    rows = truth.sample(6000, seed=2)
    rows[:1500] = 1.0 + 0.01 * np.random.default_rng(0).normal(size=(1500, 3))
    with pytest.warns(UserWarning, match=r"\d+% of the weight .* pilot rows"):
        ds.decode(ds.sketch(rows, feature_map, sample=False), 5)


def test_the_pilot_shows_whether_the_data_is_a_mixture(rows):
    mixture = random_mixture(3, 3, seed=0).sample(20_000, seed=1)
    for seed in range(3):
        feature_map = ds.design(mixture, n_components=3, seed=seed)
        assert pilot_is_such_a_mixture(ds.sketch(mixture, feature_map))
    feature_map = ds.design(rows, n_components=3)
    assert not pilot_is_such_a_mixture(ds.sketch(rows, feature_map))
    assert not pilot_is_such_a_mixture(ds.sketch(rows, replace(feature_map, pilot=None)))


@pytest.mark.parametrize("width", [5.0, 8.0, 12.0])
def test_data_far_wider_than_the_pilot_rows_is_warned_of(width):
    """Up to 4.6 nats were lost, without a word: any wide mixture agrees with features of noise."""
    rng = np.random.default_rng(1)
    means = 5 * rng.normal(size=(4, 3))

    def rows(n, scale):
        return scale * (means[rng.integers(4, size=n)] + rng.normal(size=(n, 3)))

    feature_map = ds.design(rows(4000, 1.0), n_components=4)
    wide = np.concatenate([rows(4000, factor * width) for factor in (0.8, 1.0, 1.25)])
    sketch = ds.sketch(wide, feature_map, sample=False)
    with pytest.warns(UserWarning, match=r"of 140 features are above .*28 parameters.*sample=True"):
        ds.decode(sketch, 4)
