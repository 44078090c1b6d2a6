import numpy as np
import pytest

from dask_sketch import FeatureMap, design, merge, partial_sketch
from dask_sketch.errors import InputError
from dask_sketch.features.frequency_pairs import (
    FrequencyPairs,
    combine_pairs,
    n_blocks_of_pairs,
    n_pairs,
)


def paired_map(n_bases=16, n_features=3, **given):
    return FeatureMap(
        n_features, n_pairs(n_bases), scale=1.0, distribution="gaussian-pairs", **given
    )


@pytest.mark.parametrize("n_bases", [4, 8, 12, 64, 128])
def test_positions_are_those_of_sums_and_differences(n_bases):
    bases = np.random.default_rng(0).normal(size=(n_bases, 2))
    bases[0] = 0.0
    frequencies, pairs = combine_pairs(bases), FrequencyPairs.of(n_pairs(n_bases))
    assert frequencies.shape == (2, n_pairs(n_bases))
    np.testing.assert_array_equal(frequencies[:, pairs.bases], bases[1:].T)
    first, second = bases[1:, None], bases[None, 1:]
    np.testing.assert_array_equal(np.moveaxis(frequencies[:, pairs.sums], 0, 2), first + second)
    signs = np.where(pairs.reversed, -1.0, 1.0)[..., None]
    np.testing.assert_array_equal(
        np.moveaxis(frequencies[:, pairs.differences], 0, 2), signs * (first - second)
    )


@pytest.mark.parametrize("m", [1, 31, 33, 512, 4351])
def test_other_numbers_of_frequencies_are_refused_with_the_nearest(m):
    with pytest.raises(InputError, match=f"n_frequencies={m}") as caught:
        FeatureMap(2, m, scale=1.0, distribution="gaussian-pairs")
    near = [
        int(text.strip(".").replace(",", ""))
        for text in str(caught.value).split("Give ")[1].split(" or ")
    ]
    assert all(n_pairs(4 * n_blocks_of_pairs(number)) == number for number in near)
    assert max(near) > m


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("whitening", [None, "diagonal", "full"])
def test_a_sketch_holds_the_covariance_of_its_features(rng, dtype, whitening):
    x = rng.gamma(2.0, size=(3000, 3)) @ np.array(
        [[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]]
    )
    matrix = {
        None: None, "diagonal": np.diag([1.0, 2.0, 0.5]), "full": np.eye(3) + 0.2,
    }[whitening]  # fmt: skip
    feature_map = paired_map(dtype=dtype, whitening=matrix)
    sketch = merge([partial_sketch(part, feature_map) for part in np.array_split(x, 3)])
    pairs = FrequencyPairs.of(feature_map.n_frequencies)
    features = np.exp(-1j * x @ feature_map.frequencies[:, pairs.bases])
    expected = np.cov(np.concatenate([features.real, features.imag], axis=1).T, bias=True)
    np.testing.assert_allclose(pairs.covariance(sketch.characteristic), expected, atol=1e-6)


def test_design_has_all_bandwidths_and_single_features(rng):
    x = rng.normal(size=(2000, 2)) * [1.0, 50.0]
    feature_map = design(x, task="comparison", distribution="gaussian-pairs")
    assert feature_map.n_frequencies == n_pairs(64)
    bases = feature_map.frequencies[:, FrequencyPairs.of(feature_map.n_frequencies).bases]
    assert ((bases != 0).sum(axis=0) == 1).sum() == 16
    lengths = np.linalg.norm(bases * [[1.0], [50.0]], axis=0)
    assert lengths.max() > 30.0 * lengths.min()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("distribution", {"n_components": 3}),
        ("distribution", {"task": "clustering", "n_components": 3}),
        ("n_frequencies", {"task": "comparison", "n_frequencies": 500}),
    ],
)
def test_designs_that_have_no_pairs(rng, name, given):
    with pytest.raises(InputError) as caught:
        design(rng.normal(size=(500, 2)), distribution="gaussian-pairs", **given)
    assert caught.value.parameter == name


def test_missing_values_are_refused(rng):
    x = rng.normal(size=(100, 3))
    x[0, 0] = np.nan
    with pytest.raises(InputError) as caught:
        partial_sketch(x, paired_map(), nan_policy="available")
    assert caught.value.parameter == "nan_policy"
