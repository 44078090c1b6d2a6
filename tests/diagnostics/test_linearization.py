"""Derivatives, scores, and what follows from them against what repeated draws show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dask_sketch import FeatureMap, decode, design, partial_sketch, sketch
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.diagnostics.linearization import (
    LogVarianceAtoms,
    count_parameters,
    linearise,
    overidentify,
    variance_groups,
)
from dask_sketch.errors import InputError
from dask_sketch.models import Centroids, Decoding, GaussianMixture, random_mixture, symmetric_kl

DECODING = Decoding("cl-ompr", "gaussian", 0.0, 0.0, (), 0.0, 0, 1, 1, True, "")
MAPS: dict[str, dict[str, Any]] = {
    "isotropic": {"scale": 1.2},
    "clustering": {"scale": 1.2, "distribution": "clustering"},
    "whitened": {"scale": 1.0, "whitening": [[2.0, 0.5], [0.0, 1.0]]},
}


def as_family(family: str) -> GaussianMixture:
    mixture = random_mixture(3, 2, seed=1, weights="dirichlet")
    variances = mixture.covariances
    if family == "isotropic":
        variances = np.repeat(variances[:, :1], 2, axis=1)
    if family == "known":  # one covariance for all components
        variances = np.repeat(variances[:1], 3, axis=0)
    decoding = replace(DECODING, model=family)
    return GaussianMixture(mixture.weights, mixture.means + 100.0, variances, decoding)


def moved(model: GaussianMixture, row: int, by: float) -> GaussianMixture:
    """The mixture with one parameter moved: weight, means or log variances of a component."""
    k, which = divmod(row, 1 + model.n_features + len(variance_groups(model)))
    weights, means, variances = (
        part.copy() for part in (model.weights, model.means, model.covariances)
    )
    if which == 0:
        weights[k] += by
        total = weights.sum()
        # a mixture must sum to one: the caller multiplies back
        return GaussianMixture(weights / total, means, variances, model.decoding)
    if which <= model.n_features:
        means[k, which - 1] += by
    else:
        group = variance_groups(model)[which - 1 - model.n_features] > 0
        variances[k, group] *= np.exp(by)
    return GaussianMixture(weights, means, variances, model.decoding)


@pytest.mark.parametrize("choices", MAPS)
@pytest.mark.parametrize("family", ["gaussian", "isotropic", "known"])
def test_derivatives_and_scores_are_those_of_finite_differences(choices: str, family: str) -> None:
    model = as_family(family)
    feature_map = FeatureMap(2, 60, dtype="float64", **MAPS[choices])
    x = model.sample(50, seed=3)
    sketch = partial_sketch(x, feature_map)
    atoms = LogVarianceAtoms(model, sketch)
    ((_, rows, _),) = atoms.blocks()
    scores = atoms.scores((x - atoms.shift) / atoms.scale)
    assert len(rows) == len(scores) == count_parameters(model) + 1

    weights = feature_map.feature_weights
    unit = (np.ones(60) if weights is None else weights) / np.sqrt(60)
    turn = np.exp(1j * sketch.mean @ feature_map.frequencies)
    step = 1e-5
    per = len(rows) // 3
    for row in range(len(rows)):
        unit_of_row = atoms.scale[row % per - 1] if 0 < row % per <= 2 else 1.0
        up, down = (moved(model, row, by * unit_of_row) for by in (step, -step))
        grow = step if row % per == 0 else 0.0
        psi = (1 + grow) * up.characteristic(feature_map.frequencies)
        psi -= (1 - grow) * down.characteristic(feature_map.frequencies)
        expected = unit * turn * psi / (2 * step)
        np.testing.assert_allclose(rows[row, :60] + 1j * rows[row, 60:], expected, atol=1e-8)
        logs = up.logpdf(x) - down.logpdf(x)  # weights summing to one
        np.testing.assert_allclose(scores[row], logs / (2 * step), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_expectations_are_what_repeated_draws_show() -> None:
    truth = random_mixture(3, 2, seed=5)
    feature_map = FeatureMap(2, 150, scale=1.0, dtype="float64")
    costs, log_variances, weights, divergences = [], [], [], []
    for seed in range(30):
        sketch = partial_sketch(truth.sample(20_000, seed=seed), feature_map)
        model = decode(sketch, 3, method="splitting")
        order = np.argmin(np.square(model.means[:, None] - truth.means).sum(axis=2), axis=0)
        assert sorted(order) == [0, 1, 2]
        costs.append(model.decoding.cost)  # type: ignore[union-attr]
        log_variances.append(np.log(model.covariances[order]))
        weights.append(model.weights[order])
        divergences.append(symmetric_kl(truth, model, 5000))
    found = linearise(truth, sketch)
    # 30 draws know a standard deviation to 13 %, 512 points to 3 %
    np.testing.assert_allclose(found.variance_errors, np.std(log_variances, axis=0), rtol=0.3)
    np.testing.assert_allclose(found.weight_errors, np.std(weights, axis=0), rtol=0.3)
    assert found.divergence == pytest.approx(np.mean(divergences), rel=0.25)
    assert found.attainable == 14 / 20_000 < found.divergence
    assert found.expected_cost == pytest.approx(np.mean(costs), rel=0.15)
    assert found.cost_deviation == pytest.approx(np.std(costs), rel=0.4)


def test_at_the_minimum_nothing_is_left_to_reduce() -> None:
    truth = random_mixture(3, 2, seed=5)
    sketch = partial_sketch(truth.sample(20_000, seed=1), FeatureMap(2, 150, scale=1.0))
    model = decode(sketch, 3, method="cl-ompr")
    assert model.decoding is not None
    assert linearise(model, sketch).reducible < 0.05 * model.decoding.noise_level
    off = GaussianMixture(model.weights, model.means + 0.05, model.covariances)
    assert linearise(off, sketch).reducible > model.decoding.noise_level


@pytest.mark.filterwarnings("ignore:the mixture leaves a cost")
def test_a_variance_at_its_floor_stays_there_but_is_not_known() -> None:
    thin = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[0.04], [1.0]])  # type: ignore[arg-type]
    sketch = partial_sketch(thin.sample(20_000, seed=1), FeatureMap(1, 60, scale=1.0))
    model = decode(sketch, 2, variance_floor=0.2)
    narrow = int(model.covariances[:, 0].argmin())
    assert model.covariances[narrow, 0] == pytest.approx(0.2)
    assert model.decoding is not None
    held = linearise(model, sketch)
    # not nothing, since the weights were made to sum to one after the fit
    assert held.reducible < 0.5 * model.decoding.cost
    assert held.variance_errors[narrow] > 0
    free = replace(model, decoding=replace(model.decoding, variance_floor=1e-6))
    assert linearise(free, sketch).reducible > 0.9 * model.decoding.cost


def test_components_without_weight_change_nothing() -> None:
    truth = random_mixture(2, 2, seed=0)
    sketch = partial_sketch(truth.sample(5000, seed=1), FeatureMap(2, 100, scale=1.0))
    more = GaussianMixture(
        [0.0, *truth.weights],
        [[9.0, 9.0], *truth.means],
        [[1.0, 1.0], *truth.covariances],
    )
    one, other = linearise(truth, sketch), linearise(more, sketch)
    assert np.isnan(other.weight_errors[0])
    assert np.isnan(other.variance_errors[0]).all()
    np.testing.assert_allclose(one.weight_errors, other.weight_errors[1:], rtol=0.3)
    assert one.attainable == other.attainable


def test_blocks_of_frequencies_are_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = random_mixture(3, 2, seed=5)
    sketch = partial_sketch(truth.sample(5000, seed=1), FeatureMap(2, 200, scale=1.0))
    whole = linearise(truth, sketch)
    monkeypatch.setattr(Objective, "block_size", 1)
    assert len(list(LogVarianceAtoms(truth, sketch).blocks())) == 2
    parts = linearise(truth, sketch)
    assert parts.expected_cost == pytest.approx(whole.expected_cost, rel=1e-6)
    np.testing.assert_allclose(parts.variance_errors, whole.variance_errors, rtol=1e-6)


def test_a_model_far_from_the_data_is_refused(rng: np.random.Generator) -> None:
    x = rng.normal(size=(100, 2))
    sketch = partial_sketch(x, FeatureMap(2, 50, scale=1.0, seed=0))
    model = GaussianMixture([1.0], [[-1e308, 1e308]], [[1.0, 1.0]])
    with pytest.raises(InputError, match=r"means.* 1e\+308"):
        linearise(model, sketch)


def test_parameters_are_counted() -> None:
    assert count_parameters(as_family("gaussian")) == 14
    assert count_parameters(as_family("isotropic")) == 11
    assert count_parameters(as_family("known")) == 8
    assert count_parameters(Centroids([0.5, 0.5], [[0.0, 1.0], [2.0, 3.0]])) == 5  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_test_of_few_rows_has_its_level():
    """One far row alone put the statistic up to 40 standard deviations above its mean."""
    excess = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = 4.0 * np.array([[0, 0], [1, 2]])[rng.integers(2, size=300)] + rng.normal(size=(300, 2))
        made = sketch(x, design(x, n_components=2, seed=seed))
        test = overidentify(decode(made, 2, refine="efficient"), made)
        excess.append(test.excess)
    assert np.mean(np.array(excess) > 4.0) <= 1 / 30
    assert np.mean(excess) == pytest.approx(0.0, abs=0.6)
