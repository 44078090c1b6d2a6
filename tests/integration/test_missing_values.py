"""Missing values from the design of a map to the model: ``nan_policy="available"``."""

from __future__ import annotations

import warnings
from functools import cache

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr

import dask_sketch as ds
from dask_sketch.diagnostics.missingness import compare_incomplete
from dask_sketch.distributions import (
    compare,
    compare_columns,
    compare_rows,
    mean_embedding,
    mean_map_kernel,
    witness,
)
from dask_sketch.distributions.testing.units import units_of
from dask_sketch.errors import ArtifactError, DecodeError, InputError
from dask_sketch.models import random_mixture
from dask_sketch.sketching.open import sketch_from_dataset

D, K, N = 6, 3, 20_000
TRUTH = random_mixture(K, D, seed=4)
X = TRUTH.sample(N, seed=5)


def with_missing(kind, fraction=0.3, n=N):
    rng = np.random.default_rng(6)
    if kind == "independent":
        missing = rng.random((n, D)) < fraction
    else:  # half of the features vanish together
        missing = np.repeat(rng.random((n, 2)) < fraction, D // 2, axis=1)
    return np.where(missing, np.nan, X[:n])


Y = with_missing("independent")
DAY = np.arange(N) % 20


# Nothing is computed while tests are collected, which each worker does.
@cache
def feature_map():
    return ds.design(Y, n_components=K, nan_policy="available")


@cache
def days():
    """Sketches of all days."""
    return ds.sketch(Y, feature_map(), groups=DAY, nan_policy="available")


def lost(model):
    return TRUTH.score(X) - model.score(X)


def test_a_map_is_designed_for_rows_with_missing_values():
    whole = ds.design(X, n_components=K)
    np.testing.assert_allclose(feature_map().center, whole.center, atol=0.1)
    np.testing.assert_allclose(feature_map().mean_variances, whole.mean_variances, rtol=0.2)
    again = ds.design(da.from_array(Y, chunks=(5000, D)), n_components=K, nan_policy="available")
    assert again.n_frequencies == feature_map().n_frequencies
    y = np.full((100, D), np.nan)
    with pytest.raises(InputError, match="usable rows"):
        ds.design(y, n_components=K, nan_policy="available")


def test_a_map_of_few_features_has_frequencies_of_fewer():
    small = ds.design(Y[:, :3], n_frequencies=40, n_components=1, nan_policy="available")
    assert small.distribution == "sparse-sums"
    assert ds.sketch(Y[:, :3], small, nan_policy="available").missing is not None


def test_lazy_sketches_have_the_same_bits(tmp_path):
    expected = ds.sketch(Y, feature_map(), nan_policy="available")
    for chunks in (999, 7000):
        lazy = ds.sketch(
            da.from_array(Y, chunks=(chunks, D)), feature_map(), nan_policy="available"
        )
        assert lazy.compute(scheduler="sync").identical(expected)
    frame = pd.DataFrame(Y).convert_dtypes()  # missing values of pandas
    named = ds.sketch(frame.astype("Float64"), feature_map(), nan_policy="available")
    assert named.same_sums(expected)
    # random rows are complete ones
    assert len(expected.sample) == (~np.isnan(Y).any(axis=1)).sum()
    assert not expected.holds_all_rows
    expected.to_zarr(tmp_path / "sketch.zarr")
    again = ds.open(tmp_path / "sketch.zarr")
    assert again.identical(expected)
    assert again.missing == expected.missing


def test_stored_counters_are_those_of_a_new_version(tmp_path):
    paths = tmp_path / "missing.zarr", tmp_path / "complete.zarr"
    ds.sketch(Y, feature_map(), nan_policy="available").to_zarr(paths[0])
    ds.sketch(X, feature_map()).to_zarr(paths[1])
    versions = [zarr.open_group(path, mode="r").attrs["schema_version"] for path in paths]
    assert versions == [3, 2]  # earlier software would divide by all rows


@pytest.mark.parametrize("how", ["more than all", "negative", "short"])
def test_counters_that_no_rows_have_are_refused(how):
    dataset = ds.sketch(Y, feature_map(), nan_policy="available").to_xarray()
    if how == "short":
        dataset = dataset.isel(pair=slice(3))
    else:
        high = dataset["missing_frequency_high"].copy()
        high[3] = 2**40 if how == "more than all" else -1
        dataset["missing_frequency_high"] = high
    with pytest.raises(ArtifactError, match=r"(?i)edited|missing_pair"):
        sketch_from_dataset(dataset)


@pytest.mark.parametrize("kind", ["independent", "together"])
@pytest.mark.parametrize("sample", [None, False])
def test_a_mixture_is_decoded_from_the_values_that_are_there(kind, sample):
    y = with_missing(kind)
    sketch = ds.sketch(y, feature_map(), nan_policy="available", sample=sample)
    found = ds.decode(sketch, K, refine="efficient")
    # parameters over twice the number of rows that observe a typical frequency, and a margin
    by_chance = (found.n_parameters / 2) / (N * sketch.observed.fractions.mean())
    assert lost(found) < 2.5 * by_chance
    if found.stderr is not None:
        order = np.argsort(TRUTH.means[:, 0]), np.argsort(found.means[:, 0])
        away = found.means[order[1]] - TRUTH.means[order[0]]
        assert np.sqrt(np.mean((away / found.stderr.means[order[1]]) ** 2)) < 1.7
    assert dict(ds.diagnose(found, sketch).findings).keys().isdisjoint({"misfit", "unfinished"})


@pytest.mark.slow
def test_a_few_complete_rows_do_not_decide():
    y = with_missing("independent", 0.6, 10_000)
    sketch = ds.sketch(y, feature_map(), nan_policy="available")
    assert 0 < len(sketch.sample) < 1000
    found = ds.decode(sketch, 2)
    alone = ds.decode(sketch.without_sample(), 2)
    np.testing.assert_array_equal(found.means, alone.means)


@pytest.mark.slow
def test_complete_rows_that_are_most_rows_decide_however_few():
    y = with_missing("independent", 0.05, 1000)
    sketch = ds.sketch(y, ds.design(y, n_components=2, nan_policy="available"),
                       nan_policy="available")  # fmt: skip
    assert 500 < len(sketch.sample) < 1000
    assert ds.decode(sketch, 2).decoding.method == "likelihood"
    assert ds.decode(sketch, 2).decoding.score is not None


def test_rows_that_are_kept_are_not_advised():
    y = np.exp(with_missing("independent", 0.6, 10_000))
    feature_map = ds.design(y, n_components=2, nan_policy="available")
    sketch = ds.sketch(y, feature_map, nan_policy="available")
    model, advice = _decoded(sketch, "full")
    advice += ds.diagnose(model, sketch).findings.values()
    assert "more rows are complete" in " ".join(advice)
    assert "sample=True" not in " ".join(advice)
    _, advice = _decoded(sketch, "diag")  # of whose rows few are complete
    assert any("far rows" in one and "many complete rows may be kept" in one for one in advice)


def _decoded(sketch, covariance_type):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ds.decode(sketch, 2, covariance_type=covariance_type)
    return model, [str(warning.message) for warning in caught]


def test_the_statistic_of_a_refined_fit_is_that_of_its_freedom():
    big = ds.FeatureMap(
        D,
        700,
        covariances=feature_map().mean_variances,
        distribution="sparse-sums",
        center=feature_map().center,
    )
    sketch = ds.sketch(with_missing("together"), big, nan_policy="available", sample=False)
    found = ds.decode(sketch, K, covariance_type="full")
    record = found.decoding
    spread = np.sqrt(2.0 * record.freedom)
    assert abs(record.overidentification - record.freedom) < 5.0 * spread


def test_a_feature_that_is_never_observed_is_named():
    y = Y.copy()
    y[:, 2] = np.nan
    sketch = ds.sketch(y, feature_map(), nan_policy="available", sample=False)
    with pytest.raises(DecodeError, match="feature 2"):
        ds.decode(sketch, K)


def test_an_estimator_takes_missing_values():
    found = ds.SketchGaussianMixture(K, nan_policy="available").fit(Y)
    assert lost(found.model_) < 0.02
    labels = found.predict(Y)
    assert (labels == found.predict(X)).mean() > 0.75
    assert np.isfinite(found.score(Y))
    with pytest.raises(ValueError, match="NaN"):
        found.set_params(nan_policy="omit").predict(Y)


def test_what_is_not_supported_says_so():
    model = ds.decode(ds.sketch(Y, feature_map(), nan_policy="available", sample=False), K)
    sketch = ds.sketch(Y, feature_map(), nan_policy="available")
    for refused in (
        lambda: ds.polish(model, Y, 1, nan_policy="available"),
        lambda: mean_embedding(days()),
        lambda: mean_map_kernel(days()),
        lambda: mean_map_kernel(sketch, model),
        lambda: witness(sketch, model, Y[:2]),
        lambda: compare_columns(days(), days(), days()),
        lambda: compare_rows(sketch, sketch),
        lambda: ds.privatise(ds.sketch(Y, feature_map(), nan_policy="available"), 1.0),
    ):
        with pytest.raises(InputError, match="omit"):
            refused()


def test_lazy_groups_have_the_bits_of_groups_in_memory():
    lazy = ds.sketch(
        da.from_array(Y, chunks=(3000, D)),
        feature_map(),
        groups=DAY,
        nan_policy="available",
        split_every=2,
    )
    assert lazy.compute().identical(days())


@pytest.mark.slow
def test_models_of_groups_are_those_of_their_sketches():
    some = days().select([3, 4])
    for label, model in ds.decode(some, 1).items():
        np.testing.assert_array_equal(model.means, ds.decode(some[label], 1).means)


def test_discrepancies_of_groups_are_those_of_their_sketches():
    some = days().select([3, 4, 5])
    expected = [[ds.mmd(a, b, squared=True) for _, b in some.items()] for _, a in some.items()]
    found = ds.mmd(some, squared=True).values
    away = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(found[away], np.array(expected)[away], rtol=1e-9, atol=1e-12)


def test_groups_that_miss_more_values_are_no_other_distribution():
    rng, more = np.random.default_rng(8), Y.copy()
    more[(rng.random(Y.shape) < 0.3) & (DAY % 2 == 1)[:, None]] = np.nan
    group = ds.sketch(more, feature_map(), groups=DAY, nan_policy="available")
    odd = group.labels % 2 == 1
    assert not compare(group.select(odd), group.select(~odd), level=0.01).is_different
    masses = units_of(group.select(odd), group.select(~odd)).masses  # less where more is missing
    np.testing.assert_allclose(masses[0], group[1].observed.frequencies.mean())
    assert masses[:10].max() < masses[10:].min()
    moved = ds.sketch(more + 0.2 * X.std(axis=0), feature_map(), groups=DAY, nan_policy="available")
    assert compare(group.select(odd), moved.select(~odd), level=0.01).is_different
    rare = Y.copy()
    rare[DAY == 3, :2] = np.nan
    group = ds.sketch(rare, feature_map(), groups=DAY, nan_policy="available")
    with pytest.raises(InputError, match="=3 .*merge_by"):
        compare(group.select(odd), group.select(~odd))


def test_values_that_are_missing_completely_at_random_are_no_finding():
    sketch = ds.sketch(Y, feature_map(), nan_policy="available", sample=False)
    found = ds.diagnose(TRUTH, sketch)
    complete = ~np.isnan(Y).any(axis=1)
    assert found.missingness.complete == pytest.approx(complete.mean(), abs=1e-3)
    assert "missing values" not in found.findings
    others = np.nanmean(Y[~complete], axis=0), np.nanstd(Y[~complete], axis=0)
    shifts = (Y[complete].mean(axis=0) - others[0]) / np.nanstd(Y, axis=0)
    np.testing.assert_allclose(found.missingness.shifts, shifts, atol=1e-6)
    np.testing.assert_allclose(
        found.missingness.ratios, Y[complete].std(axis=0) / others[1], rtol=1e-6
    )
    assert ds.diagnose(TRUTH, ds.sketch(X, feature_map())).missingness is None


def test_scores_of_differences_are_in_standard_errors():
    rng, scores = np.random.default_rng(1), []
    for seed in range(30):
        y = TRUTH.sample(4000, seed=seed)
        y[rng.random(y.shape) < 0.1] = np.nan
        sketch = ds.partial_sketch(y, feature_map(), nan_policy="available")
        found = compare_incomplete(TRUTH, sketch)
        scores += [*found.shift_scores, *found.ratio_scores]
    assert np.mean(np.square(scores)) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("cause", ["another feature", "its spread"])
def test_values_that_are_missing_for_a_reason_are_a_finding(cause):
    y = X.copy()
    away = y[:, 0] - y[:, 0].mean()
    reason = away > 0 if cause == "another feature" else np.abs(away) > away.std()
    y[reason & (np.random.default_rng(0).random(N) < 0.5), 3] = np.nan
    sketch = ds.sketch(y, feature_map(), nan_policy="available", sample=False)
    found = ds.diagnose(TRUTH, sketch)
    assert "feature 0" in found.findings["missing values"]
    assert found.as_dict()["missingness"]["excess"] > 20
    assert "missing" in found._repr_html_()


def test_two_features_with_missing_values_are_fitted():
    x = np.random.default_rng(0).normal([3.0, -5.0], [1.0, 2.0], size=(2000, 2))
    holes = x.copy()
    holes[::5, 0] = np.nan
    model = ds.SketchGaussianMixture(1, nan_policy="available").fit(holes)
    np.testing.assert_allclose(model.means_[0], [3.0, -5.0], atol=0.2)
    np.testing.assert_allclose(np.sqrt(model.covariances_[0]), [1.0, 2.0], rtol=0.1)
