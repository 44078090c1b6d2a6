"""Von Mises-Fisher mixtures from sketches, with and without rows."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import decode, design, sketch
from dask_sketch.decoders.direction_search import split
from dask_sketch.errors import DecodeError
from dask_sketch.models import VonMisesFisherMixture
from dask_sketch.models.von_mises_fisher import fit_directions


@pytest.fixture(scope="module")
def truth():
    return VonMisesFisherMixture([0.5, 0.3, 0.2], np.eye(3), [30.0, 12.0, 60.0])


@pytest.fixture(scope="module")
def rows(truth):
    x = truth.sample(40_000, seed=1)
    return x * np.random.default_rng(0).uniform(0.1, 9.0, (len(x), 1))


@pytest.fixture(scope="module")
def feature_map(rows):
    return design(rows, n_components=3, normalize=True)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [False, 4000])
def test_mixture_is_nearly_as_likely_as_that_of_em_on_all_rows(truth, rows, feature_map, sample):
    found = decode(sketch(rows, feature_map, sample=sample), 3, model="von-mises-fisher")
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    start = truth.weights, truth.directions, truth.concentrations
    best = fit_directions(unit, None, [start]).log_likelihood
    assert isinstance(found, VonMisesFisherMixture)
    assert found.score(rows) > best - 2e-4
    assert found.decoding.model == "von-mises-fisher"
    assert found.decoding.method == ("likelihood" if sample else "density")
    assert (np.diff(found.weights) <= 0).all()


@pytest.mark.slow
def test_rows_that_no_such_mixture_has_are_fitted_by_maximum_likelihood():
    ring = np.random.default_rng(0).normal(size=(20_000, 3)) * [1.0, 1.0, 0.05]
    made = design(ring, n_components=1, normalize=True)
    found = decode(sketch(ring, made, sample=2000), 1, model="von-mises-fisher")
    assert found.decoding.is_likeliest
    with pytest.warns(UserWarning, match="overidentification"):
        decode(sketch(ring, made, sample=False), 1, model="von-mises-fisher")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(rows, feature_map):
    made = sketch(rows[:6000], feature_map, sample=False)
    found = decode(made, 3, model="von-mises-fisher", replicates=2, seed=5)
    again = decode(made, 3, model="von-mises-fisher", replicates=2, seed=5)
    assert found.decoding.replicates == 2
    np.testing.assert_array_equal(found.directions, again.directions)
    np.testing.assert_array_equal(found.concentrations, again.concentrations)


@pytest.mark.slow
def test_an_earlier_model_is_a_start(rows, feature_map):
    sketched = sketch(rows, feature_map, sample=False)
    found = decode(sketched, 3, model="von-mises-fisher")
    again = decode(sketched, start=found)
    assert isinstance(again, VonMisesFisherMixture)
    assert again.decoding.method == "start"
    assert again.decoding.n_evaluations < found.decoding.n_evaluations / 3
    np.testing.assert_allclose(again.directions, found.directions, atol=1e-4)
    np.testing.assert_allclose(again.concentrations, found.concentrations, rtol=1e-3)
    with pytest.raises(DecodeError, match=r"n_components=2 .*3"):
        decode(sketched, 2, model="von-mises-fisher", start=found)
    points = decode(sketched, 3, model="dirac")
    with pytest.raises(DecodeError, match="start of type Centroids"):
        decode(sketched, model="von-mises-fisher", start=points)
    with pytest.raises(DecodeError, match="start of type VonMisesFisherMixture"):
        decode(sketched, model="gaussian", start=found)


def test_sketches_of_other_rows_are_refused(rows):
    plain = sketch(rows[:1000], design(rows[:1000], n_components=1))
    with pytest.raises(DecodeError, match="normalize=False"):
        decode(plain, 1, model="von-mises-fisher")
    line = np.random.default_rng(0).normal(size=(500, 1))
    directed = sketch(line, design(line, n_frequencies=20, normalize=True))
    with pytest.raises(DecodeError, match="1 feature"):
        decode(directed, 1, model="von-mises-fisher")


def test_parameters_of_a_uniform_component_have_a_direction():
    directions, concentrations = split(np.array([[0.0, 0.0], [0.0, 5.0]]))
    np.testing.assert_array_equal(directions, [[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(concentrations, [0.0, 5.0])
