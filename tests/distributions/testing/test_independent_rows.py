import warnings
from dataclasses import replace

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch import FeatureMap, GaussianMixture, partial_sketch
from dask_sketch.distributions import compare_model, compare_rows, estimate_mmd
from dask_sketch.errors import InputError, MergeError
from dask_sketch.sketching.quantized_phases import quantize_phases

MAP = FeatureMap(2, 96, scale=1.0)


def sketch_of(rng, n=2000, width=1.0, sample=1000, weights=None):
    x = rng.normal(size=(n, 2)) * [1.0, width]
    return partial_sketch(x, MAP, weights, sample=sample)


@pytest.mark.slow
def test_the_level_holds_for_independent_rows():
    rng = np.random.default_rng(0)
    found = [
        compare_rows(sketch_of(rng, 500, sample=250), sketch_of(rng, 400, sample=250), n_draws=49)
        for _ in range(40)
    ]
    assert np.mean([one.p_value <= 0.1 for one in found]) < 0.29  # four standard errors
    assert np.mean([one.features[0].p_value <= 0.1 for one in found]) < 0.29
    assert np.mean([one.interval[0] == 0.0 for one in found]) > 0.85
    squares = np.array([one.squared for one in found])
    assert abs(squares.mean()) < 3 * squares.std() / np.sqrt(len(squares))


def test_a_wider_feature_is_found_and_named():
    rng = np.random.default_rng(0)
    found = compare_rows(sketch_of(rng), sketch_of(rng, width=1.3))
    assert found.is_different
    assert found.features[0].name == "feature 1"
    assert found.features[1].p_value > 0.05
    assert found.dim == "row"
    assert found.n_units == (2000, 2000)
    assert not compare_rows(sketch_of(rng), sketch_of(rng, width=1.3), tolerance=0.5).is_different


def test_weighted_rows():
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=(2, 2000))
    sides = [sketch_of(rng, weights=one) for one in weights]
    assert not compare_rows(*sides, level=0.01).is_different
    assert compare_rows(sides[0], sketch_of(rng, width=1.4, weights=weights[1])).is_different


def test_a_common_factor_of_the_weights_of_a_side_means_nothing():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 2)), rng.normal([0.4, 0.0], size=(200, 2))
    plain, heavy = (
        partial_sketch(x, MAP, weights, sample=300) for weights in (None, np.full(300, 8.0))
    )
    other = partial_sketch(y, MAP, sample=300, position=300)
    found = [compare_rows(side, other, n_draws=199) for side in (plain, heavy)]
    assert found[0].is_different
    assert found[0].p_value == found[1].p_value
    assert found[0].squared == pytest.approx(found[1].squared, rel=1e-6)


def reweighted(rng, n, sample):
    """Sketches of one distribution: rows of another one with importance weights, and plain rows."""
    x = rng.normal(size=(n, 2))
    weights = np.exp(0.5 * x[:, 0])
    shifted = rng.normal([0.5, 0.0], size=(n, 2))
    return (
        partial_sketch(x, MAP, weights, sample=sample, position=0),
        partial_sketch(shifted, MAP, sample=sample, position=n),
    )


@pytest.mark.slow
@pytest.mark.parametrize("sample", [500, 1000])
@pytest.mark.filterwarnings("default:feature")
def test_the_noise_is_that_of_weights_that_depend_on_the_values(sample):
    rng = np.random.default_rng(0)
    p, above = [], []
    for _ in range(40):
        both = reweighted(rng, 1000, sample)
        p.append(compare_rows(*both, n_draws=49).p_value)
        above.append(estimate_mmd(*both).interval[0] > 0.0)
    assert np.mean(np.array(p) <= 0.1) < 0.29  # four standard errors; above one half as if alike
    assert np.mean(above) < 0.2


def test_few_rows_with_weights_are_exchangeable_only_if_their_weights_are():
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="has 100"):
        compare_rows(*reweighted(rng, 100, 100), n_draws=49)


