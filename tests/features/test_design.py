from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.features.design import (
    default_n_frequencies,
    default_n_pilot,
    design_from_pilot,
    require_design_arguments,
    whitening_matrix,
)
from dask_sketch.features.pilot_fit import rough_mixture
from dask_sketch.models import random_mixture

GOOD = {
    "n_frequencies": 10,
    "n_components": None,
    "n_columns": None,
    "n_pilot": 100,
    "seed": 0,
    "task": "mixture",
    "whitening": None,
}


def test_default_number_of_frequencies():
    assert default_n_frequencies(2, 3) == 75
    assert default_n_frequencies(12, 64) == 8000
    assert default_n_frequencies(12, 64, "clustering") == 4160


@pytest.mark.parametrize(
    ("d", "k", "kind", "each"),
    [
        (8, 5, "full", 1 + 8 + 36),
        (64, 10, "low-rank:3", 1 + 64 + 64 + 64 * 3 - 3),
        (8, 5, "tied", 1 + 2 * 8),  # the search begins at variances, which are more
        (30, 2, "tied", 1 + 30 + 465 / 2),
        (8, 5, "spherical", 1 + 2 * 8),
        (8, 5, "diag", 1 + 2 * 8),
        (64, 10, "full", 1 + 2 * 64),  # too many to be fitted to a sketch: rows determine them
        (64, 10, "tied", 1 + 2 * 64),
    ],
)
def test_default_number_of_frequencies_covers_matrices(d, k, kind, each):
    assert default_n_frequencies(d, k, covariance_type=kind) == 5 * each * k


def test_few_frequencies_for_matrices_are_warned_of(rng):
    pilot = rng.normal(size=(500, 4))
    assert design_from_pilot(pilot, n_components=2, covariance_type="full").n_frequencies == 150
    assert design_from_pilot(pilot, 91, 2, covariance_type="full").n_frequencies == 91
    with pytest.warns(UserWarning, match=r"n_frequencies=80.*covariance_type='full'.*150"):
        design_from_pilot(pilot, 80, 2, covariance_type="full")
    with pytest.raises(InputError, match="low-rank:4"):
        design_from_pilot(pilot, n_components=2, covariance_type="low-rank:4")


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_whitened_samples_have_unit_variance(kind, rng):
    x = rng.normal(size=(2000, 3)) @ [[1.0, 0.0, 0.0], [0.5, 10.0, 0.0], [0.0, 3.0, 0.1]]
    matrix = whitening_matrix(x, kind)
    covariance = np.cov((x @ matrix.T).T)
    np.testing.assert_allclose(covariance.diagonal(), 1.0, rtol=1e-3)
    if kind == "full":
        np.testing.assert_allclose(covariance, np.eye(3), atol=1e-8)


def test_samples_that_cannot_be_whitened_are_refused(rng):
    x = rng.normal(size=(50, 2))
    with pytest.raises(InputError, match=r"features \[1\]"):
        whitening_matrix(x * [1.0, 0.0], "diagonal")
    with pytest.raises(InputError, match=r"features \['b'\]"):
        whitening_matrix(x * [1.0, 0.0], "diagonal", ("a", "b"))
    with pytest.raises(InputError, match="dependent"):
        whitening_matrix(np.column_stack([x, x.sum(axis=1)]), "full")


@pytest.mark.parametrize(
    "change",
    [
        {"n_frequencies": 0},
        {"n_components": -1},
        {"n_columns": 3},
        {"n_pilot": 1},
        {"seed": -1},
        {"task": "regression"},
        {"whitening": "half"},
        {"covariance_type": "banded"},
    ],
)
def test_bad_arguments_are_named(change):
    ((name, value),) = change.items()
    with pytest.raises(InputError, match=f"{name}={value!r}"):
        require_design_arguments(**(GOOD | change))


def test_only_mixtures_have_covariances():
    with pytest.raises(InputError, match=r"covariance_type='full'.*task='clustering'"):
        require_design_arguments(**(GOOD | {"task": "clustering", "covariance_type": "full"}))


@pytest.mark.parametrize(("task", "per_feature"), [("mixture", 2), ("clustering", 1)])
def test_a_pilot_has_forty_rows_for_each_parameter(task, per_feature):
    n_parameters = (per_feature * 12 + 1) * 20
    assert default_n_pilot(12, 20, task) == 40 * n_parameters
    assert default_n_pilot(12, 1, task) == default_n_pilot(None) == 5000
    assert default_n_pilot(12, 1000, task) == 32_000
    assert default_n_pilot(1000, 10, task) == 5000  # 32 MB hold 4,000 rows


def test_variances_are_those_of_the_components():
    truth = random_mixture(5, 4, seed=0)
    found = design_from_pilot(truth.sample(5000, seed=1), n_components=5)
    mean = truth.weights @ truth.covariances
    np.testing.assert_allclose(found.mean_variances, mean, rtol=0.2)
    assert found.covariances.tolist() == [float(f"{v:.4g}") for v in found.covariances]


@pytest.mark.parametrize("seed", range(3))
def test_few_rows_far_out_do_not_decide_the_scale(seed):
    rng = np.random.default_rng(seed)
    wide = np.where(rng.random((5000, 1)) < 0.001, 1e4, 1.0)
    found = design_from_pilot(wide * rng.normal(size=(5000, 3)), n_components=3, seed=seed)
    np.testing.assert_allclose(found.mean_variances, 1.0, rtol=0.2)


@pytest.mark.parametrize("n_components", [64, 150])
@pytest.mark.slow
def test_many_components_of_small_weight_decide_the_scale(n_components):
    rng = np.random.default_rng(0)
    rows = 100.0 * rng.normal(size=(n_components, 3))[rng.integers(n_components, size=6000)]
    rows += rng.normal(size=rows.shape)
    record = design_from_pilot(rows, n_components=n_components)
    rough = rough_mixture(rows, n_components, 0)
    expected = rough.weights @ rough.variances
    np.testing.assert_allclose(record.mean_variances, expected, rtol=1e-3)


@pytest.mark.parametrize("n_frequencies", [1, 2])
def test_far_too_few_frequencies_are_refused(n_frequencies, rng):
    with pytest.raises(InputError, match=f"n_frequencies={n_frequencies}"):
        design_from_pilot(rng.normal(size=(50, 4)), n_frequencies)


def test_unlike_units_are_warned_of_where_features_vary(rng):
    x = rng.normal(size=(2000, 3)) * [1.0, 500.0, 0.0]
    with pytest.warns(UserWarning, match=re.escape(f"{x[:, 1].std():.3g}")):
        design_from_pilot(x, 100, 3, task="clustering")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        design_from_pilot(x / [1.0, 500.0, 1.0], 100, 3, task="clustering")


def test_few_frequencies_are_warned_of(rng):
    with pytest.warns(UserWarning, match="n_frequencies=20 .* 90"):
        design_from_pilot(rng.normal(size=(50, 4)), 20, 2)


def test_messages_have_the_names_of_the_features():
    x = np.random.default_rng(0).normal(size=(500, 3)) * [1.0, 0.0, 1.0]
    with pytest.warns(UserWarning, match=r"features \['income'\]"):
        design_from_pilot(x, n_components=1, feature_names=("age", "income", "height"))
    with pytest.warns(UserWarning, match=r"features \[1\]"):
        design_from_pilot(x, n_components=1)
    with pytest.raises(InputError, match="in feature 'height'"):
        design_from_pilot(
            x * [1.0, 0.0, 1e-200], n_components=1, feature_names=("age", "income", "height")
        )
