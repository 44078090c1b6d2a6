"""Counts of levels, of pairs of levels, and of levels and bins, from sketches of frames."""

import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch.distributions import EmpiricalDistribution
from dask_sketch.errors import InputError

N = 5000
RNG = np.random.default_rng(0)
SHOP = RNG.choice(list("abcde"), N, p=[0.1, 0.2, 0.3, 0.35, 0.05])
SOLD = RNG.random(N) < np.where(SHOP == "a", 0.8, 0.3)
FRAME = pd.DataFrame({"size": RNG.normal(size=N) + SOLD, "shop": SHOP, "sold": SOLD})
LEVELS = {"shop": list("abcde"), "sold": [False, True]}


@pytest.fixture(scope="module")
def sketch():
    feature_map = ds.design(FRAME, n_frequencies=200, n_components=2, categories=LEVELS)
    return ds.sketch(FRAME, feature_map, sample=1000)


@pytest.mark.slow
def test_counts_of_levels_are_those_of_all_rows(sketch):
    for rows in (EmpiricalDistribution(sketch), EmpiricalDistribution(sketch.without_sample())):
        counts, levels = rows.histogram("shop")
        assert levels.tolist() == LEVELS["shop"]
        expected = FRAME["shop"].value_counts().reindex(levels)
        np.testing.assert_allclose(counts.value, expected, atol=0.05)
        assert (counts.standard_error < 0.05).all()
        assert rows.histogram("sold")[1].tolist() == [False, True]


def test_counts_of_pairs_of_levels_are_those_of_all_rows(sketch):
    counts, shops, sold = EmpiricalDistribution(sketch).histogram2d("shop", "sold")
    expected = pd.crosstab(FRAME["shop"], FRAME["sold"]).reindex(index=shops, columns=sold)
    np.testing.assert_allclose(counts.value, expected, atol=0.05)
    other, sold, shops = EmpiricalDistribution(sketch).histogram2d("sold", "shop")
    np.testing.assert_allclose(other.value, counts.value.T, atol=0.05)


@pytest.mark.parametrize("few", [True, False])
def test_other_histograms_are_estimated_with_errors(sketch, few):
    """Of levels without all of their characters, and of levels and bins."""
    if few:
        feature_map = ds.FeatureMap(
            3, 4, scale=1.0, distribution="sparse-radius", feature_names=FRAME.columns,
            categories=LEVELS,
        )  # fmt: skip
        rows = EmpiricalDistribution(ds.sketch(FRAME, feature_map, sample=1000))
        counts, shops, sold = rows.histogram2d("shop", "sold")
        expected = (
            pd.crosstab(FRAME["shop"], FRAME["sold"]).reindex(index=shops, columns=sold).to_numpy()
        )
    else:
        rows = EmpiricalDistribution(sketch)
        edges = [-1.0, 0.0, 1.0, 2.0]
        counts, *_ = rows.histogram2d("size", "sold", bins=(edges, 10))
        expected = np.histogram2d(FRAME["size"], FRAME["sold"], bins=[edges, [0, 0.5, 1]])[0]
    assert counts.value.shape == expected.shape
    assert (np.abs(counts.value - expected) < 4 * counts.standard_error).all()
    assert (counts.standard_error > 1.0).all()


def test_pairs_of_numbers_are_like_numpy():
    frame = pd.DataFrame({"x": [0.0, 1, 2, 2], "y": [0.0, 0, 1, 1]})
    rows = EmpiricalDistribution(ds.sketch(frame, ds.FeatureMap(2, 20, scale=1.0)))
    counts, *edges = rows.histogram2d(0, 1, bins=2, range=((0, 2), (0, 1)))
    expected, *others = np.histogram2d(frame["x"], frame["y"], bins=2)
    np.testing.assert_allclose(counts.value, expected)
    for mine, numpys in zip(edges, others, strict=True):
        np.testing.assert_array_equal(mine, numpys)


def test_functions_of_distances_refuse_levels(sketch):
    rows = EmpiricalDistribution(sketch)
    with pytest.raises(InputError, match="shop"):
        rows.kernel_density(FRAME[:3])
    with pytest.raises(InputError, match=r"target.*shop"):
        rows.conditional_mean("shop", [[0.0]], given=["size"])
    with pytest.raises(InputError, match=r"given.*sold"):
        rows.conditional_mean("size", [[0.0]], given=["sold"])
    with pytest.raises(InputError, match="second='sold'"):
        rows.histogram2d("sold", "sold")
    with pytest.raises(InputError, match="GaussianMixture"):
        EmpiricalDistribution(sketch, ds.GaussianMixture([1.0], [[0.0] * 3], [[1.0] * 3]))


def test_anomaly_scores_take_frames(sketch):
    found = EmpiricalDistribution(sketch).anomaly_scores(FRAME[:200])
    assert found.score.mean() == pytest.approx(1.0, abs=0.3)


def test_sketches_of_frames_are_compared(sketch):
    from dask_sketch.distributions import compare

    plain = sketch.feature_map
    halves = [
        ds.sketch(FRAME[start::2], plain, groups=np.arange(N // 2) % 20, nan_policy="omit")
        for start in (0, 1)
    ]
    assert compare(*halves, seed=0).p_value > 0.01
    other = ds.sketch(FRAME.assign(shop="a"), plain, groups=np.arange(N) % 20)
    assert compare(halves[0], other, seed=0).p_value < 0.01
