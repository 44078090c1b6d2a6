"""Principal component analysis: on data in memory, on lazy data, batch by batch."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dask_sketch as ds
from dask_sketch.errors import InputError
from dask_sketch.estimators.decomposition import SketchPCA
from dask_sketch.jobs.ledger import Partition

RNG = np.random.default_rng(0)
X = RNG.normal(size=(900, 6)) @ RNG.normal(size=(6, 6)) + 5.0
ATTRIBUTES = (
    "components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_",
    "noise_variance_", "n_components_", "n_samples_", "n_features_in_",
)  # fmt: skip


def lazy(x, rows=200):
    return da.from_array(x, chunks=(rows, x.shape[1]))


def same(found, other, rtol=1e-7):
    for name in ATTRIBUTES:
        np.testing.assert_allclose(
            getattr(found, name), getattr(other, name), rtol=rtol, atol=1e-8, err_msg=name
        )


@pytest.mark.parametrize("n_components", [1, 3, 6, None, 0.8])
@pytest.mark.parametrize("whiten", [False, True])
def test_as_scikit_learn(n_components, whiten):
    found = SketchPCA(n_components, whiten=whiten).fit(X)
    other = PCA(n_components, whiten=whiten, svd_solver="full").fit(X)
    same(found, other)
    scores = other.transform(X)
    np.testing.assert_allclose(found.transform(X), scores, atol=1e-7)
    np.testing.assert_allclose(
        found.inverse_transform(scores), other.inverse_transform(scores), atol=1e-7
    )
    other.whiten = False  # scikit-learn's covariance is wrong otherwise
    np.testing.assert_allclose(found.get_covariance(), other.get_covariance(), atol=1e-7)
    if n_components != 6 and n_components is not None:
        np.testing.assert_allclose(found.score_samples(X), other.score_samples(X), rtol=1e-6)
        assert found.score(X) == pytest.approx(other.score(X))
    assert found.get_feature_names_out()[0] == "sketchpca0"


def test_lazy_input_gives_lazy_answers_and_the_same_components():
    found, here = SketchPCA(3).fit(lazy(X)), SketchPCA(3).fit(X)
    same(found, here)
    scores = found.transform(lazy(X))
    assert isinstance(scores, da.Array)
    assert scores.chunks == ((200, 200, 200, 200, 100), (3,))
    np.testing.assert_allclose(scores.compute(), found.transform(X), atol=1e-12)
    back = found.inverse_transform(scores)
    assert isinstance(back, da.Array)
    assert back.chunks == ((200, 200, 200, 200, 100), (6,))
    np.testing.assert_allclose(
        back.compute(), found.inverse_transform(found.transform(X)), atol=1e-12
    )
    # one grid: the same bits
    whole = ds.second_moments(X, like=found.moments_)
    assert whole == found.moments_


@pytest.mark.slow
def test_labelled_and_other_input(tmp_path):
    found = SketchPCA(2).fit(X)
    cube = xr.DataArray(X.reshape(9, 100, 6), dims=("t", "s", "band")).chunk(t=2)
    scores = SketchPCA(2).fit(cube).transform(cube)
    assert scores.dims == ("t", "s", "component")
    np.testing.assert_allclose(scores.values.reshape(-1, 2), found.transform(X), atol=1e-7)
    bag = db.from_sequence(np.array_split(X, 6), npartitions=3)
    rows = SketchPCA(2).fit(bag).transform(bag).compute(scheduler="sync")
    np.testing.assert_allclose(np.array(rows), found.transform(X), atol=1e-7)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    frame.assign(id="text").to_parquet(tmp_path / "x.parquet")
    names = list("abcdef")
    named = SketchPCA(2, columns=names).fit(tmp_path / "x.parquet")
    same(named, found)
    assert named.feature_names_in_.tolist() == names
    for table in (frame, dd.from_pandas(frame.assign(id="text"), npartitions=2)):
        scores = dask.compute(named.transform(table))[0]
        np.testing.assert_allclose(scores, found.transform(X), atol=1e-7)


def test_streams():
    found = SketchPCA(3).fit(iter(np.array_split(X, 4)))
    same(found, SketchPCA(3).fit(X))
    found.partial_fit(iter([X[:100]]), sample_weight=iter([np.ones(100)]))
    assert found.n_samples_ == 1000


def test_weights():
    w = RNG.integers(0, 4, len(X)).astype(float)
    found = SketchPCA(2).fit(X, sample_weight=w)
    repeated = SketchPCA(2).fit(X.repeat(w.astype(int), axis=0))
    np.testing.assert_allclose(found.components_, repeated.components_, atol=1e-7)
    np.testing.assert_allclose(found.mean_, repeated.mean_, rtol=1e-8)
    values = np.linalg.eigvalsh(np.cov(X.T, aweights=w))[::-1][:2]
    np.testing.assert_allclose(found.explained_variance_, values, rtol=1e-7)
    there = SketchPCA(2).fit(lazy(X), sample_weight=da.from_array(w, chunks=200))
    same(there, found)
    with pytest.raises(InputError, match="sample_weight has shape"):
        SketchPCA(2).fit(X, sample_weight=w[:3])


def test_batches():
    found = SketchPCA(3)
    for batch in np.array_split(X, 7):
        found.partial_fit(batch)
    same(found, SketchPCA(3).fit(X))
    assert found.moments_ == ds.second_moments(X, like=found.moments_)
    found = SketchPCA(3).partial_fit(X[:2]).partial_fit(lazy(X[2:]))
    assert found.n_components_ == 3
    same(found, SketchPCA(3).fit(X))


def test_moments_in_place_of_samples():
    parts = [ds.second_moments(X[:300])]
    parts.append(ds.second_moments(X[300:], like=parts[0]))
    found = SketchPCA(3).fit(sum(parts))
    same(found, SketchPCA(3).fit(X))
    again = SketchPCA(3).partial_fit(parts[0]).partial_fit(parts[1])
    same(again, found, rtol=1e-14)
    np.testing.assert_allclose(found.transform(X), again.transform(X))


def test_the_total_of_a_ledger(tmp_path):
    grid = ds.second_moments(X).grid
    ledger = ds.create_ledger(tmp_path / "moments.zarr", grid)
    with ledger.lock():
        ledger.commit([(Partition("a", "1"), ds.second_moments(X, like=grid))])
    with pytest.raises(InputError, match=r"X of type Ledger .*SecondMoments.*total\(\)"):
        SketchPCA(2).fit(ledger)
    found = SketchPCA(2).fit(ledger.total())
    np.testing.assert_array_equal(found.components_, SketchPCA(2).fit(X).components_)


def test_products_with_a_test_matrix():
    spectrum = 1.0 / np.arange(1.0, 201.0)
    x = RNG.normal(size=(1500, 200)) * np.sqrt(spectrum) + 2.0
    found = SketchPCA(4, n_columns=60).fit(lazy(x, 500))
    other = PCA(4, svd_solver="full").fit(x)
    centered = x - other.mean_
    lost = (centered**2).sum() - (found.transform(x) ** 2).sum()
    least = (centered**2).sum() - (other.transform(x) ** 2).sum()
    assert lost < 1.01 * least
    assert 0.0 < found.excess_risk_ < 0.02
    np.testing.assert_allclose(found.explained_variance_, other.explained_variance_, rtol=0.05)
    one, two = SketchPCA(4, n_columns=60).fit(x), SketchPCA(4, n_columns=60, random_state=1).fit(x)
    assert np.abs(one.components_ - two.components_).max() > 1e-6
    np.testing.assert_array_equal(one.components_, SketchPCA(4, n_columns=60).fit(x).components_)


def test_many_features_take_a_test_matrix_by_default():
    x = RNG.normal(size=(60, 5001)).astype(np.float32)
    x[:, 0] *= 300.0
    found = SketchPCA(1).fit(x)
    assert found.moments_.grid.n_columns == 80
    assert abs(found.components_[0, 0]) > 0.99
    with pytest.raises(InputError, match="n_components=None"):
        SketchPCA().fit(x)


def test_rows_with_nan_are_left_out_on_demand():
    x = X.copy()
    x[5:400:7] = np.nan
    kept = np.isfinite(x[:, 0])
    for given in (x, lazy(x)):
        found = SketchPCA(2, nan_policy="omit").fit(given)
        assert found.moments_.omitted == (~kept).sum()
        same(found, SketchPCA(2).fit(x[kept]))
        with pytest.raises(ValueError, match="(?i)nan"):
            SketchPCA(2).fit(given)


def test_missing_values():
    x = np.where(RNG.uniform(size=X.shape) < 0.05, np.nan, X)
    found = SketchPCA(2, nan_policy="available").fit(x)
    values = np.linalg.eigvalsh(pd.DataFrame(x).cov().to_numpy())[::-1][:2]
    np.testing.assert_allclose(found.explained_variance_, values, rtol=1e-7)
    same(SketchPCA(2, nan_policy="available").fit(lazy(x)), found)
    found.partial_fit(x[:50])
    with pytest.raises(ValueError, match="NaN"):
        found.transform(x)


def test_a_pipeline_and_set_output():
    scaled = make_pipeline(StandardScaler(), SketchPCA(2)).fit(X)
    assert scaled.transform(X).shape == (900, 2)
    named = SketchPCA(2).set_output(transform="pandas").fit(X).transform(X)
    assert named.columns.tolist() == ["sketchpca0", "sketchpca1"]


def test_an_error_leaves_what_was_fitted():
    found = SketchPCA(2).fit(X)
    before = found.components_
    for refused in (np.full((3, 6), np.nan), lazy(np.zeros((30, 5)))):
        with pytest.raises(ValueError, match=r"NaN|features"):
            found.partial_fit(refused)
    assert found.components_ is before


@pytest.mark.parametrize(
    ("estimator", "rows", "message"),
    [
        (SketchPCA(7), X, "n_components=7"),
        (SketchPCA(0), X, "n_components=0"),
        (SketchPCA("mle"), X, "n_components='mle'"),
        (SketchPCA(2, n_columns=7), X, "n_columns=7"),
        (SketchPCA(2, nan_policy="skip"), X, "nan_policy='skip'"),
        (SketchPCA(2), X[:1], "n_samples=1"),
        (SketchPCA(2, columns=["a"]), pd.DataFrame(X, columns=list("bcdefg")), r"columns=\['a'\]"),
    ],
)
def test_bad_arguments(estimator, rows, message):
    with pytest.raises(InputError, match=message):
        clone(estimator).fit(rows)


def test_what_a_mask_hides_is_not_used():
    hidden = np.ma.masked_array(X, mask=X > 9)
    fitted = SketchPCA(2).fit(X)
    for refused in (lambda: SketchPCA(2).fit(hidden), lambda: fitted.transform(hidden)):
        with pytest.raises(InputError, match="masked values"):
            refused()


def test_not_fitted():
    for method in ("transform", "inverse_transform", "score_samples"):
        with pytest.raises(NotFittedError):
            getattr(SketchPCA(2), method)(X)


def test_random_states_out_of_range_are_refused():
    with pytest.raises(InputError, match="random_state=-1"):
        SketchPCA(1, random_state=-1).fit(np.eye(3))


@pytest.mark.parametrize("kind", ["repeated", "few"])
def test_data_without_a_density_has_no_scores(kind):
    x = np.random.default_rng(0).normal(size=(50, 3))
    x = x[:, [0, 0, 1]] if kind == "repeated" else x[:3]
    found = SketchPCA(3).fit(x)
    with pytest.raises(InputError, match="n_components=3 of 3"):
        found.score_samples(x)


@pytest.mark.parametrize("k", [2, 6])
def test_scores_of_lazy_samples(k, tmp_path, rng):
    table = pd.DataFrame(X, columns=list("abcdef"))
    weights = rng.uniform(0.0, 2.0, len(X))
    found = SketchPCA(k, columns=list("abcdef")).fit(table)
    scores = found.score_samples(lazy(X))
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores.compute(), found.score_samples(table), atol=1e-9)
    table.assign(w=weights).to_parquet(tmp_path / "x.parquet")
    stored = tmp_path / "x.parquet"
    expected = found.score(table, sample_weight=weights)
    assert found.score(stored, sample_weight="w") == pytest.approx(expected)
    assert found.score(lazy(X)) == pytest.approx(found.score(table))
    labelled = xr.DataArray(X, dims=("row", "feature"))
    np.testing.assert_allclose(found.score_samples(labelled), found.score_samples(table), atol=1e-9)
    for bad in (np.where(X > 2.0, np.nan, X), np.where(X > 2.0, np.inf, X)):
        with pytest.raises(ValueError, match="row"):
            found.score(lazy(bad))
    hidden = da.ma.masked_array(lazy(X), mask=lazy(X) > 2.0)
    with pytest.raises(ValueError, match="masked values"):
        found.score_samples(hidden).compute()
    here = found.transform(table)
    np.testing.assert_allclose(found.transform(stored).compute(), here, atol=1e-9)


def test_weights_of_another_index_are_refused():
    frame, weights = pd.DataFrame(X), pd.Series(np.arange(1.0, len(X) + 1.0))
    fitted = SketchPCA(2).fit(frame, sample_weight=weights)
    assert fitted.score(frame, sample_weight=weights) == fitted.score(X, sample_weight=weights)
    for run in (SketchPCA(2).fit, fitted.partial_fit, fitted.score):
        with pytest.raises(InputError, match="sample_weight.*to_numpy") as caught:
            run(frame, sample_weight=weights[::-1])
        assert caught.value.parameter == "sample_weight"
