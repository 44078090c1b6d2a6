"""Further passes over the samples: expectation-maximisation and Lloyd's algorithm on Dask."""

from __future__ import annotations

import warnings
from dataclasses import replace

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture as Reference

import dask_sketch as ds
from dask_sketch.errors import ChunkError, DecodeError, InputError, PlanError
from dask_sketch.models import Decoding

RNG = np.random.default_rng(0)
TRUTH = ds.GaussianMixture(
    [0.4, 0.35, 0.25], RNG.normal(size=(3, 3)) * 3.0, RNG.uniform(0.3, 2.0, (3, 3))
)
X = TRUTH.sample(1200, seed=3)
START = ds.GaussianMixture(np.full(3, 1 / 3), X[:3], np.full((3, 3), 6.0))
POINTS = ds.Centroids(START.weights, START.means)
NAMES = ["a", "b", "c"]


def same(found, other):
    names = ("weights", "means", "covariances") if hasattr(other, "means") else (
        "weights", "centers",
    )  # fmt: skip
    for name in names:
        np.testing.assert_array_equal(getattr(found, name), getattr(other, name))
    assert found.polishing.trace == other.polishing.trace
    assert found.polishing.bound == other.polishing.bound


def inputs(place):
    zarr.create_array(str(place / "x.zarr"), data=X, chunks=(100, 3))
    frame = pd.DataFrame(X, columns=NAMES)
    frame.to_parquet(place / "x.parquet")
    return {
        "array": da.from_array(X, chunks=(77, 3)),
        "features": da.from_array(X, chunks=(500, 2)),
        "unknown": da.from_array(X, chunks=(200, 3))[da.ones(1200, chunks=200, dtype=bool)],
        "reversed": X[::-1],
        "frame": dd.from_pandas(frame, npartitions=3),
        "zarr": place / "x.zarr",
        "parquet": place / "x.parquet",
        "bag": db.from_sequence([X[:25], X[25:]]),
        "records": db.from_sequence(frame.to_dict("records"), npartitions=3),
        "labelled": xr.DataArray(X.reshape(12, 100, 3), dims=("t", "s", "band")).chunk(t=2, s=50),
    }  # fmt: skip


@pytest.mark.parametrize("start", [START, POINTS], ids=["mixture", "centroids"])
@pytest.mark.slow
def test_the_same_bits_for_every_input(start, tmp_path):
    expected = ds.polish(start, X)
    for name, lazy in inputs(tmp_path).items():
        same(ds.polish(start, lazy), expected)
        assert ds.polish(start, lazy, 1).polishing.n_samples == len(X), name


def test_batches_have_the_same_bits():
    lazy = da.from_array(X, chunks=(50, 3))
    with dask.config.set({"sketch.task-limit": 4, "sketch.batch-tasks": 3}):
        same(ds.polish(START, lazy), ds.polish(START, X))


def test_on_a_cluster(capsys):
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster):
        lazy = da.from_array(X, chunks=(90, 3))
        same(ds.polish(START, lazy, progress=True), ds.polish(START, X))
    assert "pass 2 of 2" in capsys.readouterr().err


@pytest.mark.parametrize("start", [START, POINTS], ids=["mixture", "centroids"])
def test_never_worse(start):
    found = ds.polish(start, X, passes=12)
    record = found.polishing
    assert record.passes == 12
    assert record.converged is None
    steps = np.diff([*record.trace, record.bound])
    if start is START:
        assert (steps > -1e-9).all()
        assert record.trace[0] == pytest.approx(start.score(X), rel=1e-12)
        assert record.bound <= found.score(X) + 1e-12
        assert record.trace[-1] < record.bound
    else:
        assert (steps < 1e-9).all()
        assert record.trace[0] == pytest.approx(start.inertia(X), rel=1e-10)
        assert found.inertia(X) <= record.bound + 1e-12


def test_likelihood_of_a_bad_start_is_monotone():
    """Far rows, a component that dies, variances at the floor."""
    x = np.concatenate([X, np.full((50, 3), 0.25), 1e3 * X[:5]])
    means = np.concatenate([X[:3], [[0.25] * 3], [[1e5] * 3]])
    variances = np.array([4.0, 4.0, 4.0, 1e-2, 4.0])[:, None] * np.ones(3)
    start = ds.GaussianMixture(np.full(5, 0.2), means, variances)
    found = ds.polish(start, x, 40)
    assert (np.diff(found.polishing.trace) > -1e-9).all()
    assert found.weights[4] == 0.0
    np.testing.assert_array_equal(found.means[4], [1e5] * 3)
    assert found.covariances[3] == pytest.approx(np.full(3, 1e-6 * 0.2 * 16.01))


