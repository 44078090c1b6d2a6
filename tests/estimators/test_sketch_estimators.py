"""The estimators: on data in memory, on lazy data, batch by batch."""

from __future__ import annotations

import pickle

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dask_sketch import decode, design, sketch
from dask_sketch.errors import InputError
from dask_sketch.estimators.sketch_estimators import (
    SketchGaussianMixture,
    SketchKMeans,
    SketchKMedians,
)
from dask_sketch.features import default_n_frequencies
from dask_sketch.models import random_mixture
from dask_sketch.models.clusters import kmedians

ESTIMATORS = [SketchKMeans(3), SketchGaussianMixture(3)]
TRUTH = random_mixture(3, 2, seed=4)
X = TRUTH.sample(3000, seed=0)
kinds = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


def decode_again(found):
    """The model of the sketch that an estimator holds."""
    seed = int(np.random.RandomState(found.random_state).randint(2**31 - 1))
    return decode(found.sketch_, 3, seed=seed, **found._decoding())


def lazy(x, rows=500):
    return da.from_array(x, chunks=(rows, x.shape[1]))


def test_a_mixture_is_found():
    found = SketchGaussianMixture(3).fit(X)
    assert found.score(X) > TRUTH.score(X) - 0.01
    assert found.covariances_.shape == found.means_.shape == (3, 2)
    np.testing.assert_allclose(found.precisions_ * found.covariances_, 1)
    assert found.score_samples(X).mean() == pytest.approx(found.score(X))
    np.testing.assert_allclose(found.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_array_equal(found.fit_predict(X), found.predict(X))
    drawn, component = found.sample(10)
    assert drawn.shape == (10, 2)
    assert component.shape == (10,)


@pytest.mark.filterwarnings("ignore:the mixture is")  # of types with fewer parameters
@pytest.mark.parametrize(
    "kind", ["full", *(pytest.param(k, marks=pytest.mark.slow) for k in ("tied", "spherical"))]
)
def test_types_of_covariances(kind):
    turned = X @ np.array([[1.0, 0.6], [-0.2, 0.8]])
    found = SketchGaussianMixture(3, covariance_type=kind).fit(turned)
    assert found.feature_map_.n_frequencies == default_n_frequencies(2, 3, covariance_type=kind)
    other = found.model_.to_sklearn()
    assert found.covariances_.shape == other.covariances_.shape
    np.testing.assert_allclose(found.precisions_, other.precisions_)
    np.testing.assert_array_equal(found.predict(turned), other.predict(turned))
    assert found.bic(turned) == pytest.approx(other.bic(turned))
    if kind == "full":
        diagonal = SketchGaussianMixture(3).fit(turned)
        assert found.score(turned) > diagonal.score(turned) + 0.01


def test_centroids_are_found():
    from sklearn.cluster import KMeans

    found, reference = SketchKMeans(3).fit(X), KMeans(3, n_init=5, random_state=0).fit(X)
    assert -found.score(X) < 1.03 * reference.inertia_
    np.testing.assert_array_equal(found.labels_, found.transform(X).argmin(axis=1))
    assert found.score(X, sample_weight=np.full(len(X), 2.0)) == pytest.approx(2 * found.score(X))
    assert found.get_feature_names_out().tolist() == [f"sketchkmeans{k}" for k in range(3)]


@pytest.mark.parametrize("kind", [SketchKMeans, SketchKMedians])
@pytest.mark.parametrize(("n_rows", "k"), [(2, 2), (3, 3), (3, 2), (5, 3)])
@pytest.mark.few_cases(3)
def test_hardly_more_rows_than_clusters(kind, n_rows, k):
    x = np.random.default_rng(n_rows).normal(size=(n_rows, 2))
    found = kind(k).fit(x)  # without a warning
    distances = np.linalg.norm(x[:, None] - found.cluster_centers_, axis=2).min(axis=1)
    if n_rows == k:
        assert distances.max() < 1e-12
    elif kind is SketchKMeans:
        expected = KMeans(k, n_init=20, random_state=0).fit(x).inertia_
        assert found.inertia_ == pytest.approx(expected)


def test_fewer_rows_than_clusters_name_the_number_of_clusters():
    with pytest.raises(InputError, match="n_components=3"):
        design(np.eye(2), n_components=3, task="clustering")


@pytest.mark.slow
def test_medians_are_not_moved_by_distant_samples():
    rng = np.random.default_rng(0)
    x = np.concatenate([X, X[:150] + rng.standard_t(3.0, size=(150, 2)) * 12.0])
    found, means = SketchKMedians(3).fit(x), SketchKMeans(3).fit(x)
    distances = np.linalg.norm(x[:, None] - found.cluster_centers_, axis=2)
    np.testing.assert_array_equal(found.labels_, distances.argmin(axis=1))
    assert found.inertia_ == pytest.approx(distances.min(axis=1).sum())
    assert found.score(x) == pytest.approx(-found.inertia_)
    assert found.score(lazy(x)) == pytest.approx(found.score(x))
    # as good as medians of all samples, and better than means
    assert found.inertia_ < 1.005 * kmedians(x, 3, n_starts=4).inertia * len(x)
    assert found.inertia_ < 0.99 * np.sqrt(means.model_.squared_distances(x)).sum()
    with pytest.warns(UserWarning, match="sample_size=False"):
        bare = SketchKMedians(3, sample_size=False).fit(X)
    assert bare.cluster_centers_.shape == (3, 2)


@kinds
def test_lazy_input_gives_lazy_answers_and_the_same_model(estimator):
    # one chunk, so that the pilot rows are the same
    here = clone(estimator).fit(X)
    there = clone(estimator).fit(lazy(X, len(X)))
    assert here.feature_map_ == there.feature_map_
    np.testing.assert_allclose(there.model_.weights, here.model_.weights)
    many = clone(estimator).fit(lazy(X))
    further = getattr(many, "transform", getattr(many, "predict_proba", None))
    answers = [many.predict(lazy(X)), further(lazy(X))]
    assert all(dask.is_dask_collection(answer) for answer in answers)
    np.testing.assert_array_equal(answers[0].compute(), many.predict(X))
    score = many.score(lazy(X))
    assert isinstance(score, float)  # GridSearchCV wants numbers
    assert score == pytest.approx(many.score(X))
    assert answers[1].compute().shape == (len(X), 3)


def test_labels_of_lazy_input_are_lazy():
    found = SketchKMeans(3).fit(lazy(X))
    assert dask.is_dask_collection(found.labels_)
    np.testing.assert_array_equal(found.labels_.compute(), found.predict(X))


def test_attributes_of_samples_in_memory():
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(X))
    found = SketchKMeans(3).fit(X, sample_weight=weights)
    assert found.inertia_ == pytest.approx(-found.score(X, sample_weight=weights))
    found.fit(lazy(X))
    assert not hasattr(found, "inertia_")  # it takes another pass


