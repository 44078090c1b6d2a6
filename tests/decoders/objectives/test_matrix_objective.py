"""Objectives with covariance matrices at frequencies that touch few features."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.decoders.objectives.atoms import packed
from dask_sketch.decoders.objectives.matrix_objective import MatrixObjective
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.validation.threads import Threads

D = 13
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(500, D))


def sketch_of(m: int, d: int = D, distribution: str = "sparse-sums", rows=ROWS, **options):
    feature_map = FeatureMap(d, m, scale=0.8, seed=1, distribution=distribution)
    return partial_sketch(rows[:, :d], feature_map, **options)


SKETCH = sketch_of(1100)  # of more than one block of the kernels


def mixture_of(n_atoms: int, d: int = D) -> tuple[np.ndarray, np.ndarray]:
    roots = RNG.normal(size=(n_atoms, d, 2 * d)) / np.sqrt(2 * d)
    matrices = roots @ np.swapaxes(roots, 1, 2)
    theta = np.concatenate([RNG.normal(size=(n_atoms, d)), packed(matrices)], axis=1)
    return RNG.dirichlet(np.full(n_atoms, 3.0)), theta


@pytest.mark.parametrize("n_atoms", [1, 3, 11])
@pytest.mark.parametrize("family", ["full", "tied"])
def test_sums_of_touched_features_are_those_of_all(n_atoms, family):
    weights, theta = mixture_of(n_atoms)
    dense, sparse = Objective(SKETCH, family), MatrixObjective(SKETCH, family)
    assert sparse.gram_work(n_atoms) < 0.1 * dense.gram_work(n_atoms)  # it is another computation
    assert sparse.cost(weights, theta) == pytest.approx(dense.cost(weights, theta), rel=1e-12)
    for one, other in zip(
        sparse.cost_gradient(weights, theta), dense.cost_gradient(weights, theta), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
    jacobian = dense.jacobian(weights, theta)
    expected = jacobian @ jacobian.T
    np.testing.assert_allclose(
        sparse.gram(weights, theta), expected, rtol=1e-9, atol=1e-12 * expected.max()
    )


@pytest.mark.parametrize("d", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("distribution", ["sparse-sums", "sparse-radius", "adapted-radius"])
def test_few_features_and_dense_frequencies(d, distribution):
    weights, theta = mixture_of(5, d)
    objective = MatrixObjective(sketch_of(100, d, distribution), "full")
    jacobian = objective.jacobian(weights, theta)
    np.testing.assert_allclose(
        objective.gram(weights, theta), jacobian @ jacobian.T, rtol=1e-9, atol=1e-13
    )
    _, by_weight, by_theta = objective.cost_gradient(weights, theta)
    products = -2.0 * jacobian @ np.concatenate(objective.residual(weights, theta))
    np.testing.assert_allclose(np.r_[by_weight, by_theta.ravel()], products, atol=1e-13)


def test_fewer_frequencies_and_missing_values():
    weights, theta = mixture_of(4)
    rows = np.where(RNG.random(ROWS.shape) < 0.1, np.nan, ROWS)
    objective = MatrixObjective(sketch_of(300, rows=rows, nan_policy="available"), "full")
    for each in (objective, objective.subsample(150), objective.select(np.arange(5, 90))):
        jacobian = each.jacobian(weights, theta)
        np.testing.assert_allclose(each.gram(weights, theta), jacobian @ jacobian.T, atol=1e-12)
        products = -2.0 * jacobian @ np.concatenate(each.residual(weights, theta))
        _, by_weight, by_theta = each.cost_gradient(weights, theta)
        np.testing.assert_allclose(np.r_[by_weight, by_theta.ravel()], products, atol=1e-12)


def test_threads_do_not_change_bits():
    weights, theta = mixture_of(30)
    alone = MatrixObjective(SKETCH, "full")
    with Threads(2) as threads:
        shared = MatrixObjective(SKETCH, "full", threads=threads)
        assert np.array_equal(shared.gram(weights, theta), alone.gram(weights, theta))
        assert np.array_equal(
            shared.cost_gradient(weights, theta)[2], alone.cost_gradient(weights, theta)[2]
        )