@pytest.mark.filterwarnings("ignore:Best performing initialization:UserWarning")
@pytest.mark.slow
def test_until_converged_is_where_scikit_learn_ends():
    found = ds.polish(START, X, "until converged", tolerance=1e-10)
    assert found.polishing.converged is True
    reference = Reference(
        3, covariance_type="diag", tol=1e-11, reg_covar=0.0, max_iter=1000,
        weights_init=START.weights, means_init=START.means, precisions_init=1 / START.covariances,
    ).fit(X)  # fmt: skip
    np.testing.assert_allclose(found.means, reference.means_, rtol=1e-4)
    np.testing.assert_allclose(found.covariances, reference.covariances_, rtol=1e-4)
    assert found.score(X) == pytest.approx(reference.score(X), abs=1e-8)
    assert found.polishing.bound == pytest.approx(found.score(X), abs=1e-8)


@pytest.mark.parametrize("kind", ["full", "tied", "spherical"])
@pytest.mark.slow
def test_types_of_covariances_end_where_scikit_learn_does(kind):
    x = np.random.default_rng(0).normal([[-4.0, 0.0]] * 700 + [[4.0, 1.0]] * 300)
    x[:, 1] += 0.6 * x[:, 0]
    other = Reference(2, covariance_type=kind, tol=1e-9).fit(x)
    end = ds.GaussianMixture.from_sklearn(other)
    start = replace(end, means=end.means + 0.5, covariances=2.0 * end.covariances)
    found = ds.polish(start, da.from_array(x, chunks=(130, 2)), passes=12)
    assert found.covariance_type == kind
    assert found.score(x) == pytest.approx(other.score(x), abs=1e-6)
    assert (np.diff(found.polishing.trace) > -1e-11).all()
    np.testing.assert_array_equal(found.covariances, ds.polish(start, x, passes=12).covariances)


def test_centroids_until_converged():
    found = ds.polish(POINTS, X, "until converged", tolerance=0.0)
    reference = KMeans(3, init=POINTS.centers, n_init=1, tol=0.0).fit(X)
    np.testing.assert_allclose(found.centers, reference.cluster_centers_, rtol=1e-8)
    assert found.polishing.trace[-1] == pytest.approx(reference.inertia_ / len(X))
    assert found.polishing.objective == "mean squared error"


@pytest.mark.slow
def test_the_number_of_passes_is_bounded():
    x = np.random.default_rng(0).normal(size=(300, 3))
    with pytest.warns(UserWarning, match=r"'until converged': after 100 passes .* tolerance=0"):
        found = ds.polish(START, x, "until converged", tolerance=0)
    assert found.polishing.converged is False
    assert found.polishing.passes == 100


def test_far_clusters_from_a_decoded_model():
    x = np.concatenate([RNG.normal(size=(900, 2)), RNG.normal(size=(100, 2)) + 3000.0])
    start = ds.GaussianMixture([0.5, 0.5], [[1.0, 1.0], [2990.0, 2999.0]], [[2.0, 2.0]] * 2)
    found = ds.polish(start, x, 3)
    np.testing.assert_allclose(found.weights, [0.9, 0.1])
    np.testing.assert_allclose(found.means, [x[:900].mean(axis=0), x[900:].mean(axis=0)], rtol=1e-9)
    np.testing.assert_allclose(
        found.covariances, [x[:900].var(axis=0), x[900:].var(axis=0)], rtol=1e-6
    )


def test_narrow_clusters_far_from_each_other_and_from_zero():
    x = np.concatenate([RNG.normal(size=(100, 2)), RNG.normal(size=(100, 2)) + 1e6])
    found = ds.polish(ds.Centroids([0.5, 0.5], [[0.0, 1.0], [1e6, 1e6]]), x)
    expected = [x[:100].mean(axis=0), x[100:].mean(axis=0)]
    np.testing.assert_allclose(found.centers - expected, 0.0, atol=1e-7)
    assert found.polishing.bound == pytest.approx(found.inertia(x), rel=1e-6)
    one = ds.polish(ds.Centroids([1.0], [[1e6, 1e6]]), x[100:])
    np.testing.assert_allclose(one.centers[0], expected[1], rtol=1e-13)
    assert one.polishing.passes == 2


def test_weights_and_columns(tmp_path):
    w = RNG.integers(0, 4, len(X))
    expected = ds.polish(START, np.repeat(X, w, axis=0))
    frame = pd.DataFrame(X, columns=NAMES).assign(w=w, other=1.0)
    frame.to_parquet(tmp_path / "x.parquet")
    for found in (
        ds.polish(START, X, weights=w),
        ds.polish(START, tmp_path / "x.parquet", weights="w", columns=NAMES),
        ds.polish(START, da.from_array(X, chunks=(70, 3)), weights=da.from_array(w, chunks=70)),
    ):
        np.testing.assert_allclose(found.means, expected.means, rtol=1e-8)
        np.testing.assert_allclose(found.covariances, expected.covariances, rtol=1e-8)
        assert found.polishing.n_samples == len(X)


def test_rows_that_are_not_finite():
    x = X.copy()
    x[7, 1] = np.nan
    with pytest.raises(ChunkError, match="row 7 .* nan in feature 1"):
        ds.polish(START, x)
    found = ds.polish(START, x, nan_policy="omit")
    assert found.polishing.omitted == 1
    np.testing.assert_array_equal(found.means, ds.polish(START, np.delete(x, 7, axis=0)).means)


