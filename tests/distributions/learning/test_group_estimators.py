import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions import (
    DistributionClassifier,
    DistributionRegressor,
    mean_embedding,
)
from dask_sketch.errors import InputError, MergeError

MAP = FeatureMap(2, 40, scale=1.0)
SMALL = {"size": 40, "alphas": (0.01, 0.1, 1.0)}


def widths(n_groups, sizes, seed=0):
    """Rows of groups of random widths, their labels, and the widths."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_groups), sizes)
    width = rng.uniform(0.5, 2.0, n_groups)
    return rng.normal(size=(len(labels), 2)) * width[labels, None], labels, width


ROWS, LABELS, WIDTH = widths(120, 40)
GROUP = partial_sketch(ROWS, MAP, groups=LABELS)
OLD, NEW = GROUP.select(np.arange(80)), GROUP.select(np.arange(80, 120))
KINDS = np.array(["narrow", "middle", "wide"])[np.digitize(WIDTH, [1.0, 1.5])]


def test_a_nonlinear_function_of_distributions_is_learnt():
    model = DistributionRegressor(**SMALL).fit(OLD, WIDTH[:80])
    assert model.score(NEW, WIDTH[80:]) > 0.85
    errors = model.leave_one_out_ - WIDTH[:80]
    np.testing.assert_allclose(model.error_variance_.constant, np.mean(errors**2))
    assert model.bandwidth_ in model.bandwidths
    assert model.alpha_ in model.alphas


def test_leave_one_out_predictions_are_those_of_fits_without_the_group():
    settings = SMALL | {"bandwidths": (0.5,), "alphas": (0.1,), "kernel": "linear"}
    points = np.asarray(mean_embedding(OLD))[:12]
    model = DistributionRegressor(**settings).fit(points, WIDTH[:12])
    for left in (0, 7):
        weights = np.ones(12)
        weights[left] = 0.0
        other = DistributionRegressor(**settings).fit(points, WIDTH[:12], weights)
        np.testing.assert_allclose(
            model.leave_one_out_[left], other.predict(points[[left]])[0], atol=0.05
        )
        assert np.isnan(other.leave_one_out_[left])


def test_all_forms_of_groups_have_the_same_predictions():
    lazy = da.from_array(ROWS, chunks=(700, 2))
    model = DistributionRegressor(**SMALL).fit(GROUP, WIDTH)
    expected = model.predict(GROUP)
    sketched = ds.sketch(lazy, MAP, groups=LABELS)
    for given in (mean_embedding(GROUP), sketched):
        np.testing.assert_array_equal(model.predict(given), expected)
        np.testing.assert_array_equal(clone(model).fit(given, WIDTH).predict(GROUP), expected)
    np.testing.assert_array_equal(model.predict(ROWS, groups=LABELS), expected)
    np.testing.assert_array_equal(model.predict(lazy, groups=LABELS), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(GROUP), expected)
    with pytest.raises(MergeError, match="scale"):
        model.predict(partial_sketch(ROWS, FeatureMap(2, 40, scale=2.0), groups=LABELS))


@pytest.mark.slow
def test_routing_of_metadata_changes_nothing():
    weights = np.linspace(0.5, 1.5, 80)
    expected = DistributionRegressor(**SMALL).fit(OLD, WIDTH[:80], weights).predict(NEW)
    with config_context(enable_metadata_routing=True):
        model = DistributionRegressor(**SMALL).fit(OLD, WIDTH[:80], weights)
        np.testing.assert_array_equal(model.predict(NEW), expected)
        DistributionClassifier(**SMALL, loss="logistic").fit(OLD, KINDS[:80], weights)


def test_targets_are_aligned_by_labels():
    rng = np.random.default_rng(0)
    names = np.array([f"speaker {k:03d}" for k in range(80)])
    group = partial_sketch(ROWS[:3200], MAP, groups=names[LABELS[:3200]])
    expected = DistributionRegressor(**SMALL).fit(group, WIDTH[:80]).predict(NEW)
    order = rng.permutation(80)
    series = pd.Series(WIDTH[order], index=names[order])
    for y in (series, series.to_dict(), series.to_xarray()):
        found = DistributionRegressor(**SMALL).fit(group, y).predict(NEW)
        np.testing.assert_array_equal(found, expected)
    weights = pd.Series(np.linspace(0.5, 1.5, 80), index=names)
    found, expected = (
        DistributionRegressor(**SMALL).fit(group, series, sample_weight=given).predict(NEW)
        for given in (weights.iloc[::-1], weights.to_numpy())
    )
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(InputError, match="y .*speaker 000"):  # its index only counts the groups
        DistributionRegressor(**SMALL).fit(group, pd.Series(WIDTH[:80]))
    for y in (series.iloc[1:], series.iloc[1:].to_dict()):
        with pytest.raises(InputError, match=f"y .*{names[order[0]]}"):
            DistributionRegressor(**SMALL).fit(group, y)


def test_intervals_cover_groups_of_all_sizes():
    sizes = np.tile([5, 20, 200], 100)
    x, labels, width = widths(300, sizes)
    group = partial_sketch(x, MAP, groups=labels)
    old, new = np.arange(150), np.arange(150, 300)
    model = DistributionRegressor(**SMALL).fit(group.select(old), width[old])
    interval = model.predict_interval(group.select(new), level=0.2)
    inside = (interval[:, 0] <= width[new]) & (width[new] <= interval[:, 1])
    for size in (5, 20, 200):
        assert 0.6 <= inside[sizes[new] == size].mean() <= 0.95  # 3 standard errors
    reach = np.diff(interval, axis=1)[:, 0]
    assert reach[sizes[new] == 5].mean() > 1.5 * reach[sizes[new] == 200].mean()
    np.testing.assert_allclose(interval.mean(axis=1), model.predict(group.select(new)))
    with pytest.raises(InputError, match=r"level=0\.001"):
        model.predict_interval(group, level=0.001)


def test_intervals_of_smaller_groups_than_those_of_the_fit_are_warned_of():
    x, labels, width = widths(60, np.full(60, 200))
    model = DistributionRegressor(**SMALL).fit(partial_sketch(x, MAP, groups=labels), width)
    few, names, _ = widths(3, np.array([5, 150, 400]))
    group = partial_sketch(few, MAP, groups=names)
    stored = ds.open(model.to_bytes())
    for each in (model, stored):
        with pytest.warns(UserWarning, match="1 of 3 groups .* 5 samples beside 200"):
            each.predict_interval(group, level=0.2)
    model.predict_interval(group.select([1, 2]), level=0.2)


def test_large_groups_weigh_more_where_small_ones_are_noisy():
    sizes = np.where(np.arange(200) < 150, 4, 400)
    x, labels, width = widths(200, sizes)
    group = partial_sketch(x, MAP, groups=labels)
    new = partial_sketch(*widths(60, 400, seed=1)[:1], MAP, groups=widths(60, 400, seed=1)[1])
    truth = widths(60, 400, seed=1)[2]
    errors = {}
    for weighted in (True, False):
        settings = SMALL | {"shrink": False, "weight_sizes": weighted}
        model = DistributionRegressor(**settings).fit(group, width)
        errors[weighted] = np.mean((model.predict(new) - truth) ** 2)
    assert errors[True] < errors[False]


@pytest.mark.parametrize("loss", ["squared", pytest.param("logistic", marks=pytest.mark.slow)])
def test_classes_and_their_probabilities(loss):
    model = DistributionClassifier(**SMALL, loss=loss).fit(OLD, KINDS[:80])
    assert list(model.classes_) == ["middle", "narrow", "wide"]
    assert model.score(NEW, KINDS[80:]) > 0.8
    probability = model.predict_proba(NEW)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    codes = np.searchsorted(model.classes_, KINDS[80:])
    assert -np.mean(np.log(probability[np.arange(40), codes])) < 0.5
    logits = model.decision_function(NEW)
    np.testing.assert_array_equal(model.classes_[logits.argmax(axis=1)], model.predict(NEW))
    np.testing.assert_array_equal(
        model.predict(ROWS[LABELS >= 80], groups=LABELS[LABELS >= 80]), model.predict(NEW)
    )


def test_two_classes_and_weights_of_zero():
    wide = WIDTH > 1.2
    mistaken, weights = wide.copy(), np.ones(120)
    mistaken[:20], weights[:20] = ~mistaken[:20], 0.0
    model = DistributionClassifier(**SMALL).fit(GROUP, mistaken, weights)
    assert model.score(GROUP, wide) > 0.9
    assert model.decision_function(NEW).shape == (40,)
    with pytest.raises(InputError, match="1 class"):
        DistributionClassifier(**SMALL).fit(GROUP, wide, np.where(wide, 1.0, 0.0))


def test_a_grid_search_divides_embeddings():
    search = GridSearchCV(DistributionRegressor(**SMALL), {"kernel": ["matern", "linear"]}, cv=3)
    search.fit(mean_embedding(OLD), WIDTH[:80])
    assert search.best_score_ > 0.85
    assert search.score(NEW, WIDTH[80:]) > 0.85


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bandwidths": ()}, r"bandwidths=\(\)"),
        ({"bandwidths": (-1.0,)}, r"bandwidths=-1\.0"),
        ({"alphas": 1.0}, r"alphas=1\.0"),
    ],
)
def test_arguments_are_validated(arguments, message):
    with pytest.raises(InputError, match=message):
        DistributionRegressor(**arguments).fit(OLD, WIDTH[:80])


def test_other_mistakes_are_named():
    with pytest.raises(InputError, match=r"y .*continuous.*DistributionRegressor"):
        DistributionClassifier(**SMALL).fit(OLD, np.linspace(0.1, 0.9, 80))
    with pytest.raises(InputError, match="loss='hinge'"):
        DistributionClassifier(loss="hinge").fit(OLD, KINDS[:80])
    with pytest.raises(InputError, match="n_samples=1"):
        DistributionRegressor().fit(GROUP, WIDTH, np.eye(120)[0])
    with pytest.raises(InputError, match=r"sample_weight .*\(3,\)"):
        DistributionRegressor().fit(GROUP, WIDTH, np.ones(3))


def test_random_states_out_of_range_are_refused():
    x, groups = np.arange(8.0)[:, None], np.repeat([0, 1, 2, 3], 2)
    units = partial_sketch(x, FeatureMap(1, 10, scale=1.0), groups=groups)
    with pytest.raises(InputError, match="random_state=-1"):
        ds.distributions.DistributionRegressor(random_state=-1).fit(units, np.arange(4.0))


def test_intervals_of_few_labels_are_warned_of(tmp_path):
    """With three labels, an interval of 95 % had three targets of four for new labels."""
    model = DistributionRegressor(**SMALL).fit(GROUP, WIDTH, groups=np.arange(len(WIDTH)) % 10)
    model.to_zarr(tmp_path / "model.zarr")
    for each in (model, ds.open(tmp_path / "model.zarr")):
        assert each.n_labels_ == 10
        each.predict_interval(GROUP, level=0.1)
        with pytest.warns(UserWarning, match=r"have 10 labels, .*level=0\.05 needs 19"):
            each.predict_interval(GROUP)


def test_few_groups_do_not_reverse_the_classes():
    """Of 30 fits to twelve groups, seven ranked new groups in reverse: 0.1 to 0.4 of pairs."""
    shares = []
    for seed in range(9000, 9012):
        rng = np.random.default_rng(seed)

        def groups_of(n, rng=rng):
            kinds, labels = np.arange(n) % 2, np.repeat(np.arange(n), 50)
            rows = rng.normal(size=(50 * n, 2)) + rng.normal(size=(n, 2))[labels] / 2
            return rows + 0.5 * kinds[labels, None], labels, kinds

        (x, labels, kinds), (new, new_labels, new_kinds) = groups_of(12), groups_of(120)
        feature_map = ds.FeatureMap(2, 50, scale=1.0, seed=seed)
        model = DistributionClassifier().fit(partial_sketch(x, feature_map, groups=labels), kinds)
        found = model.decision_function(partial_sketch(new, feature_map, groups=new_labels))
        shares.append(np.mean(found[new_kinds == 1][:, None] > found[new_kinds == 0]))
    assert min(shares) > 0.45
    assert np.mean(shares) > 0.7
