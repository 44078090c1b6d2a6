from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.features.design import design_from_pilot
from dask_sketch.features.pilot import Pilot, PilotMixture
from dask_sketch.features.pilot_fit import (
    cluster_pilot,
    fit_pilot,
    record_clusters,
    record_pilot,
    rough_mixture,
    with_further_start,
)
from dask_sketch.models import GaussianMixture, random_mixture


def test_the_fit_is_rough_but_near():
    truth = random_mixture(5, 4, seed=0)
    rows, others = truth.sample(5000, seed=1), truth.sample(20_000, seed=3)
    found = fit_pilot(rows, 5, seed=2)
    mixture = GaussianMixture(found.weights, found.means, found.variances)
    assert mixture.score(rows) > truth.score(rows) - 0.02
    assert mixture.score(others) > truth.score(others) - 0.05
    assert found.score == pytest.approx(mixture.score(rows), abs=1e-3)
    single = fit_pilot(rows, 1)
    np.testing.assert_allclose(single.variances[0], rows.var(axis=0), rtol=1e-3)


def test_units_do_not_matter():
    rows = random_mixture(3, 2, seed=4).sample(2000, seed=5)
    unit, offset = np.array([1e-3, 1e6]), np.array([1e4, -7.0])
    plain, moved = fit_pilot(rows, 3), fit_pilot(rows * unit + offset, 3)
    np.testing.assert_allclose(moved.variances, plain.variances * unit**2, rtol=1e-3)
    np.testing.assert_allclose(moved.weights, plain.weights, atol=1e-3)


def test_the_seed_decides():
    rows = random_mixture(3, 2, seed=4).sample(500, seed=5)
    one, again, other = (fit_pilot(rows, 8, seed=seed).means for seed in (2**40, 2**40, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_more_components_than_distinct_rows():
    found = fit_pilot(np.repeat([[0.0, 1.0], [1.0, 0.0]], 20, axis=0), 5)
    assert np.isfinite(found.means).all()
    assert (found.variances > 0).all()
    assert found.weights.sum() == pytest.approx(1.0)


def test_bad_arguments_are_named():
    with pytest.raises(InputError, match=r"features \[1\]"):
        fit_pilot(np.array([[0.0, 1.0], [1.0, 1.0]]), 1)
    with pytest.raises(InputError, match="n_components=3"):
        fit_pilot(np.array([[0.0], [1.0]]), 3)


def test_the_record_has_centroids_of_a_map_for_centroids():
    rows = random_mixture(3, 2, seed=0).sample(500, seed=1)
    pilot = design_from_pilot(rows, n_components=3, task="clustering").pilot
    again = Pilot.from_dict(pilot.as_dict(), 2)
    np.testing.assert_array_equal(again.clusters.centers, pilot.clusters.centers)
    assert again.checksum == pilot.checksum
    assert again.clusters_excess == pilot.clusters_excess > 0.0
    assert "clusters" not in design_from_pilot(rows, n_components=3).pilot.as_dict()
    for change in ({"weights": [1.0, 1.0, 1.0]}, {"centers": [[0.0, 1.0]]}, {"inertia": None},
                   {"excess": -1.0}, {"excess": float("nan")}):  # fmt: skip
        clusters = pilot.as_dict()["clusters"] | change
        with pytest.raises(InputError, match="pilot"):
            Pilot.from_dict(pilot.as_dict() | {"clusters": clusters}, 2)


def test_a_map_for_centroids_has_a_mixture_that_starts_from_its_clusters():
    truth = random_mixture(3, 2, seed=0)
    rows = np.column_stack([truth.sample(600, seed=1), np.full(600, 5.0)])
    pilot, clusters = record_clusters(rows, 3, seed=4), cluster_pilot(rows, 3, seed=4)
    np.testing.assert_array_equal(pilot.clusters.centers, clusters.centers)
    found = pilot.mixture
    assert found.score > truth.score(rows[:, :2]) - 0.02
    np.testing.assert_allclose(found.weights @ found.means, rows.mean(axis=0), atol=0.05)
    assert len(record_clusters(rows[:59], 3).mixture.weights) == 2  # 20 rows for each
    assert record_clusters(np.ones((100, 2)), 2).mixture is None
    assert record_clusters(rows, None).clusters is None


def test_components_of_the_record_leave_a_poor_local_maximum():
    # two components of the start share the cluster at 10, and one covers those at 0 and 1
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(m, 0.1, (1000, 2)) for m in (0.0, 1.0, 10.0)])
    means = np.array([[0.5, 0.5], [9.9, 10.0], [10.1, 10.0]])
    start = PilotMixture(np.full(3, 1 / 3), means, np.array([[0.3, 0.3]] + [[0.01, 0.01]] * 2), 0.0)
    found = record_pilot(rows, start)
    centers = np.sort(found.mixture.means[:, 0])
    np.testing.assert_allclose(centers, [0.0, 1.0, 10.0], atol=0.02)


def test_a_further_start_counts_if_it_is_likelier_and_there_are_enough_rows():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(m, 0.1, (200, 2)) for m in (0.0, 1.0, 10.0)])
    rows = rng.permutation(np.column_stack([rows, np.full(600, 7.0)]))
    means = np.array([[0.5, 0.5, 7.0], [9.9, 10.0, 7.0], [10.1, 10.0, 7.0]])
    variances = np.array([[0.3, 0.3, 1e-6], [0.01, 0.01, 1e-6], [0.01, 0.01, 1e-6]])
    poor = PilotMixture(np.full(3, 1 / 3), means, variances, -3.0)
    pilot = Pilot(600, rows.var(axis=0), -4.0, poor, 0.05)
    found = with_further_start(pilot, rows)
    np.testing.assert_allclose(np.sort(found.mixture.means[:, 0]), [0.0, 1.0, 10.0], atol=0.03)
    assert found.mixture.score > poor.score
    assert found.sampling_loss == pilot.sampling_loss
    assert with_further_start(found, rows).mixture.score >= found.mixture.score
    assert with_further_start(pilot, rows[:299]) is pilot  # 20 for each of 15 parameters are 300
    assert with_further_start(Pilot(600, rows.var(axis=0), -4.0), rows).mixture is None


@pytest.mark.parametrize(("n", "low", "high"), [(300, 0.02, 0.12), (5000, 0.001, 0.006)])
def test_few_rows_are_said_to_lose_likelihood(n, low, high):
    rows = random_mixture(3, 5, seed=0).sample(n, seed=1)
    # 32 parameters over twice the rows: 0.053 and 0.0032 nats
    pilot = record_pilot(rows, rough_mixture(rows, 3))
    assert low < pilot.sampling_loss < high
    assert Pilot.from_dict(pilot.as_dict(), 5).sampling_loss == pilot.sampling_loss
    earlier = {name: value for name, value in pilot.as_dict().items() if name != "sampling_loss"}
    assert Pilot.from_dict(earlier, 5).sampling_loss == 0.0
