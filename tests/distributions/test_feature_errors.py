"""Errors of random features: exact variances, and the printed bounds as corrected."""

import numpy as np
import pandas as pd
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


def test_expected_variance_is_that_of_corollary_4_7_as_corrected():
    # x of N(0, 0.3) and y of N(0.8, 0.2): values of the kernel have means in closed form
    rng, n, shift, p, q = np.random.default_rng(2), 3, 0.8, 0.3, 0.2

    def mean(center, variance):
        return np.exp(-0.5 * center**2 / (1 + variance)) / np.sqrt(1 + variance)

    def mean_product(covariance):  # of the kernels of two differences
        matrix = np.array([[1 + p + q, covariance], [covariance, 1 + p + q]])
        exponent = shift**2 * np.linalg.inv(matrix).sum()
        return np.exp(-0.5 * exponent) / np.sqrt(np.linalg.det(matrix))

    def bracket(x_repeated, y_repeated):
        own, other = (0 if x_repeated else 2 * p), (0 if y_repeated else 2 * q)
        both = mean(2 * shift, 4 * p + 4 * q - own - other)
        covariance = p * x_repeated + q * y_repeated
        return mean(0.0, own + other) + both - 2 * mean_product(covariance)

    once, shared = 1 - 1 / n, 1 / n
    expected = once**2 * bracket(False, False) + shared**2 * bracket(True, True)
    expected += once * shared * (bracket(True, False) + bracket(False, True))
    found = [
        mean_map_variance(
            gaussian,
            rng.normal(0.0, np.sqrt(p), (n, 1)),
            rng.normal(shift, np.sqrt(q), (n, 1)),
            1,
        )
        for _ in range(1000)
    ]
    error = np.std(found) / np.sqrt(1000)
    assert np.mean(found) == pytest.approx(expected / 2, abs=4 * error)
    # the printed bracket is squared, and has no pairs of a row with itself
    assert abs(np.mean(found) - bracket(False, False) ** 2 / 2) > 10 * error
    assert abs(np.mean(found) - bracket(False, False) / 2) > 6 * error


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


def test_number_with_a_variance_has_the_corrected_constant():
    # Bernstein's inequality of Proposition 4.5: terms of one, rarely of minus one, are up to two
    # from their mean, not one. Their errors have binomial probabilities.
    rare, error, probability = 0.01, 0.08, 1e-19

    def chance(number):
        return stats.binom.sf(np.ceil(number * (rare + error / 2)) - 1, number, rare)

    variance = 4 * rare * (1 - rare)
    number = required_frequencies(error, probability, variance=variance)
    assert chance(number) < probability
    printed = 4 * variance + 4 / 3 * error
    printed *= np.log(2 / probability) / error**2 / 2
    assert chance(int(np.ceil(printed))) > probability


@pytest.mark.parametrize("form", ["sine-cosine", "offset"])
def test_numbers_for_discrepancies_keep_their_promise(form):
    # rare frequencies at which two rows are opposite, and else a frequency of zero
    rng, error, probability, n_draws = np.random.default_rng(0), 0.5, 0.1, 2000
    rows = np.array([[0.0], [1.0]])

    def share_of_errors(number, rare):
        omega = np.pi * (rng.uniform(size=(1, number * n_draws)) < rare)
        offsets = rng.uniform(0, 2 * np.pi, number * n_draws) if form == "offset" else None
        first, second = np.sqrt(n_draws) * random_features(rows, omega, offsets)
        squares = (first - second).reshape(-1, n_draws, number) ** 2
        found = np.sqrt(squares.sum(axis=(0, 2)))
        return np.mean(np.abs(found - 2 * np.sqrt(rare)) > error)

    number = required_frequencies(error, probability, quantity="mmd", form=form)
    chances = [0.26 * error**2, error**2, 0.7]
    assert all(share_of_errors(number, rare) < probability for rare in chances)
    assert share_of_errors(number // 6, chances[0]) > probability


def test_numbers_for_discrepancies_are_fewer_than_in_print():
    number = required_frequencies(0.1, quantity="mmd")
    offset = required_frequencies(0.1, quantity="mmd", form="offset")
    assert offset == pytest.approx(2 * number, abs=1)  # the same number of features
    # Corollaries 4.8 and 4.9 as printed, from a wrong step, and as that step allows
    assert 100 * number < 1024 * 4 * np.log(6 / 0.05) / 0.1**2 / 2
    assert 100 * number < required_frequencies(0.1**2, quantity="squared-mmd")
    # the number grows like the square of the inverse error
    assert required_frequencies(0.05, quantity="mmd") == pytest.approx(4 * number, abs=4)


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
        (lambda: required_frequencies(0.1, quantity="root"), "quantity='root'"),
        (lambda: required_frequencies(0.1, quantity="mmd", variance=1.0), "variance=1"),
        (lambda: required_frequencies(0.1, quantity="squared-mmd", variance=1.0), "variance=1"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_samples_of_other_names_are_refused():
    x = pd.DataFrame(np.zeros((2, 2)), columns=["a", "b"])
    with pytest.raises(InputError, match="feature 0 of y is 'b'; x .* 'a'"):
        mean_map_variance(lambda shifts: np.ones(shifts.shape[:-1]), x, x[["b", "a"]], 10)
