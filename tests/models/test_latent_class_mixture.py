import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.models import LatentClassMixture
from dask_sketch.models.product_em import fit_product
from dask_sketch.validation.categories import Categories

LEVELS = Categories((None, ("red", "green", "blue"), (False, True)), ("size", "color", "sold"))
MODEL = LatentClassMixture(
    [0.4, 0.6],
    [[0.7, 0.2, 0.1, 0.9, 0.1], [0.1, 0.3, 0.6, 0.2, 0.8]],
    LEVELS,
    means=[[-1.0], [3.0]],
    variances=[[1.0], [4.0]],
)


def test_density_is_that_of_independent_features_in_each_class():
    frame = pd.DataFrame({"size": [0.5, 2.0], "color": ["red", "blue"], "sold": [True, False]})
    first = 0.4 * stats.norm.pdf([0.5, 2.0], -1, 1) * np.array([0.7 * 0.1, 0.1 * 0.9])
    second = 0.6 * stats.norm.pdf([0.5, 2.0], 3, 2) * np.array([0.1 * 0.8, 0.6 * 0.2])
    np.testing.assert_allclose(MODEL.logpdf(frame), np.log(first + second))
    np.testing.assert_allclose(MODEL.predict_proba(frame)[:, 0], first / (first + second))
    assert MODEL.predict(frame).tolist() == [int(b > a) for a, b in zip(first, second, strict=True)]
    codes = [[0.5, 0, 1], [2.0, 2, 0]]
    np.testing.assert_array_equal(MODEL.logpdf(codes), MODEL.logpdf(frame))
    assert MODEL.score(frame) == pytest.approx(MODEL.logpdf(frame).mean())


def test_density_of_missing_values_is_the_marginal():
    found = MODEL.logpdf([[np.nan, 1, np.nan], [np.nan] * 3])
    np.testing.assert_allclose(found, [np.log(0.4 * 0.2 + 0.6 * 0.3), 0.0], atol=1e-12)


def test_missing_values_are_replaced_by_predictions():
    frame = pd.DataFrame({"size": [0.5, np.nan], "color": ["red", None], "sold": [None, True]})
    given_red = stats.norm.pdf(0.5, [-1, 3], [1, 2]) * [0.4, 0.6] * np.array([0.7, 0.1])
    given_sold = np.array([0.4, 0.6]) * [0.1, 0.8]
    sold = float(given_red @ [0.1, 0.8] > given_red @ [0.9, 0.2])
    expected = [
        [0.5, 0.0, sold],
        [
            given_sold @ [-1, 3] / given_sold.sum(),
            (given_sold @ MODEL.probabilities[:, :3]).argmax(),
            1,
        ],
    ]
    np.testing.assert_allclose(MODEL.impute(frame), expected)
    assert MODEL.categories.frame(MODEL.impute(frame))["color"].tolist() == ["red", "blue"]
    lazy = MODEL.impute(da.from_array(np.tile([np.nan, 1.0, np.nan], (6, 1)), chunks=(2, 3)))
    assert lazy.shape == (6, 3)
    # products of matrices may differ in the last digit between numbers of rows
    np.testing.assert_allclose(lazy.compute()[0], MODEL.impute([[np.nan, 1, np.nan]])[0], 1e-14)


def test_rows_of_impossible_levels_have_no_density():
    model = LatentClassMixture([1.0], [[0.0, 1.0]], [("a", "b")])
    assert model.logpdf([[0], [1]]).tolist() == [-np.inf, 0.0]
    assert model.predict_proba([[0]]).tolist() == [[1.0]]


def test_samples_have_the_types_and_frequencies_of_the_model():
    frame = MODEL.sample(20_000, seed=1)
    assert frame.columns.tolist() == ["size", "color", "sold"]
    assert frame["color"].cat.categories.tolist() == ["red", "green", "blue"]
    assert frame["sold"].dtype == bool
    assert abs((frame["color"] == "green").mean() - 0.26) < 0.02
    assert MODEL.score(frame) == pytest.approx(MODEL.score(MODEL.sample(20_000, seed=2)), abs=0.05)
    empirical = np.exp(-1j * MODEL.sample_codes(20_000) @ [[0.5], [2.0], [1.0]]).mean()
    assert abs(empirical - MODEL.characteristic([[0.5], [2.0], [1.0]])[0]) < 0.03


