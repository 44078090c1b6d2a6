"""Divergences: against quadrature and closed forms, with errors that are right."""

import itertools
from dataclasses import replace

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import dask_sketch as ds
from dask_sketch import GaussianMixture
from dask_sketch.distributions import divergence, divergence_matrix
from dask_sketch.errors import InputError
from dask_sketch.models import StandardErrors, random_mixture

KINDS = ("kl", "js", "tv", "squared-hellinger", "renyi", "alpha")
ORDERED = ("renyi", "alpha")
P, Q = random_mixture(3, 2, seed=0), random_mixture(4, 2, seed=1)


def normal(mean=0.0, variance=1.0, mean_error=None, variance_error=0.0):
    errors = None
    if mean_error is not None:
        errors = StandardErrors([0.0], [[mean_error]], [[variance_error]])
    return GaussianMixture([1.0], [[mean]], [[variance]], stderr=errors)


def by_quadrature(p, q, kind, alpha, cell):
    if kind == "kl":
        return np.sum(p * np.log(p / q)) * cell
    if kind == "tv":
        return 0.5 * np.sum(np.abs(p - q)) * cell
    if kind == "js":
        m = 0.5 * (p + q)
        return 0.5 * np.sum(p * np.log(p / m) + q * np.log(q / m)) * cell
    if kind == "squared-hellinger":
        return 0.5 * np.sum((np.sqrt(p) - np.sqrt(q)) ** 2) * cell
    integral = np.sum(p**alpha * q ** (1 - alpha)) * cell
    if kind == "renyi":
        return np.log(integral) / (alpha - 1)
    return (1 - integral) / (alpha * (1 - alpha))


@pytest.mark.parametrize(
    ("kind", "alpha"),
    [(kind, None) for kind in KINDS] + list(itertools.product(ORDERED, (0.3, 1.5))),
)
@pytest.mark.few_cases(5)
def test_simulation_agrees_with_quadrature(kind, alpha):
    axis = np.linspace(-10, 10, 300)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    densities = [np.exp(mixture.logpdf(points)) for mixture in (P, Q)]
    exact = by_quadrature(*densities, kind, alpha or 0.5, (axis[1] - axis[0]) ** 2)
    found = divergence(P, Q, kind, alpha=alpha, n_draws=20_000, seed=1)
    assert found.value == pytest.approx(exact, abs=4 * found.standard_error)
    assert found.standard_error < 0.05 * exact
    assert found.parameter_error is None
    assert found.interval[0] < found.value < found.interval[1]


def test_closed_form_of_gaussians_with_covariance_matrices():
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(2, 3, 3))
    first, second = factors @ factors.swapaxes(1, 2) + np.eye(3)
    mean = np.array([0.3, -0.2, 0.5])
    p = GaussianMixture([1.0], [mean], [first], covariance_type="full")
    q = GaussianMixture([1.0], np.zeros((1, 3)), [second], covariance_type="full")
    inverse = np.linalg.inv(second)
    exact = np.trace(inverse @ first) - 3 + mean @ inverse @ mean
    exact = 0.5 * (exact - np.log(np.linalg.det(inverse @ first)))
    found = divergence(p, q, n_draws=20_000)
    assert found.value == pytest.approx(exact, abs=4 * found.standard_error)


def test_identities_of_the_kinds():
    same = {"n_draws": 1000, "seed": 2}
    hellinger = divergence(P, Q, "squared-hellinger", **same)
    half = divergence(P, Q, "alpha", alpha=0.5, **same)
    assert half.value == pytest.approx(4 * hellinger.value)
    assert half.standard_error == pytest.approx(4 * hellinger.standard_error)
    renyi = divergence(P, Q, "renyi", alpha=0.5, **same)
    assert renyi.value == pytest.approx(-2 * np.log(1 - hellinger.value))
    assert renyi.interval[1] == pytest.approx(-2 * np.log(1 - hellinger.interval[1]))
    near = divergence(P, Q, "renyi", alpha=1.0 - 1e-6, **same)
    assert near.value == pytest.approx(divergence(P, Q, **same).value, rel=0.1)
    tv = divergence(P, Q, "tv", **same).value
    assert hellinger.value <= tv <= np.sqrt(2 * hellinger.value)  # for the draws as well


