"""Errors of random features: exact variances, and the printed bounds as corrected."""

import numpy as np
import pytest
from scipy import stats
from sklearn.kernel_approximation import RBFSampler

from dask_sketch.distributions import (
    is_sine_cosine_better,
    kernel_variance,
    mean_map_variance,
    random_features,
    required_frequencies,
)
from dask_sketch.errors import InputError

M = 10


def gaussian(shifts):
    return np.exp(-0.5 * np.sum(np.asarray(shifts) ** 2, axis=-1))


def laplace(shifts):
    return np.exp(-np.sum(np.abs(shifts), axis=-1))


def means(x, form, rng, n_draws=4000):
    """Mean features of a sample in many draws of frequencies, one generator for all samples."""
    omega = rng.normal(size=(x.shape[1], M * n_draws))
    offsets = rng.uniform(0, 2 * np.pi, M * n_draws) if form == "offset" else None
    features = random_features(x, omega, offsets).mean(axis=0)
    # features of each draw, which were divided by the root of the number of all frequencies
    return np.sqrt(n_draws) * features.reshape(-1, n_draws, M)


def draws(x, y, form, quantity="kernel"):
    a, b = (means(sample, form, np.random.default_rng(3)) for sample in (x, y))
    if quantity == "kernel":
        return np.sum(a * b, axis=(0, 2))
    return np.sum((a - b) ** 2, axis=(0, 2))


def test_the_second_form_is_that_of_scikit_learn():
    x = np.random.default_rng(0).normal(size=(5, 3))
    theirs = RBFSampler(gamma=0.5, n_components=20, random_state=0).fit(x)
    np.testing.assert_allclose(
        random_features(x, theirs.random_weights_, theirs.random_offset_), theirs.transform(x)
    )
    np.testing.assert_allclose(
        np.linalg.norm(random_features(x, theirs.random_weights_), axis=1), 1.0
    )


@pytest.mark.parametrize("form", ["sine-cosine", "offset"])
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.5])
def test_variance_of_a_kernel_value(form, shift):
    x = np.array([[0.3, -0.2]])
    found = draws(x, x + np.array([[shift, 0.0]]), form)
    expected = kernel_variance(gaussian, [shift, 0.0], M, form)
    # the variance of a sample variance, from its fourth moment
    error = np.sqrt(np.var((found - found.mean()) ** 2) / len(found))
    assert found.var() == pytest.approx(expected, abs=4 * error + 1e-15)
    assert found.mean() == pytest.approx(gaussian([shift, 0.0]), abs=4 * found.std() / 60 + 1e-12)


@pytest.mark.parametrize("form", ["sine-cosine", "offset"])
@pytest.mark.parametrize("quantity", ["kernel", "squared-mmd"])
def test_variance_of_a_comparison_of_samples(form, quantity):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 2)), 0.5 + rng.normal(size=(5, 2))
    found = draws(x, y, form, quantity)
    expected = mean_map_variance(gaussian, x, y, M, form, quantity)
    error = np.sqrt(np.var((found - found.mean()) ** 2) / len(found))
    assert found.var() == pytest.approx(expected, abs=4 * error)


def test_offsets_mix_the_variance_with_that_of_sums():
    # eq. (4.5): D times the variance is half of that of the other form, and of a mean of the kernel
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(4, 2)), rng.normal(size=(3, 2))
    sums = (x[:, None] + y).reshape(-1, 2)
    mixed = gaussian(sums[:, None] - sums).mean()
    sine = 2 * M * mean_map_variance(gaussian, x, y, M)
    offset = M * mean_map_variance(gaussian, x, y, M, "offset")
    assert offset == pytest.approx(0.5 * (sine + mixed))
    single = mean_map_variance(gaussian, x[:1], y[:1], M, "offset")
    assert single == pytest.approx(kernel_variance(gaussian, x[0] - y[0], M, "offset"))


