from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from dask_sketch import FeatureMap, Sketch, design, partial_sketch
from dask_sketch.decoders.calibrated_sample import calibrate, calibrate_rows
from dask_sketch.errors import InputError


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.gamma(2.0, size=(40_000, 3))
    rows[:, 2] += np.sin(3.0 * rows[:, 0])
    return rows


@pytest.fixture(scope="module")
def feature_map(x: np.ndarray) -> FeatureMap:
    return FeatureMap(3, 300, scale=0.7, center=x[:1000].mean(axis=0), seed=1)


@pytest.fixture(scope="module")
def sketch(x: np.ndarray, feature_map: FeatureMap) -> Sketch:
    return partial_sketch(x, feature_map, sample=2000)


def test_weights_agree_with_the_sketch(sketch: Sketch, x: np.ndarray) -> None:
    sample = calibrate(sketch)
    assert (sample.weights >= 0).all()
    assert sample.weights.sum() == pytest.approx(1.0, abs=1e-12)
    mean = sample.weights @ sample.rows
    base = sample.base_weights @ sample.rows
    assert np.abs(mean - sketch.mean).max() < 0.02 * np.abs(base - sketch.mean).max()
    variance = sample.weights @ (sample.rows - mean) ** 2
    np.testing.assert_allclose(variance, sketch.variance, rtol=2e-3)
    assert sample.discrepancy_after < 0.3 * sample.discrepancy_before
    assert 0.5 * len(sample.rows) < sample.effective_count <= len(sample.rows)


def test_the_features_are_those_of_the_sketch(sketch: Sketch, feature_map: FeatureMap) -> None:
    sample = calibrate(sketch)
    weights = np.round(sample.weights * 2**20)
    kept = weights > 0
    again = partial_sketch(sample.rows[kept], feature_map, weights[kept])
    base = partial_sketch(sample.rows, feature_map, np.round(sample.base_weights * 2**20))
    before, after = (np.linalg.norm(each.z - sketch.z) for each in (base, again))
    assert after < 0.4 * before


def test_all_frequencies_that_were_not_used_agree_better(x: np.ndarray) -> None:
    errors = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        feature_map = FeatureMap(3, 200, scale=0.7, center=x[:1000].mean(axis=0), seed=seed)
        rows = x[rng.choice(len(x), 1500, replace=False)]
        sample = calibrate_rows(rows, np.ones(1500), partial_sketch(x, feature_map))
        values = np.exp(-(rows**2).sum(axis=1) / 4.0)  # another function of the rows
        truth = np.exp(-(x**2).sum(axis=1) / 4.0).mean()
        errors.append((values.mean() - truth, sample.weights @ values - truth))
    before, after = np.sqrt(np.mean(np.square(errors), axis=0))
    assert after < 0.3 * before


def test_results_repeat(sketch: Sketch) -> None:
    first, second = calibrate(sketch, seed=3), calibrate(sketch, seed=3)
    np.testing.assert_array_equal(first.weights, second.weights)


def test_few_rows_keep_their_weights(x: np.ndarray, feature_map: FeatureMap) -> None:
    sample = calibrate_rows(x[:3], [1.0, 2.0, 1.0], partial_sketch(x, feature_map))
    assert sample.weights.tolist() == [0.25, 0.5, 0.25]
    assert sample.ridge == np.inf


def test_complete_sample_keeps_its_weights(x: np.ndarray, feature_map: FeatureMap) -> None:
    sample = calibrate(partial_sketch(x[:500], feature_map, sample=500))
    np.testing.assert_allclose(sample.weights, 1 / 500)


def test_rows_of_another_distribution_are_not_made_worse(feature_map: FeatureMap) -> None:
    # no weights of these rows agree with the sketch
    rng = np.random.default_rng(5)
    sketch = partial_sketch(rng.normal(size=(5000, 3)), feature_map)
    sample = calibrate_rows(rng.normal(20.0, 1.0, (400, 3)), np.ones(400), sketch)
    assert (sample.weights >= 0).all()
    assert np.isfinite(sample.weights).all()
    assert sample.discrepancy_after <= sample.discrepancy_before


def test_heavy_tails_and_constant_features() -> None:
    rng = np.random.default_rng(6)
    x = np.column_stack([rng.standard_t(1.5, 30_000), np.full(30_000, 3.0)])
    feature_map = FeatureMap(2, 100, scale=1.0, seed=2)
    sketch = partial_sketch(x, feature_map, sample=1000)
    sample = calibrate(sketch)
    assert np.isfinite(sample.weights).all()
    assert sample.discrepancy_after < sample.discrepancy_before
    assert sample.effective_count > 100


def test_rows_that_are_nearly_equal() -> None:
    """Rounding leaves the equations of all frequencies singular, not those of the first ones."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40_000, 2))
    x[20_000:20_800] = 30.0 + 0.05 * rng.normal(size=(800, 2))
    feature_map = design(da.from_array(x, chunks=(400, 2)), n_components=3)
    found = partial_sketch(x, feature_map, sample=20_000)
    sample = calibrate(found)
    assert sample.discrepancy_after < sample.discrepancy_before
    np.testing.assert_allclose(sample.weights @ sample.rows, x.mean(axis=0), atol=0.05)


def test_summary_has_the_diagnostics(sketch: Sketch) -> None:
    sample = calibrate(sketch)
    values = sample.as_dict()
    assert values["n_rows"] == 2000
    assert values["effective_count"] == sample.effective_count
    assert "effective_count" in repr(sample)


def test_sketch_without_sample_is_refused(x: np.ndarray, feature_map: FeatureMap) -> None:
    with pytest.raises(InputError, match="count=40000"):
        calibrate(partial_sketch(x, feature_map))


@pytest.mark.parametrize(
    ("rows", "weights", "match"),
    [
        (np.zeros((4, 2)), np.ones(4), r"rows.*\(4, 2\)"),
        (np.zeros((4, 3)), np.ones(3), r"weights.*\(3,\)"),
        (np.zeros((4, 3)), -np.ones(4), "weights.*-1"),
        (np.full((4, 3), np.nan), np.ones(4), "rows"),
    ],
)
def test_invalid_arguments(
    rows: np.ndarray, weights: np.ndarray, match: str, sketch: Sketch
) -> None:
    with pytest.raises(InputError, match=match):
        calibrate_rows(rows, weights, sketch)


def test_complete_rows_that_do_not_vary_are_warned_of(rng):
    """Values are missing where they vary: the equations of the weights are singular."""
    x = rng.normal(size=(4000, 6))
    complete = np.arange(4000) % 2 == 0
    x[complete] = x[complete, :1]
    x[~complete, np.arange(2000) % 6] = np.nan
    found = partial_sketch(x, FeatureMap(6, 130, scale=1.0, distribution="sparse-sums"),
                           nan_policy="available", sample=5000)  # fmt: skip
    with pytest.warns(UserWarning, match=r"2,000 random rows .*'cl-ompr'"):
        calibrated = calibrate(found)
    assert calibrated.weights.sum() == pytest.approx(1.0)