def test_criteria_of_a_mixture():
    found = SketchGaussianMixture(3).fit(X)
    assert found.bic(X) == pytest.approx(14 * np.log(len(X)) - 2 * found.score_samples(X).sum())
    assert found.aic(lazy(X)) == pytest.approx(found.aic(X))
    assert isinstance(found.bic(lazy(X)), float)


@kinds
def test_rows_with_nan_are_left_out_on_demand(estimator):
    x = X.copy()
    x[5:2000:7] = np.nan, np.inf
    kept = np.isfinite(x[:, 0])
    found = clone(estimator).set_params(nan_policy="omit").fit(x)
    assert (found.sketch_.count, found.sketch_.omitted) == (kept.sum(), (~kept).sum())
    there = clone(found).fit(lazy(x))
    assert (there.sketch_.count, there.sketch_.omitted) == (kept.sum(), (~kept).sum())
    if isinstance(found, SketchKMeans):
        np.testing.assert_array_equal(found.labels_ == -1, ~kept)
        assert found.inertia_ == pytest.approx(-found.score(x[kept]))
    for given in (x, lazy(x)):
        with pytest.raises(ValueError, match="(?i)nan"):
            clone(estimator).fit(given)
    with pytest.raises(InputError, match="nan_policy='skip'"):
        clone(estimator).set_params(nan_policy="skip").fit(X)


def tables(place):
    """The samples as columns b and a of tables that have other columns."""
    frame = pd.DataFrame({"id": "text", "a": X[:, 1], "b": X[:, 0]})
    frame.to_parquet(place / "x.parquet")
    return {
        "pandas": frame,
        "dask": dd.from_pandas(frame, npartitions=3),
        "parquet": str(place / "x.parquet"),
    }


