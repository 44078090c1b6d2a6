import numpy as np
import pytest
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from dask_sketch.distributions import (
    DistanceKernel,
    NystroemKernel,
    divergence_matrix,
    repair_kernel,
)
from dask_sketch.errors import InputError
from dask_sketch.models import random_mixture

REPAIRS = ("clip", "flip", "shift", "square")


def points(n=30, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3))


def indefinite(n=12, seed=0):
    """Distances that are no Euclidean ones."""
    distances = np.random.default_rng(seed).uniform(0.5, 2.0, (n, n))
    distances = np.triu(distances, 1)
    return distances + distances.T


def eigenvalues(matrix):
    return np.linalg.eigvalsh(matrix)


@pytest.mark.parametrize("repair", REPAIRS)
def test_repairs_of_the_whole_matrix(repair):
    kernel = np.exp(-(indefinite() ** 2))
    kernel -= 0.5 * np.eye(len(kernel))
    values, basis = np.linalg.eigh(kernel)
    assert values[0] < -0.01
    expected = {
        "clip": np.maximum(values, 0.0),
        "flip": np.abs(values),
        "shift": values - values[0],
        "square": values**2,
    }[repair]
    repaired = repair_kernel(kernel, repair)
    np.testing.assert_allclose(repaired, (basis * expected) @ basis.T, atol=1e-12)
    assert eigenvalues(repaired)[0] > -1e-12
    np.testing.assert_array_equal(repair_kernel(kernel, "none"), kernel)


def test_positive_matrices_stay_as_they_are():
    kernel = rbf_kernel(points())
    for repair in ("clip", "flip", "shift", "none"):
        np.testing.assert_allclose(repair_kernel(kernel, repair), kernel, atol=1e-14)


def test_rbf_kernel_is_that_of_scikit_learn():
    x, y = points(), points(7, seed=1)
    distances = euclidean_distances(x)
    made = DistanceKernel(bandwidth=0.7).fit(distances)
    median = np.median(distances[np.triu_indices(30, 1)])
    assert made.bandwidth_ == pytest.approx(0.7 * median)
    gamma = 0.5 / made.bandwidth_**2
    np.testing.assert_allclose(made.transform(distances), rbf_kernel(x, gamma=gamma), atol=1e-12)
    np.testing.assert_allclose(
        made.transform(euclidean_distances(y, x)), rbf_kernel(y, x, gamma=gamma), atol=1e-12
    )
    assert made.negative_ == 0.0


@pytest.mark.parametrize("origin", ["mean", 4])
def test_linear_kernel_is_the_inner_product_around_its_origin(origin):
    x, y = points(), points(7, seed=1)
    at = x.mean(axis=0) if origin == "mean" else x[origin]
    made = DistanceKernel("linear", origin=origin).fit(euclidean_distances(x))
    np.testing.assert_allclose(
        made.fit_transform(euclidean_distances(x)), (x - at) @ (x - at).T, atol=1e-10
    )
    np.testing.assert_allclose(
        made.transform(euclidean_distances(y, x)), (y - at) @ (x - at).T, atol=1e-10
    )


@pytest.mark.parametrize("kind", ["rbf", "linear"])
@pytest.mark.parametrize("repair", REPAIRS)
def test_test_points_are_repaired_like_those_of_the_fit(kind, repair):
    distances = indefinite()
    made = DistanceKernel(kind, repair=repair, bandwidth=2.0)
    trained = made.fit_transform(distances)
    assert made.negative_ > 0.0
    assert eigenvalues(trained)[0] > -1e-9
    plain = DistanceKernel(kind, repair="none", bandwidth=2.0).fit_transform(distances)
    np.testing.assert_allclose(trained, repair_kernel(plain, repair), atol=1e-9)
    again = made.transform(distances)
    if repair == "shift":
        again += trained - plain
    np.testing.assert_allclose(again, trained, atol=1e-9)


