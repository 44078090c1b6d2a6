"""Divergences on nodes: the densities of kernels, and errors that cover the truth."""

import numpy as np
import pytest

from dask_sketch import GaussianMixture
from dask_sketch.distributions import DensityNodes, divergence, node_divergence
from dask_sketch.errors import InputError

KINDS = ("kl", "js", "tv", "squared-hellinger", "renyi", "alpha")
NODES = DensityNodes(np.array([-6.0]), np.array([7.0]), 60, np.array([0.25]))


def normal(mean, variance=1.0):
    return GaussianMixture([1.0], [[mean]], [[variance]])


def smoothed(gap, kind):
    """Divergence of two normal distributions after convolution with the kernel."""
    sides = [normal(mean, 1.0 + 0.25**2) for mean in (0.0, gap)]
    return divergence(*sides, kind, n_draws=100_000).value if gap else 0.0


@pytest.mark.filterwarnings("ignore:.*smoothing")  # these densities are exact
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_densities(kind):
    alpha = 0.3 if kind in ("renyi", "alpha") else None
    points = NODES.points[:, 0]
    sides = [np.exp(-0.5 * (points - mean) ** 2) / np.sqrt(2 * np.pi) for mean in (0.0, 1.0)]
    found = node_divergence(NODES, *(1e6 * p for p in sides), (1e6, 1e6), kind, alpha=alpha)
    exact = divergence(normal(0.0), normal(1.0), kind, alpha=alpha)
    assert found.value == pytest.approx(exact.value, abs=4 * exact.standard_error)
    assert found.interval[0] < found.value < found.interval[1]
    assert 0.0 < found.standard_error < 0.01 * exact.value
    assert found.method == "nodes"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:kind='kl'")  # of few rows in the tails
@pytest.mark.parametrize("gap", [0.0, 0.15, 1.0])
def test_intervals_of_independent_rows_cover_the_smoothed_divergence(gap):
    rng = np.random.default_rng(0)
    truth = {kind: smoothed(gap, kind) for kind in KINDS}
    found = {kind: [] for kind in KINDS}
    for _ in range(60):
        sides = [NODES.kernel_sums(rng.normal(mean, 1.0, (1000, 1))) for mean in (0.0, gap)]
        for kind in KINDS:
            found[kind].append(node_divergence(NODES, *sides, (1000, 1000), kind))
    for kind, all_found in found.items():
        ends = np.array([one.interval for one in all_found])
        covered = (ends[:, 0] <= truth[kind]) & (truth[kind] <= ends[:, 1])
        assert covered.mean() > 0.85, kind
        if kind != "tv":
            excess = np.mean([one.value for one in all_found]) - truth[kind]
            found_excess = np.mean([one.bias for one in all_found])
            assert found_excess == pytest.approx(excess, abs=0.4 * excess + 0.02 * truth[kind])


def test_partitions_are_the_units():
    rng = np.random.default_rng(1)
    n_rows, found = np.full(12, 100), {True: [], False: []}
    for _ in range(60):
        sides = []
        for mean in (0.0, 0.8):
            days = rng.normal(mean, np.sqrt(0.2), 12)  # rows of a day depend
            rows = rng.normal(days[:, None], np.sqrt(0.8), (12, 100))
            sides.append(np.stack([NODES.kernel_sums(day[:, None]) for day in rows]))
        found[True].append(node_divergence(NODES, *sides, (n_rows, n_rows)))
        sums = [side.sum(axis=0) for side in sides]
        found[False].append(node_divergence(NODES, *sums, (1200, 1200)))
    truth = smoothed(0.8, "js")
    covered = {
        parts: np.mean([one.interval[0] <= truth <= one.interval[1] for one in all_found])
        for parts, all_found in found.items()
    }
    assert covered[True] > 0.85
    assert covered[False] < 0.7
    assert found[True][0].value == pytest.approx(found[False][0].value)


