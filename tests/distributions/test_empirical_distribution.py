import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from dask_sketch import FeatureMap, GaussianMixture, design, partial_sketch, privatise
from dask_sketch.distributions import EmpiricalDistribution, MeanEstimate
from dask_sketch.errors import InputError, SketchError
from dask_sketch.graph.lazy import LazyResult

CENTERS = np.array([[-3.0, 0.0, 1.0], [3.0, 1.0, 0.0], [0.0, 4.0, -1.0]])


def clusters(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return CENTERS[rng.integers(0, 3, n)] + rng.normal(size=(n, 3))


@pytest.fixture(scope="module")
def rows():
    return clusters(20_000, 0)


@pytest.fixture(scope="module")
def sketch(rows):
    names = ("a", "b", "c")
    feature_map = FeatureMap(3, 100, scale=1.0, feature_names=names)
    return partial_sketch(rows, feature_map, sample=2000)


@pytest.fixture(scope="module")
def distribution(sketch):
    return EmpiricalDistribution(sketch)


def kernel(points, rows, widths):
    squares = np.sum(((rows[:, None] - points) / widths) ** 2, axis=2)
    return np.exp(-0.5 * squares) / np.prod(np.asarray(widths) * np.sqrt(2.0 * np.pi))


def deviations(found: MeanEstimate, truth) -> float:
    return float(np.abs((found.value - truth) / found.standard_error).max())


def test_expectations_are_those_of_all_rows_with_less_error_than_the_random_rows(
    distribution, rows, sketch
):
    def function(x):
        return np.stack([np.abs(x), np.sin(x)], axis=1)

    found = distribution.expectation(function)
    assert found.value.shape == (2, 3)
    assert deviations(found, function(rows).mean(axis=0)) < 4.0
    plain = function(sketch.sample.rows).std(axis=0) / np.sqrt(2000)
    assert (found.standard_error < 0.5 * plain).all()
    assert np.shape(distribution.expectation(lambda x: x[:, 0] > 1.0).value) == ()
    shifted = distribution.expectation(lambda x: 1e6 + np.abs(x[:, 0]))
    assert np.isclose(shifted.value - 1e6, found.value[0, 0], atol=1e-3)


def test_covariances_have_the_exact_variances_of_the_sketch(distribution, rows, sketch):
    found = distribution.covariance()
    assert np.array_equal(found.value, found.value.T)
    assert np.array_equal(np.diag(found.value), sketch.variance)
    assert (np.diag(found.standard_error) == 0.0).all()
    lower = np.tril_indices(3, -1)
    truth = np.cov(rows.T, bias=True)[lower]
    assert deviations(MeanEstimate(*(one[lower] for one in found)), truth) < 4.0


@pytest.mark.parametrize("seed", [16, 33])
def test_errors_of_covariances_know_of_rows_beyond_all_random_rows(seed):
    """A far row of little weight is seldom a random row, and no other row shows its product."""
    pilot = np.random.default_rng(999).exponential(size=(5000, 2))
    feature_map = design(pilot, n_components=3, seed=1)
    rng = np.random.default_rng(seed)
    x, weights = rng.exponential(size=(20_000, 2)), rng.lognormal(0.0, 0.7, 20_000)
    sketch = partial_sketch(x, feature_map, weights, sample=8000, position=seed * 20_000)
    assert (sketch.sample.rows.max(axis=0) < x.max(axis=0) - 1.0).any()
    truth = np.cov(x.T, aweights=weights, ddof=0)[0, 1]
    found = EmpiricalDistribution(sketch).covariance()
    assert abs(found.value[0, 1] - truth) < 2.0 * found.standard_error[0, 1]
    assert found.standard_error[0, 1] < 0.002


def test_histograms_and_boxes_count_rows(distribution, rows):
    counts, edges = distribution.histogram("a", bins=8)
    truth, expected = np.histogram(rows[:, 0], 8)
    assert np.allclose(edges, expected)
    assert deviations(counts, truth) < 4.0
    lower = np.array([[-np.inf] * 3, [0.0, 0.0, -np.inf], [50.0] * 3])
    upper = np.array([[np.inf] * 3, [2.0, 2.0, 0.0], [60.0] * 3])
    found = distribution.box_counts(lower, upper)
    truth = [
        np.sum(((rows >= a) & (rows < b)).all(axis=1)) for a, b in zip(lower, upper, strict=True)
    ]
    assert np.isclose(found.value[0], 20_000)
    assert found.value[2] == 0.0
    assert found.standard_error[2] > 5.0  # a row in 2,000 may have been missed
    assert deviations(found, truth) < 4.0
    assert np.isclose(distribution.box_counts(lower[1], upper[1]).value, found.value[1], atol=1e-3)


def test_kernel_densities_of_any_input_are_those_of_all_rows(distribution, rows, sketch):
    points = clusters(30, 1)
    found = distribution.kernel_density(points, bandwidth=[0.5, 0.6, 0.7])
    truth = kernel(points, rows, [0.5, 0.6, 0.7]).mean(axis=0)
    assert deviations(found, truth) < 5.0
    scott = sketch.effective_count ** (-1 / 7) * np.sqrt(sketch.variance)
    default = distribution.kernel_density(points)
    assert np.array_equal(default.value, distribution.kernel_density(points, bandwidth=scott).value)
    lazy = distribution.kernel_density(da.from_array(points, chunks=(7, 2)))
    assert isinstance(lazy.value, da.Array)
    for one, other in zip(dask.compute(*lazy), default, strict=True):
        assert np.array_equal(one, other)
    labelled = xr.DataArray(points, dims=("time", "feature"), coords={"feature": list("abc")})
    assert distribution.kernel_density(labelled, feature_dim="feature").value.dims == ("time",)
    bag = distribution.kernel_density(db.from_sequence([points], npartitions=1)).value
    assert np.allclose(bag.compute(scheduler="sync"), default.value, rtol=1e-12)
    points[3, 1] = np.nan
    assert np.flatnonzero(np.isnan(distribution.kernel_density(points).value)).tolist() == [3]


def test_conditional_means_are_those_of_kernel_regression_on_all_rows(distribution, rows):
    points = clusters(20, 2)[:, :2]
    found = distribution.conditional_mean("c", points, bandwidth=0.7)
    weights = kernel(points, rows[:, :2], [0.7, 0.7])
    assert deviations(found, (weights * rows[:, 2:]).sum(axis=0) / weights.sum(axis=0)) < 5.0
    alone = distribution.conditional_mean(2, points[:, :1], ["a"], bandwidth=0.7)
    assert not np.allclose(alone.value, found.value, atol=0.1)
    away = distribution.conditional_mean("c", [[1e3, 1e3]], bandwidth=0.7)
    assert np.isnan(away.value).all()
    assert np.isnan(away.standard_error).all()


def test_anomalies_are_between_clusters_as_well_as_outside(distribution, rows):
    between, outside = [0.0, 1.0, 5.0], [9.0, -9.0, 9.0]
    x = np.array([between, outside, *CENTERS])
    found = distribution.anomaly_scores(x)
    assert found.score[:2].min() > 2.0 * found.score[2:].max()
    assert (found.p_value[:2] < 0.05).all()
    assert (found.p_value[2:] > 0.3).all()
    typical = distribution.anomaly_scores(rows[:4000])
    assert np.isclose(typical.score.mean(), 1.0, atol=0.1)
    assert np.isclose(np.mean(typical.p_value <= 0.1), 0.1, atol=0.03)


def test_ranked_rows_do_not_depend_on_chunks(distribution, rows):
    x = np.concatenate([rows[:3000], [[20.0, 20.0, 20.0], [np.nan, 0.0, 0.0]]])
    found = distribution.ranked_rows(x, 5)
    lazy = distribution.ranked_rows(da.from_array(x, chunks=(611, 3)), 5)
    assert isinstance(lazy, LazyResult)
    again = lazy.compute(scheduler="sync")
    for name in ("typical", "typical_scores", "surprising", "surprising_scores"):
        assert np.array_equal(getattr(found, name), getattr(again, name))
    assert found.count == again.count == 3001
    assert found.surprising.shape == (5, 3)
    scores = distribution.anomaly_scores(x[:3001]).score
    assert found.typical_scores[0] == scores.min()
    assert np.array_equal(found.surprising[0], x[np.argmax(scores)])
    assert found.surprising_p_values[0] < 0.01


def test_all_rows_answer_without_error():
    x = clusters(300, 3)
    found = EmpiricalDistribution(partial_sketch(x, FeatureMap(3, 20, scale=1.0), sample=300))
    estimate = found.expectation(np.abs)
    assert np.allclose(estimate.value, np.abs(x).mean(axis=0))
    assert (estimate.standard_error == 0.0).all()
    assert found.as_dict()["is_exact"]


@pytest.mark.slow
def test_draws_of_a_model_answer_for_sketches_without_rows(rows):
    feature_map = design(rows[:2000], n_components=3, n_frequencies=120)
    sketch = partial_sketch(rows, feature_map)
    truth = np.mean(rows[:, 0] > rows[:, 1])
    mixture = GaussianMixture(np.ones(3) / 3, CENTERS, np.ones((3, 3)))
    for model in (None, mixture):
        found = EmpiricalDistribution(sketch, model).expectation(lambda x: x[:, 0] > x[:, 1])
        assert 0.0 < found.standard_error < 0.02
        assert abs(found.value - truth) < 4.0 * found.standard_error
    low, high = rows.min(axis=0), rows.max(axis=0)
    private = privatise(sketch, epsilon=1.0, delta=1e-6, bounds=(low, high), seed=0)
    noisy = EmpiricalDistribution(private, mixture).covariance()
    assert np.abs(noisy.value - np.cov(rows.T)).max() < 0.3
    assert (noisy.standard_error > 0.0).all()


def test_invalid_arguments_are_refused_by_name(distribution, rows, sketch):
    with pytest.raises(InputError, match="model=None"):
        EmpiricalDistribution(partial_sketch(rows[:99], sketch.feature_map))
    with pytest.raises(InputError, match="sketch of type list"):
        EmpiricalDistribution([sketch])
    with pytest.raises(InputError, match="sketch has no samples"):
        EmpiricalDistribution(sketch - sketch)
    with pytest.raises(InputError, match=r"function .*\(3,\)"):
        distribution.expectation(lambda x: x.mean(axis=0))
    with pytest.raises(InputError, match="bandwidth=0"):
        distribution.kernel_density(rows[:2], bandwidth=0.0)
    with pytest.raises(InputError, match="bandwidth=1e-300"):
        distribution.kernel_density(rows[:2], bandwidth=1e-300)
    with pytest.raises(InputError, match=r"bandwidth .*\(2,\)"):
        distribution.kernel_density(rows[:2], bandwidth=[1.0, 2.0])
    with pytest.raises(InputError, match="feature='d'"):
        distribution.histogram("d")
    with pytest.raises(InputError, match="bins=0"):
        distribution.histogram(0, bins=0)
    with pytest.raises(InputError, match=r"lower .*\(3,\)"):
        distribution.box_counts([1.0] * 3, [0.0] * 3)
    with pytest.raises(InputError, match=r"x .*\(2, 3\)"):
        distribution.conditional_mean(0, rows[:2])


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda one: one.expectation("x"), "function of type str"),
        (lambda one: one.expectation(lambda x: np.exp(1j * x[:, 0])), "function=.*complex128"),
        (lambda one: one.expectation(lambda x: ["a"] * len(x)), "function="),
        (lambda one: one.box_counts("a", [1.0] * 3), "lower='a'"),
        (lambda one: one.box_counts([0.0] * 3, [1.0]), r"upper \(1,\)"),
        (lambda one: one.box_counts(np.zeros((3, 3)), np.ones((2, 3))), r"lower .*\(3, 3\)"),
        (lambda one: one.histogram(0, "auto"), "bins='auto'"),
        (lambda one: one.histogram(0, 10**9), "bins=1000000000"),
        (lambda one: one.histogram(0, [0.0]), r"bins=\[0.0\]"),
        (lambda one: one.histogram(0, [0.0, np.nan, 1.0]), "bins=.*nan"),
        (lambda one: one.kernel_density(np.zeros((1, 3)), bandwidth="scott"), "bandwidth='scott'"),
        (lambda one: one.conditional_mean(0, [["a", "b"]]), "x="),
    ],
)
def test_questions_without_meaning_are_refused(distribution, ask, named):
    with pytest.raises(InputError, match=named):
        ask(distribution)


