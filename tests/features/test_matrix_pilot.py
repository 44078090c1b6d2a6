"""Mixture of pilot rows with covariance matrices, and frequencies that are adapted to it."""

import json
from dataclasses import replace

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch import FeatureMap
from dask_sketch.errors import InputError
from dask_sketch.features.matrix_pilot import adapted_to_matrices, n_pilot_of_type, with_matrices
from dask_sketch.features.pilot import MatrixMixture, Pilot
from dask_sketch.features.pilot_fit import record_pilot, rough_mixture

# the second component is narrow in a direction of all features
NARROW = np.eye(4) - 0.2475 * np.ones((4, 4))
COVARIANCES = np.array([np.diag([0.5, 1.0, 2.0, 1.0]), NARROW])


def rows_of(rng, n, apart=6.0):
    """Rows of two components, ``apart`` standard deviations of the first feature."""
    parts = [rng.multivariate_normal(np.zeros(4), each, n // 2) for each in COVARIANCES]
    parts[1][:, 0] += apart
    return np.concatenate(parts)


def pilot_of(x, k=2):
    return record_pilot(x, rough_mixture(x, n_components=k))


def test_the_record_has_the_mixture_of_the_rows(rng):
    x = rows_of(rng, 4000)
    mixture = with_matrices(pilot_of(x), x).matrix_mixture
    order = np.argsort(mixture.means[:, 0])
    np.testing.assert_allclose(mixture.weights, 0.5, atol=0.01)
    np.testing.assert_allclose(mixture.covariances[order], COVARIANCES, atol=0.15)
    model = ds.GaussianMixture(
        mixture.weights, mixture.means, mixture.covariances, covariance_type="full"
    )
    assert model.score(x) == pytest.approx(mixture.score, abs=1e-9)
    assert 0.0 < mixture.sampling_loss < 0.05


@pytest.mark.parametrize("case", ["few rows", "constant", "one feature", "no components"])
def test_rows_that_determine_no_matrices(case, rng):
    x = rows_of(rng, 4000)
    x = {"few rows": x[::40], "one feature": x[:, :1]}.get(case, x)
    if case == "constant":
        x[:, 2] = 1.0
    pilot = pilot_of(x, None if case == "no components" else 2)
    assert with_matrices(pilot, x) is pilot


def test_more_parameters_than_can_be_solved_have_no_mixture(rng):
    x = rng.normal(size=(2000, 40))
    pilot = pilot_of(x, 5)
    assert with_matrices(pilot, x) is pilot


def test_frequencies_resolve_narrow_directions_of_all_features(rng):
    x = rows_of(rng, 8000)
    full = ds.design(x, n_components=2, covariance_type="full")
    assert full.distribution == "dense-sums"
    assert full.axes.shape == (2, 4, 4)
    direction = np.full(4, 0.5)

    def moduli(feature_map):
        """Moduli of the narrow component, which say something about it between zero and one."""
        omega = feature_map.frequencies
        return np.exp(-0.5 * np.einsum("im,ij,jm->m", omega, NARROW, omega)), direction @ omega

    sparse = ds.design(x, n_components=2, n_frequencies=full.n_frequencies)
    known, along = moduli(full)
    before, before_along = moduli(sparse)
    resolved = [np.abs(a[m > 0.2]).max() for m, a in ((known, along), (before, before_along))]
    assert resolved[0] > 2.0 * resolved[1]


def test_the_factor_grows_with_the_overlap(rng):
    lengths = []
    for apart in (40.0, 1.0):
        x = rows_of(rng, 8000, apart)
        feature_map = ds.design(x, n_components=2, n_frequencies=200)
        feature_map = feature_map.with_pilot(with_matrices(feature_map.pilot, x))
        adapted = adapted_to_matrices(feature_map, x)
        roots = np.linalg.cholesky(feature_map.pilot.matrix_mixture.covariances)
        product = np.einsum("kji,kjl->kil", roots, adapted.axes)  # a multiple of the unit matrix
        factors = np.diagonal(product, axis1=1, axis2=2)
        np.testing.assert_allclose(factors, factors.mean(), rtol=0.02)
        lengths.append(float(factors.mean()))
    assert lengths[0] == pytest.approx(0.35, rel=0.02)
    assert 0.5 < lengths[1] <= 1.01


def test_maps_of_many_features_keep_their_frequencies(rng):
    x = rng.normal(size=(6000, 13))
    feature_map = ds.design(x, n_components=1, covariance_type="full")
    assert feature_map.distribution == "sparse-sums"
    assert feature_map.pilot.matrix_mixture is not None


@pytest.mark.parametrize(
    "options",
    [
        {"distribution": "sparse-sums"},
        {"scale": 1.0},
        {"covariances": np.ones(4)},
        {"whitening": "full"},
        {"nan_policy": "available"},
    ],
)
def test_given_arguments_and_missing_values_keep_the_distribution(options, rng):
    x = rows_of(rng, 4000)
    feature_map = ds.design(x, n_components=2, covariance_type="full", **options)
    assert feature_map.axes is None
    assert feature_map.distribution == "sparse-sums"


def test_the_digest_depends_on_the_axes_alone(rng):
    x = rows_of(rng, 4000)
    feature_map = ds.design(x, n_components=2, covariance_type="full")
    again = FeatureMap.from_json(feature_map.to_json())
    assert again == feature_map
    np.testing.assert_array_equal(again.axes, feature_map.axes)
    assert again.pilot.checksum == feature_map.pilot.checksum
    assert replace(feature_map, axes=2.0 * feature_map.axes) != feature_map
    assert "axes" not in json.loads(FeatureMap(2, 40, scale=1.0).spec)


@pytest.mark.parametrize(
    ("axes", "distribution", "message"),
    [
        (np.eye(2), "dense-sums", r"axes has shape \(2, 2\)"),
        (np.ones((1, 3, 3)), "dense-sums", r"axes has shape \(1, 3, 3\)"),
        (np.full((1, 2, 2), np.nan), "dense-sums", "give finite numbers"),
        (np.ones((1, 2, 2)), "dense-sums", "singular"),
        (np.eye(2)[None], "sparse-sums", "only the base frequencies of 'dense-sums'"),
    ],
)
def test_axes_that_no_map_can_have(axes, distribution, message):
    with pytest.raises(InputError, match=message):
        FeatureMap(2, 40, scale=1.0, distribution=distribution, axes=axes)


@pytest.mark.parametrize(
    ("covariances", "message"),
    [
        ([[[1.0, 2.0], [2.0, 1.0]]], "positive definite"),
        ([[[1.0, 0.5], [0.0, 1.0]]], "positive definite"),
        ([[1.0, 1.0]], "shape"),
    ],
)
def test_stored_matrices_are_checked(covariances, message):
    mixture = MatrixMixture(np.ones(1), np.zeros((1, 2)), np.array(covariances), -2.0)
    stored = Pilot(50, np.ones(2), -3.0, matrix_mixture=mixture).as_dict()
    with pytest.raises(InputError, match=message):
        Pilot.from_dict(stored, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling_loss": np.nan}, "sampling_loss=nan"),
        ({"sampling_loss": -1.0}, "sampling_loss=-1.0"),
        ({"score": np.inf}, "score=inf"),
        ({"weights": 1.0}, "shape"),
        ({"weights": [0.5]}, "sum to one"),
        ({"means": None}, "shape"),
    ],
)
def test_stored_mixtures_are_checked(change, message):
    mixture = MatrixMixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None], -2.0)
    stored = Pilot(50, np.ones(2), -3.0, matrix_mixture=mixture).as_dict()
    stored["matrix_mixture"] |= change
    with pytest.raises(InputError, match=message):
        Pilot.from_dict(stored, 2)


def test_pilot_rows_for_the_parameters_of_matrices():
    n_parameters = 5 * (1 + 8 + 36)
    assert n_pilot_of_type("full", 8, 5) == 40 * n_parameters
    assert n_pilot_of_type("full", 64, 10) == n_pilot_of_type(None, 64, 10)
    assert n_pilot_of_type("full", None, 5) == n_pilot_of_type("tied", 8, 1) == 5000
