"""`python -m tests.benchmarks`: print the speed of the inner loop."""

from __future__ import annotations

import os

# one thread for BLAS, before NumPy loads it: the rates are for one core
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

from tests.benchmarks import kernel  # noqa: E402

KERNEL = [(2, 1024), (12, 1024), (12, 8000), (20, 2048), (64, 1024), (128, 1024), (784, 1024)]

if __name__ == "__main__":
    print(kernel.table([kernel.measure(d, m) for d, m in KERNEL]), flush=True)  # noqa: T201
