from __future__ import annotations

import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from dask_sketch.display.text import describe
from dask_sketch.errors import InputError
from dask_sketch.graph.apply import apply
from dask_sketch.graph.polish import polish
from dask_sketch.models import Decoding, GaussianMixture, random_mixture


@pytest.fixture
def mixture() -> GaussianMixture:
    return random_mixture(4, 3, seed=0, weights="dirichlet")


def joint_logpdf(mixture, x):
    with np.errstate(divide="ignore"):
        return np.log(mixture.weights) + np.stack(
            [
                norm.logpdf(x, mean, np.sqrt(variance)).sum(axis=1)
                for mean, variance in zip(mixture.means, mixture.covariances, strict=True)
            ],
            axis=1,
        )


@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (1e4, 1e-3), (-1e4, 1e3), (1e8, 1)])
def test_density_is_the_formula(mixture, offset, scale):
    moved = GaussianMixture(
        mixture.weights, mixture.means * scale + offset, mixture.covariances * scale**2
    )
    x = moved.sample(1000, seed=1)
    x[0] += 50 * scale
    joint = joint_logpdf(moved, x)
    np.testing.assert_allclose(moved.logpdf(x), logsumexp(joint, axis=1), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(moved.predict(x), joint.argmax(axis=1))
    expected = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    np.testing.assert_allclose(moved.predict_proba(x), expected, atol=1e-9)
    np.testing.assert_allclose(moved.predict_proba(x).sum(axis=1), 1.0)
    assert moved.score(x) == pytest.approx(moved.logpdf(x).mean())


def test_a_sharp_component_far_away_keeps_its_digits():
    sharp = GaussianMixture([0.5, 0.5], [[0.0], [1.0]], [[1e-14], [1.0]])
    x = np.array([[0.0], [1e-7], [0.3]])
    expected = logsumexp(joint_logpdf(sharp, x), axis=1)
    np.testing.assert_allclose(sharp.logpdf(x), expected, rtol=1e-9)


def test_a_component_of_no_weight():
    mixture = GaussianMixture([1.0, 0.0], [[0.0], [9.0]], [[1.0], [1.0]])
    np.testing.assert_allclose(mixture.logpdf([[9.0]]), norm.logpdf(9.0))
    np.testing.assert_array_equal(mixture.predict_proba([[9.0]]), [[1.0, 0.0]])


def test_blocks_do_not_matter(mixture):
    x = mixture.sample(40_000, seed=2)  # several blocks
    part = slice(9_000, 27_000)
    for method in (mixture.logpdf, mixture.predict, mixture.predict_proba):
        np.testing.assert_allclose(method(x)[part], method(x[part]), rtol=1e-12)


def test_input_of_other_types(mixture):
    pd = pytest.importorskip("pandas")
    x = mixture.sample(20, seed=3)
    expected = mixture.logpdf(x)
    np.testing.assert_allclose(mixture.logpdf(x.tolist()), expected)
    np.testing.assert_allclose(mixture.logpdf(pd.DataFrame(x)), expected)
    np.testing.assert_allclose(mixture.logpdf(x.astype(np.float32)), expected, rtol=1e-4)
    assert mixture.logpdf(np.empty((0, 3))).shape == (0,)
    assert mixture.predict(np.empty((0, 3))).shape == (0,)
    assert mixture.predict_proba(np.empty((0, 3))).shape == (0, 4)


def test_weighted_score(mixture):
    x = mixture.sample(3, seed=0)
    values = mixture.logpdf(x)
    assert mixture.score(x, [2, 0, 1]) == pytest.approx((2 * values[0] + values[2]) / 3)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 2)), "x has 2 features: .*3"),
        (np.zeros(3), r"x has shape \(3,\); give \(n_samples, 3\)"),
        (np.array([["a", "b", "c"]]), "x has dtype=.*real"),
        (np.array([[0, 0, 0], [0, np.inf, 0.0]]), "row 1 of x"),
        (np.array([[0, 0, 0], [0, 0, 1e200]]), "row 1 of x has 1e"),
    ],
)
def test_refuses_bad_samples(mixture, x, message):
    for method in (mixture.logpdf, mixture.score, mixture.predict, mixture.predict_proba):
        with pytest.raises(InputError, match=message):
            method(x)


def test_refuses_bad_scores(mixture):
    x = mixture.sample(3, seed=0)
    with pytest.raises(InputError, match="0 samples"):
        mixture.score(np.empty((0, 3)))
    with pytest.raises(InputError, match=r"weights has shape \(2,\): .*\(3,\)"):
        mixture.score(x, [1, 1])
    for bad in ([0, 0, 0], [1, -1, 1], [1, np.nan, 1], [1, np.inf, 1]):
        with pytest.raises(InputError, match="weights .*finite"):
            mixture.score(x, bad)