@pytest.mark.parametrize("kind", ["pandas", "dask", "parquet"])
def test_columns_are_chosen(kind, tmp_path):
    x = tables(tmp_path)[kind]
    found = SketchKMeans(3, columns=["b", "a"]).fit(x)
    assert found.feature_names_in_.tolist() == list(found.model_.feature_names) == ["b", "a"]
    for given in tables(tmp_path).values():
        labels = dask.compute(found.predict(given))[0]
        np.testing.assert_array_equal(labels, found.model_.predict(X))
    np.testing.assert_array_equal(dask.compute(found.labels_)[0], found.model_.predict(X))
    # arrays hold the features that were chosen
    np.testing.assert_array_equal(found.predict(lazy(X)).compute(), found.model_.predict(X))
    with pytest.raises(InputError, match=r"columns=\['c'\]"):
        clone(found).set_params(columns=["b", "c"]).fit(x)


def test_columns_of_arrays_are_refused():
    with pytest.raises(InputError, match=r"columns=\['a'\]"):
        SketchKMeans(3, columns=["a"]).fit(X)


def test_a_bag():
    bag = db.from_sequence(np.array_split(X, 6), npartitions=3)
    found = SketchKMeans(3).fit(bag)
    np.testing.assert_array_equal(found.labels_.compute(scheduler="threads"), found.predict(X))


def test_one_pass(tmp_path):
    read = []

    def count(block):
        read.append(len(block))
        return block

    rows = lazy(X).map_blocks(count, dtype=X.dtype, meta=np.empty((0, 0)))
    SketchGaussianMixture(3).fit(rows)
    # eight chunks at most for the pilot rows, of which there are six
    assert sum(read) == 2 * len(X)


def test_a_path_and_a_data_frame(tmp_path):
    import zarr

    zarr.save_array(str(tmp_path / "x.zarr"), X)
    found = SketchKMeans(3).fit(str(tmp_path / "x.zarr"))
    assert found.sketch_.count == len(X)
    frame = pd.DataFrame(X, columns=["a", "b"])
    named = SketchKMeans(3).fit(frame)
    assert named.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        named.predict(frame.rename(columns={"a": "c"}))


@kinds
def test_batches_make_the_sketch_of_all(estimator):
    found = clone(estimator)
    for batch in np.array_split(X, 5):
        found.partial_fit(batch)
    whole = sketch(X, found.feature_map_)
    assert found.sketch_.count == len(X)
    np.testing.assert_allclose(found.sketch_.z, whole.z, atol=1e-6)
    assert found.predict(X).shape == (len(X),)
    again = decode_again(found)
    np.testing.assert_array_equal(again.weights, found.model_.weights)


def test_a_lazy_batch_after_one_in_memory():
    found = SketchKMeans(3).partial_fit(X[:1000]).partial_fit(lazy(X[1000:]))
    assert found.sketch_.count == len(X)


def test_weights_are_as_repeated_rows_for_one_map():
    times = np.random.default_rng(1).integers(0, 4, len(X))
    feature_map = design(X, n_components=3)
    weighted, repeated = sketch(X, feature_map, times), sketch(X.repeat(times, axis=0), feature_map)
    np.testing.assert_allclose(weighted.z, repeated.z, atol=2e-7)


def test_a_pipeline():
    scaled = make_pipeline(StandardScaler(), SketchKMeans(3))
    assert scaled.fit(X).predict(X).shape == (len(X),)


def test_an_error_leaves_what_was_fitted():
    found = SketchKMeans(3).fit(X)
    before = found.sketch_
    with pytest.raises(ValueError, match="NaN"):
        found.partial_fit(np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match="features"):
        found.partial_fit(lazy(np.zeros((30, 5))))
    names = [f"feature {k}" for k in range(5)]
    with pytest.raises(ValueError, match="replicates=0"):
        found.set_params(n_init=0).fit(pd.DataFrame(np.ones((30, 5)), columns=names))
    assert found.sketch_ is before
    assert len(found.predict(X)) == len(X)
    with pytest.raises(ValueError, match="replicates=0"):
        (found := SketchKMeans(3, n_init=0)).fit(X)
    assert not [name for name in vars(found) if name.endswith("_")]


@pytest.mark.parametrize("estimator", [SketchKMeans, SketchKMedians, SketchGaussianMixture])
def test_scores_of_weighted_rows(estimator, rng, tmp_path):
    table = pd.DataFrame(X, columns=["a", "b"])
    weights = rng.uniform(0.0, 2.0, len(X))
    weighted = table.assign(w=weights)
    weighted.to_parquet(tmp_path / "x.parquet")
    found = estimator(2, columns=["a", "b"]).fit(table)
    expected = found.score(table, sample_weight=weights)
    assert expected != pytest.approx(found.score(table))
    for stored in (tmp_path / "x.parquet", dd.from_pandas(weighted, npartitions=3)):
        assert found.score(stored, sample_weight="w") == pytest.approx(expected)
    factor = 1.0 if estimator is SketchGaussianMixture else 2.0
    doubled = found.score(table, sample_weight=2.0)
    assert doubled == pytest.approx(factor * found.score(table))
    for bad in (-weights, np.full(len(X), np.nan), np.full(len(X), np.inf), "w"):
        with pytest.raises(ValueError, match="sample_weight"):
            found.score(table, sample_weight=bad)


