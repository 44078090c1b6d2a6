from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch.decoders.objectives.product_transform import ProductTransform
from dask_sketch.errors import DecodeError, InputError
from dask_sketch.models import LatentClassMixture
from dask_sketch.validation.categories import Categories

LEVELS = Categories((None, ("red", "green", "blue"), tuple("abcd")))
RNG = np.random.default_rng(5)
TRUTH = LatentClassMixture(
    [0.3, 0.7],
    np.concatenate([RNG.dirichlet(np.ones(n), size=2) for n in (3, 4)], axis=1),
    LEVELS,
    means=[[-10.0], [20.0]],
    variances=[[40.0], [90.0]],
)
FRAME = TRUTH.sample(20_000, seed=1).set_axis(["size", "color", "shop"], axis=1)


@pytest.fixture(scope="module")
def feature_map():
    return ds.design(FRAME, n_components=2, categories={"color": None, "shop": None})


@pytest.fixture(scope="module")
def sketch(feature_map):
    return ds.sketch(FRAME, feature_map, sample=2000)


def distance(model):
    """Largest difference of probabilities and weights, up to the order of the classes."""
    orders = [list(order) for order in permutations(range(TRUTH.n_components))]
    return min(
        max(
            np.abs(model.probabilities[order] - TRUTH.probabilities).max(),
            np.abs(model.weights[order] - TRUTH.weights).max(),
        )
        for order in orders
    )


@pytest.fixture(scope="module")
def transform(feature_map):
    ones = np.ones(1)
    return ProductTransform(feature_map.categories, feature_map.frequencies, 1e-3 * ones, ones)


def test_transform_is_the_characteristic_function(transform, feature_map):
    real, imaginary = transform.values(transform.pack(TRUTH.parameters))
    expected = TRUTH.characteristic(feature_map.frequencies)
    np.testing.assert_allclose(real + 1j * imaginary, expected, atol=1e-12)


def test_derivatives_are_those_of_differences(transform):
    theta = transform.pack(TRUTH.parameters)
    found = transform.jacobian(transform.unpack(theta), slice(None))
    for number, step in enumerate(1e-6 * np.eye(len(theta))):
        slope = (transform.values(theta + step) - transform.values(theta - step)) / 2e-6
        np.testing.assert_allclose(found[:, :, number], slope, atol=1e-8)


@pytest.mark.slow
def test_covariance_is_that_of_the_features(transform, feature_map):
    count = 1e4
    lower, rank = transform.whitening(TRUTH.parameters, count)
    phases = TRUTH.sample_codes(50_000, seed=2) @ feature_map.frequencies
    features = np.concatenate([np.cos(phases), -np.sin(phases)], axis=1)
    np.testing.assert_allclose(count * lower @ lower.T, np.cov(features.T), atol=0.02)
    # of real characters the imaginary parts do not vary
    assert rank < 2 * feature_map.n_frequencies - 1


@pytest.mark.parametrize("kind", ["rows", "sums", "no pilot"])
def test_decodes_to_the_classes(sketch, kind):
    if kind == "sums":
        sketch = sketch.without_sample()
    if kind == "no pilot":
        plain = sketch.feature_map.without_records()
        sketch = ds.sketch(FRAME, plain, sample=False)
    model = ds.decode(sketch, 2)
    assert distance(model) < 0.03
    assert model.score(FRAME) > TRUTH.score(FRAME.set_axis(range(3), axis=1)) - 5e-4
    record = model.decoding
    assert record.cost < 2 * record.noise_level
    assert record.overidentification < record.freedom + 5 * np.sqrt(2 * record.freedom)
    assert model.feature_names == ("size", "color", "shop")


def test_few_rows_are_fitted_by_maximum_likelihood(feature_map):
    sketch = ds.sketch(FRAME[:1500], feature_map)
    model = ds.decode(sketch, 2)
    assert model.decoding.is_likeliest
    assert model.score(FRAME[:1500]) > TRUTH.score(FRAME[:1500].set_axis(range(3), axis=1))


@pytest.mark.slow
def test_classes_of_a_sketch_without_rows_whose_columns_depend_on_each_other():
    levels = (("r", "b", "g"), None, ("n", "y"), tuple("pqst"))
    probabilities = [
        [0.7, 0.2, 0.1, 0.9, 0.1, 0.1, 0.2, 0.3, 0.4],
        [0.1, 0.3, 0.6, 0.2, 0.8, 0.6, 0.2, 0.1, 0.1],
    ]
    truth = LatentClassMixture(
        [0.6, 0.4], probabilities, levels, means=[[0.0], [3.0]], variances=[[1.0], [2.0]]
    )
    frame = truth.sample(6000, seed=1)
    feature_map = ds.design(frame, n_components=2)
    model = ds.decode(ds.sketch(frame, feature_map, sample=False), 2)  # without a warning
    assert model.score(frame) > truth.score(frame) - 1e-3


