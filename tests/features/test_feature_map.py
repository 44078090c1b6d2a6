from __future__ import annotations

import copy
import json
import pickle

import cloudpickle
import numpy as np
import pytest
from dask.base import tokenize
from hypothesis import given
from hypothesis import strategies as st

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.validation.choices import DISTRIBUTIONS

GOOD = {"n_features": 3, "n_frequencies": 20, "scale": 2.0}
KINDS = {
    "scale": {},
    "diagonal": {"scale": None, "covariances": [1.0, 4.0, 9.0]},
    "mixture": {
        "scale": None,
        "covariances": [[1.0, 1.0, 1.0], [4.0, 1.0, 9.0]],
        "covariance_weights": [1.0, 3.0],
    },
    "centred": {"center": [1.0, 2.0, 1e6]},
    "diagonal whitening": {"whitening": np.diag([1.0, 2.0, 0.5])},
    "normalized": {"normalize": True},
    "named": {"feature_names": ["pitch", "energy", "rate"]},
    "full whitening": {"whitening": [[1.0, 0.5, 0.0], [0.5, 2.0, 0.1], [0.0, 0.1, 1.0]]},
}


@pytest.fixture(params=KINDS)
def any_map(request):
    return FeatureMap(**(GOOD | KINDS[request.param]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_features": 0}, "n_features=0"),
        ({"n_features": 2.0}, "n_features=2.0"),
        ({"n_features": True}, "n_features=True"),
        ({"n_frequencies": -1}, "n_frequencies=-1"),
        ({"n_frequencies": "9"}, "n_frequencies='9'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"seed": None}, "seed=None"),
        ({"normalize": "l2"}, "normalize='l2'"),
        ({"distribution": "levy"}, "distribution='levy'.* adapted-radius"),
        ({"distribution": None}, "distribution=None"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"dtype": "decimal"}, "dtype='decimal'"),
        ({"scale": None}, "scale=None"),
        ({"covariances": [1.0, 1.0, 1.0]}, "covariances="),
        ({"scale": 0.0}, "scale=0.0"),
        ({"scale": -2.0}, "scale=-2.0"),
        ({"scale": np.nan}, "scale=nan"),
        ({"scale": np.inf}, "scale=inf"),
        ({"scale": "wide"}, "scale='wide'"),
        ({"scale": None, "covariances": [1.0, 1.0]}, "covariances .*(2,)"),
        ({"scale": None, "covariances": np.ones((0, 3))}, "covariances .*(0, 3)"),
        ({"scale": None, "covariances": np.ones((1, 1, 3))}, "covariances .*(1, 1, 3)"),
        ({"scale": None, "covariances": [1.0, 0.0, 1.0]}, "covariances"),
        ({"scale": None, "covariances": [1.0, np.nan, 1.0]}, "covariances"),
        ({"scale": None, "covariances": ["a", "b", "c"]}, "covariances="),
        ({"covariance_weights": [0.5, 0.5]}, "covariance_weights="),
        (KINDS["mixture"] | {"covariance_weights": [-1.0, 2.0]}, "covariance_weights="),
        (KINDS["mixture"] | {"covariance_weights": [0.0, 0.0]}, "covariance_weights="),
        (KINDS["mixture"] | {"covariance_weights": [np.inf, 1.0]}, "covariance_weights="),
        (KINDS["mixture"] | {"covariance_weights": [np.nan, 1.0]}, "covariance_weights="),
        ({"center": [0.0, 0.0]}, "center="),
        ({"center": [0.0, np.inf, 0.0]}, "center="),
        ({"center": "middle"}, "center="),
        ({"whitening": np.eye(2)}, "whitening .*(2, 2)"),
        ({"feature_names": ["a", "b"]}, "feature_names="),
        ({"feature_names": ["a", "b", "a"]}, "feature_names="),
        ({"feature_names": ["a", "b", "c", "a"]}, "feature_names="),
        ({"feature_names": "abc"}, "feature_names='abc'"),
        ({"feature_names": [1, 2, 3]}, "feature_names="),
        ({"whitening": np.full((3, 3), np.nan)}, "whitening"),
        ({"whitening": np.ones((3, 3))}, "whitening .*singular"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        FeatureMap(**(GOOD | change))


def test_a_scale_too_small_for_float32_is_refused():
    with pytest.raises(InputError, match="float32"):
        _ = FeatureMap(2, 10, scale=1e-60).frequencies


def test_frequencies_are_drawn_once_and_read_only(any_map):
    omega = any_map.frequencies
    assert omega.shape == (3, 20)
    assert omega.dtype == np.float64
    assert omega is any_map.frequencies
    with pytest.raises(ValueError, match="read-only"):
        omega[0, 0] = 1.0
    # the float32 kernel and the float64 one hold the same numbers
    cycles = omega / (2 * np.pi)
    np.testing.assert_allclose(cycles.astype(np.float32), cycles, rtol=1e-15)


def test_arguments_are_copied_and_frozen():
    center = np.zeros(3)
    fm = FeatureMap(**GOOD, center=center)
    center[0] = 5.0
    assert fm.center[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        fm.center[0] = 1.0
    with pytest.raises(AttributeError):
        fm.seed = 4


def test_every_field_is_in_the_digest(any_map):
    base = GOOD | {"dtype": "float64"}
    maps = [any_map, FeatureMap(**base)]
    maps += [FeatureMap(**(base | {"seed": 1})), FeatureMap(**(base | {"scale": 2.5}))]
    maps += [
        FeatureMap(**(base | {"distribution": distribution}))
        for distribution in DISTRIBUTIONS[1:]
        if distribution != "gaussian-pairs"  # which has other numbers of frequencies
    ]
    assert len({fm.digest for fm in maps}) == len(maps)
    assert len({hash(fm) for fm in maps}) == len(maps)
    assert all(len(fm.digest) == 64 for fm in maps)
    again = FeatureMap.from_spec(any_map.spec)
    assert again == any_map
    assert hash(again) == hash(any_map)
    assert any_map != "something else"


def test_round_trips(any_map):
    for again in (
        pickle.loads(pickle.dumps(any_map)),
        cloudpickle.loads(cloudpickle.dumps(any_map)),  # what Dask falls back on
        copy.deepcopy(any_map),
        FeatureMap.from_json(any_map.to_json()),
        FeatureMap.from_spec(any_map.spec, any_map.digest, any_map.frequencies),
    ):
        assert again == any_map
        np.testing.assert_array_equal(again.frequencies, any_map.frequencies)
        np.testing.assert_array_equal(again.center, any_map.center)
        assert repr(again) == repr(any_map)
    assert tokenize(any_map) == tokenize(pickle.loads(pickle.dumps(any_map)))


def test_a_pickle_holds_no_frequencies():
    for dumps in (pickle.dumps, cloudpickle.dumps):
        sizes = [len(dumps(FeatureMap(10, m, scale=1.0))) for m in (10, 10_000)]
        assert sizes[1] - sizes[0] < 10
        assert sizes[1] < 1000


def test_edited_json_is_refused(any_map):
    text = json.loads(any_map.to_json())
    edits = [
        {"spec": text["spec"] | {"seed": 5}},
        {"spec": text["spec"] | {"law": "gaussian"}},
        {"spec": text["spec"] | {"center": [0.0, 0.0, 3.0]}},
        {"spec": text["spec"] | {"n_frequencies": 21}},
        {"spec": text["spec"] | {"n_frequencies": -1}},
        {"spec": text["spec"] | {"center": ["x", 0.0, 0.0]}},
        {"spec": text["spec"] | {"surprise": 1}},
        {"spec": [1, 2]},
        {"spec": None},
        {"digest": "0" * 64},
        {"digest": None},
        {"schema": "dask-sketch/sketch"},
        {"version": 2},
    ]
    for edit in edits:
        with pytest.raises(ArtifactError):
            FeatureMap.from_json(json.dumps(text | edit))
    for name in text:
        with pytest.raises(ArtifactError):
            FeatureMap.from_json(json.dumps({k: v for k, v in text.items() if k != name}))
    for nonsense in ("", "{", "[]", "3", "null"):
        with pytest.raises(ArtifactError):
            FeatureMap.from_json(nonsense)


def test_edited_frequencies_are_refused(any_map):
    omega = any_map.frequencies.copy()
    omega[1, 7] *= 1.001
    with pytest.raises(ArtifactError, match=any_map.digest[:12]):
        FeatureMap.from_spec(any_map.spec, any_map.digest, omega)
    with pytest.raises(ArtifactError, match=r"\(3, 5\)"):
        FeatureMap.from_spec(any_map.spec, any_map.digest, omega[:, :5])


def test_a_process_with_other_frequencies_refuses():
    feature_map = FeatureMap(3, 20, scale=1.0, seed=123)
    sent = pickle.dumps(FeatureMap.from_spec(feature_map.spec, "0" * 64))
    with pytest.raises(ArtifactError, match=f"{feature_map.digest[:12]}.*{'0' * 12}"):
        partial_sketch(np.zeros((5, 3)), pickle.loads(sent))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_whitening_is_sketching_transformed_data(kind, dtype, rng):
    matrix = np.diag([1.0, 0.1, 5.0])
    if kind == "full":
        matrix = matrix + 0.05 * np.ones((3, 3))
    x = rng.normal(size=(300, 3)) @ np.linalg.inv(matrix).T
    white = FeatureMap(3, 50, scale=1.0, seed=4, dtype=dtype, whitening=matrix)
    plain = FeatureMap(3, 50, scale=1.0, seed=4, dtype=dtype)
    a, b = partial_sketch(x, white), partial_sketch(x @ matrix.T, plain)
    # both round omega / 2 pi to float32, at different places
    np.testing.assert_allclose(a.z, b.z, atol=3e-7)
    np.testing.assert_allclose(
        white.frequencies, matrix.T @ plain.frequencies, atol=1e-6, rtol=1e-6
    )


@given(seed=st.integers(0, 1000), offset=st.floats(-1e4, 1e4))
def test_the_center_changes_rounding_alone(seed, offset):
    x = np.random.default_rng(seed).normal(size=(50, 2)) + offset
    maps = [
        FeatureMap(2, 30, scale=1.0, dtype="float64", center=c) for c in (None, [offset, offset])
    ]
    a, b = (partial_sketch(x, fm) for fm in maps)
    np.testing.assert_allclose(a.z, b.z, atol=1e-12 * max(1.0, abs(offset)))
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-12 * max(1.0, abs(offset)))


def test_mean_variances():
    assert FeatureMap(2, 5, scale=3.0).mean_variances.tolist() == [9.0, 9.0]
    assert FeatureMap(2, 5, covariances=[4.0, 9.0]).mean_variances.tolist() == [4.0, 9.0]
    mixture = [[1.0, 2.0], [5.0, 2.0]]
    assert FeatureMap(2, 5, covariances=mixture).mean_variances.tolist() == [3.0, 2.0]
    weighted = FeatureMap(2, 5, covariances=mixture, covariance_weights=[3.0, 1.0])
    assert weighted.mean_variances.tolist() == [2.0, 2.0]
    # whitened coordinates of variance 1 are data of variance inv(L) inv(L).T
    matrix = np.array([[2.0, 0.3], [0.0, 0.5]])
    white = FeatureMap(2, 5, scale=1.0, whitening=matrix)
    inverse = np.linalg.inv(matrix)
    np.testing.assert_allclose(white.mean_variances, (inverse @ inverse.T).diagonal())


def test_scales_without_data():
    found = FeatureMap.from_scales(3, 40, 0.5, 40.0, seed=2)
    scales = np.sqrt(found.distribution_variances)
    ratios = scales[1:] / scales[:-1]
    assert scales[0].tolist() == [0.5] * 3
    np.testing.assert_allclose(scales[-1], 40.0)
    assert (ratios <= 4.0).all()
    np.testing.assert_allclose(ratios, ratios[0, 0])
    assert found.covariance_weights[0] == 0.4
    np.testing.assert_allclose(found.covariance_weights[1:], 0.6 / (len(scales) - 1))
    assert found == FeatureMap.from_json(found.to_json())


def test_scales_of_each_feature():
    names = ["a", "b"]
    found = FeatureMap.from_scales(2, 40, [1.0, 10.0], [64.0, 160.0], feature_names=names)
    expected = [[1.0, 10.0], [4.0, 10.0 * 16 ** (1 / 3)], [16.0, 10.0 * 16 ** (2 / 3)]]
    np.testing.assert_allclose(np.sqrt(found.distribution_variances[:3]), expected)
    assert found.feature_names == ("a", "b")


@pytest.mark.parametrize(("n_features", "name"), [(12, "sparse-radius"), (13, "sparse-windows")])
def test_maps_of_many_features_without_data_have_windows(n_features, name):
    found = FeatureMap.from_scales(n_features, 40, 1.0, 16.0)
    assert found.distribution == name
    assert found == FeatureMap.from_json(found.to_json())


def test_one_scale_of_equal_bounds():
    found = FeatureMap.from_scales(2, 40, 3.0, 3.0)
    assert found.distribution_variances.tolist() == [[9.0, 9.0]]


@pytest.mark.parametrize(
    ("smallest", "largest", "name"),
    [
        (0.0, 1.0, "smallest=0.0"),
        (1.0, np.nan, "largest=nan"),
        (2.0, 1.0, "smallest=2.0 and largest=1.0"),
        ([1.0, 2.0, 3.0], 9.0, r"smallest .*\(3,\)"),
        ("one", 9.0, "smallest='one'"),
    ],
)
def test_scales_that_are_none(smallest, largest, name):
    with pytest.raises(InputError, match=name):
        FeatureMap.from_scales(2, 40, smallest, largest)


def test_texts(any_map):
    text = repr(any_map)
    assert "n_features=3" in text
    assert any_map.digest[:12] in text
    html = any_map._repr_html_()
    assert "FeatureMap" in html
    assert any_map.digest[:12] in html


def test_sizes_are_true():
    small, large = (FeatureMap(2, 5, covariances=np.ones((n, 2))).__sizeof__() for n in (1, 1001))
    assert large - small == 1000 * 2 * 8


def test_only_the_clustering_distribution_weighs_its_features():
    assert FeatureMap(2, 5, scale=1.0).feature_weights is None
    assert FeatureMap(2, 5, scale=1.0, distribution="gaussian").feature_weights is None
    plain = FeatureMap(3, 40, covariances=[4.0, 1.0, 9.0], distribution="clustering", seed=2)
    r2 = np.array([4.0, 1.0, 9.0]) @ plain.frequencies**2
    expected = np.sqrt(4 + 2 / 3) / (1 + r2 / 3)
    np.testing.assert_allclose(plain.feature_weights, expected, rtol=1e-6)
    assert not plain.feature_weights.flags.writeable
    # whitening changes the frequencies, and not what they weigh
    matrix = np.array([[2.0, 0.3, 0.0], [0.0, 0.5, 0.1], [0.0, 0.0, 1.5]])
    white = FeatureMap(
        3, 40, covariances=[4.0, 1.0, 9.0], distribution="clustering", seed=2, whitening=matrix
    )
    np.testing.assert_allclose(white.feature_weights, plain.feature_weights, rtol=1e-5)
    again = FeatureMap.from_spec(white.spec, white.digest, white.frequencies)
    np.testing.assert_array_equal(again.feature_weights, white.feature_weights)
