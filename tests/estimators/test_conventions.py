import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dask_sketch as ds
from dask_sketch.distributions import DistributionFeatures, DistributionRegressor

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
