from __future__ import annotations

import warnings

import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.models import GaussianMixture, random_mixture


def gaussian(rng, n, d, scale=1.0, offset=0.0):
    return offset + scale * rng.normal(size=(n, d))


def test_sizes_and_defaults(rng):
    x = gaussian(rng, 20_000, 3, scale=2.0, offset=100.0)
    fm = ds.design(x, n_components=4)
    assert (fm.n_features, fm.n_frequencies) == (3, 5 * 7 * 4)
    assert (fm.distribution, fm.seed, fm.dtype) == ("sparse-sums", 0, "float32")
    assert fm.scale is None
    # four components share the one there is: theirs are narrower, or lie on top of each other
    assert (np.sqrt(fm.mean_variances) > 1.0).all()
    assert (np.sqrt(fm.mean_variances) < 2.1).all()
    np.testing.assert_allclose(fm.center, 100.0, atol=0.2)
    assert fm.scale_fit.n_samples == 5000
    assert fm.scale_fit.scale == 1.0  # in units of the components'
    assert "scale_fit" not in fm.spec


def test_more_frequencies_for_covariance_matrices(rng):
    x = gaussian(rng, 2000, 3)
    plain = ds.design(x, n_components=2)
    assert ds.design(x, n_components=2, covariance_type="diag") == plain
    full = ds.design(x, n_components=2, covariance_type="full")
    assert full.n_frequencies == 5 * (1 + 3 + 6) * 2
    same = ds.design(x, n_components=2, n_frequencies=full.n_frequencies, covariance_type="full")
    assert full == same
    assert ds.design(x, n_components=2, covariance_type=("low-rank", 1)).n_frequencies == 100
    table = pd.DataFrame({"a": x[:, 0], "b": pd.Categorical(np.arange(2000) % 2)})
    for data, options in ((table, {"n_components": 2}), (x, {"task": "pca"})):
        with pytest.raises(InputError, match="covariance_type='full'"):
            ds.design(data, covariance_type="full", **options)


def test_without_a_number_of_components_the_scale_is_the_papers(rng):
    x = gaussian(rng, 20_000, 3, scale=2.0) * [1.0, 10.0, 1.0]
    fm = ds.design(x, n_frequencies=77)
    assert fm.n_frequencies == 77
    assert fm.scale_fit.path.shape == (5,)
    np.testing.assert_allclose(np.sqrt(fm.mean_variances), [2.0, 20.0, 2.0], rtol=0.1)


@pytest.mark.parametrize(
    ("d", "k"), [(2, 3), (10, 5), pytest.param(10, 20, marks=pytest.mark.slow)]
)
def test_variances_are_those_of_the_components(d, k):
    truth = random_mixture(k, d, seed=1, anisotropy=10.0)
    fm = ds.design(truth.sample(20_000, seed=2), n_components=k)
    expected = truth.weights @ truth.covariances
    np.testing.assert_allclose(fm.mean_variances / expected, 1.0, atol=0.35)
    assert (fm.mean_variances / expected).mean() == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_more_pilot_rows_are_read_where_fits_to_halves_of_them_differ(rng):
    # zeros beside numbers that reach far: few rows decide the likelihood
    zeros = rng.random((40_000, 3)) < 0.3
    x = np.where(zeros, 0.0, rng.lognormal(sigma=2.0, size=(40_000, 3)))
    few, more = ds.design(x, n_components=3, n_pilot=5000), ds.design(x, n_components=3)
    assert (few.pilot.n_rows, more.pilot.n_rows) == (5000, 20_000)
    assert more.pilot.sampling_loss < 0.5 * few.pilot.sampling_loss
    assert ds.design(x, n_components=3, task="clustering").pilot.n_rows == 5000
    assert ds.design(gaussian(rng, 40_000, 3), n_components=3).pilot.n_rows == 5000
    with pytest.warns(UserWarning, match=r"\[3\]") as found:  # once, though rows are read twice
        ds.design(np.column_stack([x, np.ones(len(x))]), n_components=3)
    assert len(found) == 1


