"""Discrete noise has exactly the stated distribution."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dask_sketch.sketching.discrete_noise import RandomBits, discrete_gaussian, discrete_laplace

DISTRIBUTIONS = {
    discrete_laplace: lambda y, s: np.exp(-np.abs(y) / s),
    discrete_gaussian: lambda y, s: np.exp(-(y**2) / (2 * s**2)),
}


def exact_law(draw, scale):
    grid = np.arange(-60 * scale, 60 * scale + 1)
    share = DISTRIBUTIONS[draw](grid.astype(float), scale)
    return grid, share / share.sum()


@pytest.mark.parametrize("scale", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("draw", DISTRIBUTIONS)
@pytest.mark.few_cases(4)
def test_the_distribution_of_the_noise(draw, scale):
    n = 100_000
    found = draw(scale, n, RandomBits(f"{draw.__name__} {scale}".encode()))
    grid, share = exact_law(draw, scale)
    expected = n * share
    often = expected >= 10
    counts = np.array([np.count_nonzero(found == value) for value in grid[often]])
    rest = n - counts.sum()
    chi = np.sum((counts - expected[often]) ** 2 / expected[often])
    chi += (rest - expected[~often].sum()) ** 2 / max(expected[~often].sum(), 1e-9)
    assert 1e-4 < stats.chi2.sf(chi, often.sum()) < 1 - 1e-4
    variance = float(share @ grid**2)
    assert abs(np.mean(found.astype(float) ** 2) - variance) < 5 * variance * np.sqrt(6 / n)


@pytest.mark.parametrize("draw", DISTRIBUTIONS)
def test_wide_noise_is_as_good_as_continuous(draw):
    scale = 2**46 + 12_345
    found = draw(scale, 50_000, RandomBits(b"wide")) / scale
    distribution = "laplace" if draw is discrete_laplace else "norm"
    assert stats.kstest(found, distribution).pvalue > 1e-3
    # the last bits are as random as the first
    last = draw(scale, 50_000, RandomBits(b"wide")) & 1
    assert abs(last.mean() - 0.5) < 5 * 0.5 / np.sqrt(50_000)


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 64, 1000])
def test_uniform_integers(bound):
    found = RandomBits(b"uniform").below(bound, 20_000)
    assert found.min() == 0
    assert found.max() == bound - 1
    counts = np.bincount(found, minlength=bound)
    if bound > 1:
        assert stats.chisquare(counts).pvalue > 1e-4


def test_where_chance_comes_from():
    assert not np.array_equal(RandomBits().words(4), RandomBits().words(4))
    bits = RandomBits(b"key")
    first = bits.words(4)
    assert not np.array_equal(first, bits.words(4))
    np.testing.assert_array_equal(first, RandomBits(b"key").words(4))
