"""Discrepancies with errors, streaming estimates, mean map kernels and witness functions."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch import Centroids, FeatureMap, GaussianMixture, partial_sketch
from dask_sketch.distributions import BlockMMD, estimate_mmd, mean_map_kernel, witness
from dask_sketch.errors import InputError, MergeError
from dask_sketch.models import random_mixture

MAP = FeatureMap(2, 100, scale=1.0, distribution="gaussian")
P, Q = random_mixture(2, 2, seed=0), random_mixture(2, 2, seed=1)


def gaussian_kernel(x, y, bandwidth=1.0):
    return np.exp(-0.5 * np.sum((x[:, None] - y) ** 2, axis=2) / bandwidth**2)


def sketch_of(x):
    return partial_sketch(x, MAP, sample=300)


@pytest.mark.slow
@pytest.mark.parametrize("other", [P, Q])
def test_errors_of_independent_rows(other):
    exact = np.mean(
        np.abs(P.characteristic(MAP.frequencies) - other.characteristic(MAP.frequencies)) ** 2
    )
    found = [
        estimate_mmd(
            sketch_of(P.sample(300, seed=2 * k)), sketch_of(other.sample(500, seed=2 * k + 1))
        )
        for k in range(30)
    ]
    squared = np.array([one.squared for one in found])
    assert squared.mean() == pytest.approx(exact, abs=4 * squared.std() / np.sqrt(30))
    ratio = np.mean([one.standard_error for one in found]) / squared.std()
    assert 0.7 < ratio < 1.4
    inside = [one.interval[0] <= np.sqrt(exact) <= one.interval[1] for one in found]
    assert np.mean(inside) >= 0.8
    assert min(one.biased - one.squared for one in found) > 0


def test_squares_are_those_of_mmd():
    a, b = sketch_of(P.sample(1000, seed=0)), sketch_of(Q.sample(1000, seed=1))
    found = estimate_mmd(a, b)
    assert found.squared == ds.mmd(a, b, squared=True)
    assert found.discrepancy == ds.mmd(a, b)
    assert found.biased == pytest.approx(np.linalg.norm(a.z - b.z) ** 2)
    assert (found.unit, found.n_units) == ("row", (1000, 1000))
    assert "discrepancy" in repr(found)
    assert "within" in found._repr_html_()


def test_errors_of_weights_without_a_variance():
    feature_map = FeatureMap(2, 50, scale=1.0, seed=0)

    def drawn(rng):
        x, weights = rng.normal(size=(1000, 2)), 1.0 + rng.pareto(1.2, 1000)
        return ds.sketch(x, feature_map, weights=weights, sample=500)

    pairs = [[drawn(rng) for _ in range(2)] for rng in map(np.random.default_rng, range(60))]
    found = [estimate_mmd(*pair) for pair in pairs]
    assert np.mean([estimate.interval[0] > 0 for estimate in found]) <= 0.1
    assert 0.4 < np.mean([estimate.squared < 0 for estimate in found]) < 0.8


@pytest.mark.slow
def test_errors_of_dependent_rows_in_groups():
    rng = np.random.default_rng(0)

    def days(n):
        level = rng.normal(size=(n, 1, 2))  # all rows of a day move together
        x = (level + 0.3 * rng.normal(size=(n, 20, 2))).reshape(-1, 2)
        return partial_sketch(x, MAP, groups=np.repeat(np.arange(n), 20), dim="day")

    found = [estimate_mmd(days(12), days(15)) for _ in range(60)]
    squared = np.array([one.squared for one in found])
    assert abs(squared.mean()) < 4 * squared.std() / np.sqrt(60)
    assert 0.7 < np.mean([one.standard_error for one in found]) / squared.std() < 1.4
    assert (found[0].unit, found[0].n_units) == ("day", (12, 15))
    assert np.isnan(estimate_mmd(days(2), days(2)).standard_error)


def test_errors_of_the_features():
    x, y = P.sample(300, seed=0), Q.sample(300, seed=1)
    found = []
    for seed in range(40):
        feature_map = FeatureMap(2, 60, scale=1.0, distribution="gaussian", seed=seed)
        groups = [partial_sketch(side, feature_map, groups=np.arange(300) % 10) for side in (x, y)]
        found.append(estimate_mmd(*groups))
    biased = np.array([one.biased for one in found])
    kernels = [gaussian_kernel(*pair).mean() for pair in ((x, x), (y, y), (x, y))]
    exact = kernels[0] + kernels[1] - 2 * kernels[2]
    assert biased.mean() == pytest.approx(exact, abs=4 * biased.std() / np.sqrt(40))
    assert 0.7 < np.mean([one.feature_error for one in found]) / biased.std() < 1.4
    dependent = FeatureMap(2, 64, scale=1.0, distribution="sparse-sums")
    groups = [partial_sketch(side, dependent, groups=np.arange(300) % 10) for side in (x, y)]
    assert estimate_mmd(*groups).feature_error is None


@pytest.mark.parametrize("size", [2, 5])
def test_blocks_have_the_corrected_u_statistic(size):
    x, y = P.sample(23, seed=0), Q.sample(21, seed=1)
    values = []
    for start in range(0, 21 - size + 1, size):
        total = 0.0
        for i, j in itertools.permutations(range(start, start + size), 2):
            k = [gaussian_kernel(a[[i]], b[[j]], 0.8)[0, 0] for a, b in ((x, x), (y, y))]
            k += [gaussian_kernel(x[[i]], y[[j]], 0.8)[0, 0]]
            k += [gaussian_kernel(x[[j]], y[[i]], 0.8)[0, 0]]
            total += k[0] + k[1] - k[2] - k[3]
        values.append(total / (size * (size - 1)))
    found = BlockMMD.of_rows(x, y, 0.8, size)
    assert found.n_blocks == len(values)
    assert found.squared == pytest.approx(np.mean(values))
    pairs = np.array(values)[: len(values) // 2 * 2].reshape(-1, 2)
    variance = np.mean(np.diff(pairs, axis=1) ** 2) / 2 / len(values)
    assert found.variance == pytest.approx(variance)


def test_variance_of_the_streaming_estimate():
    # eq. (6.4) as printed is larger by the number of rows, and (6.3) by the square of half of it
    found = [
        BlockMMD.of_rows(P.sample(400, seed=2 * k), Q.sample(400, seed=2 * k + 1), 1.0)
        for k in range(150)
    ]
    squared = np.array([one.squared for one in found])
    kernels = [mean_map_kernel(a, b, bandwidth=1.0) for a, b in ((P, P), (Q, Q), (P, Q))]
    exact = kernels[0] + kernels[1] - 2 * kernels[2]
    assert squared.mean() == pytest.approx(exact, abs=4 * squared.std() / np.sqrt(150))
    assert np.mean([one.variance for one in found]) == pytest.approx(squared.var(), rel=0.4)
    inside = [one.interval(0.1)[0] <= exact <= one.interval(0.1)[1] for one in found]
    assert 0.8 < np.mean(inside) < 0.97


def test_level_of_the_streaming_test():
    x, y = (P.sample(30_000, seed=seed).reshape(150, 200, 2) for seed in (0, 1))
    p = [BlockMMD.of_rows(a, b, 1.0).p_value for a, b in zip(x, y, strict=True)]
    assert 0.02 < np.mean(np.array(p) < 0.1) < 0.2


def test_blocks_are_merged():
    x, y = P.sample(400, seed=0), Q.sample(400, seed=1)
    whole = BlockMMD.of_rows(x, y, 1.0, 4)
    parts = [BlockMMD.of_rows(x[s], y[s], 1.0, 4) for s in (slice(0, 160), slice(160, 400))]
    merged = sum(parts)
    assert (merged.n_blocks, merged.n_steps) == (whole.n_blocks, whole.n_steps)
    assert merged.squared == pytest.approx(whole.squared)
    assert merged.variance == pytest.approx(whole.variance)
    far = BlockMMD.of_rows(x + 1e6, y + 1e6, 1.0, 4)
    assert far.squared == pytest.approx(whole.squared, abs=1e-6)
    with pytest.raises(MergeError, match="bandwidth is 1.0 and 2.0"):
        _ = whole + BlockMMD.of_rows(x, y, 2.0, 4)
    assert np.isnan(BlockMMD.of_rows(x[:2], y[:2], 1.0).variance)


def test_mean_map_kernel_of_models():
    full = np.array([[[1.0, 0.4], [0.4, 0.8]]])
    tilted = GaussianMixture([1.0], [[0.5, -0.5]], full, covariance_type="full")
    exact = mean_map_kernel(P, tilted, bandwidth=0.7)
    values = gaussian_kernel(P.sample(1000, seed=0), tilted.sample(1000, seed=1), 0.7)
    error = np.hypot(values.mean(axis=0).std(), values.mean(axis=1).std()) / np.sqrt(1000)
    assert values.mean() == pytest.approx(exact, abs=4 * error)
    points = Centroids([0.25, 0.75], [[0.0, 0.0], [1.0, 2.0]])
    own = gaussian_kernel(points.centers, points.centers, 0.7)
    expected = points.weights @ own @ points.weights
    assert mean_map_kernel(points, points, bandwidth=0.7) == pytest.approx(expected)


def test_mean_map_kernel_of_sketches_and_models():
    x, y = P.sample(50, seed=0), Q.sample(60, seed=1)
    a, b = partial_sketch(x, MAP), partial_sketch(y, MAP)
    waves = [np.exp(-1j * side @ MAP.frequencies) for side in (x, y)]
    pairs = (waves[0] @ waves[1].conj().T).real / 100
    assert mean_map_kernel(a, b) == pytest.approx(pairs.mean(), abs=1e-6)
    against = np.mean((waves[0].mean(axis=0) * Q.characteristic(MAP.frequencies).conj()).real)
    assert mean_map_kernel(a, Q) == pytest.approx(against, abs=1e-6)
    assert mean_map_kernel(Q, a) == mean_map_kernel(a, Q)


def test_mean_map_kernel_of_groups():
    x, label = P.sample(90, seed=0), np.arange(90) % 3
    group = partial_sketch(x, MAP, groups=label, dim="day")
    matrix = mean_map_kernel(group)
    assert matrix.dims == ("day", "other_day")
    assert float(matrix[0, 2]) == pytest.approx(mean_map_kernel(group[0], group[2]))
    unbiased = mean_map_kernel(group, unbiased=True)
    waves = np.exp(-1j * x[label == 1] @ MAP.frequencies)
    own = (waves @ waves.conj().T).real / 100
    expected = (own.sum() - np.trace(own)) / (30 * 29)
    assert float(unbiased[1, 1]) == pytest.approx(expected, abs=1e-6)
    assert float(unbiased[0, 1]) == float(matrix[0, 1])
    squares = np.diag(unbiased)[:, None] + np.diag(unbiased) - 2 * unbiased
    np.testing.assert_allclose(
        squares.values[0, 1], ds.mmd(group, squared=True).values[0, 1], atol=1e-12
    )
    other = group.select([0, 1])
    np.testing.assert_allclose(mean_map_kernel(group, other), matrix[:, :2])


def test_witness():
    x, y, t = P.sample(200, seed=0), Q.sample(300, seed=1), P.sample(20, seed=2)
    wide = FeatureMap(2, 4000, scale=1.0, distribution="gaussian")
    a, b = partial_sketch(x, wide), partial_sketch(y, wide)
    found = witness(a, b, t)
    exact = gaussian_kernel(t, x).mean(axis=1) - gaussian_kernel(t, y).mean(axis=1)
    np.testing.assert_allclose(found, exact, atol=0.06)
    mean = mean_map_kernel(a, a) - mean_map_kernel(a, b)
    assert witness(a, b, x).mean() == pytest.approx(mean, abs=1e-6)
    np.testing.assert_allclose(witness(a, Q, t), -witness(Q, a, t))


def test_witness_of_some_columns():
    x, y = P.sample(2000, seed=0), Q.sample(3000, seed=1)
    a, b = partial_sketch(x, MAP), partial_sketch(y, MAP)
    points = np.linspace(-3.0, 3.0, 5)
    # averaged over normal values of the other column
    mean, variance = ((one + two) / 2 for one, two in zip(a.extent, b.extent, strict=True))
    others = np.random.default_rng(2).normal(mean[0], np.sqrt(variance[0]), 20_000)
    for point, found in zip(points, witness(a, b, points[:, None], columns=[1]), strict=True):
        rows = np.column_stack([others, np.full(len(others), point)])
        values = witness(a, b, rows)
        assert found == pytest.approx(values.mean(), abs=5 * values.std() / np.sqrt(len(values)))
    swapped = witness(a, b, x[:5, ::-1], columns=[1, 0])
    np.testing.assert_allclose(swapped, witness(a, b, x[:5]))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda a: estimate_mmd(a, P), "GaussianMixture.*compare_model"),
        (lambda a: estimate_mmd(a, a), "random rows"),
        (lambda a: BlockMMD.of_rows([[1.0]], [[1.0]], 1.0), "block_size=2"),
        (lambda a: BlockMMD.of_rows([[1.0]], [[1.0]], 0.0), "bandwidth=0"),
        (lambda a: BlockMMD.of_rows(np.ones((4, 1)), np.ones((4, 2)), 1.0), "1 features, y 2"),
        (lambda a: mean_map_kernel(P, Q), "bandwidth=None"),
        (lambda a: mean_map_kernel(a, Q, bandwidth=1.0), "bandwidth=1"),
        (lambda a: mean_map_kernel(a, a, bandwidth="wide"), "bandwidth='wide'"),
        (
            lambda a: mean_map_kernel(
                partial_sketch(P.sample(4), MAP, groups=[0, 0, 1, 1]), bandwidth=1.0
            ),
            "bandwidth=1",
        ),
        (lambda a: mean_map_kernel(P, random_mixture(1, 3), bandwidth=1.0), "2 features, second 3"),
        (lambda a: mean_map_kernel(a, [1.0]), "type list"),
        (lambda a: mean_map_kernel(a, a, unbiased=True), "unbiased=True"),
        (lambda a: mean_map_kernel(P, Q, bandwidth=1.0, unbiased=True), "unbiased=True"),
        (lambda a: witness(P, Q, [[0.0, 0.0]]), "GaussianMixture"),
        (lambda a: witness(a, P, [[0.0]]), "1 features"),
        (lambda a: witness(a, P, [[0.0]], columns=[2]), r"columns=\[2\]"),
        (lambda a: witness(a, P, [[0.0, 0.0]], columns=[1, 1]), r"columns=\[1, 1\]"),
        (lambda a: witness(a, P, [[0.0, 0.0]], columns=[1]), "2 features, not 1"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(InputError, match=match):
        call(partial_sketch(P.sample(10), MAP))


def test_a_kernel_of_too_many_groups(monkeypatch):
    group = partial_sketch(P.sample(20), MAP, groups=np.arange(20) % 4)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("", (), {"available": 99}))
    with pytest.raises(InputError, match="4 groups, second 4"):
        mean_map_kernel(group)


def test_features_of_other_names_are_refused():
    a, b = (replace(P, feature_names=names) for names in (("a", "b"), ("b", "a")))
    frame = pd.DataFrame(P.sample(200, seed=0), columns=["a", "b"])
    x = partial_sketch(frame, replace(MAP, feature_names=("a", "b")))
    turned = frame[["b", "a"]]
    np.testing.assert_array_equal(witness(x, a, frame), witness(x, P, frame.to_numpy()))
    np.testing.assert_array_equal(
        witness(x, a, frame[["b"]], columns=[1]),
        witness(x, a, frame[["b"]].to_numpy(), columns=[1]),
    )
    plain = partial_sketch(frame, MAP)
    mean_map_kernel(plain, b)
    for run, argument, value in (
        (lambda: mean_map_kernel(a, b, bandwidth=1.0), "second", "'b'"),
        (lambda: mean_map_kernel(x, b), "second", "'b'"),
        (lambda: mean_map_kernel(a, partial_sketch(turned, replace(MAP, feature_names=("b", "a")))),
         "second", "'b'"),
        (lambda: witness(x, b, frame), "second", "'b'"),
        (lambda: witness(b, x, frame), "second", "'a'"),
        (lambda: witness(x, a, turned), "x", "'b'"),
        (lambda: witness(plain, a, turned), "x", "'b'"),
        (lambda: witness(x, a, frame[["a"]], columns=[1]), "x", "'a'"),
        (lambda: BlockMMD.of_rows(frame, turned, 1.0), "y", "'b'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"feature 0 of {argument} is {value}; ") as caught:
            run()
        assert caught.value.parameter == argument
