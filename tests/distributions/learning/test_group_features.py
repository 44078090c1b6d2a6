import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions import DistributionFeatures, mean_embedding
from dask_sketch.distributions.learning.group_features import Shrinkage
from dask_sketch.errors import InputError

MAP = FeatureMap(2, 40, scale=1.0)
N = 30
LABELS = np.repeat(np.arange(N), 40)
ROWS = np.random.default_rng(0).normal(size=(len(LABELS), 2)) * (1.0 + (LABELS % 2)[:, None])
GROUP = partial_sketch(ROWS, MAP, groups=LABELS)
WIDE = np.arange(N) % 2
LINE = FeatureMap(1, 30, scale=0.7)  # one feature


@pytest.mark.parametrize("kernel", ["matern", "rbf"])
def test_inner_products_are_the_kernel_of_the_discrepancy(kernel):
    embedding = mean_embedding(GROUP)
    settings = {"kernel": kernel, "bandwidth": 0.8, "shrink": False}
    found = DistributionFeatures(2000, layer="random", **settings).fit(embedding)
    distances = np.sqrt(((embedding.to_numpy()[:, None] - embedding.to_numpy()) ** 2).sum(axis=-1))
    np.testing.assert_allclose(found.bandwidth_, 0.8 * np.median(distances[np.triu_indices(N, 1)]))
    relative = distances / found.bandwidth_
    t = np.sqrt(3.0) * relative
    exact = np.exp(-0.5 * relative**2) if kernel == "rbf" else (1.0 + t) * np.exp(-t)
    features = found.transform(embedding)
    np.testing.assert_allclose((features**2).sum(axis=1), 1.0)
    assert np.abs(features @ features.T - exact).max() < 5 / np.sqrt(2 * 2000)
    features = DistributionFeatures(N, **settings).fit_transform(embedding)
    np.testing.assert_allclose(features @ features.T, exact, atol=1e-8)


def test_landmarks_are_exact_and_more_of_them_are_closer_to_the_kernel():
    exact = DistributionFeatures(N).fit_transform(GROUP)
    errors = []
    for size in (5, 15):
        found = DistributionFeatures(size).fit(GROUP)
        assert found.layer_.landmarks.shape == (size, 80)
        features = found.transform(GROUP)
        products = features @ features.T
        assert np.isclose(np.diag(products), 1.0).sum() == size
        assert (np.diag(products) < 1.0 + 1e-9).all()
        errors.append(np.abs(products - exact @ exact.T).mean())
    assert errors[1] < 0.5 * errors[0]


def test_all_forms_of_groups_have_the_same_features():
    found = DistributionFeatures(20).fit(GROUP)
    expected = found.transform(GROUP)
    lazy = da.from_array(ROWS, chunks=(170, 2))
    sketched = ds.sketch(lazy, MAP, groups=LABELS)
    for given in (mean_embedding(GROUP), sketched):
        np.testing.assert_array_equal(found.transform(given), expected)
        np.testing.assert_array_equal(clone(found).fit(given).transform(given), expected)
    np.testing.assert_array_equal(found.transform(ROWS, groups=LABELS), expected)
    np.testing.assert_array_equal(found.transform(lazy, groups=LABELS), expected)
    part = found.transform(GROUP.select([3, 8]))
    np.testing.assert_allclose(part, expected[[3, 8]], atol=1e-12)


def test_features_depend_on_the_seed_alone():
    one, same, other = (
        [
            DistributionFeatures(5, layer=layer, random_state=seed).fit_transform(GROUP)
            for layer in ("landmarks", "random")
        ]
        for seed in (1, 1, 2)
    )
    for a, b, c in zip(one, same, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.allclose(a, c)


def test_small_groups_are_near_the_others_only_if_they_are_shrunk():
    sizes = np.where(np.arange(N) < 15, 8, 200)
    labels = np.repeat(np.arange(N), sizes)
    x = np.random.default_rng(0).normal(size=(len(labels), 2))
    x[:, 0] += 0.5 * np.sin(labels)
    group = partial_sketch(x, MAP, groups=labels)
    spread = []
    for shrink in (True, False):
        made = DistributionFeatures(kernel="linear", shrink=shrink).fit_transform(group)
        center = made.mean(axis=0)
        spread.append([((made[part] - center) ** 2).sum() for part in (sizes == 8, sizes == 200)])
    assert spread[0][0] < 2 * spread[0][1]
    assert spread[1][0] > 4 * spread[1][1]


def test_scikit_learn_divides_embeddings_by_groups():
    model = make_pipeline(DistributionFeatures(30), LogisticRegression())
    scores = cross_val_score(
        model, mean_embedding(GROUP), WIDE, cv=GroupKFold(3), groups=np.arange(N) // 5
    )
    assert scores.mean() > 0.9
    assert model.fit(GROUP, WIDE).score(GROUP, WIDE) > 0.9


def test_embeddings_are_whitened_by_scikit_learn():
    whitening = PCA(5, whiten=True)
    whitened = whitening.fit_transform(mean_embedding(GROUP))
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(5), atol=1e-8)
    model = make_pipeline(whitening, DistributionFeatures(30), LogisticRegression())
    assert model.fit(mean_embedding(GROUP), WIDE).score(mean_embedding(GROUP), WIDE) > 0.9


