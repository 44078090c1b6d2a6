"""Alpha-stable mixtures from sketches."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, decode, design, sketch
from dask_sketch.errors import DecodeError
from dask_sketch.models import AlphaStableMixture


@pytest.fixture(scope="module")
def truth():
    locations = [[0.0, 0.0], [8.0, 2.0], [-4.0, 7.0]]
    scales = [[1.0, 0.6], [0.8, 1.2], [1.0, 1.0]]
    return AlphaStableMixture([0.5, 0.3, 0.2], locations, scales, [1.2, 1.8, 1.5])


@pytest.fixture(scope="module")
def feature_map(truth):
    pilot = truth.sample(3000, seed=7)
    inside = np.clip(pilot, *np.quantile(pilot, [0.02, 0.98], axis=0))
    return design(inside, n_components=3)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [False, 3000])
def test_indices_of_stability_are_found(truth, feature_map, sample):
    x = truth.sample(100_000, seed=1)
    found = decode(sketch(x, feature_map, sample=sample), 3, model="alpha-stable")
    assert isinstance(found, AlphaStableMixture)
    np.testing.assert_allclose(found.alphas, truth.alphas, atol=0.05)
    np.testing.assert_allclose(found.locations, truth.locations, atol=0.1)
    assert found.score(x) > truth.score(x) - 1e-3
    record = found.decoding
    assert (record.model, record.method) == ("alpha-stable", "cl-ompr")
    assert record.overidentification < record.freedom + 5.0 * np.sqrt(2.0 * record.freedom)


@pytest.mark.slow
def test_one_index_of_all_components(truth, feature_map):
    same = AlphaStableMixture(truth.weights, truth.locations, truth.scales, [1.4] * 3)
    sketched = sketch(same.sample(50_000, seed=1), feature_map, sample=False)
    found = decode(sketched, 3, model="alpha-stable", shared_alpha=True)
    assert len(set(found.alphas)) == 1
    assert found.alphas[0] == pytest.approx(1.4, abs=0.02)
    np.testing.assert_allclose(found.locations, truth.locations, atol=0.1)
    own = decode(sketched, 3, model="alpha-stable")
    assert found.decoding.freedom == own.decoding.freedom + 2
    again = decode(sketched, start=own, shared_alpha=True)
    assert again.alphas == pytest.approx(found.alphas, abs=1e-3)
    with pytest.raises(DecodeError, match="shared_alpha=True with model='gaussian'"):
        decode(sketched, 3, model="gaussian", shared_alpha=True)


@pytest.mark.slow
def test_data_of_several_indices_has_not_one(truth, feature_map):
    sketched = sketch(truth.sample(100_000, seed=1), feature_map, sample=False)
    with pytest.warns(UserWarning, match="overidentification"):
        decode(sketched, 3, model="alpha-stable", shared_alpha=True)


def test_an_earlier_model_is_a_start(truth, feature_map):
    sketched = sketch(truth.sample(20_000, seed=3), feature_map, sample=False)
    found = decode(sketched, start=truth)
    assert found.decoding.method == "start"
    np.testing.assert_allclose(np.sort(found.alphas), np.sort(truth.alphas), atol=0.2)
    again = decode(sketched, start=found, model="alpha-stable")
    np.testing.assert_allclose(again.locations, found.locations, atol=1e-3)


@pytest.mark.slow
def test_data_that_is_no_such_mixture_is_warned_of():
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (50_000, 1))
    made = design(x, n_frequencies=40, n_components=1)
    with pytest.warns(UserWarning, match="overidentification"):
        decode(sketch(x, made), 1, model="alpha-stable")


@pytest.mark.slow
def test_frequencies_that_hardly_tell_the_parameters_are_warned_of(truth):
    wide = FeatureMap(2, 75, scale=60.0, center=truth.locations[0])
    with pytest.warns(UserWarning, match="standard error of alpha"):
        decode(sketch(truth.sample(20_000, seed=3), wide, sample=False), 3, model="alpha-stable")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": None}, "n_components=None"),
        ({"covariance_type": "full"}, "covariance_type='full'"),
        ({"bounds": "data"}, "bounds with"),
        ({"refine": "efficient"}, "refine with"),
        ({"covariance": [1.0, 1.0]}, "covariance with"),
        ({"merge": True}, "merge with"),
        ({"device": "cuda"}, "device with"),
        ({"method": "density"}, "method='density'"),
        ({"method": "likelihood"}, "method='likelihood'"),
    ],
)
def test_arguments_without_a_meaning_are_refused(truth, feature_map, options, message):
    found = sketch(truth.sample(500, seed=2), feature_map)
    with pytest.raises(DecodeError, match=message):
        decode(found, **({"n_components": 2, "model": "alpha-stable"} | options))