def test_components_that_are_flat_and_far_apart():
    # whitening by the data's variance would not see the width in the second feature
    truth = GaussianMixture([0.5, 0.5], [[0.0, -50.0], [0.0, 50.0]], [[1.0, 0.01], [1.0, 0.01]])
    fm = ds.design(truth.sample(10_000, seed=0), n_components=2)
    np.testing.assert_allclose(fm.mean_variances, [1.0, 0.01], rtol=0.1)


def test_a_small_number_of_frequencies_is_warned_of(rng):
    x = gaussian(rng, 1000, 3)
    with pytest.warns(UserWarning, match=r"n_frequencies=139 is under 5\(2d\+1\)K = 140") as found:
        ds.design(x, n_frequencies=139, n_components=4)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds.design(x, n_frequencies=140, n_components=4)


def test_components_in_the_place_of_frequencies(rng):
    with pytest.raises(InputError, match=r"n_frequencies=4 .*n_components"):
        ds.design(gaussian(rng, 1000, 9), n_frequencies=4)
    with pytest.raises(TypeError, match="positional"):  # decode takes K second
        ds.design(gaussian(rng, 1000, 9), 4)


def test_given_scales_are_kept(rng):
    x = gaussian(rng, 1000, 2)
    fm = ds.design(x, n_frequencies=50, scale=7.0, distribution="gaussian", seed=5, dtype="float64")
    assert (fm.scale, fm.distribution, fm.seed, fm.dtype) == (7.0, "gaussian", 5, "float64")
    assert fm.scale_fit is None
    fm = ds.design(
        x, n_frequencies=50, covariances=[[1.0, 2.0], [3.0, 4.0]], covariance_weights=[1, 3]
    )
    assert fm.scale is None
    assert fm.covariance_weights.tolist() == [0.25, 0.75]


def test_clustering_has_a_distribution_scale_and_size_of_its_own(rng):
    x = rng.choice([-5.0, 0.0, 5.0], (10_000, 2)) + 0.2 * rng.normal(size=(10_000, 2))
    fm = ds.design(x, n_components=9, task="clustering")
    assert (fm.distribution, fm.n_frequencies) == ("gaussian", 5 * 3 * 9)
    assert fm.scale == pytest.approx(np.sqrt(2 * 2 * 0.04), rel=0.1)
    found = ds.decode(ds.sketch(x, fm), 9, model="dirac")
    assert found.inertia(x) < 1.05 * 0.08
    assert ds.design(x, n_frequencies=50, task="clustering", scale=2.0).scale == 2.0
    with pytest.warns(UserWarning, match=r"under 5\(d\+1\)K = 135"):
        ds.design(x, n_frequencies=50, n_components=9, task="clustering")
    with pytest.warns(UserWarning, match="standard deviations .* range from"):
        ds.design(x * [1.0, 1000.0], n_frequencies=200, n_components=9, task="clustering")
    with pytest.raises(InputError, match="n_components=None"):
        ds.design(x, n_frequencies=50, task="clustering")


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_whitening(kind, rng):
    mix = np.diag([1e-3, 1.0, 1e3])
    if kind == "full":
        mix = mix @ np.array([[1.0, 0.9, 0.0], [0.0, 1.0, 0.9], [0.0, 0.0, 1.0]])
    x = gaussian(rng, 20_000, 3) @ mix.T
    fm = ds.design(x, n_frequencies=100, whitening=kind)
    np.testing.assert_allclose(fm.covariances, 1.0, rtol=0.3)
    white = (x - fm.center) @ fm.whitening.T
    np.testing.assert_allclose(white.std(axis=0), 1.0, rtol=0.1)
    if kind == "full":
        np.testing.assert_allclose(np.cov(white.T), np.eye(3), atol=0.1)
    np.testing.assert_allclose(fm.mean_variances, x.var(axis=0), rtol=0.4)


