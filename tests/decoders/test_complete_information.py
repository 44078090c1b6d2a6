"""Information of components about their own parameters."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.decoders.atoms import ParameterSpace, unpacked
from dask_sketch.decoders.complete_information import complete_information, inverse_root
from dask_sketch.decoders.factor_descent import FactorSpace

D = 3
SKETCH = partial_sketch(
    np.random.default_rng(0).normal(size=(500, D)), FeatureMap(D, 20, scale=1.0, seed=1)
)


def space_of(model):
    if model.startswith("low-rank"):
        return FactorSpace(SKETCH, model, 0.1)
    covariance = np.array([0.5, 1.0, 2.0]) if model == "known" else None
    return ParameterSpace(SKETCH, model, None, 0.1, covariance)


def divergence(space, one, other):
    """Divergence of Kullback and Leibler between two components."""
    first, second = (space.shapes(atom[None])[0] for atom in (one, other))
    if first.ndim == 1:
        first, second = np.diag(first), np.diag(second)
    away = one[:D] - other[:D]
    inverse = np.linalg.inv(second)
    ratio = np.linalg.slogdet(second)[1] - np.linalg.slogdet(first)[1]
    return 0.5 * (np.trace(inverse @ first) + away @ inverse @ away - D + ratio)


@pytest.mark.parametrize(
    "model", ["gaussian", "isotropic", "known", "full", "low-rank:1", "low-rank:2"]
)
def test_is_the_curvature_of_the_divergence(model):
    rng, space = np.random.default_rng(2), space_of(model)
    atom = np.r_[rng.normal(size=D), rng.uniform(0.5, 1.5, space.n_shapes)]
    if model == "full":
        atom[2 * D :] = [0.1, -0.2, 0.3]
    information = complete_information(space, atom)
    np.testing.assert_allclose(information, information.T)
    for _ in range(3):
        step = 1e-4 * rng.normal(size=len(atom))
        expected = divergence(space, atom, atom + step) + divergence(space, atom, atom - step)
        assert step @ information @ step == pytest.approx(expected, rel=1e-5)


def test_a_shared_matrix_has_none():
    space = ParameterSpace(SKETCH, "tied", None, 0.1, None)
    atom = np.r_[np.zeros(D), np.ones(D), np.zeros(D)]
    assert (unpacked(atom[D:], D) == np.eye(D)).all()
    assert complete_information(space, atom) is None


def test_rotations_of_factors_have_no_information():
    space = space_of("low-rank:2")
    atom = np.random.default_rng(3).uniform(0.5, 1.5, space.n_parameters)
    information = complete_information(space, atom)
    root = inverse_root(information)
    assert len(root) == space.n_parameters - 3  # a covariance matrix has six entries
    products = information @ root.T @ root @ information
    np.testing.assert_allclose(products, information, atol=1e-8)