@pytest.mark.filterwarnings("ignore:.*smoothing")  # which does not matter for the comparison
def test_partitions_of_independent_rows_have_the_errors_of_independent_rows():
    rng = np.random.default_rng(2)
    nodes = DensityNodes(np.full(2, -5.0), np.full(2, 6.0), 24, np.full(2, 0.4))
    parts = [
        np.stack([nodes.kernel_sums(rng.normal(mean, 1.0, (50, 2))) for _ in range(200)])
        for mean in (0.0, 0.7)
    ]
    n_rows = np.full(200, 50)
    for kind in ("js", "squared-hellinger", "renyi", "tv"):
        units = node_divergence(nodes, *parts, (n_rows, n_rows), kind)
        rows = node_divergence(nodes, *(p.sum(axis=0) for p in parts), (1e4, 1e4), kind)
        assert units.value == pytest.approx(rows.value)
        assert units.standard_error == pytest.approx(rows.standard_error, rel=0.25)
        assert units.bias == pytest.approx(rows.bias, abs=0.5 * rows.standard_error)


def test_tails_without_rows_warn():
    rng = np.random.default_rng(3)
    sides = [NODES.kernel_sums(rng.normal(mean, 1.0, (300, 1))) for mean in (-2.0, 3.0)]
    with pytest.warns(UserWarning, match="kind='kl'"):
        node_divergence(NODES, *sides, (300, 300), "kl")
    with pytest.warns(UserWarning, match=r"second has the mass 0\.5"):
        node_divergence(NODES, *sides, (300, 600), "js")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "l2"}, "kind='l2'"),
        ({"level": 0.0}, "level=0.0"),
        ({"n_samples": 5}, "n_samples=5"),
        ({"n_samples": (5, 0)}, "n_samples"),
        ({"n_samples": (5, [2, 3])}, r"n_samples of shape \(2,\)"),
        ({"first": np.ones(7)}, r"first has shape \(7,\)"),
        ({"second": -np.ones(60)}, "second of type ndarray"),
        ({"second": np.ones((2, 60)), "n_samples": (5, [2, 3])}, r"second \(2, 60\)"),
        ({"first": np.ones((1, 60)), "n_samples": ([5], 5)}, r"first of shape \(1, 60\)"),
    ],
)
def test_bad_arguments(change, match):
    given = {"first": np.ones(60), "second": np.ones(60), "n_samples": (5, 5)} | change
    with pytest.raises(InputError, match=match):
        node_divergence(NODES, **given)


@pytest.mark.slow
def test_smoothing_that_matters_warns():
    rng = np.random.default_rng(4)
    rows = [rng.normal(mean, 0.5, (20_000, 1)) for mean in (0.0, 1.0)]
    for bandwidth, n_side in ((0.4, 40), (0.02, 500)):
        nodes = DensityNodes(np.array([-4.0]), np.array([5.0]), n_side, np.array([bandwidth]))
        sides = [nodes.kernel_sums(x) for x in rows]
        if bandwidth > 0.1:
            with pytest.warns(UserWarning, match="kind='js'.*smoothing"):
                node_divergence(nodes, *sides, (20_000, 20_000))
        else:
            node_divergence(nodes, *sides, (20_000, 20_000))


def test_intervals_of_few_partitions_of_dependent_rows_cover_the_divergence():
    nodes = DensityNodes(np.array([-9.0]), np.array([10.0]), 120, np.array([0.3]))
    truth = divergence(normal(0.0, 1.58), normal(0.8, 1.58), "js", n_draws=200_000).value
    n_rows, within = np.full(8, 60), 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        first, second = (
            np.stack(
                [
                    nodes.kernel_sums(mean + 0.7 * rng.normal() + rng.normal(size=(60, 1)))
                    for _ in range(8)
                ]
            )
            for mean in (0.0, 0.8)
        )
        low, high = node_divergence(nodes, first, second, (n_rows, n_rows), "js").interval
        within += low <= truth <= high
    assert within >= 84