def test_no_boxes_have_no_rows(distribution):
    assert distribution.box_counts(np.empty((0, 3)), np.empty((0, 3))).value.shape == (0,)


@pytest.mark.slow
def test_errors_cover_in_19_of_20_cases():
    points = clusters(30, 1)
    lower, upper = points - 1.0, points + np.array([1.0, 2.0, np.inf])
    found = {"density": [], "boxes": [], "functions": [], "means": []}
    for seed in range(40):
        x = clusters(20_000, 10 + seed)
        feature_map = FeatureMap(3, 100, scale=1.0, seed=seed)
        one = EmpiricalDistribution(partial_sketch(x, feature_map, sample=2000))
        inside = np.array(
            [np.sum(((x >= a) & (x < b)).all(1)) for a, b in zip(lower, upper, strict=True)]
        )
        weights = kernel(points[:, :2], x[:, :2], [0.8, 0.8])
        for name, estimate, truth in (
            (
                "density",
                one.kernel_density(points, bandwidth=0.8),
                kernel(points, x, [0.8] * 3).mean(axis=0),
            ),
            ("boxes", one.box_counts(lower, upper), inside),
            ("functions", one.expectation(np.abs), np.abs(x).mean(axis=0)),
            (
                "means",
                one.conditional_mean(2, points[:, :2], bandwidth=0.8),
                (weights * x[:, 2:]).sum(axis=0) / weights.sum(axis=0),
            ),
        ):
            found[name].append(np.abs(estimate.value - truth) < 1.96 * estimate.standard_error)
    for name, covered in found.items():
        assert 0.88 < np.mean(covered) < 0.99, name


