import dask.array as da
import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut, cross_val_predict

from dask_sketch import FeatureMap, partial_sketch, sketch
from dask_sketch.distributions import (
    DistributionClassifier,
    DistributionRegressor,
    mean_embedding,
)
from dask_sketch.distributions.learning.grouped_ridge import grouped_ridge
from dask_sketch.errors import InputError

SPEAKERS, TAKES, SIZE = 6, 20, 30
SPEAKER = np.repeat(np.arange(SPEAKERS), TAKES)
FIXED = {"size": 60, "bandwidths": (1.0,)}


def recordings():
    """Sketches of recordings whose frames have a place of the speaker and a width to learn."""
    rng = np.random.default_rng(3)
    width = rng.uniform(0.5, 2.0, len(SPEAKER))
    place = 3.0 * rng.normal(size=(SPEAKERS, 2))
    x = rng.normal(size=(len(SPEAKER), SIZE, 2)) * width[:, None, None] + place[SPEAKER, None]
    labels = np.repeat(np.arange(len(SPEAKER)), SIZE)
    x = x.reshape(-1, 2)
    return x, labels, partial_sketch(x, FeatureMap(2, 40, scale=1.5), groups=labels), width


ROWS, LABELS, GROUP, WIDTH = recordings()
POINTS = mean_embedding(GROUP)
KINDS = np.array(["narrow", "wide"])[(WIDTH > 1.2).astype(int)]


# labels of fewer and of more observations than features
@pytest.mark.parametrize("n_features", [3, 40])
@pytest.mark.parametrize("n_targets", [1, 4])
def test_predictions_are_those_of_fits_to_the_other_labels(n_features, n_targets):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, n_features)) + 2.0, rng.normal(size=(60, n_targets))
    codes = rng.permutation(np.repeat([0, 1, 2, 3], [5, 10, 15, 30]))
    weights = rng.uniform(0.1, 3.0, 60)
    scores = []
    for alpha in (0.01, 1.0, 100.0):
        expected = np.empty_like(y)
        for code in range(4):
            old, new = codes != code, codes == code
            model = Ridge(alpha).fit(x[old], y[old], weights[old])
            expected[new] = model.predict(x[new]).reshape(-1, n_targets)
        ridge, found = grouped_ridge(x, y, weights, codes, np.array([alpha]))
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
        everything = Ridge(alpha).fit(x, y, weights)
        np.testing.assert_allclose(ridge.predict(x), everything.predict(x).reshape(y.shape))
        squared = np.average(np.mean((expected - y) ** 2, axis=1), weights=weights)
        np.testing.assert_allclose(ridge.best_score_, -squared)
        scores.append((ridge.best_score_, alpha))
    chosen, _ = grouped_ridge(x, y, weights, codes, np.array([0.01, 1.0, 100.0]))
    assert (chosen.best_score_, chosen.alpha_) == max(scores)


def test_ridges_that_leave_nothing_after_rounding_are_refused():
    rng = np.random.default_rng(0)
    x, y, codes = 1e9 * rng.normal(size=(12, 20)), rng.normal(size=(12, 1)), np.arange(12) // 4
    with pytest.raises(InputError, match=r"alphas=\[1e-05\]") as caught:
        grouped_ridge(x, y, np.ones(12), codes, np.array([1e-5]))
    assert caught.value.parameter == "alphas"
    ridge, _ = grouped_ridge(x, y, np.ones(12), codes, np.array([1e-5, 1e18]))
    assert ridge.alpha_ == 1e18


