"""Private sketches: the noise is what it is said to be, enough of it, and nothing else is told."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import integrate, stats

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, DecodeError, InputError, LedgerError, MergeError
from dask_sketch.features.kernels.fixed_point import FRACTION, WEIGHT_FRACTION
from dask_sketch.models import random_mixture
from dask_sketch.sketching import privacy
from dask_sketch.sketching.artifact import stored_sketch
from dask_sketch.sketching.discrete_noise import RandomBits, discrete_gaussian, discrete_laplace
from dask_sketch.sketching.privacy import calibrated, gaussian_delta, gaussian_shift
from dask_sketch.sketching.privatise import _noisy
from dask_sketch.storage.artifact import write_dataset

BOUNDS = [[-12.0, -12.0], [12.0, 12.0]]
TRUTH = random_mixture(3, 2, seed=5)
MAP = ds.FeatureMap(2, 200, scale=1.0, seed=1)


@pytest.fixture(scope="module")
def sketch():
    return ds.partial_sketch(TRUTH.sample(20_000, seed=2), MAP)


# -- noise on the integers -----------------------------------------------------------------------

DISTRIBUTIONS = {
    discrete_laplace: lambda y, s: np.exp(-np.abs(y) / s),
    discrete_gaussian: lambda y, s: np.exp(-(y**2) / (2 * s**2)),
}


def exact_law(draw, scale):
    grid = np.arange(-60 * scale, 60 * scale + 1)
    share = DISTRIBUTIONS[draw](grid.astype(float), scale)
    return grid, share / share.sum()


@pytest.mark.parametrize("scale", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("draw", DISTRIBUTIONS)
def test_the_distribution_of_the_noise(draw, scale):
    n = 100_000
    found = draw(scale, n, RandomBits(f"{draw.__name__} {scale}".encode()))
    grid, share = exact_law(draw, scale)
    expected = n * share
    often = expected >= 10
    counts = np.array([np.count_nonzero(found == value) for value in grid[often]])
    rest = n - counts.sum()
    chi = np.sum((counts - expected[often]) ** 2 / expected[often])
    chi += (rest - expected[~often].sum()) ** 2 / max(expected[~often].sum(), 1e-9)
    assert 1e-4 < stats.chi2.sf(chi, often.sum()) < 1 - 1e-4
    variance = float(share @ grid**2)
    assert abs(np.mean(found.astype(float) ** 2) - variance) < 5 * variance * np.sqrt(6 / n)


@pytest.mark.parametrize("draw", DISTRIBUTIONS)
def test_wide_noise_is_as_good_as_continuous(draw):
    scale = 2**46 + 12_345
    found = draw(scale, 50_000, RandomBits(b"wide")) / scale
    distribution = "laplace" if draw is discrete_laplace else "norm"
    assert stats.kstest(found, distribution).pvalue > 1e-3
    # the last bits are as random as the first
    last = draw(scale, 50_000, RandomBits(b"wide")) & 1
    assert abs(last.mean() - 0.5) < 5 * 0.5 / np.sqrt(50_000)


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 64, 1000])
def test_uniform_integers(bound):
    found = RandomBits(b"uniform").below(bound, 20_000)
    assert found.min() == 0
    assert found.max() == bound - 1
    counts = np.bincount(found, minlength=bound)
    if bound > 1:
        assert stats.chisquare(counts).pvalue > 1e-4


def test_where_chance_comes_from():
    assert not np.array_equal(RandomBits().words(4), RandomBits().words(4))
    bits = RandomBits(b"key")
    first = bits.words(4)
    assert not np.array_equal(first, bits.words(4))
    np.testing.assert_array_equal(first, RandomBits(b"key").words(4))


# -- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1.0, 5.0, 20.0, 100.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-5, 0.1])
def test_the_gaussian_mechanism_is_exact(epsilon, delta):
    shift = gaussian_shift(epsilon, delta)
    # hockey-stick divergence of N(shift, 1) from N(0, 1), by integration
    start = epsilon / shift + shift / 2
    found, _ = integrate.quad(
        lambda t: -np.expm1(-shift * t) * stats.norm.pdf(start + t - shift),
        0.0, 60.0 / max(1.0, abs(start - shift)), epsabs=0.0, epsrel=1e-11, limit=500,
    )  # fmt: skip
    assert found <= delta
    assert found == pytest.approx(delta, rel=1e-6)
    assert gaussian_delta(shift, epsilon) == pytest.approx(found, rel=1e-7)


def test_it_needs_less_noise_than_the_classic_bound():
    for epsilon, delta in ((0.1, 1e-5), (0.9, 1e-6), (0.5, 1e-9)):
        assert 1 / gaussian_shift(epsilon, delta) < np.sqrt(2 * np.log(1.25 / delta)) / epsilon
    shifts = [gaussian_shift(epsilon, 1e-6) for epsilon in (0.01, 0.1, 1, 10)]
    assert all(a < b for a, b in pairwise(shifts))


@pytest.mark.parametrize("deviation", [3, 5, 20, 100])
def test_a_discrete_gaussian_is_close_to_a_rounded_one(deviation):
    grid, share = exact_law(discrete_gaussian, deviation)
    rounded = np.diff(stats.norm.cdf(np.append(grid - 0.5, grid[-1] + 0.5) / deviation))
    assert 0.5 * np.abs(share - rounded).sum() < 1 / (20 * deviation**2)


def distribution_of(noise, laplace):
    grid = np.arange(-40 * noise, 40 * noise + 1)
    share = DISTRIBUTIONS[discrete_laplace if laplace else discrete_gaussian](
        grid.astype(float), noise
    )
    return share / share.sum()


def test_epsilon_and_delta_by_brute_force():
    """Of one integer of sensitivity 3, over all outputs."""
    for epsilon in (0.3, 1.0, 2.0):
        scale = math.ceil(3 / epsilon)
        p = distribution_of(scale, laplace=True)
        p, q = p[3:], p[:-3]
        assert (p <= np.exp(epsilon) * q * (1 + 1e-9)).all()
        assert (q <= np.exp(epsilon) * p * (1 + 1e-9)).all()
        for delta in (1e-2, 1e-4):
            deviation = math.ceil(3 / gaussian_shift(epsilon, delta))
            p = distribution_of(deviation, laplace=False)
            excess = np.maximum(p[3:] - np.exp(epsilon) * p[:-3], 0).sum()
            assert excess <= delta + (1 + np.exp(epsilon)) / (20 * deviation**2)


def test_too_small_a_delta_is_refused():
    with pytest.raises(InputError, match=r"delta=1e-30 is too small for epsilon=1\.0"):
        calibrated(1.0, 1e-30, 100, 1.0)
    with pytest.raises(InputError, match="smaller epsilon"):
        calibrated(500.0, 1e-6, 100, 1.0)


# -- sensitivity ---------------------------------------------------------------------------------

MAPS = [
    (distribution, dtype)
    for distribution in ("adapted-radius", "sparse-radius", "sparse-sums", "gaussian", "clustering")
    for dtype in ("float32", "float64")
]


def one_sample(x, feature_map, weight):
    """What one sample adds: whole numbers of its moments and its weight, in units of one."""
    weights = None if weight is None else [weight]
    sketch = ds.partial_sketch(x[None], feature_map, weights)
    moments = sketch.moment_quanta.integers().astype(float) / 2.0**FRACTION
    return moments, sketch.weight_quanta / 2.0**WEIGHT_FRACTION


@pytest.mark.parametrize(("distribution", "dtype"), MAPS)
@pytest.mark.parametrize("weight", [None, 1.0, 0.3, 700.0])
def test_no_sample_moves_more_than_it_is_said_to(distribution, dtype, weight, rng):
    m, w = 64, weight or 1.0
    feature_map = ds.FeatureMap(3, m, scale=1.0, distribution=distribution, dtype=dtype, seed=4)
    rows = rng.normal(size=(60, 3)) * np.geomspace(1e-3, 1e3, 60)[:, None]
    # and where a cosine and a sine are as large as each other, for the first frequency
    omega = feature_map.frequencies[:, 0]
    rows[-8:] = omega / (omega @ omega) * (np.arange(8) + 0.5)[:, None] * np.pi / 2
    largest_l1 = largest_l2 = largest = 0.0
    for row in rows:
        moments, total = one_sample(row, feature_map, weight)
        largest = max(largest, np.hypot(*moments).max())
        largest_l2 = max(largest_l2, np.linalg.norm(moments))
        largest_l1 = max(largest_l1, np.abs(moments).sum())
        assert total <= w * privacy.MODULUS
    assert largest <= w * privacy.MODULUS
    assert largest_l2 <= w * np.sqrt(m) * privacy.MODULUS
    assert largest_l1 <= w * m * np.sqrt(2) * privacy.MODULUS
    assert largest_l2 >= 0.9999 * w * np.sqrt(m)  # and the bound is no larger than needed


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(("weight", "group"), [(None, 1), (0.37, 1), (None, 4)])
def test_neighbours_on_the_grid_of_the_noise(delta, weight, group, rng):
    """Sums of neighbours after rounding, in the norm that the noise hides, by brute force."""
    epsilon, m, w = 0.7, MAP.n_frequencies, (weight or 1.0) * group
    sums, total, sensitivity = calibrated(epsilon, delta, m, w)
    if delta:
        assert sensitivity >= w * math.sqrt(m + math.sqrt(m / 2))
    assert sums.scale >= 2**46
    x = rng.normal(size=(300, 2))
    weights = None if weight is None else np.full(300, weight)
    base = ds.partial_sketch(x, MAP, weights)

    def rounded(sketch):
        moments = _noisy(sketch.moment_quanta.integers(), FRACTION, sums, 0)
        weight_quanta = _noisy(sketch.weight_quanta, WEIGHT_FRACTION, total, 0)
        return moments >> FRACTION - sums.digits, weight_quanta >> WEIGHT_FRACTION - total.digits

    moments, weight_quanta = rounded(base)
    largest = 0.0
    for first in range(0, 300, 5 * group):
        without = base - ds.partial_sketch(
            x[first : first + group], MAP, None if weights is None else weights[:group]
        )
        other, other_weight = rounded(without)
        moved = (moments - other).astype(float) / sums.scale
        by_weight = float(weight_quanta - other_weight) / total.scale
        if delta:
            loss = math.hypot(np.linalg.norm(moved), by_weight)
            assert loss <= gaussian_shift(epsilon, delta)
            loss /= gaussian_shift(epsilon, delta)
        else:
            loss = np.abs(moved).sum() + abs(by_weight)
            assert loss <= epsilon
            loss /= epsilon
        largest = max(largest, loss)
    assert largest > (0.99 if delta and group == 1 else 0.3)


def test_the_weight_has_its_share_of_the_noise():
    """The share is the one that makes averages most precise."""
    for delta in (0.0, 1e-6):
        sums, total, _ = calibrated(1.0, delta, 1000, 1.0)
        moved = 1.0 / gaussian_shift(1.0, delta) if delta else 1.0

        def loss(a, delta=delta, moved=moved):
            both = np.hypot(np.sqrt(1000), a) if delta else 1000 * np.sqrt(2) + a
            return (both * moved) ** 2 * (2 + 1 / a**2)

        chosen = sums.value / total.value
        assert loss(chosen) < 1.0001 * min(loss(a) for a in np.geomspace(0.1, 1000, 2000))


# -- a private sketch ----------------------------------------------------------------------------


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
    shown = repr(private)
    assert "epsilon 0.5 (laplace noise)" in shown
    assert "not private the feature map" in shown


def test_nothing_else_of_the_data_is_told():
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
    sums, weight, _ = calibrated(1.0, 0.0, MAP.n_frequencies, 1.0)
    assert not (steps % 2 ** (FRACTION - sums.digits)).any()  # on the grid of the noise
    assert not private.weight_quanta % 2 ** (WEIGHT_FRACTION - weight.digits)
    for name in ("mean", "variance"):
        with pytest.raises(InputError, match="privacy: "):
            getattr(private, name)
    text = json.dumps(private.to_xarray().to_dict(), default=str)
    for value in (*sketch.minimum, *sketch.maximum, *sketch.mean):
        assert str(value)[:8] not in text


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


# -- merging -------------------------------------------------------------------------------------


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
    assert "3; epsilon 3.5" in repr(whole)
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
    from dask_sketch.jobs.ledger.batch import stack

    with pytest.raises(LedgerError, match="private sketch"):
        stack([ds.privatise(sketch, 1.0)], MAP)


# -- stored --------------------------------------------------------------------------------------


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
def test_edited_records(changes, sketch, tmp_path):
    dataset = stored_sketch(ds.privatise(sketch, 0.3, bounds=BOUNDS))
    record = json.loads(dataset.attrs["privacy"]) | changes
    dataset = dataset.assign_attrs(privacy=json.dumps(record))
    write_dataset(dataset, tmp_path / "p.zarr", "dask-sketch/sketch", 2)
    with pytest.raises(ArtifactError, match=r"p\.zarr"):
        ds.open(tmp_path / "p.zarr")


# -- decoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 0.0), (0.2, 1e-6), (5.0, 1e-6)])
def test_the_noise_level_holds_the_noise(epsilon, delta):
    expected = TRUTH.characteristic(MAP.frequencies)
    found, stated = [], []
    for seed in range(60):
        x = TRUTH.sample(2000, seed=seed)
        private = ds.privatise(ds.partial_sketch(x, MAP), epsilon, delta, bounds=BOUNDS, seed=seed)
        found.append(np.mean(np.abs(private.characteristic - expected) ** 2))
        stated.append(private.noise_level)
    # dividing by a noisy weight, and few samples: to first order
    assert np.median(found) == pytest.approx(np.median(stated), rel=0.25)
    assert np.median(stated) > 1e-4


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


def test_bounds_at_decoding(sketch):
    private = ds.privatise(sketch, 1.0, 1e-6, seed=3)
    heldout = TRUTH.sample(5000, seed=9)
    narrow = [[-6.0, -6.0], [6.0, 6.0]]
    for bounds in (None, narrow, "data"):
        model = ds.decode(private, 3, bounds=bounds)
        assert TRUTH.score(heldout) - model.score(heldout) < 0.05
    model = ds.decode(private, 3, bounds=[[0.0, -6.0], [6.0, 6.0]])
    assert (model.means[:, 0] >= 0).all()
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


def test_standard_errors_know_of_the_noise():
    n, errors = 20_000, []
    truth = TRUTH.means[np.argsort(-TRUTH.weights)]
    for seed in range(20):
        x = TRUTH.sample(n, seed=seed)
        private = ds.privatise(ds.partial_sketch(x, MAP), 0.5, 1e-6, bounds=BOUNDS, seed=seed)
        assert private.private_variance * n > 0.3  # at least as much as sampling
        model = ds.decode(private, refine="efficient", start=TRUTH)
        nearest = np.linalg.norm(model.means[:, None] - truth, axis=2).argmin(axis=1)
        errors.append((model.means - truth[nearest]) / model.stderr.means)
    assert 0.7 < np.sqrt(np.mean(np.square(errors))) < 1.4


# -- the command line ----------------------------------------------------------------------------


def test_the_command(sketch, tmp_path):
    from dask_sketch.cli.main import cli

    sketch.to_zarr(tmp_path / "s.zarr")

    def call(*arguments):
        return CliRunner().invoke(
            cli, ["privatise", str(tmp_path / "s.zarr"), *map(str, arguments)]
        )

    out = tmp_path / "p.zarr"
    done = call("-o", out, "--epsilon", 1, "--delta", 1e-6, "--low=-9", "--high", "9,10", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["privacy"]["epsilon"] == 1.0
    assert answer["mean"] is None
    found = ds.open(out)
    assert found.privacy.mechanism == "gaussian"
    assert not found.privacy.seeded
    np.testing.assert_array_equal([found.minimum, found.maximum], [[-9, -9], [9, 10]])
    done = call("-o", out, "--epsilon", 1)
    assert done.exit_code == 1
    assert "exists" in done.output
    done = call("-o", out, "--overwrite", "--epsilon", 1, "--seed", 3)
    assert done.exit_code == 0
    assert "not private" in done.output
    assert "knows the seed" in done.output
    for wrong in (["--low", 1], ["--low", "1,2,3", "--high", 5], ["--low", "a", "--high", 5]):
        assert call("-o", tmp_path / "x", "--epsilon", 1, *wrong).exit_code == 2
    assert call("-o", tmp_path / "x", "--epsilon", 0).exit_code == 1
    assert CliRunner().invoke(cli, ["info", str(out)]).exit_code == 0
