from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import (
    Centroids,
    FeatureMap,
    GaussianMixture,
    decode,
    design,
    partial_sketch,
    privatise,
)
from dask_sketch.diagnostics import bootstrap
from dask_sketch.errors import InputError
from dask_sketch.models import AlphaStableMixture, LatentClassMixture, VonMisesFisherMixture
from dask_sketch.validation.categories import Categories

MAP = FeatureMap(1, 40, scale=1.0)
N_UNITS, N_ROWS = 30, 100


@pytest.fixture(scope="module")
def group():
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(N_UNITS), N_ROWS)
    x = rng.normal(size=(N_UNITS * N_ROWS, 1)) + rng.normal(scale=0.5, size=N_UNITS)[unit, None]
    return partial_sketch(x, MAP, groups=unit)


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(1)
    unit = np.repeat(np.arange(N_UNITS), N_ROWS)
    x = rng.normal(size=(N_UNITS * N_ROWS, 1)) + 8.0 * (unit % 2)[:, None]
    return partial_sketch(x, MAP, groups=unit)


@pytest.mark.slow
def test_the_error_of_a_mean_is_that_of_the_means_of_units(group):
    model = decode(group.merged(), 1, refine="efficient")
    found = bootstrap(model, group, n_replicates=60)
    exact = group.mean.std(ddof=1) / np.sqrt(N_UNITS)
    assert found.stderr["means"][0, 0] == pytest.approx(exact, rel=0.25)
    assert found.stderr["means"][0, 0] > 3.0 * model.stderr.means[0, 0]
    low, high = found.interval()["means"][0, 0]
    assert low < 0.0 < high
    assert found.interval(0.5)["means"][0, 0, 0] > low
    assert (found.interval()["covariances"] > 0.0).all()
    assert found.as_dict()["n_units"] == N_UNITS


def test_every_form_of_units_and_every_executor_gives_the_same_replicates(group):
    model = decode(group.merged(), 1)
    options = {"n_replicates": 3, "seed": 5}
    first = bootstrap(model, group, **options)
    with ThreadPoolExecutor(1) as executor:
        for other in (
            bootstrap(model, dict(group.items()), **options),
            bootstrap(model, [each for _, each in group.items()], executor=executor, **options),
        ):
            for name, values in first.replicates.items():
                np.testing.assert_array_equal(other.replicates[name], values)


@pytest.mark.slow
def test_components_keep_their_order_though_weights_vary(pairs):
    model = decode(pairs.merged(), 2)
    found = bootstrap(model, pairs, n_replicates=30)
    np.testing.assert_allclose(found.replicates["means"].std(axis=0), 0.0, atol=0.2)
    expected = np.sqrt(0.25 / N_UNITS)
    np.testing.assert_allclose(found.stderr["weights"], expected, rtol=0.4)
    low, high = np.moveaxis(found.interval()["weights"], -1, 0)
    assert (low > 0.0).all()
    assert (high < 1.0).all()
    points = decode(pairs.merged(), 2, model="dirac")
    assert isinstance(points, Centroids)
    centers = bootstrap(points, pairs, n_replicates=3)
    np.testing.assert_allclose(centers.replicates["centers"][0], centers.model.centers, atol=1.0)


def directions():
    model = VonMisesFisherMixture([0.5, 0.5], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [20.0, 8.0])
    return model, FeatureMap(3, 60, scale=0.4, normalize=True)


def heavy_tails():
    model = AlphaStableMixture([0.5, 0.5], [[0.0, 0.0], [9.0, 2.0]], np.ones((2, 2)), [1.5, 1.9])
    return model, FeatureMap(2, 80, scale=1.0)


def classes():
    levels = Categories((None, ("red", "green", "blue"), tuple("abcd")))
    rng = np.random.default_rng(5)
    probabilities = np.concatenate([rng.dirichlet(np.ones(n), size=2) for n in (3, 4)], axis=1)
    means, variances = [[-10.0], [20.0]], [[40.0], [90.0]]
    model = LatentClassMixture([0.5, 0.5], probabilities, levels, means=means, variances=variances)
    design_rows = model.sample(2000, seed=0).set_axis(["size", "color", "shop"], axis=1)
    return model, design(design_rows, n_components=2, categories={"color": None, "shop": None})


def factors():
    loadings = np.random.default_rng(2).normal(size=(2, 4, 1))
    shapes = np.concatenate([np.full((2, 4, 1), 0.5), loadings], axis=2)
    model = GaussianMixture(
        [0.5, 0.5], [np.zeros(4), np.full(4, 5.0)], shapes, covariance_type="low-rank:1"
    )
    return model, FeatureMap(4, 120, scale=1.0, distribution="sparse-sums")


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (directions, {"weights", "directions", "concentrations"}),
        (heavy_tails, {"weights", "locations", "scales", "alphas"}),
        (classes, {"weights", "means", "variances", "probabilities"}),
        (factors, {"weights", "means", "covariance_matrices"}),
    ],
)
@pytest.mark.few_cases(2)
def test_every_family_has_intervals(family, names):
    truth, feature_map = family()
    # the component of a row is that of its unit, so that only weights depend on the draw much
    units = []
    for unit in range(N_UNITS):
        one = np.arange(2) == unit % 2
        arrays = {name: getattr(truth, name) for name in type(truth)._arrays}
        part = replace(truth, **arrays | {"weights": one.astype(float)})
        sample = getattr(part, "sample_codes", part.sample)
        units.append(partial_sketch(sample(N_ROWS, seed=unit), feature_map))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows of one unit depend
        found = bootstrap(truth, units, n_replicates=12)
    assert set(found.stderr) == names
    assert type(found.model) is type(truth)
    np.testing.assert_allclose(found.stderr["weights"], np.sqrt(0.25 / N_UNITS), rtol=0.5)
    for name, interval in found.interval(0.9999).items():
        value = getattr(found.model, name)
        assert interval.shape == (*value.shape, 2)
        assert (interval[..., 0] <= value).all()
        assert (value <= interval[..., 1]).all()
        if name in ("concentrations", "scales", "variances", "probabilities"):
            assert (interval[..., 0] > 0.0).all()
        if name == "probabilities":
            assert (interval[..., 1] < 1.0).all()


def test_models_of_no_family_are_refused(group):
    with pytest.raises(InputError, match="model of type dict"):
        bootstrap({}, group)


def test_bad_units_are_named(group):
    model = GaussianMixture([1.0], [[0.0]], [[1.0]])
    merged = group.merged()
    for given, message in (
        (merged, "sketches of type Sketch"),
        ([merged], "sketches has 1 units"),
        ([merged, 3], "sketches of type list"),
        ([privatise(merged, 1.0, bounds=[[-9.0], [9.0]])] * 2, "sketches are private"),
    ):
        with pytest.raises(InputError, match=message):
            bootstrap(model, given)
    with pytest.raises(InputError, match="n_replicates=100001"):
        bootstrap(model, group, n_replicates=100_001)
    with pytest.raises(InputError, match="n_replicates=1"):
        bootstrap(model, group, n_replicates=1)
    with pytest.raises(InputError, match="executor='threads'"):
        bootstrap(model, group, executor="threads")
    with pytest.warns(UserWarning, match="5 units"):
        bootstrap(model, group.select(group.labels[:5]), n_replicates=2)
    with pytest.raises(InputError, match="confidence=1.5"):
        bootstrap(model, group, n_replicates=2).interval(1.5)