def test_ridge_errors_and_intervals_are_those_for_new_speakers():
    rng = np.random.default_rng(0)
    voice, effect = rng.normal(size=(SPEAKERS, 10)), 2.0 * rng.normal(size=SPEAKERS)
    told = rng.normal(size=len(SPEAKER))
    x = np.c_[told, voice[SPEAKER] + 0.1 * rng.normal(size=(len(SPEAKER), 10))]
    y = told + effect[SPEAKER] + 0.1 * rng.normal(size=len(SPEAKER))
    settings = {"kernel": "linear", "alphas": tuple(10.0 ** np.arange(-3, 4))}
    alone = DistributionRegressor(**settings).fit(x, y)
    together = DistributionRegressor(**settings).fit(x, y, groups=SPEAKER)
    assert together.alpha_ > alone.alpha_
    errors = {}
    for model in (alone, together):
        fixed = DistributionRegressor(**settings | {"alphas": (model.alpha_,)})
        found = cross_val_predict(fixed, x, y, groups=SPEAKER, cv=LeaveOneGroupOut())
        errors[model] = np.mean((found - y) ** 2)
    assert errors[together] < errors[alone]
    stated = {model: np.mean((model.leave_one_out_ - y) ** 2) for model in errors}
    np.testing.assert_allclose(stated[together], errors[together])
    assert stated[alone] < 0.1 * errors[alone]
    reach = [np.ptp(model.predict_interval(x, level=0.2)[0]) for model in (alone, together)]
    assert reach[1] > 3.0 * reach[0]


def test_labels_are_aligned_and_weights_of_zero_left_out():
    settings = FIXED | {"alphas": (0.1, 1.0)}
    expected = DistributionRegressor(**settings).fit(GROUP, WIDTH, groups=SPEAKER)
    order = np.random.default_rng(0).permutation(len(SPEAKER))
    names = np.array(["ann", "bob", "eve", "joe", "kim", "zoe"])[SPEAKER]
    mapping = dict(zip(order.tolist(), names[order].tolist(), strict=True))
    found = DistributionRegressor(**settings).fit(GROUP, WIDTH, groups=mapping)
    np.testing.assert_array_equal(found.leave_one_out_, expected.leave_one_out_)
    assert found.alpha_ == expected.alpha_
    weights = (SPEAKER > 0).astype(float)
    found = DistributionRegressor(**settings).fit(GROUP, WIDTH, weights, groups=SPEAKER)
    fewer = DistributionRegressor(**settings).fit(
        GROUP.select(SPEAKER > 0), WIDTH[SPEAKER > 0], groups=SPEAKER[SPEAKER > 0]
    )
    np.testing.assert_allclose(found.leave_one_out_[SPEAKER > 0], fewer.leave_one_out_)
    assert np.isnan(found.leave_one_out_[SPEAKER == 0]).all()


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.slow
def test_classes_of_new_speakers(loss):
    model = DistributionClassifier(**FIXED, shrink=False, loss=loss)
    right = []
    for old, new in GroupKFold(3).split(SPEAKER, SPEAKER, SPEAKER):
        model.fit(POINTS[old], KINDS[old], groups=SPEAKER[old])
        right.append(model.score(POINTS[new], KINDS[new]))
    assert np.mean(right) > 0.6
    # a label without one of the classes
    kinds = np.where(SPEAKER < 2, "other", KINDS)
    assert set(model.fit(POINTS, kinds, groups=SPEAKER).classes_) == {"narrow", "other", "wide"}
    with pytest.raises(InputError, match="class other"):
        model.fit(POINTS, np.where(SPEAKER < 1, "other", KINDS), groups=SPEAKER)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (SPEAKER[:-1], r"groups .*\(119,\)"),
        ("speaker", "groups"),
        (np.zeros(len(SPEAKER)), "groups has one label"),
        ({0: "ann"}, "groups .*label 1"),
        (np.where(SPEAKER == 1, np.nan, SPEAKER), r"groups\[20\] is missing"),
    ],
)
def test_mistaken_labels_are_named(groups, message):
    with pytest.raises(InputError, match=message) as caught:
        DistributionRegressor(**FIXED).fit(GROUP, WIDTH, groups=groups)
    assert caught.value.parameter == "groups"


def test_normal_equations_have_no_labels():
    lazy = sketch(da.from_array(ROWS, chunks=(600, 2)), GROUP.feature_map, groups=LABELS)
    model = DistributionRegressor(**FIXED, solver="normal")
    with pytest.raises(InputError, match="solver='svd'") as caught:
        model.fit(lazy, dict(enumerate(WIDTH)), groups=SPEAKER)
    assert caught.value.parameter == "groups"