def test_stored_models_open_with_the_same_bits(tmp_path):
    MODEL.to_zarr(tmp_path / "model.zarr")
    found = ds.open(tmp_path / "model.zarr")
    assert isinstance(found, LatentClassMixture)
    assert found.categories == MODEL.categories
    assert found.feature_names == MODEL.feature_names
    for name in ("weights", "means", "variances", "probabilities"):
        np.testing.assert_array_equal(getattr(found, name), getattr(MODEL, name))
    only = LatentClassMixture([1.0], [[0.5, 0.5]], [("a", "b")])
    assert ds.open(only.to_bytes()).means.shape == (1, 0)


def test_damaged_models_are_refused(tmp_path):
    from dask_sketch.models.artifact import LATENT_CLASSES, latent_class_dataset
    from dask_sketch.models.open import model_from_dataset

    dataset = latent_class_dataset(MODEL)
    for key, value in (
        ("categories", "[null, null, null]"), ("categories", "7"), ("feature_names", '["a"]'),
        ("feature_names", "[1, 2, 3]"),
    ):  # fmt: skip
        with pytest.raises(ArtifactError, match="latent class mixture"):
            model_from_dataset(dataset.assign_attrs({key: value}), LATENT_CLASSES)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weights", {"weights": [0.4, 0.5]}),
        ("probabilities", {"probabilities": [[0.5, 0.5, 0.5, 0.5, 0.5]] * 2}),
        ("probabilities", {"probabilities": [[1.0]] * 2}),
        ("means", {"means": [[1.0]]}),
        ("variances", {"variances": [[1.0], [0.0]]}),
    ],
)
def test_invalid_parameters_are_refused(name, change):
    given = {"weights": [0.4, 0.6], "probabilities": MODEL.probabilities, "categories": LEVELS}
    given |= {"means": MODEL.means, "variances": MODEL.variances}
    with pytest.raises(InputError, match=name):
        LatentClassMixture(**(given | change))


def test_descriptions_name_levels():
    assert "red: 0.7" in MODEL._repr_html_()
    assert MODEL.as_dict()["categories"]["sold"] == [False, True]
    assert "LatentClassMixture" in repr(MODEL)
    assert MODEL.n_parameters == 2 * (1 + 2 + 2 + 1) - 1
    assert MODEL.level_probabilities["sold"].tolist() == [[0.9, 0.1], [0.2, 0.8]]


def test_functions_for_numeric_models_refuse_latent_classes():
    with pytest.raises(InputError, match=r"polish.*categories"):
        ds.polish(MODEL, [[0.5, 0, 1]])
    with pytest.raises(InputError, match=r"diagnose.*categories"):
        ds.diagnose(MODEL, None)


@pytest.mark.slow
def test_em_finds_the_parameters_also_of_rows_with_missing_values():
    rows = MODEL.sample_codes(4000, seed=3)
    rows[::4, 0] = np.nan
    rows[1::4, 1] = np.nan
    found = fit_product(rows, None, 2, LEVELS, seed=0).mixture
    order = np.argsort(found.means[:, 0])
    np.testing.assert_allclose(found.weights[order], MODEL.weights, atol=0.05)
    np.testing.assert_allclose(found.means[order], MODEL.means, atol=0.2)
    np.testing.assert_allclose(found.probabilities[order], MODEL.probabilities, atol=0.06)
    twice = fit_product(np.repeat(rows, 2, axis=0), None, 2, LEVELS, seed=0)
    weighted = fit_product(rows, np.full(len(rows), 2.0), 2, LEVELS, seed=0)
    assert twice.log_likelihood == pytest.approx(weighted.log_likelihood, abs=1e-5)
