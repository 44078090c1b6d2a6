import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import dask_sketch as ds
from dask_sketch.distributions import (
    DistributionClassifier,
    DistributionRegressor,
    mean_embedding,
)
from dask_sketch.distributions.learning.open import read_estimator
from dask_sketch.errors import ArtifactError
from dask_sketch.storage.artifact_reader import unpacked_dataset

MAP = ds.FeatureMap(2, 40, scale=1.0)
LABELS = np.repeat(np.arange(60), 30)
WIDTH = np.random.default_rng(0).uniform(0.5, 2.0, 60)
ROWS = np.random.default_rng(1).normal(size=(1800, 2)) * WIDTH[LABELS, None]
GROUP = ds.partial_sketch(ROWS, MAP, groups=LABELS)
KINDS = {
    "text": np.array(["narrow", "Übergröße"])[(WIDTH > 1.2).astype(int)],
    "objects": np.array(["a", "b", "c"], dtype=object)[np.digitize(WIDTH, [1.0, 1.5])],
    "times": np.datetime64("2024-01-01") + np.digitize(WIDTH, [1.0, 1.5]),
    "numbers": np.digitize(WIDTH, [1.0, 1.5]).astype(np.uint8),
    "flags": WIDTH > 1.2,
}
FORMS = [("landmarks", "matern"), ("random", "rbf"), ("random", "linear")]


@pytest.mark.parametrize(("layer", "kernel"), FORMS)
def test_a_stored_regressor_has_the_same_bits(layer, kernel, tmp_path):
    settings = {"layer": layer, "kernel": kernel, "bandwidths": np.array([1.0])}
    model = DistributionRegressor(30, **settings).fit(GROUP, WIDTH)
    model.to_zarr(tmp_path / "model.zarr")
    for again in (ds.open(tmp_path / "model.zarr"), ds.open(model.to_bytes())):
        np.testing.assert_array_equal(again.predict(GROUP), model.predict(GROUP))
        np.testing.assert_array_equal(
            again.predict_interval(GROUP, level=0.2), model.predict_interval(GROUP, level=0.2)
        )
        np.testing.assert_array_equal(again.leave_one_out_, model.leave_one_out_)
        assert again.to_bytes() == model.to_bytes()
        assert again.as_dict()["alpha"] == model.alpha_


def test_predictions_follow_from_the_written_format():
    model = DistributionRegressor(30, bandwidths=(1.0,)).fit(GROUP, WIDTH)
    found = unpacked_dataset(model.to_bytes(), {"dask-sketch/distribution-regressor": 1})
    x = np.concatenate([GROUP.z.real, GROUP.z.imag], axis=1)
    n = (GROUP.total_weight**2 / GROUP.squared_weight)[:, None]
    center, between, within = (
        found[f"shrinkage_{name}"].values for name in ("center", "between", "within")
    )
    x = center + between / (between + within / n) * (x - center)
    t = np.linalg.norm(x[:, None] - found["landmarks"].values, axis=2)
    r = np.sqrt(3.0) * t / found.attrs["kernel_bandwidth"]
    features = (1.0 + r) * np.exp(-r) @ found["basis"].values
    predictions = features @ found["coefficients"].values.T + found["intercept"].values
    np.testing.assert_allclose(predictions[:, 0], model.predict(GROUP), rtol=1e-6)


@pytest.mark.slow
def test_a_stored_classifier_has_the_same_bits():
    for kind, classes in KINDS.items():
        loss = "logistic" if kind == "objects" else "squared"
        model = DistributionClassifier(10, loss=loss, bandwidths=(1.0,)).fit(GROUP, classes)
        again = ds.open(model.to_bytes())
        np.testing.assert_array_equal(again.predict_proba(GROUP), model.predict_proba(GROUP))
        np.testing.assert_array_equal(again.predict(GROUP), model.predict(GROUP), err_msg=kind)


def test_a_fit_to_an_array_keeps_the_names_of_features():
    frame = mean_embedding(GROUP).to_pandas()
    random = np.random.RandomState(3)
    model = DistributionRegressor(10, bandwidths=(1.0,), random_state=random).fit(frame, WIDTH)
    again = ds.open(model.to_bytes())
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert list(again.feature_names_in_) == list(frame.columns)
    assert again.random_state is None


CHANGES = {
    "coefficients": lambda found: found["coefficients"].values.__setitem__((0, 0), np.nan),
    "scores": lambda found: found["scores"].values.__setitem__(0, 9.0),
    "alpha": lambda found: found.attrs.update(alpha="1"),
    "basis": lambda found: found["basis"].values.__setitem__((0, 0), np.inf),
    "kernel": lambda found: found.attrs.update(
        features=found.attrs["features"].replace("matern", "other")
    ),
    "settings": lambda found: found.attrs.update(settings='{"sizes": 3}'),
    "error_constant": lambda found: found.attrs.update(error_constant=-1.0),
}


def test_edited_content_is_refused():
    model = DistributionRegressor(10, bandwidths=(1.0,)).fit(GROUP, WIDTH)
    stored = unpacked_dataset(model.to_bytes(), {"dask-sketch/distribution-regressor": 1})
    for name, change in CHANGES.items():
        found = stored.copy(deep=True)
        change(found)
        with pytest.raises(ArtifactError, match=name):
            read_estimator(found)


def test_what_cannot_be_stored_is_refused():
    with pytest.raises(NotFittedError):
        DistributionRegressor().to_bytes()
    model = DistributionClassifier(10).fit(GROUP, WIDTH > 1.2)
    model.classes_ = np.array([1, "a"], dtype=object)
    with pytest.raises(ArtifactError, match="classes_"):
        model.to_bytes()
