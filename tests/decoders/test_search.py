"""Searches for atoms through decode: coarse to fine, merging, order, and counts of reports."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import decode, partial_sketch
from dask_sketch.decoders.greedy import cl_omp, cl_ompr
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.splitting import hierarchical_splitting
from dask_sketch.features import FeatureMap
from dask_sketch.models import GaussianMixture, random_mixture, symmetric_kl


@pytest.fixture(scope="module")
def truth():
    return random_mixture(6, 3, seed=4)


@pytest.fixture(scope="module")
def long_sketch(truth):
    """More frequencies than six components need, so that searches run on 2000 of them."""
    return partial_sketch(truth.sample(50_000, seed=0), FeatureMap(3, 2600, scale=1.0, seed=1))


@pytest.mark.parametrize(
    ("method", "algorithm", "n_iterations"),
    [("splitting", hierarchical_splitting, 3), ("cl-ompr", cl_ompr, 12), ("cl-omp", cl_omp, 6)],
)
def test_part_of_the_frequencies_leads_to_the_same_model(
    long_sketch, method, algorithm, n_iterations
):
    seen = []
    mixture = decode(
        long_sketch, 6, method=method, progress=lambda done, total, cost: seen.append((done, total))
    )
    objective = Objective(long_sketch)
    fit = algorithm(objective, 6, np.random.default_rng((0, 0)), lambda cost: None)
    components = objective.space.to_data_units(fit.theta)
    plain = GaussianMixture(fit.weights / fit.weights.sum(), *components)
    assert mixture.decoding.cost == pytest.approx(fit.cost, rel=1e-3)
    assert symmetric_kl(plain, mixture, n_samples=20_000) < 1e-3
    assert len(mixture.decoding.trace) == n_iterations + 1
    assert seen[-1][0] == seen[-1][1] == len(seen) == n_iterations + 1
    assert mixture.decoding.converged


def test_a_start_is_converged_with_all_frequencies(long_sketch, truth):
    mixture = decode(long_sketch, start=truth)
    assert len(mixture.decoding.trace) == 2
    assert mixture.decoding.cost < mixture.decoding.noise_level


def test_coincident_components_are_merged_when_asked():
    x = np.random.default_rng(0).normal(size=(50_000, 2))
    sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=1, dtype="float64"))
    twice = GaussianMixture([0.5, 0.5], [[0.0, 0.1], [0.1, 0.0]], np.ones((2, 2)))
    assert decode(sketch, 2, start=twice).n_components == 2
    merged = decode(sketch, 2, start=twice, merge=True)
    assert merged.n_components == 1
    np.testing.assert_allclose(merged.mean, 0.0, atol=0.02)


def test_components_without_width_are_warned_of():
    x = np.repeat([[0.0, 0.0], [5.0, 5.0]], 500, axis=0)  # two points: the best width is none
    sketch = partial_sketch(x, FeatureMap(2, 60, scale=1.0))
    with pytest.warns(UserWarning, match=r"2 of 2 components .* variance_floor") as caught:
        decode(sketch, 2, variance_floor=1e-15)
    assert caught[0].filename == __file__
    decode(sketch, 2)


def test_the_expected_time_of_a_long_search_is_logged_before_it_begins(caplog):
    class Refusing:
        def submit(self, *args):
            raise RuntimeError("nothing runs")

    x = np.random.default_rng(0).normal(size=(100, 64))
    for n_frequencies, refine, logged in (
        (3000, None, 0),
        (20_000, None, 1),
        (10_000, "efficient", 1),
    ):
        found = partial_sketch(x, FeatureMap(64, n_frequencies, scale=1.0))
        caplog.clear()
        with pytest.raises(RuntimeError, match="nothing"):
            decode(found, 10, "cl-ompr", refine=refine, executor=Refusing())
        said = [one.message for one in caplog.records if one.name == "dask_sketch.decoders.decode"]
        assert len(said) == logged
        assert all(f"{n_frequencies} frequencies" in text for text in said)
        assert all("n_components=10" in text for text in said)
