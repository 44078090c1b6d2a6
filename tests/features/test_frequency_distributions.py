"""Frequency distributions compared with their closed forms (notes on Keriven et al., 1.5)."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy import integrate, stats

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.errors import InputError
from dask_sketch.features.frequency_distributions import (
    adapted_radius,
    clustering_radius,
    feature_windows,
    importance_weights,
    sample_frequencies,
    sample_mixed,
)
from dask_sketch.features.kernels.structured_frequencies import split
from dask_sketch.validation.categories import Categories
from dask_sketch.validation.choices import DISTRIBUTIONS

# F(R) of the adapted radius distribution, to five digits
CDF = {0.25: 0.02551, 0.5: 0.09853, 1.0: 0.34294, 2.0: 0.82402, 3.0: 0.98227}
C = 0.8259789443959


def density(radius):
    """Eq. (17)."""
    return C * np.sqrt(radius**2 + radius**4 / 4) * np.exp(-(radius**2) / 2)


def cdf(radius):
    return np.array([integrate.quad(density, 0, r)[0] for r in np.atleast_1d(radius)])


def test_adapted_radius_inverts_the_distribution_function():
    radii = np.linspace(0.05, 5.0, 40)
    np.testing.assert_allclose(adapted_radius(cdf(radii)), radii, rtol=1e-6)
    for radius, probability in CDF.items():
        assert cdf(radius)[0] == pytest.approx(probability, abs=6e-6)
        assert adapted_radius(probability) == pytest.approx(radius, abs=1e-4)
    assert adapted_radius(0.5) == pytest.approx(1.27903, abs=5e-6)
    assert adapted_radius(0.0) == pytest.approx(0.0, abs=1e-7)
    assert np.isfinite(adapted_radius(1 - 2.0**-53))


def test_adapted_radius_has_the_moments_of_the_distribution():
    # by quadrature over the quantiles, which no seed can move
    grid = (np.arange(2_000_00) + 0.5) / 200_000
    radius = adapted_radius(grid)
    assert radius.mean() == pytest.approx(1.35143, abs=2e-5)
    assert np.square(radius).mean() == pytest.approx(2.30392, abs=1e-4)
    assert (np.diff(radius) > 0).all()


RADIUS_DISTRIBUTIONS = {
    "adapted-radius": cdf,
    "sparse-radius": cdf,
    "sparse-windows": cdf,
    "folded-gaussian": stats.halfnorm.cdf,
}


@pytest.mark.parametrize("distribution", RADIUS_DISTRIBUTIONS)
@pytest.mark.parametrize("n_features", [1, 2, 5])
@pytest.mark.few_cases(4)
def test_radii_follow_the_distribution(distribution, n_features):
    omega = sample_frequencies(distribution, np.ones(n_features), 4000, seed=n_features)
    radii = np.linalg.norm(omega, axis=0)
    assert stats.kstest(radii, RADIUS_DISTRIBUTIONS[distribution]).pvalue > 1e-3


def test_sparse_directions_use_four_features_each_equally_often():
    omega = sample_frequencies("sparse-radius", np.ones(9), 9000, seed=4)
    used = omega != 0
    assert (used.sum(axis=0) == 4).all()
    expected = np.full(9, 4 / 9)
    np.testing.assert_allclose(used.mean(axis=1), expected, atol=5 * np.sqrt(0.25 / 9000))
    # given the features, the direction is uniform: each has a quarter of the squared radius
    share = np.square(omega / np.linalg.norm(omega, axis=0))
    np.testing.assert_allclose(share.sum(axis=1) / used.sum(axis=1), 0.25, atol=0.02)


def test_windows_have_sixty_percent_of_the_frequencies_the_first_one_a_third_of_them():
    m, d = 40_000, 200
    used = sample_frequencies("sparse-windows", np.ones(d), m, seed=5) != 0
    assert (used.sum(axis=0) == 4).all()
    windows = feature_windows(d)
    inside = np.array([~np.delete(used, window, axis=0).any(axis=0) for window in windows])
    error = 5 * np.sqrt(0.25 / m)
    assert inside.any(axis=0).mean() == pytest.approx(0.6, abs=error)
    # those of the second and third window that are in the first one as well
    shared = (comb(8, 4) + comb(4, 4)) / comb(12, 4) * 0.4 / (len(windows) - 1)
    assert inside[0].mean() == pytest.approx(0.2 + shared, abs=error)
    any_features = used[:, ~inside.any(axis=0)]
    np.testing.assert_allclose(any_features.mean(axis=1), 4 / d, atol=0.006)


@pytest.mark.parametrize("n_features", [1, 5, 12, 13, 16, 17, 50])
def test_windows_follow_each_other_and_have_all_features(n_features):
    windows = feature_windows(n_features)
    assert windows.shape[1] == min(n_features, 12)
    assert np.unique(windows).tolist() == list(range(n_features))
    starts = windows[:, 0]
    assert ((np.diff(starts) > 0) & (np.diff(starts) <= 4)).all()
    np.testing.assert_array_equal(
        windows - starts[:, None], [range(windows.shape[1])] * len(starts)
    )


@pytest.mark.parametrize("n_features", [1, 2, 5, 8])
def test_base_frequencies_of_sums_have_the_adapted_radius_over_the_root_of_two(n_features):
    bases = split(sample_frequencies("sparse-sums", np.full(n_features, 4.0), 16_000, seed=3))
    for side in (0, 1):
        base = 2.0 * bases[:, side].reshape(-1, n_features)
        radii = np.sqrt(2.0) * np.linalg.norm(base, axis=1)
        # one in each of equal parts: far nearer to the distribution than independent draws
        assert stats.kstest(radii, cdf).statistic < 1.5 / len(radii)
        used = np.abs(base) > 1e-9
        assert (used.sum(axis=1) <= 2).all()
        # of two features, unless both cards are the same; each as often as the others
        assert used.any(axis=1).all()
        if n_features in (2, 8):
            assert (used.sum(axis=1) == 2).all()
            assert np.ptp(used.sum(axis=0)) <= 1
        # no direction is preferred
        np.testing.assert_allclose(np.sign(base).sum(axis=0) / used.sum(axis=0), 0.0, atol=0.12)


def test_base_frequencies_of_dense_sums_are_of_one_matrix_in_each_group():
    axes = np.array([[[1.0, 0.5, -0.25], [0.0, 2.0, 1.0], [0.0, 0.0, 0.5]], 1e4 * np.eye(3)])
    bases = split(sample_frequencies("dense-sums", np.ones(3), 16_000, seed=3, axes=axes))
    wide = np.linalg.norm(bases, axis=-1).reshape(len(bases), -1).min(axis=1) > 100.0
    assert abs(wide.sum() - len(bases) // 2) <= 1
    for chosen, matrix in ((~wide, axes[0]), (wide, axes[1])):
        base = np.linalg.solve(matrix, bases[chosen].reshape(-1, 3).T)
        radii = np.linalg.norm(base, axis=0)
        assert stats.kstest(np.sqrt(2.0) * radii, cdf).pvalue > 1e-3
        assert (np.abs(base) > 1e-9).all()
        np.testing.assert_allclose(np.cov(base / radii), np.eye(3) / 3, atol=0.05)


def test_sketches_of_dense_sums_are_means_of_features(rng):
    axes = np.linalg.qr(rng.normal(size=(2, 5, 5)))[0]
    feature_map = FeatureMap(5, 100, scale=1.0, distribution="dense-sums", axes=axes)
    x = rng.normal(size=(300, 5))
    expected = np.exp(-1j * x @ feature_map.frequencies).mean(axis=0) / 10.0
    np.testing.assert_allclose(partial_sketch(x, feature_map).z, expected, atol=1e-7)


def test_sums_share_a_mixture_of_distributions_by_groups():
    covariances = np.array([[1e-4, 1e-4], [1e4, 1e4]])
    omega = sample_frequencies("sparse-sums", covariances, 3200, weights=[0.25, 0.75], seed=1)
    wide = np.linalg.norm(omega, axis=0).reshape(100, 32) > 1.0
    assert (wide.all(axis=1) | ~wide.any(axis=1)).all()
    assert abs(wide.all(axis=1).sum() - 25) <= 1


@pytest.mark.parametrize("n_features", [1, 4])
def test_gaussian_distribution_is_gaussian(n_features):
    omega = sample_frequencies("gaussian", np.full(n_features, 4.0), 4000, seed=1)
    for row in omega:
        assert stats.kstest(row * 2.0, "norm").pvalue > 1e-3
    np.testing.assert_allclose(np.cov(omega), np.eye(n_features) / 4, atol=0.03)


def test_marginals_have_frequencies_of_their_own():
    variances = np.array([[1.0] * 3, [1e8] * 3])
    omega = sample_frequencies("gaussian-marginals", variances, 512, seed=0)
    plain = sample_frequencies("gaussian", variances, 512, seed=0)
    alone = (omega != 0).sum(axis=0) == 1
    assert ((omega != 0) & alone).sum(axis=1).tolist() == [16] * 3
    np.testing.assert_array_equal(omega[:, ~alone], plain[:, ~alone])
    single = omega != 0
    np.testing.assert_allclose((omega / plain)[:, alone][single[:, alone]], np.sqrt(3.0))
    for n_features, m in ((40, 512), (1, 512), (5, 79)):  # too many features, one, too few
        few = sample_frequencies("gaussian-marginals", np.ones(n_features), m, seed=0)
        np.testing.assert_array_equal(
            few, sample_frequencies("gaussian", np.ones(n_features), m, seed=0)
        )


@pytest.mark.parametrize(
    "distribution",
    [d for d in DISTRIBUTIONS if d not in ("sparse-sums", "gaussian-marginals", "gaussian-pairs")],
)
def test_directions_are_uniform(distribution):
    omega = sample_frequencies(distribution, np.ones(2), 4000, seed=5)
    angles = np.arctan2(omega[1], omega[0])
    assert stats.kstest(angles, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-3
    omega = sample_frequencies(distribution, np.ones(3), 4000, seed=5)
    # Archimedes: one coordinate of a point on the sphere is uniform
    height = omega[0] / np.linalg.norm(omega, axis=0)
    assert stats.kstest(height, stats.uniform(-1, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_diagonal_covariance_divides_by_the_deviations(distribution):
    variances = np.array([0.25, 1.0, 9.0])
    plain = sample_frequencies(distribution, np.ones(3), 96, seed=2)
    got = sample_frequencies(distribution, variances, 96, seed=2)
    np.testing.assert_allclose(got * np.sqrt(variances)[:, None], plain, rtol=1e-13)


@pytest.mark.parametrize("distribution", [d for d in DISTRIBUTIONS if d != "gaussian-pairs"])
def test_a_mixture_draws_its_distributions_by_their_weights(distribution):
    variances, weights = np.array([[1.0], [1e8]]), [0.25, 0.75]
    omega = sample_frequencies(distribution, variances, 8000, weights=weights, seed=3)
    wide = (
        np.abs(omega[0]) < 1e-2
    )  # of the second distribution, but for a few of the first near zero
    assert stats.binomtest(int(wide.sum()), 8000, 0.75 + 0.25 * 0.005).pvalue > 1e-4
    equal = sample_frequencies(distribution, variances, 8000, seed=3)
    share = (np.abs(equal[0]) < 1e-2).mean()
    assert share == pytest.approx(0.5, abs=0.03)


def test_a_weight_of_zero_is_never_drawn():
    variances = np.array([[1.0], [1e12], [1.0]])
    omega = sample_frequencies("folded-gaussian", variances, 500, weights=[0.5, 0.0, 0.5])
    assert np.median(np.abs(omega)) > 0.1
    assert (np.abs(omega) > 1e-4).mean() > 0.99


def test_draws_depend_on_the_seed_alone():
    a = sample_frequencies("adapted-radius", [1.0, 2.0], 50, seed=9)
    np.random.seed(0)  # noqa: NPY002  (global state is not to matter)
    np.testing.assert_array_equal(a, sample_frequencies("adapted-radius", [1.0, 2.0], 50, seed=9))
    assert not np.array_equal(a, sample_frequencies("adapted-radius", [1.0, 2.0], 50, seed=10))


def test_an_unknown_distribution_is_named():
    with pytest.raises(InputError, match=r"distribution='levy'.* adapted-radius"):
        sample_frequencies("levy", [1.0], 5)


# E |omega|**2 / lambda**2, notes on Gribonval et al., 1.4.2
MEAN_SQUARE_RADIUS = {2: 4.4, 10: 12.0952381, 100: 102.0099502}


@pytest.mark.parametrize("n_features", MEAN_SQUARE_RADIUS)
def test_clustering_radii_have_the_moments_of_the_distribution(n_features):
    grid = (np.arange(200) + 0.5) / 200
    label, uniform = np.meshgrid(grid, (np.arange(1000) + 0.5) / 1000)
    squares = np.square(clustering_radius(label, uniform, n_features))
    assert squares.mean() == pytest.approx(MEAN_SQUARE_RADIUS[n_features], rel=2e-3)


@pytest.mark.parametrize("n_features", [1, 2, 5])
def test_clustering_radii_follow_the_density(n_features):
    def unnormalised(r):
        return (1 + r**2 / n_features) ** 2 * r ** (n_features - 1) * np.exp(-(r**2) / 2)

    total = integrate.quad(unnormalised, 0, 20)[0]
    omega = sample_frequencies("clustering", np.full(n_features, 0.25), 3000, seed=n_features)
    radii = np.linalg.norm(omega, axis=0) / 2  # lambda is one over the bandwidth of 0.5

    def distribution(r):
        return np.array([integrate.quad(unnormalised, 0, a)[0] for a in r]) / total

    assert stats.kstest(radii, distribution).pvalue > 1e-3


@pytest.mark.parametrize(
    ("covariances", "weights"),
    [([1.0, 1.0], None), ([0.25, 4.0, 1.0], None), ([[1.0, 1.0], [9.0, 4.0]], [0.3, 0.7])],
)
def test_weighted_features_have_the_gaussian_kernel(covariances, weights):
    # erratum of eq. (43): with C**2 = 4 + 2 / d**2 the kernel would be 0.9 at zero for d = 2
    variances = np.atleast_2d(np.asarray(covariances))
    share = np.ones(1) if weights is None else np.asarray(weights)
    omega = sample_frequencies("clustering", covariances, 400_000, weights=weights, seed=1)
    power = np.square(importance_weights(omega, covariances, weights))
    for x in (np.zeros(variances.shape[1]), np.linspace(0.3, 0.9, variances.shape[1])):
        kernel = share @ np.exp(-0.5 * (x**2 / variances).sum(axis=1))
        assert (power * np.cos(x @ omega)).mean() == pytest.approx(kernel, abs=6e-3)


def test_importance_weights_are_those_of_eq_41_and_42():
    omega = sample_frequencies("clustering", np.full(4, 9.0), 50, seed=3)
    w = 1 + 9.0 * np.square(omega).sum(axis=0) / 4
    np.testing.assert_allclose(importance_weights(omega, np.full(4, 9.0)), np.sqrt(4.5) / w)


def test_characters_of_categorical_features():
    levels = Categories((None, tuple("abcde"), None, (False, True)))
    cycles = sample_mixed("sparse-radius", np.ones(4), levels, 200)
    used = (cycles != 0).sum(axis=0)
    assert set(used.tolist()) == {1, 2, 3, 4}
    # all characters of single columns, up to conjugates
    single = cycles[:, used == 1]
    assert sorted(single[1][single[1] != 0]) == pytest.approx([0.2, 0.4])
    assert 0.5 in single[3]
    for column, size in ((1, 5), (3, 2)):
        h = cycles[column] * size
        np.testing.assert_allclose(h, np.rint(h), atol=1e-12)
        assert np.abs(cycles[column]).max() <= 0.5
    assert (used > 1).sum() > 120
    # a uniform level would hide a number that is independent of it
    assert (cycles[[1, 3]] == 0).all(axis=0).sum() > 40
    assert len(np.unique(cycles, axis=1).T) == 200


def test_gaussian_frequencies_have_a_product_kernel():
    levels = Categories((None, ("a", "b", "c")))
    cycles = sample_mixed("gaussian", [4.0, 1.0], levels, 40_000)
    half = np.exp(-0.5)
    for away, expected in (([0, 1], 0.5), ([2, 0], half), ([2, 2], 0.5 * half)):
        assert abs(np.cos(2 * np.pi * np.array(away) @ cycles).mean() - expected) < 0.02