def test_whitening_refuses(rng):
    x = gaussian(rng, 1000, 3)
    x[:, 1] = 5.0
    with pytest.raises(InputError, match=r"features \[1\] do not vary"):
        ds.design(x, n_frequencies=10, whitening="diagonal")
    x[:, 1] = x[:, 0] + x[:, 2]
    with pytest.raises(InputError, match="linearly dependent"):
        ds.design(x, n_frequencies=10, whitening="full")
    with pytest.raises(InputError, match="whitening='zca'"):
        ds.design(x, n_frequencies=10, whitening="zca")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "n_frequencies=None, n_components=None: give one"),
        ({"n_frequencies": 0}, "n_frequencies=0"),
        ({"n_components": -1}, "n_components=-1"),
        ({"n_components": 2.5}, "n_components=2.5"),
        ({"n_frequencies": 9, "scale": -1.0}, "scale=-1.0"),
        ({"n_frequencies": 9, "distribution": "levy"}, "distribution='levy'"),
        ({"n_frequencies": 9, "n_pilot": 0}, "n_pilot=0"),
        ({"n_frequencies": 9, "n_pilot": "many"}, "n_pilot='many'"),
        ({"n_frequencies": 9, "seed": -1}, "seed=-1"),
        ({"n_frequencies": 9, "task": "regression"}, "task='regression'"),
    ],
)
def test_bad_arguments(options, message, rng):
    with pytest.raises(InputError, match=message):
        ds.design(gaussian(rng, 100, 2), **options)


def test_bad_data():
    with pytest.raises(InputError, match="0 usable rows"):
        ds.design(np.zeros((0, 2)), n_frequencies=10)
    with pytest.raises(InputError, match="1 usable rows"):
        ds.design(np.zeros((1, 2)), n_frequencies=10)
    with pytest.raises(InputError, match="0 usable rows"):
        ds.design(np.full((50, 2), np.nan), n_frequencies=10)
    with pytest.raises(InputError, match="0 usable rows"):
        ds.design(np.ones((50, 2)), n_frequencies=10, weights=np.zeros(50))
    with pytest.raises(InputError, match="all 50 pilot samples are equal"):
        ds.design(np.ones((50, 2)), n_frequencies=10)


def kinds(x, place):
    table = pd.DataFrame(x, columns=list("ab"))
    zarr.create_array(str(place / "x.zarr"), data=x, chunks=(1000, 2))
    (place / "p").mkdir()
    for i in range(4):
        table[2500 * i : 2500 * i + 2500].to_parquet(place / "p" / f"{i}.parquet")
    lazy = da.from_array(x, chunks=(1000, 2))
    return {
        "numpy": x,
        "array": lazy,
        "features": da.from_array(x, chunks=(1000, 1)),
        "masked": lazy[lazy[:, 0] > -1e9],
        "labelled": xr.DataArray(x.reshape(100, 100, 2), dims=("t", "s", "band")).chunk(t=10, s=50),
        "bag": db.from_sequence([x[i : i + 1000] for i in range(0, 10_000, 1000)]),
        "zarr": place / "x.zarr",
        "parquet": place / "p",
    }


@pytest.mark.parametrize(
    "kind", ["numpy", "array", "features", "masked", "labelled", "bag", "zarr", "parquet"]
)
@pytest.mark.few_cases(4)
def test_every_input(kind, tmp_path, rng, counting):
    x = gaussian(rng, 10_000, 2, scale=3.0, offset=[10.0, -10.0])
    source = kinds(x, tmp_path)[kind]
    fm = ds.design(source, n_components=1)
    np.testing.assert_allclose(np.sqrt(fm.mean_variances), 3.0, rtol=0.1)
    np.testing.assert_allclose(fm.center, [10.0, -10.0], atol=0.3)
    assert 4000 <= fm.scale_fit.n_samples <= 6000
    assert ds.design(source, n_components=1) == fm
    assert ds.design(source, n_components=1, seed=1) != fm


def test_the_fit_is_a_curve_for_plotting(rng):
    fit = ds.design(gaussian(rng, 3000, 2), n_frequencies=20).scale_fit
    curve = fit.curve(fit.radii)
    assert curve.shape == fit.radii.shape
    assert np.abs(curve - fit.moduli).max() < 0.15


