"""The width of vectors changes no bit of the sums; caches depend on the sources of all kernels."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest

from dask_sketch.features.kernels import dense, grouped_loops, grouped_reading, structured
from dask_sketch.features.kernels import whitened_rows as whitened
from dask_sketch.features.kernels.dense import DenseKernel, vector_bits
from dask_sketch.features.kernels.llvm_vectors import SOURCE_MARK
from dask_sketch.features.kernels.structured import StructuredKernel
from dask_sketch.features.kernels.structured_frequencies import truncate_to_grid


def checksum_of_sums():
    """Checksum of the sums of a few maps, with and without weights."""
    out = hashlib.sha256()
    for n_features, dtype in [(3, "float64"), (65, "float32")]:
        rng = np.random.default_rng(n_features)
        cycles = rng.normal(size=(n_features, 37)).astype(np.float32)
        x = rng.normal(size=(345, n_features)).astype(dtype)
        weights = (1.0 - 0.5 * rng.random(345)).astype(dtype)
        on_grid = truncate_to_grid(cycles).astype(np.float32)
        for kernel, frequencies in (
            (DenseKernel(n_features, dtype), cycles),
            (StructuredKernel(dtype), on_grid),
        ):
            packed = kernel.pack(frequencies)
            sums = kernel.zeros(packed)
            kernel.add(x, packed, sums)
            kernel.add(x, packed, sums, weights)
            out.update(kernel.unpack(sums, 37).tobytes())
    return out.hexdigest()


@pytest.mark.slow
def test_the_code_for_avx2_has_the_same_bits():
    features = llvm.get_host_cpu_features()
    if not (features.get("avx2") and features.get("fma")):
        pytest.skip("this processor has no AVX2")
    if vector_bits() == 256:
        pytest.skip("the code for this processor is that for AVX2")
    named = "+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+sse4.2,+popcnt"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_llvm_vectors as test\n"
        "assert test.vector_bits() == 256\n"
        "print(test.checksum_of_sums())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        env={**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": named},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == checksum_of_sums()


COMPILERS = {
    "dense": lambda: dense._specialised.__wrapped__(2, "float64", 2, 0),
    "structured": lambda: structured._compiled.__wrapped__("float64", 2, 128),
    "whitened": lambda: whitened._whitener.__wrapped__("float64"),
    "sums of groups": lambda: grouped_loops._summer_of_sums("float64", 2),
    "values of groups": lambda: grouped_loops._summer_of_values("float64"),
    "tiles of groups": lambda: grouped_loops._summer_of_tiles("float64", 2),
    "fetching": lambda: grouped_reading._fetcher.__wrapped__("float64", 2),
    "reading": lambda: grouped_reading._reader.__wrapped__("float64", "float64"),
    "whitening of groups": lambda: grouped_reading._whitener("float64"),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_the_cache_of_a_kernel_depends_on_all_sources(name, monkeypatch):
    kept = []
    monkeypatch.setattr(numba, "njit", lambda *args, **options: lambda f: kept.append(f) or f)
    COMPILERS[name]()
    (function,) = kept
    values = dict(
        zip(
            function.__code__.co_freevars,
            (cell.cell_contents for cell in function.__closure__),
            strict=True,
        )
    )
    assert values["mark"] == SOURCE_MARK
