"""The calibrated noise gives the stated guarantee."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

import dask_sketch as ds
from dask_sketch.errors import InputError
from dask_sketch.features.kernels.fixed_point import FRACTION, WEIGHT_FRACTION
from dask_sketch.models import random_mixture
from dask_sketch.sketching import privacy
from dask_sketch.sketching.discrete_noise import discrete_gaussian, discrete_laplace
from dask_sketch.sketching.privacy import calibrated, gaussian_delta, gaussian_shift
from dask_sketch.sketching.privatise import _noisy

TRUTH = random_mixture(3, 2, seed=5)


MAP = ds.FeatureMap(2, 200, scale=1.0, seed=1)


@pytest.fixture(scope="module")
def sketch():
    return ds.partial_sketch(TRUTH.sample(20_000, seed=2), MAP)


DISTRIBUTIONS = {
    discrete_laplace: lambda y, s: np.exp(-np.abs(y) / s),
    discrete_gaussian: lambda y, s: np.exp(-(y**2) / (2 * s**2)),
}


def exact_law(draw, scale):
    grid = np.arange(-60 * scale, 60 * scale + 1)
    share = DISTRIBUTIONS[draw](grid.astype(float), scale)
    return grid, share / share.sum()


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1.0, 5.0, 20.0, 100.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-5, 0.1])
@pytest.mark.few_cases(6)
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
    with pytest.raises(InputError, match=r"delta=1e-30 .*epsilon=1\.0: give at least \S+, or a"):
        calibrated(1.0, 1e-30, 100, 1.0)
    with pytest.raises(InputError, match=r"epsilon=500\.0: give a "):
        calibrated(500.0, 1e-6, 100, 1.0)


MAPS = [
    (distribution, dtype)
    for distribution in ("adapted-radius", "sparse-radius", "sparse-sums", "gaussian", "clustering")
    for dtype in ("float32", "float64")
]


def one_sample(x, feature_map, weight):
    """Moments and weight of a single sample."""
    weights = None if weight is None else [weight]
    sketch = ds.partial_sketch(x[None], feature_map, weights)
    moments = sketch.moment_quanta.integers().astype(float) / 2.0**FRACTION
    return moments, sketch.weight_quanta / 2.0**WEIGHT_FRACTION


@pytest.mark.parametrize(("distribution", "dtype"), MAPS)
@pytest.mark.parametrize("weight", [None, 1.0, 0.3, 700.0])
@pytest.mark.few_cases(8)
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


SPARSE = ds.FeatureMap(4, 200, scale=1.0, seed=1, distribution="sparse-sums")
N_PAIRS = 10


def counters_of(sketch):
    """Counters of missing values in quanta; zeros without."""
    if sketch.missing is None:
        return np.zeros(SPARSE.n_frequencies, dtype=object), np.zeros(N_PAIRS, dtype=object)
    return sketch.missing.frequencies.integers(), sketch.missing.pairs.integers()


@pytest.mark.parametrize("weight", [None, 0.3, 700.0])
def test_no_sample_with_missing_values_moves_more(weight, rng):
    """Either the sum of a frequency or its counter moves, also for several rows together."""
    w, m = weight or 1.0, SPARSE.n_frequencies
    for n_rows in (1, 3):
        for _ in range(30):
            x = rng.normal(size=(n_rows, 4))
            x[rng.random(x.shape) < rng.random()] = np.nan
            x[np.isnan(x).all(axis=1), 0] = 0.0
            weights = None if weight is None else np.full(n_rows, weight)
            sketch = ds.partial_sketch(x, SPARSE, weights, nan_policy="available")
            moments = sketch.moment_quanta.integers().astype(float) / 2.0**FRACTION
            counters, pairs = (each.astype(float) / 2.0**FRACTION for each in counters_of(sketch))
            largest = n_rows * w * privacy.MODULUS
            assert (np.linalg.norm([*moments, counters], axis=0) <= largest).all()
            assert (np.abs([*moments, counters]).sum(axis=0) <= math.sqrt(2) * largest).all()
            assert (pairs <= largest).all()
            assert len(counters) == m


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(("weight", "group"), [(None, 1), (0.37, 1), (None, 4)])
def test_neighbours_on_the_grid_of_the_noise(delta, weight, group, missing, rng):
    """Sums of neighbours after rounding, in the norm that the noise hides, by brute force."""
    feature_map, n_pairs = (SPARSE, N_PAIRS) if missing else (MAP, 0)
    epsilon, m, w = 0.7, feature_map.n_frequencies, (weight or 1.0) * group
    sums, total, of_pairs, sensitivity = calibrated(epsilon, delta, m, w, n_pairs)
    if delta:
        assert sensitivity >= w * math.sqrt(m + math.sqrt(m / 2))
        assert sensitivity <= math.sqrt(1.1 if missing else 1.001) * w * math.sqrt(m + 10)
    assert sums.scale >= 2**46
    x = rng.normal(size=(300, feature_map.n_features))
    if missing:
        x[rng.random(x.shape) < 0.3] = np.nan
        x[:, 0] = np.nan_to_num(x[:, 0])
    weights = None if weight is None else np.full(300, weight)
    policy = "available" if missing else "raise"
    base = ds.partial_sketch(x, feature_map, weights, nan_policy=policy)

    def rounded(sketch):
        numbers = [(sketch.moment_quanta.integers(), FRACTION, sums)]
        numbers += [(sketch.weight_quanta, WEIGHT_FRACTION, total)]
        if missing:
            numbers += zip(counters_of(sketch), [FRACTION] * 2, (sums, of_pairs), strict=True)
        return [
            np.asarray(_noisy(exact, fraction, noise, 0) >> fraction - noise.digits)
            for exact, fraction, noise in numbers
        ]

    before = rounded(base)
    largest = 0.0
    for first in range(0, 300, 5 * group):
        without = base - ds.partial_sketch(
            x[first : first + group], feature_map, None if weights is None else weights[:group],
            nan_policy=policy,
        )  # fmt: skip
        moved, by_weight, *others = (
            (one - other).astype(float) / noise.scale
            for one, other, noise in zip(
                before, rounded(without), (sums, total, sums, of_pairs), strict=False
            )
        )
        moved = np.concatenate([moved.ravel(), *others])
        by_weight = float(by_weight)
        if delta:
            loss = math.hypot(np.linalg.norm(moved), by_weight)
            assert loss <= gaussian_shift(epsilon, delta)
            loss /= gaussian_shift(epsilon, delta)
        else:
            loss = np.abs(moved).sum() + abs(by_weight)
            assert loss <= epsilon
            loss /= epsilon
        largest = max(largest, loss)
    assert largest > (0.99 if delta and group == 1 and not missing else 0.3)


def test_the_weight_has_its_share_of_the_noise():
    """The share is the one that makes averages most precise."""
    for delta in (0.0, 1e-6):
        sums, total, *_ = calibrated(1.0, delta, 1000, 1.0)
        moved = 1.0 / gaussian_shift(1.0, delta) if delta else 1.0

        def loss(a, delta=delta, moved=moved):
            both = np.hypot(np.sqrt(1000), a) if delta else 1000 * np.sqrt(2) + a
            return (both * moved) ** 2 * (2 + 1 / a**2)

        chosen = sums.value / total.value
        assert loss(chosen) < 1.0001 * min(loss(a) for a in np.geomspace(0.1, 1000, 2000))
