"""Chunks on a GPU, or sent there: what is sketched where, and what is said when it cannot be."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from strategies import assert_close_sketches

from dask_sketch import FeatureMap, design, partial_sketch, polish, sketch
from dask_sketch.errors import ChunkError, DeviceError, InputError, install_command
from dask_sketch.models import random_mixture


@pytest.fixture
def feature_map():
    return FeatureMap(3, 20, scale=1.0)


@pytest.fixture
def rows(rng):
    return rng.normal(size=(90, 3)).astype(np.float32)


def on_gpu(cp, x, chunks):
    """A Dask array whose blocks lie on the GPU."""
    return da.from_array(cp.asarray(x), chunks=chunks, asarray=False, name=False)


def assert_near(there, here):
    assert there.feature_map.digest == here.feature_map.digest
    assert_close_sketches(there, here, rel=1e-5)  # of few rows
    assert isinstance(there.moment_sum, np.ndarray)


def test_arrays_of_the_gpu_stay_there(gpu, feature_map, rows):
    x = gpu.cupy.asarray(rows)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    assert_near(partial_sketch(x, feature_map), partial_sketch(rows, feature_map))
    assert_near(sketch(x, feature_map), partial_sketch(rows, feature_map))
    assert "sum_moments" in gpu.launches


@pytest.mark.parametrize("weights_there", [True, False])
def test_weights_may_lie_on_either_side(gpu, feature_map, rows, rng, weights_there):
    weights = rng.random(90)
    given = gpu.cupy.asarray(weights) if weights_there else weights
    expected = partial_sketch(rows, feature_map, weights)
    assert_near(partial_sketch(gpu.cupy.asarray(rows), feature_map, given), expected)
    assert_near(sketch(gpu.cupy.asarray(rows), feature_map, given), expected)
    if weights_there:
        with pytest.raises(InputError, match="weights .*device='cuda'"):
            partial_sketch(rows, feature_map, given)
        assert_near(partial_sketch(rows, feature_map, given, device="cuda"), expected)


def test_dask_blocks_of_the_gpu(gpu, feature_map, rows, rng):
    weights = rng.random(90)
    x = on_gpu(gpu.cupy, rows, (40, 3))
    lazy = sketch(x, feature_map)
    assert not gpu.launches
    assert_near(lazy.compute(), partial_sketch(rows, feature_map))
    assert gpu.launches.count("take_rows") == 3
    w = on_gpu(gpu.cupy, weights, 40)
    for given in (weights, w):
        assert_near(
            sketch(x, feature_map, given).compute(), partial_sketch(rows, feature_map, weights)
        )


def test_blocks_of_the_host_are_sent_on_request(gpu, feature_map, rows):
    x = da.from_array(rows, chunks=(40, 3))
    assert_near(sketch(x, feature_map, device="cuda").compute(), sketch(x, feature_map).compute())
    assert gpu.launches.count("sum_moments") == 3
    gpu.launches.clear()
    sketch(x, feature_map).compute()
    sketch(rows, feature_map)
    assert not gpu.launches
    assert_near(sketch(rows, feature_map, device="cuda"), partial_sketch(rows, feature_map))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("method", ["score", "predict_proba", "impute", "bic"])
def test_models_take_rows_of_the_gpu(gpu, rows, method, lazy):
    mixture = random_mixture(2, 3, seed=0)
    x = on_gpu(gpu.cupy, rows, (40, 3)) if lazy else gpu.cupy.asarray(rows)
    got = getattr(mixture, method)(x)
    np.testing.assert_allclose(
        got.compute() if lazy else got, getattr(mixture, method)(rows), rtol=1e-12
    )


def test_scores_take_weights_of_the_gpu(gpu, rows, rng):
    mixture, weights = random_mixture(2, 3, seed=0), rng.uniform(size=90)
    x, w = on_gpu(gpu.cupy, rows, (40, 3)), on_gpu(gpu.cupy, weights, 40)
    expected = mixture.score(rows, weights)
    assert float(mixture.score(x, w).compute()) == pytest.approx(expected, rel=1e-12)


def test_mixtures_are_polished_on_rows_of_the_gpu(gpu, rows):
    start = random_mixture(2, 3, seed=0)
    got = polish(start, on_gpu(gpu.cupy, rows, (40, 3)), passes=1)
    np.testing.assert_array_equal(got.means, polish(start, rows, passes=1).means)


def test_a_map_is_designed_on_blocks_of_the_gpu(gpu, rows, rng):
    weights = rng.random(90)
    there, w = on_gpu(gpu.cupy, rows, (40, 3)), on_gpu(gpu.cupy, weights, 40)
    here = da.from_array(rows, chunks=(40, 3), name=False)
    expected = design(here, n_components=1, weights=weights)
    assert design(there, n_components=1, weights=w) == expected
    assert design(gpu.cupy.asarray(rows), n_components=1) == design(rows, n_components=1)


def test_a_refused_row_names_its_chunk(gpu, feature_map, rows):
    rows[50, 1] = np.nan
    x = on_gpu(gpu.cupy, rows, (40, 3))
    with pytest.raises(ChunkError, match=r"chunk 1 .* row 10 .* nan .* 1"):
        sketch(x, feature_map).compute()
    assert sketch(x, feature_map, nan_policy="omit").compute().omitted == 1


def test_workers_are_prepared(gpu, feature_map, rows, thread_client):
    x = da.from_array(rows, chunks=(40, 3))
    got = sketch(x, feature_map, device="cuda").compute()
    assert_near(got, partial_sketch(rows, feature_map))


def test_the_graph_of_cpu_chunks_is_what_it_was(feature_map, rows):
    x = da.from_array(rows, chunks=(40, 3))
    here, there = sketch(x, feature_map), sketch(x, feature_map, device="cuda")
    assert dask.base.tokenize(here) != dask.base.tokenize(there)
    assert len(dict(here.__dask_graph__())) == len(dict(there.__dask_graph__()))


@pytest.mark.parametrize("device", ["gpu", "cuda:1", "cpu", 0, True])
def test_other_devices_are_refused(feature_map, rows, device):
    for run in (partial_sketch, sketch):
        with pytest.raises(InputError, match=r"device=.*: give 'cuda'"):
            run(rows, feature_map, device=device)


def without_gpu(monkeypatch, **runtime):
    fake = SimpleNamespace(
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(**runtime),
            Device=lambda: SimpleNamespace(compute_capability="75"),
        )
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)


def no_driver():
    raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


def test_a_missing_gpu_is_named_with_the_way_out(monkeypatch, feature_map, rows):
    def message():
        with pytest.raises(DeviceError, match="eave device out") as error:
            partial_sketch(rows, feature_map, device="cuda")
        with pytest.raises(DeviceError):
            sketch(da.from_array(rows, chunks=(40, 3)), feature_map, device="cuda").compute()
        return str(error.value)

    monkeypatch.setitem(sys.modules, "cupy", None)
    assert f"{install_command('gpu')} on every worker" in message()
    without_gpu(monkeypatch, getDeviceCount=no_driver)
    assert "no CUDA-capable device" in message()
    without_gpu(monkeypatch, getDeviceCount=lambda: 0)
    assert "0 GPUs" in message()
    without_gpu(monkeypatch, getDeviceCount=lambda: 1)
    assert "7.5" in message()