def test_a_constant_feature_is_named():
    x = np.random.default_rng(0).normal(size=(2000, 3))
    x[:, 1] = 7.0
    with pytest.warns(UserWarning, match=r"features \[1\] do not vary"):
        ds.design(x, n_components=1)


def test_integers_that_float64_rounds_are_warned_of():
    x = np.random.default_rng(0).integers(0, 1000, (2000, 2)) + np.array([0, 2**60])
    with pytest.warns(UserWarning, match=r"feature 1, .* 256 apart"):
        ds.design(x, n_components=1)
    ds.design(x - [0, 2**60], n_components=1)
    ds.design(x - [0, 2**60 - 2**50], n_components=1)  # and no warning


def test_the_order_of_memory_changes_no_bit():
    x = np.random.default_rng(0).normal(size=(500, 3))
    maps = [ds.design(np.array(x, order=order), n_components=2) for order in "CF"]
    assert maps[0].digest == maps[1].digest


@pytest.mark.parametrize(
    ("unit", "message"), [(1e200, "holds values up to"), (1e-200, "varies by .* in feature 1")]
)
@pytest.mark.parametrize("task", ["mixture", "clustering"])
def test_values_without_squares_are_refused(unit, message, task):
    x = np.random.default_rng(0).normal(size=(100, 2)) * [1.0, unit]
    with pytest.raises(InputError, match=f"{message}.*another unit"):
        ds.design(x, n_components=2, task=task)


PCA_ROWS = np.random.default_rng(7).normal(size=(900, 4)) * [1.0, 30.0, 0.1, 5.0] + 8.0


def test_grid_of_second_moments(tmp_path):
    frame = pd.DataFrame(PCA_ROWS, columns=list("abcd"))
    grid = ds.design(frame, task="pca")
    assert (grid.n_features, grid.n_columns, grid.pairwise) == (4, None, False)
    assert grid.feature_names == ("a", "b", "c", "d")
    np.testing.assert_allclose(grid.center, PCA_ROWS.mean(axis=0), atol=grid.unit.max())
    assert (np.abs(np.log2(grid.unit / PCA_ROWS.std(axis=0))) <= 0.6).all()
    assert ds.design(frame, task="pca") == grid
    assert ds.design(frame.iloc[::-1] * 2.0, task="pca") != grid
    found = ds.design(PCA_ROWS, task="pca", n_columns=3, seed=4, nan_policy="raise")
    assert (found.n_columns, found.seed, found.feature_names) == (3, 4, None)
    holes = np.where(np.random.default_rng(1).random(PCA_ROWS.shape) < 0.5, np.nan, PCA_ROWS)
    grid = ds.design(holes, task="pca", nan_policy="available")
    assert grid.pairwise
    assert np.isfinite(grid.center).all()
    with pytest.raises(ChunkError, match="nan_policy"):
        ds.design(holes, task="pca", nan_policy="raise")


