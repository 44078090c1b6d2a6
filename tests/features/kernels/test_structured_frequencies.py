"""Sums and differences: found again from the frequencies, exactly, however the last group ends."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap
from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.features.frequency_distributions import sample_frequencies
from dask_sketch.features.kernels.structured_frequencies import (
    GROUP,
    SIDE,
    combine,
    n_groups,
    split,
    split_exactly,
    truncate_to_grid,
)

SIZES = [1, 2, 3, 8, 9, 10, 31, 32, 33, 34, 39, 41, 64, 100]
from dask_sketch.sketching.accumulator import kernel_of


def drawn(rng, m, d=3):
    return combine(rng.normal(size=(n_groups(m), 2, SIDE, d)), m)


def test_groups_hold_every_sum_and_difference(rng):
    bases = rng.normal(size=(2, 2, SIDE, 3))
    frequencies = combine(bases, 2 * GROUP)
    for group in range(2):
        expected = [
            u + sign * v for u in bases[group, 0] for v in bases[group, 1] for sign in (1, -1)
        ]
        np.testing.assert_array_equal(frequencies[:, group * GROUP :][:, :GROUP].T, expected)


@pytest.mark.parametrize("m", SIZES)
def test_bases_are_found_again_wherever_the_last_group_ends(m, rng):
    settled = truncate_to_grid(drawn(rng, m))
    bases = split_exactly(settled)
    assert bases.shape == (n_groups(m), 2, SIDE, 3)
    np.testing.assert_array_equal(combine(bases, m), settled)


def test_bases_of_whole_groups_are_those_drawn(rng):
    bases = rng.normal(size=(3, 2, SIDE, 5))
    np.testing.assert_allclose(split(combine(bases, 3 * GROUP)), bases, rtol=0, atol=1e-15)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 3e7])
def test_settled_frequencies_are_float32_and_stay(m, scale, rng):
    given = scale * drawn(rng, m)
    settled = truncate_to_grid(given)
    np.testing.assert_array_equal(settled, settled.astype(np.float32))
    np.testing.assert_array_equal(truncate_to_grid(settled), settled)
    # two parts, each cut by less than the grid, which is 2**-22 of the largest or less
    largest = np.abs(split(given)).max(axis=(0, 1, 2))
    assert (np.abs(settled - given) <= 2.0**-21 * largest[:, None]).all()


def test_each_feature_has_its_own_grid(rng):
    given = drawn(rng, 64) * [[1e-9], [1.0], [1e9]]
    error = np.abs(truncate_to_grid(given) - given).max(axis=1)
    assert (error <= 2.0**-20 * np.abs(given).max(axis=1)).all()


def test_a_feature_that_is_never_used_stays_zero(rng):
    given = drawn(rng, 40) * [[1.0], [0.0], [1.0]]
    assert not truncate_to_grid(given)[1].any()


def test_other_frequencies_are_refused(rng):
    settled = truncate_to_grid(drawn(rng, 64))
    settled[1, 63] = np.nextafter(settled[1, 63], 1.0)
    with pytest.raises(InputError, match="sparse-sums"):
        split_exactly(settled)
    frequencies = sample_frequencies("sparse-radius", [1.0, 1.0], 64, seed=0)
    with pytest.raises(InputError, match="sparse-sums"):
        split_exactly(frequencies.astype(np.float32))


@pytest.mark.parametrize("whitening", [None, "full"])
@pytest.mark.parametrize("m", [1, 31, 100])
def test_frequencies_of_a_map_are_sums(m, whitening, rng):
    matrix = None if whitening is None else np.eye(4) + 0.3 * rng.normal(size=(4, 4))
    fm = FeatureMap(
        4, m, covariances=[1e-8, 1.0, 4.0, 1e8], whitening=matrix, distribution="sparse-sums"
    )
    split_exactly(fm.cycles_per_unit)
    expected = sample_frequencies("sparse-sums", fm.covariances, m)
    if matrix is not None:
        expected = matrix.T @ expected
    error = np.abs(fm.frequencies - expected).max(axis=1)
    assert (error <= 1e-5 * np.abs(expected).max(axis=1)).all()
    # last bits are lost in the product with such a matrix: a stored map is drawn afresh
    again = FeatureMap.from_spec(fm.spec, fm.digest, fm.frequencies.copy())
    np.testing.assert_array_equal(again.cycles_per_unit, fm.cycles_per_unit)
    with pytest.raises(ArtifactError, match="digest"):
        FeatureMap.from_spec(fm.spec, fm.digest, fm.frequencies * (1 + 1e-6))


def test_a_stored_map_keeps_its_frequencies():
    fm = FeatureMap(3, 45, scale=0.37, distribution="sparse-sums", seed=5)
    again = FeatureMap.from_spec(fm.spec, fm.digest, fm.frequencies.copy())
    np.testing.assert_array_equal(again.frequencies, fm.frequencies)
    np.testing.assert_array_equal(kernel_of(again).packed, kernel_of(fm).packed)
