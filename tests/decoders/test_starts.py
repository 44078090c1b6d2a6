from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dask_sketch import FeatureMap, GaussianMixture, decode, design, partial_sketch
from dask_sketch.decoders.names import ATOMS
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.starts import (
    Start,
    find_atom,
    find_atoms,
    moved_mixture,
    nearby_mixture,
    pilot_mixture,
    pilot_start,
)
from dask_sketch.errors import InputError
from dask_sketch.features.design import design_from_pilot

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4000, 2)) + 20.0 * RNG.integers(0, 3, (4000, 1))
MAP = design_from_pilot(X, n_components=3)
SKETCH = partial_sketch(X, MAP)


@pytest.mark.parametrize("model", ATOMS)
def test_a_lone_component_is_found(sketch, truth, model):
    covariance = truth.covariances[1] if model == "known" else None
    objective = Objective(sketch, model, covariance=covariance)
    component = objective.space.from_data_units(truth.means[1:2], truth.covariances[1:2])
    residual = tuple(objective.atoms(component).reshape(2, -1))
    atom = find_atom(objective, residual, np.random.default_rng(0))
    np.testing.assert_allclose(atom, component[0], atol=0.02)


def test_without_a_residual_the_atom_is_at_the_centre(sketch):
    objective = Objective(sketch)
    nothing = (np.zeros(objective.n_frequencies), np.zeros(objective.n_frequencies))
    atom = find_atom(objective, nothing, np.random.default_rng(0))
    expected = objective.space.random_atoms(np.random.default_rng(0), 1)[0]
    np.testing.assert_array_equal(atom, expected)


def test_several_components_are_found_in_one_residual_each_once():
    centers = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 9.0], [-7.0, -7.0]])
    x = np.repeat(centers, 500, axis=0) + np.random.default_rng(1).normal(size=(2000, 2))
    sketch = partial_sketch(x, FeatureMap(2, 200, scale=1.0))
    objective = Objective(sketch, "known", covariance=np.eye(2))
    atoms = find_atoms(objective, objective.target, np.random.default_rng(0), 4)
    means, _ = objective.space.to_data_units(atoms)
    away = np.linalg.norm(means[:, None] - centers, axis=2)
    assert sorted(away.argmin(axis=1)) == [0, 1, 2, 3]
    assert away.min(axis=1).max() < 1.0
    nothing = (np.zeros(objective.n_frequencies), np.zeros(objective.n_frequencies))
    assert len(find_atoms(objective, nothing, np.random.default_rng(0), 4)) == 1


def test_a_start_has_the_nearest_atoms(sketch, truth):
    start = Start(truth.weights, truth.means, truth.covariances)
    space = Objective(sketch, "isotropic").space
    means, variances = space.to_data_units(start.atoms(Objective(sketch, "isotropic")))
    np.testing.assert_allclose(means, truth.means)
    expected = np.repeat(truth.covariances.mean(axis=1, keepdims=True), 2, axis=1)
    np.testing.assert_allclose(variances, expected)


def test_a_rare_cluster_far_away_is_found():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 2))
    x[:200] += 100.0  # the standard deviation of the data is 10
    found = decode(partial_sketch(x, FeatureMap(2, 50, scale=1.0)), 2)
    np.testing.assert_allclose(found.means, [[0.0, 0.0], [100.0, 100.0]], atol=0.3)
    assert found.score(x) > GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]]).score(x[200:]) - 0.1


@pytest.mark.slow
def test_a_map_of_several_scales_finds_clusters_far_apart():
    rng = np.random.default_rng(0)
    centers = 100.0 * rng.normal(size=(3, 12))
    x = rng.normal(size=(10_000, 12)) + centers[rng.integers(3, size=10_000)]
    scales = np.outer([1.0, 4.0, 16.0, 64.0], np.ones(12))
    options = {"distribution": "sparse-radius", "covariance_weights": [0.4, 0.2, 0.2, 0.2]}
    feature_map = FeatureMap(12, 375, covariances=scales**2, **options)
    np.testing.assert_array_equal(feature_map.min_variances, np.ones(12))
    found = decode(partial_sketch(x, feature_map), 3)
    nearest = np.linalg.norm(found.means[:, None] - centers, axis=2).argmin(axis=1)
    np.testing.assert_allclose(found.means, centers[nearest], atol=0.2)
    np.testing.assert_allclose(found.covariances, 1.0, atol=0.25)
    assert sorted(nearest) == [0, 1, 2]


