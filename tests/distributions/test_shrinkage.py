import numpy as np

from dask_sketch import FeatureMap
from dask_sketch.distributions.shrinkage import Shrinkage

MAP = FeatureMap(1, 30, scale=0.7)


def drawn(rng, sizes):
    """Embeddings of groups of normal samples around random means, and of their distributions."""
    omega = MAP.frequencies[0]
    means = rng.normal(size=len(sizes))
    exact = np.exp(-1j * means[:, None] * omega - 0.5 * (0.5 * omega) ** 2)
    rows = [mean + 0.5 * rng.normal(size=size) for mean, size in zip(means, sizes, strict=True)]
    found = np.array([np.exp(-1j * row[:, None] * omega).mean(axis=0) for row in rows])
    return (np.hstack([z.real, z.imag]) / np.sqrt(len(omega)) for z in (found, exact))


def test_errors_of_embeddings_become_smaller_most_of_all_in_small_groups():
    sizes = np.tile([3, 12, 200], 100)
    found, exact = drawn(np.random.default_rng(0), sizes)
    shrinkage = Shrinkage.fit(found, sizes.astype(float), MAP)
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


def test_groups_of_one_distribution_are_one_point():
    rng, sizes = np.random.default_rng(0), np.full(50, 20.0)
    z = np.exp(-1j * rng.normal(size=(50, 20, 1)) * MAP.frequencies[0]).mean(axis=1)
    found = np.hstack([z.real, z.imag]) / np.sqrt(30)
    shrunk = Shrinkage.fit(found, sizes, MAP).apply(found, sizes)
    assert shrunk.var(axis=0).sum() < 0.1 * found.var(axis=0).sum()


def test_equal_groups_and_single_samples_are_no_error():
    same = np.tile(np.r_[np.ones(30), np.zeros(30)], (4, 1)) / np.sqrt(30)
    one = np.ones(4)
    for sizes in (one, 5 * one):
        found = Shrinkage.fit(same, sizes, MAP).apply(same, sizes)
        np.testing.assert_allclose(found, same, atol=1e-12)
