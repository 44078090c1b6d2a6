"""Without rows, k-means on simulated rows takes the place of a density that is too far away."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dask_sketch import decode, design, sketch
from dask_sketch.decoders.problem import Problem, Solution
from dask_sketch.decoders.simulated_centroids import SIMULATED, nearer_on_simulated_rows
from dask_sketch.models.clusters import kmeans

N_CENTROIDS = 4


def error(rows, centers):
    squares = np.square(rows[:, None] - np.asarray(centers)).sum(axis=2)
    return squares.min(axis=1).mean()


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.gamma(0.7, size=(20_000, 3)) + 3.0 * (rng.random((20_000, 1)) < 0.3)


@pytest.fixture(scope="module")
def problem(rows):
    feature_map = design(rows, n_components=6, task="clustering")
    found = sketch(rows, feature_map, sample=False)
    return Problem(found, N_CENTROIDS, "density", "dirac", is_default=True)


def poor(rows, cost):
    """Solution with centroids at random rows."""
    return Solution(
        weights=np.full(N_CENTROIDS, 1.0 / N_CENTROIDS),
        means=rows[:N_CENTROIDS],
        variances=None,
        cost=cost,
        noise_level=1.0 / len(rows),
        converged=True,
        message="",
        n_evaluations=0,
    )


def test_simulated_rows_that_agree_better_have_nearly_the_centroids_of_all_rows(rows, problem):
    given = poor(rows, cost=100.0 / len(rows))
    found = nearer_on_simulated_rows(problem, given)
    assert found.message == SIMULATED
    assert found.cost < given.cost
    assert np.all(np.diff(found.weights) <= 0.0)
    assert found.weights.sum() == pytest.approx(1.0)
    rival = kmeans(rows, N_CENTROIDS, n_starts=3).inertia
    assert error(rows, given.means) > 1.5 * rival
    assert error(rows, found.means) < 1.1 * rival
    again = nearer_on_simulated_rows(problem, given)
    assert again.means.tobytes() == found.means.tobytes()


def test_a_density_that_noise_explains_stays(rows, problem):
    given = poor(rows, cost=1.0 / len(rows))
    assert nearer_on_simulated_rows(problem, given) is given


@pytest.mark.parametrize(
    "change", [{"is_default": False}, {"method": "cl-ompr"}, {"n_components": 1}]
)
def test_other_methods_and_arguments_are_left_as_they_are(rows, problem, change):
    given = poor(rows, cost=100.0 / len(rows))
    assert nearer_on_simulated_rows(replace(problem, **change), given) is given


def test_rows_that_are_kept_are_used_instead(rows, problem):
    kept = sketch(rows, problem.sketch.feature_map)
    given = poor(rows, cost=100.0 / len(rows))
    assert nearer_on_simulated_rows(replace(problem, sketch=kept), given) is given


@pytest.mark.slow
def test_digits_with_a_map_of_all_digits():
    """Three centroids of each digit had 1.0 to 3.6 times the error of k-means, in silence."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get("DASK_SKETCH_DATA", beside)) / "mnist_spectral.npz"
    if not path.exists():
        pytest.skip(f"needs {path.name}, features of MNIST, in DASK_SKETCH_DATA")
    with np.load(path) as file:
        x, labels = file["features"].astype(float), file["labels"]
    order = np.random.default_rng(0).permutation(len(x))
    x, labels = x[order], labels[order]
    feature_map = design(x, n_components=6, task="clustering")
    ratios = []
    for digit in range(10):
        part = x[labels == digit]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = decode(sketch(part, feature_map, sample=False), 3, model="dirac")
        ratios.append(error(part, found.centers) / kmeans(part, 3, n_starts=3).inertia)
        if ratios[-1] > 1.2:
            assert any("unlike the pilot rows" in str(each.message) for each in caught)
    assert np.median(ratios) < 1.3
    assert max(ratios) < 2.3
