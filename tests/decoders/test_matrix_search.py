from __future__ import annotations

import warnings

import numpy as np
import pytest

from dask_sketch import FeatureMap, decode, design, diagnose, partial_sketch
from dask_sketch.errors import DecodeError
from dask_sketch.models import GaussianMixture

TILTED = GaussianMixture(
    [0.4, 0.35, 0.25],
    [[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0]],
    [[[1.0, 0.8], [0.8, 1.0]], [[1.0, -0.7], [-0.7, 0.6]], [[0.2, 0.1], [0.1, 1.5]]],
    covariance_type="full",
)
N = 30_000


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return TILTED.sample(N, seed=1)


@pytest.fixture(scope="module")
def feature_map(rows) -> FeatureMap:
    return design(rows[:5000], n_components=3, n_frequencies=100, seed=2)


@pytest.fixture(scope="module")
def found(rows, feature_map):
    """Sketches without and with random rows, by whether they have rows."""
    return {
        False: partial_sketch(rows, feature_map),
        True: partial_sketch(rows, feature_map, sample=4000),
    }


def loss(mixture: GaussianMixture) -> float:
    fresh = TILTED.sample(50_000, seed=9)
    return float(TILTED.score(fresh) - mixture.score(fresh))


@pytest.mark.parametrize("has_rows", [False, True])
def test_correlations_are_found(found, has_rows):
    mixture = decode(found[has_rows], 3, covariance_type="full")
    assert mixture.covariance_type == "full"
    assert loss(mixture) < 20 / N  # of 17 parameters, maximum likelihood loses 8.5 on average
    assert np.linalg.eigvalsh(mixture.covariances).min() > 0
    record = mixture.decoding
    assert record.method == ("likelihood" if has_rows else "cl-ompr")
    assert abs(record.overidentification - record.freedom) < 4 * np.sqrt(2 * record.freedom)
    assert diagnose(mixture, found[has_rows]).findings == {}


def test_standard_errors_are_those_of_many_fits(found):
    mixture = decode(found[False], 3, covariance_type="full", refine="efficient")
    order = [np.argmin(((mean - mixture.means) ** 2).sum(axis=1)) for mean in TILTED.means]
    errors = mixture.stderr.covariances
    away = (mixture.covariances - TILTED.covariances[np.argsort(order)]) / errors
    assert np.abs(away).max() < 4.0
    assert np.sqrt((away**2).mean()) > 0.3
    np.testing.assert_array_equal(errors, np.swapaxes(errors, 1, 2))


def test_one_matrix_for_all_components(feature_map):
    truth = GaussianMixture(
        [0.6, 0.4], [[0.0, 0.0], [3.0, 1.0]], [[1.0, 0.8], [0.8, 1.0]], covariance_type="tied"
    )
    sketch = partial_sketch(truth.sample(N, seed=3), feature_map)
    mixture = decode(sketch, 2, covariance_type="tied", refine="efficient")
    np.testing.assert_allclose(mixture.covariances, truth.covariances, atol=0.03)
    assert mixture.stderr.covariances.shape == (2, 2)
    assert mixture.n_parameters == 8


@pytest.mark.filterwarnings("ignore:the mixture is")  # of types that are not those of the data
@pytest.mark.slow
def test_other_types(found):
    spherical = decode(found[False], 3, covariance_type="spherical")
    assert (spherical.covariance_type, spherical.covariances.shape) == ("spherical", (3,))
    same = decode(found[False], 3, model="isotropic")
    np.testing.assert_allclose(same.variances, spherical.variances)
    diagonal = decode(found[False], 3, covariance_type="diag")
    np.testing.assert_array_equal(diagonal.covariances, decode(found[False], 3).covariances)


def test_a_start_with_matrices(found):
    mixture = decode(found[False], start=TILTED, n_components=3, covariance_type="full")
    assert loss(mixture) < 20 / N


def test_the_same_seed_gives_the_same_bits_for_any_number_of_threads(found):
    first, second = (
        decode(found[False], 3, covariance_type="full", threads=threads) for threads in (1, 2)
    )
    np.testing.assert_array_equal(first.covariances, second.covariances)


def test_poor_fits_come_with_a_warning_in_nats(found):
    with pytest.warns(UserWarning, match=r"overidentification statistic of .* nats a sample"):
        decode(found[False], 1, covariance_type="full")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(found[False], 3, covariance_type="full")


@pytest.mark.slow
def test_searches_start_again_where_the_statistic_is_too_large(rows):
    sketch = partial_sketch(rows[:5000], design(rows[:5000], n_components=2, n_frequencies=50))
    costs = {}
    for k in (2, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = decode(sketch, k, covariance_type="full")
        costs[k] = found.decoding.n_evaluations
    assert costs[2] > 3 * costs[3]


@pytest.mark.slow
def test_a_search_that_finds_the_same_fit_again_is_the_last():
    # no mixture of two components fits a square: every search ends at the same one
    x = np.random.default_rng(0).random((4000, 2))
    sketch = partial_sketch(x, design(x, n_components=2, n_frequencies=60))
    with pytest.warns(UserWarning, match="overidentification"):
        found = decode(sketch, 2, covariance_type="full")
    assert found.decoding.cost < 16.0 * found.decoding.noise_level
    assert len(found.decoding.trace) < 50  # 38 of one whole search and a part; 81 of three


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance_type": "round"}, "covariance_type='round'"),
        ({"model": "dirac"}, "covariance_type='full' with model='dirac'"),
        ({"method": "density"}, "covariance_type='full' with method='density'"),
        ({"n_components": None}, "n_components=None"),
        ({"bounds": "data"}, "bounds with covariance_type='full'"),
        ({"device": "cuda"}, "device='cuda'"),
        ({"n_components": 60}, "n_components=60"),
    ],
)
def test_arguments_that_do_not_suit_matrices(found, options, message):
    with pytest.raises(DecodeError, match=message):
        decode(found[False], **{"n_components": 3, "covariance_type": "full"} | options)
