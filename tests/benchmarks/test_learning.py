import numpy as np
import pytest

from tests.benchmarks import learning, symmetries


@pytest.mark.slow
def test_sketches_count_components_better_than_a_constant():
    rows = learning.counting(150, 60, (100, 100), 100, only="sk")
    errors = {name: float(error) for name, error, *_ in rows}
    assert errors["sketches"] < 0.9 * errors["constant"]
    groups, counts = learning.drawn_groups(np.random.default_rng(0), 50, (20, 200))
    assert {len(group) for group in groups} <= set(range(20, 201))
    assert set(counts) <= set(range(1, learning.MAX_COMPONENTS + 1))
    np.testing.assert_allclose((learning.density_roots(groups) ** 2).sum(axis=1), 1.0)


@pytest.mark.slow
def test_features_are_the_same_in_all_orientations():
    groups, _ = learning.drawn_groups(np.random.default_rng(0), 40, (100, 100))
    turned = [group @ [[0.0, -1.0], [1.0, 0.0]] for group in groups]
    features = symmetries.SymmetricFeatures(30)
    found = features.fit_transform(groups)
    np.testing.assert_allclose(features.transform(groups), found)
    changes = np.linalg.norm(features.transform(turned) - found, axis=1)
    assert np.median(changes) < 0.1 * np.median(np.linalg.norm(found - found[::-1], axis=1))
    assert len(learning.counting(60, 30, (100, 100), 20, only="inv")) == 2


def test_digits_are_sets_of_points():
    rng = np.random.default_rng(0)
    labels = np.arange(120, dtype=np.uint8) % 2
    images = rng.integers(0, 2, (120, 8, 8), dtype=np.uint8)
    images[labels == 1, 2:4] = 255
    assert learning.digits(images.reshape(120, -1), labels, 20, 50) < 0.1


@pytest.mark.slow
def test_lazy_groups_are_learnt_in_one_pass():
    assert "1,000 groups of 20 rows" in learning.streamed(1000, 20, 30, 50, in_chunk=100)