@pytest.mark.parametrize("n_components", [2, 3, 5])
def test_any_number_of_components(n_components):
    start = pilot_start(SKETCH, n_components)
    assert start.means.shape == start.variances.shape == (n_components, 2)
    assert start.weights.sum() == pytest.approx(1.0)
    if n_components == 3:
        np.testing.assert_allclose(np.sort(start.means[:, 0]), [0, 20, 40], atol=0.3)


def test_no_start_without_a_pilot_or_a_number():
    assert pilot_start(SKETCH, None) is None
    assert pilot_start(partial_sketch(X, FeatureMap(2, 60, scale=1.0)), 3) is None


def test_no_start_for_the_sketch_of_other_data():
    assert pilot_mixture(SKETCH) is not None
    for other in (X[X[:, 0] < 10], 3.0 * X, X + 30.0):
        assert pilot_mixture(partial_sketch(other, MAP)) is None


def test_rows_like_the_pilot_rows_have_its_mixture_where_the_data_is_no_such_mixture():
    """Moments of few rows with heavy tails differ by chance, and the mixture misses its rows."""
    rng = np.random.default_rng(1)
    x = np.exp(rng.normal(size=(20_000, 5)) @ (np.eye(5) + 0.3 * rng.normal(size=(5, 5))))
    feature_map = design(x, n_components=8)
    for start in range(0, 20_000, 2000):
        sketch = partial_sketch(x[start : start + 2000], feature_map)
        assert pilot_mixture(sketch) is not None
    assert pilot_mixture(partial_sketch(x[:2000] + 0.5, feature_map)) is None


def test_the_pilot_moves_with_the_units_of_the_data():
    feature_map = design(X, n_components=3)
    pilot = feature_map.pilot.mixture
    moved = nearby_mixture(partial_sketch(0.5 * X + 3.0, feature_map))
    np.testing.assert_allclose(moved.means, 0.5 * pilot.means + 3.0, atol=0.2)
    np.testing.assert_allclose(moved.variances, 0.25 * pilot.variances, rtol=0.02)
    assert moved.score == pytest.approx(pilot.score + 2.0 * np.log(2.0), abs=0.05)
    # but not to some of its clusters, to another mixture, without a record, nor where it is rough
    part = partial_sketch(X[X[:, 0] < 30], feature_map)
    other = RNG.normal(size=(4000, 2)) + 20.0 * RNG.integers(0, 2, (4000, 1))
    for sketch in (part, partial_sketch(other, feature_map), partial_sketch(0.5 * X, MAP)):
        assert moved_mixture(sketch) is None
    assert nearby_mixture(part) is pilot
    rough = design(X, n_components=1)
    assert moved_mixture(partial_sketch(0.5 * X, rough)) is None


@pytest.mark.parametrize("model", [None, "dirac"])
def test_starts_and_bounds_with_other_names_are_refused(model):
    named = partial_sketch(X, replace(MAP, feature_names=("a", "b")))
    start = decode(named, 3, model=model)
    assert decode(named, 3, start=start, model=model).feature_names == ("a", "b")
    with pytest.raises(InputError, match="feature 0 of start is 'b'; .* 'a'") as caught:
        decode(named, 3, start=replace(start, feature_names=("b", "a")), model=model)
    assert caught.value.parameter == "start"
    decode(SKETCH, 3, start=start, model=model)
    bounds = pd.DataFrame({"b": [-9.0, 50.0], "a": [-8.0, 50.0]})
    for given in (bounds, [bounds.iloc[0], bounds.iloc[1]]):
        with pytest.raises(InputError, match="feature 0 of bounds is 'b'; .* 'a'") as caught:
            decode(named, 3, "cl-ompr", model=model, bounds=given)
        assert caught.value.parameter == "bounds"
