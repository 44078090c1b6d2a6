"""Embeddings of densities: corrected spectral measures, and distances against quadrature."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from sklearn.pipeline import make_pipeline

from dask_sketch.distributions import (
    DensityFeatures,
    DensityNodes,
    DistributionRegressor,
    divergence,
    trigonometric_features,
)
from dask_sketch.distributions.density_features import (
    MEASURES,
    trigonometric_basis,
    trigonometric_frequencies,
)
from dask_sketch.errors import InputError
from dask_sketch.models import random_mixture

P, Q = random_mixture(3, 2, seed=0), random_mixture(4, 2, seed=1)
INTEGRANDS = {
    "js": lambda p, q: 0.5 * (p * np.log(2 * p / (p + q)) + q * np.log(2 * q / (p + q))),
    "tv": lambda p, q: 0.5 * abs(p - q),
    "squared-hellinger": lambda p, q: 0.5 * (np.sqrt(p) - np.sqrt(q)) ** 2,
}
DENSITIES = {  # corrected Table 4.1, normalised
    "js": lambda v: 2 / np.log(2) / (np.cosh(np.pi * v) * (1 + 4 * v**2)),
    "tv": lambda v: 4 / np.pi / (1 + 4 * v**2),
}
PRINTED = {
    "js": lambda v: 1 / (np.cosh(np.pi * v) * (1 + v**2)),
    "tv": lambda v: 2 / np.pi / (1 + v**2) / 2,  # of |p - q| / 2
}


def integrand(density, mass, p, q):
    """Integral of |p**(1/2 + iv) - q**(1/2 + iv)|**2 over the measure."""
    total, _ = quad(density, 0, 80, limit=200)
    wave, _ = quad(density, 0, 80, weight="cos", wvar=np.log(p / q))
    return mass * ((p + q) * total - 2 * np.sqrt(p * q) * wave)


@pytest.mark.parametrize(("p", "q"), [(1.0, 3.0), (0.2, 2.0), (1.0, 1.3)])
@pytest.mark.parametrize("kind", ["js", "tv"])
def test_table_4_1_as_corrected(kind, p, q):
    measure = MEASURES[kind]
    exact = INTEGRANDS[kind](p, q)
    assert integrand(DENSITIES[kind], measure.mass, p, q) == pytest.approx(exact, rel=0.04)
    assert integrand(PRINTED[kind], 1.0, p, q) != pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("kind", ["js", "tv"])
def test_quantiles_are_those_of_the_measure(kind):
    probability = np.array([0.1, 0.5, 0.9])
    for v, expected in zip(MEASURES[kind].quantile(probability), probability, strict=True):
        assert quad(DENSITIES[kind], 0, v)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("ratio", [1.0, 1.5, 10.0, 1e3])
def test_quadrature_of_the_jensen_shannon_measure(ratio):
    exponents, weights = MEASURES["js"].rule(5)
    assert weights.sum() == pytest.approx(1.0)
    kappa = 0.5 * np.log(2) * (1 + ratio - 2 * np.sqrt(ratio) * (
        weights @ np.cos(exponents * np.log(ratio))
    ))  # fmt: skip
    assert kappa == pytest.approx(INTEGRANDS["js"](1.0, ratio), rel=0.02, abs=1e-12)


def test_hellinger_needs_a_single_exponent_of_zero():
    exponents, weights = MEASURES["squared-hellinger"].rule(7)
    assert exponents.tolist() == [0.0]
    assert weights.tolist() == [1.0]


@pytest.mark.parametrize(
    ("kind", "error"), [("js", 0.01), ("tv", 0.05), ("squared-hellinger", 0.01)]
)
@pytest.mark.parametrize("degree", [None, 12])
def test_squared_distances_are_divergences(kind, error, degree):
    made = DensityFeatures(kind, n_exponents=8, degree=degree).fit([P, Q])
    features = made.transform([P, Q])
    assert features.shape == (2, len(made.get_feature_names_out()))
    exact = divergence(P, Q, kind, seed=1).value
    found = np.sum((features[0] - features[1]) ** 2)
    if degree is None or kind != "tv":  # total variation is not smooth, where densities cross
        assert found == pytest.approx(exact, rel=error)
    else:
        assert found < exact


@pytest.mark.parametrize("kind", ["js", "tv", "squared-hellinger"])
def test_inner_products_are_the_linear_kernels_of_the_divergences(kind):
    # section 2.3 as corrected: (log 2 - JS) / 2, (1 - TV) / 2 and (1 - H**2) / 2
    features = DensityFeatures(kind, n_exponents=8, n_side=64).fit_transform([P, Q])
    largest = np.log(2) if kind == "js" else 1.0
    exact = 0.5 * (largest - divergence(P, Q, kind, seed=1).value)
    assert features[0] @ features[1] == pytest.approx(exact, rel=0.05)
    assert features[0] @ features[0] == pytest.approx(0.5 * largest, rel=0.01)


def test_random_exponents_are_those_of_the_thesis():
    squares = [
        np.sum(np.diff(features, axis=0) ** 2)
        for features in (
            DensityFeatures("js", exponents="random", random_state=k).fit_transform([P, Q])
            for k in range(40)
        )
    ]
    exact = divergence(P, Q, "js").value
    assert np.mean(squares) == pytest.approx(exact, abs=4 * np.std(squares) / np.sqrt(40))
    assert np.std(squares) > 0.01 * exact


def test_other_orders():
    made = DensityFeatures("squared-hellinger", order=2.0).fit([P, Q])
    features = made.transform([P, Q])
    p, q = np.exp([P.logpdf(made.nodes_.points), Q.logpdf(made.nodes_.points)])
    exact = 0.5 * np.sum((p - q) ** 2) * made.nodes_.cell  # half of the L2 distance, eq. (4.12)
    assert np.sum((features[0] - features[1]) ** 2) == pytest.approx(exact)


def test_l2_distances_in_three_ways():
    lower, upper = [-9.0, -9.0], [9.0, 9.0]
    exact = 0.0
    for sign, a, b in ((1, P, P), (1, Q, Q), (-2, P, Q)):
        variances = a.variances[:, None] + b.variances
        gaps = a.means[:, None] - b.means
        density = np.exp(-0.5 * gaps**2 / variances) / np.sqrt(2 * np.pi * variances)
        exact += sign * a.weights @ density.prod(axis=2) @ b.weights
    on_nodes = DensityFeatures("l2", n_side=64, bounds=(lower, upper)).fit_transform([P, Q])
    in_basis = trigonometric_features([P, Q], lower, upper, degree=20)
    for features in (on_nodes, in_basis):
        assert np.sum((features[0] - features[1]) ** 2) == pytest.approx(exact, rel=1e-5)


def test_trigonometric_features_of_rows_are_means():
    x = P.sample(3000, seed=0)
    lower, upper = np.array([-8.0, -9.0]), np.array([9.0, 8.0])
    features = trigonometric_features([x, x[:1000], x[1000:], P], lower, upper, degree=3)
    np.testing.assert_allclose(features[0], (features[1] + 2 * features[2]) / 3)
    basis = trigonometric_basis((x - lower) / (upper - lower), 3).mean(axis=0)
    np.testing.assert_allclose(features[0], basis / np.sqrt(17.0**2), atol=1e-12)
    noise = np.sqrt(2 / 3000 / 17.0**2)
    assert np.abs(features[0] - features[3]).max() < 5 * noise


def test_the_basis_has_the_dirichlet_kernel():
    rng, degree = np.random.default_rng(0), 4
    x, y = rng.uniform(size=(2, 6, 2))
    assert len(trigonometric_frequencies(2, degree)) == ((2 * degree + 1) ** 2 - 1) // 2
    inner = np.sum(trigonometric_basis(x, degree) * trigonometric_basis(y, degree), axis=1)
    gap = np.pi * (x - y)
    kernel = np.prod(np.sin((2 * degree + 1) * gap) / np.sin(gap), axis=1)
    np.testing.assert_allclose(inner, kernel)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_kernel_sums_on_nodes(d):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, d))
    nodes = DensityNodes(np.full(d, -3.0), np.full(d, 4.0), 6, np.linspace(0.5, 0.8, d))
    gaps = (nodes.points[:, None] - x) / nodes.bandwidth
    kernels = np.exp(-0.5 * gaps**2) / (np.sqrt(2 * np.pi) * nodes.bandwidth)
    np.testing.assert_allclose(nodes.kernel_sums(x), kernels.prod(axis=2).sum(axis=1))
    np.testing.assert_allclose(
        nodes.kernel_sums(x[:20]) + nodes.kernel_sums(x[20:]), nodes.kernel_sums(x)
    )


def test_smoothing_over_nodes():
    nodes = DensityNodes(np.full(3, -3.0), np.array([4.0, 3.0, 2.0]), 5, np.array([0.5, 1.0, 2.0]))
    values = np.random.default_rng(0).normal(size=nodes.n_nodes)
    gaps = (nodes.points[:, None] - nodes.points) / (1.5 * nodes.bandwidth)
    expected = np.exp(-0.5 * np.sum(gaps**2, axis=2)) @ values
    np.testing.assert_allclose(nodes.smooth(values, 1.5), expected)


def test_densities_of_sums_over_parts():
    groups = [P.sample(400, seed=k) for k in range(3)]
    made = DensityFeatures("js").fit(groups)
    sums = [made.nodes_.kernel_sums(x[:100]) + made.nodes_.kernel_sums(x[100:]) for x in groups]
    np.testing.assert_allclose(
        made.transform_densities(np.array(sums) / 400), made.transform(groups), atol=1e-8
    )


def test_learning_from_densities():
    rng = np.random.default_rng(0)
    target = rng.uniform(-1.0, 1.0, 60)
    groups = [rng.normal([mean, 0.0], 1.0, (100, 2)) for mean in target]
    model = make_pipeline(DensityFeatures(n_side=16), DistributionRegressor(40))
    model.fit(groups[:40], target[:40])
    assert np.sqrt(np.mean((model.predict(groups[40:]) - target[40:]) ** 2)) < 0.25


def test_lost_mass_and_narrow_kernels_warn():
    made = DensityFeatures(bounds=([-1.0, -1.0], [1.0, 1.0])).fit([P])
    with pytest.warns(UserWarning, match="bounds"):
        made.transform([P])
    with pytest.warns(UserWarning, match="n_side="):
        DensityFeatures(n_side=4).fit([P.sample(1000)])


@pytest.mark.parametrize(
    ("arguments", "x", "match"),
    [
        ({"kind": "kl"}, [P], "kind='kl'"),
        ({"exponents": "many"}, [P], "exponents='many'"),
        ({"n_side": 1}, [P], "n_side=1"),
        ({"n_side": 2000}, [P], "n_side=2000"),
        ({"degree": 20}, [P], "degree=20"),
        ({"order": 0.0}, [P], "order=0.0"),
        ({"bounds": ([0.0], [1.0])}, [P], "bounds="),
        ({"bounds": ([0.0, 2.0], [1.0, 1.0])}, [P], "bounds="),
        ({}, [], "no distributions"),
        ({}, [P, random_mixture(1, 3)], r"\[2, 3\]"),
        ({}, [np.zeros((5, 2))], "constant in feature 0"),
    ],
)
def test_bad_arguments(arguments, x, match):
    with pytest.raises(InputError, match=match):
        DensityFeatures(**arguments).fit(x)


def test_bad_densities():
    made = DensityFeatures().fit([P])
    with pytest.raises(InputError, match="3 features"):
        made.transform([random_mixture(1, 3)])
    with pytest.raises(InputError, match=r"shape \(1, 5\)"):
        made.transform_densities(np.ones((1, 5)))
    with pytest.raises(ValueError, match="Negative values"):
        made.transform_densities(-np.ones((1, made.nodes_.n_nodes)))
    with pytest.raises(InputError, match="degree=600"):
        trigonometric_features([P], [0.0, 0.0], [1.0, 1.0], 600)


def test_features_of_other_names_are_refused():
    a, b = (replace(P, feature_names=names) for names in (("a", "b"), ("b", "a")))
    frame = pd.DataFrame(P.sample(200, seed=0), columns=["b", "a"])
    lower, upper = pd.Series({"b": -9.0, "a": -9.0}), pd.Series({"b": 9.0, "a": 9.0})
    made = DensityFeatures("l2", n_side=40, bandwidth=2.0).fit([a, Q])
    assert made.feature_names_in_.tolist() == ["a", "b"]
    assert not hasattr(made.fit([P, Q]), "feature_names_in_")
    made.fit([a])
    for run, argument in (
        (lambda: made.fit([a, b]), r"X\[1\]"),
        (lambda: made.fit([a]).transform([b]), "X"),
        (lambda: made.fit([a]).transform([Q, frame]), "X"),
        (lambda: DensityFeatures("l2", bounds=(lower, upper)).fit([a]), "bounds"),
        (lambda: trigonometric_features([a, b], [-9, -9], [9, 9], 2), r"X\[1\]"),
        (lambda: trigonometric_features([a], [-9, -9], upper, 2), "upper"),
    ):
        with pytest.raises(InputError, match=f"feature 0 of {argument} is 'b'; .* 'a'"):
            run()
