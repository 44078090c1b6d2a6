"""Private sketches: noise, removed values, merges, storage and decoding."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, DecodeError, InputError, LedgerError, MergeError
from dask_sketch.features.kernels.fixed_point import FRACTION, WEIGHT_FRACTION
from dask_sketch.models import random_mixture
from dask_sketch.sketching.artifact import stored_sketch
from dask_sketch.sketching.missing import equal_supports
from dask_sketch.sketching.privacy import calibrated
from dask_sketch.storage.artifact import write_dataset

BOUNDS = [[-12.0, -12.0], [12.0, 12.0]]


TRUTH = random_mixture(3, 2, seed=5)


MAP = ds.FeatureMap(2, 200, scale=1.0, seed=1)


@pytest.fixture(scope="module")
def sketch():
    return ds.partial_sketch(TRUTH.sample(20_000, seed=2), MAP)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_noise_that_is_added_has_the_variance_of_the_record(sketch, delta):
    n_seeds, m = 40, MAP.n_frequencies
    noise, weight_noise = [], []
    for seed in range(n_seeds):
        private = ds.privatise(sketch, 1.0, delta, bounds=BOUNDS, seed=seed)
        apart = (private.moment_quanta.integers() - sketch.moment_quanta.integers()).ravel()
        noise.append(apart.astype(float) / 2.0**FRACTION)
        weight_noise.append(private.total_weight - sketch.total_weight)
    record = private.privacy
    n = n_seeds * 2 * m
    kurtosis = 3.0 if delta else 6.0
    spread = np.sqrt((kurtosis - 1) / n)
    assert np.var(noise) / record.moment_deviation**2 == pytest.approx(1, abs=4 * spread)
    assert abs(np.mean(noise)) < 4 * record.moment_deviation / np.sqrt(n)
    spread = np.sqrt((kurtosis - 1) / n_seeds)
    assert np.var(weight_noise) / record.weight_deviation**2 == pytest.approx(1, abs=4 * spread)
    distribution = stats.norm if delta else stats.laplace
    scale = record.moment_deviation / (1 if delta else np.sqrt(2))
    assert stats.kstest(np.ravel(noise) / scale, distribution.cdf).pvalue > 1e-3


def test_the_record(sketch):
    private = ds.privatise(sketch, 0.5, bounds=BOUNDS, seed=0)
    record = private.privacy
    m = MAP.n_frequencies
    a = (m / np.sqrt(2)) ** (1 / 3)
    assert (record.mechanism, record.epsilon, record.delta) == ("laplace", 0.5, 0.0)
    assert record.sensitivity == pytest.approx(m * np.sqrt(2) + a, rel=1e-4)
    assert record.moment_deviation == pytest.approx(np.sqrt(2) * record.sensitivity / 0.5, rel=1e-6)
    assert record.weight_deviation == pytest.approx(record.moment_deviation / a, rel=1e-6)
    assert (record.parts, record.seeded, record.max_weight) == (1, True, 1.0)
    record = ds.privatise(sketch, 0.5, 1e-5, bounds=BOUNDS, group_size=3).privacy
    assert record.mechanism == "gaussian"
    assert record.max_weight == 3.0
    assert record.sensitivity == pytest.approx(3 * np.sqrt(m + np.sqrt(m / 2)), rel=1e-4)
    assert not record.seeded
    assert "mechanism=laplace, epsilon=0.5" in repr(private)
    assert "The feature map and the bounds are not private" in private._repr_html_()


def test_nothing_else_of_the_data_remains():
    x = TRUTH.sample(3000, seed=1)
    x[7] = [123.456, -654.321]
    x[9] = np.nan
    sketch = ds.partial_sketch(x, MAP, nan_policy="omit")
    private = ds.privatise(sketch, 1.0, bounds=BOUNDS)
    np.testing.assert_array_equal([private.minimum, private.maximum], BOUNDS)
    assert not private.first_quanta.any()
    assert not private.second_quanta.any()
    assert private.omitted == 0
    assert private.count == round(private.total_weight)
    assert private.squared_weight == private.total_weight
    assert private.tight_bounds is False
    assert not private.__dict__.keys() & {"moment_sum", "first_moment"}  # no view of the exact sums
    steps = private.moment_quanta.integers()
    sums, weight, *_ = calibrated(1.0, 0.0, MAP.n_frequencies, 1.0)
    assert not (steps % 2 ** (FRACTION - sums.digits)).any()  # on the grid of the noise
    assert not private.weight_quanta % 2 ** (WEIGHT_FRACTION - weight.digits)
    for name in ("mean", "variance"):
        with pytest.raises(InputError, match="privacy: "):
            getattr(private, name)
    text = json.dumps(private.to_xarray().to_dict(), default=str)
    for value in (*sketch.minimum, *sketch.maximum, *sketch.mean):
        assert str(value)[:8] not in text


def test_nothing_that_design_recorded_of_the_data_is_released():
    x = TRUTH.sample(500, seed=1)
    private = ds.privatise(ds.partial_sketch(x, ds.design(x, n_components=3)), 1.0)
    assert private.feature_map.pilot is None
    assert private.feature_map.scale_fit is None


@pytest.mark.parametrize("other", [None, MAP])
def test_what_is_no_sketch(other):
    with pytest.raises(InputError, match="sketch of type"):
        ds.privatise(other, 1.0)
    with pytest.raises(InputError, match="sketch of type"):
        ds.calibrate(other)


def test_bounds_without_bounds_are_those_of_the_map():
    fm = ds.FeatureMap(2, 20, covariances=[4.0, 9.0], center=[1.0, -1.0])
    private = ds.privatise(ds.partial_sketch(np.zeros((10, 2)), fm), 1.0)
    np.testing.assert_allclose(private.minimum, [1 - 16.0, -1 - 24.0])
    np.testing.assert_allclose(private.maximum, [1 + 16.0, -1 + 24.0])
    middle, variances = private.extent
    np.testing.assert_allclose(middle, fm.center)
    np.testing.assert_allclose(variances, [32.0**2 / 12, 48.0**2 / 12])


def test_seeds():
    x = TRUTH.sample(500, seed=1)
    a, b = ds.partial_sketch(x, MAP), ds.partial_sketch(x[1:], MAP)
    assert ds.privatise(a, 1.0, seed=1).identical(ds.privatise(a, 1.0, seed=1))
    assert not ds.privatise(a, 1.0, seed=1).same_sums(ds.privatise(a, 1.0, seed=2))
    assert not ds.privatise(a, 1.0).same_sums(ds.privatise(a, 1.0))
    # the noise of other data is other noise: it does not cancel
    apart = ds.privatise(a, 1.0, seed=1).moment_sum - ds.privatise(b, 1.0, seed=1).moment_sum
    assert np.abs(apart).max() > 10


def test_weights():
    x, w = TRUTH.sample(2000, seed=1), np.random.default_rng(0).uniform(0.2, 2.0, 2000)
    sketch = ds.partial_sketch(x, MAP, w)
    with pytest.raises(InputError, match="max_weight=None"):
        ds.privatise(sketch, 1.0)
    with pytest.raises(InputError, match=r"max_weight=0\.5"):
        ds.privatise(sketch, 1.0, max_weight=0.5)
    private = ds.privatise(sketch, 1.0, 1e-5, max_weight=2.0, group_size=2, bounds=BOUNDS)
    assert private.privacy.max_weight == 4.0
    assert private.count == pytest.approx(private.total_weight / 2.0, abs=1)
    assert private.squared_weight == pytest.approx(2.0 * private.total_weight)
    assert private.effective_count <= sketch.effective_count * 1.1


def test_few_samples_may_leave_nothing():
    sketch = ds.partial_sketch(TRUTH.sample(1, seed=1), MAP)
    totals = [ds.privatise(sketch, 0.01, seed=seed).total_weight for seed in range(20)]
    assert min(totals) == 0.0
    empty = next(ds.privatise(sketch, 0.01, seed=s) for s in range(20) if totals[s] == 0.0)
    with pytest.raises(DecodeError, match="empty"):
        ds.decode(empty, 1)
    assert ds.privatise(ds.Sketch.empty(MAP), 1.0).privacy is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": float("nan")}, "epsilon=nan"),
        ({"epsilon": "1"}, "epsilon='1'"),
        ({"epsilon": 1e6}, "epsilon=1000000.0"),
        ({"epsilon": True}, "epsilon=True"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": -0.1}, "delta=-0.1"),
        ({"delta": 0.5}, "delta=0.5.* 0"),
        ({"delta": 1 / 20_000}, "delta=5e-05.* 1 of 20,000 .* 5e-06"),
        ({"delta": 1e-300}, "delta=1e-300 is too small"),
        ({"group_size": 0}, "group_size=0"),
        ({"group_size": 1.5}, "group_size=1.5"),
        ({"max_weight": 1e-9}, "max_weight=1e-09"),
        ({"max_weight": float("inf")}, "max_weight=inf"),
        ({"max_weight": "1"}, "max_weight='1'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": True}, "seed=True"),
        ({"bounds": [[0.0], [1.0]]}, "bounds="),
        ({"bounds": [[0.0, 0.0], [0.0, 1.0]]}, "bounds="),
        ({"bounds": [[0.0, 0.0], [np.inf, 1.0]]}, "bounds="),
        ({"bounds": 3.0}, "bounds="),
        ({"bounds": "data"}, "bounds="),
    ],
)
def test_arguments(arguments, message, sketch):
    with pytest.raises(InputError, match=message):
        ds.privatise(sketch, **({"epsilon": 1.0} | arguments))


def test_merging_is_counted(sketch):
    parts = [
        ds.privatise(
            ds.partial_sketch(TRUTH.sample(5000, seed=seed), MAP), eps, delta, bounds=BOUNDS
        )
        for seed, (eps, delta) in enumerate([(1.0, 0.0), (0.5, 1e-6), (2.0, 1e-5)])
    ]
    whole = ds.merge(parts)
    record = whole.privacy
    assert record == sum(parts).privacy
    assert record.mechanism == "gaussian and laplace"
    assert (record.parts, record.epsilon, record.delta) == (3, 2.0, 1e-5)
    assert (record.epsilon_total, record.delta_total) == (3.5, pytest.approx(1.1e-5))
    squares = [part.privacy.moment_deviation**2 for part in parts]
    assert record.moment_deviation == pytest.approx(np.sqrt(sum(squares)))
    assert whole.total_weight == pytest.approx(15_000, abs=1000)
    assert "parts=3" in repr(whole)
    assert "epsilon is 3.5" in whole._repr_html_()
    assert (whole + ds.Sketch.empty(MAP)).identical(whole)


def test_what_private_sketches_do_not_do(sketch):
    private = ds.privatise(sketch, 1.0, bounds=BOUNDS)
    with pytest.raises(MergeError, match="privacy: "):
        _ = private + sketch
    for difference in (
        lambda: private - private,
        lambda: private - sketch,
        lambda: sketch - private,
    ):
        with pytest.raises(MergeError, match="cannot subtract a private sketch"):
            difference()
    with pytest.raises(MergeError, match="cannot scale a private sketch"):
        private.scale(2.0)
    with pytest.raises(InputError, match="private already"):
        ds.privatise(private, 1.0)


def test_a_ledger_takes_none(sketch):
    from dask_sketch.jobs.ledger.sketch_arrays import stack

    with pytest.raises(LedgerError, match="private sketch"):
        stack([ds.privatise(sketch, 1.0)], MAP, with_rows=False)


def test_round_trip(sketch, tmp_path):
    private = ds.privatise(sketch, 0.3, 1e-7, bounds=BOUNDS)
    private.to_zarr(tmp_path / "p.zarr")
    again = ds.open(tmp_path / "p.zarr")
    assert again.identical(private)
    assert again.privacy == private.privacy
    sketch.to_zarr(tmp_path / "s.zarr")
    assert ds.open(tmp_path / "s.zarr").privacy is None


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": -1.0}, {"epsilon": "1"}, {"mechanism": 3}, {"parts": 0}, {"surprise": 1},
        {"moment_deviation": float("inf")}, {"seeded": "no"}, {"parts": 10**400},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.few_cases(3)
def test_edited_records(changes, sketch, tmp_path):
    dataset = stored_sketch(ds.privatise(sketch, 0.3, bounds=BOUNDS))
    record = json.loads(dataset.attrs["privacy"]) | changes
    dataset = dataset.assign_attrs(privacy=json.dumps(record))
    write_dataset(dataset, tmp_path / "p.zarr", "dask-sketch/sketch", 2)
    with pytest.raises(ArtifactError, match=r"p\.zarr"):
        ds.open(tmp_path / "p.zarr")


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 0.0), (0.2, 1e-6), (5.0, 1e-6)])
def test_the_noise_level_holds_the_noise(epsilon, delta):
    expected = TRUTH.characteristic(MAP.frequencies)
    found, stated = [], []
    for seed in range(40):
        x = TRUTH.sample(2000, seed=seed)
        private = ds.privatise(ds.partial_sketch(x, MAP), epsilon, delta, bounds=BOUNDS, seed=seed)
        found.append(np.mean(np.abs(private.characteristic - expected) ** 2))
        stated.append(private.noise_level)
    # dividing by a noisy weight, and few samples: to first order
    assert np.median(found) == pytest.approx(np.median(stated), rel=0.25)
    assert np.median(stated) > 1e-4


@pytest.mark.slow
def test_decoding(sketch):
    heldout = TRUTH.sample(20_000, seed=9)
    best = TRUTH.score(heldout)
    private = ds.privatise(sketch, 1.0, 1e-6, bounds=BOUNDS, seed=3)
    for refine in (None, "efficient"):
        model = ds.decode(private, 3, refine=refine)
        assert best - model.score(heldout) < 0.02
        assert 0.5 < model.decoding.cost / model.decoding.noise_level < 1.5
    fit = ds.diagnose(model, private)
    assert 0.5 < fit.cost / fit.noise_level < 1.5
    assert fit.noise_level == pytest.approx(model.decoding.noise_level, rel=0.1)
    other = ds.privatise(
        ds.partial_sketch(TRUTH.sample(20_000, seed=4), MAP), 1.0, 1e-6, bounds=BOUNDS, seed=4
    )
    apart = ds.diagnose(TRUTH, private, other).heldout
    assert abs(apart.squared) < 4 * apart.deviation
    assert 0.3 < apart.deviation / (apart.noise_level / np.sqrt(MAP.n_frequencies)) < 10


@pytest.mark.slow
def test_bounds_at_decoding(sketch):
    private = ds.privatise(sketch, 1.0, 1e-6, seed=3)
    heldout = TRUTH.sample(5000, seed=9)
    narrow = [[-6.0, -6.0], [6.0, 6.0]]
    for bounds in (None, narrow, "data"):
        model = ds.decode(private, 3, bounds=bounds)
        assert TRUTH.score(heldout) - model.score(heldout) < 0.05
    with pytest.warns(UserWarning, match="of the private sketch"):  # a component lies outside
        model = ds.decode(private, 3, bounds=[[0.0, -6.0], [6.0, 6.0]])
    assert (model.means[:, 0] >= 0).all()
    with pytest.warns(UserWarning, match="of the private sketch"):
        ds.decode(private, 3, "density", bounds=[[0.0, -6.0], [6.0, 6.0]])
    for method in ("density", "sketch-shift"):
        found = ds.decode(private, 3, method, bounds=narrow)
        apart = np.linalg.norm(found.centers[:, None] - TRUTH.means, axis=2).min(axis=0)
        assert apart.max() < 1.5


def test_how_many_components_and_a_warm_start(sketch):
    private = ds.privatise(sketch, 1.0, 1e-6, bounds=BOUNDS, seed=3)
    model = ds.decode(private)
    assert model.n_components == 3
    again = ds.decode(ds.privatise(sketch, 1.0, 1e-6, bounds=BOUNDS, seed=4), start=model)
    assert np.abs(np.sort(again.means, axis=0) - np.sort(model.means, axis=0)).max() < 0.1


def test_variance_of_the_noise():
    plain, squares, stated = ds.partial_sketch(TRUTH.sample(3000, seed=0), MAP), [], []
    for seed in range(30):
        private = ds.privatise(plain, 0.5, 1e-6, bounds=BOUNDS, seed=seed)
        squares.append(np.mean(np.abs(private.characteristic - plain.characteristic) ** 2) / 2)
        stated.append(private.private_variance)
    assert np.mean(squares) == pytest.approx(np.mean(stated), rel=0.15)


@pytest.mark.slow
def test_standard_errors_know_of_the_noise():
    n, errors = 20_000, []
    truth = TRUTH.means[np.argsort(-TRUTH.weights)]
    for seed in range(14):
        x = TRUTH.sample(n, seed=seed)
        private = ds.privatise(ds.partial_sketch(x, MAP), 0.5, 1e-6, bounds=BOUNDS, seed=seed)
        assert private.private_variance * n > 0.3  # at least as much as sampling
        model = ds.decode(private, refine="efficient", start=TRUTH)
        nearest = np.linalg.norm(model.means[:, None] - truth, axis=2).argmin(axis=1)
        errors.append((model.means - truth[nearest]) / model.stderr.means)
    assert 0.7 < np.sqrt(np.mean(np.square(errors))) < 1.4


def lacking(n, seed, fraction=0.2):
    x = WIDE.sample(n, seed=seed)
    x[np.random.default_rng(seed).random(x.shape) < fraction] = np.nan
    return ds.partial_sketch(x, SPARSE, nan_policy="available")


WIDE = random_mixture(3, 4, seed=5)
SPARSE = ds.FeatureMap(4, 200, scale=1.0, seed=1, distribution="sparse-sums")


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_counters_of_missing_values_are_released_with_noise(delta):
    sketch = lacking(20_000, 1)
    sets, counts = equal_supports(SPARSE)
    weights, errors = [], []
    for seed in range(20):
        private = ds.privatise(sketch, 1.0, delta, nan_policy="available", seed=seed)
        record, missing = private.privacy, private.missing
        apart = private.observed.frequencies - sketch.observed.frequencies
        apart -= private.total_weight - sketch.total_weight
        errors.append(apart / record.moment_deviation * np.sqrt(counts[sets]))
        weights.append(missing.weight_quanta)
        assert not missing.first.any()
        assert ds.open(private.to_bytes()).identical(private)
    assert np.std(errors) == pytest.approx(1.0, rel=0.15)
    assert not any(weights)
    same = private.missing.frequencies.integers()
    assert all(len(set(same[sets == k])) == 1 for k in range(len(counts)))


def test_the_variance_of_the_noise_with_missing_values():
    sketch, squares, stated = lacking(20_000, 1), [], []
    fractions = sketch.observed.fractions
    for seed in range(30):
        private = ds.privatise(sketch, 1.0, 1e-6, nan_policy="available", seed=seed)
        apart = np.abs(private.characteristic - sketch.characteristic) ** 2 / 2
        squares.append(np.average(apart, weights=fractions))
        stated.append(private.private_variance)
    assert np.mean(squares) == pytest.approx(np.mean(stated), rel=0.15)


@pytest.mark.slow
def test_decoding_with_missing_values():
    private = ds.privatise(lacking(50_000, 3), 0.3, 1e-6, nan_policy="available", seed=3)
    model, heldout = ds.decode(private, 3), WIDE.sample(20_000, seed=9)
    assert WIDE.score(heldout) - model.score(heldout) < 0.01
    fit, how = ds.diagnose(model, private), model.decoding
    assert fit.noise_level == pytest.approx(how.noise_level, rel=0.05)
    assert 0.5 < fit.cost / fit.noise_level < 1.5


def test_counters_are_released_whether_there_are_any_or_not():
    complete = ds.partial_sketch(WIDE.sample(500, seed=1), SPARSE)
    private = ds.privatise(complete, 1.0, nan_policy="available", seed=1)
    assert private.missing is not None  # noise
    assert private.privacy.sensitivity > ds.privatise(complete, 1.0).privacy.sensitivity
    few = ds.privatise(lacking(50, 1), 1e-3, nan_policy="available", seed=1)
    assert not few.observed.fractions.any()  # less than the noise
    with pytest.raises(InputError, match="nan_policy='raise'.*available"):
        ds.privatise(lacking(50, 1), 1.0)
    with pytest.raises(InputError, match="nan_policy='available'.*distribution="):
        ds.privatise(ds.partial_sketch(np.zeros((5, 2)), MAP), 1.0, nan_policy="available")


def test_private_sketches_with_missing_values_are_merged():
    parts = [
        ds.privatise(lacking(20_000, k), 1.0, 1e-6, nan_policy="available", seed=k)
        for k in range(2)
    ]
    both = ds.merge(parts)
    assert both.privacy.parts == 2
    expected = ds.merge([lacking(20_000, k) for k in range(2)]).observed.fractions
    np.testing.assert_allclose(both.observed.fractions, expected, atol=0.05)


def test_a_delta_near_one_over_the_number_of_individuals_is_warned_of(sketch):
    with pytest.warns(UserWarning, match=r"delta=1e-05.* 5e-06"):
        ds.privatise(sketch, 1.0, 1e-5, bounds=BOUNDS, seed=1)
    with pytest.raises(
        InputError, match="delta=0.0005.* 1 of 2,000 "
    ):  # ten rows of each individual
        ds.privatise(sketch, 1.0, 5e-4, bounds=BOUNDS, group_size=10, seed=1)


def test_bounds_with_other_names_are_refused():
    names = ("a", "b")
    rows = np.random.default_rng(0).normal(size=(100, 2))
    named = ds.partial_sketch(rows, ds.FeatureMap(2, 20, scale=1.0, feature_names=names))
    bounds = pd.DataFrame({"a": [-9.0, 9.0], "b": [-8.0, 8.0]})
    found = ds.privatise(named, 1.0, 1e-6, bounds=bounds, seed=0)
    assert found.maximum.tolist() == [9.0, 8.0]
    with pytest.raises(InputError, match="feature 0 of bounds is 'b'; .* 'a'") as caught:
        ds.privatise(named, 1.0, 1e-6, bounds=bounds[["b", "a"]], seed=0)
    assert caught.value.parameter == "bounds"