def test_mean_squared_errors_on_an_interval():
    # section 3.5: 0.66 / D and 0.83 / D on [-3, 3]
    axis = np.linspace(-3, 3, 401)
    shifts = (axis[:, None] - axis)[..., None]
    assert 2 * kernel_variance(gaussian, shifts, 1).mean() == pytest.approx(0.66, abs=0.005)
    assert kernel_variance(gaussian, shifts, 1, "offset").mean() == pytest.approx(0.83, abs=0.005)


def test_kernels_for_which_sines_and_cosines_are_better():
    shifts = np.linspace(0, 6, 200)[:, None]
    assert is_sine_cosine_better(gaussian, shifts).all()
    assert is_sine_cosine_better(laplace, shifts).all()
    rational = is_sine_cosine_better(lambda d: 1 / (1 + np.sum(d**2, axis=-1)), shifts)
    assert not rational.all()
    assert rational[0]
    for form, twice in (("sine-cosine", 2), ("offset", 1)):  # as many features
        variance = twice * kernel_variance(gaussian, shifts, twice * M, form)
        assert (variance >= 0).all()


@pytest.mark.parametrize(
    ("d", "error", "sine", "offset"),
    [  # numbers of features by the printed propositions
        (1, 0.3, 1096.74, 1821.28),
        (1, 0.1, 10180.65, 17214.46),
        (2, 0.1, 17452.28, 31811.98),
        (10, 0.1, 78220.60, 155044.16),
    ],
)
def test_numbers_for_a_kernel_are_those_printed_with_the_correction(d, error, sine, offset):
    settings = {"quantity": "kernel", "n_features": d, "reach": 6.0 * np.sqrt(d)}
    found = required_frequencies(error, variance=0.5, **settings)
    corrected = sine * (0.5 + error / 3) / (0.5 + error / 6)
    assert found == pytest.approx(corrected / 2, abs=1.0)
    found = required_frequencies(error, variance=1.0, form="offset", **settings)
    corrected = offset * (0.25 + error / 8) / (0.25 + error / 12)
    assert found == pytest.approx(corrected, abs=1.0)


@pytest.mark.parametrize("form", ["sine-cosine", "offset"])
def test_numbers_for_mean_maps_keep_their_promise(form):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(6, 2)), rng.normal(size=(5, 2))
    single = mean_map_variance(gaussian, x, y, 1, form)
    plain = required_frequencies(0.1, 0.1, form=form)
    known = required_frequencies(0.1, 0.1, form=form, variance=single)
    assert known < plain < required_frequencies(0.1, 0.1, form=form, quantity="squared-mmd")
    # far more than the error needs, as bounds for all samples are
    deviation = np.sqrt(mean_map_variance(gaussian, x, y, known, form))
    assert 2 * stats.norm.sf(0.1 / deviation) < 0.1


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: random_features(np.ones((2, 3)), np.ones((2, 4))), "frequencies"),
        (lambda: random_features(np.ones((2, 3)), np.ones((3, 4)), np.ones(3)), "offsets"),
        (lambda: kernel_variance(gaussian, [1.0], 0), "n_frequencies=0"),
        (lambda: kernel_variance(gaussian, [1.0], 1, "both"), "form='both'"),
        (lambda: mean_map_variance(gaussian, np.ones((200, 1)), np.ones((200, 1)), 1), "200 rows"),
        (
            lambda: mean_map_variance(gaussian, [[1.0]], [[1.0]], 1, quantity="mmd"),
            "quantity='mmd'",
        ),
        (lambda: required_frequencies(0.0), "error=0"),
        (lambda: required_frequencies(0.1, quantity="kernel"), "n_features=None"),
        (lambda: required_frequencies(0.1, quantity="mmd"), "quantity='mmd'"),
        (lambda: required_frequencies(0.1, quantity="squared-mmd", variance=1.0), "variance=1"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(InputError, match=match):
        call()