def test_columns_of_many_features():
    x = da.random.default_rng(0).normal(size=(200, 6000), chunks=(100, 6000))
    assert ds.design(x, task="pca", n_components=12).n_columns == 96
    with pytest.raises(InputError, match=r"n_components=None.* 6,000"):
        ds.design(x, task="pca")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_frequencies": 9}, "n_frequencies=9"),
        ({"distribution": "gaussian"}, "distribution='gaussian'"),
        ({"scale": 1.0}, "scale=1.0"),
        ({"covariances": [1.0]}, "covariances="),
        ({"whitening": "full"}, "whitening='full'"),
        ({"dtype": "float64"}, "dtype='float64'"),
        ({"normalize": True}, "normalize=True"),
        ({"categories": {"a": None}}, "categories="),
        ({"n_components": 5}, "n_components=5.*n_features=4"),
        ({"n_components": 3, "n_columns": 2}, "n_components=3.*n_columns=2"),
        ({"n_columns": 5}, "n_columns=5"),
        ({"n_columns": 2, "nan_policy": "available"}, "n_columns=2"),
        ({"n_pilot": 1}, "n_pilot=1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_arguments_that_second_moments_do_not_take(options, message):
    with pytest.raises(InputError, match=message):
        ds.design(PCA_ROWS, task="pca", **options)


def test_columns_of_a_feature_map_are_refused():
    with pytest.raises(InputError, match="n_columns=3"):
        ds.design(PCA_ROWS, n_frequencies=9, n_columns=3)


@pytest.mark.parametrize("n_pilot", [0, 1, 2.5])
def test_a_number_of_pilot_samples_is_an_integer(n_pilot):
    with pytest.raises(InputError, match="n_pilot="):
        ds.design(np.zeros((5, 2)), n_components=1, n_pilot=n_pilot)


@pytest.mark.parametrize("fraction", [pytest.param(0.1, marks=pytest.mark.slow), 0.3])
def test_two_features_with_missing_values(fraction):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2)) + np.where(rng.random((4000, 1)) < 0.3, 3.0, -3.0)
    truth = x.mean(axis=0)
    x[rng.random(x.shape) < fraction] = np.nan
    fm = ds.design(x, n_components=2, nan_policy="available")
    sketch = ds.sketch(x, fm, nan_policy="available")
    model = ds.decode(sketch, 2)
    means = np.asarray(model.means)
    assert np.abs(np.asarray(model.weights) @ means - truth).max() < 0.2
    assert np.abs(np.sort(means[:, 0]) - [-3.0, 3.0]).max() < 0.2
    found = ds.SketchGaussianMixture(2, nan_policy="available", random_state=0).fit(x)
    assert np.abs(np.sort(found.means_[:, 0]) - [-3.0, 3.0]).max() < 0.2


@pytest.mark.parametrize("d", [2, 3, pytest.param(6, marks=pytest.mark.slow)])
def test_centroids_of_rows_with_missing_values(d):
    rng = np.random.default_rng(0)
    centers = 5.0 * rng.normal(size=(4, d))
    full = centers[np.arange(4000) % 4] + rng.normal(size=(4000, d))
    x = np.where(rng.random(full.shape) < 0.15, np.nan, full)
    fm = ds.design(x, n_components=4, task="clustering", nan_policy="available")
    model = ds.decode(ds.sketch(x, fm, nan_policy="available", sample=False), 4, model="dirac")
    squares = np.square(full[:, None] - np.asarray(model.centers)).sum(axis=2).min(axis=1)
    assert squares.mean() < 1.05 * d


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3)] + [8]
)
def test_more_far_clusters_than_components_with_missing_values(seed):
    centers = 20.0 * np.random.default_rng(1).normal(size=(6, 5))
    widths, rng = np.array([0.1, 1.0, 3.0, 0.5, 0.05, 2.0]), np.random.default_rng(seed)
    cluster = rng.integers(0, 6, 20_000)
    full = centers[cluster] + rng.normal(size=(20_000, 5)) * widths[cluster, None]
    x, rest = full.copy(), full[:4000]
    x[rng.random(x.shape) < 0.15] = np.nan
    fm = ds.design(x, n_components=4, nan_policy="available")
    model = ds.decode(ds.sketch(x, fm, nan_policy="available", sample=False), 4)
    whole = ds.decode(ds.sketch(full, ds.design(full, n_components=4), sample=False), 4)
    # the optima of EM are 0.7 to 4 nats apart: -11.9 to -9.2 for the first seed
    assert model.score(rest) > whole.score(rest) - 0.5


@pytest.mark.parametrize(("d", "named"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_refused_maps_name_distributions_that_take_missing_values(d, named):
    x = np.random.default_rng(0).normal(size=(500, d))
    x[::3, 0] = np.nan
    names = ("gaussian-marginals", "sparse-sums", "sparse-radius")
    taken = []
    for name in names:
        fm = ds.FeatureMap(d, 200, scale=1.0, distribution=name)
        try:
            ds.sketch(x, fm, nan_policy="available")
        except InputError:
            continue
        taken.append(name)
    fm = ds.FeatureMap(d, 200, scale=1.0, distribution="gaussian")
    with pytest.raises(InputError) as error:
        ds.sketch(x, fm, nan_policy="available")
    assert taken == list(names[:named])
    assert [name for name in names if repr(name) in str(error.value)] == taken
