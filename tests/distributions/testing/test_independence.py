import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_sketch import FeatureMap, open_samples, partial_sketch, sketch
from dask_sketch.distributions import compare_columns, split_columns
from dask_sketch.distributions.testing.independence import _parts
from dask_sketch.errors import InputError, MergeError

MAP = FeatureMap(2, 60, scale=1.0, distribution="gaussian", center=np.array([50.0, -3.0]))
ROWS, UNITS = 50, 20
UNIT = np.repeat(np.arange(UNITS), ROWS)


def frames(rng, n_units=UNITS, offsets=0.0):
    """Autoregressive rows of each unit around means of its own, near the center of the map."""
    noise = rng.normal(size=(ROWS, n_units, 2))
    x = noise.copy()
    for t in range(1, ROWS):
        x[t] = 0.9 * x[t - 1] + np.sqrt(1 - 0.81) * noise[t]
    x += offsets * rng.normal(size=(n_units, 2))
    return np.swapaxes(x, 0, 1).reshape(-1, 2) + MAP.center


def groups_of(x, feature_map=MAP, columns=(0,)):
    unit = np.repeat(np.arange(len(x) // ROWS), ROWS)
    rows = [x, *split_columns(x, columns, feature_map)]
    return [partial_sketch(one, feature_map, groups=unit, dim="day") for one in rows]


def squared_dependence(x):
    """Row for row, for the difference of the joint and the product characteristic function."""
    waves = [np.exp(-1j * x[:, k : k + 1] * MAP.frequencies[k]) for k in (0, 1)]
    gap = (waves[0] * waves[1]).mean(axis=0) - waves[0].mean(axis=0) * waves[1].mean(axis=0)
    return np.mean(np.abs(gap) ** 2)


def test_a_dependence_without_correlation_is_found():
    x = frames(np.random.default_rng(0))
    x[:, 1] += 0.7 * (x[:, 0] - 50.0) ** 2
    found = compare_columns(*groups_of(x))
    assert found.is_dependent
    assert found.n_units == UNITS
    low, high = found.interval
    assert 0.0 < low < found.dependence < high
    # the expected noise is taken off
    assert found.squared < squared_dependence(x) < found.squared * 1.3
    assert "p = 0.001" in repr(found)
    assert "p = 0.001" in found._repr_html_()
    assert found.as_dict()["is_dependent"]


def test_dependent_rows_of_independent_columns_are_no_dependence():
    found = compare_columns(*groups_of(frames(np.random.default_rng(1), offsets=1.0)))
    assert not found.is_dependent
    assert found.interval[0] == 0.0
    assert "No dependence" in found.sentence


def test_units_whose_means_depend_are_found():
    rng = np.random.default_rng(2)
    x = 0.1 * frames(rng) + np.repeat(rng.normal(size=(UNITS, 1)), ROWS, axis=0)
    assert compare_columns(*groups_of(x)).is_dependent


def test_columns_of_opened_samples_with_weights_and_labels(tmp_path):
    pandas = pytest.importorskip("pandas")
    x, rng = frames(np.random.default_rng(3)), np.random.default_rng(4)
    feature_map = FeatureMap(2, 30, scale=1.0, center=MAP.center, feature_names=("a", "b"))
    frame = pandas.DataFrame(x, columns=["a", "b"])
    frame["weight"], frame["day"] = rng.uniform(1.0, 2.0, len(x)), UNIT
    frame.to_parquet(tmp_path / "rows.parquet")
    samples = open_samples(str(tmp_path / "rows.parquet"), weights="weight", groups="day")
    opened = split_columns(samples, "b", feature_map)
    known = split_columns(x, "b", feature_map)
    found = dask.compute(*[sketch(one, feature_map) for one in (samples, *opened)])
    for one, rows in zip(found, (x, *known), strict=True):
        plain = partial_sketch(rows, feature_map, frame["weight"], groups=UNIT, dim="day")
        assert one.identical(plain)
    with pytest.raises(InputError, match="x is .* bag"):
        split_columns(open_samples(db.from_sequence([x])), [0], MAP)
    with pytest.raises(InputError, match="3 features"):
        split_columns(open_samples(np.ones((4, 3))), [0], MAP)


@pytest.mark.filterwarnings("ignore:the covariances inside of the 20 units")  # they depend
def test_columns_that_depend_on_the_stratum_are_independent_within_it():
    x = frames(np.random.default_rng(5), offsets=0.2)
    weekday = np.arange(UNITS) % 2
    x += 2.0 * np.repeat(weekday, ROWS)[:, None]
    groups = groups_of(x)
    assert compare_columns(*groups).is_dependent
    assert not compare_columns(*groups, strata=weekday).is_dependent
    x[:, 1] += 0.8 * (x[:, 0] - 50.0)
    assert compare_columns(*groups_of(x), strata=weekday).is_dependent
    with pytest.raises(InputError, match="strata has 3 labels for 20 units"):
        compare_columns(*groups, strata=[1, 2, 3])


def test_one_pass_of_lazy_rows_and_names_of_columns():
    feature_map = FeatureMap(3, 40, scale=1.0, feature_names=("a", "b", "c"))
    x = np.random.default_rng(0).normal(size=(ROWS * UNITS, 3))
    lazy = da.from_array(x, chunks=(300, 3))
    rows = [lazy, *split_columns(lazy, ["a", "c"], feature_map)]
    found = dask.compute(*[sketch(one, feature_map, groups=UNIT) for one in rows])
    again = [partial_sketch(one, feature_map, groups=UNIT)
             for one in (x, *split_columns(x, [0, 2], feature_map))]  # fmt: skip
    assert compare_columns(*found, seed=1) == compare_columns(*again, seed=1)
    first, second = split_columns(x, "b", feature_map)
    assert np.array_equal(first + second, x)
    assert (np.array_equal(first[:, 1], x[:, 1]), first[:, [0, 2]].any()) == (True, False)


def test_the_covariance_is_that_of_the_draws():
    groups = groups_of(frames(np.random.default_rng(3), offsets=1.0))
    parts = _parts(*groups, np.full(UNITS, 1.0 / UNITS), np.arange(UNITS) % 2)
    band = np.arange(0, 60, 6)
    draws = parts.draws(4000, 0)[1:, np.concatenate([band, 60 + band])]
    expected = parts.covariance(band)
    errors = np.abs(draws.T @ draws / len(draws) - expected)
    assert errors.max() < 0.15 * expected.diagonal().max()


def test_bad_arguments():
    both, first, second = groups_of(frames(np.random.default_rng(0)))
    with pytest.raises(InputError, match=r"level=0\.0001.*n_permutations=10000"):
        compare_columns(both, first, second, level=1e-4, n_permutations=99)
    few = [one.select(both.labels < 4) for one in (both, first, second)]
    with pytest.raises(InputError, match=r"level=0\.05 with 4 units \(day\)"):
        compare_columns(*few)
    with pytest.raises(InputError, match="second has feature 0"):
        compare_columns(both, first, both)
    with pytest.raises(InputError, match="first has 4 units"):
        compare_columns(both, few[1], second)
    with pytest.raises(InputError, match="first of type Sketch"):
        compare_columns(both, first[0], second)
    other = FeatureMap(2, 60, scale=1.0, distribution="gaussian", center=MAP.center, seed=1)
    of_other = groups_of(np.ones((ROWS * UNITS, 2)), other)[1]
    with pytest.raises(MergeError, match="seed"):
        compare_columns(both, of_other, second)
    for columns in ([0, 1], [], [2], ["a"], -1):
        with pytest.raises(InputError, match="columns="):
            split_columns(np.ones((3, 2)), columns, MAP)
    with pytest.raises(InputError, match="normalize"):
        split_columns(np.ones((3, 2)), 0, FeatureMap(2, 10, scale=1.0, normalize=True))
    empty = partial_sketch(np.zeros((2, 2)), MAP, np.zeros(2), groups=np.arange(2))
    with pytest.raises(InputError, match="both has no samples"):
        compare_columns(empty, empty, empty)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the covariances inside of the 12 units")  # in few draws
@pytest.mark.parametrize("offsets", [0.0, 1.0])
def test_level(offsets):
    rng = np.random.default_rng(0)
    p = np.array(
        [
            compare_columns(*groups_of(frames(rng, 12, offsets)), n_permutations=99).p_value
            for _ in range(400)
        ]
    )
    assert 0.02 <= np.mean(p <= 0.05) <= 0.08
    assert 0.06 <= np.mean(p <= 0.1) <= 0.14


RARE_MAP = FeatureMap(2, 40, scale=1.0, distribution="gaussian")


def rare_groups(rng, n_rows, *, meet=True):
    """Sketches of independent rows of two values, one of them in 5 % of the rows."""
    units = np.repeat(np.arange(20), n_rows)
    rows = (rng.random((len(units), 2)) < 0.05) * 1.5
    if not meet:
        rows[rows[:, 0] > 0.0, 1] = 0.0
    parts = [rows, *split_columns(rows, [0], RARE_MAP)]
    return [partial_sketch(x, RARE_MAP, groups=units) for x in parts]


def test_rare_values_that_never_meet_are_no_dependence() -> None:
    # by chance, as in a third of all draws: all covariances within units are then negative
    for seed in range(5):
        groups = rare_groups(np.random.default_rng(seed), 20, meet=False)
        assert not compare_columns(*groups, n_permutations=199).is_dependent


def test_rare_values_that_meet_in_few_units_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="20 units"):
        compare_columns(*rare_groups(np.random.default_rng(4), 60), n_permutations=99)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the covariances inside of the 20 units")  # in many draws
@pytest.mark.parametrize("n_rows", [20, 60])
def test_level_with_rare_values(n_rows) -> None:
    found = [
        compare_columns(
            *rare_groups(np.random.default_rng(880000 + seed), n_rows), n_permutations=199
        ).p_value
        for seed in range(300)
    ]
    assert np.mean(np.array(found) <= 0.05) <= 0.083  # the upper 99 % limit of 5 %
    assert np.mean(np.array(found) <= 0.01) <= 0.027


def walks(rng, n_units, n_rows, *, reflected):
    """Random walks in each unit and column: from zero, or reflected from a uniform beginning."""
    x = np.cumsum(0.3 * rng.normal(size=(n_units, n_rows, 2)), axis=1)
    if reflected:
        x = np.abs((x + 4.0 * rng.random((n_units, 1, 2))) % 4.0 - 2.0)
    units = np.repeat(np.arange(n_units), n_rows)
    rows = x.reshape(-1, 2)
    parts = [rows, *split_columns(rows, [0], RARE_MAP)]
    return [partial_sketch(one, RARE_MAP, groups=units) for one in parts]


def test_columns_with_a_common_course_of_all_units_are_dependent() -> None:
    # both walks are near zero at the beginning of each unit, and far from it at the end
    rng = np.random.default_rng(0)
    assert compare_columns(*walks(rng, 400, 30, reflected=False), n_permutations=199).is_dependent
    stationary = walks(rng, 400, 30, reflected=True)
    assert not compare_columns(*stationary, n_permutations=199).is_dependent


@pytest.mark.slow
def test_level_of_stationary_walks() -> None:
    found = [
        compare_columns(
            *walks(np.random.default_rng(seed), 20, 30, reflected=True), n_permutations=199
        ).p_value
        for seed in range(300)
    ]
    assert 0.019 <= np.mean(np.array(found) <= 0.05) <= 0.083  # 99 % limits of 5 %


def test_frames_with_other_names_are_refused():
    feature_map = FeatureMap(2, 20, scale=1.0, feature_names=("a", "b"))
    frame = pd.DataFrame(np.ones((4, 2)), columns=["b", "a"])
    for x in (frame, dd.from_pandas(frame, npartitions=2)):
        with pytest.raises(InputError, match="feature 0 of x is 'b'; .* 'a'") as caught:
            split_columns(x, ["a"], feature_map)
        assert caught.value.parameter == "x"
    assert split_columns(frame[["a", "b"]], ["a"], feature_map)[0]["b"].eq(0.0).all()
