"""The width of vectors changes no bit of the sums."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from dask_sketch.features.kernels.dense import DenseKernel, vector_bits
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