@pytest.mark.parametrize(
    "kinds",
    [
        {"a": "Int64", "b": "float64", "c": "boolean"},
        {"a": "int64", "b": "float32", "c": "bool"},
        {"a": "Float64", "b": "Float32", "c": "Int8"},
    ],
)
def test_tables_of_any_numeric_columns(mixture, kinds):
    x = np.array([[1.0, 2.5, 0.0], [3.0, -1.5, 1.0]])
    table = pd.DataFrame(x, columns=list("abc")).astype(kinds)
    np.testing.assert_array_equal(mixture.logpdf(table), mixture.logpdf(x))
    if kinds["a"] == "Int64":
        table.loc[1, "a"] = pd.NA
        x[1, 0] = np.nan  # missing, as in test_missing_values.py
        np.testing.assert_array_equal(mixture.logpdf(table), mixture.logpdf(x))
        table["a"] = np.inf
        with pytest.raises(InputError, match="row 0 of x"):
            mixture.predict(table)


def test_refuses_what_a_mask_hides(mixture):
    x = np.ma.masked_array(mixture.sample(2), mask=[[0, 0, 0], [0, 1, 0]])
    for method in (mixture.logpdf, mixture.score, mixture.predict, mixture.predict_proba):
        with pytest.raises(InputError, match="1 masked values"):
            method(x)


@pytest.mark.parametrize("given", [{"n_samples": -1}, {"n_samples": 1.5}, {"seed": -1}])
def test_refuses_bad_numbers_of_samples(mixture, given):
    with pytest.raises(InputError, match=next(iter(given))):
        mixture.sample(**{"n_samples": 1} | given)


def test_samples_have_the_moments(mixture):
    x = mixture.sample(200_000, seed=4)
    np.testing.assert_allclose(x.mean(axis=0), mixture.mean, atol=0.02)
    np.testing.assert_allclose(x.var(axis=0), mixture.variance, rtol=0.02)
    np.testing.assert_array_equal(mixture.sample(50, seed=4), mixture.sample(50, seed=4))
    assert mixture.sample(0).shape == (0, 3)


def test_characteristic_function(mixture):
    omega = np.random.default_rng(0).normal(size=(3, 7))
    psi = mixture.characteristic(omega)
    empirical = np.exp(-1j * mixture.sample(200_000, seed=5) @ omega).mean(axis=0)
    np.testing.assert_allclose(psi, empirical, atol=0.01)
    np.testing.assert_allclose(mixture.characteristic(np.zeros((3, 1))), [1.0])
    with pytest.raises(InputError, match=r"give \(3, m\)"):
        mixture.characteristic(omega[:2])


@pytest.mark.parametrize(
    ("weights", "means", "covariances", "message"),
    [
        ([1.0], [0.0], [1.0], r"means has shape \(1,\)"),
        ([], np.empty((0, 2)), np.empty((0, 2)), "means has shape"),
        ([0.5, 0.5], [[0.0]], [[1.0]], r"weights has shape \(2,\)"),
        ([1.0], [[0.0, 0.0]], [[1.0]], r"covariances has shape \(1, 1\)"),
        ([0.5], [[0.0]], [[1.0]], "sum to one"),
        ([1.5, -0.5], [[0.0], [0.0]], [[1.0], [1.0]], "weights: .*not negative"),
        ([1.0], [[0.0]], [[0.0]], "covariances: .*positive"),
        ([1.0], [[np.nan]], [[1.0]], "means holds NaN or infinity"),
        (["a"], [[0.0]], [[1.0]], "weights: .*real numbers"),
    ],
)
def test_refuses_what_is_no_mixture(weights, means, covariances, message):
    with pytest.raises(InputError, match=message):
        GaussianMixture(weights, means, covariances)


def test_is_immutable_and_pickles(mixture):
    with pytest.raises(ValueError, match="read-only"):
        mixture.means[0, 0] = 1.0
    copy = pickle.loads(pickle.dumps(mixture))
    np.testing.assert_array_equal(copy.means, mixture.means)
    assert not copy.means.flags.writeable
    assert copy.__dask_tokenize__() == mixture.__dask_tokenize__()
    other = GaussianMixture(mixture.weights, mixture.means + 1e-9, mixture.covariances)
    assert other.__dask_tokenize__() != mixture.__dask_tokenize__()


def test_shows_itself(mixture):
    assert repr(mixture) == "<GaussianMixture: n_components=4, n_features=3>"
    record = Decoding("splitting", "gaussian", 1e-5, 3e-5, (2e-5, 1e-5), 0.25, 0, 1, 9, True, "ok")
    decoded = random_mixture(12, 5)
    decoded = GaussianMixture(decoded.weights, decoded.means, decoded.covariances, record)
    assert "method=splitting, model=gaussian, cost=1e-05, noise_level=3e-05, seconds=0.25" in repr(
        decoded
    )
    html = decoded._repr_html_()
    assert "12 components in 5 features, cost 0.333 noise levels" in html
    assert html.count("<tr") == 1 + 12 + 2 + len(describe(record.as_dict()))
    values = decoded.as_dict()
    assert (values["means"] == decoded.means).all()
    assert values["decoding"]["cost"] == 1e-5
    assert values["stderr"] is None
    many = random_mixture(60, 12)
    assert "and 40 more" in many._repr_html_()
    assert "of 12" in many._repr_html_()