def test_names_of_features():
    found = DistributionFeatures(3, layer="random").fit(GROUP)
    names = found.get_feature_names_out()
    assert list(names[:2]) == ["distributionfeatures0", "distributionfeatures1"]
    assert len(names) == found.transform(GROUP).shape[1] == 6
    linear = DistributionFeatures(kernel="linear", shrink=False).fit(GROUP)
    assert len(linear.get_feature_names_out()) == 80
    np.testing.assert_array_equal(linear.transform(GROUP), mean_embedding(GROUP))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size=0"),
        ({"layer": "deep"}, "layer='deep'"),
        ({"bandwidth": 0.0}, r"bandwidth=0\.0"),
        ({"kernel": "cosine"}, "kernel='cosine'"),
    ],
)
def test_arguments_are_validated(arguments, message):
    with pytest.raises(InputError, match=message):
        DistributionFeatures(**arguments).fit(GROUP)


def embeddings_of_normal_groups(rng, sizes):
    """Embeddings of groups of normal samples around random means, and of their distributions."""
    omega = LINE.frequencies[0]
    means = rng.normal(size=len(sizes))
    exact = np.exp(-1j * means[:, None] * omega - 0.5 * (0.5 * omega) ** 2)
    rows = [mean + 0.5 * rng.normal(size=size) for mean, size in zip(means, sizes, strict=True)]
    found = np.array([np.exp(-1j * row[:, None] * omega).mean(axis=0) for row in rows])
    return (np.hstack([z.real, z.imag]) / np.sqrt(len(omega)) for z in (found, exact))


def test_shrinkage_makes_errors_of_embeddings_smaller_most_of_all_in_small_groups():
    sizes = np.tile([3, 12, 200], 100)
    found, exact = embeddings_of_normal_groups(np.random.default_rng(0), sizes)
    shrinkage = Shrinkage.fit(found, sizes.astype(float), LINE)
    shrunk = shrinkage.apply(found, sizes.astype(float))
    before, after = (
        np.array([np.sum((z - exact)[sizes == n] ** 2) for n in (3, 12, 200)])
        for z in (found, shrunk)
    )
    ratio = after / before
    assert (ratio < 1.0).all()
    assert (np.diff(ratio) > 0).all()
    assert ratio[0] < 0.7
    # errors of the estimated variances are a few percent of their sum
    true_within = np.mean((found - exact) ** 2 * sizes[:, None], axis=0)
    np.testing.assert_allclose(shrinkage.within.sum(), true_within.sum(), rtol=0.05)
    np.testing.assert_allclose(shrinkage.between.sum(), exact.var(axis=0).sum(), rtol=0.1)


def test_shrinkage_makes_groups_of_one_distribution_one_point():
    rng, sizes = np.random.default_rng(0), np.full(50, 20.0)
    z = np.exp(-1j * rng.normal(size=(50, 20, 1)) * LINE.frequencies[0]).mean(axis=1)
    found = np.hstack([z.real, z.imag]) / np.sqrt(30)
    shrunk = Shrinkage.fit(found, sizes, LINE).apply(found, sizes)
    assert shrunk.var(axis=0).sum() < 0.1 * found.var(axis=0).sum()


def test_shrinkage_keeps_equal_groups_and_single_samples():
    same = np.tile(np.r_[np.ones(30), np.zeros(30)], (4, 1)) / np.sqrt(30)
    one = np.ones(4)
    for sizes in (one, 5 * one):
        found = Shrinkage.fit(same, sizes, LINE).apply(same, sizes)
        np.testing.assert_allclose(found, same, atol=1e-12)
