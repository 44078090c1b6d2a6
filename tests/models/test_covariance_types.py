from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from sklearn.mixture import GaussianMixture as Estimator

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.models import GaussianMixture, StandardErrors
from dask_sketch.models.artifact import MIXTURE, VERSION, to_dataset
from dask_sketch.storage.artifact import write_dataset
from dask_sketch.validation.choices import COVARIANCE_TYPES

MEANS = np.array([[0.0, 0.0, 1.0], [5.0, -4.0, 0.0]])
MATRICES = np.array(
    [
        [[2.0, 0.9, 0.1], [0.9, 1.0, 0.0], [0.1, 0.0, 0.5]],
        [[0.5, -0.2, 0.1], [-0.2, 0.4, 0], [0.1, 0, 3]],
    ]
)
SHAPES = {
    "diag": np.array([[2.0, 1.0, 0.5], [0.5, 0.4, 3.0]]),
    "spherical": np.array([2.0, 0.5]),
    "tied": MATRICES[0],
    "full": MATRICES,
}


def mixture_of(kind: str, **options) -> GaussianMixture:
    return GaussianMixture([0.4, 0.6], MEANS, SHAPES[kind], covariance_type=kind, **options)


@pytest.fixture(params=COVARIANCE_TYPES)
def mixture(request) -> GaussianMixture:
    return mixture_of(request.param)


def test_moments_of_samples_are_those_of_the_mixture(mixture):
    x = mixture.sample(100_000, seed=1)
    np.testing.assert_allclose(x.mean(axis=0), mixture.mean, atol=0.05)
    np.testing.assert_allclose(x.var(axis=0), mixture.variance, rtol=0.02)
    first = x[mixture.predict(x) == 0]
    np.testing.assert_allclose(np.cov(first.T), mixture.covariance_matrices[0], atol=0.1)
    np.testing.assert_array_equal(mixture.sample(10, seed=1), mixture.sample(10, seed=1))
    frequencies = 0.3 * np.random.default_rng(0).normal(size=(3, 5))
    found = np.exp(-1j * x @ frequencies).mean(axis=0)
    np.testing.assert_allclose(mixture.characteristic(frequencies), found, atol=0.02)


def test_predictions_are_those_of_scikit_learn(mixture):
    x = mixture.sample(300, seed=2)
    other = mixture.to_sklearn()
    np.testing.assert_array_equal(mixture.predict(x), other.predict(x))
    np.testing.assert_allclose(mixture.predict_proba(x), other.predict_proba(x), atol=1e-12)
    np.testing.assert_allclose(mixture.logpdf(x), other.score_samples(x))
    assert mixture.bic(x) == pytest.approx(other.bic(x))
    assert mixture.aic(x) == pytest.approx(other.aic(x))
    back = GaussianMixture.from_sklearn(other)
    np.testing.assert_array_equal(back.covariances, mixture.covariances)
    assert back.covariance_type == mixture.covariance_type


def test_a_fitted_estimator_of_scikit_learn_is_converted(mixture):
    kind = mixture.covariance_type
    x = mixture.sample(500, seed=3)
    other = Estimator(2, covariance_type=kind, random_state=0).fit(x.astype(np.float32))
    found = GaussianMixture.from_sklearn(other)
    np.testing.assert_array_equal(found.predict(x), other.predict(x))
    assert found.score(x) == pytest.approx(other.score(x), abs=1e-5)
    with pytest.raises(InputError, match="estimator of type GaussianMixture has no weights_"):
        GaussianMixture.from_sklearn(Estimator(2))


def test_lazy_input_gives_the_same_numbers(mixture):
    x = mixture.sample(60, seed=4)
    lazy = da.from_array(x, chunks=(20, 3))
    for method in ("logpdf", "predict", "predict_proba"):
        result = getattr(mixture, method)(lazy).compute()
        np.testing.assert_allclose(result, getattr(mixture, method)(x), rtol=1e-12)
    assert float(mixture.bic(lazy)) == pytest.approx(mixture.bic(x))


