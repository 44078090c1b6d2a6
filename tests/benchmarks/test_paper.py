"""Every experiment of `make paper` runs at toy size, and what it compares with is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.gaussian_process.kernels import RBF

from dask_sketch import FeatureMap, GaussianMixture, decode
from dask_sketch.diagnostics import component_risk_bound
from dask_sketch.distributions import PatternSearch, ProbitRegions, mean_map_kernel
from dask_sketch.models import random_mixture
from tests.benchmarks import learning
from tests.benchmarks.paper import (
    active_search,
    divergence_cases,
    kernel_choice,
    mixtures,
    quadratic,
    rivals,
    thesis,
)
from tests.benchmarks.paper.__main__ import main, measured, report
from tests.benchmarks.paper.acceptance import ROWS, Goal, reached
from tests.benchmarks.paper.anisotropy import stretched
from tests.benchmarks.paper.catalogue import EXPERIMENTS
from tests.benchmarks.paper.missing_cases import overlapping_mixture
from tests.benchmarks.paper.records import Line, Run
from tests.benchmarks.paper.sizes import exact_sketch
from tests.benchmarks.paper.tables import table

# the other rows of mixtures are the same function at larger sizes
QUICK_ROWS = [name for name in ROWS if name not in ("gmm-10", "gmm-20")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder like that of the real data: noise in place of speech, blobs in place of digits."""
    soundfile = pytest.importorskip("soundfile")
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(10, 10))
    features = centers[rng.integers(10, size=2000)] + 0.3 * rng.normal(size=(2000, 10))
    np.savez(folder / "mnist_spectral.npz", features=features.astype(np.float32))
    images = rng.integers(0, 256, (2000, 28, 28), dtype=np.uint8)
    np.savez(folder / "mnist.npz", images=images)
    (folder / "fsdd").mkdir()
    quiet = np.zeros(800)
    for number in range(5):
        sound = np.concatenate([quiet, 0.2 * rng.normal(size=4000), quiet])
        soundfile.write(folder / "fsdd" / f"{number}_ann_0.wav", sound, 8000)
    return folder


