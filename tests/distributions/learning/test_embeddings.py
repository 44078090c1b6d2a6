import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions import DistributionFeatures, mean_embedding
from dask_sketch.errors import InputError, MergeError

MAP = FeatureMap(2, 40, scale=1.0)


def sketches(n_groups=6, feature_map=MAP, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_groups), 30)
    x = rng.normal(size=(len(labels), 2)) * (1.0 + 0.2 * labels[:, None])
    return partial_sketch(x, feature_map, groups=[f"g{k}" for k in labels], dim="day")


def test_inner_products_approximate_the_mean_map_kernel():
    rng = np.random.default_rng(0)
    sides = rng.normal(size=(50, 2)), 0.5 + rng.normal(size=(80, 2))
    feature_map = FeatureMap(2, 4000, scale=1.0, distribution="gaussian")
    labels = np.repeat(["a", "b"], [50, 80])
    found = mean_embedding(partial_sketch(np.concatenate(sides), feature_map, groups=labels))
    distances = ((sides[0][:, None] - sides[1]) ** 2).sum(axis=-1)
    frequencies = feature_map.frequencies
    exact = np.exp(-0.5 * distances * np.mean(frequencies**2)).mean()
    # 4 standard errors of a mean over the frequencies, each at most 1 in size
    assert abs(float(found[0] @ found[1]) - exact) < 4 / np.sqrt(2 * 4000)


def test_groups_keep_labels_sizes_and_feature_map():
    group = sketches()
    found = mean_embedding(group)
    assert found.dims == ("day", "random_feature")
    assert list(found["day"].to_numpy()) == list(group.labels)
    np.testing.assert_array_equal(found["effective_count"], group.effective_count)
    assert found.attrs["digest"] == MAP.digest
    np.testing.assert_allclose(np.asarray(found)[2, :40], group["g2"].z.real)


def test_empty_groups_are_named():
    group = ds.SketchGroup.from_sketches({"a": ds.Sketch.empty(MAP)}, dim="day")
    with pytest.raises(InputError, match="day=a"):
        mean_embedding(group)
    with pytest.raises(InputError, match="groups of type Sketch"):
        mean_embedding(group["a"])


def test_other_input_is_refused_with_its_name():
    group = sketches()
    fitted = DistributionFeatures(10).fit(group)
    other = FeatureMap(2, 40, scale=1.0, seed=1)
    for given in (sketches(feature_map=other), mean_embedding(sketches(feature_map=other))):
        with pytest.raises(MergeError, match="seed"):
            fitted.transform(given)
    with pytest.raises(MergeError, match="shape"):
        fitted.transform(mean_embedding(group)[:, :10])
    with pytest.raises(InputError, match="shrink=True"):
        fitted.transform(np.asarray(mean_embedding(group)))
    with pytest.raises(InputError, match="X of type list"):
        fitted.transform([group["g0"]])
    with pytest.raises(InputError, match="X of type str"):
        fitted.transform("rows.zarr")
    points = DistributionFeatures(10).fit(np.asarray(mean_embedding(group)))
    with pytest.raises(InputError, match="groups"):
        points.transform(np.zeros((4, 2)), groups=np.zeros(4))