def test_the_same_seed_gives_the_same_random_numbers():
    close = GaussianMixture(P.weights, P.means + 1e-3, P.covariances)
    values = [divergence(one, Q, n_draws=1000, seed=3) for one in (P, close)]
    assert abs(values[0].value - values[1].value) < 0.1 * values[0].standard_error
    assert values[0] == divergence(P, Q, n_draws=1000, seed=3)
    assert values[0].value != divergence(P, Q, n_draws=1000, seed=4).value


def test_far_and_equal_distributions():
    far = normal(1000.0)
    assert divergence(normal(), far, "js", n_draws=100).value == pytest.approx(np.log(2))
    assert divergence(normal(), far, "tv", n_draws=100).value == pytest.approx(1.0)
    assert divergence(normal(), far, n_draws=100).value == pytest.approx(5e5, rel=0.01)
    for kind in KINDS:
        assert divergence(P, P, kind, n_draws=100).value == pytest.approx(0.0, abs=1e-12)


def test_the_error_of_parameters_is_that_of_the_delta_method():
    # KL = (v + m**2 - 1 - log v) / 2
    m, v, mean_error, variance_error = 0.8, 2.0, 0.01, 0.02
    p = normal(m, v, mean_error, variance_error)
    found = divergence(p, normal())
    exact = np.hypot(m * mean_error, 0.5 * (1 - 1 / v) * variance_error)
    assert found.parameter_error == pytest.approx(exact, rel=0.05)
    total = np.hypot(found.simulation_error, found.parameter_error)
    assert found.standard_error == pytest.approx(total)
    other = divergence(normal(), normal(m, 1.0, mean_error))
    assert other.parameter_error == pytest.approx(m * mean_error, rel=0.05)
    renyi = divergence(p, normal(0.0, 2.0), "renyi", alpha=0.5)  # m**2 / 8
    exact = np.hypot(m * mean_error / 4, 0.0)
    assert renyi.parameter_error == pytest.approx(exact, rel=0.05)


def test_errors_of_maximum_likelihood_from_the_numbers_of_samples():
    m, v, n = 0.8, 2.0, 5000
    found = divergence(normal(m, v), normal(), n_samples=(n, np.inf))
    exact = np.sqrt(m**2 * v / n + (0.5 * (1 - 1 / v)) ** 2 * 2 * v**2 / n)
    assert found.parameter_error == pytest.approx(exact, rel=0.05)
    assert found.bias == pytest.approx(0.5 * 2 / n, rel=0.1)  # half of the parameters by n
    # standard errors of a mixture come first
    own = divergence(normal(m, v, 0.01), normal(), n_samples=(n, np.inf)).parameter_error
    assert own == divergence(normal(m, v, 0.01), normal()).parameter_error
    three = divergence(P, Q, n_draws=4000, n_samples=(1000, 1000))
    assert three.parameter_error > three.simulation_error
    assert "as they are" in divergence(P, Q, n_draws=4000)._repr_html_()
    assert "as they are" not in three._repr_html_()


def test_more_draws_where_the_parameters_are_known_well():
    known = divergence(normal(0.5, 1.0, 2e-4), normal())
    assert known.simulation_error < 0.5 * divergence(normal(0.5), normal()).simulation_error
    fixed = divergence(normal(0.5, 1.0, 2e-4), normal(), n_draws=100_000)
    assert fixed.value == divergence(normal(0.5), normal()).value
    poor = divergence(normal(0.5, 1.0, 0.05), normal())
    assert poor.value == fixed.value