@pytest.mark.slow
def test_values_that_are_not_finite_are_named_with_the_way_out():
    table = pd.DataFrame(np.tile(X[:200], 4), columns=["width", "height", *"abcdef"])
    table += np.random.default_rng(0).normal(size=table.shape)
    table.loc[3, "height"] = np.nan
    with pytest.raises(InputError, match="row 3, feature 'height'.*'available'"):
        SketchGaussianMixture(2).fit(table)
    infinite = table.fillna(np.inf)
    with pytest.raises(InputError, match="inf at row 3, feature 1.*'omit'"):
        SketchKMeans(2).fit(infinite.to_numpy())
    available = SketchGaussianMixture(2, nan_policy="available").fit(table)
    assert np.isfinite(available.score_samples(table)).all()
    rows = table.drop(index=3)
    assert available.score(rows) > SketchGaussianMixture(2).fit(rows).score(rows) - 0.05
    with pytest.raises(InputError, match="inf at row 3"):
        available.predict(infinite)
    omitted = SketchKMeans(2, nan_policy="omit").fit(table)
    with pytest.raises(InputError, match="NaN at row 3") as refused:
        omitted.predict(table)
    assert refused.value.parameter == "X"
    weights = np.where(np.arange(200) == 7, np.nan, 1.0)
    with pytest.raises(InputError, match="sample_weight holds NaN at row 7"):
        SketchKMeans(2).fit(X[:200], sample_weight=weights)


def test_missing_values_and_texts_of_tables_are_named():
    table = pd.DataFrame(np.arange(60.0).reshape(20, 3), columns=["a", "b", "c"])
    nullable = table.convert_dtypes()
    nullable.iloc[5, 1] = pd.NA
    with pytest.raises(InputError, match="NaN at row 5, feature 'b'; 1 of 20"):
        SketchKMeans(2).fit(nullable)
    objects = table.astype(object)
    objects.iloc[9, 0] = "ten"
    with pytest.raises(InputError, match="'ten' at row 9, feature 'a'"):
        SketchGaussianMixture(2).fit(objects)
    with pytest.raises(InputError, match="'ten' at row 9, feature 0"):
        SketchKMeans(2).fit(objects.to_numpy())


def test_negative_weights_are_named():
    weights = np.ones(20)
    weights[4] = -1.0
    with pytest.raises(InputError, match="sample_weight holds -1.0 at row 4"):
        SketchKMeans(2).fit(np.arange(60.0).reshape(20, 3), sample_weight=weights)


@pytest.mark.parametrize(
    ("estimator", "rows", "message"),
    [
        (SketchKMeans(0), X, "n_clusters=0"),
        (SketchGaussianMixture(2.5), X, "n_components=2.5"),
        (SketchKMeans(8), X[:5], "n_samples=5"),
    ],
)
def test_bad_arguments(estimator, rows, message):
    with pytest.raises(InputError, match=message):
        estimator.fit(rows)


@pytest.mark.parametrize("estimator", [SketchKMeans, SketchGaussianMixture])
@pytest.mark.parametrize("state", [-1, 2**32, "one"])
def test_a_random_state_that_is_none(state, estimator):
    with pytest.raises(InputError, match=f"random_state={state!r}"):
        estimator(2, random_state=state).fit(np.eye(10))


def test_weights_of_another_length():
    with pytest.raises(InputError, match="sample_weight has shape"):
        SketchKMeans(3).fit(X, sample_weight=np.ones(3))


@kinds
@pytest.mark.slow
def test_lazy_twins_of_the_checks(estimator):
    """Arguments that scikit-learn checks with arrays holds for Dask arrays."""
    with pytest.raises(NotFittedError):
        clone(estimator).predict(lazy(X))
    found = clone(estimator)
    parameters = found.get_params()
    one, two = found.fit(lazy(X)).model_.weights, clone(estimator).fit(lazy(X)).model_.weights
    np.testing.assert_array_equal(one, two)  # the same bits, twice
    assert found.get_params() == parameters
    before = set(vars(found))
    answer = found.predict(lazy(X))
    assert set(vars(found)) == before  # a prediction changes nothing
    np.testing.assert_array_equal(answer[:10].compute(), found.predict(lazy(X[:10], 3)).compute())
    assert found.n_features_in_ == 2
    with pytest.raises(InputError, match="features"):
        found.predict(lazy(np.zeros((10, 3))))
    with pytest.raises(ValueError, match=r"row 7 .* nan"):
        clone(estimator).fit(lazy(np.where(np.arange(len(X))[:, None] == 7, np.nan, X)))


