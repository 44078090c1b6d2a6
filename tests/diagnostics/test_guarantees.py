"""Quantities of the theory, against tables computed apart and against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dask_sketch import Centroids, FeatureMap, GaussianMixture, diagnose, partial_sketch
from dask_sketch.diagnostics.guarantees import (
    coherence,
    component_risk_bound,
    excess_risk_bound,
    guarantees,
    lipschitz_constant,
    lipschitz_size,
    mixture_trade_off,
    prune_close_centroids,
    sample_isometry,
    separation_scale,
    separations,
    sketch_sizes,
)
from dask_sketch.errors import InputError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("k", "squared", "distance"),
    [
        (1, 0.0416667, 9.798), (2, 0.0375422, 10.322), (5, 0.0341608, 10.821),
        (10, 0.0321889, 11.148), (20, 0.0304947, 11.453), (100, 0.0272450, 12.117),
        (1000, 0.0236737, 12.999),
    ],
)  # fmt: skip
def test_separation(k, squared, distance):
    assert separation_scale(k) ** 2 == pytest.approx(squared, rel=1e-5)
    assert 2.0 / separation_scale(k) == pytest.approx(distance, abs=1e-3)
    # far below the 3/4 that Theorem 6.18 needs
    assert (2 * k - 1) * coherence(separation_scale(k) ** 2) == pytest.approx(0.05, abs=0.04)


@pytest.mark.parametrize(
    ("k", "squared"), [(1, 0.056851), (2, 0.049080), (10, 0.040221), (100, 0.032939)]
)
def test_largest_width_of_the_condition(k, squared):
    assert (2 * k - 1) * coherence(squared) == pytest.approx(0.75, rel=2e-3)


@pytest.mark.parametrize(
    ("k", "d", "radius", "explicit", "scaling"),
    [
        (1, 1, 10, 3.48e6, 34), (2, 2, 10, 3.59e7, 599), (5, 2, 10, 2.58e8, 7055),
        (5, 10, 10, 3.94e9, 5.45e4), (10, 10, 10, 1.74e10, 3.77e5), (10, 10, 100, 1.82e10, 4.78e5),
        (20, 50, 10, 1.83e12, 1.39e7),
    ],
)  # fmt: skip
def test_sizes_for_clustering(k, d, radius, explicit, scaling):
    found = sketch_sizes(k, d, radius=radius)
    assert found.explicit == pytest.approx(explicit, rel=5e-3)
    assert found.scaling == pytest.approx(scaling, rel=2e-2)
    assert found.practical == 5 * (d + 1) * k
    assert len(found.fields()) == 4


@pytest.mark.parametrize(
    ("k", "d", "square", "explicit", "scaling"),
    [(5, 2, 0.5, 7.74e8, 3.80e4), (5, 10, 0.1, 1.13e10, 3.31e5), (5, 10, 0.5, 5.29e10, 3.84e6)],
)
def test_sizes_for_mixtures(k, d, square, explicit, scaling):
    found = sketch_sizes(k, d, task="mixture", radius=5, squared_frequency=square)
    assert found.explicit == pytest.approx(explicit, rel=5e-3)
    assert found.scaling == pytest.approx(scaling, rel=5e-3)
    assert found.practical == 5 * (2 * d + 1) * k
    assert math.isnan(found.lipschitz)
    assert len(found.fields()) == 3


def test_sizes_grow_with_the_demands():
    base = sketch_sizes(5, 5)
    for other in (
        sketch_sizes(6, 5), sketch_sizes(5, 6), sketch_sizes(5, 5, radius=20.0),
        sketch_sizes(5, 5, delta=0.2), sketch_sizes(5, 5, zeta=1e-6),
    ):  # fmt: skip
        assert other.explicit > base.explicit
        assert other.scaling > base.scaling


@pytest.mark.parametrize(
    ("k", "d", "square", "separation", "amplitude", "concentration"),
    [
        (5, 10, 0.1, 18.74, 2.488, (77.92, 30.85)), (5, 10, 0.5, 10.82, 32, (334.0, 1181)),
        (10, 10, 0.1, 19.31, 2.488, (98.61, 44.19)), (10, 20, 0.05, 26.14, 2.594, (188.5, 46.97)),
        (10, 20, 0.5, 11.15, 1024, (13530, 107200)), (100, 100, 0.01, 61.19, 2.692, (1539, 117.1)),
    ],
)  # fmt: skip
def test_trade_off_of_mixtures(k, d, square, separation, amplitude, concentration):
    found = mixture_trade_off(k, d, square)
    assert found.separation == pytest.approx(separation, rel=1e-3)
    assert found.amplitude == pytest.approx(amplitude, rel=1e-3)
    assert found.concentration == pytest.approx(concentration, rel=1e-3)


@pytest.mark.parametrize(
    ("excess", "sizes"),
    [
        (0.25, {2: 3427, 10: 11335, 50: 58405, 100: 123320}),
        (1.0, {2: 221, 10: 745, 50: 3866, 100: 8171}),
        (3.0, {2: 27, 10: 94, 50: 494, 100: 1045}),
    ],
)
def test_sizes_for_a_lipschitz_constant(excess, sizes):
    assert {d: lipschitz_size(d, excess=excess) for d in sizes} == sizes


@pytest.mark.parametrize(
    ("d", "m", "constant"),
    [
        (10, 50, 1.320), (10, 200, 1.175), (10, 1000, 1.077), (10, 5000, 1.034),
        (50, 50, 1.908), (50, 200, 1.457), (50, 1000, 1.203), (50, 5000, 1.091),
    ],
)  # fmt: skip
@pytest.mark.few_cases(3)
def test_lipschitz_constants_of_the_clustering_distribution(d, m, constant):
    found = [
        lipschitz_constant(FeatureMap(d, m, scale=3.0, distribution="clustering", seed=seed))
        for seed in range(20)
    ]
    assert np.mean(found) == pytest.approx(constant, abs=0.04)


def test_the_lipschitz_constant_bounds_all_differences():
    feature_map = FeatureMap(3, 30, scale=2.0, distribution="clustering")
    bound = lipschitz_constant(feature_map) / 2.0
    x, y = RNG.normal(size=(2, 300, 3)) * 0.3
    weights = feature_map.feature_weights[:, None]
    away = weights * (
        np.exp(-1j * feature_map.frequencies.T @ x.T)
        - np.exp(-1j * feature_map.frequencies.T @ y.T)
    )
    ratios = np.sqrt((np.abs(away) ** 2).mean(axis=0)) / np.linalg.norm(x - y, axis=1)
    assert 0.5 * bound < ratios.max() <= bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "d", "few", "many"),
    [
        (3, 2, (0.49, 1.77), (0.82, 1.21)), (5, 5, (0.74, 1.25), (0.94, 1.14)),
        (5, 10, (0.76, 1.20), (0.95, 1.05)),
    ],
)  # fmt: skip
def test_isometry_is_sharper_with_more_frequencies(k, d, few, many):
    """Smallest and largest ratio for m = 5 k d and 50 k d, one draw each in the notes."""
    widths = []
    for factor, (least, most) in ((5, few), (50, many)):
        feature_map = FeatureMap(d, factor * k * d, scale=1.0, distribution="clustering", seed=1)
        found = sample_isometry(feature_map, k, low=-10.0, high=10.0, separation=3.0)
        assert found.minimum < 1.0 < found.maximum
        allowed = 0.6 / np.sqrt(factor)
        assert found.minimum == pytest.approx(least, abs=allowed)
        assert found.maximum == pytest.approx(most, abs=allowed)
        widths.append(found.maximum - found.minimum)
    assert widths[1] < 0.6 * widths[0]


@pytest.mark.parametrize("variances", [None, 0.7])
def test_kernels_known_and_estimated_agree(variances):
    """Of one distribution of frequencies, given in two ways."""
    options = {"low": -3.0, "high": 3.0, "variances": variances, "n_pairs": 60}
    one = FeatureMap(2, 400, scale=1.0, distribution="gaussian")
    two = FeatureMap(
        2, 400, covariances=np.ones((2, 2)), covariance_weights=[0.5, 0.5], distribution="gaussian"
    )
    known, estimated = sample_isometry(one, 2, **options), sample_isometry(two, 2, **options)
    assert known.minimum == pytest.approx(estimated.minimum, abs=0.2)
    assert known.maximum == pytest.approx(estimated.maximum, abs=0.3)


def test_whitened_points_have_the_known_kernel():
    white = np.array([[1.0, 0.5], [0.0, 2.0]])
    feature_map = FeatureMap(2, 3000, scale=1.0, distribution="gaussian", whitening=white)
    found = sample_isometry(feature_map, 2, low=-3.0, high=3.0)
    assert 0.8 < found.minimum < 1.0 < found.maximum < 1.2


def test_pruning_has_a_certified_loss():
    x = RNG.normal(size=(400, 2)) * 4.0
    points = Centroids(RNG.dirichlet(np.ones(30)), RNG.normal(size=(30, 2)) * 4.0)
    for separation in (0.0, 0.5, 2.0, 100.0):
        kept, loss = prune_close_centroids(points, separation)
        assert loss <= separation
        apart = np.linalg.norm(kept.centers[:, None] - kept.centers[None], axis=2)
        assert (apart[~np.eye(len(apart), dtype=bool)] > separation).all()
        near, after = (
            np.linalg.norm(x[:, None] - c.centers[None], axis=2).min(axis=1) for c in (points, kept)
        )
        assert after.mean() <= near.mean() + loss + 1e-12
        assert np.sqrt((after**2).mean()) <= np.sqrt((near**2).mean()) + loss + 1e-12
    assert kept.n_components == 1


@pytest.mark.parametrize(
    ("e", "medians", "means"), [(0.1, 23.1, 24.3), (0.01, 230.9, 232.1), (0.001, 2309.4, 2310.6)]
)
def test_points_that_are_too_close_have_no_such_bound(e, medians, means):
    """Lemma F.7: of two points at distance e and their middle, the risks differ by e, the sketches
    by e squared."""
    feature_map = FeatureMap(1, 20_000, scale=1.0, distribution="gaussian")
    omega = feature_map.frequencies[0]
    kernel = 2.0 * np.sqrt((np.sin(omega * e / 4.0) ** 4).mean())
    assert kernel == pytest.approx(math.sqrt(3.0) / 8.0 * e**2, rel=0.05)
    for power, ratio in ((1, medians), (2, means)):
        risk = 0.5**power * ((1.0 + e) ** power - 1.0)
        assert risk / kernel == pytest.approx(ratio, rel=0.05)


def test_bounds_of_the_excess_risk():
    base = {"n_components": 5, "radius": 10.0, "n_samples": 1e6}
    medians = excess_risk_bound(**base, power=1, risk=0.1, lipschitz=1.2)
    constant = 6 * math.sqrt(2) * math.sqrt(5 / 0.5) * 10
    error = 1e-3 * (1 + math.sqrt(2 * math.log(20)))
    assert medians.sampling == pytest.approx(4 * constant * error)
    assert medians.bias == pytest.approx((2 + 4 * 1.2 * constant) * 0.1)
    assert medians.total == medians.bias + medians.sampling
    means = excess_risk_bound(**base, risk=0.0)
    assert means.bias == 0.0
    assert means.sampling == pytest.approx(4 * 8 * math.sqrt(6) * math.sqrt(10) * 100 * error)
    assert excess_risk_bound(5, 10.0, 1e6, rho=1e-6).sampling > means.sampling
    components = component_risk_bound(5, 2.0, 0.0, delta=0.5)
    assert components.bias == pytest.approx(2 * (2 + 4 * math.sqrt(10) * math.sqrt(3)))


def test_theory_of_centroids():
    feature_map = FeatureMap(2, 300, scale=1.0, distribution="clustering")
    points = Centroids([0.4, 0.4, 0.2], [[0.0, 0.0], [20.0, 0.0], [20.0, 3.0]])
    x = np.repeat(points.centers, 50, axis=0) + RNG.normal(size=(150, 2))
    sketch = partial_sketch(x, feature_map)
    found = diagnose(points, sketch, theory=True)
    theory = found.theory
    assert theory.separation == pytest.approx(3.0, rel=0.3)
    assert separations(points, feature_map).shape == (3,)
    assert not theory.is_separated
    assert (theory.n_pruned, theory.pruning_loss) == (1, 3.0)
    assert math.isnan(theory.coherence)
    assert theory.n_frequencies == 300
    assert "kernel bandwidths" in repr(found)
    assert "isometry" in str(theory)
    assert found.as_dict()["theory"]["n_pruned"] == 1
    assert diagnose(points, sketch).theory is None
    apart = Centroids([0.5, 0.5], [[0.0, 0.0], [40.0, 0.0]])
    theory = guarantees(apart, sketch)
    assert theory.is_separated
    assert theory.coherence < 0.75
    assert theory.n_pruned == 0


def test_theory_of_mixtures():
    truth = GaussianMixture([0.5, 0.5], [[0.0, 0.0], [60.0, 0.0]], np.ones((2, 2)))
    sketch = partial_sketch(
        truth.sample(500), FeatureMap(2, 200, scale=2.0, distribution="gaussian")
    )
    theory = diagnose(truth, sketch, theory=True).theory
    square = 0.25  # of frequencies of deviation 1 / 2
    expected = 2.0 * mixture_trade_off(2, 2, square).separation * math.sqrt(square)
    assert theory.required_separation == pytest.approx(expected, rel=0.2)
    assert theory.is_separated
    assert theory.separation == pytest.approx(30.0, rel=0.2)
    assert math.isnan(theory.bound.bias)
    assert theory.bound.sampling > 0.0
    # the frequencies of small scales are outside of the theorem
    wide = partial_sketch(truth.sample(500), FeatureMap(2, 200, scale=0.5))
    theory = guarantees(truth, wide)
    assert math.isnan(theory.required_separation)
    assert math.isnan(theory.bound.sampling)
    assert "nan" not in str(theory)
    one = guarantees(GaussianMixture([1.0], [[0.0, 0.0]], np.ones((1, 2))), sketch)
    assert math.isnan(one.separation)
    assert "nan" not in str(one)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: separation_scale(0), "n_components=0"),
        (lambda: coherence(0.5), "squared_width=0.5"),
        (lambda: mixture_trade_off(2, 2, 0.6), "squared_frequency=0.6"),
        (lambda: sketch_sizes(2, 2, task="density"), "task='density'"),
        (lambda: sketch_sizes(2, 2, radius=0.5), "radius=0.5"),
        (lambda: sketch_sizes(2, 2, delta=1.0), "delta=1.0"),
        (lambda: lipschitz_size(2, excess=0.0), "excess=0.0"),
        (lambda: excess_risk_bound(2, 1.0, 10, power=3), "power=3"),
        (lambda: prune_close_centroids(np.zeros((2, 2)), 1.0), "ndarray"),
        (lambda: prune_close_centroids(Centroids([1.0], [[0.0]]), -1.0), "separation=-1"),
        (
            lambda: sample_isometry(FeatureMap(2, 10, scale=1.0), 2, low=0, high=1, n_pairs=0),
            "n_pairs=0",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_kept_centroids_keep_names_and_lengths():
    points = Centroids(
        [0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], normalize=True, feature_names=("a", "b")
    )
    kept, _ = prune_close_centroids(points, 0.1)
    assert kept.feature_names == ("a", "b")
    assert kept.normalize