def test_errors_of_weights():
    # far components: the divergence is that of the weights
    far, w, v = np.array([[0.0], [50.0]]), np.array([0.3, 0.7]), np.array([0.5, 0.5])
    errors = StandardErrors([0.01, 0.01], np.zeros((2, 1)), np.zeros((2, 1)))
    p = GaussianMixture(w, far, np.ones((2, 1)), stderr=errors)
    found = divergence(p, GaussianMixture(v, far, np.ones((2, 1))))
    slope = np.log(w[0] / v[0]) - np.log(w[1] / v[1])
    assert found.value == pytest.approx(np.sum(w * np.log(w / v)), rel=0.02)
    assert found.parameter_error == pytest.approx(abs(slope) * 0.01, rel=0.05)


def test_bias_of_equal_distributions():
    mean_error, variance_error = 0.02, 0.03
    p = normal(0.0, 1.0, mean_error, variance_error)
    expected = 0.5 * (mean_error**2 + variance_error**2 / 2)  # half of a mean of chi squared
    assert divergence(p, normal()).bias == pytest.approx(expected, rel=0.05)
    assert divergence(p, p).bias == pytest.approx(2 * expected, rel=0.05)
    assert divergence(p, normal(), "js").bias == pytest.approx(expected / 4, rel=0.05)
    assert divergence(p, normal(), "squared-hellinger").bias == pytest.approx(
        expected / 4, rel=0.05
    )


