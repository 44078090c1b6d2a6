import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dask_sketch as ds
from dask_sketch.distributions import (
    DistributionClassifier,
    DistributionFeatures,
    DistributionRegressor,
)
from dask_sketch.errors import InputError

X = np.random.default_rng(0).normal(size=(300, 3)) * [1.0, 2.0, 3.0]
WEIGHTS = np.random.default_rng(1).uniform(0.5, 1.5, 300)


@pytest.fixture(scope="module")
def fitted():
    return ds.SketchPCA(2).fit(X)


def test_set_output_leaves_lazy_output_lazy(fitted):
    frame = pd.DataFrame(X, columns=list("abc"), index=np.arange(300) + 7)
    lazy = da.from_array(X, chunks=(100, 3))
    expected = fitted.transform(X)
    model = ds.SketchPCA(2).set_output(transform="pandas")
    found = model.fit_transform(frame)
    assert list(found.columns) == ["sketchpca0", "sketchpca1"]
    assert list(found.index) == list(frame.index)
    np.testing.assert_allclose(found, expected)
    for found in (model.fit(X).transform(lazy), model.fit_transform(lazy)):
        assert isinstance(found, da.Array)
        np.testing.assert_allclose(found.compute(), expected)


def test_weights_are_routed_through_a_pipeline():
    expected = ds.SketchPCA(2).fit(X - X.mean(axis=0), sample_weight=WEIGHTS)
    with config_context(enable_metadata_routing=True):
        pca = ds.SketchPCA(2).set_fit_request(sample_weight=True)
        scaler = StandardScaler(with_std=False).set_fit_request(sample_weight=False)
        model = make_pipeline(scaler, pca).fit(X, sample_weight=WEIGHTS)
    np.testing.assert_allclose(model[-1].components_, expected.components_, atol=1e-6)
    np.testing.assert_allclose(model[-1].explained_variance_, expected.explained_variance_)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "grid"),
    [
        (ds.SketchKMeans(2), {"n_clusters": [1, 2]}),
        (ds.SketchKMedians(2), {"n_clusters": [1, 2]}),
        (ds.SketchGaussianMixture(1), {"variance_floor": [0.1]}),
        (ds.SketchPCA(2), {"n_components": [1, 2]}),
        (DistributionRegressor(20), {"alphas": [[1e-3], [1e3]]}),
        (DistributionClassifier(20), {"alphas": [[1e-3], [1e3]]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_weights_are_routed_through_a_search(estimator, grid):
    x = X[:120] + np.where(np.arange(120) % 2, 4.0, -4.0)[:, None]
    y = X[:120, 0] > 0 if isinstance(estimator, DistributionClassifier) else x[:, 0]
    weights = np.where(np.arange(120) % 3, 0.5, 2.0)
    plain = clone(estimator)
    with config_context(enable_metadata_routing=True):
        routed = estimator.set_fit_request(sample_weight=True)
        routed.set_score_request(sample_weight=True)
        scaler = StandardScaler(with_mean=False).set_fit_request(sample_weight=False)
        name = type(estimator).__name__.lower()
        names = {f"{name}__{key}": values for key, values in grid.items()}
        search = GridSearchCV(make_pipeline(scaler, routed), names, cv=2, error_score="raise")
        found = search.fit(x, y, sample_weight=weights).best_estimator_
    scaled = found[0].transform(x)
    expected = plain.set_params(**{key: found[-1].get_params()[key] for key in grid})
    expected.fit(scaled, y, sample_weight=weights)
    score = expected.score(scaled, y, sample_weight=weights)
    assert found[-1].score(scaled, y, sample_weight=weights) == score
    other = clone(expected).fit(scaled, y)  # the weights had an effect
    assert score != other.score(scaled, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("estimator", [ds.SketchGaussianMixture(1), ds.SketchPCA(2)])
def test_scores_are_means_with_weights(estimator):
    found = estimator.fit(X)
    expected = np.average(found.score_samples(X), weights=WEIGHTS)
    assert found.score(X, sample_weight=WEIGHTS) == pytest.approx(expected)
    with pytest.raises(InputError, match="weights"):
        found.score(X, sample_weight=-WEIGHTS)
    if isinstance(estimator, ds.SketchGaussianMixture):
        lazy, weights = (
            da.from_array(values, chunks=(100, -1)[: values.ndim]) for values in (X, WEIGHTS)
        )
        assert found.score(lazy, sample_weight=weights) == pytest.approx(expected)


def test_pickles_of_other_versions_are_read_with_a_warning(fitted):
    value = pickle.dumps(fitted)
    np.testing.assert_array_equal(pickle.loads(value).components_, fitted.components_)
    state = fitted.__getstate__()
    assert state["_dask_sketch_version"] == ds.__version__
    for model in (fitted, DistributionRegressor(), DistributionFeatures(), ds.SketchKMeans(2)):
        old = model.__getstate__() | {"_dask_sketch_version": "0.0.7"}
        again = type(model).__new__(type(model))
        with pytest.warns(UserWarning, match=r"0\.0\.7"):
            again.__setstate__(old)
        assert not hasattr(again, "_dask_sketch_version")


FRAME = pd.DataFrame(X, columns=list("abc"))
DATES = pd.date_range("2024-01-01", periods=300)
REFUSED = {
    "repeated names": (FRAME.set_axis(["a", "a", "b"], axis=1), "several columns named a: rename"),
    "no columns": (FRAME[[]], "no columns"),
    "dates": (FRAME.assign(a=DATES), r"numeric: a \(datetime64\).*columns="),
    "durations": (FRAME.assign(a=DATES - DATES[0]), r"numeric: a \(timedelta64\)"),
    "periods": (FRAME.assign(b=DATES.to_period("D")), r"numeric: b \(period\)"),
    "complex": (FRAME.assign(c=1j), r"numeric: c \(complex128\)"),
    "text": (FRAME.assign(b="x"), r"text.*: b \(str\).*columns="),
    "sparse": (FRAME.astype(pd.SparseDtype("float")), r"sparse.*to_dense"),
    "NA": (FRAME.astype("Float64").mask(FRAME > 7.0, pd.NA), "NaN at row 220, feature 'c'"),
    "NA in objects": (FRAME.astype(object).mask(FRAME > 7.0, pd.NA), "NaN at row 220, feature 'c'"),
    "text in objects": (FRAME.astype(object).mask(FRAME > 7.0, "x"), "'x' at row 220, feature 'c'"),
    "dict": ({"a": [1.0], "b": [2.0]}, r"type dict.*DataFrame\(X\)"),
    "dicts": ([{"a": 1.0}] * 5, r"dictionaries.*DataFrame\(X\)"),
    "set": ({1.0, 2.0}, "type set"),
    "None": (None, "type NoneType"),
    "sketch": (ds.Sketch.empty(ds.FeatureMap(3, 20, scale=1.0)), r"type Sketch .*total\(\)"),
    "array of dates": (np.array([["2024-01-01"] * 2] * 5, "M8[D]"), r"dtype=datetime64\[D\]"),
    "records": (FRAME.to_records(index=False), r"named fields.*DataFrame\(X\)"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", [ds.SketchKMeans, ds.SketchGaussianMixture, ds.SketchPCA])
def test_samples_that_are_no_rows_of_numbers_are_refused(kind, name):
    x, message = REFUSED[name]
    with pytest.raises(InputError, match=f"(?s)X.*{message}"):
        kind(2).fit(x)


def test_new_samples_are_refused_likewise():
    fitted = ds.SketchPCA(2).fit(FRAME)
    for name in ("repeated names", "dates", "NA", "dict"):
        x, message = REFUSED[name]
        with pytest.raises(InputError, match=message):
            fitted.transform(x)


def test_columns_of_tables_of_arrow():
    table = pytest.importorskip("pyarrow").Table.from_pandas(FRAME)
    expected = ds.SketchPCA(1, columns=["c", "a"]).fit(FRAME).components_
    np.testing.assert_array_equal(
        ds.SketchPCA(1, columns=["c", "a"]).fit(table).components_, expected
    )
    with pytest.raises(InputError, match=r"columns=\['z'\].*'b'"):
        ds.SketchPCA(1, columns=["z"]).fit(table)
    text = table.set_column(1, "b", [["x"] * 300])
    with pytest.raises(InputError, match="'x' at row 0, feature 'b'"):
        ds.SketchPCA(1).fit(text)


def test_weights_are_one_number_for_each_row_or_for_all():
    equal = ds.SketchKMeans(2, random_state=0).fit(X)
    assert ds.SketchKMeans(2, random_state=0).fit(X, sample_weight=2.0).inertia_ == pytest.approx(
        2.0 * equal.inertia_
    )
    with pytest.raises(InputError, match="sample_weight='w'"):
        ds.SketchKMeans(2).fit(X, sample_weight="w")
    with pytest.raises(InputError, match=r"sample_weight holds -1\.0"):
        ds.SketchKMeans(2).fit(X, sample_weight=-1.0)


def test_queries_of_polars_are_run():
    polars = pytest.importorskip("polars")
    query = polars.DataFrame(X).lazy()
    fitted = ds.SketchKMeans(2, random_state=0).fit(query)
    expected = ds.SketchKMeans(2, random_state=0).fit(X)
    np.testing.assert_array_equal(fitted.predict(query), expected.predict(X))


def test_datasets_of_arrow_are_read_again(tmp_path):
    dataset = pytest.importorskip("pyarrow.dataset")
    pd.DataFrame(X, columns=list("abc")).to_parquet(tmp_path / "x.parquet")
    files = dataset.dataset(tmp_path / "x.parquet")
    fitted = ds.SketchKMeans(2, random_state=0).fit(files)
    expected = fitted.predict(pd.DataFrame(X, columns=list("abc")))
    np.testing.assert_array_equal(fitted.predict(files).compute(), expected)
