from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.models import GaussianMixture, random_mixture, symmetric_kl


def closed_form(p, q):
    """Symmetric divergence of two single Gaussians, from eq. (C.80)."""
    v, w, gap = p.covariances[0], q.covariances[0], q.means[0] - p.means[0]
    return 0.5 * np.sum(v / w + w / v - 2) + 0.5 * np.sum((1 / v + 1 / w) * gap**2)


@pytest.mark.parametrize("size", [0.01, 0.1, 0.3])
def test_single_gaussians(size):
    rng = np.random.default_rng(0)
    p = GaussianMixture([1.0], rng.normal(size=(1, 4)), rng.uniform(0.5, 2.0, (1, 4)))
    q = GaussianMixture(
        [1.0],
        p.means + size * rng.normal(size=(1, 4)),
        p.covariances * np.exp(size * rng.normal(size=(1, 4))),
    )
    assert symmetric_kl(p, q) == pytest.approx(closed_form(p, q), rel=0.03)


def test_zero_for_equals_positive_otherwise():
    p = random_mixture(3, 2, seed=0)
    assert symmetric_kl(p, p, 1000) == 0
    assert symmetric_kl(p, random_mixture(3, 2, seed=1), 1000) > 0.1


def test_seed_and_number_of_samples():
    p, q = random_mixture(3, 2, seed=0), random_mixture(3, 2, seed=1)
    assert symmetric_kl(p, q, 70_000, seed=2) == symmetric_kl(p, q, 70_000, seed=2)
    assert symmetric_kl(p, q, 70_000, seed=2) != symmetric_kl(p, q, 70_000, seed=3)


def test_refuses_bad_arguments():
    with pytest.raises(InputError, match="p has 2 features, q has 3"):
        symmetric_kl(random_mixture(1, 2), random_mixture(1, 3))
    with pytest.raises(InputError, match="n_samples=0"):
        symmetric_kl(random_mixture(1, 2), random_mixture(1, 2), 0)