def test_mixtures_of_many_parameters():
    d, mean = 60, np.linspace(-0.3, 0.3, 60)[None]
    errors = StandardErrors([0.0], np.full((1, d), 0.01), np.zeros((1, d, d)))
    p = GaussianMixture([1.0], mean, np.eye(d)[None], stderr=errors, covariance_type="full")
    q = GaussianMixture([1.0], np.zeros((1, d)), np.eye(d)[None], covariance_type="full")
    found = divergence(p, q, n_draws=600)
    exact = 0.01 * np.sqrt(np.sum(mean**2) + 0.5 * d * 0.01**2)
    assert found.parameter_error == pytest.approx(exact, rel=0.3)
    assert found.bias == pytest.approx(0.5 * d * 0.01**2, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("kind", ["kl", "js", "tv"])
def test_intervals_cover_the_truth(kind, gap):
    rng, error = np.random.default_rng(5), 0.02
    truth = divergence(normal(), normal(gap), kind, n_draws=200_000).value
    inside = []
    for seed in range(60):
        means = np.array([0.0, gap]) + error * rng.normal(size=2)
        p, q = (normal(mean, 1.0, error) for mean in means)
        low, high = divergence(p, q, kind, n_draws=4000, seed=seed).interval
        inside.append(low <= truth <= high)
    assert np.mean(inside) >= 0.88  # 2.5 standard errors below 0.95


def test_orders_above_one_warn_where_few_draws_decide():
    with pytest.warns(UserWarning, match="kind='alpha'"):
        divergence(normal(0.0, 9.0), normal(4.0), "alpha", alpha=3.0, n_draws=2000)


def test_rows():
    x, y = P.sample(3000, seed=0), Q.sample(2000, seed=1)
    for kind in ("kl", "js", "squared-hellinger", "renyi", "alpha"):
        found, exact = divergence(x, y, kind), divergence(P, Q, kind).value
        assert found.method == "nearest neighbors"
        assert found.value == pytest.approx(exact, abs=4 * found.standard_error + 0.05 * exact)
        assert found.interval[0] < exact < found.interval[1]
        if kind == "kl":  # a standard error of ten parts
            reach = stats.t(9).isf(0.025) * np.hypot(found.standard_error, found.bias)
            assert np.ptp(found.interval) == pytest.approx(2 * reach)
    few = divergence(x[:20], y[:20])
    assert np.isnan(few.standard_error)
    assert np.isfinite(few.value)


@pytest.mark.slow
def test_lazy_rows_are_sampled(tmp_path):
    sides = [P.sample(4000, seed=0), Q.sample(4000, seed=1)]
    lazy = [da.from_array(x, chunks=(900, 2)) for x in sides]
    paths = [str(tmp_path / name) for name in ("p.zarr", "q.parquet")]
    lazy[0].to_zarr(paths[0])
    pd.DataFrame(sides[1], columns=["a", "b"]).to_parquet(paths[1])
    exact = divergence(P, Q, "js").value
    found = divergence(*lazy, "js", n_rows=2000, seed=3)
    assert found.value == pytest.approx(exact, abs=4 * found.standard_error + 0.05 * exact)
    assert divergence(*lazy, "js", n_rows=2000, seed=3).value == found.value
    assert divergence(*lazy, "js", n_rows=2000, seed=4).value != found.value
    # rows of a sample of all of them are those in memory, in another order
    rows = [np.asarray(sorted(map(tuple, x))) for x in sides]
    for given in (lazy, paths, [ds.open_samples(path) for path in paths], [paths[0], sides[1]]):
        assert divergence(*given, "js").value == pytest.approx(divergence(*rows, "js").value)
    stacked = divergence_matrix(lazy, "js", n_rows=2000, seed=3)
    assert stacked[0, 1] == pytest.approx(found.value)


def test_matrices():
    mixtures = [random_mixture(2, 2, seed=seed) for seed in range(3)]
    for kind in KINDS:
        matrix = divergence_matrix(mixtures, kind, n_draws=1000, seed=4)
        single = divergence(mixtures[0], mixtures[2], kind, n_draws=2000, seed=4).value
        assert matrix[0, 2] == pytest.approx(single)
        assert not np.diag(matrix).any()
        assert (matrix[0, 2] == matrix[2, 0]) == (kind in ("js", "tv", "squared-hellinger")) or (
            kind in ("renyi", "alpha")
        )
    rows = [mixture.sample(200, seed=k) for k, mixture in enumerate(mixtures)]
    matrix = divergence_matrix(rows, "kl", n_neighbors=3)
    assert matrix[2, 1] == pytest.approx(divergence(rows[2], rows[1], n_neighbors=3).value)
    assert matrix[2, 1] != matrix[1, 2]
    np.testing.assert_array_equal(
        divergence_matrix(rows, "js"), np.transpose(divergence_matrix(rows, "js"))
    )


def test_description():
    found = divergence(P, Q, n_draws=4000)
    assert "kl" in repr(found)
    assert "within" in found._repr_html_()
    assert found.as_dict()["value"] == found.value


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"kind": "wasserstein"}, "kind='wasserstein'"),
        ({"kind": "renyi", "alpha": 1.0}, "alpha=1"),
        ({"kind": "kl", "alpha": 0.5}, "alpha=0.5 has no effect on kind='kl'"),
        ({"n_neighbors": 3}, "n_neighbors=3 has no effect between mixtures"),
        ({"n_rows": 3}, "n_rows=3 has no effect between mixtures"),
        ({"kind": "alpha", "alpha": -1.0}, "alpha=-1.0"),
        ({"n_draws": 10}, "n_draws=10"),
        ({"level": 1.0}, "level=1.0"),
        ({"n_samples": (0, 5)}, r"n_samples=\(0, 5\)"),
        ({"n_samples": 5}, "n_samples=5"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(InputError, match=match):
        divergence(P, Q, **arguments)


def test_too_many_parameters_for_their_errors():
    wide = GaussianMixture([1.0], np.zeros((1, 60)), np.eye(60)[None], covariance_type="full")
    with pytest.raises(InputError, match="n_samples=1000.0"):
        divergence(wide, wide, n_samples=(1000, 1000), n_draws=400)


def test_bad_distributions():
    with pytest.raises(InputError, match="2 features, second 3"):
        divergence(P, random_mixture(2, 3))
    with pytest.raises(InputError, match="first of type GaussianMixture"):
        divergence(P, P.sample(10))
    with pytest.raises(InputError, match="n_rows=0"):
        divergence(P.sample(10), P.sample(10), n_rows=0)
    rows = P.sample(10)
    rows[3, 0] = np.nan
    with pytest.raises(InputError, match="second has 1 rows"):
        divergence(P.sample(10), da.from_array(rows))
    weighted = ds.open_samples(da.from_array(rows), weights=np.ones(10))
    with pytest.raises(InputError, match=r"first: .* has weights"):
        divergence(weighted, P.sample(10))
    for call in (divergence, lambda *rows, **options: divergence_matrix(rows, **options)):
        with pytest.raises(InputError, match="n_draws=500 has no effect between rows"):
            call(P.sample(10), P.sample(10), n_draws=500)
    with pytest.raises(InputError, match=r"n_samples=\(9, 9\)"):
        divergence(P.sample(10), P.sample(10), n_samples=(9, 9))
    with pytest.raises(InputError, match="kind='tv'"):
        divergence(P.sample(10), P.sample(10), "tv")
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        divergence([1.0, 2.0, 3.0], P.sample(10))
    with pytest.raises(InputError, match="1 mixtures and 1 others"):
        divergence_matrix([P, P.sample(10)])
    with pytest.raises(InputError, match="1 elements"):
        divergence_matrix([P])


def test_a_bias_beyond_the_error_of_kl_between_rows_is_warned_of() -> None:
    first = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    second = GaussianMixture([1.0], [[0.5, 1.0]], [[2.0, 0.5]])
    rows = first.sample(2000, seed=0), second.sample(2000, seed=1)
    with pytest.warns(UserWarning, match=r"kind='kl'.*-0\.\d+"):
        found = divergence(*rows, "kl")
    assert found.value < 1.2  # 1.3125


@pytest.mark.filterwarnings("ignore:kind='kl' between rows")
@pytest.mark.parametrize(
    ("kind", "mean", "deviation"),
    [("kl", 0.0, 2.0), ("kl", 0.0, 1.5), ("kl", 2.0, 1.0), ("renyi", 0.0, 2.0), ("js", 0.0, 2.0)],
)
def test_intervals_where_few_rows_of_the_second_side_are_in_the_tails(kind, mean, deviation):
    """Rows of a wider side, or of one beside: the bias of neighbours decreases slowly."""
    first = GaussianMixture([1.0], [[mean]], [[deviation**2]])
    second = GaussianMixture([1.0], [[0.0]], [[1.0]])
    exact = divergence(first, second, kind).value
    n_inside = 0
    for seed in range(20):
        found = divergence(
            first.sample(1000, seed=seed), second.sample(1000, seed=100 + seed), kind, seed=seed
        )
        n_inside += found.interval[0] < exact < found.interval[1]
    assert n_inside >= 17


TURNED = [replace(P, feature_names=names) for names in (("a", "b"), ("b", "a"))]
FRAMES = [pd.DataFrame(P.sample(300, seed=k), columns=list("ab")) for k in (0, 1)]


@pytest.mark.parametrize("lazy", [False, True])
def test_features_of_other_names_are_refused(lazy):
    x, y = FRAMES
    turned = y[["b", "a"]]
    if lazy:
        x, y, turned = (dd.from_pandas(frame, npartitions=2) for frame in (x, y, turned))
    divergence(x, y)
    divergence(x, P.sample(300, seed=3))
    for given, name, value in (
        ((x, turned), "second", "first"),
        ((ds.open_samples(x), ds.open_samples(turned)), "second", "first"),
        (TURNED, "second", "first"),
    ):
        with pytest.raises(InputError, match=f"feature 0 of {name} is 'b'; {value} .* 'a'") as at:
            divergence(*given)
        assert at.value.parameter == name
    for given in ((x, FRAMES[0].to_numpy(), turned), (TURNED[0], P, TURNED[1])):
        text = r"feature 0 of distributions\[2\] is 'b'; distributions\[0\] .* 'a'"
        with pytest.raises(InputError, match=text):
            divergence_matrix(given)
    assert divergence(P, TURNED[1], n_draws=200).value == 0.0  # one side without names
