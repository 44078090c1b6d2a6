import numpy as np

from dask_sketch import GaussianMixture
from dask_sketch.distributions.testing.row_covariance import row_covariance


def test_covariance_of_rows_is_that_of_samples():
    mixture = GaussianMixture([0.3, 0.7], [[0.0, 1.0], [2.0, -1.0]], [[1.0, 0.2], [0.5, 2.0]])
    frequencies = np.random.default_rng(0).normal(size=(2, 5))
    features = np.exp(-1j * mixture.sample(200_000, seed=1) @ frequencies)
    sampled = np.cov(np.concatenate([features.real, features.imag], axis=1).T)
    # entries are at most 1, and have errors of 1 / sqrt(200,000)
    np.testing.assert_allclose(row_covariance(mixture, frequencies), sampled, atol=0.01)


def test_covariance_of_rows_is_symmetric_and_not_negative():
    mixture = GaussianMixture([1.0], [[3.0, -2.0]], [[1.0, 0.2]])
    found = row_covariance(mixture, np.random.default_rng(0).normal(size=(2, 40)))
    np.testing.assert_allclose(found, found.T, atol=1e-14)
    assert np.linalg.eigvalsh(found).min() > -1e-12