# the others take seconds each and share their code
QUICK = {"gmm-2"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # poor fits, few frequencies: that is the point
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in (*EXPERIMENTS, *QUICK_ROWS)
    ],
)
def test_experiment_at_toy_size(name, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mixtures, "KL_SAMPLES", 2_000)
    entry = {**EXPERIMENTS, **ROWS}[name]
    runs = measured(entry, "toy", data, workers=0)
    assert runs
    assert all(math.isfinite(run.value) for run in runs)
    text = report(entry, runs)
    assert entry.title in text
    assert len(text.splitlines()) > 4
    draw = getattr(entry, "draw", None)
    if draw is not None:
        draw(runs).savefig(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_errors_of_random_features_are_as_printed():
    runs = thesis.errors_of_features("sine-cosine", (50, 400), 40)
    scaled = [run for run in runs if run.setting["measure"] == "D times mean squared error"]
    assert scaled[0].value == pytest.approx(scaled[0].paper, rel=0.2)
    assert runs[-1].value == pytest.approx(-0.5, abs=0.1)


def test_variance_of_the_u_statistic():
    # errata of section 6.2: the variance is neither 400 times as large nor without its last term
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        rows = np.concatenate(kernel_choice.wider(rng, 60))
        squares = np.sum((rows[:, None] - rows) ** 2, axis=2)
        matrices = kernel_choice.grams(squares, 1.0)
        found.append(
            [of(*matrices) for of in (kernel_choice.u_statistic, kernel_choice.u_variance)]
        )
    squared, variance = np.transpose(found)
    assert variance.mean() == pytest.approx(squared.var(), rel=0.25)
    p = GaussianMixture([1.0], np.zeros((1, 2)), np.ones((1, 2)))
    q = GaussianMixture([1.0], np.zeros((1, 2)), [[2.0, 1.0]])
    kernels = [mean_map_kernel(a, b, bandwidth=1.0) for a, b in ((p, p), (q, q), (p, q))]
    exact = kernels[0] + kernels[1] - 2 * kernels[2]
    assert squared.mean() == pytest.approx(exact, abs=4 * squared.std() / np.sqrt(300))


def test_permuted_statistics_are_discrepancies():
    rng = np.random.default_rng(0)
    rows = np.concatenate(kernel_choice.wider(rng, 30))
    squares = np.sum((rows[:, None] - rows) ** 2, axis=2)
    xx, yy, xy = kernel_choice.grams(squares, 1.0)
    inner = sum(k.sum() - np.trace(k) for k in (xx, yy)) / (30 * 29)
    signs = np.repeat([[-1.0, 1.0]], 30, axis=1)
    values = kernel_choice.permuted(squares, 1.0, signs)
    np.testing.assert_allclose(values, inner - 2 * xy.mean())


@pytest.mark.slow
def test_neighbors_count_components_better_than_a_constant():
    old, y = learning.drawn_groups(np.random.default_rng(0), 60, (60, 60))
    new, truth = learning.drawn_groups(np.random.default_rng(1), 30, (60, 60))
    errors = [truth - thesis.by_neighbors(old, y, new), truth - y.mean()]
    assert np.std(errors[0]) < np.std(errors[1])


def test_plug_in_of_kernel_densities():
    p, q = (GaussianMixture([1.0], [[mean]], [[1.0]]) for mean in (0.0, 1.0))
    x, y = p.sample(2000, seed=0), q.sample(2000, seed=1)
    logs = divergence_cases.log_densities(x, y)
    assert divergence_cases.plug_in(logs, "kl") == pytest.approx(0.5, abs=0.1)
    assert divergence_cases.plug_in(logs, "js") == pytest.approx(0.11, abs=0.03)
    exact = 1.0 - np.exp(-0.125)
    assert divergence_cases.plug_in(logs, "squared-hellinger") == pytest.approx(exact, abs=0.03)


def test_level_sets_are_sought_where_they_are_ambiguous():
    search = PatternSearch(
        np.array([[0.0], [50.0], [100.0]]),
        RBF(1.0),
        ProbitRegions.of_means(np.eye(3, dtype=bool), active_search.LEVEL),
        noise_variance=0.01,
    )
    search.observe(0, 5.0)
    search.observe(1, active_search.LEVEL + 0.3)
    search.observe(2, active_search.LEVEL)
    chosen = active_search.by_level_set()(search, np.arange(3), np.random.default_rng(0))
    assert chosen == 2


def test_missing_data_is_said_and_not_fatal(tmp_path):
    result = CliRunner().invoke(main, ["shift-8", "--workers", "0", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert "shift-8: skipped" in result.output
    assert CliRunner().invoke(main, ["shift-9"]).exit_code == 2


def test_mmd_is_that_of_two_points_in_closed_form():
    # Gaussian kernel, two all but point-like components: MMD^2 = 2 - 2 exp(-|a - b|^2 / 2)
    p = GaussianMixture([1.0], [[0.0, 0.0]], [[1e-9, 1e-9]])
    q = GaussianMixture([1.0], [[1.0, 0.0]], [[1e-9, 1e-9]])
    feature_map = FeatureMap(2, 1, scale=1.0, distribution="gaussian")
    found = mixtures.mmd(p, q, feature_map, seed=0, n_frequencies=100_000)
    assert found**2 == pytest.approx(2 - 2 * np.exp(-0.5), abs=0.01)


def test_quadratic_measurements_have_the_stated_norms_and_are_decoded():
    rng = np.random.default_rng(0)
    matrix = quadratic.positive(rng.normal(size=(6, 6)), 2)
    size, trace = (matrix**2).sum(), np.trace(matrix)
    norms = [
        (quadratic.measure(make(6, 20_000, rng), matrix) ** 2).sum()
        for make in (quadratic.dense, quadratic.rank_one)
    ]
    np.testing.assert_allclose(norms, [size, size + trace**2], rtol=0.05)
    operator = quadratic.dense(6, 40, rng)
    found = quadratic.low_rank_decoder(operator, quadratic.measure(operator, matrix), 2)
    np.testing.assert_allclose(found, matrix, atol=1e-8)
    operator = quadratic.rank_one(6, 40, rng)
    found = quadratic.semidefinite_decoder(operator, quadratic.measure(operator, matrix))
    np.testing.assert_allclose(found, matrix, atol=1e-5)


def test_components_of_quadratic_measurements_are_within_the_bound():
    """Theorem 3.1, with the restricted isometry (32) of sampled matrices of rank 2 k."""
    rng, d, k = np.random.default_rng(0), 8, quadratic.K
    operator = quadratic.dense(d, 250, rng)
    ratios = []
    for _ in range(200):
        pair = [quadratic.positive(rng.normal(size=(d, d)), k) for _ in range(2)]
        apart = pair[0] - pair[1]
        ratios.append((quadratic.measure(operator, apart) ** 2).sum() / (apart**2).sum())
    delta = np.abs(np.array(ratios) - 1.0).max()
    assert delta < 0.6
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    covariance = (axes / np.arange(1.0, d + 1.0)) @ axes.T
    components = quadratic.low_rank(operator, covariance)
    risk = np.trace(covariance) - np.trace(components @ covariance @ components.T)
    best = (1.0 / np.arange(k + 1.0, d + 1.0)).sum()  # eq. (212)
    bound = component_risk_bound(k, best, 0.0, delta=delta)
    assert 0.0 <= risk - best <= 0.02 * bound.total  # the bound is far from sharp


def test_exact_sketch_gives_the_distribution_back():
    truth = random_mixture(2, 2, seed=0)
    feature_map = FeatureMap(2, 50, scale=1.0, center=np.array([1.0, -2.0]))
    summary = exact_sketch(truth, feature_map)
    np.testing.assert_allclose(
        summary.characteristic, truth.characteristic(feature_map.frequencies), atol=1e-12
    )
    np.testing.assert_allclose(summary.mean, truth.mean, atol=1e-12)
    np.testing.assert_allclose(summary.variance, truth.variance)
    model = decode(summary, 2)
    np.testing.assert_allclose(
        np.sort(model.means, axis=0), np.sort(truth.means, axis=0), atol=1e-4
    )


@pytest.mark.slow
def test_both_starts_of_em_end_at_the_same_maximum():
    truth = random_mixture(3, 2, seed=0)
    x = truth.sample(20_000, seed=1)
    found = [rivals.em(x, 3, seed=0).score(x), rivals.em_from(truth, x).score(x)]
    gain = 14 / (2 * len(x))  # of fitting noise, on average
    assert found[0] == pytest.approx(found[1], abs=0.1 * gain)
    assert min(found) > truth.score(x)


def test_mean_squared_error_of_lloyd():
    x = np.array([[0.0], [1.0], [10.0], [12.0]])
    assert rivals.mean_squared_error(x, rivals.lloyd(x, 2, seed=0)) == pytest.approx(0.625)


def test_stretched_components_have_covariance_one_before():
    distribution = stretched(4.0, seed=0)
    np.testing.assert_allclose(distribution.covariances[:, 0], 1 / 16)
    np.testing.assert_allclose(distribution.covariances[:, -1], 1.0)


RUNS = [
    Run({"m": 10}, "ours", seed, value, 1.0, paper=-9.2, bound=-10.0)
    for seed, value in enumerate((-9.0, -9.5, -9.7))
]
REFERENCE = Run({}, "EM", 0, -9.6, 2.0)


def test_table_has_paper_ours_reference_and_bound_in_one_line():
    last = table("title", [*RUNS, REFERENCE]).splitlines()[-1].split()
    assert last == ["10", "ours", "-9.20", "-9.40", "-9.50", "-9.00", "-9.60", "-10.00", "1.00",
                    "2.00"]  # fmt: skip


def test_goals():
    line, beside = Line({"m": 10}, "ours", tuple(RUNS)), {"EM": Line({}, "EM", (REFERENCE,))}
    assert reached(Goal("ours", -9.4), line, beside)
    assert not reached(Goal("ours", -9.45), line, beside)
    assert reached(Goal("ours", -9.45, statistic="median"), line, beside)
    assert reached(Goal("ours", 0.21, over="EM"), line, beside)
    assert not reached(Goal("ours", 0.19, over="EM"), line, beside)
    assert not reached(Goal("ours", least=-9.3), line, beside)
    with pytest.raises(ValueError, match="Lloyd"):
        reached(Goal("ours", 1.0, over="Lloyd"), line, {**beside, "Lloyd": None})


def test_nearest_components_are_as_far_apart_as_stated():
    found = overlapping_mixture(6, 3, 1.5, seed=1)
    away = [
        min(
            np.sqrt(((found.means[i] - found.means[j]) ** 2 / (0.5 * (u + v))).sum())
            for j, v in enumerate(found.covariances)
            if j != i
        )
        for i, u in enumerate(found.covariances)
    ]
    assert np.median(away) == pytest.approx(1.5)