def test_what_a_mask_hides_is_not_used():
    x = np.random.default_rng(0).normal(size=(50, 2))
    hidden = np.ma.masked_array(x, mask=x > 2)
    one = np.ma.masked_array(np.ones(50), mask=np.arange(50) == 7)
    fitted = SketchKMeans(2).fit(x)
    for refused in (
        lambda: SketchKMeans(2).fit(hidden),
        lambda: SketchKMeans(2).fit(x, sample_weight=one),
        lambda: fitted.predict(hidden),
    ):
        with pytest.raises(InputError, match="masked values"):
            refused()


@pytest.mark.parametrize("method", ["density", "splitting", None])
def test_any_method_fits_a_mixture(method):
    x = np.random.default_rng(0).normal(size=(3000, 2))
    found = SketchGaussianMixture(1, method=method, sample_size=500).fit(x)
    assert found.means_.shape == (1, 2)


def test_labels_of_a_mixture_are_predictions():
    found = SketchGaussianMixture(2)
    with pytest.raises(AttributeError, match=r"labels_.*predict\(X\)"):
        found.labels_  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'means_'$"):
        found.means_  # noqa: B018
    assert pickle.loads(pickle.dumps(found)).n_components == 2


def test_a_number_of_components_in_words_is_refused():
    x = np.zeros((50, 2))
    with pytest.raises(InputError, match="n_components='three': give a number, or 'auto'"):
        SketchGaussianMixture("three").fit(x)
    with pytest.raises(InputError, match="n_clusters='three'"):
        SketchKMeans("three").fit(x)


@pytest.mark.slow
def test_the_number_of_components_is_found():
    x = random_mixture(2, 2, seed=3).sample(5000, seed=4)
    found = SketchGaussianMixture("auto", sample_size=False).fit(x)
    assert found.means_.shape == (2, 2)
    assert found.selection_.model is found.model_
    with pytest.raises(InputError, match="n_clusters='auto'"):
        SketchKMeans("auto").fit(x)


def test_spherical_kmeans_of_rows_of_any_length(rng):
    x = rng.normal(size=(900, 2)) * 0.2 + np.repeat([[1, 0], [0, 1], [-1, 0]], 300, axis=0)
    found = SketchKMeans(3, normalize=True).fit(x * rng.uniform(1, 50, (900, 1)))
    assert np.isin(np.round(found.cluster_centers_), [-1, 0, 1]).all()
    assert (np.bincount(found.labels_) > 280).all()
    assert found.predict(7.0 * x[:1]) == found.predict(x[:1])
    with pytest.raises(InputError, match="normalize=True"):
        SketchKMedians(3, normalize=True).fit(x)


@pytest.mark.parametrize("estimator", [SketchKMeans, SketchKMedians, SketchGaussianMixture])
@pytest.mark.slow
def test_weights_of_another_index_are_refused(estimator):
    frame = pd.DataFrame(random_mixture(2, 2, seed=0).sample(400, seed=0), columns=["a", "b"])
    weights = pd.Series(np.arange(1.0, 401.0))
    turned = weights[::-1]
    fitted = estimator(2).fit(frame, sample_weight=weights)
    plain = estimator(2).fit(frame, sample_weight=weights.to_numpy())
    assert fitted.sketch_.identical(plain.sketch_)
    expected = fitted.score(frame, sample_weight=weights.to_numpy())
    assert fitted.score(frame, sample_weight=weights) == pytest.approx(expected)
    for run in (estimator(2).fit, estimator(2).partial_fit, fitted.partial_fit, fitted.score):
        with pytest.raises(InputError, match="sample_weight.*to_numpy") as caught:
            run(frame, sample_weight=turned)
        assert caught.value.parameter == "sample_weight"
    labelled = frame.to_xarray().to_dataarray("feature").T
    with pytest.raises(InputError, match="weights"):
        fitted.score(labelled, sample_weight=turned.to_xarray())
    lazy = dd.from_pandas(frame, npartitions=2)
    with pytest.raises(InputError, match="weights.*divisions"):
        fitted.score(lazy, sample_weight=dd.from_pandas(weights, npartitions=4))