@pytest.mark.slow
def test_a_model_and_importance_weights():
    rng = np.random.default_rng(0)
    model, p = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]]), []
    for _ in range(40):
        x = rng.normal([0.4, 0.0], size=(2000, 2))
        side = partial_sketch(x, MAP, np.exp(-0.4 * x[:, 0]), sample=2000)
        p.append(compare_model(side, model, n_draws=49).p_value)
    assert np.mean(np.array(p) <= 0.1) < 0.29
    other = GaussianMixture([1.0], [[0.4, 0.0]], [[1.0, 1.0]])
    assert compare_model(side, other).is_different
    without = partial_sketch(x, MAP, np.exp(-0.4 * x[:, 0]))
    with pytest.warns(UserWarning, match="2,000.*sample=True"):
        compare_model(without, model, n_draws=49)


def test_results_depend_on_the_seed_alone():
    rng = np.random.default_rng(0)
    sides = sketch_of(rng, 500), sketch_of(rng, 500, width=1.1)
    one, same, other = (compare_rows(*sides, n_draws=99, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


def test_equal_data_is_not_different():
    sketch = ds.sketch(np.ones((300, 2)), MAP)
    found = compare_rows(sketch, sketch)
    assert found.p_value == 1.0
    assert found.interval == pytest.approx((0.0, 0.0), abs=1e-12)
    assert [one.p_value for one in found.features] == [1.0, 1.0]


@pytest.mark.parametrize(("value", "p_value"), [(1.7, 1.0), (1.8, 0.001)])
def test_rows_that_are_all_alike(value, p_value):
    first = ds.sketch(np.full((300, 2), 1.7), MAP)
    found = compare_rows(first, ds.sketch(np.full((777, 2), value), MAP, position=300))
    assert found.p_value == p_value


def test_sketches_without_rows_are_refused():
    rng = np.random.default_rng(0)
    sketch = sketch_of(rng)
    with pytest.raises(InputError, match="second has no random rows"):
        compare_rows(sketch, sketch.without_sample())
    with pytest.raises(InputError, match="first has 100 random rows"):
        compare_rows(sketch_of(rng, sample=100), sketch)
    with pytest.raises(InputError, match="second of type SketchGroup"):
        compare_rows(sketch, partial_sketch(np.ones((2, 2)), MAP, groups=[0, 1]))
    with pytest.raises(InputError, match="first of type SecondMoments"):
        compare_rows(ds.second_moments(rng.normal(size=(50, 2))), sketch)
    other = ds.sketch(rng.normal(size=(500, 2)), FeatureMap(2, 64, scale=1.0))
    with pytest.raises(MergeError):
        compare_rows(sketch, other)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"level": 0.0}, r"level=0\.0"),
        ({"tolerance": 3}, "tolerance=3"),
        ({"n_draws": 0}, "n_draws=0"),
        ({"n_draws": 10}, "n_draws=10"),
        ({"level": 1e-12}, r"n_draws=5,000,000,000,000: .* GB"),
        ({"seed": 0.5}, r"seed=0\.5"),
    ],
)
def test_bad_arguments(arguments, named):
    sketch = sketch_of(np.random.default_rng(0), n=300)
    with pytest.raises(InputError, match=named):
        compare_rows(sketch, sketch, **arguments)


def with_rare_values(rng, n, n_rare, sample):
    x = rng.normal(size=(n, 2))
    x[rng.choice(n, n_rare, replace=False), 1] = 30.0
    return partial_sketch(x, MAP, sample=sample)


@pytest.mark.slow
def test_the_level_is_exact_for_rare_values_if_all_rows_are_kept():
    """A rare value on one side alone is no difference: 21 of 120 such tests rejected before."""
    rng = np.random.default_rng(0)
    found = [
        compare_rows(
            with_rare_values(rng, 300, rng.poisson(0.6), 1000),
            with_rare_values(rng, 300, rng.poisson(0.6), 1000),
            n_draws=49,
            seed=seed,
        )
        for seed in range(20)
    ]
    assert np.mean([one.p_value <= 0.1 for one in found]) < 0.37  # four standard errors
    assert np.mean([one.features[0].p_value <= 0.1 for one in found]) < 0.37