@pytest.mark.slow
def test_error_that_few_rows_decide() -> None:
    feature_map = FeatureMap(2, 100, scale=1.0, seed=1)
    outside = 0
    for seed in range(60):
        x = np.random.default_rng(seed).poisson(2.0, size=(10_000, 2)).astype(float)
        rows = EmpiricalDistribution(partial_sketch(x, feature_map, sample=1000))
        found = rows.covariance()
        error = found.value[0, 1] - np.cov(x.T, ddof=0)[0, 1]
        outside += abs(error) > 1.96 * found.standard_error[0, 1]
    assert outside <= 6  # of a nominal 3; 8 with the plain sum of squares


def test_errors_with_few_random_rows_of_skewed_data():
    feature_map = FeatureMap(2, 60, scale=1.0, seed=3)

    def functions(x):
        return np.column_stack([np.sin(3 * x[:, 0] + 1), np.exp(-(x[:, 0] ** 2)), x[:, 0] > 1.5])

    squares = []
    for seed in range(40):
        x = np.random.default_rng(seed).exponential(size=(6000, 2)) - 1.0
        found = EmpiricalDistribution(
            partial_sketch(x, feature_map, sample=500), seed=seed
        ).expectation(functions)
        squares.append(((found.value - functions(x).mean(axis=0)) / found.standard_error) ** 2)
    # one; 1.8 to 3.7 if all residuals have the weights of the rows
    assert (np.mean(squares, axis=0) < 1.5).all()
    assert np.mean(np.less(squares, 1.96**2)) > 0.9


