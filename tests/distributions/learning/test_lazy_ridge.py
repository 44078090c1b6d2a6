import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch.distributions import DistributionClassifier, DistributionRegressor
from dask_sketch.errors import ChunkError, InputError

MAP = ds.FeatureMap(2, 40, scale=1.0)
N = 150
RNG = np.random.default_rng(0)
SIZES = RNG.integers(20, 60, N)
LABELS = np.repeat(np.array([f"day {k:03d}" for k in range(N)]), SIZES)
NAMES = np.unique(LABELS)
WIDTH = RNG.uniform(0.5, 2.0, N)
ROWS = RNG.normal(size=(len(LABELS), 2)) * np.repeat(WIDTH, SIZES)[:, None]
SERIES = pd.Series(WIDTH, index=NAMES)[::-1]
KINDS = pd.Series(np.array(["a", "b", "c"])[np.digitize(WIDTH, [0.8, 1.3])], index=NAMES)


def lazy(rows=ROWS, labels=LABELS, chunk=500):
    return ds.sketch(da.from_array(rows, chunks=(chunk, 2)), MAP, groups=labels)


def test_the_fit_is_that_of_all_groups_in_memory():
    settings = {"kernel": "linear", "shrink": False, "weight_sizes": False, "alphas": (0.1,)}
    weights = RNG.uniform(0.0, 2.0, N)
    weights[3] = 0.0
    expected = DistributionRegressor(**settings).fit(lazy().compute(), SERIES, weights)
    for chunk in (500, 777):
        model = DistributionRegressor(**settings, solver="normal")
        model.fit(lazy(chunk=chunk), SERIES, weights)
        np.testing.assert_allclose(model.ridge_.coef_[0], expected.ridge_.coef_, rtol=1e-6)
        np.testing.assert_allclose(model.ridge_.intercept_, expected.ridge_.intercept_)
        whole = np.isfinite(model.leave_one_out_)
        assert 0.7 * N < whole.sum() < N
        assert not whole[3]
        np.testing.assert_allclose(model.leave_one_out_[whole], expected.leave_one_out_[whole])


def test_it_predicts_and_is_stored():
    model = DistributionRegressor(60, solver="normal").fit(lazy(), SERIES.to_dict())
    group = lazy().compute()
    assert model.score(group, WIDTH) > 0.9
    interval = model.predict_interval(group, level=0.2)
    assert 0.7 < np.mean((interval[:, 0] < WIDTH) & (interval[:, 1] > WIDTH)) < 0.95
    again = ds.open(model.to_bytes())
    np.testing.assert_array_equal(again.predict(group), model.predict(group))
    found = DistributionRegressor(60, solver="normal").fit(lazy(), SERIES.to_xarray())
    np.testing.assert_array_equal(found.predict(group), model.predict(group))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_are_those_of_all_groups_in_memory(n_classes):
    settings = {"kernel": "linear", "shrink": False, "weight_sizes": False, "alphas": (0.1,)}
    kinds = KINDS.replace("c", "b") if n_classes == 2 else KINDS
    expected = DistributionClassifier(**settings).fit(lazy().compute(), kinds)
    model = DistributionClassifier(**settings, solver="normal").fit(lazy(), kinds[::-1].to_dict())
    np.testing.assert_array_equal(model.classes_, expected.classes_)
    coefficients = np.atleast_2d(expected.ridge_.coef_)
    np.testing.assert_allclose(model.ridge_.coef_, coefficients, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(model.ridge_.intercept_, expected.ridge_.intercept_)
    group = lazy().compute()
    probability = model.predict_proba(group)
    np.testing.assert_allclose(probability, expected.predict_proba(group), atol=0.1)
    again = ds.open(model.to_bytes())
    np.testing.assert_array_equal(again.predict_proba(group), probability)
    assert model.score(group, kinds) > 0.9


def test_classes_without_groups_that_choose_the_bandwidth_are_named():
    # both chunks divide the last group, which is not among those that are read before
    kinds = dict.fromkeys(NAMES[:40], "a") | dict.fromkeys(NAMES[20:40], "b")
    rows = np.flatnonzero(np.isin(LABELS, NAMES[:41]))
    ends = int(np.searchsorted(LABELS, NAMES[40]) + 5)
    given = lazy(ROWS[rows], LABELS[rows], chunk=ends)
    model = DistributionClassifier(20, solver="normal", bandwidths=(1.0,))
    with pytest.warns(UserWarning, match="class c"):
        model.fit(given, kinds | {NAMES[40]: "c"})
    assert set(model.predict(given.compute())) <= {"a", "b"}
    with pytest.raises(InputError, match="X: .*one class"):
        model.fit(given, dict.fromkeys(NAMES[:40], "a") | {NAMES[40]: "c"})
    with pytest.raises(InputError, match="loss='logistic' with solver='normal'"):
        model.set_params(loss="logistic").fit(given, kinds | {NAMES[40]: "b"})


@pytest.mark.parametrize("kind", ["order", "missing", "array", "memory", "twice", "solver"])
def test_mistakes_are_named(kind):
    model = DistributionRegressor(20, solver="normal", bandwidths=(1.0,))
    if kind == "order":  # some rows of the first group are within a later chunk
        moved = np.insert(np.arange(len(ROWS)), 2200, np.arange(5))
        given, error = (lazy(ROWS[moved], LABELS[moved]), SERIES), "X .*day 000"
    elif kind == "missing":
        given, error = (lazy(), SERIES.drop("day 077")), "y .*day 077"
    elif kind == "array":
        given, error = (lazy(), WIDTH), "y of type ndarray"
    elif kind == "memory":
        given, error = (lazy().compute(), SERIES), "solver='normal' with X of type SketchGroup"
    elif kind == "twice":
        given, error = (lazy(), pd.concat([SERIES, SERIES[:1]])), "y has a label twice"
    else:
        model.solver, given, error = "other", (lazy(), SERIES), "solver='other'"
    with pytest.raises((InputError, ChunkError), match=error):
        model.fit(*given)