@pytest.mark.slow
def test_noise_of_bits_and_of_rounded_sums_is_no_difference():
    feature_map, model = FeatureMap(2, 40, scale=1.0), GaussianMixture([1.0], [[0, 0]], [[1, 1]])
    rng, p = np.random.default_rng(0), []
    for seed in range(12):
        x = rng.normal(size=(1000, 2))
        bits = quantize_phases(x, feature_map, bits=1, seed=seed).sketch()
        p.append(compare_model(bits, model, n_draws=19, seed=seed))
        rounded = partial_sketch(x, feature_map, sample=250).rounded()
        p.append(compare_model(rounded, model, n_draws=19, seed=seed))
        other = partial_sketch(rng.normal(size=(1000, 2)), feature_map, sample=250)
        p.append(compare_rows(rounded, other, n_draws=19, seed=seed))
    assert sum(one.p_value <= 0.1 for one in p) <= 9
    squares = np.array([one.squared for one in p[::3]])
    assert abs(squares.mean()) < 4 * squares.std() / np.sqrt(len(squares))


@pytest.mark.slow
@pytest.mark.parametrize("n_rare", [0.0, 0.5, 4.0])
def test_level_with_few_random_rows(n_rare):
    """Of 150 such tests at 5 %, 53 to 78 rejected while the random rows whitened themselves."""
    rng = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = [
            compare_rows(
                with_rare_values(rng, 2000, rng.poisson(n_rare), 250),
                with_rare_values(rng, 2000, rng.poisson(n_rare), 250),
                n_draws=19,
                seed=seed,
            )
            for seed in range(25)
        ]
    assert sum(one.p_value <= 0.1 for one in found) <= 8
    assert sum(one.features[0].p_value <= 0.1 for one in found) <= 8


@pytest.mark.parametrize("n_rare", [1, 3])
def test_rare_values_beside_few_random_rows_are_named(n_rare):
    rng = np.random.default_rng(0)
    sides = [with_rare_values(rng, 3000, n_rare, 250) for _ in range(2)]
    with pytest.warns(UserWarning, match=r"feature 1 .*sample=n_samples up to 4,000"):
        compare_rows(*sides)


@pytest.mark.filterwarnings("error")
def test_rounding_of_a_feature_that_does_not_vary_is_no_rare_value():
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(size=2000), np.full(2000, -1000.1)], axis=1)
    sides = [partial_sketch(part, MAP, sample=250) for part in np.split(x, 2)]
    assert compare_rows(*sides, n_draws=19).p_value > 0.05


def test_permutations_have_the_weights_of_their_rows():
    rng = np.random.default_rng(0)
    weights = [np.full(400, 1.0), np.full(400, 3.0)]  # another unit of weights is no difference
    sides = [sketch_of(rng, 400, weights=one) for one in weights]
    assert not compare_rows(*sides, level=0.01).is_different
    wide = sketch_of(rng, 400, width=1.6, weights=rng.exponential(size=400))
    assert compare_rows(sides[0], wide).is_different


MODEL = GaussianMixture([0.4, 0.6], [[-2.0, 0.0], [2.0, 1.0]], [[1.0, 0.5], [0.5, 1.0]])


@pytest.mark.slow
def test_rows_of_a_model_and_of_others():
    feature_map = FeatureMap(2, 60, scale=1.0)
    sketches = [partial_sketch(MODEL.sample(500, seed=k), feature_map) for k in range(10)]
    p = [compare_model(one, MODEL, n_draws=49).p_value for one in sketches]
    assert sum(one <= 0.1 for one in p) <= 4
    assert 0.2 < np.mean(p) < 0.8
    x = MODEL.sample(5000, seed=0)
    x[:, 1] *= 1.1
    found = compare_model(partial_sketch(x, feature_map), MODEL, n_draws=199)
    assert found.is_different
    assert found.features[0].name == "feature 1"
    assert found.n_units == (5000, 0)
    assert found.interval[0] < found.discrepancy < found.interval[1]
    tolerant = compare_model(partial_sketch(x, feature_map), MODEL, tolerance=0.2, n_draws=199)
    assert not tolerant.is_different


def test_a_model_is_compared_with_sketches_of_enough_rows():
    feature_map = FeatureMap(2, 20, scale=1.0)
    with pytest.raises(InputError, match="count of 99"):
        compare_model(partial_sketch(MODEL.sample(99, seed=0), feature_map), MODEL)
    with pytest.raises(InputError, match="model of type int"):
        compare_model(partial_sketch(MODEL.sample(999, seed=0), feature_map), 3)
    with pytest.raises(InputError, match="n_draws=9"):
        compare_model(partial_sketch(MODEL.sample(999, seed=0), feature_map), MODEL, n_draws=9)


