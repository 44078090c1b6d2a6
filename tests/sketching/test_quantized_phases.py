from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, ChunkError, InputError, MergeError
from dask_sketch.sketching.quantized_phases import harmonic, quantize_phases, sketch_phases

MAP = ds.FeatureMap(2, 150, scale=1.0, seed=1)
X = np.random.default_rng(0).normal([1.0, -2.0], size=(3000, 2))
CENTERS = np.array([[-4.0, 0.0], [4.0, 3.0]])


def test_one_bit_is_the_sign_of_a_dithered_wave():
    found = quantize_phases(X[:50], MAP, seed=3)
    assert found.packed.shape == (50, 19)
    words = np.random.Philox(key=3).random_raw(50 * 40).astype("<u8").view("<u2")
    dither = 2 * np.pi * words.reshape(50, 160)[:, :150] / 2**16
    sign = np.sin(X[:50] @ MAP.frequencies + dither) < 0
    bits = np.unpackbits(found.packed, axis=1, count=150)
    assert np.mean(bits != sign) < 0.001  # phases have 16 binary digits


def test_the_harmonic_is_that_of_the_wave():
    t = (np.arange(100_000) + 0.5) / 100_000
    for bits in (1, 2, 3, 8):
        wave = np.exp(2j * np.pi * (np.floor(t * 2**bits) + 0.5) / 2**bits)
        assert harmonic(bits) == pytest.approx(np.mean(wave * np.exp(-2j * np.pi * t)).real)
    square = np.where(t < 0.5, 1.0, -1.0)
    assert 2 * harmonic(1) == pytest.approx(2 * np.mean(square * np.sin(2 * np.pi * t)))


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_features_are_unbiased_with_the_stated_noise(bits):
    exact = ds.partial_sketch(X, MAP)
    found = quantize_phases(X, MAP, bits=bits).sketch()
    errors = found.characteristic - exact.characteristic
    parts = np.concatenate([errors.real, errors.imag])
    np.testing.assert_allclose(np.mean(parts**2), found.added_variance, rtol=0.35)
    assert abs(parts.mean()) < 4 * np.sqrt(found.added_variance / len(parts))
    expected = (1 / harmonic(bits) ** 2 - 1) / (2 * len(X))
    assert found.added_variance == pytest.approx(expected)
    for name in ("first_quanta", "second_quanta", "weight_quanta", "squared_weight_quanta"):
        assert getattr(found, name) == getattr(exact, name)
    np.testing.assert_array_equal([found.minimum, found.maximum], [exact.minimum, exact.maximum])
    assert found.count == exact.count


def test_messages_of_any_size_have_the_sums_of_the_stream():
    whole = quantize_phases(X, MAP, bits=2, seed=9)
    ends = [0, 1, 700, 700, 3000]
    parts = [quantize_phases(X[a:b], MAP, bits=2, seed=9, position=a) for a, b in pairwise(ends)]
    np.testing.assert_array_equal(np.concatenate([part.packed for part in parts]), whole.packed)
    found = sketch_phases(pickle.loads(pickle.dumps(parts[::-1])))
    assert found.same_sums(whole.sketch())
    assert found.rounding_error == pytest.approx(whole.sketch().rounding_error)
    strided = np.asfortranarray(X.astype(np.float32))
    same = quantize_phases(strided.astype(np.float64), MAP, bits=2, seed=9)
    np.testing.assert_array_equal(same.packed, whole.packed)
    assert not np.array_equal(quantize_phases(X, MAP, bits=2, seed=8).packed, whole.packed)
    assert quantize_phases(X[:0], MAP).sketch().identical(ds.Sketch.empty(MAP))


def test_sketches_of_bits_are_stored_and_added():
    found = quantize_phases(X, MAP).sketch()
    again = ds.open(found.to_bytes())
    assert again.identical(found)
    assert again.rounding_error == found.rounding_error
    both = found + ds.partial_sketch(X, MAP)
    assert both.count == 6000
    assert both.added_variance == pytest.approx(found.added_variance / 4)


def test_a_mixture_is_decoded_from_bits():
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(center, 1.0, (2000, 2)) for center in CENTERS])
    feature_map = ds.design(x, n_components=2, seed=0)

    def decoded(sketch):
        model = ds.decode(sketch, 2, refine="efficient")
        order = np.argsort(model.means[:, 0])
        return model.means[order], model.stderr.means[order]

    means, exact = decoded(ds.partial_sketch(x, feature_map))
    sensors = [quantize_phases(x[k::2], feature_map, seed=k) for k in range(2)]
    found, stderr = decoded(sketch_phases(sensors))
    assert np.abs((found - CENTERS) / stderr).max() < 4
    assert np.abs((found - means) / stderr).max() < 4
    ratio = np.sqrt(np.mean(stderr**2) / np.mean(exact**2))
    assert 1.1 < ratio < harmonic(1) ** -1  # at most the loss at frequencies without signal