def test_lazy_samples_give_lazy_results(mixture):
    da = pytest.importorskip("dask.array")
    x = mixture.sample(300, seed=6)
    lazy = da.from_array(x, chunks=(100, 3))
    for method in ("logpdf", "predict", "predict_proba", "score"):
        result = getattr(mixture, method)(lazy)
        assert hasattr(result, "dask")
        np.testing.assert_allclose(result.compute(), getattr(mixture, method)(x))


def test_a_table_in_memory_is_answered_at_once():
    pd = pytest.importorskip("pandas")
    mixture = GaussianMixture([0.5, 0.5], [[0.0, 0.0], [3.0, 3.0]], np.ones((2, 2)))
    x = mixture.sample(50, seed=0)
    table = pd.DataFrame(x, columns=["a", "b"])
    assert mixture.score(table) == pytest.approx(mixture.score(x))
    np.testing.assert_array_equal(mixture.predict(table), mixture.predict(x))
    for other in ("text", pd.Timestamp("2020"), 1j, pd.Timedelta(0)):
        with pytest.raises(InputError, match=r"not numeric: when \("):
            mixture.predict(table.assign(when=other))


def test_criteria_are_those_of_scikit_learn():
    from sklearn.mixture import GaussianMixture as Reference

    x = np.random.default_rng(0).normal(size=(300, 2)) + np.repeat([[0.0], [5.0]], 150, axis=0)
    expected = Reference(2, covariance_type="diag", random_state=0).fit(x)
    mixture = GaussianMixture(expected.weights_, expected.means_, expected.covariances_)
    np.testing.assert_allclose(mixture.score_samples(x), expected.score_samples(x))
    lazy = da.from_array(x, chunks=(70, 2))
    unknown = lazy[lazy[:, 0] > -np.inf]  # a number of rows that is not known
    for name in ("bic", "aic"):
        criterion = getattr(mixture, name)
        assert criterion(x) == pytest.approx(getattr(expected, name)(x))
        assert dask.is_dask_collection(criterion(lazy))
        assert float(criterion(lazy).compute()) == pytest.approx(criterion(x))
        assert float(criterion(unknown).compute()) == pytest.approx(criterion(x))
        with pytest.raises(InputError, match=f"weights have no effect on {name}"):
            apply(mixture, name, lazy, weights=np.ones(300))
        with pytest.raises(InputError, match="0 samples"):
            criterion(x[:0])


@pytest.mark.parametrize(("kind", "expected"), [("gaussian", 14), ("isotropic", 11), ("known", 8)])
def test_parameters_that_were_fixed_are_not_counted(kind, expected):
    record = Decoding("cl-ompr", kind, 0.0, 0.0, (), 0.0, 0, 1, 1, True, "")
    mixture = GaussianMixture(np.full(3, 1 / 3), np.zeros((3, 2)), np.ones((3, 2)), record)
    assert mixture.n_parameters == expected


def test_names_of_scikit_learn_are_kept():
    from sklearn.mixture import GaussianMixture as Estimator

    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["b", "a"])
    mixture = GaussianMixture.from_sklearn(Estimator(2, random_state=0).fit(frame))
    assert mixture.feature_names == ("b", "a")
    for same in (
        GaussianMixture.from_sklearn(mixture.to_sklearn()),
        pickle.loads(pickle.dumps(mixture)),
    ):
        assert same.feature_names == ("b", "a")
        assert same.score(frame) == pytest.approx(mixture.score(frame.to_numpy()))
        with pytest.raises(InputError, match="feature 0 of x is 'a'; .* 'b'"):
            same.score(frame[["a", "b"]])
    assert mixture.to_sklearn().feature_names_in_.tolist() == ["b", "a"]
    plain = GaussianMixture.from_sklearn(Estimator(2, random_state=0).fit(frame.to_numpy()))
    assert plain.feature_names is None
    polished = polish(mixture, frame, 1)
    assert polished.feature_names == ("b", "a")


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", 2), "ab"])
def test_names_that_are_none(names):
    with pytest.raises(InputError, match="feature_names=") as caught:
        GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]], feature_names=names)
    assert caught.value.parameter == "feature_names"


def test_weights_of_another_index_are_refused(mixture):
    frame = pd.DataFrame(mixture.sample(50, seed=0))
    weights = pd.Series(np.arange(1.0, 51.0))
    expected = mixture.score(frame.to_numpy(), weights.to_numpy())
    assert mixture.score(frame, weights) == mixture.score(frame, weights.tolist()) == expected
    turned = weights[::-1]
    for x in (frame, dd.from_pandas(frame, npartitions=1).compute()):
        with pytest.raises(InputError, match="weights.*to_numpy") as caught:
            mixture.score(x, turned)
        assert caught.value.parameter == "weights"
    assert mixture.score(frame, turned.reindex(frame.index)) == expected
    assert mixture.score(frame.to_numpy(), turned) != expected  # by position