def test_features_of_other_names_are_refused(sketch, distribution, rows):
    model = GaussianMixture(
        np.full(3, 1 / 3), CENTERS, np.ones((3, 3)), feature_names=("c", "a", "b")
    )
    with pytest.raises(InputError, match="feature 0 of model is 'c'; .* 'a'") as caught:
        EmpiricalDistribution(sketch, model)
    assert caught.value.parameter == "model"
    frame = pd.DataFrame(rows[:4], columns=list("abc"))
    turned, low = frame[["c", "a", "b"]], pd.Series({"a": -9.0, "b": -8.0, "c": -7.0})
    high, widths = -low, pd.Series({"c": 0.5, "a": 1.0})
    assert distribution.box_counts(low, high) == distribution.box_counts([-9, -8, -7], [9, 8, 7])
    assert distribution.conditional_mean("b", frame[["a", "c"]], bandwidth=widths[::-1]).value[0]
    bag = db.from_sequence([turned])
    for run, argument in (
        (lambda: distribution.kernel_density(turned), "the DataFrame"),
        (lambda: distribution.anomaly_scores(turned), "the DataFrame"),
        (lambda: distribution.kernel_density(bag).value.compute(scheduler="sync"), "c"),
        (lambda: distribution.conditional_mean("b", turned[["c", "a"]]), "x"),
        (lambda: distribution.conditional_mean("b", frame[["a", "c"]], bandwidth=widths),
         "bandwidth"),
        (lambda: distribution.box_counts(low[::-1], high), "lower"),
        (lambda: distribution.box_counts(low, pd.DataFrame([high[::-1]])), "upper"),
    ):  # fmt: skip
        with pytest.raises(SketchError, match=f"{argument}.*'c'"):
            run()