def test_a_decoded_model_keeps_its_names_and_record():
    frame = pd.DataFrame(X, columns=NAMES)
    record = Decoding(
        "cl-ompr", "isotropic", 0.0, 0.0, (), 0.0, 0, 1, 1, True, "", feature_names=tuple(NAMES)
    )
    model = ds.GaussianMixture(START.weights, START.means, START.covariances, record)
    found = ds.polish(model, frame)
    assert found.decoding == model.decoding
    assert found.feature_names == tuple(NAMES)
    assert np.ptp(found.covariances, axis=1) == pytest.approx(0.0)
    assert found.score(frame) >= model.score(frame)
    with pytest.raises(InputError, match="c"):
        ds.polish(model, frame[["c", "b", "a"]])


def test_the_record_is_shown_and_stored(tmp_path):
    found = ds.polish(START, X, 2)
    assert f"passes=2, objective=log-likelihood, bound={found.polishing.bound:.6g}" in repr(found)
    assert "passes=1, objective=mean squared error" in repr(ds.polish(POINTS, X, 1))
    assert "nats a sample" in found._repr_html_()
    assert "1,200" in found.polishing._repr_html_()
    for number, model in enumerate((found, ds.polish(POINTS, X, "until converged"))):
        model.to_zarr(tmp_path / f"{number}.zarr")
        back = ds.open(tmp_path / f"{number}.zarr")
        assert back.polishing == model.polishing
        same(back, model)
    assert START.polishing is None


def test_progress_is_one_bar_of_all_passes(capsys):
    ds.polish(START, da.from_array(X, chunks=(400, 3)), 3, progress=True)
    shown = capsys.readouterr().err
    assert "pass 3 of 3" in shown
    assert "100%" in shown
    ds.polish(START, X, 1)
    assert capsys.readouterr().err == ""


def test_chunks_that_cannot_fit_are_refused_before_the_pass():
    huge = da.zeros((2**41, 3), chunks=(2**40, 3), dtype="float64")
    with pytest.raises(PlanError, match=r"needs 48\.00 TiB .*largest chunk 24\.00 TiB"):
        ds.polish(START, huge)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"passes": 0}, "passes=0"),
        ({"passes": 1.5}, "passes=1.5"),
        ({"passes": "twice"}, "passes='twice'.*'until converged'"),
        ({"variance_floor": -1.0}, "variance_floor=-1"),
        ({"variance_floor": 2.0}, "variance_floor=2"),
        ({"tolerance": np.nan}, "tolerance=nan"),
        ({"nan_policy": "skip"}, "nan_policy='skip'"),
        ({"groups": np.zeros(1200)}, "groups"),
        ({"split_every": 1}, "split_every=1"),
        ({"model": 3}, "model of type int"),
        ({"x": X[:, :2]}, "n_features=3"),
        ({"x": X[:0]}, "gave no samples"),
        ({"weights": np.zeros(1200)}, "gave no samples: .*1,200"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        ds.polish(**({"model": START, "x": X} | arguments))


def test_unknown_keywords():
    with pytest.raises(TypeError, match="polish.*'steps'"):
        ds.polish(START, X, steps=3)


def test_a_start_below_the_floor_does_not_lose():
    narrow = ds.GaussianMixture(START.weights, START.means, np.full((3, 3), 1e-3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ds.polish(narrow, X, 10, variance_floor=0.5)
    assert (np.diff(found.polishing.trace) > -1e-9).all()


def test_steps_of_spherical_kmeans():
    rng = np.random.default_rng(0)
    axes = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    x = (axes[np.arange(2000) % 2] + 0.3 * rng.normal(size=(2000, 3))) * 9.0
    x[::7] *= 100.0
    sketch = ds.partial_sketch(x, ds.design(x, n_components=2, task="clustering", normalize=True))
    begun = ds.Centroids([0.5, 0.5], [[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]], normalize=True)
    found = ds.polish(begun, x, passes="until converged", tolerance=0.0)
    assert (np.diff(found.polishing.trace) < 1e-9).all()
    np.testing.assert_allclose(np.linalg.norm(found.centers, axis=1), 1.0)
    decoded = ds.decode(sketch, 2, model="dirac")
    assert decoded.normalize
    assert decoded.inertia(x) < 1.05 * found.inertia(x)
    assert (ds.decode(ds.partial_sketch(x, sketch.feature_map, sample=1000), 2, model="dirac")
            .inertia(x) < 1.01 * found.inertia(x))  # fmt: skip
    with pytest.raises(DecodeError, match="normalize=True"):
        ds.decode(sketch, 2, model="gaussian")
    x[30] = 0.0
    with pytest.raises(ChunkError, match="row 30"):
        ds.polish(found, x)
    assert ds.polish(found, x, nan_policy="omit").polishing.omitted == 1