def test_roots_of_jensen_shannon_divergences_are_euclidean():
    mixtures = [random_mixture(2, 2, seed=seed) for seed in range(12)]
    made = DistanceKernel(repair="none")
    made.fit(np.sqrt(divergence_matrix(mixtures, "js", n_draws=4000)))
    assert made.negative_ < 1e-3
    divergences = divergence_matrix(mixtures, "kl", n_draws=4000)
    made.fit(np.sqrt(0.5 * (divergences + divergences.T)))
    assert DistanceKernel("linear").fit(divergences + divergences.T).negative_ > 0.01


def test_support_vector_machine_with_a_search_of_the_bandwidth():
    x = points(60)
    y = np.linalg.norm(x, axis=1) > np.median(np.linalg.norm(x, axis=1))
    distances = euclidean_distances(x)
    search = GridSearchCV(
        make_pipeline(DistanceKernel(), SVC(kernel="precomputed", C=100.0)),
        {"distancekernel__bandwidth": [0.01, 1.0], "distancekernel__repair": ["clip", "flip"]},
        cv=3,
    ).fit(distances[:40, :40], y[:40])
    assert search.best_params_["distancekernel__bandwidth"] == 1.0
    assert search.score(distances[40:, :40], y[40:]) > 0.7


@pytest.mark.parametrize("repair", ["flip", "clip"])
def test_consistent_nystroem(repair):
    rng = np.random.default_rng(0)
    full = rng.normal(size=(40, 40))
    full = full + full.T  # indefinite
    anchors = np.arange(15)
    a, b = full[np.ix_(anchors, anchors)], full[np.ix_(anchors, np.arange(15, 40))]
    values, basis = np.linalg.eigh(a)
    kept = np.abs(values) if repair == "flip" else np.maximum(values, 0.0)
    signs = np.sign(kept) * np.sign(values)
    features = NystroemKernel(repair).fit(a).transform(full[:, anchors])
    found = features @ features.T
    np.testing.assert_allclose(found[:15, :15], (basis * kept) @ basis.T, atol=1e-9)
    np.testing.assert_allclose(found[:15, 15:], (basis * signs) @ basis.T @ b, atol=1e-9)
    inverse = np.divide(np.sign(kept), np.abs(values))
    np.testing.assert_allclose(found[15:, 15:], b.T @ (basis * inverse) @ basis.T @ b, atol=1e-8)


def test_nystroem_of_a_positive_kernel_is_that_of_scikit_learn():
    x = points(50)
    theirs = Nystroem(gamma=0.5, n_components=10, random_state=0).fit(x)
    anchors = theirs.component_indices_
    kernel = rbf_kernel(x, gamma=0.5)
    expected = theirs.transform(x)
    for repair in ("flip", "clip"):
        made = NystroemKernel(repair)
        own = made.fit_transform(kernel[np.ix_(anchors, anchors)])
        features = made.transform(kernel[:, anchors])
        np.testing.assert_allclose(features @ features.T, expected @ expected.T, atol=1e-8)
        # an anchor has the same features as the point that it is
        np.testing.assert_allclose(features[anchors], own)


def test_missing_values_of_a_kernel_are_named():
    with pytest.raises(ValueError, match="kernel contains NaN"):
        repair_kernel([[1.0, np.nan], [np.nan, 1.0]])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: repair_kernel(np.ones((2, 3))), r"shape \(2, 3\)"),
        (lambda: repair_kernel([[1.0, 2.0], [0.0, 1.0]]), r"\(0, 1\) is 2"),
        (lambda: repair_kernel(np.eye(2), "mend"), "repair='mend'"),
        (lambda: DistanceKernel("poly").fit(indefinite()), "kind='poly'"),
        (lambda: DistanceKernel(bandwidth=0).fit(indefinite()), "bandwidth=0"),
        (lambda: DistanceKernel(repair="mend").fit(indefinite()), "repair='mend'"),
        (lambda: DistanceKernel("linear", origin=12).fit(indefinite()), "origin=12"),
        (lambda: DistanceKernel().fit(-indefinite()), "distance -"),
        (lambda: NystroemKernel("shift").fit(np.eye(2)), "repair='shift'"),
        (lambda: NystroemKernel("clip").fit(-np.eye(2)), "no positive eigenvalue"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(InputError, match=match):
        call()
