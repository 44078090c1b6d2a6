from __future__ import annotations

from dask_sketch import FeatureMap


def test_frequencies_are_sampled_once_for_a_specification():
    first = FeatureMap(2, 5, scale=1.0, seed=1)
    omega = first.frequencies
    assert FeatureMap(2, 5, scale=1.0, seed=1).frequencies is omega


def test_the_last_specifications_used_are_kept():
    used = FeatureMap(2, 5, scale=1.0, seed=100).frequencies
    for seed in range(20):
        _ = FeatureMap(2, 5, scale=1.0, seed=seed).frequencies
        assert FeatureMap(2, 5, scale=1.0, seed=100).frequencies is used
    # others are sampled again, with the same result
    forgotten = FeatureMap(2, 5, scale=1.0, seed=0)
    assert FeatureMap.from_spec(forgotten.spec, forgotten.digest) == forgotten