def test_stored_mixtures_come_back_with_the_same_bits(mixture, tmp_path):
    errors = StandardErrors([0.1, 0.1], 0.1 + 0 * MEANS, 0.1 + 0 * mixture.covariances)
    with_errors = mixture_of(mixture.covariance_type, stderr=errors)
    with_errors.to_zarr(tmp_path / "m.zarr")
    back = ds.open(tmp_path / "m.zarr")
    assert back.covariance_type == mixture.covariance_type
    np.testing.assert_array_equal(back.covariances, mixture.covariances)
    np.testing.assert_array_equal(back.stderr.covariances, errors.covariances)
    assert back.as_dict()["covariance_type"] == mixture.covariance_type
    assert back.interval()["covariances"].shape == (*mixture.covariances.shape, 2)


def test_layout_of_diagonal_mixtures_has_no_type(tmp_path):
    assert "covariance_type" not in to_dataset(mixture_of("diag"), MIXTURE).attrs


def test_stored_matrices_that_are_not_positive_definite_are_refused(tmp_path):
    stored = to_dataset(mixture_of("full"), MIXTURE).copy(deep=True)
    stored["covariances"][1] = -stored["covariances"][1]
    write_dataset(stored, tmp_path / "m.zarr", MIXTURE, VERSION)
    with pytest.raises(ArtifactError, match=r"covariances\[1\] is not positive definite"):
        ds.open(tmp_path / "m.zarr")


def test_invalid_covariances_are_refused():
    tilted = np.eye(3) + np.triu(np.full((3, 3), 0.5), 1)
    for kind, covariances, message in (
        ("circular", SHAPES["diag"], "covariance_type='circular'"),
        ("full", SHAPES["diag"], r"covariances has shape \(2, 3\).*'full'"),
        ("tied", -np.eye(3), "not positive definite: smallest eigenvalue -1"),
        ("full", np.stack([np.eye(3), tilted]), r"covariances\[1\] is not symmetric"),
        ("spherical", [1.0, -1.0], r"covariances\b.* -1\b"),
    ):
        with pytest.raises(InputError, match=message):
            GaussianMixture([0.4, 0.6], MEANS, covariances, covariance_type=kind)
    errors = StandardErrors([0.1, 0.1], 0 * MEANS, 0 * MEANS)
    with pytest.raises(InputError, match="stderr has means"):
        mixture_of("full", stderr=errors)


def test_numbers_of_parameters():
    found = {kind: mixture_of(kind).n_parameters for kind in COVARIANCE_TYPES}
    assert found == {"diag": 13, "spherical": 9, "tied": 13, "full": 19}


def test_representations_state_the_type(mixture):
    kind = mixture.covariance_type
    assert ("covariance_type" in repr(mixture)) == (kind != "diag")
    assert "1.41" in mixture._repr_html_()


def test_types_of_equal_content_have_other_tokens():
    means, same = [[0.0, 0.0], [1.0, 1.0]], np.ones((2, 2)) + np.eye(2)
    tied, diagonal = (
        GaussianMixture([0.5, 0.5], means, same, covariance_type=kind) for kind in ("tied", "diag")
    )
    assert tied.__dask_tokenize__() != diagonal.__dask_tokenize__()


def test_ellipses_are_tilted():
    pytest.importorskip("matplotlib")
    narrow = np.array([[1.0, 0.99], [0.99, 1.0]])
    mixture = GaussianMixture([1.0], [[0.0, 0.0]], narrow[None], covariance_type="full")
    axes = mixture.plot.ellipses()
    (ellipses,) = [each for each in axes.collections if each.get_label().startswith("two")]
    found = ellipses.get_widths(), ellipses.get_heights()
    np.testing.assert_allclose(np.sort(np.ravel(found)), 4.0 * np.sqrt([0.01, 1.99]))
    longer = ellipses.get_angles() + 90.0 * (found[1] > found[0])
    np.testing.assert_allclose(longer % 180.0, 45.0)