def test_the_errors_of_a_fitted_model_count():
    """Without them, 16 of 40 tests of a fit to as many other rows rejected."""
    feature_map = FeatureMap(2, 60, scale=1.0)
    moved = GaussianMixture(MODEL.weights, MODEL.means + 0.08, MODEL.variances)  # a fit to 400 rows
    sketch = partial_sketch(MODEL.sample(4000, seed=0), feature_map)
    assert compare_model(sketch, moved, n_draws=199).is_different
    assert not compare_model(sketch, moved, n_fitted=400, n_draws=199).is_different
    other = GaussianMixture(MODEL.weights, MODEL.means + 0.8, MODEL.variances)
    assert compare_model(sketch, other, n_fitted=400, n_draws=199).is_different
    with pytest.raises(InputError, match="n_fitted=0"):
        compare_model(sketch, moved, n_fitted=0)


@pytest.mark.slow
def test_level_of_the_test_of_a_model():
    feature_map = FeatureMap(2, 60, scale=1.0)
    found = [
        compare_model(
            partial_sketch(MODEL.sample(400, seed=k), feature_map), MODEL, n_draws=99, seed=k
        )
        for k in range(300)
    ]
    assert 4 <= sum(one.is_different for one in found) <= 28


@pytest.mark.slow
def test_level_of_the_test_of_a_model_with_few_rows():
    """26 of 200 such tests rejected at 5 % with normal noise and the rows that whitened it."""
    feature_map, model = FeatureMap(2, 40, scale=1.0), GaussianMixture([1.0], [[0, 0]], [[1, 1]])
    rng = np.random.default_rng(0)
    found = [
        compare_model(
            partial_sketch(rng.normal(size=(300, 2)), feature_map), model, n_draws=19, seed=k
        )
        for k in range(40)
    ]
    assert sum(one.p_value <= 0.1 for one in found) <= 11


@pytest.mark.slow
def test_level_of_flags_that_never_meet_in_the_random_rows() -> None:
    feature_map = FeatureMap(2, 50, scale=1.0, distribution="gaussian")
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        sides = [(rng.random((6000, 2)) < 0.03).astype(float) for _ in range(2)]
        first, second = (
            partial_sketch(x, feature_map, sample=500, position=6000 * k)
            for k, x in enumerate(sides)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of rare values, in few draws
            found += compare_rows(first, second, seed=seed, n_draws=99).is_different
    assert found <= 8  # of 60; 17 where their joint noise counts as none


@pytest.mark.slow
def test_few_rows_are_permuted() -> None:
    feature_map = FeatureMap(2, 50, scale=1.0, distribution="gaussian")

    def compared(seed: int, shift: float) -> bool:
        rng = np.random.default_rng(seed)
        first = partial_sketch(rng.normal(size=(60, 2)), feature_map, sample=100)
        second = partial_sketch(
            shift + rng.normal(size=(40, 2)), feature_map, sample=100, position=60
        )
        return compare_rows(first, second, seed=seed, n_draws=99).is_different

    assert sum(compared(seed, 0.0) for seed in range(100)) <= 11
    assert sum(compared(seed, 1.0) for seed in range(10)) == 10
    rows = np.random.default_rng(0).normal(size=(319, 2))
    few = partial_sketch(rows[:300], feature_map, sample=300)
    with pytest.raises(InputError, match="second has 19 random rows"):
        compare_rows(few, partial_sketch(rows[300:], feature_map, sample=300, position=300))


def test_a_model_with_other_names_is_refused():
    model = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]], feature_names=("b", "a"))
    rows = model.sample(1000, seed=0)
    for names in (None, ("b", "a")):
        compare_model(partial_sketch(rows, replace(MAP, feature_names=names)), model, n_draws=99)
    with pytest.raises(InputError, match="feature 0 of model is 'b'; .* 'a'") as caught:
        compare_model(partial_sketch(rows, replace(MAP, feature_names=("a", "b"))), model)
    assert caught.value.parameter == "model"