def test_errors_know_of_correlations_that_the_model_lacks():
    within = []
    for seed in range(8):
        x = np.random.default_rng(seed).normal(size=(2000, 3))
        x[:, 1] = 0.7 * x[:, 0] + np.sqrt(0.51) * x[:, 1]
        sketch = partial_sketch(x, FeatureMap(3, 70, scale=1.0, seed=seed))
        apart = GaussianMixture([1.0], [[0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]])
        found = EmpiricalDistribution(sketch, apart, seed=seed).covariance()
        difference = np.abs(found.value - np.cov(x.T, bias=True))
        within.append(difference[0, 1] < 1.96 * found.standard_error[0, 1])
        assert found.standard_error[0, 1] < 0.25
    assert sum(within) >= 6


def test_conditional_means_have_errors_or_none_where_rows_are_rare():
    rng = np.random.default_rng(0)
    x = rng.standard_t(3, size=20_000)
    rows = np.column_stack([x, 2.0 * x + rng.normal(size=len(x))])
    feature_map = design(rows, n_components=3, seed=0)
    data = EmpiricalDistribution(partial_sketch(rows, feature_map, sample=2000))
    places = [3, 8, 20, 60, 200, 2000, -2000, -200, -60, -20, -8, -3]
    points = np.sort(x)[places][:, None]
    found = data.conditional_mean(1, points, bandwidth=0.2)
    kernel = np.exp(-0.5 * ((x[:, None] - points[:, 0]) / 0.2) ** 2)
    expected = rows[:, 1] @ kernel / kernel.sum(axis=0)
    known = np.isfinite(found.value)
    np.testing.assert_array_equal(known, np.isfinite(found.standard_error))
    assert known[4:8].all()
    assert not known[[0, -1]].any()
    assert (np.abs(found.value - expected)[known] < 3.5 * found.standard_error[known]).all()


SHAPES = {
    "normal": lambda rng, n: rng.normal(size=(n, 3)) @ [[1, 0.8, 0.2], [0, 0.6, 0.5], [0, 0, 0.7]],
    "exponential": lambda rng, n: rng.exponential(size=(n, 3)),
    "counts and a flag": lambda rng, n: np.column_stack(
        [rng.poisson(2, n), rng.negative_binomial(1, 0.1, n), rng.integers(0, 2, n)]
    ).astype(float),
}


@pytest.mark.filterwarnings("default:x .*value")  # counts
@pytest.mark.parametrize("shape", SHAPES)
def test_errors_where_many_of_the_rows_are_random_rows(shape):
    """A row that represents itself has the residual of the fit, and no other one."""
    scores = []
    for seed in range(4):
        x = SHAPES[shape](np.random.default_rng(seed), 40_000)
        feature_map = design(x, n_components=3, seed=seed)
        known = EmpiricalDistribution(partial_sketch(x, feature_map, sample=15_000))
        value, error = known.covariance()
        pairs = np.triu_indices(3, 1)
        scores += list((value - np.cov(x.T, ddof=0))[pairs] / error[pairs])
    assert np.sqrt(np.mean(np.square(scores))) < 1.8
    assert np.abs(scores).max() < 4.5


@pytest.mark.parametrize("shape", ["uniform", "exponential"])
def test_draws_of_a_model_are_in_the_range_of_the_data(shape):
    misses = []
    for seed in range(3):
        x = getattr(np.random.default_rng(seed), shape)(size=(20_000, 2))
        found = EmpiricalDistribution(
            partial_sketch(x, design(x, n_components=5, seed=seed)), seed=seed
        )
        counts, edges = found.histogram(0, bins=20)
        true = np.histogram(x[:, 0], edges)[0]
        assert counts.value.sum() == pytest.approx(20_000)
        misses += list(np.abs(counts.value - true) > 1.96 * counts.standard_error)
        below = found.box_counts([-np.inf, -np.inf], [x[:, 0].min(), np.inf])
        assert below.value == 0.0
    assert np.mean(misses) < 0.2
