from __future__ import annotations

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest

from dask_sketch.errors import InputError
from dask_sketch.models import Centroids, Decoding
from dask_sketch.models.open import open_model


@pytest.fixture
def centroids() -> Centroids:
    rng = np.random.default_rng(0)
    return Centroids([0.2, 0.5, 0.3], rng.normal(size=(3, 2)) * 3)


def squared(centroids, x):
    return np.square(x[:, None, :] - centroids.centers).sum(axis=2)


@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (1e6, 1e-3), (-1e8, 1.0), (0, 1e-12)])
def test_nearest_is_nearest(centroids, offset, scale):
    moved = Centroids(centroids.weights, centroids.centers * scale + offset)
    x = np.random.default_rng(1).normal(size=(500, 2)) * 3 * scale + offset
    expected = squared(moved, x)
    np.testing.assert_array_equal(moved.predict(x), expected.argmin(axis=1))
    np.testing.assert_allclose(moved.squared_distances(x), expected.min(axis=1), rtol=1e-9)
    assert moved.inertia(x) == pytest.approx(expected.min(axis=1).mean(), rel=1e-9)


def test_a_sample_on_a_centroid_is_at_no_distance(centroids):
    assert (centroids.squared_distances(centroids.centers) == 0).all()


def test_inertia_is_the_risk_of_k_means(centroids):
    cluster = pytest.importorskip("sklearn.cluster")
    x = np.random.default_rng(2).normal(size=(400, 2)) * 3
    fit = cluster.KMeans(3, n_init=1, random_state=0).fit(x)
    found = Centroids([1 / 3] * 3, fit.cluster_centers_)
    assert found.inertia(x) == pytest.approx(fit.inertia_ / len(x), rel=1e-6)
    np.testing.assert_array_equal(found.predict(x), fit.labels_)


def test_inertia_is_weighted(centroids):
    x = np.random.default_rng(3).normal(size=(3, 2))
    values = centroids.squared_distances(x)
    assert centroids.inertia(x, [2, 0, 1]) == pytest.approx((2 * values[0] + values[2]) / 3)


def test_blocks_do_not_matter(centroids):
    x = np.random.default_rng(4).normal(size=(60_000, 2))  # several blocks
    part = slice(19_000, 41_000)
    np.testing.assert_array_equal(centroids.predict(x)[part], centroids.predict(x[part]))
    whole, alone = centroids.squared_distances(x), centroids.squared_distances(x[part])
    np.testing.assert_array_equal(whole[part], alone)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 3)), "x has 3 features: .*2"),
        (np.zeros(3), r"x has shape \(3,\); give \(n_samples, 2\)"),
        (np.array([["a", "b"]]), "x has dtype=.*real"),
        (np.array([[0, 0], [0, np.nan]]), "row 1 of x"),
    ],
)
def test_refuses_bad_samples(centroids, x, message):
    for method in (centroids.predict, centroids.squared_distances, centroids.inertia):
        with pytest.raises(InputError, match=message):
            method(x)


def test_refuses_nothing_and_bad_weights(centroids):
    assert centroids.predict(np.empty((0, 2))).shape == (0,)
    with pytest.raises(InputError, match="0 samples"):
        centroids.inertia(np.empty((0, 2)))
    with pytest.raises(InputError, match="weights .*finite"):
        centroids.inertia(np.zeros((2, 2)), [-1, 1])


@pytest.mark.parametrize(
    ("weights", "centers", "message"),
    [
        ([1.0], [0.0], r"centers has shape \(1,\)"),
        ([0.5, 0.5], [[0.0]], r"weights has shape \(2,\); for 1 centers"),
        ([0.5], [[0.0]], "sum to one"),
        ([1.0], [[np.inf]], "centers holds NaN or infinity"),
        (["a"], [[0.0]], "weights: .*real numbers"),
    ],
)
def test_refuses_what_is_no_centroids(weights, centers, message):
    with pytest.raises(InputError, match=message):
        Centroids(weights, centers)