def test_starts_from_an_earlier_model(sketch):
    first = ds.decode(sketch, 2)
    again = ds.decode(sketch, start=first)
    assert distance(again) == pytest.approx(distance(first), abs=1e-3)
    with pytest.raises(DecodeError, match="n_components=3"):
        ds.decode(sketch, 3, start=first)
    with pytest.raises(DecodeError, match="GaussianMixture"):
        ds.decode(sketch, start=ds.GaussianMixture([1.0], [[0.0] * 4], [[1.0] * 4]))


@pytest.mark.slow
def test_another_number_of_classes_than_the_pilot_has(sketch):
    with pytest.warns(UserWarning, match="nats a sample"):  # there are two
        model = ds.decode(sketch.without_sample(), 1)
    assert model.n_components == 1
    np.testing.assert_allclose(
        model.probabilities[0], TRUTH.weights @ TRUTH.probabilities, atol=0.02
    )


@pytest.mark.slow
def test_groups_are_decoded_each(feature_map):
    group = ds.sketch(FRAME, feature_map, groups=np.arange(len(FRAME)) % 2)
    models = ds.decode(group, 2)
    assert [distance(model) < 0.05 for model in models.values()] == [True, True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"covariance_type": "full"}, "covariance_type='full'"),
        ({"model": "dirac"}, "model='dirac'"),
        ({"method": "cl-ompr"}, "method='cl-ompr'"),
        ({"bounds": "data"}, "bounds='data'"),
        ({"refine": "best"}, "refine='best'"),
        ({"n_components": None}, "n_components=None"),
        ({"n_components": 300}, "n_components=300"),
    ],
)
def test_arguments_without_a_meaning_are_refused(sketch, options, text):
    with pytest.raises(DecodeError, match=text):
        ds.decode(sketch, **({"n_components": 2} | options))


def test_numbers_are_found_beside_levels_that_are_independent_of_them():
    rng = np.random.default_rng(0)
    frame = FRAME.assign(
        size=rng.normal(size=len(FRAME)), color=rng.choice(["red", "blue"], 20_000)
    )
    levels = {"color": ["red", "blue"], "shop": None}
    feature_map = ds.design(frame, n_components=1, categories=levels)
    model = ds.decode(ds.sketch(frame, feature_map, sample=False), 1)
    assert model.means[0, 0] == pytest.approx(0.0, abs=0.03)
    assert model.variances[0, 0] == pytest.approx(1.0, abs=0.05)


def test_starts_with_other_names_are_refused():
    levels = {"x": ["a", "b"], "y": ["c", "d"]}
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.choice(both, 400) for name, both in levels.items()})
    found = ds.sketch(frame, ds.design(frame, n_components=2, categories=levels))
    start = ds.decode(found, 2)
    turned = replace(start, categories=replace(start.categories, names=("y", "x")))
    assert ds.decode(found, start=start).feature_names == ("x", "y")
    with pytest.raises(InputError, match="feature 0 of start is 'y'; .* 'x'") as caught:
        ds.decode(found, start=turned)
    assert caught.value.parameter == "start"


def test_missing_values_are_weighted_by_the_rows_that_observe_them():
    rng = np.random.default_rng(3)
    frame = FRAME.astype({"color": object, "shop": object})
    holes = frame.mask(rng.random(frame.shape) < 0.15)
    feature_map = ds.design(
        holes, n_components=2, categories={"color": LEVELS.levels[1], "shop": LEVELS.levels[2]},
        nan_policy="available",
    )  # fmt: skip
    found = ds.decode(ds.sketch(holes, feature_map, nan_policy="available"), 2)
    record = found.decoding
    assert distance(found) < 0.01  # 0.03 where entries are weighted as if rows were complete
    # of 100 draws of such data, 55 degrees of freedom had 56 on average, with a deviation of 10
    deviation = np.sqrt(2.0 * record.freedom)
    assert abs(record.overidentification - record.freedom) < 4.0 * deviation
    # values that are missing by what they are
    gone = holes.assign(
        size=holes["size"].where(~((holes["color"] == "red") & (holes["size"] > 15)))
    )
    with pytest.warns(UserWarning, match=r"not missing completely at random.* nats"):
        ds.decode(ds.sketch(gone, feature_map, nan_policy="available"), 2)
