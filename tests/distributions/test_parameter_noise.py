import numpy as np
import pytest

from dask_sketch import GaussianMixture, decode, design, sketch
from dask_sketch.distributions.parameter_noise import (
    likelihood_covariance,
    n_parameters,
    rescaled,
    sample_sizes,
    scores,
    standard_errors,
)
from dask_sketch.models import StandardErrors, random_mixture

WEIGHTS, MEANS = np.array([0.3, 0.7]), np.array([[0.0, 1.0], [1.5, -0.5]])
FULL = np.array([[[1.0, 0.3], [0.3, 0.8]], [[0.7, -0.2], [-0.2, 1.2]]])
LOWER = [(0, 0), (1, 0), (1, 1)]
COVARIANCES = {
    "diag": np.array([[1.0, 0.5], [0.7, 1.4]]),
    "spherical": np.array([0.8, 1.3]),
    "tied": FULL[0],
    "full": FULL,
    "low-rank:1": np.array([[[0.5, 0.4], [0.7, -0.3]], [[0.9, 0.2], [0.4, 0.6]]]),
}


def moved(mixture, name, index, step):
    """Mixture with one parameter changed; matrices stay symmetric, weights sum to one."""
    values = {n: getattr(mixture, n).copy() for n in ("weights", "means", "covariances")}
    values[name][index] += step
    if name == "covariances" and mixture.covariance_type in ("full", "tied"):
        *first, i, j = index
        if i != j:
            values[name][(*first, j, i)] += step
    values["weights"] /= values["weights"].sum()
    return GaussianMixture(**values, covariance_type=mixture.covariance_type)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_scores_are_derivatives_of_the_log_density(kind):
    mixture = GaussianMixture(WEIGHTS, MEANS, COVARIANCES[kind], covariance_type=kind)
    x = mixture.sample(20, seed=0)
    indices = [("weights", (k,)) for k in range(2)]
    indices += [("means", index) for index in np.ndindex(2, 2)]
    lower = [
        index
        for index in np.ndindex(COVARIANCES[kind].shape)
        if kind not in ("full", "tied") or index[-2] >= index[-1]
    ]
    indices += [("covariances", index) for index in lower]
    step = 1e-6
    expected = [
        (moved(mixture, *index, step).logpdf(x) - moved(mixture, *index, -step).logpdf(x))
        / (2 * step)
        for index in indices
    ]
    np.testing.assert_allclose(scores(mixture, x), np.transpose(expected), atol=1e-7)
    assert n_parameters(mixture) == len(expected)


def test_the_covariance_of_maximum_likelihood_is_found_again():
    n = 1000
    plain = GaussianMixture(WEIGHTS, MEANS, COVARIANCES["diag"])
    x = plain.sample(20_000, seed=1)
    made = scores(plain, x)
    information = made.T @ made / len(x)
    basis = np.eye(10)[:, 1:]
    basis[0, 0] = -1.0  # one weight less, the other more
    basis[1, 0] = 1.0
    exact = basis @ np.linalg.inv(basis.T @ information @ basis) @ basis.T / n
    deviations = np.sqrt(np.diag(exact))
    errors = StandardErrors(
        deviations[:2], deviations[2:6].reshape(2, 2), deviations[6:].reshape(2, 2)
    )
    mixture = GaussianMixture(WEIGHTS, MEANS, COVARIANCES["diag"], stderr=errors)
    stored = standard_errors(mixture)
    np.testing.assert_array_equal(stored, deviations)
    found = likelihood_covariance(information, 2)
    np.testing.assert_allclose(found / n, exact, atol=1e-12)
    np.testing.assert_allclose(rescaled(found, stored), exact, atol=1e-12)


def test_parameters_at_a_bound_have_no_noise():
    errors = StandardErrors([0.1, 0.1], [[0.1, 0.0], [0.1, 0.1]], np.full((2, 2), 0.1))
    mixture = GaussianMixture(WEIGHTS, MEANS, COVARIANCES["diag"], stderr=errors)
    made = scores(mixture, mixture.sample(2000, seed=0))
    covariance = likelihood_covariance(made.T @ made / len(made), 2)
    covariance = rescaled(covariance, standard_errors(mixture))
    assert not covariance[3].any()
    assert np.diag(covariance)[2] == pytest.approx(0.01)


def test_standard_errors_of_matrices_are_those_of_their_lower_triangles():
    errors = StandardErrors([0.1, 0.2], np.full((2, 2), 0.3), FULL**2)
    mixture = GaussianMixture(WEIGHTS, MEANS, FULL, stderr=errors, covariance_type="full")
    expected = [0.1, 0.2, *[0.3] * 4, *(FULL[k][i, j] ** 2 for k in (0, 1) for i, j in LOWER)]
    np.testing.assert_allclose(standard_errors(mixture), expected)


def test_fits_to_data_that_is_no_such_mixture_are_warned_of():
    """Intervals of two samples of one gamma distribution excluded 0 in 11 of 12 draws."""
    rng = np.random.default_rng(0)
    rows = rng.gamma(2.0, 1.0, (5000, 2))
    truth = random_mixture(3, 2, seed=1)
    samples = truth.sample(5000, seed=2)
    skewed, mixture = (decode(sketch(x, design(x, n_components=3)), 3) for x in (rows, samples))
    with pytest.warns(UserWarning, match=r"data of second .* 3 Gaussians.*compare"):
        sizes = sample_sizes((5000, 5000), (mixture, skewed))
    assert sizes == (5000.0, 5000.0)
    sample_sizes((5000, np.inf), (mixture, truth))  # without a warning
    assert sample_sizes(None, (skewed, skewed)) is None