def test_refused_arguments():
    for given in ({"bits": 0}, {"bits": 9}, {"seed": -1}, {"seed": 2**64}, {"position": -1}):
        with pytest.raises(InputError, match=next(iter(given))):
            quantize_phases(X, MAP, **given)
    with pytest.raises(ChunkError, match="row 7 .* has nan in feature 1"):
        quantize_phases(np.where(np.arange(20).reshape(10, 2) == 15, np.nan, 1.0), MAP)
    with pytest.raises(InputError, match=r"shape=\(3000, 1\)"):
        quantize_phases(X[:, :1], MAP)
    sent = quantize_phases(X[:10], MAP)
    with pytest.raises(InputError, match=r"packed .*shape=\(10, 18\)"):
        replace(sent, packed=sent.packed[:, 1:])
    with pytest.raises(MergeError, match="seed=0 .*position=9"):
        sketch_phases([sent, quantize_phases(X[:10], MAP, position=9)])
    other = quantize_phases(X, ds.FeatureMap(2, 150, scale=2.0, seed=1), seed=1)
    with pytest.raises(MergeError, match="scale"):
        sketch_phases([sent, other])
    assert "count=10, bits=1" in repr(sent)


def test_rows_of_length_one():
    feature_map = ds.FeatureMap(2, 150, scale=0.5, normalize=True)
    exact = ds.partial_sketch(X, feature_map)
    found = quantize_phases(X, feature_map, bits=8).sketch()
    np.testing.assert_allclose(found.characteristic, exact.characteristic, atol=1e-3)


def weights_of(n):
    rng = np.random.default_rng(7)
    return np.where(rng.random(n) < 0.1, 0.0, 2.0 ** rng.integers(-20, 20, n) * rng.random(n))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_and_rows_to_omit(dtype):
    feature_map = ds.FeatureMap(2, 150, scale=1.0, seed=1, dtype=dtype)
    w = weights_of(len(X))
    x = np.where(np.random.default_rng(8).random(X.shape) < 0.1, np.nan, X)
    exact = ds.partial_sketch(x, feature_map, w, nan_policy="omit")
    found = quantize_phases(x, feature_map, w, bits=8, nan_policy="omit").sketch()
    for name in ("total_weight", "squared_weight", "first_moment", "second_moment"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=1e-12)
    assert (found.count, found.omitted) == (exact.count, exact.omitted)
    assert found.omitted > 0
    errors = found.characteristic - exact.characteristic
    parts = np.concatenate([errors.real, errors.imag])
    np.testing.assert_allclose(np.mean(parts**2), found.added_variance, rtol=0.35)
    plain = quantize_phases(X, feature_map, bits=2).sketch()
    assert quantize_phases(X, feature_map, np.ones(len(X)), bits=2).sketch().same_sums(plain)


def test_weighted_messages_have_the_sums_of_the_stream():
    w, ends = weights_of(len(X)), [0, 700, 1900, 3000]
    x = np.where(np.random.default_rng(8).random(X.shape) < 0.1, np.nan, X)
    options = {"nan_policy": "omit", "bits": 3, "seed": 2**64 - 1}
    whole, parts, position = quantize_phases(x, MAP, w, **options), [], 0
    for a, b in pairwise(ends):
        parts.append(quantize_phases(x[a:b], MAP, w[a:b], position=position, **options))
        position += parts[-1].count
    sent = [part.to_bytes() for part in parts]
    found = sketch_phases(ds.open(value) for value in sent)
    assert found.same_sums(whole.sketch())
    assert found.rounding_error == pytest.approx(whole.sketch().rounding_error)
    only = quantize_phases(np.full((4, 2), np.nan), MAP, nan_policy="omit").sketch()
    assert (only.count, only.omitted) == (0, 4)
    for given in ({"nan_policy": "available"}, {"weights": -np.ones(3000)}):
        with pytest.raises((InputError, ChunkError), match=next(iter(given)).rstrip("s")):
            quantize_phases(X, MAP, **given)


def test_messages_are_stored(tmp_path):
    message = quantize_phases(X[:40], MAP, position=9, seed=5)
    value = message.to_bytes()
    message.to_zarr(tmp_path / "message.zarr")
    for again in (ds.open(value), ds.open(tmp_path / "message.zarr")):
        np.testing.assert_array_equal(again.packed, message.packed)
        assert again.sketch().identical(message.sketch())
        assert (again.position, again.seed, again.to_bytes()) == (9, 5, value)
    assert len(value) < 40 * 19 + 4000


@pytest.mark.parametrize(
    "change",
    [
        {"weight_quanta": 3},
        {"omitted": -1},
        {"seed": 2**64},
        {"position": -1},
        {"weights": np.full(40, np.nan)},
        {"weights": np.full(40, 2.0)},
        {"squared_weight_quanta": -1},
        {"squared_weight_quanta": 2**4000},
        {"position": 2**63},
    ],
)
def test_impossible_messages_are_refused(change):
    message = replace(quantize_phases(X[:40], MAP), **change)
    with pytest.raises(ArtifactError, match="from a copy"):
        ds.open(message.to_bytes())
