from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders import decode, efficient
from dask_sketch.decoders import descent as coarse
from dask_sketch.decoders.descent import coarsened, descend_fully, settle
from dask_sketch.decoders.objective import Objective
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture, symmetric_kl


@pytest.fixture(scope="module")
def truth():
    return random_mixture(6, 3, seed=4)


@pytest.fixture(scope="module")
def long_sketch(truth):
    return partial_sketch(truth.sample(50_000, seed=0), FeatureMap(3, 1000, scale=1.0, seed=1))


@pytest.fixture(autouse=True)
def small_problems_too(monkeypatch):
    monkeypatch.setattr(coarse, "_FEWEST", 50)


def test_as_many_frequencies_as_the_components_need(long_sketch):
    objective = Objective(long_sketch)
    assert coarsened(objective, 6).n_frequencies == 2 * 6 * 7
    assert coarsened(objective, 1).n_frequencies == 50
    assert coarsened(objective, 60) is objective  # 840 of 1000: not worth it


def test_settling_ends_at_the_minimum_of_all(long_sketch, truth):
    objective = Objective(long_sketch)
    theta = objective.from_data_units(truth.means, truth.covariances)
    fewer = coarsened(objective, 6)
    rough = descend_fully(fewer, theta, truth.weights)
    fit = settle(objective, rough)
    best = descend_fully(objective, theta, truth.weights)
    assert objective.cost(rough.weights, rough.theta) > 1.02 * best.cost
    assert fit.cost == pytest.approx(best.cost, rel=1e-3)
    np.testing.assert_allclose(fit.theta, best.theta, atol=0.01)


@pytest.mark.parametrize("method", ["splitting", "cl-ompr", "cl-omp"])
def test_decoding_ends_where_it_does_without(long_sketch, truth, method, monkeypatch):
    seen = []
    mixture = decode(
        long_sketch, 6, method=method, progress=lambda done, total, cost: seen.append((done, total))
    )
    monkeypatch.setattr(coarse, "_FEWEST", 10**6)
    plain = decode(long_sketch, 6, method=method)
    assert mixture.decoding.cost == pytest.approx(plain.decoding.cost, rel=1e-3)
    assert symmetric_kl(plain, mixture, n_samples=20_000) < 1e-3
    assert len(mixture.decoding.trace) == len(plain.decoding.trace) + 1
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert mixture.decoding.converged
    again = decode(long_sketch, 6, method=method, start=None)
    np.testing.assert_array_equal(again.means, plain.means)


def test_a_start_is_settled_too(long_sketch, truth):
    mixture = decode(long_sketch, start=truth)
    plain = descend_fully(
        objective := Objective(long_sketch),
        objective.from_data_units(truth.means, truth.covariances),
    )
    assert mixture.decoding.cost == pytest.approx(plain.cost, rel=0.01)


def test_steps_with_part_of_the_gram_matrix(long_sketch, truth, monkeypatch):
    objective = Objective(long_sketch)
    theta = objective.from_data_units(truth.means, truth.covariances)
    whole = descend_fully(objective, theta, truth.weights)
    used = []
    thinned = Objective.thinned
    monkeypatch.setattr(Objective, "thinned", lambda self, n: used.append(n) or thinned(self, n))
    assert descend_fully(objective, theta, truth.weights).cost == whole.cost
    assert used == [6 * 42]
    monkeypatch.setattr("dask_sketch.decoders.optimizers._ENOUGH", 10**6)
    exact = descend_fully(objective, theta, truth.weights)
    assert whole.cost == pytest.approx(exact.cost, rel=1e-5)


def test_refinement_ends_with_all_frequencies(long_sketch, truth, monkeypatch):
    seen = []
    metric = efficient._Metric
    monkeypatch.setattr(
        efficient,
        "_Metric",
        lambda objective, *rest: seen.append(objective.n_frequencies) or metric(objective, *rest),
    )
    objective = Objective(long_sketch)
    theta = objective.from_data_units(truth.means, truth.covariances)
    start = descend_fully(objective, theta, truth.weights)
    short = efficient.refine_efficiently(objective, start, lambda cost: None)
    assert seen[0] == 84
    assert seen[-1] == 1000
    assert len(seen) <= efficient.N_ROUNDS
    seen.clear()
    monkeypatch.setattr(coarse, "_FEWEST", 10**6)
    plain = efficient.refine_efficiently(objective, start, lambda cost: None)
    assert set(seen) == {1000}
    for one, other, error in zip(
        (short.fit.weights, short.fit.theta[:, :3]),
        (plain.fit.weights, plain.fit.theta[:, :3]),
        plain.standard_errors,
        strict=False,
    ):
        assert (np.abs(one - other) < 0.2 * error).all()
    for one, other in zip(short.standard_errors, plain.standard_errors, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.05)
