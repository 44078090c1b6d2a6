"""Code for other processors than this one computes the same digests and the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dask.array as da
import llvmlite.binding as llvm
import numpy as np
import pytest
from compatibility import cases, later
from distributed import Client, Nanny, Scheduler, SpecCluster

import dask_sketch as ds

SECONDS = 1700  # kernels are compiled for each processor, of which a busy machine takes long
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1800)]
PROGRAM = Path(__file__).with_name("processors.py")
AVX2 = "+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe"
AVX512 = f"{AVX2},+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx512cd"
COMPILED = {
    "x86-64": ("x86-64", "+sse,+sse2", 256),
    "haswell": ("haswell", AVX2, 256),
    "skylake": ("skylake-avx512", AVX512, 512),
}


def numpy_extensions():
    """Instruction sets for which NumPy has loops of its own on this machine."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return " ".join(found)


def variables(setting):
    """Environment of a setting; skips what this processor lacks."""
    if setting == "numpy":
        if not numpy_extensions():
            pytest.skip("NumPy has no loops for single processors here")
        return {"NPY_DISABLE_CPU_FEATURES": numpy_extensions()}
    if setting in ("Prescott", "Haswell"):
        return {"OPENBLAS_CORETYPE": setting}
    name, features, _ = COMPILED[setting]
    host = llvm.get_host_cpu_features()
    absent = [one[1:] for one in features.split(",") if not host.get(one[1:])]
    if absent:
        pytest.skip(f"this processor lacks {', '.join(absent)}")
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}


def computed(given):
    done = subprocess.run(
        [sys.executable, PROGRAM],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here():
    """Results of the code for this processor."""
    return computed({})


@pytest.mark.parametrize("setting", [*COMPILED, "numpy", "Prescott", "Haswell"])
def test_other_processors_compute_the_same_bits(setting, here):
    found = computed(variables(setting))
    assert len(found) > 20
    vectors = {*cases.SKETCHES, *cases.GROUPS, *later.VALUES} - {*later.FITTED}
    assert set(found["vectors"].split()) == vectors
    assert set(found["read"].split()) == later.examples()
    if setting in COMPILED:
        assert found.pop("vector bits") == COMPILED[setting][2]
    different = [name for name, value in found.items() if here[name] != value]
    assert different == []


def test_signs_of_zeros_of_another_math_library():
    """Without fused operations glibc rounds some functions otherwise; one digest is known to."""
    found = ds.FeatureMap(10, 4000, scale=1.5, distribution="sparse-sums", seed=19)
    program = (
        "import sys, dask_sketch as ds; print(ds.FeatureMap.from_spec(sys.stdin.read()).digest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-AVX2,-FMA4,-AVX512F"},
        input=found.spec,
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    there = ds.FeatureMap.from_spec(found.spec, done.stdout.strip())
    np.testing.assert_array_equal(there.frequencies, found.frequencies)
    there.require_same(found)


def test_two_processors_in_one_cluster():
    """Both workers agree on the frequencies, and each computes a part of the sum."""
    given = [variables("x86-64"), variables("haswell") | variables("numpy")]
    workers = {
        number: {"cls": Nanny, "options": {"nthreads": 1, "env": env, "host": "127.0.0.1"}}
        for number, env in enumerate(given)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": None, "host": "127.0.0.1"}}
    feature_map = ds.FeatureMap(3, 70, scale=1.5, seed=5)
    x = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    with SpecCluster(workers=workers, scheduler=scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=120)
        found = ds.sketch(da.from_array(x, chunks=(100, 3)), feature_map).compute()
        names = client.run(lambda: os.environ["NUMBA_CPU_NAME"])
        done = client.run(lambda dask_worker: dask_worker.state.executed_count)
    assert set(names.values()) == {"x86-64", "haswell"}
    assert all(done.values())
    assert found.identical(ds.partial_sketch(x, feature_map))