def test_lazy_samples_give_lazy_results(centroids):
    x = np.random.default_rng(5).normal(size=(300, 2))
    w = np.random.default_rng(6).random(300)
    lazy = da.from_array(x, chunks=(100, 2))
    for method in ("predict", "squared_distances", "inertia"):
        result = getattr(centroids, method)(lazy)
        assert hasattr(result, "dask")
        np.testing.assert_allclose(result.compute(), getattr(centroids, method)(x))
    weighted = centroids.inertia(lazy, weights=w)
    assert float(weighted.compute()) == pytest.approx(centroids.inertia(x, w))


def test_is_immutable_and_pickles(centroids):
    with pytest.raises(ValueError, match="read-only"):
        centroids.centers[0, 0] = 1.0
    copy = pickle.loads(pickle.dumps(centroids))
    np.testing.assert_array_equal(copy.centers, centroids.centers)
    assert copy.__dask_tokenize__() == centroids.__dask_tokenize__()
    other = Centroids(centroids.weights, centroids.centers + 1e-9)
    assert other.__dask_tokenize__() != centroids.__dask_tokenize__()


def test_shows_itself(centroids):
    assert repr(centroids) == "<Centroids: n_components=3, n_features=2>"
    record = Decoding("sketch-shift", "dirac", 1e-5, 3e-5, (1e-5,), 0.25, 0, 1, 9, True, "ok")
    decoded = Centroids(np.full(12, 1 / 12), np.zeros((12, 5)), record)
    assert "method=sketch-shift, model=dirac, cost=1e-05, noise_level=3e-05, seconds=0.25" in repr(
        decoded
    )
    assert decoded.as_dict()["decoding"]["replicates"] == 1
    html = decoded._repr_html_()
    assert "12 components in 5 features, cost 0.333 noise levels" in html
    many = Centroids(np.full(60, 1 / 60), np.arange(60.0)[:, None])
    assert "and 40 more" in many._repr_html_()


def test_characteristic_is_that_of_weighted_points(centroids):
    omega = np.random.default_rng(3).normal(size=(2, 7))
    found = centroids.characteristic(omega)
    counts = np.repeat(np.arange(3), [2, 5, 3])  # weights 0.2, 0.5 and 0.3
    expected = np.exp(-1j * centroids.centers[counts] @ omega).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-14)
    with pytest.raises(InputError, match="frequencies has shape"):
        centroids.characteristic(omega.T)


@pytest.mark.parametrize(
    ("name", "remedy"), [("labels_", "predict"), ("inertia_", "inertia"), ("weights_", "weights")]
)
def test_attributes_of_scikit_learn_are_pointed_to(centroids, name, remedy):
    with pytest.raises(AttributeError, match=rf"'Centroids' .* '{name}': {remedy}"):
        getattr(centroids, name)
    with pytest.raises(AttributeError, match="no attribute 'lables'$"):
        centroids.lables  # noqa: B018


def test_normalized_rows_are_nearest_by_cosine(tmp_path):
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(4, 3))
    centers /= np.linalg.norm(centers, axis=1)[:, None]
    directed = Centroids(np.full(4, 0.25), centers, normalize=True)
    x = rng.normal(size=(100, 3)) * rng.uniform(0.01, 100.0, (100, 1))
    cosines = x @ centers.T / np.linalg.norm(x, axis=1)[:, None]
    np.testing.assert_array_equal(directed.predict(x), cosines.argmax(axis=1))
    np.testing.assert_allclose(directed.squared_distances(x), 2 * (1 - cosines.max(axis=1)))
    np.testing.assert_allclose(directed.distances(x) ** 2, 2 * (1 - cosines))
    directed.to_zarr(tmp_path / "model.zarr")
    assert open_model(tmp_path / "model.zarr").normalize
    x[7] = 0.0
    with pytest.raises(InputError, match="row 7 of x is 0"):
        directed.predict(x)
    with pytest.raises(InputError, match="center 0 has length 2"):
        Centroids(np.full(4, 0.25), 2.0 * centers, normalize=True)


def test_weights_of_another_index_are_refused():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)))
    weights, centroids = pd.Series(np.arange(1.0, 21.0)), Centroids([1.0], [[0.0, 1.0]])
    assert centroids.inertia(frame, weights) == centroids.inertia(frame.to_numpy(), weights)
    with pytest.raises(InputError, match="weights.*to_numpy") as caught:
        centroids.inertia(frame, weights[::-1])
    assert caught.value.parameter == "weights"
