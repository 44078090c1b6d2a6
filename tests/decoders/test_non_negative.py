from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders import support as non_negative
from dask_sketch.decoders.support import non_negative_weights


@pytest.mark.parametrize("seed", range(5))
def test_meets_the_conditions_of_the_optimum(seed):
    rng = np.random.default_rng(seed)
    rows, target = rng.normal(size=(6, 40)), rng.normal(size=40)
    weights = non_negative_weights(rows, target)
    slopes = rows @ (target - weights @ rows)  # f_r of the paper, where rows are atoms
    assert (weights >= 0).all()
    assert 0 < (weights > 0).sum() < 6
    np.testing.assert_allclose(slopes[weights > 0], 0.0, atol=1e-10)
    assert (slopes[weights == 0] <= 1e-10).all()


def test_equal_atoms_share_their_weight():
    row = np.random.default_rng(1).normal(size=30)
    weights = non_negative_weights(np.tile(row, (4, 1)), 2.0 * row)
    assert weights.sum() == pytest.approx(2.0)


def test_a_cycle_of_the_active_set_ends(monkeypatch):
    rng = np.random.default_rng(2)
    rows, target = rng.normal(size=(6, 40)), rng.normal(size=40)
    expected = non_negative_weights(rows, target)

    def cycles(*args, **options):
        raise RuntimeError

    monkeypatch.setattr(non_negative, "nnls", cycles)
    np.testing.assert_allclose(non_negative_weights(rows, target), expected, atol=1e-6)
